"""Task `parameters`: mean, standard deviation and largest magnitude of the weights, by module and layer.

Beside the encoder stand a newly made model of its config (seed 0) and, if one is named, the encoder it was before.
ModernBERT's one matrix of query, key and value counts as three.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from index.settings import read_record
from npm.core.artifact import check_folder
from npm.core.errors import ArtifactError
from npm.core.figures import (
    NumberTable,
    Picture,
    colour,
    folder_names,
    legend_below,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.types import Progress, silent
from npm.evaluation.report import Row, terminal_table
from npm.evaluation.results import (
    EVALUATION_KIND,
    PREDICTIONS,
    CheckRecord,
    any_record,
    read_predictions,
    write_results,
)
from npm.models.edits.checkpoint import Checkpoint, new_tensors

if TYPE_CHECKING:
    from rich.console import Console


TASK = "parameters"
ENCODER, NEW, BEFORE = "encoder", "new", "before"
FUSED = "query, key, value"
MODULES = {
    r"attention\.self\.query": "query",
    r"attention\.self\.key": "key",
    r"attention\.self\.value": "value",
    r"attn\.Wqkv": FUSED,
    r"attention\.output\.dense|attn\.Wo": "attention output",
    r"attention\.output\.LayerNorm|attn_norm": "attention norm",
    r"intermediate\.dense|mlp\.Wi": "feed-forward in",
    r"output\.dense|mlp\.Wo": "feed-forward out",
    r"output\.LayerNorm|mlp_norm": "feed-forward norm",
}
"""Kinds of modules in a layer, by how the name of a tensor goes on behind the layer's number."""
OTHERS = {
    r".*(word|tok)_embeddings": "word embeddings",
    r".*position_embeddings": "position embeddings",
    r".*token_type_embeddings": "token type embeddings",
    r"embeddings\.(LayerNorm|norm)": "embedding norm",
    r"final_norm": "final norm",
    r".*(LayerNorm|layer_norm|head\.norm)": "head norm",
    r".*dense": "head transform",
    r".*decoder|cls\.predictions|lm_head": "head output",
}
"""The others, by their whole names; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """The numbers of one kind of module in one layer of one model."""

    model: str
    module: str
    layer: int | None
    part: str
    """weight or bias"""
    mean: float
    standard_deviation: float
    largest: float
    """The largest magnitude."""
    count: int


@dataclass(frozen=True, slots=True)
class ParametersResult:
    """All numbers of all models."""

    rows: tuple[ParameterRow, ...]
    record: dict[str, Any]

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line a row, and metrics.json to the folder `out`; see `write_results`."""
        rows = [asdict(row) for row in self.rows]
        means = {row[0]: dict(zip(self.models, row[1:], strict=True)) for row in self._means()}
        metrics = {**self.record, "mean_standard_deviation": means}
        write_results(out, record=self.record, predictions=rows, metrics=metrics)

    @property
    def models(self) -> list[str]:
        """The names of the models, in order."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def _means(self) -> list[tuple[Any, ...]]:
        """By module and part, a standard deviation a model: the mean over the layers, None where it has no such."""
        kinds = dict.fromkeys((row.module, row.part) for row in self.rows)
        found = []
        for kind in kinds:
            own = [
                [row.standard_deviation for row in self.rows if (row.module, row.part, row.model) == (*kind, model)]
                for model in self.models
            ]
            found.append((" ".join(kind), *(float(np.mean(each)) if each else None for each in own)))
        return found

    def show(self, console: Console) -> None:
        """Print the means over the layers."""
        rows = [[row[0], *("–" if each is None else f"{each:.5f}" for each in row[1:])] for row in self._means()]
        title = "standard deviation of the weights, mean over the layers"
        console.print(terminal_table(["module", *self.models], rows, title=title))


def evaluate_parameters(
    name: str, before: str = "", *, check_record: CheckRecord = any_record, progress: Progress = silent
) -> ParametersResult:
    """Measure the encoder that `Encoder.load` finds under `name`, a new one, and the one `before`, if it is named.

    Raises EncoderError for an encoder whose family is not known to `npmlm edit`.
    """
    checkpoint = Checkpoint.read(name)
    earlier = Checkpoint.read(before) if before else None
    named = {ENCODER: checkpoint} | ({BEFORE: earlier} if earlier is not None else {})
    record = {"task": TASK} | {
        key: {"name": each.name, "fingerprint": each.fingerprint, "has_head": each.has_head}
        for key, each in named.items()
    }
    check_record(record)
    tensors = {key: each.tensors for key, each in named.items()}
    tensors[NEW] = new_tensors(checkpoint, seed=0, position=0)[0]
    prefix = checkpoint.family.layers if earlier is None else f"({checkpoint.family.layers}|{earlier.family.layers})"
    rows: list[ParameterRow] = []
    for number, (key, each) in enumerate(tensors.items(), start=1):
        rows += parameter_rows(key, each, layers=prefix)
        progress("models", number, len(tensors))
    return ParametersResult(tuple(rows), record)


def parameter_rows(model: str, tensors: dict[str, torch.Tensor], *, layers: str) -> list[ParameterRow]:
    """A row for each kind of module, layer and part; `layers` is what stands before the number of a layer.

    Tensors of one kind in one place, such as the two vectors of an output bias, count together.
    """
    values: dict[tuple[str, int | None, str], list[np.ndarray]] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(rf"{layers}(?P<layer>\d+)\.(?P<rest>.+)\.(?P<part>weight|bias)", name)
        stem, _, part = name.rpartition(".")
        kinds = OTHERS if found is None else MODULES
        rest = stem if found is None else found["rest"]
        module = next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, rest)), None)
        assert module is not None, f"no kind of module for {name}"
        numbers = tensor.double().numpy()  # f64 [...]
        pieces = {module: numbers}
        if module == FUSED:
            pieces = dict(zip(FUSED.split(", "), np.split(numbers, 3), strict=True))  # f64 [d, d] each
        for kind, piece in pieces.items():
            key = (kind, None if found is None else int(found["layer"]), part)
            values.setdefault(key, []).append(piece.ravel())
    rows = []
    for (kind, layer, part), parts in values.items():
        own = np.concatenate(parts)  # f64 [n]
        rows.append(
            ParameterRow(
                model, kind, layer, part, float(own.mean()), float(own.std()), float(np.abs(own).max()), len(own)
            )
        )
    return rows


def parameters_picture(folders: Sequence[Path]) -> Picture:
    """The standard deviation of the weights over the layers: a panel a kind of module, a line a model.

    Raises SettingError without folders, ArtifactError for a folder with other results.
    """
    lines: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, folder in zip(folder_names(folders), folders, strict=True):
        for row in _read_rows(folder):
            if row.layer is not None and row.part == "weight":
                label = f"{name}: {row.model}" if len(folders) > 1 else row.model
                lines.setdefault(row.module, {}).setdefault(label, []).append((row.layer, row.standard_deviation))
    figure, axes = new_panels(len(lines))
    tables = []
    for own, (module, by_label) in zip(axes, lines.items(), strict=True):
        for number, (label, points) in enumerate(by_label.items()):
            look: dict[str, Any] = {
                "color": colour(number),
                "marker": marker(number),
                "markersize": 4.5,
                "linewidth": 1.3,
            }
            own.plot(*zip(*sorted(points), strict=True), label=shown_name(label), **look)
        plain_axes(own, x="layer", y="standard deviation", title=module)
        layers = sorted({layer for points in by_label.values() for layer, _ in points})
        header: Row = ["model", *(f"layer {layer}" for layer in layers)]
        cells = [
            (label, *(f"{dict(points)[layer]:.5f}" if layer in dict(points) else "–" for layer in layers))
            for label, points in by_label.items()
        ]
        tables.append(NumberTable(f"{module}: standard deviation of the weights", tuple(header), tuple(cells)))
    legend_below(figure, axes, columns=3)
    return Picture(figure, tuple(tables), {"picture": TASK, "modules": lines})


def _read_rows(folder: Path) -> list[ParameterRow]:
    check_folder(folder, kind=EVALUATION_KIND)
    file = folder / PREDICTIONS
    rows = [read_record(ParameterRow, line, file=file, key=where) for where, line in read_predictions(folder)]
    if not any(row.layer is not None for row in rows):
        raise ArtifactError(f"{folder} has no layers: name results of task=parameters of a model with layers")
    return rows
