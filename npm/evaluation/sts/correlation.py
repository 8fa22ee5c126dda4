"""Semantic textual similarity: sentence pairs with a gold score, and Spearman's correlation over all of them.

The score of a set is the correlation over the concatenation of its subsets ("all"), never the mean of the subsets'
own correlations: the two differ by several points (Gao et al. 2021, arXiv 2104.08821, appendix B).

Shapes: n pairs, d dimensions, s rankings that are compared with the gold one, r resamples, g groups of equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import EncoderError

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


Encode = Callable[[list[str]], np.ndarray]
"""Maps n sentences to f32 [n, d], one vector a sentence."""
DRAWN_AT_ONCE = 1 << 20
"""Pairs drawn at once by the bootstrap; bounds memory."""


@dataclass(frozen=True, slots=True)
class SentencePairs:
    """The pairs of one split of one set, its subsets one after the other."""

    name: str
    """STS12 … STS16, STS-B or SICK-R."""
    split: str
    """`train`, `dev`, `test`; `all` where a file has the rows of all splits."""
    first: list[str]
    second: list[str]
    gold: np.ndarray  # f64 [n], 0 (nothing in common) to 5 (the same)
    subsets: tuple[str, ...]
    """Names; none where the file does not say which subset a pair is of."""
    subset_numbers: np.ndarray  # i64 [n], in [0, len(subsets)); 0 without names
    without_gold: int = 0
    """Rows left out because they have no gold score."""
    digest: str = ""
    """SHA-256 over the files."""

    @property
    def subset_sizes(self) -> list[int]:
        """Pairs of each of `subsets`."""
        return [int((self.subset_numbers == number).sum()) for number in range(len(self.subsets))]

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class SentenceVectors:
    """An encoder of sentences, as this task needs it."""

    name: str
    encode: Encode
    facts: Mapping[str, Any]
    """What its numbers depend on: fingerprint, pooler, number format; goes into metrics.json."""
    encoder: Encoder | None = None
    """For what is measured of token vectors; None leaves that out."""


def sts_spearman(encode: Encode, pairs: SentencePairs) -> float:
    """Spearman's correlation of cosine and gold score over all `pairs`, subsets together.

    Encodes each distinct sentence once. Raises EncoderError for vectors without a direction.
    """
    return spearman(pair_cosines(encode, pairs), pairs.gold)


def pair_cosines(encode: Encode, pairs: SentencePairs) -> np.ndarray:
    """The cosine of the two sentences of each pair, f64 [n]."""
    numbers, vectors = encode_distinct(encode, [*pairs.first, *pairs.second])  # i64 [2n], f64 [distinct, d]
    first, second = numbers[: len(pairs)], numbers[len(pairs) :]  # i64 [n] each
    cosines: np.ndarray = np.einsum("nd,nd->n", vectors[first], vectors[second])  # f64 [n]
    return cosines


def encode_distinct(encode: Encode, sentences: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which distinct sentence each one is, i64 [n], and the unit vectors f64 [distinct, d], in order of appearance."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(sentence, len(places)) for sentence in sentences]
    return np.array(numbers, dtype=np.int64), unit_rows(encode(list(places)))


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows [n, d] divided by their lengths, f64. Raises EncoderError for a row of zeros or with a number missing."""
    rows = np.asarray(vectors, dtype=np.float64)  # [n, d]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # f64 [n, 1]
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        wrong = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))[:, 0])[0])
        raise EncoderError(
            f"sentence {wrong + 1} of {len(rows)} has a vector of length {float(lengths[wrong, 0])}:"
            " the weights may be damaged, choose an earlier checkpoint"
        )
    return rows / lengths


def spearman(scores: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's rank correlation of two f64 [n]: Pearson's of the ranks, equal values sharing their mean rank.

    0 where one side is constant: it puts nothing in order. (Spearman 1904, American Journal of Psychology 15.)

    >>> spearman(np.array([0.1, 0.2, 0.9]), np.array([1.0, 3.0, 5.0])), spearman(np.ones(3), np.arange(3.0))
    (1.0, 0.0)
    """
    once = np.ones((1, len(gold)))  # f64 [1, n]
    return float(weighted_correlation(weighted_ranks(scores, once), weighted_ranks(gold, once), once)[0])


def resampled_spearman(scores: np.ndarray, gold: np.ndarray, rng: np.random.Generator, *, resamples: int) -> np.ndarray:
    """Spearman's correlations f64 [r, s] of `scores` f64 [s, n] with `gold` f64 [n] when pairs are drawn anew.

    The same pairs are drawn for all s, so that differences between them are paired (Efron and Tibshirani 1993, §13.3).
    A resample is how often each pair was drawn, so values are sorted once and for all.
    """
    count = len(gold)
    at_once = max(1, DRAWN_AT_ONCE // count)
    found = np.empty((resamples, len(scores)))  # f64 [r, s]
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = rng.integers(0, count, size=(size, count)) + np.arange(size)[:, None] * count  # i64 [size, n]
        copies = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(float)  # f64 [size, n]
        gold_ranks = weighted_ranks(gold, copies)  # f64 [size, n]
        for column, values in enumerate(scores):
            correlations = weighted_correlation(weighted_ranks(values, copies), gold_ranks, copies)  # f64 [size]
            found[start : start + size, column] = correlations
    return found


def weighted_ranks(values: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """The rank from 1 of each of `values` f64 [n] when it stands `copies` f64 [r, n] times; f64 [r, n].

    Equal values share the mean of their ranks.

    >>> weighted_ranks(np.array([7.0, 5.0, 7.0]), np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 0.0]])).tolist()
    [[2.5, 1.0, 2.5], [3.0, 1.5, 3.0]]
    """
    order = np.argsort(values, kind="stable")  # i64 [n]
    ascending = values[order]  # f64 [n]
    is_first = np.append(True, ascending[1:] != ascending[:-1])  # bool [n]
    groups = np.empty(len(values), dtype=np.int64)  # i64 [n], by the order of values
    groups[order] = np.cumsum(is_first) - 1
    sizes = np.add.reduceat(copies[:, order], np.flatnonzero(is_first), axis=1)  # f64 [r, g]
    ranks = np.cumsum(sizes, axis=1) - (sizes - 1) / 2  # f64 [r, g], mean of those that a group takes up
    by_value: np.ndarray = ranks[:, groups]  # f64 [r, n]
    return by_value


def weighted_correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pearson's correlation f64 [r] of rows of `x` and `y` f64 [r, n], places counted `weights` f64 [r, n] times."""
    totals = weights.sum(1, keepdims=True)  # f64 [r, 1]
    x = x - (weights * x).sum(1, keepdims=True) / totals  # f64 [r, n]
    y = y - (weights * y).sum(1, keepdims=True) / totals  # f64 [r, n]
    products = (weights * x * y).sum(1)  # f64 [r]
    lengths = np.sqrt((weights * x * x).sum(1) * (weights * y * y).sum(1))  # f64 [r]
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
