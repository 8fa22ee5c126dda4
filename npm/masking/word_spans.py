"""Spans of several words with lengths from a geometric distribution, as in SpanBERT.

Shapes: T tokens of all sequences in a row, m words, n spans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npm.masking.samplers import Overflow, geometric_lengths, sorted_spans
from npm.masking.units import Candidates, words_that_go_on
from npm.types import Sequences, Spans


@dataclass(frozen=True, slots=True)
class WordSpanSampler:
    """Word-aligned spans (Joshi et al. 2020, arXiv 1907.10529, section 3.1).

    A span's length in words is geometric with parameter p, draws above `max_span_words` drawn again (mean 3.797 words
    with the defaults). Its anchor is a token drawn evenly; one that is masked already is drawn again. The span starts
    at the anchor's word and ends early where the next word is masked, is no candidate, or stands in another sequence.
    """

    success_probability: float = 0.2
    max_span_words: int = 10
    overflow: Overflow = Overflow.truncate
    """What becomes of the last span; with `skip` it ends with the last word that fits."""

    def draw(
        self,
        candidates: Candidates,
        sequences: Sequences,
        budget_tokens: int,
        rng: np.random.Generator,
    ) -> Spans:
        """Spans of neighbouring candidates, which must be disjoint, such as words, with `budget_tokens` tokens."""
        words = sorted_spans(candidates.starts, candidates.lengths)
        ends = words.starts + words.lengths  # i64 [m]
        if (ends[:-1] > words.starts[1:]).any():
            raise ValueError("candidates that do not overlap expected, such as words")
        goes_on = words_that_go_on(sequences, words)  # bool [m]
        # An anchor that was drawn is masked afterwards, so drawing without replacement is drawing again.
        anchors = rng.permutation(np.repeat(np.arange(len(words)), words.lengths))  # i64 [tokens of words]
        lengths = geometric_lengths(self.success_probability, self.max_span_words, len(anchors), rng)
        starts, stops, follows = words.starts.tolist(), ends.tolist(), goes_on.tolist()
        is_masked = bytearray(len(words))  # 1 where a word is masked
        chosen: list[tuple[int, int]] = []  # start and length in tokens
        left = budget_tokens
        for first, word_count in zip(anchors.tolist(), lengths.tolist(), strict=True):
            if left <= 0:
                break
            if is_masked[first]:
                continue
            last = first
            while last - first + 1 < word_count and follows[last] and not is_masked[last + 1]:
                last += 1
            while self.overflow is Overflow.skip and last > first and stops[last] - starts[first] > left:
                last -= 1
            length = self.overflow.tokens_taken(stops[last] - starts[first], left)
            if not length:
                continue
            is_masked[first : last + 1] = b"\1" * (last - first + 1)
            chosen.append((starts[first], length))
            left -= length
        table = np.array(chosen, dtype=np.int64).reshape(-1, 2)  # i64 [n, 2]
        return sorted_spans(table[:, 0], table[:, 1])
