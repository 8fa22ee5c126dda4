"""A run folder keeps to its settings and its newest whole checkpoint; a run goes on from that of another."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from npm.core.artifact import write_folder
from npm.core.errors import ArtifactError, SettingError, UserError
from npm.corpus.settings import CorpusSettings
from npm.models.encoder import Encoder
from npm.objectives.settings import BlockTeacherSettings, ObjectiveSettings
from npm.training.checkpoints import CHECKPOINT_KIND, Checkpoint, Counters, RunFolder
from npm.training.record import as_record
from npm.training.run import run_training
from npm.training.settings import OptimizerKind, ScheduleSettings, StartSettings, TrainerSettings, TrainingSettings
from tests.helpers.made_once import made_once
from tests.helpers.power_cut import Disk
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.toy_training import Stopped, metrics_of, stop_at, toy_settings
from tests.training.test_validation import scripted_trainer


def checkpoint_at(step: int) -> Checkpoint:
    return Checkpoint(
        Counters(step=step, seconds=0.1 + step, tokens=100 * step, best={"value": 0.5, "step": None}),
        {
            "weights": {"weight": torch.full((2, 3), float(step))},
            "optimizer": {"0.step": torch.tensor(float(step)), "0.exp_avg": torch.ones(2, 3)},
            "generators": {"0-cpu": torch.arange(7, dtype=torch.uint8)},
            "averages": {},
        },
    )


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.start({"learning_rate": 0.5, "files": ("a", "b")})
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("corpus.skip_bad", {"corpus": CorpusSettings(skip_bad=True)}),
        (
            "objective.block_teacher.encoder",
            {"objective": ObjectiveSettings(block_teacher=BlockTeacherSettings(encoder="minilm"))},
        ),
        ("trainer.optimizer", {"trainer": TrainerSettings(optimizer=OptimizerKind.lion)}),
        ("packed", {"packed": "runs/a"}),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    settings = as_record(TrainingSettings(), ranks=1)
    for _ in range(2):
        RunFolder(tmp_path).start(settings)
    with pytest.raises(SettingError, match=name):
        RunFolder(tmp_path).start(as_record(TrainingSettings(**changes), ranks=1))


def test_only_the_newest_checkpoint_stays_and_reads_back(run_folder: RunFolder) -> None:
    assert run_folder.latest_checkpoint() is None
    left_by_a_killed_run = run_folder.path / "checkpoints" / ".step-00000002.tmp"
    left_by_a_killed_run.mkdir(parents=True)
    for step in (1, 9, 10):
        run_folder.save_checkpoint(checkpoint_at(step))
    assert names_in(run_folder.path / "checkpoints") == ["step-00000010"]
    read, written = run_folder.latest_checkpoint(), checkpoint_at(10)
    assert read is not None
    assert (read.counters, read.counters.tokens) == (written.counters, 1000)
    torch.testing.assert_close(read.tensors, written.tensors, rtol=0, atol=0)


def test_a_full_disk_leaves_no_half_written_settings_and_keeps_the_checkpoint_before(
    run_folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder.save_checkpoint(checkpoint_at(1))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _refuse)
        for write in (
            lambda: RunFolder(tmp_path / "new").start({"seed": 1}),
            lambda: run_folder.save_checkpoint(checkpoint_at(2)),
        ):
            with pytest.raises(OSError, match="No space left on device"):
                write()
    assert not (tmp_path / "new").exists()
    assert names_in(run_folder.path / "checkpoints") == ["step-00000001"]
    assert (newest := run_folder.latest_checkpoint()) is not None and newest.counters.step == 1


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "generators.safetensors"])
def test_a_flipped_byte_in_a_checkpoint_is_refused(run_folder: RunFolder, name: str) -> None:
    run_folder.save_checkpoint(checkpoint_at(1))
    file = run_folder.path / "checkpoints" / "step-00000001" / name
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    with pytest.raises(ArtifactError, match=str(file)):
        run_folder.latest_checkpoint()


def test_metrics_are_lines_of_json_cut_after_a_step(run_folder: RunFolder) -> None:
    run_folder.cut_metrics(5)  # nothing there yet
    for step in range(1, 6):
        run_folder.log({"step": step, "loss": 0.5 * step})
    with run_folder.metrics_path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed in the middle of a line
    run_folder.cut_metrics(3)
    lines = run_folder.metrics_path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": step, "loss": 0.5 * step} for step in (1, 2, 3)]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "encoder", "corpus"])
def test_a_run_whose_settings_are_gone_does_not_go_on_unchecked(run_folder: RunFolder, name: str) -> None:
    (run_folder.path / "settings.json").rename(run_folder.path / name)
    with pytest.raises(ArtifactError, match=r"settings\.json"):
        run_folder.start({"learning_rate": 0.5, "files": ("a", "b")})
    assert names_in(run_folder.path) == [name]


@pytest.mark.parametrize(
    "line", [b"\x00\xff\xfe", b"[1]", b'{"loss": 1.0}', b'{"step": "3"}', b'{"step": 1, "tokens": "x"}', b"[" * 10**5]
)
def test_metrics_that_are_no_lines_of_numbers_are_named_by_their_line(run_folder: RunFolder, line: bytes) -> None:
    run_folder.log({"step": 1})
    with run_folder.metrics_path.open("ab") as file:
        file.write(line + b"\n")
    before = run_folder.metrics_path.read_bytes()
    with pytest.raises(ArtifactError, match=f"{run_folder.metrics_path}:2"):
        run_folder.cut_metrics(5)
    assert run_folder.metrics_path.read_bytes() == before


def test_counters_that_are_none_are_refused_with_the_folder_to_remove(run_folder: RunFolder) -> None:
    folder = run_folder.path / "checkpoints" / "step-00000007"
    right = {"step": 7, "seconds": 1.0, "tokens": 1, "best": {}}
    for settings in ({}, {**right, "best": 3}, {**right, "step": None}, {**right, "step": -1}, right):  # and no weights
        with write_folder(folder, kind=CHECKPOINT_KIND, settings=settings):
            pass
        with pytest.raises(ArtifactError, match=str(folder)):
            run_folder.latest_checkpoint()
        shutil.rmtree(folder)


def test_what_others_put_beside_checkpoints_and_encoders_stays(run_folder: RunFolder) -> None:
    run_folder.save_checkpoint(checkpoint_at(1))
    run_folder.save_encoder(tiny_encoder("bert"), "best-encoder")
    mine = {
        run_folder.path / "checkpoints" / "step-by-step.md",
        run_folder.path / "checkpoints" / ".step-1.tmp" / "mine.txt",
        run_folder.path / "best-encoder" / "README.md",
    }
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    run_folder.save_checkpoint(checkpoint_at(2))
    other = tiny_encoder("bert", seed=1)
    run_folder.save_encoder(other, "best-encoder")
    assert all(file.read_text() == "mine" for file in mine)
    assert not (run_folder.path / "checkpoints" / "step-00000001").exists()
    assert Encoder.load(str(run_folder.path / "best-encoder"), device="cpu").fingerprint == other.fingerprint
    assert (checkpoint := run_folder.latest_checkpoint()) is not None and checkpoint.counters.step == 2


def test_what_a_killed_run_left_of_an_encoder_is_written_anew(run_folder: RunFolder) -> None:
    left = run_folder.path / ".encoder.tmp"
    (left / "1_Pooling").mkdir(parents=True)
    (left / "1_Pooling" / "config.json").write_text("{")
    (left / "model.safetensors").write_bytes(b"half")
    run_folder.check()
    encoder = tiny_encoder("bert")
    run_folder.save_encoder(encoder)
    assert names_in(run_folder.path) == ["encoder", "settings.json"]
    assert not (run_folder.encoder_path / "1_Pooling").exists()
    assert Encoder.load(str(run_folder.encoder_path), device="cpu").fingerprint == encoder.fingerprint


def test_a_full_disk_while_saving_the_encoder_keeps_the_one_before(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tiny_encoder("bert")
    run_folder.save_encoder(encoder)
    weights = (run_folder.encoder_path / "model.safetensors").read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", _refuse_tensors)
        with pytest.raises(OSError, match="No space left on device"):
            run_folder.save_encoder(encoder)
    assert (run_folder.encoder_path / "model.safetensors").read_bytes() == weights
    run_folder.save_encoder(encoder)
    assert names_in(run_folder.path) == ["encoder", "settings.json"]


def test_an_encoder_is_flushed_before_it_has_its_name(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    for _ in range(2):  # new, then over an older one
        run_folder.save_encoder(tiny_encoder("bert"))
        disk.check(run_folder.encoder_path)
    assert disk.renames > 2


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _refuse_tensors(*_: Any, **__: Any) -> None:
    raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")


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


@pytest.fixture(scope="module")
def place() -> Path:
    """A corpus, an encoder, and runs of three, six and nine steps on them. Not to be changed."""

    def make(folder: Path) -> None:
        for name, steps in (("origin", 3), ("six", 6), ("nine", 9)):
            run_training(folder / name, settings_of(folder, schedule=replace(STEADY, max_steps=steps)))

    return made_once("run-with-checkpoints", make)


@pytest.fixture
def origin(place: Path, tmp_path: Path) -> Path:
    """A copy of the short run."""
    return Path(shutil.copytree(place / "origin", tmp_path / "origin"))


def test_three_runs_one_from_the_other_are_one_long_run(place: Path, origin: Path, tmp_path: Path) -> None:
    run_training(tmp_path / "next", settings_of(place, from_run=str(origin)))
    assert weights_of(tmp_path / "next") == weights_of(place / "six") != weights_of(origin)
    long, following = metrics_of(place / "six"), metrics_of(tmp_path / "next")
    assert [line["step"] for line in following] == [4, 5, 6]
    for ours, theirs in zip(following, long[3:], strict=True):
        assert (ours["start"], ours["tokens"]) == (theirs["start"], theirs["tokens"])
    assert not (tmp_path / "next" / "corpus").exists()  # the blocks of the other run: there are none to lend
    names = names_in(tmp_path / "next")
    run_training(tmp_path / "last", settings_of(place, from_run=str(tmp_path / "next")))
    assert names_in(tmp_path / "next") == names
    assert (tmp_path / "last" / "corpus" / "manifest.json").is_file()
    assert weights_of(tmp_path / "last") == weights_of(place / "nine")


def test_joint_reading_may_begin_in_a_run_that_goes_on(place: Path, tmp_path: Path) -> None:
    """Half of the copies read in both; what reading adds to the loss begins with the second run."""

    def settings(reading_weight: float, from_run: str = "") -> TrainingSettings:
        chosen = settings_of(place, from_run=from_run)
        masking = replace(chosen.masking, context_fraction=0.5)
        return replace(chosen, masking=masking, objective=replace(chosen.objective, reading_weight=reading_weight))

    run_training(tmp_path / "first", settings(0.0))
    run_training(tmp_path / "reading", settings(1.0, from_run=str(tmp_path / "first")))
    assert not any("reading_start" in line for line in metrics_of(tmp_path / "first"))
    assert any("reading_start" in line for line in metrics_of(tmp_path / "reading"))  # one step has no such spans


def test_the_schedule_begins_at_the_checkpoint_also_after_a_kill(place: Path, origin: Path, tmp_path: Path) -> None:
    settings = settings_of(place, schedule=TO_ZERO, from_run=str(origin), checkpoint_every_minutes=0.0)

    with pytest.raises(Stopped):
        run_training(tmp_path / "killed", settings, report_step=stop_at(5))
    shutil.rmtree(origin / "checkpoints")  # the other run went on, or its checkpoints were removed
    run_training(tmp_path / "killed", settings)
    lines = metrics_of(tmp_path / "killed")
    assert [line["step"] for line in lines] == [4, 5, 6]
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-2 * 2 / 3, 1e-2 / 3, 0.0])
    assert lines[-1]["seconds"] > metrics_of(origin)[-1]["seconds"]


def test_a_decay_by_the_clock_counts_from_the_checkpoint_too(place: Path, origin: Path, tmp_path: Path) -> None:
    saved = RunFolder(origin).latest_checkpoint()
    assert saved is not None
    hours_later = RunFolder(tmp_path / "later")
    shutil.copytree(origin, hours_later.path, ignore=shutil.ignore_patterns("checkpoints", "encoder"))
    hours_later.save_checkpoint(replace(saved, counters=replace(saved.counters, seconds=7200.0)))
    by_clock = ScheduleSettings(max_minutes=0.01, learning_rate=1e-2, warmup_fraction=0.0)
    run_training(tmp_path / "next", settings_of(place, schedule=by_clock, from_run=str(hours_later.path)))
    lines = metrics_of(tmp_path / "next")
    assert lines[0]["step"] == 4 and lines[0]["learning_rate"] == pytest.approx(1e-2, rel=1e-3)
    assert lines[-1]["seconds"] > 7200


def test_what_is_no_run_of_these_settings_with_a_checkpoint_is_refused(
    place: Path, origin: Path, tmp_path: Path
) -> None:
    bare = shutil.copytree(origin, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    for run, changes, named in (
        (tmp_path / "nothing", {}, r"settings.json"),
        (origin, {"adam_beta2": 0.5}, r"trainer.adam_beta2"),
        (bare, {}, "has no checkpoint"),
    ):
        with pytest.raises(UserError, match=named):
            run_training(tmp_path / "next", settings_of(place, from_run=str(run), **changes))
        assert not (tmp_path / "next").exists()


def test_a_run_that_goes_on_has_a_best_encoder_and_a_patience_of_its_own(tmp_path: Path) -> None:
    scripted_trainer(tmp_path / "first", {0: 0.1, 2: 0.9}, max_steps=2).train()
    patience = {"evaluation": {"patience_evaluations": 2}}
    following = scripted_trainer(tmp_path / "next", {2: 0.3, 4: 0.2, 6: 0.4, 8: 0.1, 10: 0.2}, max_steps=2, **patience)
    following.run_folder.continue_from(RunFolder(tmp_path / "first"))
    following.schedule = replace(following.schedule, max_steps=10)
    following.train()
    assert (tmp_path / "next" / "best-encoder").is_dir()
    assert (following.early_stopping.value, following.early_stopping.step, following.step) == (0.4, 6, 10)


def test_the_config_of_an_encoder_comes_last_over_an_older_one(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before that leaves the old one, which says by its digest that the weights are others."""
    run_folder.save_encoder(tiny_encoder("bert"))
    placed: list[Path] = []
    real = Path.replace

    def noted(self: Path, target: Path) -> Path:
        placed.append(Path(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    run_folder.save_encoder(tiny_encoder("bert", seed=1))
    assert {path.name for path in placed} >= {"model.safetensors", "config.json"}
    assert placed[-1] == run_folder.encoder_path / "config.json"
