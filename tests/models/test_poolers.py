"""Sentence vectors by hand and by a plain loop; an encoder cut to the leading numbers of its vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npm.core.errors import SettingError
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, pool
from npm.models.settings import PoolerKind
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

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


IDS = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
SHOWN = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(request.param)


def test_its_vectors_are_the_leading_numbers_of_the_whole_ones(encoder: Encoder) -> None:
    cut = encoder.cut_to(12)
    with torch.no_grad():
        whole, leading = encoder.token_vectors(IDS, SHOWN), cut.token_vectors(IDS, SHOWN)
    assert leading.shape == (2, 4, 12)
    assert torch.equal(leading, whole[..., :12])
    assert (cut.dimensions, cut.whole_dimensions, encoder.dimensions) == (12, 32, 32)
    assert (cut.cut_to(16).dimensions, cut.cut_to(None).dimensions) == (16, 32)


def test_its_scale_makes_up_for_the_numbers_that_are_missing(encoder: Encoder) -> None:
    assert encoder.similarity_scale == 0.3
    assert encoder.cut_to(8).similarity_scale == pytest.approx(0.6)
    assert encoder.cut_to(32).similarity_scale == 0.3


def test_it_is_known_by_the_same_fingerprint_and_saved_whole(encoder: Encoder, tmp_path: Path) -> None:
    cut, before = encoder.cut_to(8), encoder.fingerprint
    cut.trained_dimensions = [16, 8]
    assert cut.fingerprint == before
    cut.save(tmp_path / "cut")
    loaded = Encoder.load(str(tmp_path / "cut"), device="cpu", dtype="float32")
    assert (loaded.fingerprint, loaded.dimensions, loaded.similarity_scale) == (before, 32, 0.3)
    assert loaded.trained_dimensions == [8, 16]


@pytest.mark.parametrize("dimensions", [0, -1, 33])
def test_lengths_that_it_does_not_have_are_refused(encoder: Encoder, dimensions: int) -> None:
    with pytest.raises(SettingError, match="dimensions"):
        encoder.cut_to(dimensions)
