"""A study: which commands it gives and in which order, what it skips, and the numbers of its table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.study import LAST_FILES, Column, Study, run_study, table_rows

TRAIN = ["train", "run={out}", "trainer.seed={seed}", "experiment=small", "corpus.files=[/data/a.jsonl]"]
EVALUATE = [
    "evaluate",
    "out={out}",
    "encoder={stage:run}/encoder",
    "task=masked_tokens",
    "corpus.files=[/data/b.jsonl]",
]
COLUMNS = {
    f"{stage}: {head}": Column(stage, (number,))
    for stage in ("tokens", "words")
    for number, head in (("accuracy", "masked accuracy"), ("perplexity", "perplexity"))
}
STUDY = Study(
    cells={
        name: {
            "run": [*TRAIN, f"corruption.masked_fraction={fraction}"],
            "tokens": EVALUATE,
            "words": [*EVALUATE, "masked_tokens.unit=word"],
        }
        for name, fraction in (("low", 0.15), ("high", 0.8))
    },
    columns=COLUMNS,
    shared={},
)
CHAIN = Study(
    cells={
        "scratch": {
            "target": ["train", "run={out}", "trainer.seed={seed}", "encoder={stage:words}"],
            "test": ["evaluate", "out={out}", "encoder={stage:target}/encoder"],
        },
        **{
            name: {
                "edit": ["edit", "out={out}", f"edit={name}", "encoder={stage:source}/encoder", "seed={seed}"],
                "target": ["train", "run={out}", "trainer.seed={seed}", "encoder={stage:edit}"],
                "test": ["evaluate", "out={out}", "encoder={stage:target}/encoder"],
            }
            for name in ("all", "positions")
        },
    },
    columns={"accuracy": Column("test", ("accuracy",)), "best": Column("test", ("accuracy",), largest=True)},
    shared={
        "words": ["tokenizer", "out={out}"],
        "source": ["train", "run={out}", "trainer.seed={seed}", "encoder={stage:words}"],
    },
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
        settings = settings_of(arguments)
        folder = Path(settings.get("run") or settings["out"])
        last = folder / LAST_FILES[arguments[0]]
        last.parent.mkdir(parents=True)
        for part in ("corpus", "checkpoints") if arguments[0] == "train" else ():
            (folder / part).mkdir()
        accuracy = (0.2 if "low" in str(folder) else 0.1) + int(folder.parent.name[-1:] or 0, 36) / 100
        accuracy /= 2 if settings.get("masked_tokens.unit") == "word" else 1
        last.write_text(json.dumps({"accuracy": accuracy, "perplexity": 1234.5 - 1000 * accuracy, "task": "tokens"}))
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
    for number, train in enumerate(trained):
        tokens, words = map(settings_of, commands.given[3 * number + 1 : 3 * number + 3])
        assert tokens["encoder"] == words["encoder"] == f"{train['run']}/encoder"
        assert "masked_tokens.unit" not in tokens and words["masked_tokens.unit"] == "word"
        assert sorted(part.name for part in Path(train["run"]).iterdir()) == ["encoder"]


def test_a_stage_that_cells_share_runs_once_and_once_for_all_seeds_where_it_has_none(tmp_path: Path) -> None:
    commands = Commands()
    assert run_study(CHAIN, tmp_path, seeds=[0, 1], command=commands, check=accept) == 0
    folders = [settings_of(each).get("run") or settings_of(each)["out"] for each in commands.given]
    names = [str(Path(folder).relative_to(tmp_path)) for folder in folders]
    assert names[:3] == ["shared/words", "scratch/seed-0/target", "scratch/seed-0/test"]
    assert names[3:7] == ["shared/source/seed-0", *(f"all/seed-0/{each}" for each in ("edit", "target", "test"))]
    assert names[7:10] == [f"positions/seed-0/{each}" for each in ("edit", "target", "test")]
    assert "shared/source/seed-1" in names and len(names) == len(set(names)) == 1 + 2 * 9
    edit = settings_of(commands.given[4])
    assert edit["encoder"] == f"{tmp_path}/shared/source/seed-0/encoder" and edit["seed"] == "0"


def test_what_only_finished_stages_needed_is_not_made_again(tmp_path: Path) -> None:
    run_study(CHAIN, tmp_path, seeds=[0], command=Commands(), check=accept)
    shutil.rmtree(tmp_path / "shared")
    shutil.rmtree(tmp_path / "all" / "seed-0" / "test")
    again = Commands()
    assert run_study(CHAIN, tmp_path, seeds=[0], command=again, check=accept) == 0
    assert [command[0] for command in again.given] == ["evaluate"]


def test_a_stage_that_is_not_there_is_told(tmp_path: Path) -> None:
    broken = Study(cells={"a": {"test": ["evaluate", "encoder={stage:run}"]}}, columns=CHAIN.columns, shared={})
    with pytest.raises(SettingError, match=r"(?s)cell a.*run"):
        run_study(broken, tmp_path / "study", seeds=[0], command=Commands(), check=accept)
    assert not (tmp_path / "study").exists()


def test_the_table_holds_means_and_deviations_over_the_seeds(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0, 1, 2], command=Commands(), check=accept)
    low, high = json.loads((tmp_path / "table.json").read_text())
    assert (low["cell"], low["seeds"], high["seeds"]) == ("low", 3, 3)
    assert low["tokens: masked accuracy"]["values"] == pytest.approx([0.20, 0.21, 0.22])
    assert low["tokens: masked accuracy"]["mean"] == pytest.approx(0.21)
    assert low["tokens: masked accuracy"]["deviation"] == pytest.approx(0.01)
    assert low["words: masked accuracy"]["values"] == pytest.approx([0.10, 0.105, 0.11])
    assert high["tokens: perplexity"]["mean"] == pytest.approx(1234.5 - 110)
    assert high["tokens: perplexity"]["deviation"] == pytest.approx(stdev([0, 10, 20]))
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| " + " | ".join(["cell", "seeds", *COLUMNS]) + " |"
    assert lines[2] == "| low | 3 | 0.21 ± 0.01 | 1024 ± 10 | 0.105 ± 0.005 | 1130 ± 5 |"


def test_the_largest_of_the_seeds_stands_beside_the_mean_where_it_is_asked_for(tmp_path: Path) -> None:
    run_study(CHAIN, tmp_path, seeds=[0, 1], command=Commands(), check=accept)
    assert (tmp_path / "table.md").read_text().splitlines()[3] == "| all | 2 | 0.105 ± 0.0071 | 0.11 |"


def test_what_is_finished_is_skipped_when_it_is_started_again(tmp_path: Path) -> None:
    first = Commands(failing="seed-1")
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=first, check=accept) == 2
    assert len(first.given) == 7  # the two cells of seed 0, and the run that failed
    rows = table_rows(STUDY, tmp_path)
    assert [row["seeds"] for row in rows] == [1, 1]
    assert rows[0]["tokens: masked accuracy"]["deviation"] is None
    second = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=second, check=accept) == 0
    assert [settings_of(command).get("trainer.seed") for command in second.given[::3]] == ["1", "1"]
    third = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0, 1], command=third, check=accept) == 0
    assert not third.given


def test_only_the_evaluation_that_failed_is_repeated_and_the_cell_counts_with_all_of_them(tmp_path: Path) -> None:
    assert run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="masked_tokens.unit=word"), check=accept) == 2
    assert not (tmp_path / "table.md").exists() and table_rows(STUDY, tmp_path)[0]["seeds"] == 0
    again = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0], command=again, check=accept) == 0
    assert [command[0] for command in again.given] == ["evaluate", "train", "evaluate", "evaluate"]
    assert settings_of(again.given[0])["masked_tokens.unit"] == "word"


def test_cells_that_are_not_chosen_wait(tmp_path: Path) -> None:
    commands = Commands()
    assert run_study(STUDY, tmp_path, seeds=[0], cells=["high"], command=commands, check=accept) == 0
    assert len(commands.given) == 3 and (tmp_path / "table.md").read_text().splitlines()[2] == "| low | 0 |  |  |  |  |"
    assert run_study(STUDY, tmp_path, seeds=[0], command=commands, check=accept) == 0  # the same study goes on


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


def changed(**parts: Any) -> Study:
    return Study(**({name: getattr(STUDY, name) for name in STUDY.__slots__} | parts))


def with_settings(before: str, after: str) -> Study:
    return changed(
        cells={
            cell: {name: [part.replace(before, after) for part in command] for name, command in stages.items()}
            for cell, stages in STUDY.cells.items()
        }
    )


def test_another_study_may_begin_where_no_cell_of_the_first_was_finished(tmp_path: Path) -> None:
    assert run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="low"), check=accept) == 2
    other = with_settings("experiment=small", "experiment=large")
    assert run_study(other, tmp_path, seeds=[0], command=Commands(), check=accept) == 0
    with pytest.raises(SettingError, match="begun with another study"):
        run_study(STUDY, tmp_path, seeds=[0], command=Commands(), check=accept)


def test_another_study_is_refused_once_a_stage_of_the_first_is_finished(tmp_path: Path) -> None:
    for number, (study, failing) in enumerate(((STUDY, "masked_tokens"), (CHAIN, "scratch"))):
        out = tmp_path / str(number)
        assert run_study(study, out, seeds=[0], command=Commands(failing=failing), check=accept) == 2
        assert not (out / "table.json").exists()
        again = Commands()
        with pytest.raises(SettingError, match="begun with another study"):
            run_study(
                with_settings("experiment=small", "experiment=large"), out, seeds=[0], command=again, check=accept
            )
        assert not again.given


def test_a_fine_tuning_with_runs_that_are_left_is_no_finished_stage(tmp_path: Path) -> None:
    tuned = Study(cells={"a": {"cola": ["finetune", "out={out}"]}}, columns={"n": Column("cola", ("n",))}, shared={})
    metrics = tmp_path / "a" / "seed-0" / "cola" / "metrics.json"

    def command(arguments: list[str]) -> int:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_text(json.dumps({"n": 2}))
        return 0

    metrics.parent.mkdir(parents=True)
    metrics.write_text(json.dumps({"n": 1, "unfinished": ["cola/lr-0.0003/seed-0"]}))
    assert table_rows(tuned, tmp_path)[0]["seeds"] == 0
    assert run_study(tuned, tmp_path, seeds=[0], command=command, check=accept) == 0
    assert table_rows(tuned, tmp_path)[0]["n"]["values"] == [2.0]


def test_another_study_in_the_same_folder_is_refused_and_a_moved_file_is_not(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0], command=Commands(), check=accept)
    moved = with_settings("/data/", "/elsewhere/")
    assert run_study(moved, tmp_path, seeds=[0], command=Commands(), check=accept) == 0
    other = with_settings("experiment=small", "experiment=large")
    with pytest.raises(SettingError, match=r"experiment=(.|\n)*experiment="):
        run_study(other, tmp_path, seeds=[0], command=Commands(), check=accept)


def test_an_unfinished_cell_stays_empty_in_the_table(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0], command=Commands(failing="high"), check=accept)
    assert (tmp_path / "table.md").read_text().splitlines()[-1] == "| high | 0 |  |  |  |  |"


def test_metrics_without_the_number_are_told(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, seeds=[0], command=Commands(), check=accept)
    (tmp_path / "low" / "seed-0" / "words" / "metrics.json").write_text('{"accuracy": 1}')
    with pytest.raises(ArtifactError, match="perplexity"):
        table_rows(STUDY, tmp_path)
