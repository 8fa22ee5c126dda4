"""A loss that is not finite stops the run, spoils no checkpoint, and leaves the batch to be looked at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from index.store import verify_folder
from npm.errors import SettingError
from npm.models.encoder import Encoder
from npm.objectives.combine import WeightedSum
from npm.objectives.encoded import EncodedBatch
from npm.training.trainer import BAD_BATCH_KIND
from npm.types import MaskedBatch, Term
from tests.helpers.toy_training import toy_encoder, toy_trainer


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
    with pytest.raises(SettingError) as caught:
        trainer.train()
    error = caught.value
    assert error.problem == "the loss is not finite"
    assert "step 4" in error.where
    assert ("strange" in error.got, "fine" in error.got) == (not in_gradient_only, False)
    assert "gradient" in error.got
    assert "learning_rate" in error.fix
    assert str(trainer.run_folder.bad_batch_path) in error.where
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
    assert all(tensor.isfinite().all() for tensor in checkpoint.weights.values())


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
