"""A build of several segments: the documents, rows and rules of one, packed by jobs of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.settings import Shard
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index
from npm.indexing.generation import Generation
from npm.indexing.settings import IndexBuildSettings, Stage, VectorSettings
from npm.models.encoder import Encoder
from tests.helpers.command_line import all_bytes
from tests.helpers.tiny_models import SENTENCES

LISTS = SearchSettings(tier=SearchTier.ivf_pq, list_count=8, train_iterations=4, thread_count=1)
TIERS = {"exact": SearchSettings(), "lists": LISTS}


def write_files(folder: Path, count: int = 4) -> list[Path]:
    """Files of 20 documents each."""
    folder.mkdir()
    files = [folder / f"{number}.jsonl" for number in range(count)]
    for number, file in enumerate(files):
        records = [
            {"id": f"{number}-{line}", "text": f"{SENTENCES[(line + number) % 8]} {SENTENCES[line % 8]}"}
            for line in range(20)
        ]
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return files


def settings_of(files: list[Path], segments: int, search: SearchSettings = LISTS) -> IndexBuildSettings:
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(file) for file in files]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=200, tokens_per_batch=100),
        search=search,
        segments=segments,
    )


def test_segments_are_packed_and_encoded_by_any_jobs_in_any_order_into_the_same_bytes(
    encoder: Encoder, tmp_path: Path
) -> None:
    settings = settings_of(write_files(tmp_path / "corpus"), 3)
    build_index(tmp_path / "whole", settings, encoder)
    for name, packed_by in (("by-jobs", 2), ("encode-packs", 0)):
        for stage, count in (
            (Stage.pack, packed_by),
            (Stage.encode, 5),
            (Stage.quantize, 1),
            (Stage.code, 5),
            (Stage.merge, 2),
        ):
            for number in range(count, 0, -1):
                build_index(tmp_path / name, settings, encoder, stage=stage, shard=Shard(number, count))
        assert all_bytes(tmp_path / name) == all_bytes(tmp_path / "whole")
    assert build_index(tmp_path / "whole", settings, encoder).was_finished


def test_a_job_packs_the_segments_of_its_share_alone(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus")
    settings = settings_of(files, 3)
    build_index(tmp_path / "index", settings, encoder, stage=Stage.pack, shard=Shard(2, 2))
    packed = [path.parent for path in tmp_path.glob("index/corpus-*/manifest.json")]
    names = [[source["name"] for source in BlockStore.open(folder).settings["sources"]] for folder in packed]
    assert sorted(names) == [["1.jsonl"], ["2.jsonl", "3.jsonl"]]  # of three, the first job has one and the second two


def test_segments_hold_what_one_segment_does_by_the_same_rules(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus")
    for count in (1, 3):
        settings = settings_of(files, count, TIERS["exact"])
        build_index(tmp_path / str(count), settings, encoder)
    one, three = (Generation.read(tmp_path / str(count)) for count in (1, 3))
    assert one.manifest.counts == three.manifest.counts
    stores = [BlockStore.open(*(segment.corpus for segment in each.segments)) for each in (one, three)]
    numbers = range(stores[0].document_count)
    assert stores[0].document_ids(numbers) == stores[1].document_ids(numbers)
    assert np.array_equal(
        stores[0].token_ids.slice(0, stores[0].token_count), stores[1].token_ids.slice(0, stores[0].token_count)
    )
    sources = [source for segment in three.manifest.segments for source in segment.sources]
    assert sources == one.manifest.segments[0].sources


def test_an_id_in_two_segments_is_refused_as_in_one(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus")
    with files[3].open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "0-4", "text": SENTENCES[0]}) + "\n")
    settings = settings_of(files, 3)
    for count in (1, 2):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.pack, shard=Shard(count, 2))
    with pytest.raises(CorpusError, match="'0-4' comes twice, in segments 0 and"):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.encode, shard=Shard(1, 9))
    assert not list(tmp_path.glob("index/vectors-*/*/manifest.json"))
    with pytest.raises(CorpusError, match="'0-4' comes twice"):
        build_index(tmp_path / "undivided", settings, encoder)
    assert not (tmp_path / "undivided").exists()


def test_names_in_ids_tell_files_of_all_segments_apart(encoder: Encoder, tmp_path: Path) -> None:
    files = [tmp_path / folder / "notes.jsonl" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps({"text": SENTENCES[0]}), encoding="utf-8")
    build_index(tmp_path / "index", settings_of(files, 2, TIERS["exact"]), encoder)
    store = BlockStore.open(*(segment.corpus for segment in Generation.read(tmp_path / "index").segments))
    assert store.document_ids(range(2)) == ["a/notes.jsonl:1", "b/notes.jsonl:1"]


def test_what_is_skipped_is_listed_for_each_segment(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus", 2)
    for file in files:
        file.write_text("no JSON\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    settings = settings_of(files, 2, TIERS["exact"])
    settings = replace(settings, corpus=replace(settings.corpus, skip_bad=True))
    build_index(tmp_path / "index", settings, encoder, stage=Stage.pack)
    listed = {
        path.name: json.loads(path.read_text(encoding="utf-8"))["where"] for path in tmp_path.glob("*.skipped.jsonl")
    }
    assert listed == {f"index.0000{number}.skipped.jsonl": f"{files[number]}:1" for number in (0, 1)}


def test_more_segments_than_files_and_a_limit_of_documents_are_refused(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus", 2)
    with pytest.raises(SettingError, match="segments must be") as caught:
        build_index(tmp_path / "index", settings_of(files, 3), encoder)
    assert "corpus files, 2" in str(caught.value)
    settings = settings_of(files, 2)
    settings = replace(settings, corpus=replace(settings.corpus, max_documents=3))
    with pytest.raises(SettingError, match=r"segments and corpus\.max_documents exclude"):
        build_index(tmp_path / "index", settings, encoder)
    with pytest.raises(SettingError, match="segments must be"):
        settings_of(files, 0)


def test_another_number_of_segments_is_another_index(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus")
    build_index(tmp_path / "index", settings_of(files, 2, TIERS["exact"]), encoder)
    with pytest.raises(ArtifactError, match="was built from other files"):
        build_index(tmp_path / "index", settings_of(files, 3, TIERS["exact"]), encoder)


def test_a_file_that_changed_after_it_was_packed_is_packed_again(encoder: Encoder, tmp_path: Path) -> None:
    files = write_files(tmp_path / "corpus")
    settings = settings_of(files, 2)
    build_index(tmp_path / "index", settings, encoder, stage=Stage.pack)
    with files[2].open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "new", "text": SENTENCES[0]}) + "\n")
    build_index(tmp_path / "index", settings, encoder)
    build_index(tmp_path / "fresh", settings, encoder)
    assert all_bytes(tmp_path / "index") == all_bytes(tmp_path / "fresh")
