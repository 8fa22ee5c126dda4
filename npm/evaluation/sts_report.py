"""The tables of task `sts`: correlations set by set, and how the vectors lie in space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npm.evaluation.metrics import Interval
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.sts_files import PUBLIC_SETS

if TYPE_CHECKING:
    from rich.console import Console

    from npm.evaluation.sts_geometry import Geometry
    from npm.evaluation.tasks.sts import StsResult

BEFORE_AND_AFTER = ("before", "after")


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
    differences = map(_signed, result.differences)
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
    return ["sentence vectors of STS-B", *_columns(result)], rows


def layer_rows(result: StsResult) -> tuple[Row, list[Row]]:
    """Header and rows, a row a layer: mean cosine of two tokens of a sentence, and of any two tokens."""
    geometries = _geometries(result)
    names = [f"{what} {head}".strip() for what in ("sentence", "any two") for head in _heads(result)]
    rows: list[Row] = []
    for number in range(max(len(each.layers) for each in geometries)):
        layers = [each.layers[number] if number < len(each.layers) else None for each in geometries]
        cells = [layer and f"{layer.self_similarity:.3f}" for layer in layers]
        cells += [layer and f"{layer.anisotropy:.3f}" for layer in layers]
        rows.append([str(number) if number else "embeddings", *(cell or "" for cell in cells)])
    return ["layer", *names], rows


def notes(result: StsResult, *, split: str) -> Iterator[str]:
    """What the numbers are, and what is not in them."""
    if len(result.encoders) == 2:
        described = (
            f"{head}: {each.name} ({each.facts['pooler']})"
            for head, each in zip(BEFORE_AND_AFTER, result.encoders, strict=True)
        )
        yield "; ".join(described)
    else:
        yield f"encoder {result.encoders[0].name}, pooler {result.encoders[0].facts['pooler']}"
    if absent := [each.name for each in PUBLIC_SETS if each.name not in {pairs.name for pairs in result.sets}]:
        yield f"left out, because data_dir holds no {split} part of them: {', '.join(absent)}"
    for pairs in result.sets:
        published = next(each for each in PUBLIC_SETS if each.name == pairs.name).test_pairs
        if split == "test" and len(pairs) != published:
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


def print_sts(result: StsResult, console: Console, *, split: str) -> None:
    """The report of task `sts`."""
    title = "cosine against gold score, over all pairs of a set"
    console.print(terminal_table(*set_rows(result), title=title))
    if geometries := _geometries(result):
        console.print(terminal_table(*geometry_rows(result)))
        if any(each.layers for each in geometries):
            title = "mean cosine of two tokens: of the same sentence, and of any"
            console.print(terminal_table(*layer_rows(result), title=title))
    for note in notes(result, split=split):
        console.print(f"note: {note}", markup=False)


def _geometries(result: StsResult) -> list[Geometry]:
    return [each.geometry for each in result.encoders if each.geometry is not None]


def _heads(result: StsResult) -> tuple[str, ...]:
    return BEFORE_AND_AFTER if len(result.encoders) == 2 else ("",)


def _columns(result: StsResult) -> tuple[str, ...]:
    return BEFORE_AND_AFTER if len(result.encoders) == 2 else (result.encoders[0].name,)


def _signed(interval: Interval) -> str:
    mean, low, high = (f"{100 * value:+.1f}" for value in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"
