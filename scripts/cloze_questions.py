"""Rows of questions made by program, each with the passage of an article that answers it.

A sentence that names an article by its title and another phrase of that article becomes a question (cross-document
cloze, Glass et al. 2019, arXiv 1906.04980), and so does a fact, written by a template. Part of
`scripts/make_questions.py`.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from npm.core.types import MASK_TEXT
from npm.corpus.documents import read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import sentence_bounds
from scripts.cloze_articles import (
    ARTICLE_CHARS,
    PHRASE,
    SENTENCE_CHARS,
    Articles,
    Excluded,
    negatives,
    passage,
    phrases,
    places_of,
    subject_of,
)

READ_CHARS = 14000
"""Where sentences are taken from: the beginning of each document."""
ROWS_OF_SUBJECT, ROWS_OF_ANSWER = 25, 60
"""Most rows about one article, and with one answer, so that no country is half of the data."""
OWN_SENTENCES, CLAUSES = 0.3, 0.6
"""Share of the sentences of the article itself that are used, and of the sentences that are cut to a clause."""
NEAR_CHARS = 90


def rivals(block: str, answers: Iterable[str], kind: str) -> list[str]:
    """The other phrases of a block that are of the answers' kind; none for terms, which any word may be.

    >>> rivals("In 1821 he left Paris for Oslo, in May 1822.", ["Oslo"], "name")
    ['Paris']
    >>> rivals("In 1821 he left Paris for Oslo, in May 1822.", ["1822"], "date")
    ['1821']
    """
    lower = [answer.lower() for answer in answers]
    found = {phrase: phrase.lower() for _, phrase, own_kind in phrases(block) if own_kind == kind != "term"}
    return [
        phrase
        for phrase, folded in found.items()
        if len(phrase) > 1 and not any(folded in answer or answer in folded for answer in lower)
    ]


def clause(sentence: str, first: int, stop: int, rng: random.Random) -> tuple[int, int]:
    """A part of a sentence around the characters [first, stop), between spaces, and between commas where they are."""
    start = sentence.rfind(" ", 0, max(0, first - rng.randint(0, 25))) + 1
    end = sentence.find(" ", min(len(sentence), stop + rng.randint(0, 30)))
    end = len(sentence) if end < 0 else end
    comma = sentence.find(", ", stop, end)
    return max(start, sentence.rfind(", ", start, first) + 2 if ", " in sentence[start:first] else start), (
        end if comma < 0 else comma
    )


def masked(sentence: str, start: int, end: int, at: int, answer: str) -> str:
    """The part [start, end) of a sentence with its answer masked, as a sentence of its own."""
    text = sentence[start:at] + MASK_TEXT + sentence[at + len(answer) : end]
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text.rstrip(",;:( ") + "."


def entity_rows(files: list[str], excluded: Excluded, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of sentences that share a subject and a phrase with an article."""
    articles = Articles(files, excluded)
    of_subject: Counter[str] = Counter()
    of_answer: Counter[str] = Counter()
    for document in read_corpus(CorpusSettings(files=files)):
        own = subject_of(document.title)
        if own.lower() in excluded.titles:
            continue
        text = document.text[:READ_CHARS]
        for start, end in sentence_bounds(text).tolist():
            sentence = text[start:end]
            if not SENTENCE_CHARS[0] <= len(sentence) <= SENTENCE_CHARS[1] or "\n" in sentence:
                continue
            for place, subject in articles.named_in(sentence):
                if of_subject[subject] >= ROWS_OF_SUBJECT or (subject == own and rng.random() > OWN_SENTENCES):
                    continue
                found = [each for each in articles.shared(sentence, subject) if not excluded.covers(subject, each[1])]
                rng.shuffle(found)
                found.sort(key=lambda each: each[2] not in ("number", "date"))  # there are few of them
                for at, answer, kind in found[:2]:
                    if of_answer[answer] >= ROWS_OF_ANSWER:
                        continue
                    row = _entity_row(sentence, place, subject, at, answer, *articles.texts[subject], rng)
                    if row is not None:
                        of_subject[subject] += 1
                        of_answer[answer] += 1
                        yield row | {"kind": kind}
                        yield from turned_rows(row, subject)


