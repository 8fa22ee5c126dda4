"""Staying near a frozen teacher's block vectors: by hand, against plain loops, and through training and saving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from npm.core.errors import SettingError
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.objectives.block_teacher import BlockTeacher
from npm.objectives.encoded import EncodedBatch
from tests.helpers.tiny_models import tiny_encoder
from tests.objectives.batches import batch_of


def teacher_of(
    vectors: torch.Tensor, pooler: PoolerKind = PoolerKind.avg, *, token_weight: float = 0.0
) -> BlockTeacher:
    """The objective with a teacher that answers with `vectors` [B, L, d] whatever it is asked."""

    class Answers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = nn.Parameter(vectors)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return SimpleNamespace(last_hidden_state=self.vectors)

    same = {
        "tokenizer_fingerprint": "t",
        "dimensions": vectors.shape[2],
        "name": "n",
        "block_pooler": pooler,
        "fingerprint": "f",
    }
    encoder: Any = SimpleNamespace(model=Answers(), **same)
    return BlockTeacher(encoder, encoder, token_weight=token_weight)


def encoded_as(vectors: torch.Tensor, rows: list[list[int]]) -> EncodedBatch:
    """Clean copies of `rows` encoded as `vectors` [B, L, d]; nothing is masked."""
    batch = batch_of(rows, [])
    return EncodedBatch(lambda input_ids, attention_mask: torch.cat([vectors, vectors]), batch)


def test_the_loss_of_two_blocks_worked_by_hand() -> None:
    taught = torch.tensor(
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [9.0, 9.0]]]
    )  # means (½, ½) and, padding left out, (0, 2)
    learned = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 3.0], [5.0, 0.0]]])  # (1, 0) and (0, 3)
    term = teacher_of(taught)(encoded_as(learned, [[5, 6], [7]]))["block_teacher"]
    assert term.sum.item() == pytest.approx(1 - 2**-0.5, rel=1e-6)  # the second block costs nothing
    assert term.count == 2


def test_token_vectors_are_held_by_their_weight() -> None:
    taught = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [9.0, 9.0]]])
    learned = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 3.0], [5.0, 0.0]]])  # the first block's tokens swapped
    objective = teacher_of(taught, token_weight=0.5)
    term = objective(encoded_as(learned, [[5, 6], [7]]))["block_teacher"]
    assert term.sum.item() == pytest.approx(0.5)  # equal means, both tokens at right angles; padding left out


def test_the_gradient_reaches_the_encoder_and_never_the_teacher() -> None:
    learned = torch.randn(2, 3, 4, requires_grad=True)
    objective = teacher_of(torch.randn(2, 3, 4))
    objective(encoded_as(learned, [[5, 6, 7], [7, 8]]))["block_teacher"].sum.backward()
    assert learned.grad is not None and learned.grad[0].abs().min() > 0
    assert learned.grad[1, 2].abs().max() == 0  # padding
    assert not list(objective.parameters()) and not objective.state_dict()


@pytest.mark.parametrize("other", [tiny_encoder("roberta"), tiny_encoder("bert", dimensions=16)])
def test_a_teacher_of_another_tokenizer_or_size_is_refused(other: Encoder) -> None:
    with pytest.raises(SettingError, match=r"objective.block_teacher.encoder"):
        BlockTeacher(tiny_encoder("bert"), other)
