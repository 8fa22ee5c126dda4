"""How sentence and token vectors lie in space: alignment, uniformity, anisotropy, spectrum, self-similarity.

All of them are of directions: u = h / ‖h‖.

Shapes: n vectors, m pairs, d dimensions, k = min(n, d) singular values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from npm.errors import check_range

ROWS_AT_ONCE = 512
"""Rows whose distances to all others are held at once."""
UNIFORMITY_T = 2.0


class GeometryPairs(Enum):
    """Which pairs of STS-B are measured."""

    all = "all"  # of all splits together
    split = "split"  # of the split that is reported
    none = "none"


@dataclass(kw_only=True, slots=True)
class GeometrySettings:
    """How sentence vectors lie in space is measured on the sentences of STS-B."""

    pairs: GeometryPairs = GeometryPairs.all
    """`all`: those of train, dev and test together, as in the paper; `split`: those of split= alone, for an encoder
    that was trained on the others; `none`: nothing is measured."""
    layer_sentences: int = 1000
    """Sentences, drawn by seed=, whose tokens are measured layer by layer; 0: none."""

    def __post_init__(self) -> None:
        right = self.layer_sentences >= 0
        check_range(right, "layer_sentences", expected="0 or more", got=self.layer_sentences)


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """E ‖u − u⁺‖² of unit vectors f64 [m, d] of pairs that mean the same: 0 at best, 2 where directions are unrelated.

    Wang and Isola 2020 (arXiv 2005.10242, §4.1, α = 2), with the pairs of Gao et al. 2021 (arXiv 2104.08821, §2.3):
    STS-B pairs whose gold score is above 4. Raises ValueError without pairs.

    >>> alignment(np.eye(2), np.eye(2)), alignment(np.eye(2), np.eye(2)[::-1])
    (0.0, 2.0)
    """
    if not len(first):
        raise ValueError("alignment needs at least one pair")
    return float(((first - second) ** 2).sum(1).mean())


def uniformity(units: np.ndarray) -> float:
    """log E exp(−2 ‖u − v‖²) over all pairs of different rows of unit vectors f64 [n, d].

    Wang and Isola 2020 (arXiv 2005.10242, §4.2, t = 2). 0 where all point one way; about −4 for random directions in
    many dimensions, where every ‖u − v‖² is near 2. Raises ValueError for fewer than two rows.

    >>> uniformity(np.eye(3)), uniformity(np.ones((3, 1)))
    (-4.0, 0.0)
    """
    count = len(units)
    if count < 2:
        raise ValueError("uniformity needs at least two vectors")
    total = 0.0
    for start in range(0, count, ROWS_AT_ONCE):
        rows = units[start : start + ROWS_AT_ONCE]  # f64 [rows, d]
        cosines = rows @ units[start:].T  # f64 [rows, n - start]
        kernel = np.exp(-2 * UNIFORMITY_T * (1 - cosines))  # ‖u − v‖² = 2 − 2 cos
        total += float(np.triu(kernel, k=1).sum())  # each pair once, none with itself
    return float(np.log(total / (count * (count - 1) / 2)))


def mean_cosine(units: np.ndarray) -> float:
    """The mean cosine of two different rows of unit vectors f64 [n, d].

    Anisotropy: what random pairs are drawn to estimate (Ethayarajh 2019, arXiv 1909.00512, §4.1), here over all pairs
    and with nothing subtracted. Raises ValueError for fewer than two rows.

    >>> mean_cosine(np.eye(2)), mean_cosine(np.ones((3, 1)))
    (0.0, 1.0)
    """
    if len(units) < 2:
        raise ValueError("a mean cosine needs at least two vectors")
    return float(mean_cosine_of_sum(units.sum(0), np.array(len(units))))


def mean_cosine_of_sum(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`mean_cosine` of `counts` [...] unit vectors each, 2 or more, whose sums f64 [..., d] alone are known.

    Σ_{i≠j} uᵢ·uⱼ = ‖Σu‖² − n, so that the mean is (‖Σu‖² − n) / (n (n − 1)), exactly.
    """
    means: np.ndarray = ((sums**2).sum(-1) - counts) / (counts * (counts - 1))
    return means


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of the matrix whose rows are the unit vectors, and two numbers that sum them up."""

    effective_rank: float
    """exp H(p), pᵢ = sᵢ² / Σ s²: how many directions the vectors fill, 1 to k."""
    top_share: float
    """p₁, the share of the first direction."""
    values: tuple[float, ...] = field(repr=False)
    """s / s₁, k of them, falling."""


def spectrum(units: np.ndarray) -> Spectrum:
    """The singular values of unit vectors f64 [n, d], divided by the largest.

    Gao et al. 2021 (arXiv 2104.08821, §5 and appendix F.1); effective rank of Roy and Vetterli 2007 (EUSIPCO), there of
    s, here of s².

    >>> round(spectrum(np.eye(4)).effective_rank, 9), spectrum(np.eye(4)).top_share
    (4.0, 0.25)
    """
    values = np.linalg.svd(units, compute_uv=False)  # f64 [k]
    shares = values**2 / (values**2).sum()  # f64 [k]
    filled = shares[shares > 0]
    return Spectrum(
        effective_rank=float(np.exp(-(filled * np.log(filled)).sum())),
        top_share=float(shares[0]),
        values=tuple((values / values[0]).tolist()),
    )
