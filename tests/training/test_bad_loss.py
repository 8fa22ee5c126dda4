"""A loss that is not finite stops the run, spoils no checkpoint, and leaves the batch to be looked at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from npm.core.artifact import verify_folder
from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch
from npm.models.encoder import Encoder
from npm.objectives.combine import Term, WeightedSum
from npm.objectives.encoded import EncodedBatch
from npm.training.trainer import BAD_BATCH_KIND, Trainer
from tests.helpers.toy_training import parameters_of, toy_encoder, toy_trainer


class GoesBad(nn.Module):
    """A loss that is infinite, or has a gradient that is not a number, in the given steps."""

    view = "phrases"

    def __init__(
        self, encoder: Encoder, *, from_step: int, until_step: int = 10**9, in_gradient_only: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(encoder.dimensions))
        self.steps, self.bad_steps, self.in_gradient_only = 0, range(from_step, until_step + 1), in_gradient_only

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        return {"fine": 1, "strange": 1}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        self.steps += 1
        fine = (encoded.query_vectors * self.weight).sum()
        strange = fine * 0.0
        if self.steps in self.bad_steps:  # the root of 0 has an infinite gradient, and 0 · ∞ is not a number
            strange = strange.abs().sqrt() * 0.0 if self.in_gradient_only else fine * math.inf
        return {"fine": Term(fine, 1), "strange": Term(strange, 1)}


@pytest.mark.parametrize("in_gradient_only", [False, True])
def test_a_loss_that_is_not_finite_stops_the_run_and_spoils_no_checkpoint(
    tmp_path: Path, in_gradient_only: bool
) -> None:
    encoder = toy_encoder()
    bad = GoesBad(encoder, from_step=4, in_gradient_only=in_gradient_only)
    objective = WeightedSum({"bad": bad}, {"bad": 1.0})
    settings: dict[str, Any] = {"encoder": encoder, "objective": objective, "checkpoint_every_minutes": 0.0}
    trainer = toy_trainer(tmp_path / "run", max_steps=9, **settings)
    named = "length of the gradient" if in_gradient_only else "strange"
    with pytest.raises(SettingError, match=rf"at step 4 \({named}="):
        trainer.train()
    (folder,) = trainer.run_folder.bad_batch_path.iterdir()
    manifest = verify_folder(folder, BAD_BATCH_KIND)
    assert (folder.name, manifest.settings["step"]) == ("step-00000004-rank-0", 4)
    assert ("inf" in str(manifest.settings["terms"])) == (not in_gradient_only)
    saved = safetensors.torch.load_file(folder / "micro-0.safetensors")
    expected = trainer.batches[3].views["phrases"]
    for name in ("query_input_ids", "key_attention_mask", "span_sequences", "pad_id"):
        assert torch.equal(saved[f"phrases.{name}"], torch.as_tensor(getattr(expected, name))), name
    checkpoint = trainer.run_folder.latest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.counters.step == 3
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors["weights"].values())


def test_with_a_gradient_scaler_a_step_whose_gradient_overflows_is_left_out_and_the_scale_goes_on_with_the_run(
    tmp_path: Path,
) -> None:
    def trainer(max_steps: int) -> Trainer:
        encoder = toy_encoder()
        bad = GoesBad(encoder, from_step=3, until_step=3, in_gradient_only=True)
        made = toy_trainer(
            tmp_path / "run",
            max_steps=max_steps,
            encoder=encoder,
            objective=WeightedSum({"bad": bad}, {"bad": 1.0}),
            checkpoint_every_minutes=0.0,
        )
        made.prepared.scaler = made.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        return made

    first = trainer(3)
    weights = []
    first.train(lambda _: weights.append(parameters_of(first)))
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[1])
    assert first.prepared.scaler is not None and first.prepared.scaler.get_scale() == 32.0
    again = trainer(3)
    again.resume()
    assert again.prepared.scaler is not None and again.prepared.scaler.get_scale() == 32.0


def test_a_gradient_that_is_never_finite_stops_the_run_once_its_scale_can_be_no_reason(tmp_path: Path) -> None:
    encoder = toy_encoder()
    bad = GoesBad(encoder, from_step=2, in_gradient_only=True)
    objective = WeightedSum({"bad": bad}, {"bad": 1.0})
    trainer = toy_trainer(tmp_path / "run", max_steps=20, encoder=encoder, objective=objective)
    trainer.prepared.scaler = trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with pytest.raises(SettingError, match="not finite at step 5"):
        trainer.train()


def test_scaled_gradients_train_as_others_do(tmp_path: Path) -> None:
    scaled = toy_trainer(tmp_path / "a", max_steps=3, max_gradient_norm=0.1)
    scaled.prepared.scaler = scaled.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = toy_trainer(tmp_path / "b", max_steps=3, max_gradient_norm=0.1)
    for trainer in (scaled, plain):
        trainer.train()
    torch.testing.assert_close(parameters_of(scaled), parameters_of(plain), rtol=0, atol=1e-6)


def test_only_the_micro_batch_that_spoilt_the_loss_is_kept(tmp_path: Path) -> None:
    for _ in range(2):  # the same run started again meets the same batch
        encoder = toy_encoder()
        bad = GoesBad(encoder, from_step=6, until_step=6)  # the second of four in the second window
        objective = WeightedSum({"bad": bad}, {"bad": 1.0})
        settings: dict[str, Any] = {"encoder": encoder, "objective": objective, "accumulation_steps": 4}
        trainer = toy_trainer(tmp_path / "run", max_steps=9, **settings)
        with pytest.raises(SettingError, match="the loss is not finite"):
            trainer.train()
    (folder,) = trainer.run_folder.bad_batch_path.iterdir()
    assert folder.name == "step-00000002-rank-0"
    assert [file.name for file in folder.glob("*.safetensors")] == ["micro-1.safetensors"]
    saved = safetensors.torch.load_file(folder / "micro-1.safetensors")
    assert torch.equal(saved["phrases.query_input_ids"], trainer.batches[5].views["phrases"].query_input_ids)
