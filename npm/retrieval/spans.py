"""Candidate spans of one query, and what each of them counts.

Hits of the start query are grown to the right, hits of the end query to the left.

Equal token sequences are found by a 64-bit polynomial hash that grows with the span.

Shapes: n hits, m candidate spans, g groups of equal token sequences, T tokens of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import mixed_bits
from npm.core.types import TokenFlag
from npm.corpus.text import is_joined
from npm.indexing.rows import RowMap, gather
from npm.models.similarity import scaled_similarity
from npm.retrieval.queries import MaskNeighbors
from npm.retrieval.scoring import (
    Normalisation,
    ScoringSettings,
    StopwordsInside,
    occurrence_shares,
    reference_weights,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from index.types import Scan
    from npm.corpus.store import BlockStore
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.restriction import Restriction


NO_NEIGHBORS = MaskNeighbors()
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers never vanish modulo 2^64


@dataclass(frozen=True, slots=True)
class CandidateSpans:
    """Spans that may be answers; all arrays [m]."""

    starts: np.ndarray  # i64, token position of the first token
    lengths: np.ndarray  # i64, tokens
    start_rows: np.ndarray  # i64, row of the first token
    end_rows: np.ndarray  # i64, row of the last token
    hashes: np.ndarray  # u64, equal for equal token sequences

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: np.ndarray) -> CandidateSpans:
        """The candidates chosen by a bool [m] or index array."""
        return CandidateSpans(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @classmethod
    def concatenated(cls, parts: Sequence[CandidateSpans]) -> CandidateSpans:
        """The candidates of all parts, in order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class _Window:
    """Tokens from n anchors on to one side, the anchor first; all arrays but one [n, width]."""

    flags: np.ndarray  # u8
    token_ids: np.ndarray  # i32
    ends_clause: np.ndarray  # bool
    may_be_near: np.ndarray  # bool [n], the anchor may be an edge of a span
    may_be_far: np.ndarray  # bool, the token may be the other edge


