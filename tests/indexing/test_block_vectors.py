"""Vectors of blocks: what is stored, what every change does with them, and which blocks are found by them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.arrays import ShardedArray
from index.settings import SearchSettings
from npm.core.artifact import open_array, read_manifest
from npm.core.errors import ArtifactError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.embed import BlockVectors, open_vectors, recorded_pooler
from npm.indexing.inspect import inspect_index, verify_index, verify_vectors
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings, IndexBuildSettings, VectorSettings
from npm.models.batches import encode_sequences
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from tests.helpers.live_indexes import added, all_bytes, estimated, part_of, record, write_records
from tests.helpers.tiny_models import tiny_encoder

RECORDS = [record(number) for number in range(8)]


def with_pooler(kind: PoolerKind | None) -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = kind
    return encoder


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return with_pooler(PoolerKind.avg)


def settings_for(folder: Path, **vectors: Any) -> IndexBuildSettings:
    folder.parent.mkdir(exist_ok=True)
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[write_records(folder.with_suffix(".jsonl"), RECORDS)], kept_fields=["lang"]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=100, tokens_per_batch=100, **vectors),
        search=SearchSettings(),
    )


def built(folder: Path, encoder: Encoder, *, dimensions: int | None = None, **vectors: Any) -> Path:
    """An index of several shards of uneven blocks."""
    build_index(folder, replace(settings_for(folder, **vectors), dimensions=dimensions), encoder)
    return folder


def block_vectors(folder: Path) -> BlockVectors:
    found = PhraseIndex.open(folder).block_vectors
    assert found is not None
    return found


def stored(folder: Path) -> np.ndarray:
    """The vectors of all blocks of an index, f32 [blocks, d]."""
    vectors = block_vectors(folder).vectors
    return vectors.take(np.arange(len(vectors)))


@pytest.fixture
def folder(encoder: Encoder, tmp_path: Path) -> Iterator[Path]:
    yield built(tmp_path / "index", encoder)


@pytest.mark.parametrize("kind", [PoolerKind.avg, PoolerKind.cls_before_pooler], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dimensions", [None, 12])
def test_each_block_has_the_pooled_vector_of_that_block_alone(
    kind: PoolerKind, dimensions: int | None, tmp_path: Path
) -> None:
    encoder = with_pooler(kind)
    index = PhraseIndex.open(built(tmp_path / "index", encoder, dimensions=dimensions))
    assert index.block_vectors is not None
    assert index.block_vectors.pooler is kind
    assert len(index.block_vectors.vectors.arrays) > 2
    assert index.block_vectors.vectors.arrays[0].dtype == np.int8
    ids, bounds = index.store.token_ids, index.store.block_offsets.tolist()
    for block, (first, stop) in enumerate(itertools.pairwise(bounds)):
        whole = [*encoder.prefix_ids, *ids.slice(first, stop).tolist(), *encoder.suffix_ids]
        with torch.no_grad():
            states = encoder.token_vectors(torch.tensor([whole]), torch.ones(1, len(whole), dtype=torch.int64))[0]
        mean = (states.mean(dim=0) if kind is PoolerKind.avg else states[0]).numpy()[:dimensions]  # f32 [d]
        expected = mean / np.sqrt((mean**2).sum())
        np.testing.assert_allclose(index.block_vectors.vectors.slice(block, block + 1)[0], expected, atol=5e-3)


def test_a_text_is_pooled_as_blocks_are(encoder: Encoder, folder: Path) -> None:
    index = PhraseIndex.open(folder)
    assert index.block_vectors is not None
    bounds = index.store.block_offsets.tolist()
    sequences = [
        np.array([*encoder.prefix_ids, *index.store.token_ids.slice(first, stop), *encoder.suffix_ids])
        for first, stop in itertools.pairwise(bounds)
    ]
    nowhere = [np.zeros(0, dtype=np.int64)] * len(sequences)
    pooled = encode_sequences(encoder, sequences, nowhere, index.block_vectors.pooler, tokens_per_batch=60).pooled
    assert pooled is not None
    np.testing.assert_allclose(pooled, stored(folder), atol=5e-3)
    np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1, atol=1e-5)
    nearest = index.block_vectors.best(pooled, 1)
    np.testing.assert_allclose(nearest.scores[:, 0], 1, atol=5e-3)
    np.testing.assert_allclose(stored(folder)[nearest.rows[:, 0]], pooled, atol=1e-2)  # some texts come twice
    with pytest.raises(ValueError, match="cls"):
        encode_sequences(encoder, sequences, nowhere, PoolerKind.cls, tokens_per_batch=60)


@pytest.mark.parametrize("kind", [PoolerKind.avg, PoolerKind.cls_before_pooler])
def test_an_empty_sequence_has_zeros_for_a_vector_and_changes_no_other(kind: PoolerKind, encoder: Encoder) -> None:
    empty = np.zeros(0, dtype=np.int64)
    sequences = [empty, np.array([5, 6, 7]), empty, np.array([8])]
    slots = [empty, np.array([2]), empty, np.array([0])]
    found = encode_sequences(encoder, sequences, slots, kind, tokens_per_batch=60)
    alone = encode_sequences(encoder, sequences[1::2], slots[1::2], kind, tokens_per_batch=60)
    assert found.pooled is not None and alone.pooled is not None
    assert not found.pooled[::2].any()
    np.testing.assert_array_equal(found.pooled[1::2], alone.pooled)
    assert [len(vectors) for vectors in found.vectors] == [0, 1, 0, 1]
    np.testing.assert_array_equal(np.concatenate(found.vectors), np.concatenate(alone.vectors))
    nothing = encode_sequences(encoder, [empty], [empty], kind, tokens_per_batch=60).pooled
    assert nothing is not None and nothing.tolist() == [[0.0] * encoder.dimensions]


def test_without_a_pooler_or_with_blocks_false_vectors_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    plain = all_bytes(built(tmp_path / "plain" / "index", with_pooler(None)))
    assert not any(name.endswith("/blocks.npy") for name in plain)
    for place, kind, blocks in (("told", None, False), ("mlp", PoolerKind.cls, True), ("off", PoolerKind.avg, False)):
        folder = built(tmp_path / place / "index", with_pooler(kind), blocks=blocks)
        other = all_bytes(folder)
        assert other.keys() == plain.keys()
        assert {name for name in other if other[name] != plain[name]} <= {"manifest.json"}  # which says blocks=
        assert PhraseIndex.open(folder).block_vectors is None


def test_another_choice_is_refused_and_segments_of_both_are_not_opened_together(
    encoder: Encoder, folder: Path, tmp_path: Path
) -> None:
    assert build_index(folder, settings_for(folder), encoder).was_finished
    off = built(tmp_path / "off", encoder, blocks=False)
    with pytest.raises(ArtifactError, match=r"vectors\.blocks"):
        build_index(folder, settings_for(folder, blocks=False), encoder)
    with pytest.raises(ArtifactError, match="block_pooler"):
        open_vectors([part_of(folder, "vectors"), part_of(off, "vectors")])


def test_added_documents_get_block_vectors_where_the_index_has_them_whatever_the_encoder_says(
    encoder: Encoder, folder: Path, tmp_path: Path
) -> None:
    """The pooler is no part of the fingerprint: the same weights may come from a folder that names another one."""
    first = stored(folder)
    added(folder, [record(number) for number in range(8, 11)], with_pooler(None))
    both = stored(folder)
    np.testing.assert_array_equal(both[: len(first)], first)
    index = PhraseIndex.open(folder)
    assert len(both) == index.store.block_count > len(first)
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1, atol=5e-3)
    without = built(tmp_path / "without", with_pooler(None))
    added(without, [record(9)], encoder, name="another")
    assert PhraseIndex.open(without).block_vectors is None
    assert not list(without.rglob("blocks.npy"))


def test_deleted_blocks_are_not_found_and_compact_copies_the_others(encoder: Encoder, folder: Path) -> None:
    added(folder, [record(8), record(9)], encoder)
    delete_documents(folder, DeleteSettings(ids=["d0", "d5", "d8"]))
    before = PhraseIndex.open(folder)
    assert before.block_vectors is not None
    assert before.live_blocks is not None
    expected = stored(folder)[before.live_blocks]
    hits = before.block_vectors.best(stored(folder), before.store.block_count)
    assert hits.found.sum(axis=1).tolist() == [before.live_blocks.sum()] * before.store.block_count
    for found, blocks in zip(hits.found, hits.rows, strict=True):
        assert sorted(blocks[found].tolist()) == np.flatnonzero(before.live_blocks).tolist()
    compact_index(folder, CompactSettings())
    np.testing.assert_array_equal(stored(folder), expected)
    assert block_vectors(folder).pooler is PoolerKind.avg
    verify_index(folder)
    assert verify_vectors(folder, encoder, batches=5, seed=0).worst_cosine > 0.999


def test_the_best_blocks_are_those_of_a_plain_loop(rng: np.random.Generator) -> None:
    values = rng.integers(-3, 4, (60, 8)).astype(np.float16)  # whole numbers: sums are exact in any order
    values[[7, 30, 55]] = values[3]  # ties
    vectors = BlockVectors(ShardedArray([values[:25], values[25:26], values[26:]]), PoolerKind.avg)
    live, allowed = rng.random(60) < 0.8, rng.random(60) < 0.5
    queries = np.concatenate([values[3:5], rng.integers(-3, 4, (3, 8))]).astype(np.float32)
    scores = (queries @ values.astype(np.float32).T).tolist()
    for masks in ((None, None), (live, None), (None, allowed), (live, allowed), (None, np.zeros(60, dtype=bool))):
        left = [block for block in range(60) if all(mask is None or mask[block] for mask in masks)]
        for k in (1, 5, 100):
            hits = vectors.with_live(masks[0]).best(queries, k, allowed=masks[1])
            assert hits.rows.shape == hits.scores.shape == hits.found.shape == (5, k)
            for query, scored in enumerate(scores):
                expected = sorted(left, key=lambda block, scored=scored: (-scored[block], block))[:k]
                assert hits.found[query].tolist() == [place < len(expected) for place in range(k)]
                assert hits.rows[query, : len(expected)].tolist() == expected
                np.testing.assert_allclose(
                    hits.scores[query, : len(expected)], [scored[block] for block in expected], atol=1e-5
                )


def test_similarities_of_blocks_in_any_order(rng: np.random.Generator) -> None:
    values = rng.standard_normal((9, 4)).astype(np.float16)
    vectors = BlockVectors(ShardedArray([values[:4], values[4:]]), PoolerKind.avg)
    queries = rng.standard_normal((2, 4)).astype(np.float32)
    blocks = np.array([8, 0, 4, 8])
    expected = [
        [sum(float(a) * float(b) for a, b in zip(query, values[block], strict=True)) for block in blocks]
        for query in queries
    ]
    np.testing.assert_allclose(vectors.similarities(queries, blocks), expected, atol=1e-5)
    assert vectors.similarities(queries, np.zeros(0, dtype=np.int64)).shape == (2, 0)
    for wrong in (9, -1):
        with pytest.raises(IndexError, match="blocks"):
            vectors.similarities(queries, np.array([0, wrong]))


def test_a_block_vector_of_another_encoder_is_found_by_encoding_again(
    folder: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify_vectors(folder, encoder, batches=40, seed=0).worst_cosine > 0.999

    def turned(shard: Path, name: str) -> np.ndarray:
        array = np.array(open_array(shard, name))
        if name == "blocks":
            array[:, : encoder.dimensions] *= -1  # the codes
        return array

    monkeypatch.setattr("npm.indexing.inspect.open_array", turned)
    with pytest.raises(ArtifactError, match="cosine"):
        verify_vectors(folder, encoder, batches=1, seed=0)


def test_a_pooler_that_is_none_of_ours_is_refused(folder: Path) -> None:
    settings = dict(read_manifest(part_of(folder, "vectors"), kind="vectors").settings)
    for wrong in ("cls", "avg_top2", "max", 3, ["avg"]):
        with pytest.raises(ArtifactError, match="block_pooler"):
            recorded_pooler({**settings, "block_pooler": wrong})


def test_inspect_and_an_estimate_tell_what_they_take(
    encoder: Encoder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, without = (estimated(settings_for(folder, blocks=blocks), encoder).disk for blocks in (True, False))
    assert counted["block vectors"] == pytest.approx(inspect_index(folder).counts["blocks"] * (32 + 2))
    added(folder, [record(8)], encoder)
    inspection = inspect_index(folder)
    assert inspection.block_pooler == inspection.record()["block_pooler"] == "avg"
    files = [path for path in folder.glob("vectors-*/**/*") if path.is_file()]
    disk = inspection.footprint.disk
    assert disk["block vectors"] == sum(path.stat().st_size for path in files if path.name == "blocks.npy")
    assert disk["vectors"] + disk["block vectors"] == sum(path.stat().st_size for path in files)
    assert "block signs" not in inspection.footprint.hot
    monkeypatch.setattr("npm.indexing.inspect.EXACT_ROWS", 10)
    assert inspect_index(folder).footprint.hot["block signs"] == inspection.counts["blocks"] * 32 / 8
    off = inspect_index(built(tmp_path / "off", encoder, blocks=False))
    assert off.block_pooler is None
    assert not {"block vectors", "block signs"} & {*without, *off.footprint.disk, *off.footprint.hot}
