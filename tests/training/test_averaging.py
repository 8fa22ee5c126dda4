"""Averaged weights: their arithmetic, what is measured and saved with them, and that training goes on without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from npm.core.errors import ArtifactError
from npm.training.averaging import AveragedWeights
from npm.training.settings import TrainingEvaluationSettings
from tests.helpers.toy_training import parameters_of, toy_trainer


def one_weight(value: float) -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([value]))
    model.fixed = nn.Parameter(torch.tensor([7.0]), requires_grad=False)
    return model


def set_weight(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        model.get_parameter("weight").fill_(value)


def test_the_average_by_hand() -> None:
    model = one_weight(11.0)
    averaged = AveragedWeights(model, decay=0.2)
    set_weight(model, 22.0)
    averaged.update(step=1)  # 2/11 of the old one
    assert averaged.state()["weight"].item() == pytest.approx(11.0 * 2 / 11 + 22.0 * 9 / 11)
    set_weight(model, 5.0)
    averaged.update(step=2)  # 3/12 would be above 0.2
    assert averaged.state()["weight"].item() == pytest.approx(20.0 * 0.2 + 5.0 * 0.8)
    assert averaged.state().keys() == {"weight"}


def test_the_model_has_its_own_weights_again_after_an_error_too() -> None:
    model = one_weight(1.0)
    averaged = AveragedWeights(model, decay=0.5)
    set_weight(model, 3.0)
    with pytest.raises(KeyError), averaged.in_place():
        assert model.get_parameter("weight").item() == 1.0
        raise KeyError
    assert model.get_parameter("weight").item() == 3.0


def test_a_run_with_averages_trains_as_without_and_saves_and_measures_the_average(tmp_path: Path) -> None:
    measured: list[float] = []

    def run(name: str, **settings: Any) -> Any:
        trainer = toy_trainer(
            tmp_path / name,
            max_steps=4,
            parts=("masked",),
            evaluation=TrainingEvaluationSettings(every_steps=2, best="length"),
            evaluators=[lambda: {"length": measure(trainer)}],
            **settings,
        )
        trainer.train()
        return trainer

    def measure(trainer: Any) -> float:
        measured.append(float(trainer.model.encoder_model.embeddings.word_embeddings.weight.norm()))
        return measured[-1]

    without, averaging = run("without"), run("with", ema_decay=0.75)
    raw, end = parameters_of(without), parameters_of(averaging)
    assert all(torch.equal(raw[name], end[name]) for name in raw)
    means = averaging.averaged.state()
    name = "embeddings.word_embeddings.weight"
    saved = safetensors.torch.load_file(tmp_path / "with" / "encoder" / "model.safetensors")
    assert torch.equal(saved[name], means[f"encoder_model.{name}"])
    assert not torch.equal(saved[name], raw[f"encoder_model.{name}"])
    assert measured[-1] == pytest.approx(float(saved[name].norm())) != pytest.approx(measured[2], rel=1e-6)
    best = safetensors.torch.load_file(tmp_path / "with" / "best-encoder" / "model.safetensors")
    assert float(best[name].norm()) == pytest.approx(min(measured[3:]))


def test_a_checkpoint_without_the_averages_of_its_run_is_refused(tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", max_steps=2, checkpoint_every_minutes=0.0).train()
    with pytest.raises(ArtifactError, match="KeyError"):
        toy_trainer(tmp_path / "run", max_steps=2, ema_decay=0.5).train()
