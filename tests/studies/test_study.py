"""scripts/study.py: the commands of the studies, their order, what is skipped, and the table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import scripts.study
from npm.cli.settings import compose_settings
from scripts.study import FOLDER, Study, main
from studies.stage import LAST_FILES

EVALUATE = "evaluate out=$out encoder=$run/encoder task=masked_tokens"
PLAN = {
    "settings": {"files": "[a.jsonl]"},
    "shared": {
        "words": "tokenizer out=$out",
        "source": "train run=$out trainer.seed=$seed encoder=$words corpus.files=$files",
    },
    "stages": {
        "edit": "edit out=$out edit=$edits encoder=$source/encoder seed=$seed",
        "run": "train run=$out trainer.seed=$seed encoder=$start $change $more",
        "tokens": EVALUATE,
        "tuned": "finetune out=$out encoder=$run/encoder",
    },
    "defaults": {"start": "$edit", "change": ""},
    "cells": {
        "low": {"edits": "all", "change": "a=1 b=2"},
        "high": {"edits": "positions"},
        "scratch": {"start": "$words", "tuned": None},
    },
    "columns": {"accuracy": ["tokens", "accuracy"], "best": ["tuned", "deep", "n", "max"]},
}
ARGUMENTS = {
    "masking": ["files=[a.jsonl]", "held_out=[b.jsonl]", "schedule.warmup_fraction=0.1"],
    "mlm": ["files=[a.jsonl]", "held_out=[b.jsonl]"],
    "ablations": ["files=[a.jsonl]", "held_out=[b.jsonl]"],
    "tokenizers": ["files=[a.jsonl]", "held_out=[b.jsonl]", "schedule.max_minutes=1"],
    "retrievers": ["held_out=[b.jsonl]"],
    "interventions": ["data_dir=glue", "encoder=runs/mlm", "device=cpu"],
    "transfer": [
        "treebank=[t.conllu]",
        "files=[a.jsonl]",
        "source_held_out=[b.jsonl]",
        "target=c.jsonl",
        "target_held_out=d.jsonl",
    ],
}


class Commands:
    """Stands for `npmlm`: records its arguments and writes the last file of each verb."""

    def __init__(self, *, failing: str = "") -> None:
        self.given: list[list[str]] = []
        self.failing = failing

    def __call__(self, arguments: list[str]) -> int:
        self.given.append(arguments)
        if self.failing and any(self.failing in argument for argument in arguments):
            return 3
        settings = settings_of(arguments)
        folder = Path(settings.get("run") or settings["out"])
        last = folder / LAST_FILES[arguments[0]]
        last.parent.mkdir(parents=True, exist_ok=True)
        for part in ("corpus", "checkpoints") if arguments[0] == "train" else ():
            (folder / part).mkdir()
        accuracy = (0.2 if "low" in str(folder) else 0.1) + int(folder.parent.name[-1:] or 0, 36) / 100
        last.write_text(json.dumps({"accuracy": accuracy, "deep": {"n": 1000 * accuracy}}))
        return 0


def settings_of(command: list[str]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in command[1:])


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the small plan with some arguments: the exit status, and the commands that were given."""
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN, sort_keys=False))
    monkeypatch.setattr(scripts.study, "compose_settings", lambda *_: None)

    def run(*arguments: str, failing: str = "") -> tuple[int, list[list[str]]]:
        commands = Commands(failing=failing)
        monkeypatch.setattr(scripts.study, "npmlm", commands)
        return main([str(tmp_path / "plan.yaml"), f"out={tmp_path / 'out'}", *arguments]), commands.given

    run.out = tmp_path / "out"
    return run


def test_every_stage_runs_once_after_those_it_reads_and_shared_ones_once_per_seed(study: Any, tmp_path: Path) -> None:
    status, given = study("seeds=[0,1]", "c=3")
    folders = [settings_of(each).get("run") or settings_of(each)["out"] for each in given]
    names = [str(Path(folder).relative_to(tmp_path / "out")) for folder in folders]
    assert status == 0 and len(names) == len(set(names)) == 1 + 2 * 11
    assert names[:6] == [
        "shared/words",
        "shared/source/seed-0",
        *(f"low/seed-0/{each}" for each in ("edit", "run", "tokens", "tuned")),
    ]
    assert "shared/source/seed-1" in names and names[10:12] == ["scratch/seed-0/run", "scratch/seed-0/tokens"]
    run = tmp_path / "out/low/seed-0/run"
    assert given[3] == ["train", f"run={run}", "trainer.seed=0", f"encoder={run.parent / 'edit'}", "a=1", "b=2", "c=3"]
    assert [part.name for part in run.iterdir()] == ["encoder"]  # corpus and checkpoints are removed


