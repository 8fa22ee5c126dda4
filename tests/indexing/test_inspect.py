"""What inspect tells of an index, and what it takes on disk and in memory."""

from __future__ import annotations

import json
import mmap
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError
from npm.corpus.settings import CorpusSettings
from npm.indexing.changes import add_documents, commit, delete_documents
from npm.indexing.embed import kept_tokens
from npm.indexing.generation import Generation, Searching
from npm.indexing.inspect import Inspection, footprint, hot_bytes, inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import AddSettings, DeleteSettings, PruningRule
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import part_of
from tests.helpers.tuned_indexes import DOCUMENTS, LISTS, build_measured


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two segments, with two documents deleted."""
    place = tmp_path_factory.mktemp("inspection")
    index = build_measured(place / "index", encoder, f"ivf_sq8 {LISTS}")
    more = place / "more.jsonl"
    more.write_text('{"id": "new", "text": "Oslo lies in Norway. Paris lies in France."}', encoding="utf-8")
    add_documents(index, AddSettings(corpus=CorpusSettings(files=[str(more)])), encoder)
    delete_documents(index, DeleteSettings(ids=["d0", "d1"]))
    return index


@pytest.fixture(scope="module")
def inspection(folder: Path) -> Inspection:
    return inspect_index(folder)


def test_it_says_what_is_in_the_index(inspection: Inspection, folder: Path) -> None:
    index = PhraseIndex.open(folder)
    assert inspection.generation == 2
    assert inspection.counts == {
        "documents": DOCUMENTS + 1,
        "deleted_documents": 2,
        "blocks": index.store.block_count,
        "tokens": index.store.token_count,
        "rows": len(index.rows),
    }
    assert list(inspection.segments) == ["00000", "00001"]
    assert [source["name"] for each in inspection.segments.values() for source in each["sources"]] == [
        "index.jsonl",
        "more.jsonl",
    ]
    assert inspection.segments["00001"]["counts"]["documents"] == 1
    assert inspection.kept_fields == ["kind"]


def test_it_says_what_made_the_index(inspection: Inspection, encoder: Encoder) -> None:
    assert inspection.encoder["name"] == "tiny-bert"
    assert inspection.encoder["fingerprint"] == encoder.fingerprint
    assert not inspection.encoder["inside"]
    assert inspection.versions["numpy"] == np.__version__
    assert inspection.settings["blocks"]["max_block_tokens"] == 64
    assert inspection.tier_reason == "as search.tier asks"
    assert (inspection.tier, inspection.factory, inspection.dimensions) == ("ivf_sq8", f"IVF{LISTS},SQ8", 32)


def test_the_effect_of_each_pruning_rule_is_counted_over_all_segments(inspection: Inspection, folder: Path) -> None:
    store = PhraseIndex.open(folder).store
    flags = store.flags.slice(0, store.token_count)
    plain = {rule.value: int(kept_tokens(flags, rule).sum()) for rule in PruningRule}
    assert inspection.pruning["kept_by_rule"] == plain
    assert inspection.pruning["rule"] == "without_stopwords"
    assert inspection.pruning["kept"] == plain["without_stopwords"] == inspection.counts["rows"]
    assert inspection.pruning["tokens"] == store.token_count


def test_it_says_how_the_index_is_searched(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    names = ("probed_lists", "rerank_factor", "candidates_per_side")
    copied = shutil.copytree(folder, tmp_path / "copy")
    opened: Any = PhraseIndex.open(copied)
    own = (opened.searcher.probed_lists, opened.searcher.rerank_factor, opened.candidates_per_side)
    assert inspect_index(copied).searching == dict(zip(names, own, strict=True))
    generation = Generation.read(copied)
    commit(generation, replace(generation.manifest, searching=Searching(3, 5, 7)))
    assert inspect_index(copied).searching == dict(zip(names, (3, 5, 7), strict=True))
    exact = build_measured(tmp_path / "exact", encoder, None, documents=3)
    without = (None, None, PhraseIndex.open(exact).candidates_per_side)
    assert inspect_index(exact).searching == dict(zip(names, without, strict=True))


def test_it_reads_no_array_and_its_record_is_json_without_a_place_of_this_machine(
    inspection: Inspection, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("an array was opened"))
    text = json.dumps(inspect_index(folder).record(), allow_nan=False)
    assert str(folder.parent) not in text
    record = json.loads(text)
    assert record == json.loads(json.dumps(inspection.record()))
    assert record["bytes"]["hot_bytes_per_vector"] > 32
    assert record["segments"]["00001"]["counts"]["documents"] == 1
    for wrong in (tmp_path / "nothing", part_of(folder, "corpus")):
        with pytest.raises(ArtifactError):
            inspect_index(wrong)


TIERS = (None, f"ivf_sq8 {LISTS}", "ivf_pq 4")


@pytest.fixture(scope="module", params=TIERS)
def measured(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_tables_are_as_large_as_the_arrays_of_an_opened_index(measured: Path) -> None:
    tables, index = hot_bytes(Generation.read(measured)), PhraseIndex.open(measured)
    assert held_bytes(index.rows) == tables["row bitmap"] + tables["row counts"]
    assert held_bytes(index.lexicon) == tables["block lengths"]
    store = tables["block offsets"] + tables["block documents"] + tables["block first characters"]
    # numbers of the first document, block and token of each shard and segment come on top
    assert store < held_bytes(index.store) < store + 200
    assert "live documents, blocks, rows" not in tables


def test_what_deletions_take_counts_too(encoder: Encoder, tmp_path: Path) -> None:
    measured = build_measured(tmp_path / "index", encoder, None)
    delete_documents(measured, DeleteSettings(ids=["d3"]))
    tables, index = hot_bytes(Generation.read(measured)), PhraseIndex.open(measured)
    live = [index.live_documents, index.live_blocks, index.live_rows]
    assert held_bytes(live) == tables["live documents, blocks, rows"]


def test_parts_add_up_to_all_files_on_disk(measured: Path) -> None:
    found = footprint(Generation.read(measured))
    files = {path: path.stat().st_size for path in measured.rglob("*") if path.is_file()}
    assert sum(found.disk.values()) == sum(files.values())
    vectors = sum(size for path, size in files.items() if path.is_relative_to(part_of(measured, "vectors")))
    assert found.disk["vectors"] == vectors


def test_hot_bytes_are_those_of_the_searcher(measured: Path) -> None:
    generation = Generation.read(measured)
    hot, row_count = footprint(generation).hot, footprint(generation).row_count
    index = PhraseIndex.open(measured)
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
        assert hot["centroids, codec"] > 4 * 32 * lists
        assert hot["list table"] == 24 * lists
    total = sum(hot.values())
    assert footprint(generation).hot_bytes_per_vector == pytest.approx(total / row_count)
