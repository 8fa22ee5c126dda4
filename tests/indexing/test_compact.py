from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import index.settings
from npm.core import artifact
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError, StorageError
from npm.indexing.changes import commit, delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.embed import open_vectors
from npm.indexing.generation import Generation, Searching
from npm.indexing.inspect import reencode_sample, verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from tests.helpers.live_indexes import (
    TIERS,
    added,
    all_bytes,
    answered_documents,
    answers,
    assert_same_answers,
    built,
    record,
)
from tests.helpers.stores import token_places

FIRST = [record(number) for number in range(6)]
MORE = [record(number, language="de") for number in range(6, 9)]
LEFT = [*FIRST[1:3], *FIRST[4:], *MORE[:2]]
KEEPS, RETRAINS = CompactSettings(), CompactSettings(retrain=True)


@pytest.fixture(scope="module", params=TIERS, ids=str)
def of_each_tier(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tmp_path_factory.mktemp("tier") / "index", encoder, request.param)


@pytest.fixture(scope="module")
def pristine(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tmp_path_factory.mktemp("compact") / "index", encoder, "ivf_sq8 4")


def changed(folder: Path, encoder: Encoder, lists: str | None) -> Path:
    """An index of two segments without d0, d3 and d8: the documents LEFT are in it."""
    built(folder, FIRST, encoder, lists)
    added(folder, MORE, encoder)
    delete_documents(folder, DeleteSettings(ids=["d0", "d3", "d8"]))
    return folder


@pytest.mark.parametrize("settings", [KEEPS, RETRAINS], ids=["keeps", "retrains"])
def test_a_compacted_index_answers_as_one_built_of_what_is_left(
    settings: CompactSettings, of_each_tier: Path, encoder: Encoder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(of_each_tier, tmp_path / "index"))
    change = compact_index(folder, settings)
    assert (change.was_finished, change.deleted_documents) == (False, 3)
    fresh = built(tmp_path / "fresh", LEFT, encoder)
    assert_same_answers(folder, fresh, encoder)
    verify_index(folder)
    assert answered_documents(PhraseFiller.open(folder, encoder), where=["lang=de"]) == {"d6", "d7"}
    ours, theirs = PhraseIndex.open(folder), PhraseIndex.open(fresh)
    assert ours.manifest.counts == theirs.manifest.counts
    np.testing.assert_array_equal(token_places(ours.store), token_places(theirs.store))
    for name in ("token_ids", "flags"):
        expected = getattr(theirs.store, name)
        np.testing.assert_array_equal(
            getattr(ours.store, name).slice(0, len(expected)), expected.slice(0, len(expected))
        )
    np.testing.assert_array_equal(ours.store.block_offsets, theirs.store.block_offsets)
    assert [ours.store.document(n) for n in range(6)] == [theirs.store.document(n) for n in range(6)]


def test_vectors_are_copied_bit_by_bit(live: Path, encoder: Encoder) -> None:
    before = PhraseIndex.open(live)
    assert before.vectors is not None
    assert before.live_rows is not None
    expected = before.vectors.take(np.flatnonzero(before.live_rows))
    compact_index(live, KEEPS)
    segment = Generation.read(live).segments[0]
    vectors, rows, _ = open_vectors([segment.vectors])
    assert len(vectors.arrays) > 1
    np.testing.assert_array_equal(vectors.take(np.arange(len(rows))), expected)
    recorded = read_manifest(segment.vectors, kind="vectors").settings
    assert recorded["batches_as_stored"] is False
    assert len(recorded["compacted_from"]) == 2
    store = PhraseIndex.open(live).store
    checked = reencode_sample(store, encoder, segment.vectors, batch_count=8, rng=np.random.default_rng(0))
    assert checked.row_count > 0
    assert checked.worst_cosine == pytest.approx(1, abs=1e-5)


def test_how_it_is_searched_is_carried_over_and_only_the_parts_of_the_new_generation_are_left(live: Path) -> None:
    before = Generation.read(live).manifest.searching
    assert before.probed_lists == 4
    for name in ("corpus-0123456789abcdef", ".search-0123456789abcdef.tmp", ".quantizer-0123456789abcdef.tmp"):
        (live / name).mkdir()  # of a change that was abandoned
    compact_index(live, RETRAINS)
    manifest = Generation.read(live).manifest
    assert manifest.searching == before
    assert {path.name for path in live.iterdir()} == {"manifest.json", *manifest.parts}
    assert Counter(path.name.partition("-")[0] for path in live.iterdir() if path.is_dir()) == Counter(
        ["corpus", "vectors", "lexicon", "codes", "quantizer", "search"]
    )


