"""Filling as plain loops over one candidate at a time: slow, and simple enough to be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npm.indexing.settings import PruningRule
from npm.retrieval.scoring import Aggregation, Combination, Normalisation, ScoringSettings, StopwordsInside
from npm.types import TokenFlag


@dataclass
class PlainCorpus:
    """A corpus of token ids with one word a token, and its vectors."""

    words: list[str]
    token_ids: list[int]
    flags: list[int]
    block_offsets: list[int]
    row_positions: list[int]
    vectors: np.ndarray  # f32 [rows, d]

    def block_of(self, position: int) -> int:
        return max(block for block, first in enumerate(self.block_offsets[:-1]) if first <= position)


@dataclass
class LentToBlock:
    """The queries that look in one block, and what it adds to the similarities in it."""

    start_query: np.ndarray  # f32 [d]
    end_query: np.ndarray  # f32 [d]
    bonus: float = 0.0


def plain_kept(flag: int, rule: PruningRule) -> bool:
    if flag & TokenFlag.SPECIAL:
        return False
    if rule is PruningRule.all:
        return True
    if not flag & (TokenFlag.WORD_START | TokenFlag.WORD_END):
        return False
    if rule is PruningRule.word_boundaries:
        return True
    if flag & TokenFlag.PUNCTUATION:
        return False
    return rule is PruningRule.without_punctuation or not flag & TokenFlag.STOPWORD


def plain_joined(flag: int) -> bool:
    return bool(flag & TokenFlag.JOINED) and not flag & (TokenFlag.STOPWORD | TokenFlag.SPECIAL)


def plain_span_allowed(  # noqa: C901
    corpus: PlainCorpus, start: int, length: int, scoring: ScoringSettings, *, words_only: bool = False
) -> bool:
    last = start + length - 1
    if start < 0 or last >= len(corpus.token_ids) or corpus.block_of(start) != corpus.block_of(last):
        return False
    if start not in corpus.row_positions or last not in corpus.row_positions:
        return False
    flags = corpus.flags[start : last + 1]
    if not flags[0] & TokenFlag.WORD_START or not flags[-1] & TokenFlag.WORD_END:
        return False
    if not scoring.cut_expressions:
        follows = last + 1 < len(corpus.token_ids) and corpus.block_of(last + 1) == corpus.block_of(last)
        if start not in corpus.block_offsets and plain_joined(flags[0]):
            return False
        if follows and plain_joined(corpus.flags[last + 1]):
            return False
    for place, flag in enumerate(flags):
        if flag & TokenFlag.SPECIAL:
            return False
        if words_only and (
            (place and flag & TokenFlag.WORD_START) or (last > start + place and flag & TokenFlag.WORD_END)
        ):
            return False
        if scoring.stopwords_inside is StopwordsInside.none and flag & (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION):
            return False
        is_other_stopword = flag & TokenFlag.STOPWORD and not flag & TokenFlag.LINKING
        if scoring.stopwords_inside is StopwordsInside.linking and is_other_stopword:
            return False
        if not scoring.allow_clauses_inside:
            if place > 0 and flag & TokenFlag.SENTENCE_START:
                return False
            if place < length - 1 and flag & TokenFlag.CLAUSE_PUNCTUATION and not plain_joined(flag):
                return False
    return True


def plain_fill(  # noqa: C901
    corpus: PlainCorpus,
    start_query: np.ndarray,
    end_query: np.ndarray,
    *,
    scale: float,
    scoring: ScoringSettings,
    max_phrase_tokens: int,
    candidates_per_side: int,
    blocks: list[int] | None,
    lent: dict[int, LentToBlock] | None = None,
    one_mask: bool = False,
) -> list[tuple[float, str, int]]:
    """(score, phrase, number of occurrences) of every phrase, best first; `lent` says what blocks differ in.

    With `one_mask` phrases are single words, and a product is the geometric mean of both ends.
    """
    row_of = {position: row for row, position in enumerate(corpus.row_positions)}
    allowed = [
        row
        for row, position in enumerate(corpus.row_positions)
        if blocks is None or corpus.block_of(position) in blocks
    ]
    factor = scale / scoring.temperature
    s, t = {}, {}
    for row in allowed:
        own = (lent or {}).get(corpus.block_of(corpus.row_positions[row]), LentToBlock(start_query, end_query))
        vector = corpus.vectors[row].astype(np.float64)
        s[row] = factor * float(np.dot(vector, own.start_query)) + own.bonus
        t[row] = factor * float(np.dot(vector, own.end_query)) + own.bonus
    start_hits = sorted(allowed, key=lambda row: -s[row])[:candidates_per_side]
    end_hits = sorted(allowed, key=lambda row: -t[row])[:candidates_per_side]
    if blocks is not None:
        start_hits = end_hits = allowed
    spans = set()
    for row in start_hits:
        for length in range(1, max_phrase_tokens + 1):
            if plain_span_allowed(corpus, corpus.row_positions[row], length, scoring, words_only=one_mask):
                spans.add((corpus.row_positions[row], length))
    for row in end_hits:
        for length in range(1, max_phrase_tokens + (1 if scoring.equal_walks else 0)):
            start = corpus.row_positions[row] - length + 1
            if plain_span_allowed(corpus, start, length, scoring, words_only=one_mask):
                spans.add((start, length))
    ends = {(start, length): row_of[start + length - 1] for start, length in spans}
    starts = {(start, length): row_of[start] for start, length in spans}
    all_starts = set(start_hits) | set(starts.values())
    all_ends = set(end_hits) | set(ends.values())
    weights = {}
    for span in spans:
        a, b = s[starts[span]], t[ends[span]]
        if one_mask and scoring.combination is Combination.product:
            a, b = a / 2, b / 2
        if scoring.normalisation is Normalisation.start_end:
            p = math.exp(a) / sum(math.exp(s[row]) for row in all_starts)
            q = math.exp(b) / sum(math.exp(t[row]) for row in all_ends)
            weight = p + q if scoring.combination is Combination.sum else p * q
        else:
            weight = math.exp(a) + math.exp(b) if scoring.combination is Combination.sum else math.exp(a + b)
        weights[span] = weight * span[1] ** scoring.length_exponent
    total = sum(weights.values()) if scoring.normalisation is Normalisation.candidates else 1.0
    merged: dict[object, list[tuple[float, tuple[int, int]]]] = {}
    for span, weight in weights.items():
        ids = tuple(corpus.token_ids[span[0] : span[0] + span[1]])
        text = " ".join(corpus.words[i] for i in ids)
        key = ids if scoring.aggregation is Aggregation.token_ids else text.casefold()
        merged.setdefault(key, []).append((weight / total, span))
    phrases = []
    for members in merged.values():
        spelling: dict[str, float] = {}
        for weight, (start, length) in members:
            text = " ".join(corpus.words[i] for i in corpus.token_ids[start : start + length])
            spelling[text] = spelling.get(text, 0.0) + weight
        best = max(spelling, key=lambda text: spelling[text])
        phrases.append((sum(weight for weight, _ in members), best, len(members)))
    return sorted(phrases, key=lambda phrase: -phrase[0])
