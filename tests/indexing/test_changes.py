from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from npm.core.artifact import manifest_bytes, read_manifest
from npm.core.errors import ArtifactError, CorpusError, SettingError, UserError
from npm.corpus.settings import CorpusSettings
from npm.indexing import changes
from npm.indexing.build import build_index
from npm.indexing.changes import add_documents, delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from tests.helpers.kills import Killed
from tests.helpers.live_indexes import (
    TIERS,
    added,
    all_bytes,
    answered_documents,
    answers,
    assert_same_answers,
    build_settings,
    built,
    part_of,
    record,
    write_records,
)
from tests.helpers.locks import locked_elsewhere
from tests.helpers.tiny_models import tiny_encoder

FIRST = [record(number) for number in range(6)]
MORE = [record(number, language="de") for number in range(6, 9)]


@pytest.fixture(scope="module", params=TIERS, ids=str)
def of_each_tier(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("tier") / "index", FIRST, encoder, request.param)


@pytest.fixture(scope="module")
def pristine(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("changes") / "index", FIRST, encoder, "ivf_sq8 4")


def deleted(folder: Path, *ids: str) -> None:
    delete_documents(folder, DeleteSettings(ids=list(ids)))


def test_added_deleted_and_replaced_documents_answer_as_an_index_built_of_what_is_left(
    of_each_tier: Path, encoder: Encoder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(of_each_tier, tmp_path / "index"))
    added(folder, MORE, encoder)
    assert_same_answers(folder, built(tmp_path / "added", [*FIRST, *MORE], encoder), encoder)
    deleted(folder, "d1", "d7")
    left = [*FIRST[:1], *FIRST[2:], MORE[0], MORE[2]]
    assert_same_answers(folder, built(tmp_path / "deleted", left, encoder), encoder)
    newer = [record(2, text="Akureyri lies in the north of Iceland."), record(20)]
    change = added(folder, newer, encoder, replace=True, name="newer")
    assert (change.added_documents, change.deleted_documents) == (2, 1)
    left = [each for each in left if each["id"] != "d2"] + newer
    assert_same_answers(folder, built(tmp_path / "replaced", left, encoder), encoder)
    verify_index(folder)


def test_a_compact_is_advised_from_a_quarter_of_deleted_documents_on(
    pristine: Path, encoder: Encoder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pristine, tmp_path / "index"))
    added(folder, MORE[:2], encoder)
    first, second = (delete_documents(folder, DeleteSettings(ids=[name])).advice for name in ("d1", "d2"))
    assert first is None and second is not None and "2 of 8 documents" in second


def test_an_add_takes_all_its_settings_from_the_index(live: Path, encoder: Encoder) -> None:
    added(live, MORE, encoder)
    opened = PhraseIndex.open(live)
    first, more = (Generation.read(live).segments[number].vectors for number in (0, 1))
    recorded = [read_manifest(folder, kind="vectors").settings for folder in (first, more)]
    different = {name for name in recorded[0] if recorded[0][name] != recorded[1][name]}
    assert different == {"corpus", "pruning_counts"}
    assert opened.store.max_block_tokens <= 22
    assert [opened.store.document(number).fields for number in (5, 6)] == [{"lang": "en"}, {"lang": "de"}]


def test_every_change_makes_a_generation_and_leaves_only_its_parts(live: Path, encoder: Encoder) -> None:
    for number in range(5):
        if number < 2:
            added(live, [MORE[number]], encoder, name=str(number))
            (part_of(live, "vectors", 1) / ".00000.lock").touch()  # as kill -9 leaves it
        else:
            deleted(live, f"d{number}")
        manifest = Generation.read(live).manifest
        kept = {path.name for path in live.iterdir()}
        assert {*manifest.parts, "manifest.json"} == kept
    assert not list(live.rglob(".*"))
    assert manifest.generation == 5
    assert Generation.read(live).deleted_documents().tolist() == [2, 3, 4]
    assert (manifest.counts.documents, manifest.deleted_documents) == (8, 3)


def test_a_reader_keeps_the_generation_that_it_opened(of_each_tier: Path, encoder: Encoder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(of_each_tier, tmp_path / "index"))
    reader = PhraseFiller.open(folder, encoder)
    before = answers(reader)
    deleted(folder, "d0", "d3")
    added(folder, MORE, encoder)
    assert answers(reader) == before
    compact_index(folder, CompactSettings(retrain=True))
    assert len(list(folder.glob("corpus-*"))) == 1
    assert answers(reader) == before
    assert not reader.index.is_current
    assert answered_documents(PhraseFiller.open(folder, encoder)) == {"d1", "d2", "d4", "d5", "d6", "d7", "d8"}


