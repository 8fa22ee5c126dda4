from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.indexing.changes import delete_documents
from npm.indexing.generation import Generation
from npm.indexing.inspect import footprint, hot_bytes
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import part_of
from tests.helpers.tuned_indexes import LISTS, build_measured

TIERS = (None, f"ivf_sq8 {LISTS}", "ivf_pq 4")


@pytest.fixture(scope="module", params=TIERS)
def folder(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_measured(tmp_path_factory.mktemp("footprint") / "index", encoder, request.param)


def is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False


def held_bytes(value: Any, seen: set[int] | None = None) -> int:
    """Bytes of all arrays that an object of ours holds, itself or through others, and that no file is mapped to."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return 0 if is_mapped(value) else value.nbytes
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(held_bytes(each, seen) for each in value)
    if not type(value).__module__.startswith(("npm.", "index.")):
        return 0
    names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
    return sum(held_bytes(getattr(value, name), seen) for name in names)


def test_tables_are_as_large_as_the_arrays_of_an_opened_index(folder: Path) -> None:
    tables, index = hot_bytes(Generation.read(folder)), PhraseIndex.open(folder)
    assert held_bytes(index.rows) == tables["row bitmap"] + tables["row counts"]
    assert held_bytes(index.lexicon) == tables["block lengths"]
    store = tables["block offsets"] + tables["block documents"]
    # numbers of the first document, block and token of each shard and segment come on top
    assert store < held_bytes(index.store) < store + 200
    assert "live documents, blocks, rows" not in tables


def test_what_deletions_take_counts_too(encoder: Encoder, tmp_path: Path) -> None:
    folder = build_measured(tmp_path / "index", encoder, None)
    delete_documents(folder, DeleteSettings(ids=["d3"]))
    tables, index = hot_bytes(Generation.read(folder)), PhraseIndex.open(folder)
    live = [index.live_documents, index.live_blocks, index.live_rows]
    assert held_bytes(live) == tables["live documents, blocks, rows"]


def test_parts_add_up_to_all_files_on_disk(folder: Path) -> None:
    found = footprint(Generation.read(folder))
    files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert sum(found.disk.values()) == sum(files.values())
    vectors = sum(size for path, size in files.items() if path.is_relative_to(part_of(folder, "vectors")))
    assert found.disk["vectors"] == vectors


def test_hot_bytes_are_those_of_the_searcher(folder: Path) -> None:
    generation = Generation.read(folder)
    hot, row_count = footprint(generation).hot, footprint(generation).row_count
    index = PhraseIndex.open(folder)
    assert row_count == len(index.rows)
    if generation.quantizer is None:
        index.searcher.scan(np.zeros((1, 32), dtype=np.float32)).top(1)  # which reads the vectors
        assert hot["vectors (float32, dense only)"] == 4 * row_count * 32
        assert 0 <= held_bytes(index.searcher) - hot["vectors (float32, dense only)"] < 200
    else:
        is_sq8 = index.manifest.settings["search"]["tier"] == "ivf_sq8"
        lists, code_bytes, padding = (LISTS, 32, 7) if is_sq8 else (4, 8, 31)
        assert code_bytes * row_count <= hot["codes"] <= code_bytes * (row_count + padding * lists)
        assert hot["row ids"] == 8 * row_count
        assert hot["centroids, graph, codec"] > 4 * 32 * lists
        assert hot["list table"] == 24 * lists
    total = sum(hot.values())
    assert footprint(generation).hot_bytes_per_vector == pytest.approx(total / row_count)
