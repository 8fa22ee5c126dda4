"""A study of training runs: which commands it gives, what it skips, and the numbers of its table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from npm.errors import SettingError
from npm.evaluation.study import Study, run_study, table_rows

STUDY = Study(
    cells={"low": ["corruption.masked_fraction=0.15"], "high": ["corruption.masked_fraction=0.8"]},
    train=["experiment=small", "corpus.files=[/data/a.jsonl]"],
    evaluations={
        "tokens": ["task=masked_tokens", "corpus.files=[/data/b.jsonl]"],
        "words": ["task=masked_tokens", "corpus.files=[/data/b.jsonl]", "masked_tokens.unit=word"],
    },
    metrics={"accuracy": "masked accuracy", "perplexity": "perplexity"},
)


class Commands:
    """Stands for `npmlm`: keeps what it was given, and leaves what the verbs leave."""

    def __init__(self, *, failing: str = "") -> None:
        self.given: list[list[str]] = []
        self.failing = failing

    def __call__(self, arguments: list[str]) -> int:
        self.given.append(arguments)
        if self.failing and any(self.failing in argument for argument in arguments):
            return 2
        settings = dict(argument.split("=", 1) for argument in arguments[1:])
        if arguments[0] == "train":
            for part in ("corpus", "checkpoints", "encoder"):
                (Path(settings["run"]) / part).mkdir(parents=True)
            return 0
        results = Path(settings["out"])
        results.mkdir()
        accuracy = (0.2 if "low" in str(results) else 0.1) + int(results.parent.name[-1]) / 100
        accuracy /= 2 if settings.get("masked_tokens.unit") == "word" else 1
        metrics = {"accuracy": accuracy, "perplexity": 1234.5 - 1000 * accuracy, "task": "masked_tokens"}
        (results / "metrics.json").write_text(json.dumps(metrics))
        return 0


def accept(_: list[str]) -> None:
    """Finds nothing to refuse."""


def settings_of(command: list[str]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in command[1:])


def test_every_cell_is_trained_and_evaluated_with_every_seed(tmp_path: Path) -> None:
    commands = Commands()
    assert run_study(STUDY, tmp_path / "study", seeds=[0, 1], command=commands, check=accept) == 0
    assert [command[0] for command in commands.given] == ["train", "evaluate", "evaluate"] * 4
    trained = [settings_of(command) for command in commands.given[::3]]
    assert [(each["corruption.masked_fraction"], each["trainer.seed"]) for each in trained] == [
        ("0.15", "0"),
        ("0.8", "0"),
        ("0.15", "1"),
        ("0.8", "1"),
    ]
    assert all(each["experiment"] == "small" for each in trained)
    for number, train in enumerate(trained):
        tokens, words = map(settings_of, commands.given[3 * number + 1 : 3 * number + 3])
        for evaluate in (tokens, words):
            assert evaluate["encoder"] == f"{train['run']}/encoder"
            assert (evaluate["task"], evaluate["corpus.files"]) == ("masked_tokens", "[/data/b.jsonl]")
        assert "masked_tokens.unit" not in tokens and words["masked_tokens.unit"] == "word"
        assert sorted(part.name for part in Path(train["run"]).iterdir()) == ["encoder"]


def test_the_table_holds_means_and_deviations_over_the_seeds(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0, 1, 2], command=Commands(), check=accept)
    low, high = json.loads((tmp_path / "table.json").read_text())
    assert (low["cell"], low["seeds"], high["seeds"]) == ("low", 3, 3)
    assert low["tokens"]["accuracy"]["values"] == pytest.approx([0.20, 0.21, 0.22])
    assert low["tokens"]["accuracy"]["mean"] == pytest.approx(0.21)
    assert low["tokens"]["accuracy"]["deviation"] == pytest.approx(0.01)
    assert low["words"]["accuracy"]["values"] == pytest.approx([0.10, 0.105, 0.11])
    assert high["tokens"]["perplexity"]["mean"] == pytest.approx(1234.5 - 110)
    assert high["tokens"]["perplexity"]["deviation"] == pytest.approx(stdev([0, 10, 20]))
    lines = (tmp_path / "table.md").read_text().splitlines()
    heads = ["tokens: masked accuracy", "tokens: perplexity", "words: masked accuracy", "words: perplexity"]
    assert lines[0] == "| " + " | ".join(["cell", "seeds", *heads]) + " |"
    assert lines[2] == "| low | 3 | 0.21 ± 0.01 | 1024 ± 10 | 0.105 ± 0.005 | 1130 ± 5 |"


def test_what_is_finished_is_skipped_when_it_is_started_again(tmp_path: Path) -> None:
    first = Commands(failing="seed-1")
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=first, check=accept) == 2
    assert len(first.given) == 7  # the two cells of seed 0, and the run that failed
    rows = table_rows(STUDY, tmp_path)
    assert [row["seeds"] for row in rows] == [1, 1]
    assert rows[0]["tokens"]["accuracy"]["deviation"] is None
    second = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=second, check=accept) == 0
    assert [settings_of(command).get("trainer.seed") for command in second.given[::3]] == ["1", "1"]
    third = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=third, check=accept) == 0
    assert not third.given


def test_only_the_evaluation_that_failed_is_repeated_and_the_cell_counts_with_all_of_them(tmp_path: Path) -> None:
    assert run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="masked_tokens.unit=word"), check=accept) == 2
    assert not (tmp_path / "table.md").exists() and table_rows(STUDY, tmp_path)[0]["seeds"] == 0
    shutil.rmtree(tmp_path / "low" / "seed-0" / "run")
    again = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0], command=again, check=accept) == 0
    assert [command[0] for command in again.given] == ["train", "evaluate", "train", "evaluate", "evaluate"]
    assert settings_of(again.given[1])["masked_tokens.unit"] == "word"


def test_what_would_be_refused_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    def check(arguments: list[str]) -> None:
        if "masked_tokens.unit=word" in arguments:
            raise SettingError("no", expected="a", got="b", where="c", fix="d")

    commands = Commands()
    with pytest.raises(SettingError, match="no"):
        run_study(STUDY, tmp_path / "study", seeds=[0], command=commands, check=check)
    assert not commands.given and not (tmp_path / "study").exists()


def test_every_command_is_checked(tmp_path: Path) -> None:
    checked: list[list[str]] = []
    commands = Commands()
    run_study(STUDY, tmp_path, seeds=[0], command=commands, check=checked.append)
    assert checked == commands.given


def test_another_study_may_begin_where_no_cell_of_the_first_was_finished(tmp_path: Path) -> None:
    assert run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="low"), check=accept) == 2
    other = Study(cells=STUDY.cells, train=["experiment=large"], evaluations=STUDY.evaluations, metrics=STUDY.metrics)
    assert run_study(other, tmp_path, seeds=[0], command=Commands(), check=accept) == 0
    with pytest.raises(SettingError, match="begun with another study"):
        run_study(STUDY, tmp_path, seeds=[0], command=Commands(), check=accept)


def test_an_unfinished_cell_stays_empty_in_the_table(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="high"), check=accept)
    assert (tmp_path / "table.md").read_text().splitlines()[-1] == "| high | 0 |  |  |  |  |"


def test_another_study_in_the_same_folder_is_refused_and_a_moved_file_is_not(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0], command=Commands(), check=accept)

    def changed(**parts: Any) -> Study:
        return Study(**({name: getattr(STUDY, name) for name in STUDY.__slots__} | parts))

    moved = changed(train=["experiment=small", "corpus.files=[/elsewhere/a.jsonl]"])
    assert run_study(moved, tmp_path, seeds=[0], command=Commands(), check=accept) == 0
    with pytest.raises(SettingError, match="begun with another study") as refusal:
        run_study(changed(train=["experiment=large"]), tmp_path, seeds=[0], command=Commands(), check=accept)
    assert "experiment=small" in refusal.value.expected and "experiment=large" in refusal.value.got
