from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.corpus.settings import CorpusSettings
from npm.indexing.changes import add_documents, commit, delete_documents
from npm.indexing.embed import kept_tokens
from npm.indexing.generation import Generation, Searching
from npm.indexing.inspect import Inspection, inspect_index
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


def test_it_says_how_the_index_is_searched(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    opened: Any = PhraseIndex.open(copied)
    assert inspect_index(copied).searching == {
        "probed_lists": opened.searcher.probed_lists,
        "rerank_factor": opened.searcher.rerank_factor,
        "candidates_per_side": opened.candidates_per_side,
    }
    generation = Generation.read(copied)
    commit(generation, replace(generation.manifest, searching=Searching(3, 5, 7)))
    assert inspect_index(copied).searching == {"probed_lists": 3, "rerank_factor": 5, "candidates_per_side": 7}


def test_exact_search_has_no_lists_to_speak_of(encoder: Encoder, tmp_path: Path) -> None:
    index = build_measured(tmp_path / "index", encoder, None, documents=3)
    searching = inspect_index(index).searching
    assert searching == {
        "probed_lists": None,
        "rerank_factor": None,
        "candidates_per_side": PhraseIndex.open(index).candidates_per_side,
    }


def test_it_reads_no_array(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an array was opened")

    monkeypatch.setattr(np, "load", refuse)
    assert inspect_index(folder).counts["documents"] == DOCUMENTS + 1


def test_its_record_is_json_without_a_place_of_this_machine(inspection: Inspection, folder: Path) -> None:
    text = json.dumps(inspection.record(), allow_nan=False)
    assert str(folder.parent) not in text
    record = json.loads(text)
    assert record["bytes"]["hot_bytes_per_vector"] > 32
    assert record["segments"]["00001"]["counts"]["documents"] == 1


def test_what_is_no_index_is_refused(folder: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path / "nothing", part_of(folder, "corpus")):
        with pytest.raises(ArtifactError):
            inspect_index(wrong)
