"""How the vectors of the sentences of STS-B lie in space.

Shapes: n pairs, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.corpus.rows import TaskDataError
from npm.evaluation.geometry import GeometrySettings, Spectrum, alignment, mean_cosine, spectrum, uniformity
from npm.evaluation.sts import SentencePairs, SentenceVectors, encode_distinct

if TYPE_CHECKING:
    from npm.evaluation.geometry_layers import LayerGeometry

SAME_MEANING = 4.0
"""Pairs with a higher gold score mean the same, for alignment."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the sentence vectors of one encoder lie in space; see npm/evaluation/geometry.py."""

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

    `seed` draws the sentences whose tokens are measured. Raises TaskDataError if no pair means the same.
    """
    first = [sentence for pairs in sets for sentence in pairs.first]
    second = [sentence for pairs in sets for sentence in pairs.second]
    same = np.concatenate([pairs.gold for pairs in sets]) > SAME_MEANING  # bool [n]
    if not same.any():
        highest = max(float(pairs.gold.max()) for pairs in sets)
        raise TaskDataError(
            "no pair of sentences means the same",
            expected=f"gold scores from 0 to 5, some above {SAME_MEANING:g}",
            got=f"scores up to {highest:g}",
            where=", ".join(f"{pairs.name} {pairs.split}" for pairs in sets),
            fix="multiply scores from 0 to 1 by 5, or leave geometry out with geometry.pairs=none",
        )
    numbers, units = encode_distinct(vectors.encode, [*first, *second])  # i64 [2n], f64 [distinct, d]
    firsts, seconds = numbers[: len(first)][same], numbers[len(first) :][same]  # i64 [pairs that mean the same] each
    return Geometry(
        alignment=alignment(units[firsts], units[seconds]),
        uniformity=uniformity(units),
        anisotropy=mean_cosine(units),
        spectrum=spectrum(units),
        layers=_layers(vectors, list(dict.fromkeys([*first, *second])), settings.layer_sentences, seed),
    )


def _layers(
    vectors: SentenceVectors, sentences: Sequence[str], most_sentences: int, seed: int
) -> tuple[LayerGeometry, ...]:
    wanted = min(most_sentences, len(sentences))
    if not wanted or vectors.encoder is None:
        return ()
    from npm.evaluation.geometry_layers import layer_geometry  # torch, which the rest here need not wait for

    drawn = np.random.default_rng(seed).choice(len(sentences), size=wanted, replace=False)  # i64 [wanted]
    return layer_geometry(vectors.encoder, [sentences[place] for place in drawn])


def geometry_facts(sets: Sequence[SentencePairs]) -> dict[str, Any]:
    """What `measure_geometry` measures on; nothing of no sets."""
    if not sets:
        return {}
    return {
        "splits": [pairs.split for pairs in sets],
        "sentence_count": len({sentence for pairs in sets for sentence in (*pairs.first, *pairs.second)}),
        "aligned_pair_count": sum(int((pairs.gold > SAME_MEANING).sum()) for pairs in sets),
    }
