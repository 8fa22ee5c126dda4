"""TaCL: numbers worked by hand, equality with plain loops, and a teacher that nothing reaches."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from npm.core.errors import SettingError
from npm.core.types import MaskedBatch
from npm.objectives.encoded import EncodedBatch
from npm.objectives.settings import TokenContrastSettings
from npm.objectives.token_contrast import TokenContrast
from tests.helpers.tiny_models import tiny_encoder
from tests.objectives.batches import batch_of, random_batch


class Answers(nn.Module):
    """A model that gives these vectors [B, L, d] whatever it is asked."""

    def __init__(self, vectors: torch.Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        assert input_ids.shape == attention_mask.shape == self.vectors.shape[:2]
        return SimpleNamespace(last_hidden_state=self.dropout(self.vectors))


def contrast_of(teacher: torch.Tensor, **settings: Any) -> TokenContrast:
    return TokenContrast(TokenContrastSettings(**settings), teacher=Answers(teacher))


def encoded_as(students: torch.Tensor, batch: MaskedBatch) -> EncodedBatch:
    """A batch whose masked copies are encoded as `students` [B, L, d]."""
    return EncodedBatch(lambda input_ids, attention_mask: students, batch, with_clean_copies=False)


def two_sequences() -> tuple[MaskedBatch, torch.Tensor, torch.Tensor]:
    """A = 5 6 5 with its first token masked, B = 7 with its only token masked; cosines of 0.6, 0.8 and 1 by hand."""
    batch = batch_of([[5, 6, 5], [7]], [(0, 0, 1), (1, 0, 1)], mask_pairs=False)
    students = torch.zeros(2, 3, 2)  # f32 [B, L, d]
    students[0, 0] = torch.tensor([2.0, 0.0])  # of any length
    students[1, 0] = torch.tensor([0.0, 1.0])
    teachers = torch.zeros(2, 3, 2)  # f32 [B, L, d]
    teachers[0] = torch.tensor([[3.0, 4.0], [0.8, 0.6], [5.0, 0.0]])  # cosines 0.6, 0.8, 1 with the student's
    teachers[1] = torch.tensor([[1.0, 0.0], [0.0, 9.0], [0.0, 9.0]])  # what follows the one token is padding
    return batch, students, teachers


def test_the_loss_of_two_masked_tokens_worked_by_hand() -> None:
    """τ = 0.1. A: −6 + ln(e⁶ + e⁸ + e¹⁰). B has one token only: whatever the teacher says of padding, 0."""
    batch, students, teachers = two_sequences()
    contrast = contrast_of(teachers, temperature=0.1)
    terms = contrast(encoded_as(students, batch))
    expected = math.log(math.exp(6) + math.exp(8) + math.exp(10)) - 6
    assert terms["token_contrast"].sum.item() == pytest.approx(expected, rel=1e-5)
    assert {name: (term.count, term.weight) for name, term in terms.items()} == {
        "token_contrast": (2, 1),
        "token_contrast_top1": (2, 0),
    }
    assert contrast.counts(batch) == {name: term.count for name, term in terms.items()}
    assert int(terms["token_contrast_top1"].sum) == 1  # that of B


def test_other_places_of_the_same_token_can_be_left_out() -> None:
    """The third token of A is a 5 as the masked one is: −6 + ln(e⁶ + e⁸) is left."""
    batch, students, teachers = two_sequences()
    terms = contrast_of(teachers, temperature=0.1, repeated_tokens=False)(encoded_as(students, batch))
    assert terms["token_contrast"].sum.item() == pytest.approx(math.log(1 + math.exp(2)), rel=1e-5)


def plain_contrast(
    students: torch.Tensor, teachers: torch.Tensor, batch: MaskedBatch, *, temperature: float, repeated: bool
) -> tuple[torch.Tensor, int]:
    """Su et al. 2022 (arXiv 2111.04198, §2), one masked position and one other position at a time; and the hits."""
    total, hits = torch.zeros((), dtype=students.dtype), 0
    for sequence, slot in zip(batch.span_sequences.tolist(), batch.start_slots.tolist(), strict=True):
        student = students[sequence, slot]
        logits = []
        for place in range(batch.key_input_ids.shape[1]):
            is_text = bool(batch.key_attention_mask[sequence, place])
            is_same = bool(batch.key_input_ids[sequence, place] == batch.key_input_ids[sequence, slot])
            if not is_text or (is_same and place != slot and not repeated):
                continue
            teacher = teachers[sequence, place]
            cosine = (student * teacher).sum() / (student.norm() * teacher.norm())
            logits.append((place, cosine / temperature))
        own = dict(logits)[slot]
        total = total - torch.log(own.exp() / sum((logit.exp() for _, logit in logits), torch.zeros(())))
        hits += max(logits, key=lambda each: each[1].item())[0] == slot
    return total, hits


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_equal_those_of_plain_loops(seed: int, repeated: bool) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, specials=True, mask_pairs=False)
    shape = (*batch.key_input_ids.shape, 5)
    students = torch.from_numpy(rng.standard_normal(shape)).requires_grad_()  # f64 [B, L, d]
    teachers = torch.from_numpy(rng.standard_normal(shape))  # f64 [B, L, d]
    expected, hits = plain_contrast(students, teachers, batch, temperature=0.2, repeated=repeated)
    (expected_gradient,) = torch.autograd.grad(expected, students)

    contrast = contrast_of(teachers, temperature=0.2, repeated_tokens=repeated)
    terms = contrast(encoded_as(students, batch))
    assert len(batch.span_sequences) > 0
    assert terms["token_contrast"].sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(terms["token_contrast_top1"].sum) == hits
    (gradient,) = torch.autograd.grad(terms["token_contrast"].sum, students)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_only_the_students_vectors_at_masked_positions_get_a_gradient() -> None:
    batch, students, teachers = two_sequences()
    students.requires_grad_()
    contrast = contrast_of(teachers)
    contrast(encoded_as(students, batch))["token_contrast"].sum.backward()
    assert students.grad is not None
    moved = students.grad.abs().sum(2) > 0  # bool [B, L]
    assert moved.tolist() == [[True, False, False], [False, False, False]]  # B's only token has nothing to choose
    assert [parameter.grad for parameter in contrast.teacher.parameters()] == [None]


def test_the_teacher_is_no_part_of_parameters_state_or_training_mode() -> None:
    """Its dropout would otherwise run as soon as somebody calls train() on what holds it."""
    start = tiny_encoder("bert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    contrast = TokenContrast(TokenContrastSettings(), teacher=start)
    holder = nn.ModuleDict({"student": start.model, "contrast": contrast})
    holder.train()
    assert not contrast.teacher.training
    assert not any(module.training for module in contrast.teacher.modules())
    assert not list(contrast.parameters())
    assert not contrast.state_dict()
    assert not list(contrast.children())
    assert {name.split(".")[0] for name, _ in holder.named_parameters()} == {"student"}


def test_the_teacher_stays_what_the_encoder_was_and_the_encoder_goes_on_being_trained() -> None:
    start = tiny_encoder("bert")
    contrast = TokenContrast(TokenContrastSettings(), teacher=start)
    before = copy.deepcopy(contrast.teacher.state_dict())
    assert all(parameter.requires_grad for parameter in start.model.parameters())
    with torch.no_grad():
        for parameter in start.model.parameters():
            parameter.add_(1.0)
    after = contrast.teacher.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(parameter.requires_grad for parameter in contrast.teacher.parameters())


def test_the_loss_falls_when_a_tiny_encoder_is_trained_on_it() -> None:
    """End to end on a tiny encoder: a few steps of gradient descent on one batch make its masks recognisable."""
    encoder = tiny_encoder("bert")
    ids = encoder.tokenizer("The river Rhine rises in Switzerland.", add_special_tokens=False)["input_ids"]
    batch = batch_of([ids, ids[2:]], [(0, 1, 1), (0, 4, 1), (1, 2, 1)], mask_pairs=False)
    batch = replace(batch, query_input_ids=batch.query_input_ids.masked_fill(batch.query_input_ids == 99, 4))
    contrast = TokenContrast(TokenContrastSettings(temperature=0.1), teacher=encoder)
    optimizer = torch.optim.Adam(encoder.model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        term = contrast(EncodedBatch(encoder.token_vectors, batch, with_clean_copies=False))["token_contrast"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
        losses.append(term.sum.item() / term.count)
    assert losses[-1] < 0.8 * losses[0]


def test_a_batch_without_masked_positions_has_no_loss_and_zero_gradients() -> None:
    batch = batch_of([[5, 6], [5]], [], mask_pairs=False)
    students = torch.randn(2, 2, 3, requires_grad=True)
    term = contrast_of(torch.randn(2, 2, 3))(encoded_as(students, batch))["token_contrast"]
    assert (term.sum.item(), term.count) == (0, 0)
    term.sum.backward()
    assert students.grad is not None
    assert not students.grad.any()


def test_sequences_shown_in_several_copies_are_refused() -> None:
    batch = batch_of([[5, 6], [5]], [(0, 0, 1)], mask_pairs=False)
    twice = {name: getattr(batch, name).repeat(2, 1) for name in ("query_input_ids", "query_attention_mask")}
    with pytest.raises(SettingError, match="token_contrast_weight"):
        contrast_of(torch.zeros(2, 2, 3)).counts(replace(batch, **twice))
    TokenContrastSettings().check_copies(1)
    with pytest.raises(SettingError, match="token_contrast_weight"):
        TokenContrastSettings().check_copies(2)


def test_mask_pairs_are_refused() -> None:
    batch = batch_of([[5, 6, 7], [5, 6, 7]], [(0, 0, 2)])  # two masks for two tokens: the lengths agree
    with pytest.raises(SettingError, match="token_contrast_weight"):
        contrast_of(torch.zeros(2, 3, 3)).counts(batch)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(SettingError, match="temperature"):
        TokenContrastSettings(temperature=temperature)


def test_the_teacher_follows_the_batch_to_its_device() -> None:
    """Nobody else moves it, since it is no part of the module; `meta` stands for a GPU."""
    batch = batch_of([[5, 6], [5]], [(0, 0, 1)], mask_pairs=False).to("meta")
    contrast = contrast_of(torch.zeros(2, 2, 3))
    assert contrast._teacher.token_vectors(batch.key_input_ids, batch.key_attention_mask).device.type == "meta"
    assert {parameter.device.type for parameter in contrast.teacher.parameters()} == {"meta"}
