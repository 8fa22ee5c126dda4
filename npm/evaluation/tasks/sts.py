"""Task `sts`: does the cosine of two sentence vectors rank pairs as people do, and how do the vectors lie in space?

One encoder, or two of them beside each other (before and after training) on the same pairs. Protocol of Gao et al. 2021
(SimCSE, arXiv 2104.08821, §6.1 and appendix B): no regressor, Spearman's correlation, all subsets of a set together.

Shapes: e encoders, n pairs, d dimensions, r resamples, s sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npm.evaluation.geometry import GeometrySettings
from npm.evaluation.metrics import Interval
from npm.evaluation.results import Progress, write_results
from npm.evaluation.sts import SentencePairs, SentenceVectors, pair_cosines, resampled_spearman, spearman
from npm.evaluation.sts_geometry import Geometry, geometry_facts, measure_geometry
from npm.models.encoder import ComputeDtype
from npm.models.poolers import PoolerKind

TASK = "sts"
CONFIDENCE = 0.95


@dataclass(kw_only=True, slots=True)
class StsSettings:
    """How the pairs are scored."""

    seed: int = 0
    """Of the bootstrap, and of the sentences that are measured layer by layer."""
    resamples: int = 10_000
    """Of the bootstrap over pairs, for 95 % confidence intervals."""
    geometry: GeometrySettings = field(default_factory=GeometrySettings)


@dataclass(frozen=True, slots=True)
class SetScore:
    """What one encoder scores on one set."""

    spearman: Interval
    """Over all pairs, subsets together."""
    subset_spearman: Mapping[str, float]
    """Of each subset alone, where the files name them."""
    subset_mean: float | None
    """Mean over subsets; other papers report it, and it is not `spearman`."""
    subset_weighted_mean: float | None
    """The same, weighted by the subsets' pairs."""


@dataclass(frozen=True, slots=True)
class EncoderScores:
    """All that was measured of one encoder."""

    name: str
    facts: Mapping[str, Any]
    sets: tuple[SetScore, ...]
    average: Interval | None
    """Plain mean over the sets; None for a single set."""
    geometry: Geometry | None


@dataclass(frozen=True, slots=True)
class StsResult:
    """Scores of one encoder, or of two: before and after."""

    sets: tuple[SentencePairs, ...]
    cosines: tuple[np.ndarray, ...]
    """f64 [e, n] for each set."""
    encoders: tuple[EncoderScores, ...]
    differences: tuple[Interval, ...]
    """Of two encoders: Spearman after − before for each set, and of the average if there is one; paired bootstrap."""
    geometry_facts: Mapping[str, Any]
    """Which pairs the geometry was measured on; empty without it."""
    record: Mapping[str, Any]

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {
            **self.record,
            "sets": [_set_facts(pairs) for pairs in self.sets],
            "geometry": dict(self.geometry_facts),
            "encoders": [
                {**asdict(each), "sets": {p.name: asdict(s) for p, s in zip(self.sets, each.sets, strict=True)}}
                for each in self.encoders
            ],
            "differences": [asdict(each) for each in self.differences],
        }

    def predictions(self) -> Iterator[dict[str, Any]]:
        """One line a pair, as in predictions.jsonl; `cosine_before` where there are two encoders."""
        for pairs, cosines in zip(self.sets, self.cosines, strict=True):
            for number in range(len(pairs)):
                subset = pairs.subsets[pairs.subset_numbers[number]] if pairs.subsets else ""
                before = {"cosine_before": float(cosines[0, number])} if len(cosines) > 1 else {}
                yield {
                    "set": pairs.name,
                    "subset": subset,
                    "number": number,
                    "sentence1": pairs.first[number],
                    "sentence2": pairs.second[number],
                    "gold": float(pairs.gold[number]),
                    "cosine": float(cosines[-1, number]),
                    **before,
                }

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line a pair, and metrics.json to the folder `out`; see `write_results`."""
        write_results(out, record=self.record, predictions=self.predictions(), metrics=self.metrics())


def sentence_vectors(
    place: str, *, pooler: PoolerKind | None, device: str = "auto", dtype: ComputeDtype = ComputeDtype.float32
) -> SentenceVectors:
    """The sentence encoder at `place`; `pooler` None takes the one it was saved with. Raises EncoderError."""
    from npm.models.sentences import SentenceEncoder

    loaded = SentenceEncoder.load(place, pooler=pooler, device=device, dtype=dtype)
    encoder = loaded.encoder
    facts = {
        "name": encoder.name,
        "fingerprint": encoder.fingerprint,
        "pooler": loaded.pooler.kind_after_training.value,
        "dtype": str(next(encoder.model.parameters()).dtype).removeprefix("torch."),
    }
    return SentenceVectors(encoder.name, loaded.encode, facts, encoder)


def evaluate_sts(
    encoders: Sequence[SentenceVectors],
    sets: Sequence[SentencePairs],
    settings: StsSettings | None = None,
    *,
    geometry_pairs: Sequence[SentencePairs] = (),
    progress: Progress | None = None,
) -> StsResult:
    """Score one encoder, or two (before, after), on `sets`, and measure the geometry on `geometry_pairs` of STS-B.

    Raises EncoderError for vectors without a direction, TaskDataError if no geometry pair means the same.
    """
    settings = settings if settings is not None else StsSettings()
    assert 1 <= len(encoders) <= 2 and sets, f"{len(encoders)} encoders and {len(sets)} sets"
    steps = len(sets) + bool(geometry_pairs)
    cosines: list[list[np.ndarray]] = []  # [e][s] f64 [n]
    geometries: list[Geometry | None] = []
    for place, each in enumerate(encoders):
        cosines.append([])
        for number, pairs in enumerate(sets, start=1):
            cosines[-1].append(pair_cosines(each.encode, pairs))
            _tell(progress, place * steps + number, len(encoders) * steps)
        geometries.append(
            measure_geometry(each, geometry_pairs, settings.geometry, seed=settings.seed) if geometry_pairs else None
        )
        _tell(progress, (place + 1) * steps, len(encoders) * steps)
    by_set = tuple(np.stack([own[number] for own in cosines]) for number in range(len(sets)))  # f64 [e, n] each
    exact, resampled = _correlations(by_set, sets, settings)
    return StsResult(
        sets=tuple(sets),
        cosines=by_set,
        encoders=tuple(
            _encoder_scores(
                each, sets, cosines[place], _intervals(exact[place], resampled[:, place]), geometries[place]
            )
            for place, each in enumerate(encoders)
        ),
        differences=_intervals(exact[1] - exact[0], resampled[:, 1] - resampled[:, 0]) if len(encoders) == 2 else (),
        geometry_facts=geometry_facts(geometry_pairs),
        record={
            "task": TASK,
            "settings": {
                "seed": settings.seed,
                "resamples": settings.resamples,
                "geometry": {
                    "pairs": settings.geometry.pairs.value,
                    "layer_sentences": settings.geometry.layer_sentences,
                },
            },
            "encoders": [dict(each.facts) for each in encoders],
            "data": {f"{pairs.name}-{pairs.split}": pairs.digest for pairs in (*sets, *geometry_pairs)},
        },
    )


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _correlations(
    by_set: Sequence[np.ndarray], sets: Sequence[SentencePairs], settings: StsSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Spearman's correlations of all encoders on all sets, f64 [e, s], and on resampled pairs, f64 [r, e, s].

    Of several sets the last column is their average.
    """
    rng = np.random.default_rng(settings.seed)
    exact = np.stack(
        [[spearman(own, pairs.gold) for own in cosines] for cosines, pairs in zip(by_set, sets, strict=True)], axis=1
    )  # f64 [e, s]
    resampled = np.stack(
        [
            resampled_spearman(cosines, pairs.gold, rng, resamples=settings.resamples)
            for cosines, pairs in zip(by_set, sets, strict=True)
        ],
        axis=2,
    )  # f64 [r, e, s]
    if len(sets) > 1:
        exact = np.append(exact, exact.mean(1, keepdims=True), axis=1)  # f64 [e, s + 1]
        resampled = np.append(resampled, resampled.mean(2, keepdims=True), axis=2)  # f64 [r, e, s + 1]
    return exact, resampled


