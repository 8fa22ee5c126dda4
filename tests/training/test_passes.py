"""Gradient caching: few rows in the encoder at once, and the gradient of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npm.masking.batches import SentenceBatch, TrainingBatch
from npm.objectives.combine import WeightedSum
from npm.objectives.encoded import Passes, encode_views
from npm.objectives.sentence import SentenceContrast
from npm.objectives.settings import SentenceSettings
from npm.training.acceleration import keep_few_activations
from npm.training.model import TrainedModel
from tests.helpers.groups import group
from tests.helpers.toy_training import (
    STEEP,
    parameters_of,
    toy_batches,
    toy_encoder,
    toy_groups,
    toy_objective,
    toy_trainer,
)

UNEVEN = [toy_groups(1)[0], group([20, 21, 20, 20, 21, 20], [20, 21, 21, 20], [22, 20])]


def sentence_batch(rows: int, *, seed: int = 0) -> TrainingBatch:
    """Rows of uneven lengths: as many anchors as positives and hard negatives."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (3 * rows, 1), generator=rng)
    mask = (torch.arange(12)[None] < lengths).long()  # i64 [3 rows, 12]
    ids = torch.randint(20, 60, mask.shape, generator=rng) * mask
    return TrainingBatch(
        {"sentences": SentenceBatch(ids, mask, pair_count=rows, pad_id=0)}, token_count=int(mask.sum())
    )


def gradients_of(model: TrainedModel, batch: TrainingBatch) -> dict[str, torch.Tensor]:
    """Of the sum of all terms over their counts, by name of the weight."""
    terms = model(batch)
    torch.stack([term.weight * term.sum / max(1, term.count) for term in terms.values()]).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def phrase_model(rows_per_pass: int | None, *, dropout: float = 0.0) -> tuple[TrainedModel, TrainingBatch]:
    encoder = toy_encoder(dropout=dropout)
    objective = toy_objective(encoder, "phrase", "masked")
    batch = toy_batches(encoder, UNEVEN, views=("phrases", "tokens"), groups_per_device_batch=2)[0]
    return TrainedModel(encoder, objective, rows_per_pass=rows_per_pass).train(), batch


def sentence_model(rows_per_pass: int | None, *, dropout: float = 0.0) -> tuple[TrainedModel, TrainingBatch]:
    encoder = toy_encoder(dropout=dropout)
    torch.manual_seed(2)
    loss = SentenceContrast(SentenceSettings(), dimensions=encoder.dimensions)
    objective = WeightedSum({"sentence": loss}, {"sentence": 1.0})
    return TrainedModel(encoder, objective, rows_per_pass=rows_per_pass).train(), sentence_batch(5)


@pytest.mark.parametrize("make", [phrase_model, sentence_model])
@pytest.mark.parametrize("rows_per_pass", [1, 4, 7, 1000])
def test_the_gradient_is_the_one_of_all_rows_at_once(make: Any, rows_per_pass: int) -> None:
    expected, got = gradients_of(*make(None)), gradients_of(*make(rows_per_pass))
    assert expected.keys() == got.keys()
    assert sum(float(gradient.abs().max()) > 1e-4 for gradient in expected.values()) > 10
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=5e-6)  # a temperature of 0.05 enlarges what is rounded


@pytest.mark.parametrize("make", [phrase_model, sentence_model])
def test_with_dropout_the_gradient_is_the_one_of_the_same_pieces_kept_in_memory(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pass with other dropouts than the first would give another gradient."""

    def piecewise_kept(self: Passes, function: Any, *rows: torch.Tensor) -> Any:
        size = self.rows_per_pass or len(rows[0])
        pieces = [function(*(t[start : start + size] for t in rows)) for start in range(0, len(rows[0]), size)]
        if isinstance(pieces[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
        return torch.cat(pieces)

    results = []
    for keeps_pieces in (False, True):
        model, batch = make(3, dropout=0.3)
        with monkeypatch.context() as patch:
            if keeps_pieces:
                patch.setattr(Passes, "piecewise", piecewise_kept)
            torch.manual_seed(7)
            results.append(gradients_of(model, batch))
    assert results[0].keys() == results[1].keys()
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)
    torch.manual_seed(8)
    other = gradients_of(*make(3, dropout=0.3))
    assert any(not torch.allclose(other[name], gradient, atol=1e-3) for name, gradient in results[0].items())


class CountsRows(nn.Module):
    """Passes on what an encoder gives, and notes how many rows it was asked for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, []

    def forward(self, **inputs: Any) -> Any:
        self.rows.append(len(inputs["input_ids"]))
        return self.model(**inputs)


def test_the_encoder_sees_few_rows_at_once_and_each_of_them_twice() -> None:
    encoder = toy_encoder()
    counting = CountsRows(encoder.model)
    encoded = encode_views(sentence_batch(3).views, Passes(counting, rows_per_pass=4), with_clean_copies=())
    encoded["sentences"].states().sum().backward()
    assert sorted(counting.rows, reverse=True) == [4, 4, 4, 4, 1, 1]


@pytest.mark.parametrize("setting", ["rows_per_pass", "gradient_checkpointing"])
def test_a_trainer_that_saves_memory_trains_as_one_that_does_not(tmp_path: Path, setting: str) -> None:
    results = []
    for name, settings in (("plain", {}), ("saving", {setting: 2 if setting == "rows_per_pass" else True})):
        trainer = toy_trainer(tmp_path / name, groups_per_device_batch=2, **STEEP, **settings)
        trainer.train()
        results.append(parameters_of(trainer))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-6)


def kept_for_backward(rows_per_pass: int | None, *, checkpointing: bool = False) -> int:
    """Bytes of activations that a forward pass of 24 rows keeps, weights and the result left out."""
    model, _ = sentence_model(None)
    if checkpointing:
        keep_few_activations(model.encoder_model)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    view = sentence_batch(8).views["sentences"]
    assert isinstance(view, SentenceBatch)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        Passes(model.encoder_model, rows_per_pass=rows_per_pass).states(view.input_ids, view.attention_mask)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_both_ways_of_saving_memory_keep_less_for_the_backward_pass() -> None:
    plain = kept_for_backward(None)
    assert kept_for_backward(4) < 0.1 * plain
    assert kept_for_backward(None, checkpointing=True) < 0.5 * plain
