"""Running text traced back to a corpus: each span is looked up word for word, then masked and filled.

The support of a span is the logistic function of

    w · (share of its best place, score of the best other phrase, log score of phrases that match it) + b

with shares as in `npm.tracing.evidence`; 0 for a span that the corpus does not have. It was fitted to sentences with
exchanged spans, and the threshold to the share of right ones that pass it (`scripts/measure_trace.py`). Spans of a
sentence that the corpus has word for word are `found` without filling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npm.core.types import MASK_TEXT, Answer, Occurrence, Phrase, Progress, confidence_word, silent
from npm.corpus.folding import folded
from npm.corpus.markdown import joined_lines
from npm.corpus.markup import visible
from npm.corpus.text import normalized_text
from npm.indexing.phrase_index import select
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import check_text
from npm.tracing.evidence import CorpusEvidence, Place
from npm.tracing.find import SoughtPhrase
from npm.tracing.settings import SpanKind, TraceSettings, Verdict
from npm.tracing.spans import Span, spans_of

PHRASES_COMPARED = 20
"""Phrases of an answer that are compared with a span."""
SPANS_AT_ONCE = 32
LONG_QUOTATION_WORDS = 5
"""Fewest words of a quotation that is looked up only."""
WEIGHTS, BIAS = (0.516, -2.741, 0.319), 2.710
LEAST_SCORE = 1e-4
"""Floor of the score of which the logarithm is taken."""
RIGHT_PASSED = ((0.5, 0.8, 0.9, 0.95, 0.99), (0.865, 0.290, 0.152, 0.111, 0.069))
"""Shares of right spans, and the support that so many of them reach."""
_PIECE = re.compile(r"(?<!\w)[-−]?\d+(?:[.,:/]\d+)*|[^\W\d]\w*|[%‰°€$£¥₹§#+&/@]")
"""A number with its sign, a word, or a mark that tells one span from another."""
OTHER_SCORE = 0.7
"""Least score of a phrase that is shown in place of another.

