"""Types, names and shapes shared between packages. docs/how-it-works.md has the words.

Shapes: T tokens of all sequences in a row, S sequences, n spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import IntFlag
from html import escape
from typing import Any, Literal, Protocol

import numpy as np

from npm.core.display import Marked, Table

MASK_TEXT = "<mask>"
"""Mark of a missing phrase in users' texts, independent of the encoder's own mask token."""
MASKS_PER_SPAN = 2
"""A mask pair is the tokenizer's mask token this many times: the first is the start query, the last the end query."""
REPR_CHARS, REPR_PHRASES = 80, 3
"""Maximum characters and phrases of an answer in its `repr`."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which an escape in JSON or YAML can contain, but no tokenizer or UTF-8 file accepts."""


class TokenFlag(IntFlag):
    """Properties of a token's surface text; stored as one byte per token."""

    WORD_START = 1  # a phrase may start here
    WORD_END = 2  # a phrase may end here
    PUNCTUATION = 4  # consists of punctuation or symbols only
    STOPWORD = 8  # belongs to a word on the stop-word list, or is a bracket, quotation mark or list marker
    SENTENCE_START = 16  # first token of a sentence
    CLAUSE_PUNCTUATION = 32  # exactly one of ! , . : ?
    SPECIAL = 64  # a special token inside a stored block, such as <s>
    LINKING = 128  # of a STOPWORD: names are built with it, such as of and the
    JOINED = (
        LINKING  # of any other token of text: continues the expression of the token before it, such as 000 in 15,000
    )
    TITLE = SPECIAL | LINKING  # of the title in front of a block: read with it, never masked, no row


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id and a title; `fields` holds further facts of the source, JSON values only."""

    id: str
    title: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens of one document, without the encoder's special tokens."""

    token_ids: np.ndarray  # i32 [T]
    flags: np.ndarray  # u8 [T], TokenFlag
    start_chars: np.ndarray  # u32 [T], code points in the document's text
    end_chars: np.ndarray  # u32 [T]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Ragged token sequences, such as the blocks of one group, ready to be masked."""

    token_ids: np.ndarray  # i32 [T]
    flags: np.ndarray  # u8 [T], TokenFlag
    offsets: np.ndarray  # i64 [S + 1]; sequence s is [offsets[s], offsets[s + 1])

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint half-open token ranges in the flat tokens of `Sequences`, sorted by start."""

    starts: np.ndarray  # i64 [n], positions in [0, T)
    lengths: np.ndarray  # i64 [n], tokens

    def __len__(self) -> int:
        return len(self.starts)


class Progress(Protocol):
    """Progress of long work: the stage, how much is done, and of how much (None: unknown)."""

    def __call__(self, stage: str, done: float, total: float | None, /) -> None: ...


def silent(stage: str, done: float, total: float | None, /) -> None:
    """Default: no progress."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a phrase in the corpus; offsets are Unicode code points in the document's text."""

    document: str
    """Id of the document."""
    title: str
    """Title of the document."""
    start_char: int
    """First character of the phrase in the text of the document."""
    end_char: int
    """End of the phrase, exclusive."""
    context: str
    """Sentence around the phrase as it is read: without markup, a row of a table with the cells of its header."""
    context_start_char: int
    """First character of the sentence in the text of the document."""
    context_end_char: int
    """End of the sentence in the text of the document, exclusive."""
    phrase_start: int
    """First character of the phrase in `context`."""
    phrase_end: int
    """End of the phrase in `context`, exclusive."""

    @property
    def parts(self) -> tuple[str, str, str]:
        """The context before the phrase, the phrase as it is there, and the context after it.

        >>> Occurrence("d", "Iceland", 115, 124, "It is run from Reykjavík.", 100, 125, 15, 24).parts
        ('It is run from ', 'Reykjavík', '.')
        """
        first, last = self.phrase_start, self.phrase_end
        return self.context[:first], self.context[first:last], self.context[last:]

    @property
    def document_name(self) -> str:
        """The title and the id, by which documents= and delete know it.

        >>> Occurrence("painting-12", "Mona Lisa", 0, 4, "Lisa", 0, 4, 0, 4).document_name
        'Mona Lisa (painting-12)'
        """
        named = self.title and self.title != self.document
        return f"{self.title} ({self.document})" if named else self.document


@dataclass(frozen=True, slots=True)
class Phrase:
    """An answer: its representative surface form, its fraction of the evidence, and its best occurrences.

    `occurrence_count` is of the occurrences considered: all in the blocks that are ranked or given, and in unrestricted
    search (`dense`) those with an end among the candidates. The corpus may contain more.
    """

    phrase: str
    """Most frequent spelling among the occurrences."""
    score: float
    """Fraction of the evidence, from 0 to 1."""
    occurrence_count: int
    """Number of occurrences that were considered."""
    occurrences: tuple[Occurrence, ...]
    """Best occurrences, best first."""


SURE, LIKELY = 0.8, 0.5
"""Least confidence of an answer, or support of a traced span, that is called sure, and likely; below it is unsure."""


