"""How sentence and token vectors lie in space: alignment, uniformity, anisotropy, spectrum, self-similarity.

All of them are of directions: u = h / ‖h‖.

Shapes: n vectors or pairs, m pairs that mean the same, d dimensions, k = min(n, d) singular values, B sentences,
L padded length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.settings import GeometrySettings
from npm.evaluation.sts.correlation import SentencePairs, SentenceVectors, encode_distinct
from npm.models.encoder import evaluating

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


ROWS_AT_ONCE = 512
"""Rows whose distances to all others are held at once."""
UNIFORMITY_T = 2.0


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


LEAST_VARIANCE = 1e-9
"""Of a direction, as a share of the largest; one with less is left out of whitened vectors."""


def whitened(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, d] shifted and turned to mean 0 and covariance 1, f64 [n, k], in the k directions that they vary in.

    x̃ = (x − μ) U Λ^(−1/2), Σ = U Λ Uᵀ their covariance (Su et al. 2021, arXiv 2103.15316, §3). Raises SettingError for
    so few vectors that all would have one cosine.
    """
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0, dtype=np.float64)  # f64 [n, d]
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))  # f64 [d], [d, d], ascending
    kept = variances > LEAST_VARIANCE * max(variances[-1], 0.0)  # bool [d]
    if len(centred) <= kept.sum() + 1:
        raise SettingError(
            f"sts.pooler_post needs sets of more distinct sentences than the {vectors.shape[1]} dimensions of a vector,"
            f" got {len(centred)}"
        )
    result: np.ndarray = centred @ (directions[:, kept] / np.sqrt(variances[kept]))  # f64 [n, k]
    return result


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


SENTENCES_PER_PASS = 32


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One layer's token vectors; special tokens count like all others."""

    layer: int
    """0: the embeddings."""
    anisotropy: float
    """Mean cosine of two different tokens, of the same sentence or not."""
    self_similarity: float
    """Mean over sentences of the mean cosine of two different tokens of the sentence."""


def layer_geometry(encoder: Encoder, sentences: Sequence[str]) -> tuple[LayerGeometry, ...]:
    """The embeddings and the states behind each layer, over all tokens of `sentences` (at least one).

    Self-similarity 1/(n(n−1)) Σ_{i≠j} cos(hᵢ, hⱼ): Su et al. 2022 (TaCL, arXiv 2111.04198, §4.1); anisotropy of tokens:
    Ethayarajh 2019 (arXiv 1909.00512, §4.1), over all pairs. A sentence is cut to what the encoder takes.
    """
    layer_sums: np.ndarray | float = 0.0  # f64 [layers, d]
    similarity_sums: np.ndarray | float = 0.0  # f64 [layers]
    token_count = 0
    with evaluating(encoder.model):
        for start in range(0, len(sentences), SENTENCES_PER_PASS):
            sums, counts = _token_sums(encoder, sentences[start : start + SENTENCES_PER_PASS])
            layer_sums = layer_sums + sums.sum(1)  # f64 [layers, d]
            similarity_sums = similarity_sums + mean_cosine_of_sum(sums, counts).sum(1)  # f64 [layers]
            token_count += int(counts.sum())
    anisotropies = mean_cosine_of_sum(np.asarray(layer_sums), np.array(token_count))  # f64 [layers]
    similarities = np.asarray(similarity_sums) / len(sentences)  # f64 [layers]
    return tuple(
        LayerGeometry(layer, float(anisotropy), float(similarity))
        for layer, (anisotropy, similarity) in enumerate(zip(anisotropies, similarities, strict=True))
    )


@torch.inference_mode()
def _token_sums(encoder: Encoder, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Sums f64 [layers, B, d] of the unit vectors of each sentence's tokens, and their numbers i64 [B]."""
    given = encoder.tokenizer(
        list(sentences),
        padding=True,
        truncation=True,
        max_length=encoder.max_input_tokens,
        split_special_tokens=True,
        return_tensors="pt",
    ).to(encoder.device)
    output = encoder.model(
        input_ids=given["input_ids"], attention_mask=given["attention_mask"], output_hidden_states=True
    )
    shown = given["attention_mask"].unsqueeze(-1)  # i64 [B, L, 1]
    sums = [
        (torch.nn.functional.normalize(states.double(), dim=-1) * shown).sum(1)  # f64 [B, d]
        for states in output.hidden_states
    ]
    return torch.stack(sums).cpu().numpy(), given["attention_mask"].sum(1).cpu().numpy()


SAME_MEANING = 4.0
"""Pairs with a higher gold score mean the same, for alignment."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the sentence vectors of one encoder lie in space; see npm/evaluation/sts/geometry.py."""

    alignment: float
    uniformity: float
    anisotropy: float
    spectrum: Spectrum
    layers: tuple[LayerGeometry, ...]
    """Token vectors, from the embeddings on; empty where they were not measured."""


def measure_geometry(
    vectors: SentenceVectors, sets: Sequence[SentencePairs], settings: GeometrySettings, *, seed: int
) -> Geometry:
    """Over the distinct sentences of `sets` of STS-B; alignment over their pairs that mean the same.

    `seed` draws the sentences whose tokens are measured. Raises CorpusError if no pair means the same.
    """
    first = [sentence for pairs in sets for sentence in pairs.first]
    second = [sentence for pairs in sets for sentence in pairs.second]
    same = np.concatenate([pairs.gold for pairs in sets]) > SAME_MEANING  # bool [n]
    if not same.any():
        highest = max(float(pairs.gold.max()) for pairs in sets)
        names = ", ".join(f"{pairs.name} {pairs.split}" for pairs in sets)
        raise CorpusError(
            f"{names}: some gold scores must be above {SAME_MEANING:g}, got scores up to {highest:g}: multiply scores"
            " from 0 to 1 by 5, or set sts.geometry.pairs=none"
        )
    numbers, units = encode_distinct(vectors.encode, [*first, *second])  # i64 [2n], f64 [distinct, d]
    firsts, seconds = numbers[: len(first)][same], numbers[len(first) :][same]  # i64 [pairs that mean the same] each
    sentences = list(dict.fromkeys([*first, *second]))
    layers: tuple[LayerGeometry, ...] = ()
    if (wanted := min(settings.layer_sentences, len(sentences))) and vectors.encoder is not None:
        drawn = np.random.default_rng(seed).choice(len(sentences), size=wanted, replace=False)  # i64 [wanted]
        layers = layer_geometry(vectors.encoder, [sentences[place] for place in drawn])
    return Geometry(
        alignment=alignment(units[firsts], units[seconds]),
        uniformity=uniformity(units),
        anisotropy=mean_cosine(units),
        spectrum=spectrum(units),
        layers=layers,
    )


def geometry_facts(sets: Sequence[SentencePairs]) -> dict[str, Any]:
    """What `measure_geometry` measures on; nothing of no sets."""
    if not sets:
        return {}
    return {
        "splits": [pairs.split for pairs in sets],
        "sentence_count": len({sentence for pairs in sets for sentence in (*pairs.first, *pairs.second)}),
        "aligned_pair_count": sum(int((pairs.gold > SAME_MEANING).sum()) for pairs in sets),
    }
