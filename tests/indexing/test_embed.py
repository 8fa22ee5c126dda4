"""Vectors of an index: shards, rows and positions, opened as one, and encoded again by `verify`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.arrays import ShardedArray
from npm.core.artifact import Manifest
from npm.core.errors import ArtifactError, EncoderError
from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import (
    embed_shard,
    kept_tokens,
    open_vectors,
    recorded_vectors,
    shard_folder,
    vector_shards,
)
from npm.indexing.generation import Generation
from npm.indexing.inspect import reencode_sample, verify_vectors
from npm.indexing.rows import RowMap, gather, pack_kept
from npm.indexing.settings import PruningRule, VectorDtype, VectorSettings
from npm.indexing.stages import vectors_part
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import added, built, record
from tests.helpers.random_indexes import packed_kept
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


def finish_vectors(folder: Path, store: BlockStore, *, recorded: dict[str, Any]) -> Manifest:
    """Write the manifest of the shards in `folder`."""
    return replace(vectors_part(folder, store, recorded, 0, lambda *_: None), folder=folder).finish()


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


def test_blocks_that_an_encoder_takes_only_without_special_tokens_are_refused(store: BlockStore) -> None:
    assert not store.special_tokens_in_blocks
    specials = 2
    with pytest.raises(EncoderError, match="max_block_tokens"):
        recorded(store, tiny_encoder("bert", max_positions=store.max_block_tokens + specials - 1), SETTINGS)
    assert recorded(store, tiny_encoder("bert", max_positions=store.max_block_tokens + specials), SETTINGS)


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


def test_the_manifest_says_what_each_rule_keeps(finished: Path, store: BlockStore, encoder: Encoder) -> None:
    flags = store.flags.slice(0, store.token_count)  # u8 [T]
    manifest = finish_vectors(finished, store, recorded=recorded(store, encoder, SETTINGS))
    counts = manifest.settings["pruning_counts"]
    assert counts["tokens"] == store.token_count
    assert counts["kept_by_rule"] == {rule.value: int(kept_tokens(flags, rule).sum()) for rule in PruningRule}
    assert counts["kept"] == counts["kept_by_rule"]["without_stopwords"] == len(open_vectors([finished])[0])


def test_a_sample_encoded_again_is_what_was_stored_and_no_batch_comes_twice(
    store: BlockStore, encoder: Encoder, finished: Path, rng: np.random.Generator
) -> None:
    row_count = len(open_vectors([finished])[0])
    for batches, least, most in ((0, 0, 0), (4, 1, row_count), (1000, row_count, row_count)):
        again = reencode_sample(store, encoder, finished, batch_count=batches, rng=rng)
        assert least <= again.row_count <= most
        assert batches == 0 or again.worst_cosine == pytest.approx(1.0)


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = built(tmp_path_factory.mktemp("verified") / "index", [record(number) for number in range(6)], encoder)
    added(folder, [record(7), record(8)], encoder)
    return folder


def moved(by: float) -> Encoder:
    """The encoder with other weights under the same fingerprint, as if the processor computed otherwise."""
    encoder = tiny_encoder("bert")
    assert encoder.fingerprint  # hashed before the weights change
    with torch.no_grad():
        for weights in encoder.model.parameters():
            weights.add_(by * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    return encoder


def test_vectors_of_every_segment_are_those_of_the_encoder(index: Path, encoder: Encoder) -> None:
    few = verify_vectors(index, encoder, batches=1, seed=0)
    many = verify_vectors(index, encoder, batches=50, seed=0)
    assert 0 < few.row_count < many.row_count
    assert many.worst_cosine == pytest.approx(1, abs=1e-5)
    near, rng = moved(0.001), np.random.default_rng(0)
    cosines = [
        reencode_sample(BlockStore.open(each.corpus), near, each.vectors, batch_count=50, rng=rng).worst_cosine
        for each in Generation.read(index).segments
    ]
    assert len(cosines) == 2 and max(cosines) < 1 - 1e-6
    assert verify_vectors(index, near, batches=50, seed=0).worst_cosine == pytest.approx(min(cosines), abs=1e-6)


def test_vectors_that_the_encoder_would_not_make_are_told(index: Path) -> None:
    with pytest.raises(ArtifactError, match=r"0\.99"):
        verify_vectors(index, moved(0.5), batches=2, seed=0)


def row_map(shards: Sequence[np.ndarray]) -> RowMap:
    """The rows of shards that are each given as bool [T]."""
    return RowMap([pack_kept(shard) for shard in shards], [len(shard) for shard in shards])


def test_rows_and_positions_are_each_others_inverse() -> None:
    rows = RowMap([packed_kept(np.array([1, 4, 5, 9]), 12)], [12])
    assert len(rows) == 4
    assert rows.positions(np.array([2, 0, 2])).tolist() == [5, 1, 5]
    found_rows, found = rows.rows_at(np.array([9, 0, 4, 11]))
    assert found.tolist() == [True, False, True, False]
    assert found_rows[found].tolist() == [3, 1]
    assert rows.rows_within(np.array([4, 0]), np.array([10, 3])).tolist() == [0, 1, 2, 3]
    assert rows.rows_before(np.array([0, 1, 2, 9, 10, 12])).tolist() == [0, 0, 1, 3, 4, 4]


def test_bits_are_packed_from_the_lowest_on() -> None:
    assert packed_kept(np.array([0, 3, 8]), 10).tolist() == [0b1001, 0b1]
    assert RowMap([np.array([0b1001, 0b1], dtype=np.uint8)], [10]).positions(np.arange(3)).tolist() == [0, 3, 8]


def random_shards(rng: np.random.Generator) -> list[np.ndarray]:
    """Some shards bool [T] of any length, most of them not whole bytes, kept in shares from none to all."""
    lengths = rng.choice([0, 1, 5, 7, 8, 9, 63, 64, 65, 300, 5000], size=rng.integers(1, 7))
    return [rng.random(length) < rng.choice([0.0, 0.02, 0.5, 0.97, 1.0]) for length in lengths]


@pytest.mark.parametrize("seed", range(40))
def test_any_shards_say_what_plain_lists_and_dicts_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shards = random_shards(rng)
    kept = np.concatenate(shards).tolist()
    positions = [at for at, is_kept in enumerate(kept) if is_kept]
    row_of = {at: row for row, at in enumerate(positions)}
    rows = row_map(shards)
    assert len(rows) == len(positions)

    asked = rng.permutation(len(positions))
    np.testing.assert_array_equal(rows.positions(asked), np.array(positions, dtype=np.int64)[asked])
    places = rng.integers(0, len(kept), 200 if kept else 0)
    found_rows, found = rows.rows_at(places)
    assert found.tolist() == [at in row_of for at in places.tolist()]
    assert found_rows[found].tolist() == [row_of[at] for at in places.tolist() if at in row_of]
    bounds = rng.integers(0, len(kept) + 1, 50)
    assert rows.rows_before(bounds).tolist() == [sum(kept[:stop]) for stop in bounds.tolist()]

    cuts = np.sort(rng.choice(len(kept) + 1, size=min(8, (len(kept) + 1) // 2 * 2), replace=False)).reshape(-1, 2)
    ranges = cuts[rng.permutation(len(cuts))]
    within = [row for start, stop in cuts.tolist() for row, at in enumerate(positions) if start <= at < stop]
    assert rows.rows_within(ranges[:, 0], ranges[:, 1]).tolist() == within


def test_the_map_takes_less_than_two_bits_a_token(rng: np.random.Generator) -> None:
    token_count = 1 << 20
    rows = row_map([rng.random(token_count) < 0.9])
    held_bytes = sum(value.nbytes for value in vars(rows).values() if isinstance(value, np.ndarray))
    assert held_bytes * 8 < 2 * token_count


def test_rows_and_positions_that_do_not_exist_and_bits_of_another_number_of_tokens_are_refused() -> None:
    rows = row_map([np.ones(10, dtype=bool)])
    for wrong in (-1, 10):
        for ask, named in ((rows.positions, "rows"), (rows.rows_at, "positions")):
            with pytest.raises(IndexError, match=named):
                ask(np.array([0, wrong]))
    with pytest.raises(IndexError, match="positions"):
        rows.rows_before(np.array([11]))
    for bits in ([255], [255, 3, 0], [255, 4]):
        with pytest.raises(ValueError, match="shard 0"):
            RowMap([np.array(bits, dtype=np.uint8)], [10])


def test_gathering_is_taking_from_one_shard_or_several(rng: np.random.Generator) -> None:
    values = rng.integers(0, 1000, 50)
    indices = rng.integers(0, 50, 20)
    for arrays in ([values], [values[:13], values[13:]]):
        assert gather(ShardedArray(arrays), indices).tolist() == values[indices].tolist()
        with pytest.raises(IndexError):
            gather(ShardedArray(arrays), np.array([50]))


def test_rows_far_apart_and_close_together_are_found(rng: np.random.Generator) -> None:
    kept = np.zeros(2_000_000, dtype=bool)  # [T]
    kept[:3000] = True
    kept[rng.integers(900_000, 901_000, 700)] = True
    kept[-1] = True
    positions = np.flatnonzero(kept)
    rows = row_map([kept[:123_457], kept[123_457:]])
    np.testing.assert_array_equal(rows.positions(np.arange(len(rows))), positions)
    found_rows, found = rows.rows_at(positions)
    assert found.all()
    np.testing.assert_array_equal(found_rows, np.arange(len(rows)))


def test_nothing_is_found_where_no_token_has_a_vector() -> None:
    rows = row_map([np.zeros(100, dtype=bool), np.zeros(0, dtype=bool)])
    assert len(rows) == 0
    assert rows.positions(np.zeros(0, dtype=np.int64)).tolist() == []
    assert not rows.rows_at(np.arange(100))[1].any()
    assert rows.rows_within(np.array([0]), np.array([100])).tolist() == []
