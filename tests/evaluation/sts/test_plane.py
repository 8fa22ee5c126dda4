"""The plane of alignment and uniformity: which points, which paths, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.results import write_results
from npm.evaluation.sts.plane import draw_plane, geometry_picture, read_paths

pytest.importorskip("matplotlib")
SENTENCES = {"splits": ["test"], "sentence_count": 9, "aligned_pair_count": 3}


def results(folder: Path, *places: tuple[float, float] | None, sentences: Any = SENTENCES) -> Path:
    encoders = [
        {"name": "mini", "geometry": None if place is None else {"alignment": place[0], "uniformity": place[1]}}
        for place in places
    ]
    metrics = {"task": "sts", "geometry": sentences, "encoders": encoders}
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_results(folder, record={"task": "sts"}, predictions=[], metrics=metrics)
    return folder


def test_each_encoder_is_a_point_and_two_of_one_folder_are_before_and_after(tmp_path: Path) -> None:
    one, two = results(tmp_path / "one", (0.25, -3.0)), results(tmp_path / "two", (0.5, -1.0), (0.25, -2.0))
    picture = geometry_picture([one, two])
    assert picture.tables[0].rows == (
        ("one", "mini", "0.250", "-3.000"),
        ("1 two, before", "mini", "0.500", "-1.000"),
        ("2 two, after", "mini", "0.250", "-2.000"),
    )
    assert [len(path["points"]) for path in json.loads(json.dumps(picture.record))["paths"]] == [1, 2]
    (axes,) = draw_plane(list(read_paths([one, two], arrows=False))).axes
    assert [np.asarray(line.get_xydata()).tolist() for line in axes.lines] == [
        [[-3.0, 0.25]],
        [[-1.0, 0.5], [-2.0, 0.25]],
    ]
    assert [text.get_text() for text in axes.texts] == ["", "1", "2"]  # an arrow, and its ends


def test_with_arrows_results_of_one_folder_are_states_of_one_run_in_the_order_named(tmp_path: Path) -> None:
    steps = [results(tmp_path / "run" / f"step-{step}", (0.1 * step, -1.0)) for step in (1, 2, 3)]
    other = results(tmp_path / "other" / "sts", (0.5, -3.0))
    paths = list(read_paths([steps[2], steps[0], other, steps[1]], arrows=True))
    assert [(path.name, [point.name for point in path.points]) for path in paths] == [
        ("run", ["step-3", "step-1", "step-2"]),
        ("sts", ["sts"]),
    ]
    assert len(list(read_paths(steps, arrows=False))) == 3
    with pytest.raises(SettingError, match="arrows"):
        geometry_picture([steps[0], other], arrows=True)


def test_encoders_measured_on_other_sentences_are_not_compared(tmp_path: Path) -> None:
    one = results(tmp_path / "one", (0.25, -3.0))
    two = results(tmp_path / "two", (0.25, -3.0), sentences={**SENTENCES, "splits": ["dev"]})
    with pytest.raises(SettingError, match="'dev'"):
        geometry_picture([one, two])


def test_results_without_a_geometry_are_refused(tmp_path: Path) -> None:
    for folder in (
        results(tmp_path / "none", None),
        results(tmp_path / "unmeasured", (0.1, -1.0), sentences={}),
        results(tmp_path / "other"),
    ):
        with pytest.raises(ArtifactError, match="no alignment and uniformity"):
            geometry_picture([folder])
    damaged = results(tmp_path / "damaged", (0.1, -1.0))
    (damaged / "metrics.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"metrics.json"):
        geometry_picture([damaged])
    with pytest.raises(ArtifactError):
        geometry_picture([tmp_path / "nowhere"])