class SpanFinder:
    """Grows hits into the spans that the settings allow.

    A span stays in its block, starts at a word start and ends at a word end, cuts no expression (a number, a date, …;
    see `npm.corpus.expressions`), and both ends have a vector; with `words_only` it is one word.
    """

    def __init__(
        self,
        store: BlockStore,
        rows: RowMap,
        *,
        max_phrase_tokens: int,
        scoring: ScoringSettings,
        words_only: bool = False,
        max_phrase_words: int | None = None,
        digit_tokens: np.ndarray | None = None,
    ) -> None:
        """`digit_tokens` bool [vocabulary] are needed where years are asked for."""
        self._store = store
        self._words_only = words_only
        self._rows = rows
        self._max_words = max_phrase_words
        self._max_tokens = max_phrase_tokens
        self._left_max_tokens = max_phrase_tokens if scoring.equal_walks else max_phrase_tokens - 1
        self._clauses_inside = scoring.allow_clauses_inside
        self._digit_tokens = digit_tokens
        self._cuts_expressions = scoring.cut_expressions
        self._is_barred = barred_flags(scoring.stopwords_inside)

    def find(
        self, start_rows: np.ndarray, end_rows: np.ndarray | None, neighbors: MaskNeighbors = NO_NEIGHBORS
    ) -> CandidateSpans:
        """All spans that begin at one of `start_rows` or end at one of `end_rows`, sorted i64 [n], without repeats.

        `neighbors` are those of the mask: where the text itself has the other part of an expression (`$<mask>`,
        `<mask> days`), the span is the part that is missing. `end_rows` None says that every row that may be an end is
        also looked for as a start, as in restricted search: growing to the left could then find nothing new.
        """
        from_starts = self._grow(start_rows, neighbors, rightward=True)
        if end_rows is None:
            return from_starts
        from_ends = self._grow(end_rows, neighbors, rightward=False)
        # Whatever begins at a start hit was found from there, since walks to the right are at least as long.
        is_new = np.flatnonzero(~_are_among(from_ends.start_rows, start_rows))
        return CandidateSpans.concatenated([from_starts, from_ends.where(is_new)])

    def _grow(self, rows: np.ndarray, neighbors: MaskNeighbors, *, rightward: bool) -> CandidateSpans:
        """Spans with one end at `rows` i64 [n], a token longer at each step; what cannot grow on is dropped at once."""
        edges = TokenFlag.WORD_START.value, TokenFlag.WORD_END.value
        word_edge, other_edge = edges if rightward else edges[::-1]
        anchors = self._rows.positions(rows)  # i64 [n]
        blocks, offsets = self._store.block_of(anchors), self._store.block_offsets
        # tokens to the block's edge, itself included, i64 [n]
        room = offsets[blocks + 1] - anchors if rightward else anchors - offsets[blocks] + 1
        most_tokens = self._max_tokens if rightward else self._left_max_tokens
        window = self._window(anchors, max(1, most_tokens), neighbors, rightward=rightward)
        flags = window.flags[:, 0]  # u8 [n]
        may_be_near = ((flags & word_edge) != 0) & ~self._is_barred[flags] & window.may_be_near  # bool [n]
        alive = np.flatnonzero(may_be_near)  # i64 [alive], numbers of hits
        hashes = np.zeros(len(rows), dtype=np.uint64)  # [n]
        power = np.uint64(1)
        words = np.ones(len(rows), dtype=np.int64)  # [n], begun so far
        found: list[CandidateSpans] = []
        for length in range(1, most_tokens + 1):
            others = anchors[alive] + (length - 1 if rightward else 1 - length)  # i64 [alive], the other end
            flags = window.flags[alive, length - 1]  # u8 [alive]
            if length > 1:
                may_enter = ~self._is_barred[flags]  # bool [alive]
                if self._words_only:
                    may_enter &= (flags & word_edge) == 0
                if self._max_words is not None:
                    words[alive] += (flags & word_edge) != 0
                    may_enter &= words[alive] <= self._max_words
                if not self._clauses_inside:
                    may_enter &= ~(self._begins_sentence(flags) if rightward else window.ends_clause[alive, length - 1])
                entered = np.flatnonzero(may_enter)
                alive, others, flags = alive[entered], others[entered], flags[entered]
            if len(alive) == 0:
                break
            tokens = _spread(window.token_ids[alive, length - 1])  # u64 [alive]
            # Both directions build Σ token_i × base^i, i counted from the span's first token.
            grown = hashes[alive] + tokens * power if rightward else hashes[alive] * HASH_BASE + tokens
            hashes[alive] = grown
            power = np.multiply(power, HASH_BASE, dtype=np.uint64)
            other_rows, has_row = self._rows.rows_at(others)
            whole = np.flatnonzero(has_row & ((flags & other_edge) != 0) & window.may_be_far[alive, length - 1])
            near, far = rows[alive[whole]], other_rows[whole].astype(np.int64)
            found.append(
                CandidateSpans(
                    starts=anchors[alive[whole]] if rightward else others[whole],
                    lengths=np.full(len(whole), length, dtype=np.int64),
                    start_rows=near if rightward else far,
                    end_rows=far if rightward else near,
                    hashes=grown[whole],
                )
            )
            may_grow = room[alive] > length  # bool [alive]
            if self._words_only:
                may_grow &= (flags & other_edge) == 0
            if not self._clauses_inside:
                may_grow &= ~(window.ends_clause[alive, length - 1] if rightward else self._begins_sentence(flags))
            alive = alive[may_grow]
        if not found:
            nothing = np.zeros(0, dtype=np.int64)
            return CandidateSpans(nothing, nothing, nothing, nothing, nothing.astype(np.uint64))
        return CandidateSpans.concatenated(found)

    def _window(self, anchors: np.ndarray, width: int, neighbors: MaskNeighbors, *, rightward: bool) -> _Window:
        """The `width` tokens from each of `anchors` i64 [n] on to one side.

        One read for all steps: with many shards the number of reads counts, not their size. What lies outside of the
        corpus, or of a block, means nothing.
        """
        steps = np.arange(-1, width + 1) * (1 if rightward else -1)  # i64 [width + 2], one more on either side
        unbounded = anchors[:, None] + steps  # i64 [n, width + 2]
        positions = np.clip(unbounded, 0, self._rows.token_count - 1)  # i64 [n, width + 2]
        flags = gather(self._store.flags, positions)  # u8 [n, width + 2]
        token_ids = gather(self._store.token_ids, positions)  # i32 [n, width + 2]
        own = slice(1, -1)
        ends = np.zeros((len(anchors), width), dtype=bool)
        if not self._clauses_inside:
            ends = self._ends_clause(positions[:, own], flags[:, own])
        may_begin = may_end = np.ones((len(anchors), width), dtype=bool)
        if not self._cuts_expressions:
            # In reading order, so that the token before one and the token after it are in the next columns.
            order = slice(None) if rightward else slice(None, None, -1)
            may_begin, may_end = whole_edges(
                self._joined(flags, unbounded)[:, order],  # bool [n, width + 2]
                token_ids[:, order],
                neighbors,
                self._years(positions, token_ids)[:, order] if neighbors.asks_for_year else None,
            )
            may_begin, may_end = may_begin[:, order], may_end[:, order]  # bool [n, width] each
        near, far = (may_begin, may_end) if rightward else (may_end, may_begin)
        return _Window(flags[:, own], token_ids[:, own], ends, near[:, 0], far)

    def _joined(self, flags: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Mask of the tokens that continue the expression of the token before them in the same block, bool [...]."""
        joined = is_joined(flags) & (positions < self._rows.token_count)  # bool [...]
        at = positions[joined]  # i64 [joined tokens]
        joined[joined] = at > self._store.block_offsets[self._store.block_of(at)]
        return joined

    def _years(self, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """Mask of the numbers that do not touch the token before them, bool [...]."""
        assert self._digit_tokens is not None, "a finder of years knows the digits"
        found = self._digit_tokens[token_ids]  # bool [...]
        store = self._store
        if store.start_chars is not None and store.end_chars is not None:
            at = positions[found]  # i64 [numbers]
            found[found] = store.start_chars.take(at) > store.end_chars.take(np.maximum(at - 1, 0))
        return found

    @staticmethod
    def _begins_sentence(flags: np.ndarray) -> np.ndarray:
        return (flags & TokenFlag.SENTENCE_START.value) != 0  # bool [n]

    def _ends_clause(self, positions: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Mask of clause punctuation, bool [...], without the marks in `3.5` and `Dr. Low`."""
        ends = ((flags & TokenFlag.CLAUSE_PUNCTUATION.value) != 0) & ~is_joined(flags)  # bool [...]
        store = self._store
        if store.start_chars is None or store.end_chars is None:
            return ends
        marks = positions[ends]  # i64 [marks]
        following = np.minimum(marks + 1, len(store.token_ids) - 1)  # i64 [marks]
        # Within a block only: at its end nothing follows, and nothing grows over it either.
        ends[ends] = store.start_chars.take(following) != store.end_chars.take(marks)
        return ends


Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


@dataclass(frozen=True, slots=True)
class ScannedSimilarities:
    """The similarities of one text with the rows that were scanned for it, each with the bonus of its block."""

    index: PhraseIndex
    scans: Sequence[Scan]  # one for all rows, or one for each block of the restriction
    queries: tuple[int, int]  # the numbers of the start and the end query in a scan
    factors: tuple[float, float]  # what an inner product is multiplied with, and a similarity of the joint pass
    restriction: Restriction | None

    def __call__(self, side: int, rows: np.ndarray) -> np.ndarray:
        """f64 [n] for the start (0) or end (1) query and rows i64 [n]."""
        query = self.queries[side]
        if self.restriction is None:
            return scaled_similarity(self.scans[0].at(query, rows).astype(np.float64), self.factors[0])
        # In `hybrid` all similarities in a block are raised by the same bonus, so that within a block the vectors alone
        # decide, and between blocks their BM25 scores have a say.
        positions = self.index.rows.positions(rows)  # i64 [n]
        blocks = self.index.store.block_of(positions)  # i64 [n]
        places = np.searchsorted(self.restriction.blocks, blocks)  # i64 [n], in the restriction
        products = np.empty(len(rows))  # f64 [n]
        scan_of = places if len(self.scans) > 1 else np.zeros(len(rows), dtype=np.int64)  # i64 [n]
        for number in np.unique(scan_of).tolist():
            here = np.flatnonzero(scan_of == number)
            products[here] = self.scans[number].at(query, rows[here])
        similarities = scaled_similarity(products, self.factors[0]) + self.restriction.bonuses[places]  # f64 [n]
        if self.restriction.joint is not None:
            slots = positions - self.index.store.block_offsets[blocks]  # i64 [n], within their blocks
            for number in np.unique(places).tolist():
                here = np.flatnonzero(places == number)
                similarities[here] += self.factors[1] * self.restriction.joint[number][side, slots[here]]
        return similarities


def candidate_weights(
    similarities: Similarities,
    candidates: CandidateSpans,
    sides: tuple[np.ndarray, np.ndarray],
    scoring: ScoringSettings,
) -> np.ndarray:
    """What each candidate counts, f64 [m]; `sides` are the rows i64 [n] that the start and the end query hit."""
    start = similarities(0, candidates.start_rows)  # f64 [m]
    end = similarities(1, candidates.end_rows)  # f64 [m]
    if scoring.normalisation is Normalisation.candidates:
        return occurrence_shares(
            start,
            end,
            candidates.lengths,
            combination=scoring.combination,
            length_exponent=scoring.length_exponent,
        )
    # As in the reference, a span found from its other end adds its own end to the candidates of this side.
    all_starts = similarities(0, np.union1d(sides[0], candidates.start_rows))  # f64 [n]
    all_ends = similarities(1, np.union1d(sides[1], candidates.end_rows))  # f64 [n]
    return reference_weights(
        start,
        end,
        candidates.lengths,
        all_starts=all_starts,
        all_ends=all_ends,
        combination=scoring.combination,
        length_exponent=scoring.length_exponent,
    )


def whole_edges(
    joined: np.ndarray, token_ids: np.ndarray, neighbors: MaskNeighbors, years: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the tokens that may begin and that may end a span without cutting an expression, bool [n, w] each.

    `joined`, `token_ids` and `years` are [n, w + 2], with a token more on either side. A cut is allowed where the text
    has the part that is cut off next to the mask, and then this part is not repeated; and before one of the `years`.

    >>> joined, ids = np.array([[False, False, True, False]]), np.array([[4, 45, 7, 8]])
    >>> [edges.tolist() for edges in whole_edges(joined, ids, MaskNeighbors())]  # 45 days
    [[[True, False]], [[False, True]]]
    >>> [edges.tolist() for edges in whole_edges(joined, ids, MaskNeighbors(right=7))]  # <mask> days
    [[[True, False]], [[True, False]]]
    """
    before, own, after = slice(None, -2), slice(1, -1), slice(2, None)
    cut_before, cut_after = joined[:, own], joined[:, after]  # bool [n, w] each
    may_begin = ~cut_before | (token_ids[:, before] == neighbors.left)  # bool [n, w]
    may_end = ~cut_after | (token_ids[:, after] == neighbors.right)  # bool [n, w]
    may_begin &= ~(cut_after & (token_ids[:, own] == neighbors.left))
    may_end &= ~(cut_before & (token_ids[:, own] == neighbors.right))
    return (may_begin if years is None else may_begin | years[:, own]), may_end


def span_hash(token_ids: np.ndarray) -> np.uint64:
    """The hash by which equal token sequences are found, Σ token_i × base^i modulo 2^64, of one span's ids [tokens]."""
    powers = np.cumprod(
        np.append(np.uint64(1), np.full(len(token_ids) - 1, HASH_BASE)), dtype=np.uint64
    )  # u64 [tokens]
    return np.sum(_spread(token_ids) * powers, dtype=np.uint64)


def _spread(token_ids: np.ndarray) -> np.ndarray:
    """Token ids spread over 64 bits, so that small neighboring ids rarely give equal sums: u64 [...]."""
    return mixed_bits(token_ids.astype(np.uint64) * HASH_BASE)


def digit_tokens(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Mask of the token ids that are written in digits alone, bool [vocabulary]."""
    vocabulary = tokenizer.get_vocab()
    mask = np.zeros(1 + max(vocabulary.values()), dtype=bool)  # [vocabulary]
    mask[[number for token, number in vocabulary.items() if token.lstrip("#Ġ▁").isdecimal()]] = True
    return mask


def barred_flags(stopwords_inside: StopwordsInside) -> np.ndarray:
    """For each value that a token's flags can have, whether such a token may not be part of a phrase: bool [256]."""
    flags = np.arange(256)  # i64 [256]
    barred = (flags & TokenFlag.SPECIAL) != 0  # bool [256]
    if stopwords_inside is StopwordsInside.none:
        return barred | ((flags & (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION)) != 0)
    if stopwords_inside is StopwordsInside.linking:
        return barred | ((flags & (TokenFlag.STOPWORD | TokenFlag.LINKING)) == TokenFlag.STOPWORD)
    return barred


def _are_among(rows: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Whether each of `rows` i64 [m] is one of `ascending` i64 [n], bool [m], without a table of all rows."""
    if len(ascending) == 0:
        return np.zeros(len(rows), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)  # i64 [m]
    return ascending[places] == rows  # bool [m]
