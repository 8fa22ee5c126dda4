"""Articles for questions made by program: the phrases of a text, passages of it, and which articles a sentence names.

Part of `scripts/make_questions.py`.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from npm.corpus.documents import read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import is_stop_word, sentence_bounds

ARTICLE_CHARS = 9000
"""Where passages are taken from: the beginning of each document."""
SENTENCE_CHARS = (40, 320)
PASSAGE_WORDS, CHARS_PER_WORD = (30, 45, 60, 90), 6
RARE = (3, 0.004)
"""A rare word occurs in at least so many documents, and in at most such a share of them."""

MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_CAPITALIZED = r"(?:[A-Z][\w’'\-]+|[A-Z]\.)"
DATE = (
    rf"(?:(?:\d{{1,2}} )?(?:{MONTH}) \d{{4}}|\d{{1,2}} (?:{MONTH})|(?:{MONTH}) \d{{1,2}}(?:, \d{{4}})?|(?:1\d|20)\d\d)"
)
NUMBER = r"\d[\d,.]*(?:\d|\b)(?: (?:percent|per cent|million|billion|thousand|[a-z]{3,}s)\b)?"
NAME = rf"{_CAPITALIZED}(?:\s(?:(?:of|de|van|von|the|and|du|di|del|la|al)\s)?{_CAPITALIZED}){{0,4}}"
PHRASE = re.compile(
    rf"(?<![\w-])(?:(?P<date>{DATE})|(?P<number>{NUMBER})"
    rf"|(?P<name>{NAME})"
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
