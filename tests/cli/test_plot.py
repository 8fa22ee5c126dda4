"""`npmlm plot`: which picture the folders mean, its file, its numbers on stdout, and what a mistake gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npm.evaluation.results import write_results
from tests.evaluation.sts.test_plane import results as sts_results
from tests.evaluation.test_pictures import closed_line, open_line, results
from tests.helpers.command_line import CommandLine
from tests.tuning.test_pareto import point, record, tune_folder

pytest.importorskip("matplotlib")
MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A folder of each kind that can be drawn."""
    (tmp_path / "run").mkdir()
    lines = ({"step": step, "tokens": 9 * step, "masked": 8.0 - step} for step in (1, 2))
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    demo = [{"id": str(rank), "hit_rank": rank, "phrases": [{"phrase": "a", "score": 0.5}]} for rank in (1, 2)]
    write_results(tmp_path / "demo", record={"task": "demo"}, predictions=demo, metrics={"task": "demo"})
    open_tasks: dict[str, Any] = {"tasks": {"trex": {"suite": "open"}}}
    write_results(tmp_path / "open", record={}, predictions=[open_line(0, True, 0.5)], metrics=open_tasks)
    return {
        "curves": tmp_path / "run",
        "tune": tune_folder(tmp_path / "tune", record(point(2.0, 0.5, 0.9))),
        "reliability": tmp_path / "demo",
        "open": tmp_path / "open",
        "confusion": results(tmp_path / "closed", closed_line(0, "world", "sports", [0.25, 0.75, 0.0])),
        "geometry": sts_results(tmp_path / "sts", (0.25, -3.0)),
    }


@pytest.mark.parametrize("suffix", MAGIC)
@pytest.mark.parametrize("kind", ["curves", "tune", "reliability", "confusion", "geometry"])
def test_the_folder_says_which_picture_is_meant(
    kind: str, suffix: str, folders: dict[str, Path], npmlm: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / f"picture{suffix}"
    outcome = npmlm("plot", folders[kind], f"out={out}", "output=json")
    assert outcome.status == 0, outcome.err
    (numbers,) = outcome.answers()
    assert numbers["picture"] == kind
    data = out.read_bytes()
    assert data.startswith(MAGIC[suffix])
    table = npmlm("plot", folders[kind], f"out={out}", f"picture={kind}")
    assert table.status == 0, table.err
    assert out.read_bytes() == data
    assert table.out and all(len(line) <= 100 for line in table.out.splitlines())
    assert f"the picture is in {out}" in table.err


def test_of_a_closed_task_the_confusion_is_drawn_and_the_other_picture_named(
    folders: dict[str, Path], npmlm: CommandLine, tmp_path: Path
) -> None:
    out = f"out={tmp_path / 'x.png'}"
    outcome = npmlm("plot", folders["confusion"], out)
    assert "this is picture=confusion; picture=reliability can be drawn" in outcome.err
    assert "sports (1)" in outcome.out
    both = npmlm("plot", folders["confusion"], folders["open"], folders["reliability"], out)
    assert both.status == 0, both.err
    assert "closed: agn, npm: ECE 75.0 %" in both.out and "demo: demo, npm: ECE 0.0 %" in both.out
    assert "trex" in both.out and "can be drawn" not in both.err


def test_folders_of_different_kinds_are_refused(folders: dict[str, Path], npmlm: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    npmlm("plot", folders["curves"], folders["confusion"], f"out={out}").refused(
        "no picture in common", "run: curves; closed: confusion, reliability"
    )
    npmlm("plot", folders["curves"], "picture=tune", f"out={out}").refused("tune.json cannot be read")
    npmlm("plot", folders["tune"], "picture=reliability", f"out={out}").refused("tune")
    npmlm("plot", folders["geometry"], "picture=confusion", f"out={out}").refused("hold no answer")
    assert not out.exists()


def test_folders_without_anything_to_draw_are_refused(npmlm: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    write_results(tmp_path / "in-batch", record={"task": "in_batch"}, predictions=[], metrics={"task": "in_batch"})
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "metrics.json").write_text("{}")
    for name, *parts in (
        ("empty", "empty"),
        ("other", "other"),
        ("other/notes.txt", "notes.txt"),
        ("nowhere", "nowhere"),
        ("in-batch", "no picture", "task=in_batch"),
        ("foreign", "manifest.json"),
    ):
        npmlm("plot", tmp_path / name, f"out={tmp_path / 'x.png'}").refused(*parts)
    npmlm("plot", f"out={tmp_path / 'x.png'}").refused("no folder is named")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("kind", "setting", "parts"),
    [
        ("tune", "tasks=[agn]", ("picture=tune has no use for tasks",)),
        ("curves", "bins=5", ("picture=curves has no use for bins",)),
        ("confusion", "bins=5", ("picture=confusion has no use for bins",)),
        ("confusion", "tasks=[agm]", ("no folder holds answers of agm", "agn")),
        ("geometry", "arrows=true", ("arrows",)),
        ("reliability", "bins=0", ("bins must be",)),
        ("reliability", "picture=pie", ("picture", "confusion")),
        ("reliability", "out=x.pdf", ("PNG or SVG",)),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    kind: str, setting: str, parts: tuple[str, ...], folders: dict[str, Path], npmlm: CommandLine, tmp_path: Path
) -> None:
    out = [] if setting.startswith("out=") else [f"out={tmp_path / 'x.png'}"]
    npmlm("plot", folders[kind], setting, *out).refused(*parts)
    assert not (tmp_path / "x.png").exists()


def test_a_picture_of_somebody_else_stays(folders: dict[str, Path], npmlm: CommandLine, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    picture.write_bytes(b"\x89PNG of somebody else")
    npmlm("plot", folders["tune"], f"out={picture}").refused(str(picture))
    assert picture.read_bytes() == b"\x89PNG of somebody else"


def test_what_evaluate_and_tune_write_is_drawn(built_index: Path, npmlm: CommandLine, tmp_path: Path) -> None:
    texts = [("The capital of Iceland is <mask>.", "Reykjavík"), ("Paris is the capital of <mask>.", "France")]
    questions = [
        {"id": str(number), "kind": "place", "text": text, "answers": [answer], "split": "test"}
        for number, (text, answer) in enumerate(texts)
    ]
    file, out = tmp_path / "questions.json", f"out={tmp_path / 'x.png'}"
    file.write_text(json.dumps({"questions": questions}), encoding="utf-8")
    asked = ["task=demo", f"demo.questions={file}", "demo.baseline=false", "resamples=10"]
    assert npmlm("evaluate", *asked, f"index={built_index}", f"out={tmp_path / 'demo'}").status == 0
    outcome = npmlm("plot", tmp_path / "demo", out, "output=json")
    assert outcome.status == 0, outcome.err
    (diagram,) = outcome.answers()[0]["diagrams"]
    assert sum(each["count"] for each in diagram["bins"]) + diagram["unanswered"] == 2
    widths = "candidates_per_side=[8,16]"
    assert npmlm("tune", f"index={built_index}", "queries=2", widths, f"out={tmp_path / 'tune'}").status == 0
    outcome = npmlm("plot", tmp_path / "tune", out, "output=json")
    assert outcome.status == 0, outcome.err
    measured = json.loads((tmp_path / "tune" / "tune.json").read_bytes())["measured"]
    (tune,) = outcome.answers()[0]["tunes"]
    assert [each["p50_ms"] for each in tune["measured"]] == [each["p50_ms"] for each in measured]
