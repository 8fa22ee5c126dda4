"""Occurrences of given words in a corpus, and how well they fit a masked position.

`find_occurrences`: one pass over the token ids, whatever the number of words. A word may be several tokens. It is
looked for as the tokenizer writes it at the start of a text and after a space, as given and with a capital, and found
where these tokens begin and end with a word of the text. `WordScorer` weighs all occurrences: every vector at an end of
one is multiplied with every query, chunk by chunk. `WordHits` weighs those among the best rows of a search.

Shapes: W words, F their forms of one length, n occurrences, c of a chunk, T tokens of a chunk, a begins of words, b of
them that may be words of one length; q queries, t texts of one scan, k hits a query, h pairs of a hit and an
occurrence that it is an end of, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from index.arrays import to_float32
from npm.core.types import TokenFlag
from npm.corpus.blocks import concatenated_ranges
from npm.evaluation.prompts import plain_token_ids
from npm.models.similarity import scaled_similarity
from npm.retrieval.scoring import Combination

if TYPE_CHECKING:
    from index.types import Hits
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.queries import QueryVectors


TOKENS_PER_CHUNK = 1 << 20
"""Tokens looked at together: about 20 MB, whatever the corpus."""


@dataclass(frozen=True, slots=True)
class WordOccurrences:
    """All places where words stand with a vector at either end; word by word, in corpus order within a word."""

    words: tuple[str, ...]
    offsets: np.ndarray  # i64 [W + 1]; the occurrences of word w are [offsets[w], offsets[w + 1])
    starts: np.ndarray  # i64 [n], position of the first token
    lengths: np.ndarray  # i64 [n], tokens
    start_rows: np.ndarray  # i64 [n], row of the first token
    end_rows: np.ndarray  # i64 [n], row of the last token; equal to `start_rows` for one token
    total_counts: np.ndarray  # i64 [W], how often the word stands in the live corpus, with vectors or without

    @property
    def counts(self) -> np.ndarray:
        """Number of occurrences of each word, i64 [W]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.starts)


def find_occurrences(
    index: PhraseIndex, encoder: Encoder, words: Sequence[str], single_tokens: bool = False
) -> WordOccurrences:
    """Occurrences of each of `words` [W] in the live blocks of `index`, with the rows of the vectors at their ends.

    With `single_tokens` a word is the one token that it is behind a space, also where that is a part of a word.

    Takes 40 bytes an occurrence, besides what a chunk of the corpus takes. Raises ArtifactError unless `encoder` made
    the index.
    """
    encoder = index.check_encoder(encoder)
    totals = np.zeros(len(words), dtype=np.int64)  # [W]
    pieces = [tuple(np.zeros(0, dtype=np.int64) for _ in range(5))]
    forms = single_token_forms(encoder, words) if single_tokens else token_forms(encoder, words)
    for of_word, starts, lengths in _found_in(index, forms, whole_words=not single_tokens):
        totals += np.bincount(of_word, minlength=len(words))
        start_rows, has_start = index.rows.rows_at(starts)  # i64 [n], bool [n]
        end_rows, has_end = index.rows.rows_at(starts + lengths - 1)  # i64 [n], bool [n]
        kept = has_start & has_end  # bool [n]
        pieces.append(tuple(column[kept] for column in (of_word, starts, lengths, start_rows, end_rows)))
    joined = [np.concatenate(column) for column in zip(*pieces, strict=True)]  # i64 [n] each
    order = np.lexsort((joined[2], joined[1], joined[0]))  # by word, position and length
    of_word, starts, lengths, start_rows, end_rows = (column[order] for column in joined)
    return WordOccurrences(
        words=tuple(words),
        offsets=np.searchsorted(of_word, np.arange(len(words) + 1)),
        starts=starts,
        lengths=lengths,
        start_rows=start_rows,
        end_rows=end_rows,
        total_counts=totals,
    )


