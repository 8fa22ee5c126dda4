"""The loop in one process: it learns, accumulates, resumes to the bit, and stops when numbers go bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npm.core.errors import SettingError
from npm.models.encoder import Encoder
from npm.training import trainer as trainer_module
from npm.training.checkpoints import Checkpoint, Counters, captured_state, restore_state
from npm.training.settings import OptimizerKind, TrainingSettings
from npm.training.trainer import StepReport
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.toy_training import (
    STEEP,
    Stopped,
    metrics_of,
    parameters_of,
    stop_at,
    toy_trainer,
    untimed_metrics_of,
)

PARTS = ("phrase", "masked")


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("parts", [("phrase",), ("masked",), PARTS])
def test_the_loss_falls_on_text_that_can_be_learned(tmp_path: Path, parts: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {"learning_rate": 1e-2, "groups_per_device_batch": 4}
    toy_trainer(tmp_path / "run", max_steps=30, parts=parts, **settings).train()
    lines = metrics_of(tmp_path / "run")
    names = [name for name in ("start", "end", "masked") if name in lines[0]]
    losses = [sum(line[name] for name in names) for line in lines]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_metrics_tell_every_step_and_the_finished_encoder_is_what_was_trained(tmp_path: Path) -> None:
    reports: list[StepReport] = []
    trainer = toy_trainer(tmp_path / "run", max_steps=6, log_every_steps=2)
    before = trainer.trained.fingerprint
    trainer.train(reports.append)
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report.progress for report in reports] == pytest.approx([step / 6 for step in range(1, 7)])
    expected = {"step", "tokens", "seconds", "learning_rate", "tokens_per_second", "data_fraction"}
    expected |= {"start", "end", "masked"}
    assert expected | {"start_top1", "end_top1", "masked_top1"} == set(lines[0])
    assert (
        lines[0]["tokens"]
        == reports[1].tokens
        == sum(int(trainer.batches[step].views["phrases"].key_attention_mask.sum()) for step in (0, 1))
    )
    assert all(0 <= line[name] <= 1 for line in lines for name in ("start_top1", "end_top1", "masked_top1"))

    saved = Encoder.load(str(tmp_path / "run" / "encoder"), device="cpu", dtype="float32")
    assert saved.fingerprint == trainer.trained.fingerprint != before
    assert saved.similarity_scale == pytest.approx(0.3)
    assert not trainer.trained.model.training


def interrupted_run(run: Path, *, max_steps: int, stops: tuple[int, ...], **settings: Any) -> dict[str, torch.Tensor]:
    """Parameters after a run that was killed in each of the steps `stops` and started again each time."""
    for step in stops:
        with pytest.raises(Stopped):
            toy_trainer(run, max_steps=max_steps, **settings).train(stop_at(step))
    trainer = toy_trainer(run, max_steps=max_steps, **settings)
    trainer.train()
    return parameters_of(trainer)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_was_killed_and_started_again_ends_in_the_same_bits(tmp_path: Path, workers: int) -> None:
    """Three micro-batches a step and eight an epoch: the third, sixth and eighth step read of two epochs."""
    settings = {"dropout": 0.2, "accumulation_steps": 3, "checkpoint_every_minutes": 0.0, "workers": workers}
    undisturbed = toy_trainer(tmp_path / "undisturbed", max_steps=12, **settings)
    undisturbed.train()
    resumed = interrupted_run(tmp_path / "killed", max_steps=12, stops=(7, 11), **settings)
    assert_same_bits(resumed, parameters_of(undisturbed))
    left, right = (untimed_metrics_of(tmp_path / name) for name in ("undisturbed", "killed"))
    assert [line["step"] for line in right] == list(range(1, 13))
    assert left == right
    weights = [(tmp_path / name / "encoder" / "model.safetensors").read_bytes() for name in ("undisturbed", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": OptimizerKind.lion},
        {"ema_decay": 0.9},
        {"parts": ("phrase",), "context_fraction": 0.5},
    ],
    ids=["lion", "ema_decay", "reading"],
)
def test_a_run_goes_on_to_the_same_bits_with_each_way_to_move_the_weights(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    undisturbed = toy_trainer(tmp_path / "undisturbed", max_steps=6, **settings)
    start = parameters_of(undisturbed)
    undisturbed.train()
    resumed = interrupted_run(tmp_path / "killed", max_steps=6, stops=(3,), checkpoint_every_minutes=0.0, **settings)
    assert_same_bits(resumed, parameters_of(undisturbed))
    assert not [name for name, weight in resumed.items() if torch.equal(weight, start[name])]
    files = [tmp_path / name / "encoder" / "model.safetensors" for name in ("undisturbed", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    toy_trainer(tmp_path / "plain", max_steps=6, parts=settings.get("parts", PARTS)).train()
    assert (tmp_path / "plain" / "encoder" / "model.safetensors").read_bytes() != files[0].read_bytes()


def test_a_run_started_again_changes_nothing_when_finished_and_begins_anew_without_a_checkpoint(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "run", max_steps=3, stops=(2,), checkpoint_every_minutes=60.0)
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    again = toy_trainer(tmp_path / "run", max_steps=3)
    again.train(stop_at(4))
    first = toy_trainer(tmp_path / "first", max_steps=3)
    first.train()
    assert_same_bits(parameters_of(again), parameters_of(first))
    assert metrics_of(tmp_path / "run") == lines


def test_a_checkpoint_of_other_processes_another_architecture_or_objective_is_refused(tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", max_steps=2).train()
    for changes, named in (
        ({"encoder": tiny_encoder("bert", dimensions=16)}, r"LayerNorm\.bias"),
        ({"parts": ("phrase",)}, r"masked\.head\.bias"),
    ):
        with pytest.raises(SettingError, match=named):
            toy_trainer(tmp_path / "run", max_steps=2, **changes).train()  # type: ignore[arg-type]
    trainer = toy_trainer(tmp_path / "other", max_steps=2)
    checkpoint = toy_trainer(tmp_path / "run", max_steps=2).run_folder.latest_checkpoint()
    assert checkpoint is not None
    checkpoint.tensors["generators"]["1-cpu"] = checkpoint.tensors["generators"]["0-cpu"].clone()
    trainer.run_folder.save_checkpoint(checkpoint)
    with pytest.raises(SettingError, match="2 processes, got 1"):
        trainer.train()


def test_optimizer_state_comes_back_with_its_formats(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizers = [torch.optim.AdamW(model.parameters(), fused=True) for _ in range(2)]
    model(torch.randn(4, 3)).sum().backward()
    optimizers[0].step()
    saved = Checkpoint(Counters(step=1, seconds=0.0, tokens=0), captured_state(model, optimizers[0], {}))
    restore_state(saved, model, optimizers[1], where=tmp_path)
    for weight in model.parameters():
        before, after = (optimizer.state[weight] for optimizer in optimizers)
        assert {name: value.dtype for name, value in before.items()} == {n: v.dtype for n, v in after.items()}
        torch.testing.assert_close(dict(before), dict(after), rtol=0, atol=0)


def parameters_after(run: Path, **settings: Any) -> dict[str, torch.Tensor]:
    trainer = toy_trainer(run, **STEEP, **settings)
    trainer.train()
    return parameters_of(trainer)


def test_the_launcher_cannot_divide_gradients_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parameters_after(tmp_path / "a")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert_same_bits(parameters_after(tmp_path / "b"), expected)


def test_the_seed_of_dropouts_waits_for_the_number_of_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the accelerator is made there is no process group, and every process believes to be the first."""
    known = []

    def make_accelerator(settings: TrainingSettings) -> Any:
        known.append(5)
        return original(settings)

    original = trainer_module.make_accelerator
    monkeypatch.setattr(trainer_module, "make_accelerator", make_accelerator)
    monkeypatch.setattr(trainer_module, "rank", lambda: known[0] if known else 0)
    toy_trainer(tmp_path / "run", max_steps=1, seed=100, rank=5)
    assert torch.initial_seed() == 105
