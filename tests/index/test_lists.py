"""Codes made shard by shard and merged on disk against one FAISS index that holds everything in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index import lists as lists_module
from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.faiss_library import inverted_file, read_faiss
from index.lists import attach_lists
from index.quantiser import TRAINED_FILE, Quantiser, transforms
from npm.core.artifact import verify_folder
from tests.index.search_folders import (
    QUERIES,
    ROWS,
    build_search,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)

FACTORIES = [
    "IVF8,Flat",
    "IVF8,SQ8",
    "IVF8_HNSW8,SQ8",
    "IVF8,PQ4x4",
    "IVF8,RaBitQ",
    "IVF8_HNSW8,RaBitQ",
    "IVF8,RaBitQ4",
    "RR16,IVF8,SQ8",
    "OPQ4_8,IVF8,RaBitQ",
]


def in_memory(root: Path, vectors: ShardedArray) -> Any:
    """The same trained index, filled by FAISS itself, shard by shard, in the lists that the quantiser chooses."""
    quantiser = Quantiser.open(root / "quantiser")
    index = read_faiss(root / "quantiser" / TRAINED_FILE)
    ivf, first_row = inverted_file(index), 0
    for array in vectors.arrays:
        coded = array.astype(np.float32)
        lists, _ = quantiser.encode(coded)
        for transform in transforms(index):
            coded = transform.apply(coded)
        ids = np.arange(first_row, first_row + len(array))
        ivf.add_core(len(array), faiss.swig_ptr(coded), faiss.swig_ptr(ids), faiss.swig_ptr(lists))
        first_row += len(array)
    index.ntotal = ivf.ntotal
    return index


@pytest.mark.parametrize("factory", FACTORIES)
def test_searching_the_merged_lists_equals_one_index_in_memory_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    monkeypatch.setattr(lists_module, "PART_BYTES", 3000)
    monkeypatch.setattr(lists_module, "BATCH_BYTES", 700)
    vectors = sample_vectors()
    manifest = build_search(tmp_path, vectors, settings_for(factory))
    assert len(manifest.parts) > 1
    verify_folder(tmp_path / "search", "search")
    plain = in_memory(tmp_path, vectors)
    merged = Quantiser.open(tmp_path / "quantiser")
    parts = [tmp_path / "search" / name for name in manifest.parts]
    held = attach_lists(merged.index, parts, quantiser_digest=merged.digest, row_count=ROWS)
    for number in range(merged.list_count):
        sizes = [inverted_file(index).get_list_size(number) for index in (plain, merged.index)]
        assert sizes[0] == sizes[1] == inverted_file(merged.index).invlists.list_size(number)
    for probed_lists in (1, 3, 8):
        found = []
        for index in (plain, merged.index):
            lists = inverted_file(index)
            lists.nprobe = probed_lists
            if hasattr(lists, "qb"):
                lists.qb = 8
            found.append(index.search(sample_queries(), 50))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])
    assert held


@pytest.mark.parametrize("factory", FACTORIES)
def test_with_all_lists_probed_and_enough_candidates_it_finds_what_exact_search_finds(
    tmp_path: Path, factory: str
) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, settings_for(factory))
    hits = open_built(tmp_path, vectors, probed_lists=8, rerank_factor=140).scan(sample_queries()).top(5)
    expected = ExactSearcher(vectors).scan(sample_queries()).top(5)
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-5, atol=1e-5)
    assert hits.found.all() and hits.rows.shape == (QUERIES, 5)
