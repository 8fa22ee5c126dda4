"""Candidate spans of one query: hits of the start query are grown to the right, hits of the end query to the left.

Equal token sequences are found by a 64-bit polynomial hash that grows with the span.

Shapes: n hits, m candidate spans, g groups of equal token sequences, T tokens of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from index.arrays import GOLDEN_GAMMA, mixed_bits
from npm.core.types import TokenFlag
from npm.corpus.text import is_joined
from npm.indexing.rows import RowMap, gather
from npm.retrieval.queries import MaskNeighbors
from npm.retrieval.settings import ScoringSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from npm.corpus.store import BlockStore

NO_NEIGHBORS = MaskNeighbors()
MOST_EXPRESSION_TOKENS = 48
HASH_BASE = GOLDEN_GAMMA  # odd, so that its powers never vanish modulo 2^64


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


class _Window(NamedTuple):
    """Tokens from n anchors on to one side, the anchor first; all arrays but one [n, width]."""

    flags: np.ndarray  # u8
    token_ids: np.ndarray  # i32
    may_enter: np.ndarray  # bool, a span may grow to the token
    may_leave: np.ndarray  # bool, a span may grow beyond it
    may_be_near: np.ndarray  # bool [n], the anchor may be an edge of a span
    may_be_far: np.ndarray  # bool, the token may be the other edge


class SpanFinder:
    """Grows hits into the spans that the settings allow.

    A span stays in its block, starts at a word start and ends at a word end, cuts no expression (a number, a date, …;
    see `npm.corpus.expressions`), and both ends have a vector.
    """

    def __init__(
        self,
        store: BlockStore,
        rows: RowMap,
        limits: tuple[int, int | None],
        scoring: ScoringSettings,
        *,
        digit_tokens: np.ndarray | None = None,
    ) -> None:
        """`limits` are the most tokens and words of a span; `digit_tokens` bool [vocabulary] are needed for years."""
        self._store, self._rows = store, rows
        self._max_tokens, self._max_words = limits
        self._rules, self._digit_tokens = scoring, digit_tokens
        # By what a token's flags can be, whether it may not be part of a phrase: bool [256].
        flags = np.arange(256)  # i64 [256]
        self._is_barred = (flags & TokenFlag.SPECIAL) != 0
        if scoring.reference:
            self._is_barred |= (flags & (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION)) != 0
        else:
            self._is_barred |= (flags & (TokenFlag.STOPWORD | TokenFlag.LINKING)) == TokenFlag.STOPWORD

    def find(
        self, start_rows: np.ndarray, end_rows: np.ndarray | None, neighbors: MaskNeighbors = NO_NEIGHBORS
    ) -> CandidateSpans:
        """All spans that begin at one of `start_rows` or end at one of `end_rows`, sorted i64 [n], without repeats.

        An expression may exceed the limits. `neighbors` are the characters next to the mask: if they begin or finish an
        expression (`$<mask>`, `<mask> days`), the span is the missing part. `end_rows` None means that every possible
        end row is also searched as a start, as in restricted search, so that growing to the left finds nothing new.
        """
        from_starts = self._grow(start_rows, neighbors, rightward=True)
        if not self._rules.reference and self._max_words is None:
            long = self._long_expressions(start_rows)  # bool [n]
            if long.any():
                whole = self._grow(start_rows[long], neighbors, rightward=True, most_tokens=MOST_EXPRESSION_TOKENS)
                whole = whole.where(whole.lengths > self._max_tokens)
                is_one = self._is_expression(whole)  # bool [m]
                from_starts = CandidateSpans.concatenated([from_starts, whole.where(is_one)])
        if end_rows is None:
            return from_starts
        from_ends = self._grow(end_rows, neighbors, rightward=False)
        # Any span that begins at a start hit was found from there, since walks to the right are at least as long.
        sides = (np.searchsorted(start_rows, from_ends.start_rows, side) for side in ("left", "right"))  # i64 [m] each
        return CandidateSpans.concatenated([from_starts, from_ends.where(np.equal(*sides))])

    def _long_expressions(self, rows: np.ndarray) -> np.ndarray:
        """Mask of the `rows` i64 [n] whose tokens begin an expression that is longer than the limit, bool [n]."""
        steps = np.arange(1, self._max_tokens + 1)  # i64 [limit]
        positions = np.minimum(
            self._rows.positions(rows)[:, None] + steps, self._rows.token_count - 1
        )  # i64 [n, limit]
        return np.asarray(is_joined(gather(self._store.flags, positions)).all(axis=1))

    def _is_expression(self, spans: CandidateSpans) -> np.ndarray:
        """Mask of the spans that are one expression, bool [m]."""
        bounds = zip(spans.starts.tolist(), (spans.starts + spans.lengths).tolist(), strict=True)
        return np.array([is_expression(self._store.flags.slice(*span)) for span in bounds], dtype=bool)

    def _grow(
        self, rows: np.ndarray, neighbors: MaskNeighbors, *, rightward: bool, most_tokens: int | None = None
    ) -> CandidateSpans:
        """Spans with one end at `rows` i64 [n], a token longer at each step; dropped once they cannot grow."""
        edges = TokenFlag.WORD_START.value, TokenFlag.WORD_END.value
        word_edge, other_edge = edges if rightward else edges[::-1]
        anchors = self._rows.positions(rows)  # i64 [n]
        blocks, offsets = self._store.block_of(anchors), self._store.block_offsets
        # tokens to the block's edge, itself included, i64 [n]
        room = offsets[blocks + 1] - anchors if rightward else anchors - offsets[blocks] + 1
        # The reference walks one token less to the left.
        most_tokens = most_tokens or self._max_tokens - (self._rules.reference and not rightward)
        window = self._window(anchors, max(1, most_tokens), neighbors, rightward=rightward)
        flags = window.flags[:, 0]  # u8 [n]
        is_near = ((flags & word_edge) != 0) & ~self._is_barred[flags] & window.may_be_near  # bool [n]
        alive = np.flatnonzero(is_near)  # i64 [alive], numbers of hits
        hashes = np.zeros(len(rows), dtype=np.uint64)  # [n]
        power = np.uint64(1)
        words = np.ones(len(rows), dtype=np.int64)  # [n], begun so far
        nothing = np.zeros(0, dtype=np.int64)
        found = [CandidateSpans(nothing, nothing, nothing, nothing, nothing.astype(np.uint64))]
        for length in range(1, most_tokens + 1):
            others = anchors[alive] + (length - 1 if rightward else 1 - length)  # i64 [alive], the other end
            flags = window.flags[alive, length - 1]  # u8 [alive]
            if length > 1:
                may_enter = window.may_enter[alive, length - 1]  # bool [alive]
                if self._max_words is not None:
                    words[alive] += (flags & word_edge) != 0
                    may_enter &= words[alive] <= self._max_words
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
            alive = alive[(room[alive] > length) & window.may_leave[alive, length - 1]]
        return CandidateSpans.concatenated(found)

    def _window(self, anchors: np.ndarray, width: int, neighbors: MaskNeighbors, *, rightward: bool) -> _Window:
        """The `width` tokens from each of `anchors` i64 [n] on to one side.

        One read for all steps: with many shards the number of reads counts, not their size. Rows outside of the
        corpus, or of a block, mean nothing.
        """
        steps = np.arange(-1, width + 1) * (1 if rightward else -1)  # i64 [width + 2], one more on either side
        unbounded = anchors[:, None] + steps  # i64 [n, width + 2]
        positions = np.clip(unbounded, 0, self._rows.token_count - 1)  # i64 [n, width + 2]
        flags = gather(self._store.flags, positions)  # u8 [n, width + 2]
        token_ids = gather(self._store.token_ids, positions)  # i32 [n, width + 2]
        own = slice(1, -1)
        may_enter, may_leave = ~self._is_barred[flags[:, own]], np.ones((len(anchors), width), dtype=bool)
        if not self._rules.reference:
            begins_sentence = (flags[:, own] & TokenFlag.SENTENCE_START.value) != 0  # bool [n, width]
            ends_clause = self._ends_clause(positions[:, own], flags[:, own])  # bool [n, width]
            may_enter &= ~(begins_sentence if rightward else ends_clause)
            may_leave = ~(ends_clause if rightward else begins_sentence)
        if self._max_words == 1:
            may_leave &= (flags[:, own] & (TokenFlag.WORD_END if rightward else TokenFlag.WORD_START).value) == 0
        may_begin = may_end = np.ones((len(anchors), width), dtype=bool)
        if not self._rules.cut_expressions:
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
        return _Window(flags[:, own], token_ids[:, own], may_enter, may_leave, near[:, 0], far)

    def _joined(self, flags: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Mask of the tokens that continue the expression of the token before them in the same block, bool [...]."""
        joined = is_joined(flags) & (positions < self._rows.token_count)  # bool [...]
        at = positions[joined]  # i64 [joined tokens]
        joined[joined] = at > self._store.block_offsets[self._store.block_of(at)]
        return joined

    def _years(self, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """Mask of the numbers that do not touch the token before them in their block, bool [...]."""
        assert self._digit_tokens is not None, "a finder of years knows the digits"
        found = self._digit_tokens[token_ids]  # bool [...]
        found[found] = self._gaps_before(positions[found]) > 0
        return found

    def _ends_clause(self, positions: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Mask of clause punctuation, bool [...], without the marks in `3.5` and `Dr. Low`."""
        ends = ((flags & TokenFlag.CLAUSE_PUNCTUATION.value) != 0) & ~is_joined(flags)  # bool [...]
        following = np.minimum(positions[ends] + 1, self._rows.token_count - 1)  # i64 [marks]
        # Within a block only: at its end nothing follows, and nothing grows over it either.
        ends[ends] = self._gaps_before(following) != 0
        return ends

    def _gaps_before(self, positions: np.ndarray) -> np.ndarray:
        """Characters between each token and the one before it in its block, i64 [n]; at its first token meaningless."""
        offsets, lengths = self._store.char_offsets, self._store.char_lengths
        before = np.maximum(positions - 1, 0)  # i64 [n]
        return offsets.take(positions).astype(np.int64) - offsets.take(before) - lengths.take(before)


def is_expression(flags: np.ndarray) -> bool:
    """Return True if tokens with the flags u8 [T] are of one expression."""
    return bool(is_joined(flags[1:]).all())


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
    may_begin &= token_ids[:, own] != neighbors.left
    may_end &= token_ids[:, own] != neighbors.right
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
