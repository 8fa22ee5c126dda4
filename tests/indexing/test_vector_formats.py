"""Formats of stored vectors: bytes on disk, what is read back, equal answers, and an index that keeps its format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.arrays import row_bytes
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import verify_index, verify_vectors
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings, Rotation, VectorDtype
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.live_indexes import QUESTIONS, added, build_settings, part_of, record, write_records
from tests.helpers.tiny_models import tiny_encoder

RECORDS = [record(number) for number in range(10)]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg  # so that blocks have vectors
    return encoder


@pytest.fixture(scope="module")
def indexes(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> dict[VectorDtype, Path]:
    """The same documents in every format."""
    root, made = tmp_path_factory.mktemp("formats"), {}
    file = Path(write_records(root / "corpus.jsonl", RECORDS))
    for dtype in VectorDtype:
        settings = build_settings(file)
        made[dtype] = root / dtype.value
        build_index(made[dtype], replace(settings, vectors=replace(settings.vectors, dtype=dtype)), encoder)
    return made


def read_all(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of all tokens [rows, d] and of all blocks [blocks, d] of an index."""
    index = PhraseIndex.open(folder)
    assert index.vectors is not None
    assert index.block_vectors is not None
    return tuple(stored.slice(0, len(stored)) for stored in (index.vectors, index.block_vectors.vectors))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", VectorDtype)
def test_files_are_as_large_as_their_rows(dtype: VectorDtype, indexes: dict[VectorDtype, Path]) -> None:
    index = PhraseIndex.open(indexes[dtype])
    assert index.block_vectors is not None
    size = row_bytes(32, np.dtype(dtype.value))
    assert size == {"int8": 34, "float16": 64, "float32": 128}[dtype.value]
    for name, count in (("vectors", len(index.rows)), ("blocks", index.block_vectors.block_count)):
        files = list(part_of(indexes[dtype], "vectors").glob(f"*/{name}.npy"))
        assert sum(file.stat().st_size for file in files) == count * size + 128 * len(files)  # with their headers
    verify_index(indexes[dtype])


@pytest.mark.parametrize("dtype", VectorDtype)
def test_vectors_are_those_of_single_precision_but_for_rounding(
    dtype: VectorDtype, indexes: dict[VectorDtype, Path], encoder: Encoder
) -> None:
    for whole, stored in zip(read_all(indexes[VectorDtype.float32]), read_all(indexes[dtype]), strict=True):
        largest = np.abs(whole).max(axis=1, keepdims=True)  # f32 [n, 1]
        step = {"int8": 0.505 / 127, "float16": 2.0**-11, "float32": 0}[dtype.value]
        assert (np.abs(stored - whole) <= step * largest).all()
    assert verify_vectors(indexes[dtype], encoder, batches=20, seed=0).worst_cosine > 0.9995


@pytest.mark.parametrize("retrieval", [Retrieval.dense, Retrieval.hybrid])
def test_the_first_phrases_are_those_of_single_precision(
    retrieval: Retrieval, indexes: dict[VectorDtype, Path], encoder: Encoder
) -> None:
    first = {}
    for dtype, folder in indexes.items():
        filler = PhraseFiller.open(folder, encoder, settings=FillSettings(retrieval=retrieval, reader="none"))
        first[dtype] = [answer.phrases[0].phrase for answer in filler.fill(list(QUESTIONS))]
    assert first[VectorDtype.int8] == first[VectorDtype.float16] == first[VectorDtype.float32]


@pytest.mark.parametrize("dtype", [VectorDtype.int8, VectorDtype.float16])
def test_a_change_keeps_the_format_and_copies_rows_as_they_are(
    dtype: VectorDtype, encoder: Encoder, tmp_path: Path
) -> None:
    settings = build_settings(Path(write_records(tmp_path / "corpus.jsonl", RECORDS)))
    folder = tmp_path / "index"
    build_index(folder, replace(settings, vectors=replace(settings.vectors, dtype=dtype)), encoder)
    added(folder, [record(11), record(12)], encoder)
    delete_documents(folder, DeleteSettings(ids=["d0", "d4", "d11"]))
    before = PhraseIndex.open(folder)
    assert before.live_rows is not None and before.live_blocks is not None
    live = (before.live_rows, before.live_blocks)
    expected = [stored[chosen] for stored, chosen in zip(read_all(folder), live, strict=True)]
    for change in (lambda: compact_index(folder, CompactSettings()), lambda: partition_index(folder, 2)):
        change()
        for stored, rows in zip(read_all(folder), expected, strict=True):
            np.testing.assert_array_equal(stored, rows)
        verify_index(folder)
    for segment in Generation.read(folder).segments:
        assert read_manifest(segment.vectors).settings["dtype"] == dtype.value
    assert PhraseFiller.open(folder, encoder).fill(QUESTIONS[0], retrieval="dense").phrases


def test_axes_of_a_rotation_do_not_depend_on_the_format(encoder: Encoder, tmp_path: Path) -> None:
    settings = build_settings(Path(write_records(tmp_path / "corpus.jsonl", RECORDS)))
    axes = []
    for dtype in VectorDtype:
        vectors = replace(settings.vectors, dtype=dtype)
        folder = tmp_path / dtype.value
        build_index(folder, replace(settings, vectors=vectors, dimensions=12, rotation=Rotation.pca), encoder)
        axes.append((part_of(folder, "rotation") / "axes.npy").read_bytes())
        assert [stored.shape[1] for stored in read_all(folder)] == [12, 12]
        assert verify_vectors(folder, encoder, batches=5, seed=0).worst_cosine > 0.9995
    assert len(set(axes)) == 1


def test_an_index_in_another_format_is_no_finished_one_of_the_same_settings(
    indexes: dict[VectorDtype, Path], encoder: Encoder
) -> None:
    settings = build_settings(indexes[VectorDtype.float16].parent / "corpus.jsonl")
    settings = replace(settings, vectors=replace(settings.vectors, dtype=VectorDtype.int8))
    with pytest.raises(ArtifactError, match=r"vectors\.dtype=int8.*vectors\.dtype=float16"):
        build_index(indexes[VectorDtype.float16], settings, encoder)
