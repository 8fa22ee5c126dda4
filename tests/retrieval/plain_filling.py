"""Filling as plain loops over one candidate at a time: slow, and simple enough to be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from npm.core.types import TokenFlag
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import PruningRule
from npm.retrieval.settings import ScoringSettings
from tests.helpers.stores import token_places


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

    def text(self, start: int, length: int) -> str:
        return " ".join(self.words[number] for number in self.token_ids[start : start + length])

    def ends_clause(self, position: int) -> bool:
        flag = self.flags[position]
        return bool(flag & TokenFlag.CLAUSE_PUNCTUATION) and not plain_joined(flag)


class OpenedCorpus(PlainCorpus):
    """Tokens, stored vectors and texts of an opened index, of deleted documents too."""

    def __init__(self, index: PhraseIndex) -> None:
        store, tokens = index.store, np.arange(index.store.token_count)
        rows = np.arange(len(index.rows))
        assert index.vectors is not None
        super().__init__(
            words=[],
            token_ids=store.token_ids.take(tokens).tolist(),
            flags=store.flags.take(tokens).tolist(),
            block_offsets=store.block_offsets.tolist(),
            row_positions=index.rows.positions(rows).tolist(),
            vectors=index.vectors.take(rows),
        )
        self.first_chars, self.stop_chars = token_places(store)
        documents = [store.document(number) for number in range(store.document_count)]
        self.block_documents = [documents[number] for number in store.block_documents.tolist()]

    def place(self, start: int, length: int) -> tuple[str, int, int]:
        document = self.block_documents[self.block_of(start)]
        return document.id, int(self.first_chars[start]), int(self.stop_chars[start + length - 1])

    def text(self, start: int, length: int) -> str:
        _, first, stop = self.place(start, length)
        return " ".join(self.block_documents[self.block_of(start)].text[first:stop].split())

    def ends_clause(self, position: int) -> bool:
        last_of_block = position + 1 in self.block_offsets
        return super().ends_clause(position) and (
            last_of_block or self.first_chars[position + 1] != self.stop_chars[position]
        )


@dataclass
class LentToBlock:
    """What a block adds to the similarities in it, and what a reader says of its tokens in the place of vectors."""

    bonus: float = 0.0
    read: np.ndarray | None = None  # f64 [2, T]


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
        if scoring.reference and flag & (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION):
            return False
        is_other_stopword = flag & TokenFlag.STOPWORD and not flag & TokenFlag.LINKING
        if not scoring.reference and is_other_stopword:
            return False
        if not scoring.reference:
            if place > 0 and flag & TokenFlag.SENTENCE_START:
                return False
            if place < length - 1 and corpus.ends_clause(start + place):
                return False
    return True


@dataclass
class PlainPhrase:
    """A phrase, its score, and all its spans as (first token, tokens), heaviest first."""

    phrase: str
    score: float
    spans: list[tuple[int, int]]


def plain_lent(corpus: PlainCorpus, row: int, lent: dict[int, LentToBlock]) -> tuple[float, list[float]]:
    """The bonus of a row's block, and the reader's score of the row for a start and an end, if it was read."""
    position = corpus.row_positions[row]
    block = corpus.block_of(position)
    own = lent.get(block, LentToBlock())
    slot = position - corpus.block_offsets[block]
    return own.bonus, [] if own.read is None else [float(side[slot]) for side in own.read]


def plain_phrases(  # noqa: C901
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
    joint_share: float = 1.0,
    live_blocks: list[int] | None = None,
    merged_groups: int = 10_000,
    one_mask: bool = False,
) -> list[PlainPhrase]:
    """Every phrase, best first; `lent` says what blocks differ in.

    Of `blocks` all rows are candidates, of `live_blocks` the best `candidates_per_side`.
    With `one_mask` phrases are single words, and a product is the geometric mean of both ends.
    """
    row_of = {position: row for row, position in enumerate(corpus.row_positions)}
    allowed = [
        row
        for row, position in enumerate(corpus.row_positions)
        if (blocks is None or corpus.block_of(position) in blocks)
        and (live_blocks is None or corpus.block_of(position) in live_blocks)
    ]
    factor = scale / scoring.temperature
    s, t = {}, {}
    for row in allowed:
        vector, own = corpus.vectors[row].astype(np.float64), plain_lent(corpus, row, lent or {})
        found = [factor * float(np.dot(vector, query)) for query in (start_query, end_query)]
        if own[1]:
            found = [
                (1 - joint_share) * a + joint_share * b / scoring.temperature
                for a, b in zip(found, own[1], strict=True)
            ]
        s[row], t[row] = (value + own[0] for value in found)
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
        for length in range(1, max_phrase_tokens + (0 if scoring.reference else 1)):
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
        if one_mask and not scoring.reference:
            a, b = a / 2, b / 2
        if scoring.reference:
            p = math.exp(a) / sum(math.exp(s[row]) for row in all_starts)
            q = math.exp(b) / sum(math.exp(t[row]) for row in all_ends)
            weight = p + q
        else:
            weight = math.exp(a + b)
        weights[span] = weight * span[1] ** scoring.length_exponent
    total = 1.0 if scoring.reference else sum(weights.values())
    sequences: dict[tuple[int, ...], list[tuple[float, tuple[int, int]]]] = {}
    for span, weight in sorted(weights.items()):
        ids = tuple(corpus.token_ids[span[0] : span[0] + span[1]])
        sequences.setdefault(ids, []).append((weight / total, span))
    read = sorted(sequences.items(), key=lambda item: -sum(weight for weight, _ in item[1]))[:merged_groups]
    merged: dict[object, list[tuple[float, tuple[int, int]]]] = {}
    for ids, members in read:
        key = ids if scoring.reference else corpus.text(*members[0][1]).casefold()
        merged.setdefault(key, []).extend(members)
    phrases = []
    for members in merged.values():
        members.sort(key=lambda member: (-member[0], member[1]))
        spelling: dict[str, float] = {}
        for weight, span in members:
            spelling[corpus.text(*span)] = spelling.get(corpus.text(*span), 0.0) + weight
        best = max(spelling, key=lambda text: spelling[text])
        phrases.append(PlainPhrase(best, sum(weight for weight, _ in members), [span for _, span in members]))
    return sorted(phrases, key=lambda phrase: -phrase.score)


def plain_fill(
    corpus: PlainCorpus, start_query: np.ndarray, end_query: np.ndarray, **options: Any
) -> list[tuple[float, str, int]]:
    """(score, phrase, number of occurrences) of every phrase of `plain_phrases`, best first."""
    phrases = plain_phrases(corpus, start_query, end_query, **options)
    return [(each.score, each.phrase, len(each.spans)) for each in phrases]
