"""Questions about attributes that articles state of their subjects, asked in other words.

The patterns of `scripts/attributes.yaml` find the class, nationality, profession, maker, material, symbol and height of
a subject, and more; its templates ask for them. Rivals are phrases of other kinds: the article's other attributes, and
the frequent phrases of the block. Part of `scripts/make_questions.py`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npm.core.settings import read_yaml
from npm.core.types import MASK_TEXT
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.text import is_stop_word, sentence_bounds
from scripts.cloze_articles import (
    ARTICLE_CHARS,
    DATE,
    FOLLOWED_BY_NAME,
    NAME,
    NUMBER,
    PHRASE,
    SENTENCE_CHARS,
    Excluded,
    negatives,
    passage,
    phrases,
    subject_of,
)
from scripts.cloze_questions import turned_rows

ROWS_OF_SUBJECT, ROWS_OF_VALUE, ROWS_OF_ATTRIBUTE = 12, 20, 2500
"""Maximum number of rows about one article, with one value of an attribute, and of one attribute."""
TEMPLATES, TURNED = 2, 0.3
"""Maximum number of questions per statement; fraction of the rows about names that are also turned."""
HEAD_CHARS, LEAD_SENTENCES = 60, 4
"""A sentence is about the subject if it has its name or a pronoun at most so many characters before the statement; some
attributes are read from so many sentences of the lead only."""
PRONOUN = re.compile(r"(?:It|He|She|They|Its|His|Her|Their)\b")
NO_SUBJECT = re.compile(r"\d|[A-Z][a-z]+(?: relations)? (?:of|in|from|by) |.*(?: conjecture| theorem|ography)$")
"""Titles of years, lists and fields ("Economy of France"), about which sentences with "it" are not."""
DEFINITION = re.compile(
    r"\b(?:is|was|are|were) (?:an?|the|one of the) (?:(?:\d{4}|former|small|large|late|major) )*"
    r"(?P<nation>[A-Z][a-z]+(?:[- ][A-Z][a-z]+)? )?(?P<kinds>[a-z][\w-]+(?:(?:,? and|,)? (?:an? )?[a-z][\w-]+){0,8})"
)
AFTER_CLASS = re.compile(
    r" (?:(?:that|which|who|whose|where|when|known|located|used|native|best|written|directed|produced|founded|based"
    r"|made|found|situated|formed|released|published|created|designed|developed|consisting|containing|using|held|or"
    r"|with|[a-z]+ing|of|in|on|at|for|from|by|to|as|near|between|under|than|during|is|are|was|were|has|had|due"
    r"|associated|set|so|meant|built|derived|given|born|whereby|first|also|today|there|then)\b.*)"
)
NO_CLASS = re.compile(
    r"(?:.*(?:ed|est|ous|ive|ly|less)|first|second|third|ancient|professional|form|body|branch|species|type|name|title"
    r"|term|state|set|group|method|part|member|one|list)$"
)
"""Adjectives that a comma follows, and words that say little without the "of" after them."""

TABLE = read_yaml(Path(__file__).with_name("attributes.yaml").read_text(encoding="utf-8"))
PERSON = re.compile(TABLE["persons"])


def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the table with its pieces put in."""
    for piece, text in (TABLE["pieces"] | {"NAME": NAME, "DATE": DATE, "NUMBER": NUMBER}).items():
        pattern = pattern.replace(f"<{piece}>", text)
    return re.compile(pattern)


FIND = {name: _compiled(attribute["find"]) for name, attribute in TABLE["attributes"].items()}
OPEN = _compiled(TABLE["open"]["find"].replace("<NOUN>", "|".join(TABLE["open"]["nouns"].split())))

Statement = tuple[str, int, list[str], Sequence[str]]
"""An attribute, the position of its first value, its values, and templates that ask for one of them."""


def statements(subject: str, text: str) -> Iterator[Statement]:
    """Yield the attributes that an article states of its subject.

    >>> [(name, values) for name, _, values, _ in statements("Ed", "Ed (born 2 May 1901) was a Welsh poet and miner.")]
    [('nation', ['Welsh']), ('job', ['poet', 'miner']), ('born', ['2 May 1901'])]
    """
    is_person = bool(PERSON.search(text[:200]))
    names = [subject, subject.split()[-1] if is_person else subject[0].lower() + subject[1:]]
    for number, (start, end) in enumerate(sentence_bounds(text).tolist()):
        sentence = text[start:end]
        if number and (not SENTENCE_CHARS[0] <= len(sentence) <= SENTENCE_CHARS[1] or "\n" in sentence):
            continue
        if number == 0 and (definition := DEFINITION.search(sentence)):
            yield from _classes(definition, start, is_person=is_person)
        heads = [0] if number == 0 or PRONOUN.match(sentence) else [sentence.find(n) for n in names if n in sentence]
        if not heads:
            continue
        head = min(heads)
        for name, attribute in TABLE["attributes"].items():
            if attribute.get("of", "things") not in ("both", "persons" if is_person else "things"):
                continue
            if attribute.get("lead") and number >= LEAD_SENTENCES:
                continue
            if (found := FIND[name].search(sentence, head)) and (number == 0 or found.start() - head < HEAD_CHARS):
                value = str(found.lastgroup)
                yield name, start + found.start(value), [found[value]], attribute["ask"]
        if found := OPEN.search(sentence, head):
            value = str(found.lastgroup)
            asked = [template.replace("[A]", found["a"]) for template in TABLE["open"]["ask"]]
            yield found["a"], start + found.start(value), [found[value]], asked


