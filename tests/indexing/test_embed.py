"""Vectors of an index: written in shards, opened as one, and encoded again by `verify`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError, EncoderError
from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import (
    embed_shard,
    finish_vectors,
    kept_tokens,
    open_vectors,
    pruning_counts,
    recorded_vectors,
    shard_folder,
    vector_shards,
)
from npm.indexing.settings import PruningRule, VectorDtype, VectorSettings
from npm.indexing.verify import index_encoder, reencode_sample, verify_vectors
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import added, built, record
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SETTINGS = VectorSettings(tokens_per_shard=150, tokens_per_batch=100, dtype=VectorDtype.float32)


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    documents = [Document(f"d{number}", "", f"{text} {text}\n{text}") for number, text in enumerate(SENTENCES)]
    packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=24))
    return build_block_store(
        tmp_path_factory.mktemp("embed") / "corpus", documents, packer, settings={}, tokens_per_shard=200
    )


def another(encoder: Encoder, **config: Any) -> Encoder:
    """An encoder with other weights and the same tokenizer."""
    return Encoder(tiny_encoder("bert", **config).model, encoder.tokenizer, name="another", similarity_scale=0.3)


def recorded(store: BlockStore, encoder: Encoder, settings: VectorSettings) -> dict[str, Any]:
    return recorded_vectors(store, encoder, settings)


def embed(store: BlockStore, encoder: Encoder, folder: Path, settings: VectorSettings, *numbers: int) -> None:
    """Write the shards of these numbers, or of all."""
    record = recorded(store, encoder, settings)
    for number in numbers or range(len(vector_shards(store, settings.tokens_per_shard))):
        embed_shard(store, encoder, folder, number, recorded=record)


@pytest.fixture
def finished(store: BlockStore, encoder: Encoder, tmp_path: Path) -> Iterator[Path]:
    embed(store, encoder, tmp_path / "vectors", SETTINGS)
    finish_vectors(tmp_path / "vectors", store, recorded=recorded(store, encoder, SETTINGS))
    yield tmp_path / "vectors"


@pytest.mark.parametrize("tokens_per_shard", [1, 100, 10_000])
def test_vector_shards_are_whole_blocks_in_order_and_leave_nothing_out(
    tokens_per_shard: int, store: BlockStore
) -> None:
    shards = vector_shards(store, tokens_per_shard)
    assert [block for first, stop in shards for block in range(first, stop)] == list(range(store.block_count))
    sizes = [int(store.block_offsets[stop] - store.block_offsets[first]) for first, stop in shards]
    assert max(sizes) < tokens_per_shard + 2 * store.max_block_tokens
    assert min(sizes) > 0


def test_stored_vectors_are_those_of_the_encoder_one_block_at_a_time(
    store: BlockStore, encoder: Encoder, finished: Path
) -> None:
    vectors, rows, _ = open_vectors([finished])
    ids = store.token_ids.slice(0, store.token_count).tolist()
    flags = store.flags.slice(0, store.token_count)  # u8 [T]
    kept = np.flatnonzero(kept_tokens(flags, SETTINGS.pruning)).tolist()
    assert rows.positions(np.arange(len(rows))).tolist() == kept
    for row, at in enumerate(kept):
        block = int(store.block_of(np.array([at]))[0])
        first, stop = store.block_offsets[block : block + 2].tolist()
        whole = [*encoder.prefix_ids, *ids[first:stop], *encoder.suffix_ids]
        with torch.no_grad():
            states = encoder.token_vectors(torch.tensor([whole]), torch.ones(1, len(whole), dtype=torch.int64))[0]
        expected = states[at - first + len(encoder.prefix_ids)].numpy()  # f32 [d]
        np.testing.assert_allclose(vectors.take(np.array([row]))[0], expected, atol=1e-5)


def test_blocks_of_another_tokenizer_are_refused(store: BlockStore) -> None:
    with pytest.raises(EncoderError, match="tokenizer"):
        recorded(store, tiny_encoder("roberta"), SETTINGS)


def test_missing_shards_are_named_with_the_command_that_makes_them(
    store: BlockStore, encoder: Encoder, finished: Path
) -> None:
    (finished / "manifest.json").unlink()
    shutil.rmtree(shard_folder(finished, 1))
    with pytest.raises(ArtifactError, match=r"00001.*npmlm build … stage=encode"):
        finish_vectors(finished, store, recorded=recorded(store, encoder, SETTINGS))
    with pytest.raises(ArtifactError):
        open_vectors([finished])
    embed(store, encoder, finished, SETTINGS, 1)
    assert finish_vectors(finished, store, recorded=recorded(store, encoder, SETTINGS)).parts.keys() >= {"00001"}


def test_several_folders_are_opened_as_one(store: BlockStore, encoder: Encoder, finished: Path) -> None:
    one, rows, _ = open_vectors([finished])
    both, both_rows, _ = open_vectors([finished, finished])
    assert both.shape == (2 * len(one), encoder.dimensions)
    assert len(both_rows) == len(both)
    assert both_rows.token_count == 2 * store.token_count
    np.testing.assert_array_equal(
        both_rows.positions(np.arange(len(one), 2 * len(one))), rows.positions(np.arange(len(one))) + store.token_count
    )


def test_folders_of_different_encoders_are_not_opened_together(
    store: BlockStore, encoder: Encoder, finished: Path, tmp_path: Path
) -> None:
    stranger = another(encoder, seed=1)
    embed(store, stranger, tmp_path / "strange", SETTINGS)
    finish_vectors(tmp_path / "strange", store, recorded=recorded(store, stranger, SETTINGS))
    with pytest.raises(ArtifactError, match="other settings") as caught:
        open_vectors([finished, tmp_path / "strange"])
    assert "encoder_fingerprint" in str(caught.value)


def test_shards_without_a_single_vector_are_written_and_opened(encoder: Encoder, tmp_path: Path) -> None:
    packer = BlockPacker(encoder.tokenizer, BlockSettings())
    store = build_block_store(tmp_path / "corpus", [Document("a", "", "of the and to")], packer, settings={})
    embed(store, encoder, tmp_path / "vectors", SETTINGS)
    manifest = finish_vectors(tmp_path / "vectors", store, recorded=recorded(store, encoder, SETTINGS))
    vectors, rows, _ = open_vectors([tmp_path / "vectors"])
    assert vectors.shape == (0, encoder.dimensions)
    assert len(rows) == manifest.settings["pruning_counts"]["kept"] == 0
    assert rows.token_count == store.token_count


def test_what_each_rule_keeps_is_counted(store: BlockStore) -> None:
    flags = store.flags.slice(0, store.token_count)  # u8 [T]
    counted = pruning_counts(store, PruningRule.word_boundaries)
    assert counted["tokens"] == store.token_count
    for rule in PruningRule:
        assert counted["kept_by_rule"][rule.value] == int(kept_tokens(flags, rule).sum())
    assert counted["kept"] == counted["kept_by_rule"]["word_boundaries"]


def test_the_manifest_says_what_pruning_kept(finished: Path, store: BlockStore, encoder: Encoder) -> None:
    manifest = finish_vectors(finished, store, recorded=recorded(store, encoder, SETTINGS))
    counts = manifest.settings["pruning_counts"]
    assert counts["kept"] == counts["kept_by_rule"]["without_stopwords"] == len(open_vectors([finished])[0])
    assert counts["kept"] < counts["kept_by_rule"]["all"] == counts["tokens"] == store.token_count


def test_a_sample_encoded_again_is_what_was_stored(
    store: BlockStore, encoder: Encoder, finished: Path, rng: np.random.Generator
) -> None:
    again = reencode_sample(store, encoder, finished, batch_count=4, rng=rng)
    assert again.row_count > 0
    assert again.worst_cosine == pytest.approx(1.0)
    assert reencode_sample(store, encoder, finished, batch_count=0, rng=rng).row_count == 0


def test_no_batch_is_encoded_again_twice(
    store: BlockStore, encoder: Encoder, finished: Path, rng: np.random.Generator
) -> None:
    everything = reencode_sample(store, encoder, finished, batch_count=1000, rng=rng)
    assert everything.row_count == len(open_vectors([finished])[0])


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
