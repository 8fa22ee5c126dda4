"""Questions with a `<mask>` made by program, each with the passage of an article that answers it.

A sentence that names an article by its title and another phrase of that article becomes a question (cross-document
cloze, Glass et al. 2019, arXiv 1906.04980), and so does a fact, written by a template. `npm.corpus.questions` reads the
rows; `scripts/make_questions.py` writes them.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.types import MASK_TEXT
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.text import is_stop_word, sentence_bounds

ARTICLE_CHARS, READ_CHARS = 9000, 14000
"""Where passages are taken from, and where sentences are: from the beginning of each document."""
SENTENCE_CHARS = (40, 320)
ROWS_OF_SUBJECT, ROWS_OF_ANSWER = 25, 60
"""Most rows about one article, and with one answer, so that no country is half of the data."""
OWN_SENTENCES, CLAUSES = 0.3, 0.6
"""Share of the sentences of the article itself that are used, and of the sentences that are cut to a clause."""
NEAR_CHARS, PASSAGE_WORDS, CHARS_PER_WORD = 90, (30, 45, 60, 90), 6
RARE = (3, 0.004)
"""A rare word occurs in at least so many documents, and in at most such a share of them."""

MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_CAPITALIZED = r"(?:[A-Z][\w’'\-]+|[A-Z]\.)"
DATE = (
    rf"(?:(?:\d{{1,2}} )?(?:{MONTH}) \d{{4}}|\d{{1,2}} (?:{MONTH})|(?:{MONTH}) \d{{1,2}}(?:, \d{{4}})?|(?:1\d|20)\d\d)"
)
NUMBER = r"\d[\d,.]*(?:\d|\b)(?: (?:percent|per cent|million|billion|thousand|[a-z]{3,}s)\b)?"
PHRASE = re.compile(
    rf"(?<![\w-])(?:(?P<date>{DATE})|(?P<number>{NUMBER})"
    rf"|(?P<name>{_CAPITALIZED}(?:\s(?:(?:of|de|van|von|the|and|du|di|del|la|al)\s)?{_CAPITALIZED}){{0,4}})"
    r"|(?P<term>[a-z]{5,}))(?![\w-])"
)
LOWER = re.compile(r"\b[a-z]{5,}\b")
FOLLOWED_BY_NAME, ENDS_WITH_NAME = re.compile(r"(?:['’]s)?\s[A-Z]"), re.compile(r"(?<![.!?]\s)\b[A-Z][\w’'\-]+ $")


@dataclass(slots=True)
class Excluded:
    """What evaluations ask: titles of articles, and pairs of a subject and an answer, all in lower case."""

    titles: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    dropped: int = 0
    """Articles and pairs that were met and left out."""

    @classmethod
    def read(cls, files: Iterable[str]) -> Excluded:
        """Read the rows of JSON lines files."""
        found = cls()
        for _, row in (row for file in files for row in read_rows(Path(file))):
            if title := row.get("title"):
                found.titles.add(subject_of(title).lower())
            if subject := row.get("subject"):
                found.pairs |= {(str(subject).lower(), str(answer).lower()) for answer in row.get("answers", ())}
        return found

    def covers(self, subject: str, answer: str = "") -> bool:
        """Return True if the subject, or the pair in either order, is asked about; it is counted then."""
        subject, answer = subject.lower(), answer.lower()
        found = subject in self.titles or not self.pairs.isdisjoint([(subject, answer), (answer, subject)])
        self.dropped += found
        return found


def subject_of(title: str) -> str:
    """A title as a sentence names it.

    >>> subject_of("Mercury (planet)")
    'Mercury'
    """
    return re.sub(r" \(.*\)$", "", title)


def places_of(phrase: str, text: str) -> list[int]:
    """Where a phrase occurs as words of its own, and not as a part of a longer name.

    >>> places_of("Paris", "Paris Hilton left Paris in Parish; Miss Paris came.")
    [18]
    """
    found = re.finditer(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", text)
    if not phrase[0].isupper():
        return [match.start() for match in found]
    return [
        match.start()
        for match in found
        if not FOLLOWED_BY_NAME.match(text, match.end())
        and not ENDS_WITH_NAME.search(text, max(0, match.start() - 30), match.start())
    ]


@lru_cache(maxsize=64)
def _sentences(text: str) -> np.ndarray:
    return sentence_bounds(text)  # i64 [sentences, 2]


def passage(text: str, at: int, size: int, rng: random.Random) -> str:
    """Some 30 to 90 words of `text` that contain the `size` characters at `at`; from the beginning of a sentence."""
    words = rng.choice(PASSAGE_WORDS)
    bounds = _sentences(text)
    begin = max(0, at - rng.randint(0, words * (CHARS_PER_WORD - 1)))
    first = int(bounds[max(0, int(np.searchsorted(bounds[:, 0], begin, side="right")) - 1), 0])
    if begin - first > SENTENCE_CHARS[1]:  # a list or a table
        first = text.rfind(" ", 0, begin) + 1
    end = max(at + size, first + words * CHARS_PER_WORD)
    near = bounds[(bounds[:, 1] >= max(end - 40, at + size)) & (bounds[:, 1] <= end + 40), 1]
    if len(near):
        end = int(near[-1])
    else:
        space = text.find(" ", end)
        end = len(text) if space < 0 else space
    return text[first:end].strip()


def negatives(text: str, answers: Iterable[str], rng: random.Random) -> list[str]:
    """A passage of the same article in which no answer occurs; none if a few draws find none."""
    for _ in range(4):
        found = passage(text, rng.randint(0, max(0, len(text) - 200)), 1, rng)
        if len(found) > SENTENCE_CHARS[0] and not any(answer.lower() in found.lower() for answer in answers):
            return [found]
    return []


class Articles:
    """The beginnings of all documents by the name that sentences give them, and the words that are rare in them."""

    def __init__(self, files: list[str], excluded: Excluded) -> None:
        self.texts: dict[str, tuple[str, str]] = {}
        self._by_first_word: dict[str, list[str]] = defaultdict(list)
        counts: Counter[str] = Counter()
        document_count = 0
        for document in read_corpus(CorpusSettings(files=files)):
            text, subject = document.text[:ARTICLE_CHARS], subject_of(document.title)
            document_count += 1
            counts.update(set(LOWER.findall(text)))
            # "Mercury (planet)" is not what every sentence with a Mercury is about
            usable = len(subject) > 3 and subject[0].isupper() and subject == document.title
            if usable and subject not in self.texts and not excluded.covers(subject):
                self.texts[subject] = document.title, text
                self._by_first_word[subject.split()[0]].append(subject)
        for names in self._by_first_word.values():
            names.sort(key=len, reverse=True)
        self.rare = {word for word, count in counts.items() if RARE[0] <= count <= RARE[1] * document_count}

    def named_in(self, sentence: str) -> Iterator[tuple[int, str]]:
        """Articles that a sentence names, the longest name at each word, and where."""
        stop = 0
        for match in re.finditer(r"(?<![\w-])[A-Z][\w’'\-]+", sentence):
            for subject in self._by_first_word.get(match.group(), ()) if match.start() >= stop else ():
                end = match.start() + len(subject)
                if sentence.startswith(subject, match.start()) and not sentence[end : end + 1].isalnum():
                    stop = end
                    if not FOLLOWED_BY_NAME.match(sentence, end):
                        yield match.start(), subject
                    break

    def shared(self, sentence: str, subject: str) -> Iterator[tuple[int, str, str]]:
        """Phrases of a sentence that its article has too: where, the phrase and its kind."""
        text = self.texts[subject][1]
        for at, found, kind in phrases(sentence):
            if kind == "term":
                if found not in self.rare:
                    continue
                before = re.search(r"(?<![\w-])([a-z]{4,}) $", sentence[:at])
                if before and not is_stop_word(before[1]) and f"{before[1]} {found}" in text:
                    at, found = before.start(), f"{before[1]} {found}"
            if kind == "number" and " " in found and found not in text:
                found = found.partition(" ")[0]
            if len(found) < 3 or found.lower() in subject.lower() or subject.lower() in found.lower():
                continue
            if found in text:
                yield at, found, kind


def phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Dates, numbers, names and words of a text: where, the phrase and its kind.

    >>> [found for _, found, _ in phrases("The Seine is in Paris. Ships come.")]
    ['Seine', 'Paris']
    """
    for match in PHRASE.finditer(text):
        kind, at, found = str(match.lastgroup), match.start(), match.group()
        if kind == "name":
            first, _, rest = found.partition(" ")
            if is_stop_word(first):  # The Beatles, In Paris
                at, found = at + len(first) + 1, rest
            elif not rest and (at == 0 or text[at - 2] in ".!?"):  # any word begins with a capital there
                continue
        yield at, found, kind


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
    row = {"question": question, "answers": [answer], "title": title, "block": block}
    return row | {"negatives": negatives(text, [answer], rng), "style": "clause" if short else "sentence"}


def turned_rows(row: dict[str, Any], subject: str) -> Iterator[dict[str, Any]]:
    """The row with its subject masked and its answer given, if the passage has the subject in its text.

    Without such rows an encoder learns that the subject of a passage is never the answer.

    >>> row = {"question": "Oslo is in <mask>.", "answers": ["Norway"], "block": "Oslo, Norway", "negatives": []}
    >>> [turned["question"] for turned in turned_rows(row, "Oslo")]
    ['<mask> is in Norway.']
    """
    sentence = row["question"].replace(MASK_TEXT, row["answers"][0])
    places = places_of(subject, sentence)
    if len(places) != 1 or not places_of(subject, row["block"]):
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
                row |= {"title": document.title, "block": block, "negatives": negatives(text, row["answers"], rng)}
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