def _classes(definition: re.Match[str], start: int, *, is_person: bool) -> Iterator[Statement]:
    """Yield the nationality and the classes of a definition: "is an English writer and editor"."""
    asked = TABLE["classes"]
    if is_person and (nation := definition["nation"]):
        yield "nation", start + definition.start("nation"), [nation.strip()], asked["nations"]
    kinds = re.split(r",? and |, ", AFTER_CLASS.sub("", definition["kinds"]))
    kinds = [re.sub(r"^an? |[ ,]+(?:and)?$", "", kind) for kind in kinds]
    kinds = [k for k in kinds if len(k) > 3 and k.count(" ") < 3 and not NO_CLASS.match(k) and not is_stop_word(k)]
    if kinds and not FOLLOWED_BY_NAME.match(definition.string, definition.end()):  # "an ancient Roman stadium"
        at = start + definition.start("kinds") + definition["kinds"].find(kinds[0])
        yield "job" if is_person else "class", at, kinds, asked["persons" if is_person else "things"]


def spoken_name(subject: str, text: str) -> str:
    """Return the subject as its article writes it within sentences.

    >>> spoken_name("Barometer", "A barometer is an instrument. Every barometer measures pressure.")
    'a barometer'
    """
    low = subject[0].lower() + subject[1:]
    if text.count(f" {low}") <= text.count(f" {subject}"):
        return subject
    article = re.search(rf"\b(an?|the) {re.escape(low)}\b", text[:200], re.I)
    return f"{article[1].lower()} {low}" if article else low


def attribute_rows(files: list[str], excluded: Excluded, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield rows for the attributes of each article, up to the maxima above."""
    counts: Counter[tuple[str, str]] = Counter()
    for document in read_corpus(CorpusSettings(files=files)):
        subject, text = subject_of(document.title), document.text[:ARTICLE_CHARS]
        if len(subject) < 3 or NO_SUBJECT.match(subject) or excluded.covers(subject):
            continue
        found = list({(each[0], each[2][0]): each for each in statements(subject, text)}.values())
        rng.shuffle(found)
        made = 0
        for attribute, at, values, templates in found:
            if made >= ROWS_OF_SUBJECT or any(excluded.covers(subject, value) for value in values):
                continue
            others = {value for name, _, values, _ in found if name != attribute for value in values} - set(values)
            for template in rng.sample(templates, min(TEMPLATES, len(templates))):
                if counts[attribute, values[0]] >= ROWS_OF_VALUE or counts[attribute, ""] >= ROWS_OF_ATTRIBUTE:
                    break
                question = template.replace("[S]", spoken_name(subject, text)).replace("[O]", MASK_TEXT)
                row = {"question": question[0].upper() + question[1:], "answers": values, "title": document.title}
                row |= {"context": passage(text, at, len(values[0]), rng), "negatives": negatives(text, values, rng)}
                if not _usable(row, attribute):
                    continue
                counts.update([(attribute, values[0]), (attribute, "")])
                made += 1
                kind = match.lastgroup if (match := PHRASE.match(values[0])) else "term"
                row |= {"kind": kind, "style": "attribute", "rivals": _other_kinds(row, others)}
                yield row
                if kind == "name" and attribute not in ("nation", "religion") and rng.random() < TURNED:
                    yield from turned_rows(row | {"rivals": []}, subject)


def _usable(row: dict[str, Any], attribute: str) -> bool:
    """Return True if the block has the value, and the question does not."""
    value, question = row["answers"][0], row["question"].lower()
    is_phrase = (
        value in row["context"]
        and len(value) > (attribute != "symbol")
        and value[-1] != "."
        and not is_stop_word(value)
    )
    return is_phrase and not any(each.lower() in question for each in row["answers"])


def _other_kinds(row: dict[str, Any], others: set[str]) -> list[str]:
    """The values of other attributes and the frequent phrases that the block has, sorted."""
    counts = Counter(phrase for _, phrase, _ in phrases(row["context"]))
    candidates = {each for each in others if each in row["context"]} | {each for each, n in counts.items() if n > 1}
    return sorted(each for each in candidates if not any(each in value or value in each for value in row["answers"]))
