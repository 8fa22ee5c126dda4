"""Which parameters are trained and which decay, in every family of models; the learning rate by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, T5Config, T5ForConditionalGeneration

from npm.core.errors import SettingError
from npm.objectives.settings import MaskedSettings, ObjectiveSettings
from npm.training.model import load_start, make_objective
from npm.training.optimizer import Lion, freeze, make_optimizer, parameter_groups
from npm.training.settings import (
    FrozenSettings,
    ScheduleSettings,
    StartSettings,
    TrainerSettings,
    TrainingSettings,
)
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.toy_training import parameters_of, toy_trainer


def tiny_t5() -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(num_layers=3, num_decoder_layers=2, **sizes))


def decays(model: nn.Module) -> dict[str, bool]:
    """Of each trained parameter by name, whether it decays."""
    decay = {
        id(parameter): bool(group["weight_decay"])
        for group in parameter_groups(model, weight_decay=0.125)
        for parameter in group["params"]
    }
    return {name: decay[id(p)] for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "t5"])
def test_matrices_and_embeddings_decay_and_biases_and_norms_do_not(family: str) -> None:
    decided = decays(tiny_t5() if family == "t5" else tiny_encoder(family).model)
    for name, decides in decided.items():
        is_steady = "bias" in name or "norm" in name.lower()
        assert decides == (not is_steady), name


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        (FrozenSettings(), {"embeddings", "encoder.layer.0", "encoder.layer.1", "head"}),
        (FrozenSettings(layers=1), {"embeddings", "encoder.layer.1", "head"}),
        (FrozenSettings(embeddings=True), {"encoder.layer.0", "encoder.layer.1", "head"}),
        (FrozenSettings(embeddings=True, layers=1), {"encoder.layer.1", "head"}),
        (FrozenSettings(word_embeddings=True), {"embeddings", "encoder.layer.0", "encoder.layer.1", "head"}),
    ],
)
def test_frozen_parts_stay_as_they_are_in_training(tmp_path: Path, settings: FrozenSettings, moved: set[str]) -> None:
    """The masked-token head predicts with the embeddings: they are one parameter, and stay as they are together."""
    encoder = tiny_encoder("bert")
    freeze(encoder.model, settings)
    trainer = toy_trainer(tmp_path / "run", max_steps=2, parts=("masked",), encoder=encoder)
    before = parameters_of(trainer)
    trainer.train()
    parts = {"embeddings": "encoder_model.embeddings.", "head": "objective."}
    parts |= {f"encoder.layer.{n}": f"encoder_model.encoder.layer.{n}." for n in (0, 1)}
    after = parameters_of(trainer)
    changed = {
        part
        for part, prefix in parts.items()
        if any(not torch.equal(before[name], after[name]) for name in before if name.startswith(prefix))
    }
    assert changed == moved


def test_layers_that_share_their_weights_are_not_frozen_one_by_one() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3}
    model = AlbertModel(AlbertConfig(vocab_size=20, embedding_size=8, **sizes))
    assert make_optimizer(model, TrainerSettings()).param_groups
    with pytest.raises(SettingError, match=r"start.frozen.layers"):
        freeze(model, FrozenSettings(layers=1))


def test_frozen_weights_are_not_handed_to_the_optimizer_and_nothing_else_is_refused() -> None:
    model = tiny_encoder("bert").model
    freeze(model, FrozenSettings(embeddings=True, layers=1))
    given = [each for group in make_optimizer(model, TrainerSettings()).param_groups for each in group["params"]]
    assert {id(each) for each in given} == {id(each) for each in model.encoder.layer[1].parameters()}
    model.requires_grad_(False)
    with pytest.raises(SettingError, match=r"start\.frozen"):
        make_optimizer(model, TrainerSettings())


def test_frozen_word_embeddings_leave_an_untied_head_its_own_matrix(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "start")
    settings = TrainingSettings(
        encoder=str(tmp_path / "start"),
        device="cpu",
        start=StartSettings(frozen=FrozenSettings(word_embeddings=True)),
        objective=ObjectiveSettings(nonparametric_weight=0, masked_weight=1, masked=MaskedSettings(untied=True)),
    )
    trained = load_start(settings)
    head = make_objective(settings, trained).objectives["masked"].head
    frozen = [name for name, parameter in trained.model.named_parameters() if not parameter.requires_grad]
    assert frozen == ["embeddings.word_embeddings.weight"]
    assert torch.equal(head.matrix, head.embedding.weight) and head.matrix is not head.embedding.weight
    assert all(parameter.requires_grad for parameter in head.parameters())


def test_lion_moves_by_the_sign_of_its_momentum_worked_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = Lion([{"params": [weight], "weight_decay": 0.5, "lr": 0.1}])
    momentum, expected = torch.zeros(3), weight.detach().clone()
    for gradient in (torch.tensor([1.0, -1.0, 0.0]), torch.tensor([-0.05, -1.0, 2.0])):
        weight.grad = gradient.clone()
        optimizer.step()
        direction = torch.sign(0.9 * momentum + 0.1 * gradient)
        expected = expected - 0.1 * (direction + 0.5 * expected)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(weight.detach(), expected)
    # after one step with a gradient of 1, one of −0.05 does not turn the direction: 0.9 · 0.01 − 0.1 · 0.05 > 0
    assert direction.tolist() == [1.0, -1.0, 1.0]


def test_the_rate_rises_to_its_peak_and_falls_to_its_final_share() -> None:
    """Warm-up takes the first fifth; 0.6 is half way from there to the end, and 0.3125 half way from 0.5 to 0.125."""
    schedule = ScheduleSettings(max_steps=10, learning_rate=0.5, warmup_fraction=0.2, final_fraction=0.25)
    rates = [schedule.learning_rate_at(progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.3125, 0.125])
    steady = ScheduleSettings(max_steps=10, learning_rate=0.5, warmup_fraction=0)
    assert [steady.learning_rate_at(progress) for progress in (0.0, 1.0)] == [0.5, 0.0]


def test_progress_counts_steps_or_minutes_whichever_the_run_is_measured_in() -> None:
    by_steps = ScheduleSettings(max_steps=8)
    assert [by_steps.progress(steps_done=steps, minutes_done=99) for steps in (0, 2, 8, 9)] == [0, 0.25, 1, 1]
    by_clock = ScheduleSettings(max_minutes=2.5)
    assert [by_clock.progress(steps_done=99, minutes_done=minutes) for minutes in (0, 0.5, 2.5, 3)] == [0, 0.2, 1, 1]
    for given in ({}, {"max_steps": 5, "max_minutes": 1.0}):
        with pytest.raises(SettingError, match="max_steps"):
            ScheduleSettings(**given)  # type: ignore[arg-type]