def _entity_row(
    sentence: str, place: int, subject: str, at: int, answer: str, title: str, text: str, rng: random.Random
) -> dict[str, Any] | None:
    """A row for the answer at `at` of a sentence that names its subject at `place`; None where it would be a copy."""
    around = sentence[max(0, at - 20) : at + len(answer) + 20]
    places = [
        found for found in places_of(answer, text) if around not in text[max(0, found - 30) : found + len(around) + 30]
    ]
    if not places:
        return None
    first, stop = min(place, at), max(place + len(subject), at + len(answer))
    short = stop - first < NEAR_CHARS and rng.random() < CLAUSES
    start, end = clause(sentence, first, stop, rng) if short else (0, len(sentence))
    question = masked(sentence, start, end, at, answer)
    block = passage(text, rng.choice(places[:4]), len(answer), rng)
    if answer.lower() in question.lower() or around in block or sentence[:40] in block or answer not in block:
        return None
    row = {"question": question, "answers": [answer], "title": title, "context": block}
    return row | {"negatives": negatives(text, [answer], rng), "style": "clause" if short else "sentence"}


def turned_rows(row: dict[str, Any], subject: str) -> Iterator[dict[str, Any]]:
    """The row with its subject masked and its answer given, if the passage has the subject in its text.

    Without such rows an encoder learns that the subject of a passage is never the answer.

    >>> row = {"question": "Oslo is in <mask>.", "answers": ["Norway"], "context": "Oslo, Norway", "negatives": []}
    >>> [turned["question"] for turned in turned_rows(row, "Oslo")]
    ['<mask> is in Norway.']
    """
    sentence = row["question"].replace(MASK_TEXT, row["answers"][0])
    places = places_of(subject, sentence)
    if len(places) != 1 or not places_of(subject, row["context"]):
        return
    question = masked(sentence, 0, len(sentence), places[0], subject)
    if subject.lower() not in question.lower():
        negatives = [each for each in row["negatives"] if subject.lower() not in each.lower()]
        yield row | {"question": question, "answers": [subject], "negatives": negatives, "kind": "name"}


def fact_rows(
    files: list[str], facts: Path, templates: Path, excluded: Excluded, rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Rows of facts, one for each template of their relation, with the passage in which their object occurs."""
    statements = json.loads(templates.read_text(encoding="utf-8"))
    of_document: dict[str, list[Any]] = defaultdict(list)
    objects: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, fact in read_rows(facts):
        of_document[fact["document"]].append(fact)
        objects[fact["subject"], fact["relation"]].append(fact["object"])
    for document in read_corpus(CorpusSettings(files=files)):
        for fact in of_document.get(document.id, ()):
            subject, answer, at = fact["subject"], fact["object"], fact["start_char"]
            if excluded.covers(subject, answer) or document.text[at : at + len(answer)] != answer:
                continue
            text = document.text[max(0, at - ARTICLE_CHARS // 2) : at + ARTICLE_CHARS // 2]
            for template in statements.get(fact["relation"], ()):
                block = passage(text, at - max(0, at - ARTICLE_CHARS // 2), len(answer), rng)
                question = template.replace("[S]", subject).replace("[O]", MASK_TEXT)
                if answer.lower() in question.lower() or answer not in block:
                    continue
                others = {each for each in objects[subject, fact["relation"]] if places_of(each, block)}
                row = {"question": question[0].upper() + question[1:], "answers": [answer, *sorted(others - {answer})]}
                row |= {"title": document.title, "context": block, "negatives": negatives(text, row["answers"], rng)}
                kind = match.lastgroup if (match := PHRASE.match(answer)) else "term"
                yield row | {"kind": kind, "style": "fact"}
                yield from turned_rows(row | {"style": "fact"}, subject_of(document.title))


def sampled(rows: Iterable[dict[str, Any]], *, limit: int | None, seed: int) -> list[dict[str, Any]]:
    """All rows, or `limit` of them in another order, each with the same probability."""
    if limit is None:
        return list(rows)
    rng = random.Random(seed)
    kept: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        place = number if number < limit else rng.randint(0, number)
        if place < limit:
            kept[place : place + 1] = [row]
    rng.shuffle(kept)
    return kept
