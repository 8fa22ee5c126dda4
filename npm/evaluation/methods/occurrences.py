"""Occurrences of given words in a corpus, and how well they fit a masked position.

`find_occurrences` makes one pass over the token ids for any number of words. A word may have several tokens. It is
matched as tokenized at the start of a text and after a space, as given and with a capital, if these tokens begin and
end with a word of the text. `scan_scores` weighs all occurrences, `hit_scores` those among
the best rows of a search.

Shapes: W words, F their forms of one length, n occurrences, c of a chunk, T tokens of a chunk, a begins of words, b of
them that may be words of one length; q queries, t texts of one scan, k hits a query, h pairs of a hit and an
occurrence that it is an end of, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from operator import itemgetter

import numpy as np

from index.arrays import to_float32
from npm.core.types import TokenFlag
from npm.corpus.blocks import concatenated_ranges
from npm.evaluation.prompts import plain_token_ids
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.queries import QueryVectors
from npm.retrieval.settings import Combination

TOKENS_PER_CHUNK = 1 << 20  # tokens scanned together: about 20 MB for any corpus
SCORES_PER_CHUNK, MAX_OCCURRENCES_PER_CHUNK = 1 << 21, 8192
MAX_TEXTS_PER_SCAN = 64
"""Enough for the speed of one large matrix product; more write and read again scores that no cache holds."""


@dataclass(frozen=True, slots=True)
class WordOccurrences:
    """All positions where words occur with a vector at either end; word by word, in corpus order within a word."""

    words: tuple[str, ...]
    offsets: np.ndarray  # i64 [W + 1]; the occurrences of word w are [offsets[w], offsets[w + 1])
    starts: np.ndarray  # i64 [n], position of the first token
    lengths: np.ndarray  # i64 [n], tokens
    start_rows: np.ndarray  # i64 [n], row of the first token
    end_rows: np.ndarray  # i64 [n], row of the last token; equal to `start_rows` for one token
    total_counts: np.ndarray  # i64 [W], how often the word occurs in the live corpus, with vectors or without

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

    With `single_tokens` a word is the one token that it is after a space, also where that is a part of a word.

    Takes 40 bytes per occurrence, and the memory of one chunk of the corpus. Raises ArtifactError unless `encoder` made
    the index.
    """
    encoder = index.check_encoder(encoder)
    totals = np.zeros(len(words), dtype=np.int64)  # [W]
    pieces = [tuple(np.zeros(0, dtype=np.int64) for _ in range(5))]
    forms = token_forms(encoder, words, single_tokens=single_tokens)
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


def token_forms(encoder: Encoder, words: Sequence[str], *, single_tokens: bool = False) -> list[set[tuple[int, ...]]]:
    """The token ids that may represent each of `words` [W]; none for one that the tokenizer does not know.

    A cased tokenizer writes a word in up to four ways: with a space before it or not, with a capital or as given. With
    `single_tokens` it is the one token that it is after a space, if it is one.
    """
    spellings = [[word] if single_tokens else [word, word[:1].upper() + word[1:]] for word in words]
    forms = [[f" {each}" for each in own] + ([] if single_tokens else own) for own in spellings]
    encoded = iter(plain_token_ids(encoder, [form for own in forms for form in own]))
    unknown = encoder.tokenizer.unk_token_id
    # A token for "anything unknown" would find every word that the tokenizer does not know.
    known = [{tuple(ids) for ids in islice(encoded, len(own)) if ids and unknown not in ids} for own in forms]
    return [{ids for ids in own if len(ids) == 1} for own in known] if single_tokens else known


