"""Sentence vectors by hand, by a plain loop, and under gradient caching."""

from __future__ import annotations

import pytest
import torch

from npm.models.sentences import Pooler, pool
from npm.models.settings import PoolerKind

STATES = torch.tensor([[[5.0, 6.0], [7.0, 8.0], [90.0, 90.0]]])  # f32 [1, 3, 2]: two tokens and padding
MASK = torch.tensor([[1, 1, 0]])
BY_HAND = {
    "cls": [5.0, 6.0],
    "cls_before_pooler": [5.0, 6.0],
    "avg": [6.0, 7.0],  # of (5, 6) and (7, 8)
}


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_gives_the_vector_worked_out_by_hand(kind: PoolerKind) -> None:
    assert pool(kind, STATES, MASK).tolist() == [BY_HAND[kind.name]]


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_equals_a_plain_loop_over_uneven_rows(kind: PoolerKind) -> None:
    states = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(3))  # f32 [5, 7, 4]
    lengths = [7, 1, 3, 6, 2]
    mask = torch.tensor([[1] * length + [0] * (7 - length) for length in lengths])
    expected = []
    for row, length in enumerate(lengths):
        tokens = range(1) if kind.name.startswith("cls") else range(length)
        expected.append(sum((states[row, token] for token in tokens), torch.zeros(4)) / len(tokens))
    torch.testing.assert_close(pool(kind, states, mask), torch.stack(expected))


def test_only_cls_has_an_mlp_and_it_is_a_tanh_of_a_linear_map() -> None:
    assert [kind.name for kind in PoolerKind if Pooler(kind, 2).mlp is not None] == ["cls"]
    torch.manual_seed(0)
    pooler = Pooler(PoolerKind.cls, 2).eval()
    assert pooler.mlp is not None
    expected = torch.tanh(torch.tensor([[5.0, 6.0]]) @ pooler.mlp.weight.T + pooler.mlp.bias)
    torch.testing.assert_close(pooler(STATES, MASK), expected)
    assert not torch.equal(pooler(STATES, MASK), torch.tensor([[5.0, 6.0]]))


def test_an_mlp_for_training_only_is_passed_over_in_evaluation() -> None:
    pooler = Pooler(PoolerKind.cls, 2, mlp_only_train=True)
    assert pooler.train()(STATES, MASK).abs().max() < 1
    assert pooler.eval()(STATES, MASK).tolist() == [[5.0, 6.0]]
    assert pooler.kind_after_training is PoolerKind.cls_before_pooler
    assert Pooler(PoolerKind.cls, 2).kind_after_training is PoolerKind.cls
