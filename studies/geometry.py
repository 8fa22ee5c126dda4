"""Geometry of sentence and token vectors: alignment, uniformity, anisotropy, spectrum, layers; verb `geometry`.

All are of directions: u = h / ‖h‖.

Shapes: n vectors, m pairs of the same meaning, d dimensions, k = min(n, d), B sentences, L padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from npm.core.display import Table
from npm.core.errors import CorpusError
from npm.evaluation.sts import SentencePairs, SentenceVectors, encode_distinct, read_set, sentence_vectors
from npm.models.encoder import Encoder
from npm.models.stored import evaluating

ROWS_AT_ONCE = 512
"""Rows whose distances to all others are in memory at once."""
SENTENCES_PER_PASS = 32
SAME_MEANING = 4.0
"""A gold score above it: the two sentences mean the same."""
LAYER_SENTENCES = 1000
"""Whose tokens are measured layer by layer."""


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """E ‖u − u⁺‖² of unit vectors f64 [m, d] of pairs of the same meaning: 0 to 4, 2 for unrelated directions.

    Wang and Isola 2020 (arXiv 2005.10242, §4.1, α = 2), on STS-B pairs with a gold score above 4 as in Gao et al. 2021
    (arXiv 2104.08821, §2.3).

    >>> alignment(np.eye(2), np.eye(2)), alignment(np.eye(2), np.eye(2)[::-1])
    (0.0, 2.0)
    """
    return float(((first - second) ** 2).sum(1).mean())


def uniformity(units: np.ndarray) -> float:
    """log E exp(−2 ‖u − v‖²) over all pairs of different rows of unit vectors f64 [n, d], n ≥ 2.

    Wang and Isola 2020 (§4.2, t = 2): 0 where all point one way, about −4 for random directions.

    >>> uniformity(np.eye(3)), uniformity(np.ones((3, 1)))
    (-4.0, 0.0)
    """
    count, total = len(units), 0.0
    for start in range(0, count, ROWS_AT_ONCE):
        cosines = units[start : start + ROWS_AT_ONCE] @ units[start:].T  # f64 [rows, n - start]
        # ‖u − v‖² = 2 − 2 cos; each pair once, none with itself
        total += float(np.triu(np.exp(-4 * (1 - cosines)), k=1).sum())
    return float(np.log(total / (count * (count - 1) / 2)))


def mean_cosine(sums: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    """Mean cosine [...] of two different ones of `counts` [...] ≥ 2 unit vectors with the sums f64 [..., d].

    Σ_{i≠j} uᵢ·uⱼ = ‖Σu‖² − n. Over all vectors: anisotropy (Ethayarajh 2019, arXiv 1909.00512, §4.1), there of a
    sample; over the tokens of a sentence: self-similarity (Su et al. 2022, arXiv 2111.04198, §4.1).

    >>> mean_cosine(np.ones(2), 2), mean_cosine(np.array([3.0, 0.0]), 3)
    (np.float64(0.0), np.float64(1.0))
    """
    means: np.ndarray = ((sums**2).sum(-1) - counts) / (counts * (counts - 1))
    return means


def spectrum(units: np.ndarray) -> dict[str, Any]:
    """Singular values s of unit vectors f64 [n, d] (Gao et al. 2021, §5 and appendix F.1).

    `effective_rank`: exp H(p), pᵢ = sᵢ² / Σ s² (Roy and Vetterli 2007, EUSIPCO, there of s), 1 to k; `top_share`: p₁;
    `values`: s / s₁, k of them, falling.

    >>> round(spectrum(np.eye(4))["effective_rank"], 9), spectrum(np.eye(4))["top_share"]
    (4.0, 0.25)
    """
    values = np.linalg.svd(units, compute_uv=False)  # f64 [k]
    shares = values**2 / (values**2).sum()  # f64 [k]
    filled = shares[shares > 0]
    rank = np.exp(-(filled * np.log(filled)).sum())
    return {"effective_rank": float(rank), "top_share": float(shares[0]), "values": (values / values[0]).tolist()}


def group_scores(vectors: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How well vectors f64 [n, d] show their groups i64 [n], for the m of them that share a group with another one.

    bool [m]: the nearest centroid is that of the own group, taken without the vector. f64 [m]: silhouette with the
    distance 1 − cosine (Rousseeuw 1987). There are two groups at least.

    >>> group_scores(np.array([[1.0, 0], [1, 0], [0, 1]]), np.array([0, 0, 1]))
    (array([ True,  True]), array([1., 1.]))
    """
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # f64 [n, d]
    distances = 1 - units @ units.T  # f64 [n, n]
    right, silhouettes = [], []
    for number, own in enumerate(groups):
        others = np.arange(len(groups)) != number  # bool [n]
        members = {group: others & (groups == group) for group in np.unique(groups)}
        if not members[own].any():
            continue
        gaps = {group: ((vectors[rows].mean(0) - vectors[number]) ** 2).sum() for group, rows in members.items()}
        right.append(min(gaps, key=gaps.__getitem__) == own)
        means = {group: distances[number, rows].mean() for group, rows in members.items()}
        nearest = min(mean for group, mean in means.items() if group != own)
        silhouettes.append((nearest - means[own]) / max(nearest, means[own]))
    return np.array(right), np.array(silhouettes)