def test_an_index_without_deleted_documents_in_one_segment_stays_as_it_is(live: Path) -> None:
    first = compact_index(live, KEEPS)
    before = all_bytes(live)
    left = live / "corpus-0123456789abcdef"
    left.mkdir()  # as a kill before the removal leaves it
    again = compact_index(live, KEEPS)
    assert again.was_finished
    assert again.manifest == first.manifest
    assert all_bytes(live) == before
    assert not left.exists()
    assert not compact_index(live, RETRAINS).was_finished
    assert compact_index(live, RETRAINS).was_finished  # trained on these vectors already


def test_the_quantizer_is_kept_unless_the_rows_call_for_another_tier(
    live: Path, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Generation.read(live).quantizer
    compact_index(live, KEEPS)
    assert Generation.read(live).quantizer == trained
    automatic = changed(tmp_path / "automatic", encoder, None)
    assert Generation.read(automatic).quantizer is None
    expected = answers(PhraseFiller.open(automatic, encoder))
    assert (added(automatic, [record(31)], encoder, name="one").advice or "").endswith("without them")
    compact_index(automatic, KEEPS)
    assert added(automatic, [record(32)], encoder, name="two").advice is None
    monkeypatch.setattr(index.settings, "EXACT_ROWS", 10)
    assert (added(automatic, [record(30)], encoder, name="three").advice or "").endswith("changes to it")
    delete_documents(automatic, DeleteSettings(ids=["d30", "d31", "d32"]))
    compact_index(automatic, KEEPS)
    generation = Generation.read(automatic)
    assert generation.quantizer is not None
    assert read_manifest(generation.search, kind="search").settings["tier"] == "ivf_sq8"
    found = answers(PhraseFiller.open(automatic, encoder))
    assert found.keys() == expected.keys()
    monkeypatch.undo()
    compact_index(automatic, KEEPS)
    assert Generation.read(automatic).quantizer is None
    assert not [*automatic.glob("quantizer*"), *automatic.glob("codes*")]
    assert answers(PhraseFiller.open(automatic, encoder)).keys() == expected.keys()


def test_search_settings_of_one_tier_end_with_it(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed(tmp_path / "index", encoder, None)
    before = Generation.read(folder).manifest.searching
    commit(Generation.read(folder), replace(Generation.read(folder).manifest, searching=Searching(1, 2, 3)))
    monkeypatch.setattr(index.settings, "EXACT_ROWS", 10)
    compact_index(folder, KEEPS)
    assert Generation.read(folder).quantizer is not None
    assert Generation.read(folder).manifest.searching == before


def test_an_opening_reader_whose_folders_are_removed_opens_the_new_generation(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Generation.read
    stale = read(live)
    compact_index(live, KEEPS)
    generations = iter([stale])
    monkeypatch.setattr(Generation, "read", lambda folder: next(generations, None) or read(folder))
    opened = PhraseIndex.open(live)
    assert opened.is_current
    assert opened.store.document_count == len(LEFT)


@pytest.mark.parametrize(
    "file", ["vectors-*/00000/vectors.npy", "corpus-*/00000/texts.npy", "corpus-*/00000/flags.npy"]
)
def test_damage_is_refused_instead_of_copied(file: str, live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(live.glob(file))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(artifact, "HASHED_AT_OPENING_BYTES", 0)  # as if all files were large
    monkeypatch.setattr("npm.indexing.embed.HASHED_AT_OPENING_BYTES", 0)
    with pytest.raises(ArtifactError, match="is damaged"):
        compact_index(live, KEEPS)
    assert Generation.read(live).manifest.generation == 2


def test_a_full_disk_is_told_before_vectors_are_copied(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("npm.core.files.KEPT_FREE_BYTES", 1 << 60)
        with pytest.raises(StorageError, match="no room for the vectors"):
            compact_index(live, KEEPS)
    assert not compact_index(live, KEEPS).was_finished