def confidence_word(confidence: float) -> str:
    """The word for a confidence or support from 0 to 1.

    >>> confidence_word(0.8), confidence_word(0.79), confidence_word(0.3)
    ('sure', 'likely', 'unsure')
    """
    return "sure" if confidence >= SURE else "likely" if confidence >= LIKELY else "unsure"


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """The phrases for one text, best first; `cut` is True if the text was longer than the encoder takes.

    With `status` `low_evidence` there is no clear answer, and the phrases are candidates only: the confidence is below
    `min_confidence`, the best share is below a `min_share`, or, with either of them, the corpus lacks a name of the
    text.
    """

    text: str
    """The text as it was read: behind a question the mask is added."""
    phrases: tuple[Phrase, ...]
    """Phrases, best first; empty for a text with several masks."""
    cut: bool = False
    """True if the text was longer than the encoder accepts."""
    notes: tuple[str, ...] = ()
    """Remarks for a reader."""
    status: Literal["ok", "low_evidence"] = "ok"
    """`low_evidence` for no clear answer."""
    confidence: float | None = None
    """Probability that the first phrase is right; null without a reader that knows it, and for several masks."""

    @property
    def passages(self) -> tuple[Occurrence, ...]:
        """The sentences in which the phrases are found, each once, in the order of the phrases."""
        sentences: dict[tuple[str, int], Occurrence] = {}
        for phrase in self.phrases:
            for best in phrase.occurrences[:1]:
                sentences.setdefault((best.document, best.context_start_char), best)
        return tuple(sentences.values())

    def __repr__(self) -> str:
        """In a line: a notebook shows answers so, and their contexts may be long."""
        shown = ", ".join(f"{best.phrase!r} {best.score:.3f}" for best in self.phrases[:REPR_PHRASES])
        more = f" and {len(self.phrases) - REPR_PHRASES} more" if len(self.phrases) > REPR_PHRASES else ""
        return f"Answer({_shortened(self.text)!r}: {shown or 'no phrase'}{more})"

    def _repr_html_(self) -> str:
        """For notebooks: a table of the phrases, each marked in the sentence of its best occurrence."""
        return _html_block(self, _phrase_table(self.phrases))

    def to_records(self) -> list[dict[str, Any]]:
        """A flat dict for each occurrence that the answer holds, as `pandas.DataFrame` takes them.

        Keys: `text`; `mask`, `rank` (of the phrase) and `place` (of the occurrence), all from 1; the fields of Phrase
        and of Occurrence. So `place == 1` selects one per phrase. A phrase without occurrences has one dict, in which
        `place` and what follows are None.
        """
        return list(_records(self.text, 1, self.phrases))


@dataclass(frozen=True, slots=True)
class MaskPhrases:
    """The phrases for one of several masks of a text, best first, as if the other masks were not to be filled."""

    phrases: tuple[Phrase, ...]
    """Phrases for this mask, best first."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A phrase for every mask of a text, from left to right; scores of the fillings of one text sum to at most 1."""

    phrases: tuple[str, ...]
    """A phrase for each mask, from left to right."""
    score: float
    """Fraction of the evidence, from 0 to 1."""


@dataclass(frozen=True, slots=True, repr=False)
class JointAnswer(Answer):
    """The answer to a text with several masks: phrases for each mask by itself, and fillings of all of them together.

    `phrases`, which would be those of the one mask, is empty.
    """

    masks: tuple[MaskPhrases, ...] = ()
    """Phrases for each mask by itself."""
    fillings: tuple[Filling, ...] = ()
    """Phrases for all masks together, best first."""

    def __repr__(self) -> str:
        """In a line, as of an Answer."""
        shown = ", ".join(f"{' / '.join(best.phrases)} {best.score:.3f}" for best in self.fillings[:REPR_PHRASES])
        return f"JointAnswer({_shortened(self.text)!r}: {shown or 'no filling'})"

    def _repr_html_(self) -> str:
        """For notebooks: a table of the fillings, and one of phrases for each mask."""
        header = [*(f"mask {number}" for number in range(1, len(self.masks) + 1)), "score"]
        rows = [[*best.phrases, f"{best.score:.3f}"] for best in self.fillings]
        by_mask = [_phrase_table(each.phrases, f"mask {number}") for number, each in enumerate(self.masks, start=1)]
        return _html_block(self, Table("", header, rows), *by_mask)

    def to_records(self) -> list[dict[str, Any]]:
        """As of an Answer, with the phrases of every mask; `fillings` are a table as they are."""
        return [
            record
            for number, each in enumerate(self.masks, start=1)
            for record in _records(self.text, number, each.phrases)
        ]


def _shortened(text: str) -> str:
    return text if len(text) <= REPR_CHARS else text[: REPR_CHARS - 1] + "…"


def _records(text: str, mask: int, phrases: tuple[Phrase, ...]) -> Iterator[dict[str, Any]]:
    nowhere = dict.fromkeys(item.name for item in fields(Occurrence))
    for rank, best in enumerate(phrases, start=1):
        own = {"text": text, "mask": mask, "rank": rank, "phrase": best.phrase, "score": best.score}
        own["occurrence_count"] = best.occurrence_count
        for place, occurrence in enumerate(best.occurrences, start=1):
            yield {**own, "place": place, **asdict(occurrence)}
        if not best.occurrences:
            yield {**own, "place": None, **nowhere}


def _html_block(answer: Answer, *tables: Table) -> str:
    """The classes keep MathJax from reading two dollars of a corpus as a formula."""
    shown = (table.html(empty="no phrase") for table in tables)
    notes = (f"<p><small>{escape(note)}</small></p>" for note in answer.notes)
    parts = "".join([f"<p>{escape(answer.text)}</p>", *shown, *notes])
    return f'<div class="tex2jax_ignore mathjax_ignore">{parts}</div>'


def _phrase_table(phrases: tuple[Phrase, ...], title: str = "") -> Table:
    rows = []
    for best in phrases:
        place = best.occurrences[0] if best.occurrences else None
        context, document = ("", "") if place is None else (Marked(*place.parts), place.document_name)
        rows.append((best.phrase, f"{best.score:.3f}", context, document))
    return Table(title, ("phrase", "score", "context", "document"), rows)