def _intervals(exact: np.ndarray, resampled: np.ndarray) -> tuple[Interval, ...]:
    """Percentile intervals of the columns of `exact` f64 [c], `resampled` f64 [r, c]."""
    lows, highs = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)  # f64 [c] each
    return tuple(
        Interval(float(mean), float(low), float(high)) for mean, low, high in zip(exact, lows, highs, strict=True)
    )


def _encoder_scores(
    vectors: SentenceVectors,
    sets: Sequence[SentencePairs],
    cosines: Sequence[np.ndarray],
    intervals: Sequence[Interval],
    geometry: Geometry | None,
) -> EncoderScores:
    """From cosines f64 [n] and an interval for each set, and one more interval for the average of several."""
    return EncoderScores(
        name=vectors.name,
        facts=vectors.facts,
        sets=tuple(
            _set_score(pairs, own, interval)
            for pairs, own, interval in zip(sets, cosines, intervals[: len(sets)], strict=True)
        ),
        average=intervals[-1] if len(sets) > 1 else None,
        geometry=geometry,
    )


def _set_score(pairs: SentencePairs, cosines: np.ndarray, interval: Interval) -> SetScore:
    inside = [pairs.subset_numbers == number for number in range(len(pairs.subsets))]  # bool [n] each
    counts = [int(each.sum()) for each in inside]
    by_subset = {
        name: spearman(cosines[each], pairs.gold[each]) for name, each in zip(pairs.subsets, inside, strict=True)
    }
    return SetScore(
        spearman=interval,
        subset_spearman=by_subset,
        subset_mean=float(np.mean(list(by_subset.values()))) if by_subset else None,
        subset_weighted_mean=float(np.average(list(by_subset.values()), weights=counts)) if by_subset else None,
    )


def _set_facts(pairs: SentencePairs) -> dict[str, Any]:
    subsets = {name: int((pairs.subset_numbers == number).sum()) for number, name in enumerate(pairs.subsets)}
    return {
        "name": pairs.name,
        "split": pairs.split,
        "pair_count": len(pairs),
        "without_gold": pairs.without_gold,
        "subsets": subsets,
    }