def test_the_same_add_again_has_nothing_to_do(live: Path, encoder: Encoder) -> None:
    first = added(live, MORE, encoder)
    before = all_bytes(live)
    again = added(live, MORE, encoder)
    assert (first.was_finished, again.was_finished) == (False, True)
    assert first.manifest == again.manifest
    assert all_bytes(live) == before
    deleted(live, "d8")
    with pytest.raises(CorpusError, match="replace=true"):
        added(live, MORE, encoder)


def unfinished_add(folder: Path, encoder: Encoder, stage: str = "vectors") -> None:
    def kill(now: str, done: int, total: int | None) -> None:
        if now == stage:
            raise Killed

    file = write_records(folder.parent / "more.jsonl", MORE)
    with pytest.raises(Killed):
        add_documents(folder, AddSettings(corpus=CorpusSettings(files=[file])), encoder, progress=kill)


@pytest.mark.parametrize("stage", ["vectors", "lists"])
def test_an_unfinished_add_leaves_nothing_to_another_change_and_outlives_a_delete(
    stage: str, live: Path, encoder: Encoder, tmp_path: Path
) -> None:
    whole = Path(shutil.copytree(live, tmp_path / "whole"))
    deleted(whole, "d0")
    added(whole, [record(30)], encoder, name="another")
    added(whole, MORE, encoder)
    unfinished_add(live, encoder, stage)
    left = set(live.glob("corpus-*"))
    deleted(live, "d0")
    assert set(live.glob("corpus-*")) == left
    added(live, [record(30)], encoder, name="another")
    assert not set(live.glob("corpus-*")) >= left
    assert added(live, MORE, encoder).added_documents == 3
    assert all_bytes(live) == all_bytes(whole)