def test_a_small_study_has_one_seed_and_lower_values(study: Any) -> None:
    status, given = study("small=true", "cells=[low]", "schedule.max_steps=7")
    assert status == 0 and {each[0] for each in given} == {"tokenizer", "train", "edit", "evaluate", "finetune"}
    assert all("seed-1" not in argument for each in given for argument in each)
    steps = [settings_of(each)["schedule.max_steps"] for each in given if each[0] == "train"]
    assert steps == ["50", "7"]  # the source's, and a lower one as it is
    assert all(settings_of(each)["limit"] == "200" for each in given if each[0] == "finetune")
    assert all("limit" not in settings_of(each) for each in given if each[0] == "evaluate")
    assert study("measure=[token]")[0] == 2


def test_a_cell_by_name_only_runs_where_it_is_named(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLAN["cells"]["high"], "by_name_only", True)
    (study.out.parent / "plan.yaml").write_text(yaml.safe_dump(PLAN, sort_keys=False))
    cells = [
        {settings_of(each).get("out", "").split("/")[-3] for each in study(*given)[1] if each[0] == "edit"}
        for given in (["seeds=[0]"], ["seeds=[0]", "cells=[high]"])
    ]
    assert cells == [{"low"}, {"high"}]


def test_the_table_holds_means_and_deviations_over_the_seeds(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    study("seeds=[0,1,2]", "cells=[low,scratch]")
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| low | 3 | 0.21 ± 0.01 | 220 |",  # 0.20, 0.21, 0.22
        "| high | 0 |  |  |",
        "| scratch | 3 | 0.11 ± 0.01 |  |",
    ]


def test_what_is_finished_is_skipped_and_what_failed_is_repeated(study: Any, tmp_path: Path) -> None:
    assert study("seeds=[0]", failing="high/seed-0/tokens")[0] == 3
    rows = (tmp_path / "out/table.md").read_text().splitlines()
    assert rows[2:] == ["| low | 1 | 0.2 | 200 |", "| high | 0 |  |  |", "| scratch | 0 |  |  |"]
    shutil.rmtree(tmp_path / "out/shared/source")  # only finished stages needed it
    _, given = study("seeds=[0]")
    assert [settings_of(each).get("run", "")[-18:] for each in given[2:]] == ["scratch/seed-0/run", ""]
    assert [each[0] for each in given] == ["evaluate", "finetune", "train", "evaluate"]
    tuned = tmp_path / "out/low/seed-0/tuned/metrics.json"
    tuned.write_text(json.dumps({"deep": {"n": 1}, "unfinished": ["cola/lr-0.0003/seed-0"]}, indent=1))
    assert [each[0] for each in study("seeds=[0]")[1]] == ["finetune"]


def test_what_would_be_refused_is_found_before_anything_is_trained(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts.study, "compose_settings", compose_settings)
    for listed in ((), ("list=true",)):
        assert study("nonsense=1", *listed) == (2, [])
        assert "unknown edit 'all'" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_name_that_the_study_does_not_have_is_refused(
    study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN | {"cells": {"low": {"edits": "$chage"}}}))
    assert study() == (2, [])
    error = capsys.readouterr().err
    assert "'$chage'" in error and "$change" in error


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_command_of_a_shipped_study_composes(name: str, *, small: bool) -> None:
    cells = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))["cells"]
    every = f"cells=[{','.join(repr(cell) for cell in cells)}]"  # those by name alone, too
    study = Study.of(name, [*ARGUMENTS[name], every, "out=o", "seeds=[5]"], small=small)
    commands = study.left(study.seeds, {})
    assert len({tuple(stage.command) for stage in commands}) == len(commands) > len(study.chosen)
    for stage in commands:
        assert "$" not in " ".join(stage.command)
        compose_settings(stage.command[0], stage.command[1:])
    assert {path.stem for path in FOLDER.glob("*.yaml")} == ARGUMENTS.keys()
