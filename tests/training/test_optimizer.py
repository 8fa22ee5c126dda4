"""Which parameters are trained and which decay, in every family of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from npm.errors import SettingError
from npm.training.optimizer import freeze, layer_stacks, parameter_groups
from npm.training.settings import FrozenSettings
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


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_matrices_and_embeddings_decay_and_biases_and_norms_do_not(family: str) -> None:
    for name, decides in decays(tiny_encoder(family).model).items():
        is_steady = name.endswith("bias") or "norm" in name.lower()
        assert decides == (not is_steady), name


def test_the_norms_and_the_position_bias_of_t5_do_not_decay() -> None:
    decided = decays(tiny_t5())
    assert decided["shared.weight"]
    assert decided["encoder.block.0.layer.0.SelfAttention.q.weight"]
    assert not decided["encoder.block.0.layer.0.layer_norm.weight"]
    assert not decided["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    assert not decided["decoder.final_layer_norm.weight"]


def test_every_trained_parameter_is_in_one_group_once_and_frozen_ones_in_none(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=1)
    freeze(trainer.model.encoder_model, FrozenSettings(layers=1))
    grouped = [p for group in parameter_groups(trainer.model, weight_decay=0.1) for p in group["params"]]
    expected = [p for p in trainer.model.parameters() if p.requires_grad]
    assert sorted(map(id, grouped)) == sorted(map(id, expected))
    assert len(expected) < len(list(trainer.model.parameters()))


def test_the_optimizer_of_a_trainer_decays_as_the_groups_say(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=1, weight_decay=0.125)
    decay = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, parameter in trainer.model.named_parameters():
        is_steady = name.endswith(("bias", "log_scale")) or "LayerNorm" in name or ".transform.2." in name
        assert decay[id(parameter)] == (0.0 if is_steady else 0.125), name


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_the_layers_are_found(family: str) -> None:
    (stack,) = layer_stacks(tiny_encoder(family).model)
    assert len(stack) == 2


def test_both_halves_of_an_encoder_decoder_are_frozen() -> None:
    model = tiny_t5()
    assert [len(stack) for stack in layer_stacks(model)] == [3, 2]
    names = freeze(model, FrozenSettings(layers=1))
    assert {name.split(".layer.")[0] for name in names} == {"encoder.block.0", "decoder.block.0"}


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        (FrozenSettings(), {"embeddings", "encoder.layer.0", "encoder.layer.1", "head"}),
        (FrozenSettings(layers=1), {"embeddings", "encoder.layer.1", "head"}),
        (FrozenSettings(embeddings=True), {"encoder.layer.0", "encoder.layer.1", "head"}),
        (FrozenSettings(embeddings=True, layers=1), {"encoder.layer.1", "head"}),
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


@pytest.mark.parametrize(("settings", "where"), [({"layers": 3}, "start.frozen.layers"), ({"layers": -1}, "layers")])
def test_layers_that_are_not_there_are_refused(settings: dict[str, int], where: str) -> None:
    with pytest.raises(SettingError) as caught:
        freeze(tiny_encoder("bert").model, FrozenSettings(**settings))
    assert caught.value.where == where
    assert caught.value.got == str(settings["layers"])


def test_an_encoder_without_anything_to_train_is_refused() -> None:
    with pytest.raises(SettingError, match="nothing of the encoder is left to train"):
        freeze(tiny_encoder("bert").model, FrozenSettings(layers=2, embeddings=True))