def name_blocks(index: PhraseIndex, encoder: Encoder, names: Sequence[str]) -> list[np.ndarray]:
    """The live blocks that hold each of `names` [W], with vectors or without: i64 [blocks] each, ascending."""
    pieces = [(np.zeros(0, dtype=np.int64),) * 2]  # words and blocks, i64 [n] each
    for words, starts, _ in _found_in(index, token_forms(encoder, names)):
        blocks = index.store.block_of(starts)  # i64 [n]
        pieces.append(tuple(np.unique(np.stack([words, blocks]), axis=1)))
    found = np.unique(np.concatenate([np.stack(piece) for piece in pieces], axis=1), axis=1)  # i64 [2, n]
    return np.split(found[1], np.searchsorted(found[0], np.arange(1, len(names))))[: len(names)]


def token_forms(encoder: Encoder, words: Sequence[str]) -> list[set[tuple[int, ...]]]:
    """The token ids that may stand for each of `words` [W]; none for one that the tokenizer does not know.

    A cased tokenizer writes a word in up to four ways: with a space before it or not, with a capital or as given.
    """
    spellings = [(word, word[:1].upper() + word[1:]) for word in words]
    texts = [before + form for pair in spellings for form in pair for before in ("", " ")]
    encoded = plain_token_ids(encoder, texts)
    unknown = encoder.tokenizer.unk_token_id
    forms: list[set[tuple[int, ...]]] = []
    for first in range(0, len(texts), 4):
        # A token for "anything unknown" would find every word that the tokenizer does not know.
        forms.append({tuple(ids) for ids in encoded[first : first + 4] if ids and unknown not in ids})
    return forms


def single_token_forms(encoder: Encoder, words: Sequence[str]) -> list[set[tuple[int, ...]]]:
    """The one token that stands for each of `words` [W] behind a space; none for a word of several."""
    encoded = plain_token_ids(encoder, [f" {word}" for word in words])
    return [{(ids[0],)} if len(ids) == 1 and ids[0] != encoder.tokenizer.unk_token_id else set() for ids in encoded]