def _found_in(
    index: PhraseIndex, forms: Sequence[set[tuple[int, ...]]], *, whole_words: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Words, first positions and lengths, i64 [n] each, of all occurrences in live blocks, chunk by chunk.

    Windows of each length are looked up in the sorted forms of that length.
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


@dataclass(frozen=True, slots=True)
class WordScores:
    """The evidence of each word at each masked position, in logarithms; -inf for a word without any."""

    log_sums: np.ndarray  # f64 [q, W], log of the sum over its occurrences
    counts: np.ndarray  # i64 [W], its occurrences
    best: np.ndarray  # i64 [q, W], number of its heaviest occurrence; -1 without one
    best_logs: np.ndarray  # f64 [q, W], log of its weight

    @classmethod
    def empty(cls, query_count: int, counts: np.ndarray) -> WordScores:
        """No evidence for words of `counts` i64 [W] yet."""
        shape = query_count, len(counts)
        sums, best_logs = np.full((2, *shape), -np.inf)  # f64 [q, W] each
        return cls(sums, counts, np.full(shape, -1, dtype=np.int64), best_logs)


def scan_scores(
    index: PhraseIndex, occurrences: WordOccurrences, queries: QueryVectors, *, factor: float, combination: Combination
) -> WordScores:
    """log Σ e^(s + t) (product) or log Σ (e^s + e^t) (sum) over all occurrences of each word.

    s and t are `factor` times the inner products of the start query with the first token's vector and of the end query
    with the last one's (Min et al. 2022, arXiv 2212.01349, §3); `factor` is the similarity scale divided by the
    temperature.
    """
    assert index.vectors is not None, "an index without stored vectors cannot score words"
    start, end = (side * factor for side in (queries.start, queries.end))  # f32 [q, d] each
    found = WordScores.empty(len(start), occurrences.counts)
    step = min(max(SCORES_PER_CHUNK // max(len(start), 1), 1), MAX_OCCURRENCES_PER_CHUNK)
    edges = occurrences.offsets.tolist()
    for word, (begin, stop) in enumerate(pairwise(edges)):
        for first in range(begin, stop, step):
            here = slice(first, min(first + step, stop))
            firsts, lasts = occurrences.start_rows[here], occurrences.end_rows[here]  # i64 [c] each
            vectors = to_float32(index.vectors.take(firsts))  # f32 [c, d]
            if combination is Combination.product and np.array_equal(firsts, lasts):
                logs = (start + end) @ vectors.T  # f32 [q, c]: one product instead of two
            else:
                s, t = start @ vectors.T, end @ to_float32(index.vectors.take(lasts)).T  # f32 [q, c] each
                logs = s + t if combination is Combination.product else np.logaddexp(s, t)
            heaviest = logs.argmax(axis=1)  # i64 [q]
            tops = np.take_along_axis(logs, heaviest[:, None], axis=1)  # f32 [q, 1]
            totals = tops[:, 0] + np.log(np.exp(logs - tops).sum(axis=1, dtype=np.float64))  # f64 [q]
            found.log_sums[:, word] = np.logaddexp(found.log_sums[:, word], totals)
            better = tops[:, 0] > found.best_logs[:, word]  # bool [q]
            found.best[better, word] = first + heaviest[better]
            found.best_logs[better, word] = tops[better, 0]
    return found


def hit_scores(
    index: PhraseIndex, occurrences: WordOccurrences, queries: QueryVectors, *, k: int, factor: float, one_query: bool
) -> WordScores:
    """log P of each word: a softmax over all rows found, summed over those at an end of one of its occurrences.

    The start query finds k rows, whose tokens are to begin a word, the end query k rows, whose tokens are to end one;
    both go into one softmax of `factor` times their inner products, as the reference has it. With `one_query` the start
    query alone is used. A word without a row has -inf.
    """
    found = WordScores.empty(len(queries.start), occurrences.counts)
    of_word = np.repeat(np.arange(len(occurrences.words)), occurrences.counts)  # i64 [n]
    ends = [occurrences.start_rows, occurrences.end_rows][: 1 if one_query else 2]  # i64 [n] each
    orders = [np.argsort(rows, kind="stable") for rows in ends]  # i64 [n] each
    ends = [rows[order] for rows, order in zip(ends, orders, strict=True)]  # ascending
    texts_per_scan = max(1, min(index.searcher.max_queries_per_scan // len(ends), MAX_TEXTS_PER_SCAN))
    for first in range(0, len(queries.start), texts_per_scan):
        sides = [side[first : first + texts_per_scan] for side in (queries.start, queries.end)][: len(ends)]
        hits = index.searcher.scan(np.concatenate(sides), index.live_rows).top(min(k, len(index.rows)))
        exponents = hits.scores.astype(np.float64) * factor  # f64 [sides · t, k]
        for text in range(len(sides[0])):
            pieces = []
            for side, (rows, order) in enumerate(zip(ends, orders, strict=True)):
                row = side * len(sides[0]) + text
                own = hits.rows[row, hits.found[row]]  # i64 [hits of this side]
                low, high = (np.searchsorted(rows, own, side=each) for each in ("left", "right"))
                numbers = order[concatenated_ranges(low, high)]  # i64 [h]
                pieces.append((numbers, np.repeat(exponents[row, hits.found[row]], high - low)))
            numbers, logs = (np.concatenate(column) for column in zip(*pieces, strict=True))  # [h] each
            logs = logs - np.logaddexp.reduce(exponents[text :: len(sides[0])], axis=None)  # f64 [h]
            words = of_word[numbers]  # i64 [h]
            np.logaddexp.at(found.log_sums[first + text], words, logs)
            best_first = np.lexsort((numbers, -logs))  # i64 [h], the first of equally heavy ones
            held, places = np.unique(words[best_first], return_index=True)
            found.best[first + text, held] = numbers[best_first[places]]
            found.best_logs[first + text, held] = logs[best_first[places]]
    return found
