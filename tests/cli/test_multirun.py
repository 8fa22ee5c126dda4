"""`npmlm VERB -m key=a,b` and `--cfg job`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from npm.cli.main import main
from npm.cli.multirun import combinations


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a=1,2", "b=x,y"], [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]),
        (["a=[1,2]", "b=3"], [["a=[1,2]", "b=3"]]),
        (["a=[1,2],[3]"], [["a=[1,2]"], ["a=[3]"]]),
        (["a=range(1,3)"], [["a=1"], ["a=2"]]),
        (["files=[/data/a (1).jsonl]"], [["files=[/data/a (1).jsonl]"]]),
        ([], [[]]),
    ],
)
def test_combinations(given: list[str], expected: list[list[str]]) -> None:
    assert list(combinations(given)) == expected


def test_settings_are_shown_composed_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["experiment=reader", f"run={tmp_path / 'run'}", "questions=[a.jsonl]", "schedule.max_steps=7"]
    assert main(["train", "--cfg", "job", *given]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["schedule"]["max_steps"] == 7
    assert shown["objective"]["reader_weight"] == 1.0
    assert not (tmp_path / "run").exists()


def test_runs_go_to_numbered_folders(
    tmp_path: Path, built_index: Path, capsys: pytest.CaptureFixture[str], tiny_encoder_folder: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "Oslo is in <mask>.", "answers": ["Norway"]}\n')
    task = tmp_path / "task.yaml"
    task.write_text('suite: open\nname: own\ndata: {file: rows.jsonl}\ntemplate: "{{ text }}"\n')
    out = tmp_path / "out"
    given = [
        f"task={task}",
        f"index={built_index}",
        f"encoder={tiny_encoder_folder}",
        "method=[npm-bm25]",
        f"out={out}",
    ]
    assert main(["evaluate", "-m", *given, "fill.k=1,3"]) == 0, capsys.readouterr().err
    assert sorted(folder.name for folder in out.iterdir()) == ["0", "1"]
    assert all((out / name / "metrics.json").is_file() for name in ("0", "1"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["evaluate", "-m", "task=demo", "fill.k=1,0", "out=new"], "fill.k"),  # before the first run
        (["train", "-m", "schedule.max_steps=1,2"], "run"),
        (["inspect", "-m", "index=a,b"], "inspect"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert part in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
