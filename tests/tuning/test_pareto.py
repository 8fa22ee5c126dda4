"""Recall over latency: the front against a plain reference, what is read of tune.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.tuning.pareto import JSON_NAME, TuneMeasurements, draw_tunes, pareto_front, tune_picture

pytest.importorskip("matplotlib")


def point(p50_ms: float, recall: float, agreement: float, *, lists: int | None = 8, **changes: Any) -> dict[str, Any]:
    shares = {"1": 1.0, "10": 0.9, "100": recall}
    counts = {"probed_lists": lists, "rerank_factor": 2, "reranked_rows": 512, "candidates_per_side": 256}
    return {**counts, "recall": shares, "agreement": agreement, "p50_ms": p50_ms, "p95_ms": 9.0, **changes}


def record(*points: dict[str, Any], **changes: Any) -> dict[str, Any]:
    names = ("probed_lists", "rerank_factor", "candidates_per_side")
    found = {
        "request": {},
        "index": {"tier": "ivf_sq8", "factory": "IVF64,SQ8", "generation": 0},
        "questions": {"asked": 50, "documents": 9},
        "goals": {"recall_at_100": 0.97, "agreement": 0.95},
        "measured": list(points),
        "before": {name: points[-1][name] for name in names},
        "chosen": {name: points[0][name] for name in names},
    }
    return {**found, **changes}


def tune_folder(folder: Path, content: Any) -> Path:
    folder.mkdir()
    (folder / JSON_NAME).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_the_front_equals_a_plain_search_for_what_nothing_beats(rng: np.random.Generator) -> None:
    items = [tuple(each) for each in rng.integers(0, 6, size=(30, 2)).tolist()]

    def is_beaten(item: tuple[int, ...]) -> bool:
        return any(
            other[0] <= item[0] and other[1] >= item[1] and (other[0] < item[0] or other[1] > item[1])
            for other in items
        )

    expected = sorted({item for item in items if not is_beaten(item)})
    assert pareto_front(items, lambda item: item[0], lambda item: item[1]) == expected


def test_the_table_has_fronts_and_the_chosen_ones_of_every_tune(tmp_path: Path) -> None:
    lists = record(point(2.0, 0.5, 0.9), point(4.0, 0.9, 0.8, lists=16), point(5.0, 0.8, 0.8, lists=32))
    exact = record(point(8.0, 1.0, 1.0, lists=None, rerank_factor=None, reranked_rows=None))
    exact["index"] = {"tier": "exact", "factory": None}
    folders = [tune_folder(tmp_path / "lists", lists), tune_folder(tmp_path / "exact", exact)]
    picture = tune_picture(folders)
    assert picture.tables[0].rows == (
        ("lists", "8", "512", "256", "0.500", "0.900", "2.0", "chosen, front"),
        ("lists", "16", "512", "256", "0.900", "0.800", "4.0", "front"),
        ("lists", "32", "512", "256", "0.800", "0.800", "5.0", "before"),
        ("exact", "–", "–", "256", "1.000", "1.000", "8.0", "chosen, before, front"),
    )
    assert picture.notes == ("lists: IVF64,SQ8, 50 questions", "exact: exact, 50 questions")
    measured = json.loads(json.dumps(picture.record))["tunes"][0]["measured"]
    assert [each["p50_ms"] for each in measured] == [2.0, 4.0, 5.0]
    assert [len(each["marks"]) for each in measured] == [2, 1, 1]


def test_what_is_drawn_is_what_was_measured_on_a_log_axis(tmp_path: Path) -> None:
    content = record(point(2.0, 0.5, 0.9), point(4.0, 0.9, 0.8, lists=16))
    found = TuneMeasurements.of_record(content, file=tmp_path)
    recall, agreement = draw_tunes({"a": found, "b": found}).axes
    assert recall.get_xscale() == "log" == agreement.get_xscale()
    for panel, values in ((recall, [0.5, 0.9]), (agreement, [0.9, 0.8])):
        drawn = np.asarray(panel.collections[0].get_offsets())
        assert drawn.tolist() == [[2.0, values[0]], [4.0, values[1]]]
        assert panel.get_ylim()[1] < 1.1
        assert "ms" in panel.get_xlabel() and "share" in panel.get_ylabel()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"measured": "all"},
        record(point(1.0, 0.5, 0.5), measured=[]),
        record(point(0.0, 0.5, 0.5)),
        record({**point(1.0, 0.5, 0.5), "recall": {"1": 1.0}}),
        record({**point(1.0, 0.5, 0.5), "agreement": "high"}),
        record(point(1.0, 0.5, 0.5), index={"tier": "exact"}),
        record(point(1.0, 0.5, 0.5), goals=None),
    ],
)
def test_a_damaged_record_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=JSON_NAME):
        tune_picture([tune_folder(tmp_path / "tune", content)])


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=JSON_NAME):
        tune_picture([tmp_path])
    with pytest.raises(SettingError, match="no folder"):
        tune_picture([])
