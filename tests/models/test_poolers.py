"""Sentence vectors by hand, by a plain loop, and under gradient caching."""

from __future__ import annotations

import pytest
import torch

from npm.models.sentences import Pooler, pool
from npm.models.settings import PoolerKind
from npm.objectives.encoded import Passes
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder

HIDDEN = tuple(
    torch.tensor(states)  # f32 [1, 3, 2]: two tokens and padding
    for states in (
        [[[100.0, 100.0], [100.0, 100.0], [100.0, 100.0]]],  # the embeddings, which no kind reads
        [[[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]]],
        [[[10.0, 0.0], [20.0, 0.0], [90.0, 90.0]]],
        [[[5.0, 6.0], [7.0, 8.0], [90.0, 90.0]]],
    )
)
MASK = torch.tensor([[1, 1, 0]])
BY_HAND = {
    "cls": [5.0, 6.0],
    "cls_before_pooler": [5.0, 6.0],
    "avg": [6.0, 7.0],  # of (5, 6) and (7, 8)
    "avg_top2": [10.5, 3.5],  # of (7.5, 3) and (13.5, 4)
    "avg_first_last": [4.0, 5.0],  # of (3, 4) and (5, 6)
}


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_gives_the_vector_worked_out_by_hand(kind: PoolerKind) -> None:
    assert pool(kind, HIDDEN, MASK).tolist() == [BY_HAND[kind.name]]


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_equals_a_plain_loop_over_uneven_rows(kind: PoolerKind) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = [torch.randn(5, 7, 4, generator=generator) for _ in range(4)]  # f32 [5, 7, 4] each
    lengths = [7, 1, 3, 6, 2]
    mask = torch.tensor([[1] * length + [0] * (7 - length) for length in lengths])
    layers = {"avg_top2": (2, 3), "avg_first_last": (1, 3)}.get(kind.name, (3,))
    expected = []
    for row, length in enumerate(lengths):
        tokens = range(1) if kind.name.startswith("cls") else range(length)
        vectors = [hidden[layer][row, token] for layer in layers for token in tokens]
        expected.append(sum(vectors, torch.zeros(4)) / len(vectors))
    torch.testing.assert_close(pool(kind, hidden, mask), torch.stack(expected))


def test_only_cls_has_an_mlp_and_it_is_a_tanh_of_a_linear_map() -> None:
    assert [kind.name for kind in PoolerKind if Pooler(kind, 2).mlp is not None] == ["cls"]
    torch.manual_seed(0)
    pooler = Pooler(PoolerKind.cls, 2).eval()
    assert pooler.mlp is not None
    expected = torch.tanh(torch.tensor([[5.0, 6.0]]) @ pooler.mlp.weight.T + pooler.mlp.bias)
    torch.testing.assert_close(pooler(HIDDEN, MASK), expected)
    assert not torch.equal(pooler(HIDDEN, MASK), torch.tensor([[5.0, 6.0]]))


def test_an_mlp_for_training_only_is_passed_over_in_evaluation() -> None:
    pooler = Pooler(PoolerKind.cls, 2, mlp_only_train=True)
    assert pooler.train()(HIDDEN, MASK).abs().max() < 1
    assert pooler.eval()(HIDDEN, MASK).tolist() == [[5.0, 6.0]]
    assert pooler.kind_after_training is PoolerKind.cls_before_pooler
    assert Pooler(PoolerKind.cls, 2).kind_after_training is PoolerKind.cls


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_hidden_state_is_the_last_of_all_hidden_states(family: str) -> None:
    """Else our vectors would not be those of sentence-transformers, which reads the first of the two."""
    encoder = tiny_encoder(family)
    inputs = encoder.tokenizer(list(SENTENCES[:2]), padding=True, return_tensors="pt")
    passes = Passes(encoder.model)
    states = passes.hidden_states(inputs["input_ids"], inputs["attention_mask"])
    assert len(states) == 3
    torch.testing.assert_close(states[-1], passes.token_vectors(inputs["input_ids"], inputs["attention_mask"]))