@torch.inference_mode()
def layer_geometry(encoder: Encoder, sentences: Sequence[str]) -> list[dict[str, float]]:
    """Mean cosine of two different tokens, special ones included, after the embeddings and each layer.

    `anisotropy`: of the same sentence or not; `self_similarity`: of the same sentence, the mean over sentences. At
    least one sentence, truncated if long.
    """
    sums, counts = [], []
    with evaluating(encoder.model):
        for start in range(0, len(sentences), SENTENCES_PER_PASS):
            given = encoder.tokenizer(
                list(sentences[start : start + SENTENCES_PER_PASS]),
                padding=True,
                truncation=True,
                max_length=encoder.max_input_tokens,
                split_special_tokens=True,
                return_tensors="pt",
            ).to(encoder.device)
            mask = given["attention_mask"]  # i64 [B, L]
            output = encoder.model(input_ids=given["input_ids"], attention_mask=mask, output_hidden_states=True)
            units = (torch.nn.functional.normalize(each.double(), dim=-1) for each in output.hidden_states)
            sums.append(torch.stack([(each * mask.unsqueeze(-1)).sum(1) for each in units]))  # f64 [layers, B, d]
            counts.append(mask.sum(1))  # i64 [B]
    of_sentences, tokens = torch.cat(sums, 1).cpu().numpy(), torch.cat(counts).cpu().numpy()
    anisotropies = mean_cosine(of_sentences.sum(1), tokens.sum())  # f64 [layers]
    similarities = mean_cosine(of_sentences, tokens).mean(1)  # f64 [layers]
    pairs = zip(anisotropies.tolist(), similarities.tolist(), strict=True)
    return [{"layer": layer, "anisotropy": a, "self_similarity": s} for layer, (a, s) in enumerate(pairs)]


def measured_encoder(place: str, data_dir: str, splits: Sequence[str], *, seed: int, **chosen: Any) -> dict[str, Any]:
    """The name and geometry of an encoder; `chosen` as `sentence_vectors` has it. Raises CorpusError without STS-B."""
    sets = [pairs for split in splits if (pairs := read_set("STS-B", data_dir, split=split)) is not None]
    if not sets:
        raise CorpusError(f"data_dir={data_dir} has no stsb-{splits[-1]}.jsonl")
    vectors = sentence_vectors(place, **chosen)
    return {"name": vectors.name, **measure_geometry(vectors, sets, seed=seed)}


def measure_geometry(vectors: SentenceVectors, sets: Sequence[SentencePairs], *, seed: int) -> dict[str, Any]:
    """Geometry over the distinct sentences of `sets`, alignment over their pairs of the same meaning.

    `seed` draws the sentences whose tokens are measured. Raises CorpusError if no pair has the same meaning.
    """
    first = [sentence for pairs in sets for sentence in pairs.first]
    second = [sentence for pairs in sets for sentence in pairs.second]
    gold = np.concatenate([pairs.gold for pairs in sets])  # f64 [n]
    if not (same := gold > SAME_MEANING).any():
        raise CorpusError(
            f"STS-B: some gold scores must be above {SAME_MEANING:g}, got scores up to {gold.max():g}: multiply scores"
            " from 0 to 1 by 5"
        )
    numbers, units = encode_distinct(vectors.encode, [*first, *second])  # i64 [2n], f64 [distinct, d]
    layers: list[dict[str, float]] = []
    if (wanted := min(LAYER_SENTENCES, len(units))) and vectors.encoder is not None:
        sentences = list(dict.fromkeys([*first, *second]))
        drawn = np.random.default_rng(seed).choice(len(sentences), size=wanted, replace=False)  # i64 [wanted]
        layers = layer_geometry(vectors.encoder, [sentences[place] for place in drawn])
    return {
        "alignment": alignment(units[numbers[: len(first)][same]], units[numbers[len(first) :][same]]),
        "uniformity": uniformity(units),
        "anisotropy": float(mean_cosine(units.sum(0), len(units))),
        "spectrum": spectrum(units),
        "layers": layers,
    }


def geometry_tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """The numbers of `measured_encoder`: of sentences, and of tokens by layer."""
    rows = [(row, shown(found)) for row, shown in ROWS.items()]
    yield Table("", ["sentence vectors of STS-B", found["name"]], rows)
    header = ("layer", "the same sentence", "any sentences")
    layers = [
        (str(number or "embeddings"), f"{each['self_similarity']:.3f}", f"{each['anisotropy']:.3f}")
        for number, each in enumerate(found["layers"])
    ]
    yield Table("mean cosine of two tokens of", header, layers)


ROWS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "alignment ↓": lambda each: f"{each['alignment']:.3f}",
    "uniformity ↓": lambda each: f"{each['uniformity']:.3f}",
    "anisotropy (mean cosine) ↓": lambda each: f"{each['anisotropy']:.3f}",
    "effective rank of the spectrum": lambda each: f"{each['spectrum']['effective_rank']:.1f}",
    "share of the top direction, %": lambda each: f"{100 * each['spectrum']['top_share']:.1f}",
}
