"""An encoder cut to the leading numbers of its vectors shares everything else with the whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npm.core.errors import SettingError
from npm.models.encoder import Encoder
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

IDS = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(request.param)


def test_its_vectors_are_the_leading_numbers_of_the_whole_ones(encoder: Encoder) -> None:
    cut = encoder.cut_to(12)
    with torch.no_grad():
        whole, leading = encoder.token_vectors(IDS, MASK), cut.token_vectors(IDS, MASK)
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