def _found_in(
    index: PhraseIndex, forms: Sequence[set[tuple[int, ...]]], *, whole_words: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Words, first positions and lengths, i64 [n] each, of all occurrences in live blocks, chunk by chunk.

    The windows of as many tokens as a form has are looked up in the sorted forms of that length.
    """
    store = index.store
    pairs = sorted(
        (len(form), _as_keys(np.array([form]))[0], word, form[0]) for word, own in enumerate(forms) for form in own
    )
    longest = max((length for length, *_ in pairs), default=0)
    tables = {length: list(own) for length, own in groupby(pairs, key=itemgetter(0))}
    for first in range(0, store.token_count if pairs else 0, TOKENS_PER_CHUNK):
        stop = min(first + TOKENS_PER_CHUNK, store.token_count)
        ahead = min(stop + longest - 1, store.token_count)  # words that begin here may end a little later
        token_ids = store.token_ids.slice(first, ahead).astype(np.int64)  # [T]
        flags = store.flags.slice(first, ahead)  # u8 [T]
        if not whole_words:  # every token is one, but those of titles
            both = (TokenFlag.WORD_START | TokenFlag.WORD_END).value
            flags = np.where((flags & TokenFlag.SPECIAL) == 0, flags | np.uint8(both), flags)  # u8 [T]
        begins = np.flatnonzero(flags[: stop - first] & TokenFlag.WORD_START)  # i64 [a], in the chunk
        blocks = store.block_of(first + begins)  # i64 [a]
        if index.live_blocks is not None:
            begins, blocks = (each[index.live_blocks[blocks]] for each in (begins, blocks))  # i64 [a] each
        block_stops = store.block_offsets[blocks + 1] - first  # i64 [a], in the chunk
        for length, table in tables.items():
            keys, words, firsts = (np.array(column) for column in list(zip(*table, strict=True))[1:])  # [F] each
            starts = begins[(begins + length <= block_stops) & np.isin(token_ids[begins], firsts)]  # i64 [b]
            starts = starts[(flags[starts + length - 1] & TokenFlag.WORD_END) != 0]  # i64 [b]
            windows = _as_keys(token_ids[starts[:, None] + np.arange(length)])  # [b]
            low, high = (np.searchsorted(keys, windows, side=side) for side in ("left", "right"))  # i64 [b] each
            found = np.repeat(first + starts, high - low)  # i64 [n]
            yield words[concatenated_ranges(low, high)], found, np.full(len(found), length)


def _as_keys(rows: np.ndarray) -> np.ndarray:
    """Each row of i64 [b, n] as one value that can be sorted and compared, bytes [b]."""
    return np.ascontiguousarray(rows, dtype=np.int64).view(f"S{8 * rows.shape[1]}").reshape(len(rows))  # [b]


SCORES_PER_CHUNK = 1 << 21
MOST_OCCURRENCES_PER_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class WordScores:
    """The evidence of each word at each masked position, in logarithms; -inf for a word without any."""

    log_sums: np.ndarray  # f64 [q, W], log of the sum over its occurrences
    counts: np.ndarray  # i64 [W], its occurrences
    best: np.ndarray  # i64 [q, W], number of its heaviest occurrence; -1 without one
    best_logs: np.ndarray  # f64 [q, W], log of what that one weighs


class WordScorer:
    """Words with their occurrences in an index, scored for any number of queries."""

    def __init__(self, index: PhraseIndex, occurrences: WordOccurrences) -> None:
        """Raises ValueError for an index whose vectors are known to its searcher alone."""
        if index.vectors is None:
            raise ValueError("an index without stored vectors cannot score words")
        self.occurrences = occurrences
        starts, ends = occurrences.start_rows, occurrences.end_rows  # i64 [n] each
        is_single = starts == ends  # bool [n]
        self._singles, self._pairs = np.flatnonzero(is_single), np.flatnonzero(~is_single)  # occurrence numbers
        self._vectors = index.vectors

    def _at(self, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Vectors f32 [c, d] of the occurrences `numbers` i64 [c] at one end."""
        return to_float32(self._vectors.take(rows[numbers]))

    def score(self, queries: QueryVectors, *, factor: float, combination: Combination) -> WordScores:
        """log Σ e^(s + t) (product) or log Σ (e^s + e^t) (sum) over each word's occurrences.

        s and t are `factor` times the inner products of the start query with the first token's vector and of the end
        query with the last one's (Min et al. 2022, arXiv 2212.01349, §3); `factor` is the similarity scale divided by
        the temperature.
        """
        start, end = (scaled_similarity(side, factor) for side in (queries.start, queries.end))  # f32 [q, d] each
        is_product = combination is Combination.product
        # With one vector k at both ends, s + t is one product with the sum of the queries: half the work.
        sides = [start + end] if is_product else [start, end]
        sums = _RunningSums(len(start), self.occurrences)
        for first, stop in _chunks(len(self._singles), len(start)):
            numbers = self._singles[first:stop]  # i64 [c]
            vectors = self._at(self.occurrences.start_rows, numbers)  # f32 [c, d]
            sums.add(numbers, [side @ vectors.T for side in sides])  # f32 [q, c] each
        for first, stop in _chunks(len(self._pairs), len(start)):
            numbers = self._pairs[first:stop]  # i64 [c]
            s = start @ self._at(self.occurrences.start_rows, numbers).T  # f32 [q, c]
            t = end @ self._at(self.occurrences.end_rows, numbers).T  # f32 [q, c]
            sums.add(numbers, [s + t] if is_product else [s, t])
        return sums.finished()


def _chunks(count: int, query_count: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, stop) of at most as many occurrences as have `SCORES_PER_CHUNK` scores."""
    step = min(max(SCORES_PER_CHUNK // max(query_count, 1), 1), MOST_OCCURRENCES_PER_CHUNK)
    for first in range(0, count, step):
        yield first, min(first + step, count)


class _RunningSums:
    """Sums of exponentials that grow chunk by chunk, each relative to the largest exponent so far."""

    def __init__(self, query_count: int, occurrences: WordOccurrences) -> None:
        self._occurrences = occurrences
        shape = (query_count, len(occurrences.words))
        self._tops = np.full(shape, -np.inf)  # f64 [q, W], largest exponent so far
        self._sums = np.zeros(shape)  # f64 [q, W], relative to it
        self._best = np.full(shape, -1, dtype=np.int64)  # i64 [q, W]
        self._best_logs = np.full(shape, -np.inf)  # f64 [q, W]

    def add(self, numbers: np.ndarray, exponents: list[np.ndarray]) -> None:
        """Add occurrences `numbers` i64 [c], ascending; each weighs Σ e^x over the `exponents` x f32 [q, c]."""
        bounds = np.searchsorted(numbers, self._occurrences.offsets)  # i64 [W + 1], in the chunk
        for word in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(*bounds[word : word + 2].tolist())
            of_word = [each[:, here] for each in exponents]  # f32 [q, occurrences of the word] each
            tops = np.maximum.reduce([each.max(axis=1) for each in of_word])  # f32 [q]
            weights = np.exp(of_word[0] - tops[:, None])  # f32 [q, occurrences of the word]
            for each in of_word[1:]:
                weights += np.exp(each - tops[:, None])
            heaviest = weights.argmax(axis=1)  # i64 [q]
            top_weights = np.take_along_axis(weights, heaviest[:, None], axis=1)[:, 0]  # f32 [q]
            higher = np.maximum(self._tops[:, word], tops)  # f64 [q]
            before = self._sums[:, word] * np.exp(self._tops[:, word] - higher)  # f64 [q]
            added = weights.sum(axis=1, dtype=np.float64) * np.exp(tops.astype(np.float64) - higher)  # f64 [q]
            self._sums[:, word], self._tops[:, word] = before + added, higher
            logs = tops + np.log(top_weights, dtype=np.float64)  # f64 [q]
            better = logs > self._best_logs[:, word]  # bool [q]
            self._best[better, word] = numbers[here][heaviest[better]]
            self._best_logs[better, word] = logs[better]

    def finished(self) -> WordScores:
        """The logarithms of all sums."""
        logs = np.log(self._sums, out=np.full(self._sums.shape, -np.inf), where=self._sums > 0)  # f64 [q, W]
        return WordScores(
            log_sums=np.where(self._sums > 0, self._tops + logs, -np.inf),
            counts=self._occurrences.counts,
            best=self._best,
            best_logs=self._best_logs,
        )


MOST_TEXTS_PER_SCAN = 64
"""Enough for the speed of one large matrix product; more write and read again scores that no cache holds."""


class WordHits:
    """Words with their occurrences in an index, looked for among the best rows of any number of queries."""

    def __init__(self, index: PhraseIndex, occurrences: WordOccurrences) -> None:
        self._index = index
        self.occurrences = occurrences
        row_count = len(index.rows)
        self._sides = [_Side(rows, row_count) for rows in (occurrences.start_rows, occurrences.end_rows)]
        self._words = np.repeat(np.arange(len(occurrences.words)), occurrences.counts)  # i64 [n], of each occurrence

    def score(self, queries: QueryVectors, *, k: int, factor: float, one_query: bool) -> WordScores:
        """log P of each word: a softmax over all rows found, summed over those at an end of one of its occurrences.

        The start query finds k rows, whose tokens are to begin a word, the end query k rows, whose tokens are to end
        one; both go into one softmax of `factor` times their inner products, as the reference has it. With
        `one_query` the start query alone is asked. A word that no row stands for has -inf.
        """
        query_count, word_count = len(queries.start), len(self.occurrences.words)
        log_sums, best_logs = (np.full((query_count, word_count), -np.inf) for _ in range(2))  # f64 [q, W] each
        best = np.full((query_count, word_count), -1, dtype=np.int64)  # i64 [q, W]
        k = min(k, len(self._index.rows))
        sides = self._sides[:1] if one_query else self._sides
        most_queries = self._index.searcher.max_queries_per_scan
        texts_per_scan = max(1, min(most_queries // len(sides), MOST_TEXTS_PER_SCAN))
        for first in range(0, query_count, texts_per_scan):
            piece = slice(first, first + texts_per_scan)
            asked = [queries.start[piece], queries.end[piece]][: len(sides)]  # f32 [t, d] each
            hits = self._index.searcher.scan(np.concatenate(asked), self._index.live_rows).top(k)
            found = self._found(hits, sides, factor)
            log_sums[piece], best[piece], best_logs[piece] = self._summed(*found, len(asked[0]))
        return WordScores(log_sums=log_sums, counts=self.occurrences.counts, best=best, best_logs=best_logs)

    def _found(self, hits: Hits, sides: list[_Side], factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Texts i64 [h], occurrences i64 [h] and log P f64 [h] of the hits [sides · t, k] of t texts."""
        text_count = len(hits.rows) // len(sides)
        logs = scaled_similarity(hits.scores.astype(np.float64), factor)  # f64 [sides · t, k], -inf where none is found
        pooled = np.concatenate(np.split(logs, len(sides)), axis=1)  # f64 [t, sides · k]
        tops = pooled.max(axis=1, initial=-np.inf, keepdims=True)  # f64 [t, 1]
        has_hit = tops > -np.inf  # bool [t, 1]
        totals = np.exp(pooled - np.where(has_hit, tops, 0)).sum(axis=1, keepdims=True)  # f64 [t, 1], 0 without a hit
        log_totals = tops + np.log(totals, where=has_hit, out=np.zeros_like(totals))  # f64 [t, 1]
        columns: list[tuple[np.ndarray, ...]] = []
        for number, side in enumerate(sides):
            of_side = slice(number * text_count, (number + 1) * text_count)
            texts, places = np.nonzero(side.has(hits.rows[of_side]) & hits.found[of_side])  # i64 [hits of this side]
            occurrences, which = side.occurrences(hits.rows[of_side][texts, places])  # i64 [h] each
            texts, places = texts[which], places[which]  # i64 [h] each
            columns.append((texts, occurrences, logs[of_side][texts, places] - log_totals[texts, 0]))
        texts, occurrences, found_logs = map(np.concatenate, zip(*columns, strict=True))  # [h] each
        return texts, occurrences, found_logs

    def _summed(
        self, texts: np.ndarray, numbers: np.ndarray, logs: np.ndarray, text_count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Σ P f64 [t, W], the best occurrence i64 [t, W] and its log P f64 [t, W], over hits [h] of t texts."""
        shape = text_count, len(self.occurrences.words)
        cells = texts * shape[1] + self._words[numbers]  # i64 [h], of t · W
        sums = np.bincount(cells, weights=np.exp(logs), minlength=shape[0] * shape[1])  # f64 [t · W]
        best_logs = np.full(len(sums), -np.inf)  # f64 [t · W]
        np.maximum.at(best_logs, cells, logs)
        best = np.where(best_logs > -np.inf, len(self.occurrences), -1)  # i64 [t · W], the first of equally heavy ones
        is_best = logs == best_logs[cells]  # bool [h]
        np.minimum.at(best, cells[is_best], numbers[is_best])
        log_sums = np.log(sums, out=np.full(len(sums), -np.inf), where=sums > 0)  # f64 [t · W]
        return log_sums.reshape(shape), best.reshape(shape), best_logs.reshape(shape)


class _Side:
    """Occurrences by their row at this end."""

    def __init__(self, rows: np.ndarray, row_count: int) -> None:
        self._order = np.argsort(rows, kind="stable")  # i64 [n]
        self._rows = rows[self._order]  # i64 [n], ascending
        self._has = np.zeros(row_count, dtype=bool)  # [rows]
        self._has[rows] = True

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Mask bool [...] of the `rows` i64 [...] that have an occurrence."""
        return np.asarray(self._has[rows])

    def occurrences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The occurrences i64 [h] that have one of `rows` i64 [n], and which of them each has, i64 [h]."""
        distinct, places = np.unique(rows, return_inverse=True)  # several texts find the same rows
        first = np.searchsorted(self._rows, distinct)[places]  # i64 [n]
        stop = np.searchsorted(self._rows, distinct, side="right")[places]  # i64 [n]
        return self._order[concatenated_ranges(first, stop)], np.repeat(np.arange(len(rows)), stop - first)
