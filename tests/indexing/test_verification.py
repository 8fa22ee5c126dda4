"""`verify` encodes a sample again: what was stored must be what the encoder makes of the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npm.core.errors import ArtifactError
from npm.indexing.verify import index_encoder, verify_vectors
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import added, built, record
from tests.helpers.tiny_models import tiny_encoder


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = built(tmp_path_factory.mktemp("verified") / "index", [record(number) for number in range(6)], encoder)
    added(folder, [record(7), record(8)], encoder)
    return folder


def test_vectors_of_every_segment_are_those_of_the_encoder(index: Path, encoder: Encoder) -> None:
    few = verify_vectors(index, encoder, batches=1, seed=0)
    many = verify_vectors(index, encoder, batches=50, seed=0)
    assert 0 < few.row_count < many.row_count
    assert many.worst_cosine == pytest.approx(1, abs=1e-5)


def test_vectors_that_the_encoder_would_not_make_are_told(index: Path) -> None:
    changed = tiny_encoder("bert")
    assert changed.fingerprint  # hashed before the weights change, as if the processor computed otherwise
    with torch.no_grad():
        for weights in changed.model.parameters():
            weights.add_(0.5 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ArtifactError, match=r"0\.99"):
        verify_vectors(index, changed, batches=2, seed=0)


def test_another_encoder_is_refused_before_anything_is_encoded(index: Path, tmp_path: Path) -> None:
    tiny_encoder("bert", seed=3).save(tmp_path / "other")
    with pytest.raises(ArtifactError, match="fingerprint"):
        index_encoder(index, str(tmp_path / "other"))