def test_documents_that_were_deleted_come_back_by_the_same_add_without_being_encoded_again(
    live: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(live, MORE, encoder)
    before = answers(PhraseFiller.open(live, encoder))
    deleted(live, "d6", "d8")
    with monkeypatch.context() as patched:
        patched.setattr("npm.indexing.embed.ShardBlocks", lambda *_: pytest.fail("encoded"))
        changed = added(live, MORE, encoder, replace=True)
    assert (changed.was_finished, changed.added_documents, changed.deleted_documents) == (False, 3, 1)
    assert answers(PhraseFiller.open(live, encoder)).keys() == before.keys()
    verify_index(live)
    compact_index(live, CompactSettings())
    assert answers(PhraseFiller.open(live, encoder)).keys() == before.keys()


def test_ids_that_exist_are_refused_before_anything_is_encoded(
    live: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_bytes(live)
    monkeypatch.setattr("npm.indexing.changes.IDS_AT_ONCE", 4)
    monkeypatch.setattr("npm.indexing.changes.make_segments", lambda *_, **__: pytest.fail("encoded"))
    with pytest.raises(CorpusError, match=r"'d0', .* 2 more.*replace=true"):
        added(live, [record(40), *FIRST, *MORE], encoder)
    assert all_bytes(live) == before


def test_a_corpus_with_a_fault_leaves_the_index_as_it_was(live: Path, encoder: Encoder) -> None:
    before = all_bytes(live)
    file = Path(write_records(live.parent / "bad.jsonl", MORE))
    file.write_text(file.read_text() + "{}\n")
    with pytest.raises(CorpusError, match="has no text"):
        add_documents(live, AddSettings(corpus=CorpusSettings(files=[str(file)])), encoder)
    with pytest.raises(CorpusError, match=r"vectors\.pruning"):
        added(live, [{"id": "x", "title": "", "text": "of the and ..."}], encoder)
    assert all_bytes(live) == before


def test_another_encoder_or_other_kept_fields_are_refused(live: Path, encoder: Encoder) -> None:
    before = all_bytes(live)
    with pytest.raises(ArtifactError, match="fingerprint"):
        added(live, MORE, tiny_encoder("bert", seed=1))
    corpus = CorpusSettings(files=[write_records(live.parent / "more.jsonl", MORE)], kept_fields=["topic"])
    with pytest.raises(SettingError, match=r"corpus\.kept_fields.*\[lang\]"):
        add_documents(live, AddSettings(corpus=corpus), encoder)
    assert all_bytes(live) == before


def test_ids_come_from_a_file_too_count_once_and_one_wrong_one_changes_nothing(live: Path, tmp_path: Path) -> None:
    deleted(live, "d1")
    before = all_bytes(live)
    for ids, named in ((["d0", "d1", "nobody", "d99"], "ids: 'nobody', 'd99' not"), ([], "ids")):
        with pytest.raises(SettingError, match=named):
            deleted(live, *ids)
    with pytest.raises(SettingError):
        deleted(live, "d0", "d2", "d3", "d4", "d5")
    with pytest.raises(CorpusError, match=r"none\.txt"):
        delete_documents(live, DeleteSettings(ids_file=str(tmp_path / "none.txt")))
    assert all_bytes(live) == before
    file = tmp_path / "ids.txt"
    file.write_text("d1\r\n\nd2\nd1\n")
    assert delete_documents(live, DeleteSettings(ids=["d2", "d4"], ids_file=str(file))).deleted_documents == 2
    np.testing.assert_array_equal(Generation.read(live).deleted_documents(), [1, 2, 4])


@pytest.mark.parametrize("name", ["file.jsonl/index", "x" * 253])  # the name of its lock is too long
def test_an_index_that_cannot_be_a_folder_is_refused_by_its_name(name: str, encoder: Encoder, tmp_path: Path) -> None:
    file = Path(write_records(tmp_path / "file.jsonl", FIRST))
    with pytest.raises(OSError, match=r"folder above it is a file|name too long") as caught:
        build_index(tmp_path / name, build_settings(file), encoder)
    assert caught.value.filename == str(tmp_path / name)


def test_damage_and_newer_versions_are_refused_by_every_change(live: Path, encoder: Encoder) -> None:
    manifest = live / "manifest.json"
    recorded = Generation.read(live).manifest
    for spoilt in (
        manifest.read_bytes().replace(b'"generation": 0', b'"generation": 1'),
        manifest.read_bytes().replace(b'"format_version": 4', b'"format_version": 5'),
        manifest_bytes("something-else", recorded.settings, {}, recorded.parts),
    ):
        assert spoilt != manifest.read_bytes()
        (live / "manifest.json").write_bytes(spoilt)
        for change in (
            lambda: added(live, MORE, encoder),
            lambda: deleted(live, "d1"),
            lambda: compact_index(live, CompactSettings()),
        ):
            with pytest.raises(UserError):
                change()


def test_a_delete_is_repeated_after_another_change(live: Path, encoder: Encoder) -> None:
    deleted(live, "d1", "d2")  # killed here, as far as its caller knows
    added(live, MORE, encoder)
    deleted(live, "d7")
    assert delete_documents(live, DeleteSettings(ids=["d1", "d2"])).was_finished
    assert delete_documents(live, DeleteSettings(ids=["d2", "d3"])).deleted_documents == 1
    compact_index(live, CompactSettings())
    assert delete_documents(live, DeleteSettings(ids=["d3", "d2"])).was_finished
    added(live, [record(3)], encoder, name="again")
    assert delete_documents(live, DeleteSettings(ids=["d2", "d3"])).deleted_documents == 1


def test_a_folder_has_one_lock_by_whatever_path_it_is_named(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (live.parent / "link").symlink_to(live)
    monkeypatch.chdir(live)
    with locked_elsewhere(live):
        for name in (live, live.parent / "link", Path()):
            with pytest.raises(ArtifactError, match="another process"):
                deleted(name, "d1")
    with pytest.raises(ArtifactError, match="no folder"):
        deleted(live.parent / "nothing" / "index", "d1")
    assert not (live.parent / "nothing").exists()


def test_a_change_does_not_overwrite_another_one_where_locks_do_not_work(
    live: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "folder_lock", lambda folder: contextlib.nullcontext())

    def meanwhile(stage: str, done: int, total: int | None) -> None:
        if stage == "vectors" and done == total:
            deleted(live, "d1")
            monkeypatch.undo()

    more = AddSettings(corpus=CorpusSettings(files=[write_records(live.parent / "more.jsonl", MORE)]))
    with pytest.raises(ArtifactError, match="changed by another process"):
        add_documents(live, more, encoder, progress=meanwhile)
    assert Generation.read(live).manifest.deleted_documents == 1
    assert add_documents(live, more, encoder).added_documents == 3


def test_a_build_over_an_index_with_deletions_is_refused(live: Path, encoder: Encoder) -> None:
    deleted(live, "d1")
    with pytest.raises(ArtifactError, match="was changed since"):
        built(live, FIRST, encoder, "ivf_sq8 4")


def test_codes_of_another_shard_in_an_old_segment_are_refused(live: Path, encoder: Encoder) -> None:
    codes = part_of(live, "codes")
    shutil.rmtree(codes / "00000")
    shutil.copytree(codes / "00001", codes / "00000")
    with pytest.raises(ArtifactError, match="damaged"):
        added(live, MORE, encoder)
