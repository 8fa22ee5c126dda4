"""TaCL: numbers worked by hand, equality with plain loops, and a teacher that nothing reaches."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch
from npm.objectives.token_contrast import TokenContrast
from tests.helpers.tiny_models import tiny_encoder
from tests.objectives.batches import batch_of, masked_copies_as, random_batch


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
    return TokenContrast(Answers(teacher), **settings)


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
    terms = contrast(masked_copies_as(students, batch))
    expected = math.log(math.exp(6) + math.exp(8) + math.exp(10)) - 6
    assert terms["token_contrast"].sum.item() == pytest.approx(expected, rel=1e-5)
    assert {name: (term.count, term.weight) for name, term in terms.items()} == {
        "token_contrast": (2, 1),
        "token_contrast_top1": (2, 0),
    }
    assert contrast.counts(batch) == {name: term.count for name, term in terms.items()}
    assert int(terms["token_contrast_top1"].sum) == 1  # that of B


def plain_contrast(
    students: torch.Tensor, teachers: torch.Tensor, batch: MaskedBatch, *, temperature: float
) -> tuple[torch.Tensor, int]:
    """Su et al. 2022 (arXiv 2111.04198, §2), one masked position and one other position at a time; and the hits."""
    total, hits = torch.zeros((), dtype=students.dtype), 0
    for sequence, slot in zip(batch.span_sequences.tolist(), batch.start_slots.tolist(), strict=True):
        student = students[sequence, slot]
        logits = []
        for place in range(batch.key_input_ids.shape[1]):
            is_text = bool(batch.key_attention_mask[sequence, place])
            if not is_text:
                continue
            teacher = teachers[sequence, place]
            cosine = (student * teacher).sum() / (student.norm() * teacher.norm())
            logits.append((place, cosine / temperature))
        own = dict(logits)[slot]
        total = total - torch.log(own.exp() / sum((logit.exp() for _, logit in logits), torch.zeros(())))
        hits += max(logits, key=lambda each: each[1].item())[0] == slot
    return total, hits


@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_equal_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, specials=True, mask_pairs=False)
    shape = (*batch.key_input_ids.shape, 5)
    students = torch.from_numpy(rng.standard_normal(shape)).requires_grad_()  # f64 [B, L, d]
    teachers = torch.from_numpy(rng.standard_normal(shape))  # f64 [B, L, d]
    expected, hits = plain_contrast(students, teachers, batch, temperature=0.2)
    (expected_gradient,) = torch.autograd.grad(expected, students)

    contrast = contrast_of(teachers, temperature=0.2)
    terms = contrast(masked_copies_as(students, batch))
    assert len(batch.span_sequences) > 0
    assert terms["token_contrast"].sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(terms["token_contrast_top1"].sum) == hits
    (gradient,) = torch.autograd.grad(terms["token_contrast"].sum, students)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_only_the_students_vectors_at_masked_positions_get_a_gradient() -> None:
    batch, students, teachers = two_sequences()
    students.requires_grad_()
    contrast = contrast_of(teachers)
    contrast(masked_copies_as(students, batch))["token_contrast"].sum.backward()
    assert students.grad is not None
    moved = students.grad.abs().sum(2) > 0  # bool [B, L]
    assert moved.tolist() == [[True, False, False], [False, False, False]]  # B's only token has nothing to choose
    assert [parameter.grad for parameter in contrast.teacher.parameters()] == [None]


def test_the_teacher_is_no_part_of_parameters_state_or_training_mode() -> None:
    """Its dropout would otherwise run as soon as somebody calls train() on what holds it."""
    start = tiny_encoder("bert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    contrast = TokenContrast(start.model)
    holder = nn.ModuleDict({"student": start.model, "contrast": contrast})
    holder.train()
    assert not contrast.teacher.training
    assert not any(module.training for module in contrast.teacher.modules())
    assert not list(contrast.parameters())
    assert not contrast.state_dict()
    assert not list(contrast.children())
    assert {name.split(".")[0] for name, _ in holder.named_parameters()} == {"student"}


def test_sequences_shown_in_several_copies_are_refused() -> None:
    batch = batch_of([[5, 6], [5]], [(0, 0, 1)], mask_pairs=False)
    twice = {name: getattr(batch, name).repeat(2, 1) for name in ("query_input_ids", "query_attention_mask")}
    with pytest.raises(SettingError, match="token_contrast_weight"):
        contrast_of(torch.zeros(2, 2, 3)).counts(replace(batch, **twice))