Of exchanged spans whose answer scores less than that, it named the right phrase in one of three cases, else in two.
"""


@dataclass(frozen=True, slots=True)
class TracedSpan:
    """A span of a text with its verdict; offsets are Unicode code points."""

    kind: SpanKind
    """Kind of the span."""
    text: str
    """The span itself."""
    start_char: int
    """First character of the span in the text."""
    end_char: int
    """End of the span, exclusive."""
    verdict: Verdict
    """Result: the corpus has the span there, another phrase, or neither."""
    support: float
    """From 0 to 1; the higher, the more the corpus speaks for the span there."""
    place: Occurrence | None = None
    """Best place of the span in the corpus, whatever the verdict."""
    other: str | None = None
    """Phrase that the corpus has in its place, with `verdict` other."""
    other_score: float = 0.0
    """Score of that phrase; 0 without one."""
    other_place: Occurrence | None = None
    """Best place of that phrase."""

    @property
    def certainty(self) -> str:
        """`sure`, `likely` or `unsure`, by the support of a span that is found or supported; "" for another one."""
        return confidence_word(self.support) if self.verdict in ("found", "supported") else ""

    @property
    def places(self) -> dict[str, Occurrence | None]:
        """Both places by their names."""
        return {"place": self.place, "other_place": self.other_place}


@dataclass(frozen=True, slots=True)
class Trace:
    """A text and its traced spans, in order."""

    text: str
    spans: tuple[TracedSpan, ...]

    def count(self, verdict: str) -> int:
        """The number of spans with a verdict."""
        return sum(span.verdict == verdict for span in self.spans)


class Tracer:
    """Traces texts with an opened filler."""

    def __init__(self, filler: PhraseFiller, settings: TraceSettings | None = None) -> None:
        """Raises as `select` does for filters."""
        index, self._filler, self._settings = filler.index, filler, settings or TraceSettings()
        documents, where = self._settings.documents, self._settings.where or filler.settings.where
        self._documents = filler.settings.documents if documents is None else documents
        self._where = list(where)
        self._least_support = float(np.interp(self._settings.right_passed, *RIGHT_PASSED))
        self._evidence = CorpusEvidence(index, index.lexicon, select(index, self._documents, self._where).blocks)

    def trace(self, text: str, *, progress: Progress = silent) -> Trace:
        """The spans of a text with their verdicts. Raises QueryError for a text that is empty or no text."""
        spans, traced = self.spans(text), list[TracedSpan]()
        for first in range(0, len(spans), SPANS_AT_ONCE):
            traced += self.verdicts(text, spans[first : first + SPANS_AT_ONCE])
            progress("trace", len(traced), len(spans))
        return Trace(text, tuple(traced))

    def spans(self, text: str) -> list[Span]:
        """The spans of a text that are of the chosen kinds and have a word that the index counts."""
        check_text(text, "text")
        plain = _plain(text)
        return [
            span
            for span in spans_of(plain, self._evidence.begins_name)
            if span.kind in self._settings.kinds and self._evidence.words(plain[span.start : span.stop])
        ]

    def verdicts(self, text: str, spans: Sequence[Span]) -> list[TracedSpan]:
        """The verdicts on some spans of a text, which are filled together."""
        plain = _plain(text)
        masked = [_masked(plain, span) for span in spans]
        surfaces = [" ".join(visible(text[span.start : span.stop]).split()) for span in spans]
        pairs = zip(surfaces, masked, strict=True)
        places = [self._evidence.best_place(surface, sentence) for surface, sentence in pairs]
        is_asked = [
            not (_is_long_quotation(span, surface) or _is_copied(plain, span, place))
            for span, surface, place in zip(spans, surfaces, places, strict=True)
        ]
        answers = iter(self._filled([each for each, asked in zip(masked, is_asked, strict=True) if asked]))
        return [
            self._verdict(span, surface, place, next(answers) if asked else None)
            for span, surface, place, asked in zip(spans, surfaces, places, is_asked, strict=True)
        ]

    def _filled(self, masked: list[str]) -> list[Answer]:
        if not masked:
            return []
        documents, where = self._documents, self._where
        return self._filler.fill(masked, PHRASES_COMPARED, occurrences=1, documents=documents, where=where)

    def _verdict(self, span: Span, surface: str, best: Place | None, answer: Answer | None) -> TracedSpan:
        place = None if best is None else best.occurrence
        traced = TracedSpan(span.kind, surface, span.start, span.stop, "not_found", 0.0, place)
        if answer is None:
            return traced if place is None else replace(traced, verdict="found", support=1.0)
        own = [phrase for phrase in answer.phrases if matches(surface, phrase.phrase)]
        other = next((phrase for phrase in answer.phrases if phrase not in own), None)
        if best is not None or own:
            features = self.features(best.share if best else 0.0, own, other)  # f64 [3]
            support = 1 / (1 + np.exp(-(features @ WEIGHTS + BIAS)))
            traced = replace(traced, support=round(float(support), 4))
        if traced.support >= self._least_support:
            # the sentence is about the document of the phrases that match the span, or else of the best phrase
            speaking = own or answer.phrases[:1]
            documents = {occurrence.document for phrase in speaking for occurrence in phrase.occurrences}
            if place is not None and place.document in documents:
                return replace(traced, verdict="found")
            return replace(traced, verdict="supported", place=own[0].occurrences[0] if own else place)
        is_other = other is not None and other.score >= OTHER_SCORE and _is_like(other.phrase, span.kind)
        if other is None or not is_other or _repeats(surface, other.phrase):
            return traced
        score, other_place = round(other.score, 4), other.occurrences[0]
        return replace(traced, verdict="other", other=other.phrase, other_score=score, other_place=other_place)

    def features(self, share: float, own: Sequence[Phrase], other: Phrase | None) -> np.ndarray:
        """The input f64 [3] of the support: `share` of the best place, phrases that match, the best that does not."""
        score = sum(phrase.score for phrase in own)
        return np.array([share, other.score if other else 0.0, np.log(score + LEAST_SCORE)])


def matches(span: str, phrase: str) -> bool:
    """Return True if one of both is the other, or a run of its words, but for case and space.

    >>> matches("Leonardo", "leonardo da Vinci"), matches("Leon", "Leonardo"), matches("15", "15,000")
    (True, False, False)
    """
    one, other = (f" {normalized_text(text)} " for text in (span, phrase))
    return one in other or other in one


def _repeats(span: str, phrase: str) -> bool:
    """Return True if a phrase has the pieces of a span, one after another, so that it is nothing else.

    >>> _repeats("15 %", "15%"), _repeats("1990", "1990–1994"), _repeats("15", "15,000")
    (True, True, False)
    """
    one, other = (f" {' '.join(_PIECE.findall(folded(text)))} " for text in (span, phrase))
    return one in other


def _is_long_quotation(span: Span, surface: str) -> bool:
    """Return True if a span is looked up only: no phrase is as long, and chance does not repeat it."""
    return span.kind == "quotation" and len(surface.split()) >= LONG_QUOTATION_WORDS


def _is_copied(plain: str, span: Span, place: Place | None) -> bool:
    """Return True if the corpus has the full sentence of a span word for word at the span's place."""
    sentence = visible(plain[span.first : span.last])
    return place is not None and place.share > 0.999 and any(SoughtPhrase(sentence).places(place.occurrence.context))


def _is_like(phrase: str, kind: SpanKind) -> bool:
    """Return True if a phrase may be of a kind: a name has a capital letter, a number or date a digit."""
    return any(char.isupper() if kind == "name" else char.isdigit() for char in phrase) or kind == "quotation"


def _plain(text: str) -> str:
    """The text as it is read, of the same length: lines of a paragraph joined, masks blank."""
    return joined_lines(text.replace(MASK_TEXT, " " * len(MASK_TEXT)))


def _masked(plain: str, span: Span) -> str:
    """The sentence of a span with a mask in its place."""
    return visible(f"{plain[span.first : span.start]}{MASK_TEXT}{plain[span.stop : span.last]}")
