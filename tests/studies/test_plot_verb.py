"""`npmlm plot`: the curves of training runs, their numbers on stdout, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import CommandLine

pytest.importorskip("matplotlib")
MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    lines = ({"step": step, "tokens": 9 * step, "masked": 8.0 - step} for step in (1, 2))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_same_run_gives_the_same_bytes_and_its_numbers(
    suffix: str, run: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / f"curves{suffix}"
    outcome = npmlm("plot", run, f"out={out}", "output=json", "smoothed_points=1")
    assert outcome.status == 0, outcome.err
    (curve,) = outcome.answers()[0]["curves"]
    assert (curve["term"], curve["x"], curve["y"]) == ("masked", [9, 18], [7, 6])
    data = out.read_bytes()
    assert data.startswith(MAGIC[suffix])
    table = npmlm("plot", run, f"out={out}", "smoothed_points=1")
    assert table.status == 0 and out.read_bytes() == data
    assert "run: masked" in table.out and f"the figure is in {out}" in table.err


def test_what_cannot_be_drawn_is_refused(run: Path, npmlm: CommandLine, tmp_path: Path) -> None:
    out = f"out={tmp_path / 'x.png'}"
    npmlm("plot", tmp_path, out).refused("metrics.jsonl is missing")
    npmlm("plot", out).refused("no folder is named")
    npmlm("plot", run, run, out).refused("named twice")
    npmlm("plot", run, out, "terms=[loss]").refused("unknown term 'loss'")
    assert not (tmp_path / "x.png").exists()
