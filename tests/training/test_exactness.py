"""What must not depend on how a batch is cut up, on how many processes make it, or on how the encoder is run."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from npm.core.types import TrainingBatch
from npm.training.acceleration import PreparedModel
from npm.training.data import iterate_batches
from tests.helpers.toy_training import parameters_of, toy_batches, toy_encoder, toy_groups, toy_trainer

VIEWS = ("phrases", "tokens")


def assert_equal(first: TrainingBatch, second: TrainingBatch) -> None:
    assert first.views.keys() == second.views.keys()
    for name, view in first.views.items():
        for field in fields(view):  # type: ignore[arg-type]
            left, right = getattr(view, field.name), getattr(second.views[name], field.name)
            same = left is right is None or torch.equal(torch.as_tensor(left), torch.as_tensor(right))
            assert same, f"{name}.{field.name}"


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
@pytest.mark.parametrize("workers", [1, 4])
def test_the_same_masks_whichever_process_makes_them(workers: int) -> None:
    batches = toy_batches(toy_encoder(), views=VIEWS)
    own = list(islice(iterate_batches(batches, first_micro_step=3), 10))  # over the end of an epoch of eight
    stream = iterate_batches(toy_batches(toy_encoder(), views=VIEWS), first_micro_step=3, workers=workers)
    for expected, got in zip(own, islice(stream, 10), strict=True):
        assert_equal(got, expected)


def first_gradient(run: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """The gradient of the first window, as the optimizer would see it."""
    trainer = toy_trainer(run, max_steps=1, parts=("masked",), groups=toy_groups(32), **settings)
    trainer.model.train()
    window = [trainer.batches[micro_step] for micro_step in range(settings.get("accumulation_steps", 1))]
    taken: dict[str, torch.Tensor] = {}

    def take(prepared: PreparedModel) -> float:
        taken.update({name: p.grad.clone() for name, p in prepared.bare.named_parameters() if p.grad is not None})
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreparedModel, "clip", take)
        trainer._update(window)
    return taken


def test_one_batch_of_32_and_four_of_8_have_the_same_masked_lm_gradient(tmp_path: Path) -> None:
    """The third way, two ranks with 16 each, is in test_two_ranks.py."""
    at_once = first_gradient(tmp_path / "a", groups_per_device_batch=32)
    in_four = first_gradient(tmp_path / "b", groups_per_device_batch=8, accumulation_steps=4)
    assert sum(float(gradient.abs().max()) > 1e-3 for gradient in at_once.values()) > 10
    assert at_once.keys() == in_four.keys()
    torch.testing.assert_close(in_four, at_once, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_encoder_trains_as_a_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured by the compiler, but not turned into C++, which takes a minute for a tiny encoder."""
    backends: list[str] = []

    def compile_without_code(module: nn.Module, *args: Any, **settings: Any) -> None:
        backends.append("eager")
        original(module, *args, backend="eager", **settings)

    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", compile_without_code)
    results = []
    for name, compiled in (("plain", False), ("compiled", True)):
        trainer = toy_trainer(tmp_path / name, max_steps=2, parts=("masked",), compile=compiled)
        trainer.train()
        results.append(parameters_of(trainer))
        saved = safetensors.torch.load_file(tmp_path / name / "encoder" / "model.safetensors")
        assert not [weight for weight in saved if "_orig_mod" in weight]
    assert backends == ["eager"]
    assert results[0].keys() == results[1].keys()
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)
