"""Task `sts`: does the cosine of two sentence vectors rank pairs as people do, and how do the vectors lie in space?

One encoder, or two of them beside each other (before and after training) on the same pairs. Protocol of Gao et al. 2021
(SimCSE, arXiv 2104.08821, §6.1 and appendix B): no regressor, Spearman's correlation, all subsets of a set together.

Shapes: e encoders, n pairs, d dimensions, r resamples, s sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.types import Progress, silent
from npm.evaluation.metrics import Interval
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.results import CheckRecord, any_record, model_facts, write_results
from npm.evaluation.settings import PoolerPost, SampleSettings, StsSettings
from npm.evaluation.sts.correlation import SentencePairs, SentenceVectors, pair_cosines, resampled_spearman, spearman
from npm.evaluation.sts.data import PUBLIC_SETS
from npm.evaluation.sts.geometry import Geometry, geometry_facts, measure_geometry, whitened
from npm.models.sentences import SentenceEncoder
from npm.models.settings import PoolerKind, Precision

if TYPE_CHECKING:
    from rich.console import Console


TASK = "sts"
BEFORE_AND_AFTER = ("before", "after")
CONFIDENCE = 0.95


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

    split: str
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
            "sets": [
                {
                    "name": pairs.name,
                    "split": pairs.split,
                    "pair_count": len(pairs),
                    "without_gold": pairs.without_gold,
                    "subsets": dict(zip(pairs.subsets, pairs.subset_sizes, strict=True)),
                }
                for pairs in self.sets
            ],
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

    def show(self, console: Console) -> None:
        """Print the tables and what is to be known about them."""
        title = "cosine against gold score, over all pairs of a set"
        console.print(terminal_table(*set_rows(self), title=title))
        if geometries := _geometries(self):
            console.print(terminal_table(*geometry_rows(self)))
            if any(each.layers for each in geometries):
                title = "mean cosine of two tokens: of the same sentence, and of any"
                console.print(terminal_table(*layer_rows(self), title=title))
        for note in notes(self):
            console.print(f"note: {note}", markup=False)


def sentence_vectors(
    place: str,
    *,
    pooler: PoolerKind | None,
    post: PoolerPost = PoolerPost.none,
    device: str = "auto",
    dtype: Precision = Precision.float32,
) -> SentenceVectors:
    """The sentence encoder at `place`; `pooler` None takes the one it was saved with. Raises EncoderError."""
    loaded = SentenceEncoder.load(place, pooler=pooler, device=device, dtype=dtype)
    encoder = loaded.encoder
    pooled = {"pooler": loaded.pooler.kind_after_training.value, "dtype": encoder.dtype_name}
    if post is PoolerPost.none:
        return SentenceVectors(encoder.name, loaded.encode, {**model_facts(encoder), **pooled}, encoder)
    facts = {**model_facts(encoder), **pooled, "pooler_post": post.value}
    return SentenceVectors(encoder.name, lambda sentences: whitened(loaded.encode(sentences)), facts, encoder)


def _pooling(facts: Mapping[str, Any]) -> str:
    """How sentences became vectors, for people."""
    return ", ".join(facts[key] for key in ("pooler", "pooler_post") if key in facts)


def evaluate_sts(
    encoders: Sequence[SentenceVectors],
    sets: Sequence[SentencePairs],
    settings: StsSettings,
    sample: SampleSettings | None = None,
    *,
    geometry_pairs: Sequence[SentencePairs] = (),
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> StsResult:
    """Score one encoder, or two (before, after), on `sets`, and measure the geometry on `geometry_pairs` of STS-B.

    Raises EncoderError for vectors without a direction, CorpusError if no geometry pair means the same.
    """
    sample = sample if sample is not None else SampleSettings()
    assert 1 <= len(encoders) <= 2 and sets, f"{len(encoders)} encoders and {len(sets)} sets"
    record = _record(encoders, (*sets, *geometry_pairs), settings, sample)
    check_record(record)
    steps = len(sets) + bool(geometry_pairs)
    cosines: list[list[np.ndarray]] = []  # [e][s] f64 [n]
    geometries: list[Geometry | None] = []
    for place, each in enumerate(encoders):
        cosines.append([])
        for number, pairs in enumerate(sets, start=1):
            cosines[-1].append(pair_cosines(each.encode, pairs))
            progress("sets", place * steps + number, len(encoders) * steps)
        geometries.append(
            measure_geometry(each, geometry_pairs, settings.geometry, seed=sample.seed) if geometry_pairs else None
        )
        progress("sets", (place + 1) * steps, len(encoders) * steps)
    by_set = tuple(np.stack([own[number] for own in cosines]) for number in range(len(sets)))  # f64 [e, n] each
    exact, resampled = _correlations(by_set, sets, sample)
    intervals = [_intervals(exact[place], resampled[:, place]) for place in range(len(encoders))]
    return StsResult(
        split=sample.split.value,
        sets=tuple(sets),
        cosines=by_set,
        encoders=tuple(
            EncoderScores(
                name=each.name,
                facts=each.facts,
                sets=tuple(map(_set_score, sets, cosines[place], intervals[place])),
                average=intervals[place][-1] if len(sets) > 1 else None,
                geometry=geometries[place],
            )
            for place, each in enumerate(encoders)
        ),
        differences=_intervals(exact[1] - exact[0], resampled[:, 1] - resampled[:, 0]) if len(encoders) == 2 else (),
        geometry_facts=geometry_facts(geometry_pairs),
        record=record,
    )


def _record(
    encoders: Sequence[SentenceVectors], sets: Sequence[SentencePairs], settings: StsSettings, sample: SampleSettings
) -> dict[str, Any]:
    """What the numbers depend on; `sets` with those of the geometry."""
    return {
        "task": TASK,
        "settings": {
            "seed": sample.seed,
            "resamples": sample.resamples,
            "geometry": {
                "pairs": settings.geometry.pairs.value,
                "layer_sentences": settings.geometry.layer_sentences,
            },
        },
        "encoders": [dict(each.facts) for each in encoders],
        "data": {f"{pairs.name}-{pairs.split}": pairs.digest for pairs in sets},
    }


def _correlations(
    by_set: Sequence[np.ndarray], sets: Sequence[SentencePairs], sample: SampleSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Spearman's correlations of all encoders on all sets, f64 [e, s], and on resampled pairs, f64 [r, e, s].

    Of several sets the last column is their average.
    """
    rng = np.random.default_rng(sample.seed)
    exact = np.stack(
        [[spearman(own, pairs.gold) for own in cosines] for cosines, pairs in zip(by_set, sets, strict=True)], axis=1
    )  # f64 [e, s]
    resampled = np.stack(
        [
            resampled_spearman(cosines, pairs.gold, rng, resamples=sample.resamples)
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


def _set_score(pairs: SentencePairs, cosines: np.ndarray, interval: Interval) -> SetScore:
    inside = [pairs.subset_numbers == number for number in range(len(pairs.subsets))]  # bool [n] each
    by_subset = {
        name: spearman(cosines[each], pairs.gold[each]) for name, each in zip(pairs.subsets, inside, strict=True)
    }
    values = list(by_subset.values())
    return SetScore(
        spearman=interval,
        subset_spearman=by_subset,
        subset_mean=float(np.mean(values)) if values else None,
        subset_weighted_mean=float(np.average(values, weights=pairs.subset_sizes)) if values else None,
    )


def set_rows(result: StsResult) -> tuple[Row, list[Row]]:
    """Header and rows, a row a set and one for their average: Spearman × 100, of two encoders with their difference."""
    names = [f"{pairs.name} {pairs.split}" for pairs in result.sets]
    counts = [str(len(pairs)) for pairs in result.sets]
    columns = [[score.spearman for score in each.sets] for each in result.encoders]
    if len(result.sets) > 1:
        names.append(f"average of {len(result.sets)}")
        counts.append("")
        for column, each in zip(columns, result.encoders, strict=True):
            assert each.average is not None, "the average of several sets"
            column.append(each.average)
    if len(columns) == 1:
        header = ["set", "pairs", "Spearman × 100 [95 %]"]
        return header, [[*row] for row in zip(names, counts, map(percent, columns[0]), strict=True)]
    header = ["set", "pairs", *BEFORE_AND_AFTER, "after − before [95 %]"]
    before, after = ([f"{100 * each.mean:.1f}" for each in column] for column in columns)
    differences = (percent(each, sign="+") for each in result.differences)
    return header, [[*row] for row in zip(names, counts, before, after, differences, strict=True)]


def geometry_rows(result: StsResult) -> tuple[Row, list[Row]]:
    """Header and rows, a row a measure; the arrow says which way is better, where one is."""
    measures = {
        "alignment ↓": lambda each: f"{each.alignment:.3f}",
        "uniformity ↓": lambda each: f"{each.uniformity:.3f}",
        "anisotropy (mean cosine) ↓": lambda each: f"{each.anisotropy:.3f}",
        "effective rank of the spectrum": lambda each: f"{each.spectrum.effective_rank:.1f}",
        "share of the top direction, %": lambda each: f"{100 * each.spectrum.top_share:.1f}",
    }
    geometries = _geometries(result)
    rows: list[Row] = [[name, *(measure(each) for each in geometries)] for name, measure in measures.items()]
    names = BEFORE_AND_AFTER if len(geometries) == 2 else (result.encoders[0].name,)
    return ["sentence vectors of STS-B", *names], rows


def layer_rows(result: StsResult) -> tuple[Row, list[Row]]:
    """Header and rows, a row a layer: mean cosine of two tokens of a sentence, and of any two tokens."""
    geometries = _geometries(result)
    heads = BEFORE_AND_AFTER if len(geometries) == 2 else ("",)
    names = [f"{what} {head}".strip() for what in ("sentence", "any two") for head in heads]
    rows: list[Row] = []
    for number in range(max(len(each.layers) for each in geometries)):
        layers = [each.layers[number] if number < len(each.layers) else None for each in geometries]
        cells = [layer and f"{layer.self_similarity:.3f}" for layer in layers]
        cells += [layer and f"{layer.anisotropy:.3f}" for layer in layers]
        rows.append([str(number) if number else "embeddings", *(cell or "" for cell in cells)])
    return ["layer", *names], rows


def notes(result: StsResult) -> Iterator[str]:
    """What the numbers are, and what is not in them."""
    if len(result.encoders) == 2:
        described = (
            f"{head}: {each.name} ({_pooling(each.facts)})"
            for head, each in zip(BEFORE_AND_AFTER, result.encoders, strict=True)
        )
        yield "; ".join(described)
    else:
        yield f"encoder {result.encoders[0].name}, pooler {_pooling(result.encoders[0].facts)}"
    if absent := [each.name for each in PUBLIC_SETS if each.name not in {pairs.name for pairs in result.sets}]:
        yield f"left out, because data_dir holds no {result.split} part of them: {', '.join(absent)}"
    for pairs in result.sets:
        published = next(each for each in PUBLIC_SETS if each.name == pairs.name).test_pairs
        if result.split == "test" and len(pairs) != published:
            yield (
                f"{pairs.name} has {len(pairs):,} pairs here, and {published:,} in published results: "
                "the two are not to be compared"
            )
        if pairs.without_gold:
            yield f"{pairs.without_gold:,} pairs of {pairs.name} have no gold score and are left out"
    if result.geometry_facts:
        facts = result.geometry_facts
        yield (
            f"geometry: {facts['sentence_count']:,} sentences of STS-B {', '.join(facts['splits'])}; "
            f"alignment: {facts['aligned_pair_count']:,} pairs with a gold score above 4"
        )
    else:
        yield "no geometry was measured"


def _geometries(result: StsResult) -> list[Geometry]:
    return [each.geometry for each in result.encoders if each.geometry is not None]
