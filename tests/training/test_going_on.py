"""A run that goes on from the checkpoint of another, under a schedule of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.training.checkpoints import RunFolder
from npm.training.run import run_training
from npm.training.schedule import ScheduleSettings
from npm.training.settings import StartSettings, TrainerSettings, TrainingSettings
from tests.helpers.toy_training import toy_settings

STEADY = ScheduleSettings(max_steps=3, learning_rate=1e-2, warmup_fraction=0.0, final_fraction=1.0)
TO_ZERO = replace(STEADY, final_fraction=0.0)


def settings_of(
    folder: Path, *, schedule: ScheduleSettings = STEADY, from_run: str = "", **loop: Any
) -> TrainingSettings:
    """A few steps of a tiny encoder, whose weights are averaged, on a corpus in `folder`."""
    return toy_settings(
        folder,
        start=StartSettings(hidden_dropout=0.1, from_run=from_run),
        trainer=TrainerSettings(log_every_steps=1, ema_decay=0.9, **loop),
        schedule=schedule,
    )


def weights_of(run: Path) -> bytes:
    return (run / "encoder" / "model.safetensors").read_bytes()


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    run_training(tmp_path / "origin", settings_of(tmp_path))
    return tmp_path / "origin"


def test_two_runs_one_from_the_other_are_one_long_run(tmp_path: Path, origin: Path) -> None:
    run_training(tmp_path / "next", settings_of(tmp_path, from_run=str(origin)))
    run_training(tmp_path / "long", settings_of(tmp_path, schedule=replace(STEADY, max_steps=6)))
    assert weights_of(tmp_path / "next") == weights_of(tmp_path / "long") != weights_of(origin)
    long, following = metrics_of(tmp_path / "long"), metrics_of(tmp_path / "next")
    assert [line["step"] for line in following] == [4, 5, 6]
    for ours, theirs in zip(following, long[3:], strict=True):
        assert (ours["start"], ours["tokens"]) == (theirs["start"], theirs["tokens"])
    assert not (tmp_path / "next" / "corpus").exists()  # the blocks of the other run


def test_joint_reading_may_begin_in_a_run_that_goes_on(tmp_path: Path) -> None:
    """Half of the copies read in both; what reading adds to the loss begins with the second run."""

    def settings(reading_weight: float, from_run: str = "") -> TrainingSettings:
        chosen = settings_of(tmp_path, from_run=from_run)
        masking = replace(chosen.masking, context_fraction=0.5)
        return replace(chosen, masking=masking, objective=replace(chosen.objective, reading_weight=reading_weight))

    run_training(tmp_path / "first", settings(0.0))
    run_training(tmp_path / "reading", settings(1.0, from_run=str(tmp_path / "first")))
    assert not any("reading_start" in line for line in metrics_of(tmp_path / "first"))
    assert any("reading_start" in line for line in metrics_of(tmp_path / "reading"))  # one step has no such spans


def test_a_run_that_went_on_from_another_has_no_blocks_to_lend_and_gets_none(tmp_path: Path, origin: Path) -> None:
    run_training(tmp_path / "next", settings_of(tmp_path, from_run=str(origin)))
    names = sorted(path.name for path in (tmp_path / "next").iterdir())
    run_training(tmp_path / "last", settings_of(tmp_path, from_run=str(tmp_path / "next")))
    assert sorted(path.name for path in (tmp_path / "next").iterdir()) == names
    assert (tmp_path / "last" / "corpus" / "manifest.json").is_file()
    run_training(tmp_path / "long", settings_of(tmp_path, schedule=replace(STEADY, max_steps=9)))
    assert weights_of(tmp_path / "last") == weights_of(tmp_path / "long")


def test_the_schedule_begins_at_the_checkpoint_also_after_a_kill(tmp_path: Path, origin: Path) -> None:
    settings = settings_of(tmp_path, schedule=TO_ZERO, from_run=str(origin), checkpoint_every_minutes=0.0)

    def stop(done: Any) -> None:
        if done.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path / "killed", settings, report_step=stop)
    shutil.rmtree(origin / "checkpoints")  # the other run went on, or its checkpoints were removed
    run_training(tmp_path / "killed", settings)
    lines = metrics_of(tmp_path / "killed")
    assert [line["step"] for line in lines] == [4, 5, 6]
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-2 * 2 / 3, 1e-2 / 3, 0.0])
    assert lines[-1]["seconds"] > metrics_of(origin)[-1]["seconds"]


def test_a_decay_by_the_clock_counts_from_the_checkpoint_too(tmp_path: Path, origin: Path) -> None:
    saved = RunFolder(origin).latest_checkpoint()
    assert saved is not None
    hours_later = RunFolder(tmp_path / "later")
    shutil.copytree(origin, hours_later.path, ignore=shutil.ignore_patterns("checkpoints", "encoder"))
    hours_later.save_checkpoint(replace(saved, counters=replace(saved.counters, seconds=7200.0)))
    by_clock = ScheduleSettings(max_minutes=0.01, learning_rate=1e-2, warmup_fraction=0.0)
    run_training(tmp_path / "next", settings_of(tmp_path, schedule=by_clock, from_run=str(hours_later.path)))
    lines = metrics_of(tmp_path / "next")
    assert lines[0]["step"] == 4 and lines[0]["learning_rate"] == pytest.approx(1e-2, rel=1e-3)
    assert lines[-1]["seconds"] > 7200


def test_a_run_of_other_settings_is_refused_by_name(tmp_path: Path, origin: Path) -> None:
    with pytest.raises(SettingError, match=r"trainer.layer_decay"):
        run_training(tmp_path / "next", settings_of(tmp_path, from_run=str(origin), layer_decay=0.5))
    assert not (tmp_path / "next").exists()


def test_what_is_no_run_and_a_run_without_a_checkpoint_are_refused(tmp_path: Path, origin: Path) -> None:
    settings = settings_of(tmp_path, from_run=str(tmp_path / "nothing"))
    with pytest.raises(ArtifactError, match=r"settings.json"):
        run_training(tmp_path / "next", settings)
    shutil.rmtree(origin / "checkpoints")
    with pytest.raises(SettingError, match="has no checkpoint"):
        run_training(tmp_path / "next", settings_of(tmp_path, from_run=str(origin)))
    assert not (tmp_path / "next").exists()
