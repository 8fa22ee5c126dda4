"""Stages as jobs: any number of shares, in any order, at once or not, ends in the bytes of one undivided build."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError, CorpusError, SettingError, UserError
from npm.core.settings import Shard
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index
from npm.indexing.generation import Generation
from npm.indexing.settings import IndexBuildSettings, Stage, VectorSettings
from npm.indexing.stages import HELD_OUT_EVERY, is_held_out
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import all_bytes, part_of
from tests.helpers.locks import locked_elsewhere
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.indexing.small_builds import small_settings, write_corpus


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> IndexBuildSettings:
    return small_settings(write_corpus(tmp_path_factory.mktemp("stages") / "corpus.jsonl"))


@pytest.fixture(scope="module")
def whole(settings: IndexBuildSettings, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "index"
    build_index(folder, settings, encoder)
    return all_bytes(folder)


@pytest.mark.parametrize("count", [1, 2, 3, 20])  # 20: more than there are shards and lists
def test_any_number_of_jobs_in_any_order_makes_the_bytes_of_one_build(
    count: int, settings: IndexBuildSettings, encoder: Encoder, whole: dict[str, bytes], tmp_path: Path
) -> None:
    rng = np.random.default_rng(count)
    for stage in Stage:
        results = [
            build_index(tmp_path / "index", settings, encoder, stage=stage, shard=Shard(int(number) + 1, count))
            for number in rng.permutation(count)
        ]
        assert {result.manifest is not None for result in results} == {stage is Stage.merge}
    assert all_bytes(tmp_path / "index") == whole
    assert build_index(tmp_path / "index", settings, encoder).was_finished


def test_jobs_that_run_at_the_same_time_one_of_them_twice_wait_for_the_blocks_and_make_the_same_bytes(
    settings: IndexBuildSettings, encoder: Encoder, whole: dict[str, bytes], tmp_path: Path
) -> None:
    notices: list[str] = []
    errors: list[BaseException] = []

    def job(stage: Stage, number: int) -> None:
        try:
            shard = Shard(number, 3)
            build_index(tmp_path / "index", settings, encoder, stage=stage, shard=shard, notice=notices.append)
        except BaseException as error:
            errors.append(error)

    for stage in Stage:
        jobs = [threading.Thread(target=job, args=(stage, number)) for number in (1, 2, 3, 3)]
        for each in jobs:
            each.start()
        for each in jobs:
            each.join()
        assert len(errors) < 2 and all("another process is writing" in str(error) for error in errors)
        errors.clear()
    assert all_bytes(tmp_path / "index") == whole


def test_a_stage_before_its_turn_says_which_one_is_missing(
    settings: IndexBuildSettings, encoder: Encoder, tmp_path: Path
) -> None:
    for stage in (Stage.quantize, Stage.code, Stage.merge):
        with pytest.raises(ArtifactError, match="stage=encode"):
            build_index(tmp_path / "index", settings, encoder, stage=stage)
    build_index(tmp_path / "index", settings, encoder, stage=Stage.encode, shard=Shard(2, 3))
    with pytest.raises(ArtifactError, match="shards are missing"):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.quantize)
    for number in (1, 3):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.encode, shard=Shard(number, 3))
    build_index(tmp_path / "index", settings, encoder, stage=Stage.quantize)
    build_index(tmp_path / "index", settings, encoder, stage=Stage.code, shard=Shard(1, 2))
    with pytest.raises(ArtifactError, match="stage=code"):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.merge)


def test_another_encoder_or_search_has_parts_of_its_own(
    settings: IndexBuildSettings, encoder: Encoder, tmp_path: Path
) -> None:
    for stage in (Stage.encode, Stage.quantize):
        build_index(tmp_path / "index", settings, encoder, stage=stage)
    before = all_bytes(tmp_path / "index")
    other = Encoder(tiny_encoder("bert", seed=1).model, encoder.tokenizer, name="other")
    for stage in (Stage.quantize, Stage.merge):
        with pytest.raises(ArtifactError, match="stage=encode"):
            build_index(tmp_path / "index", settings, other, stage=stage)
    searched = replace(settings, search=replace(settings.search, seed=7))
    build_index(tmp_path / "index", searched, encoder, stage=Stage.quantize)
    build_index(tmp_path / "index", settings, other, stage=Stage.encode)
    build_index(tmp_path / "index", settings, encoder, stage=Stage.quantize)
    after = all_bytes(tmp_path / "index")
    assert after.items() >= before.items()
    assert Counter(name.partition("-")[0] for name in after if name.count("/") == 1) == {
        "corpus": 1, "lexicon": 1, "vectors": 1, "quantizer": 4,
    }  # fmt: skip


def test_a_whole_build_is_refused_while_another_one_runs_and_a_job_is_not(
    settings: IndexBuildSettings, encoder: Encoder, tmp_path: Path
) -> None:
    with locked_elsewhere(tmp_path / "index"):
        build_index(tmp_path / "index", settings, encoder, stage=Stage.encode)
        with pytest.raises(ArtifactError, match="another process"):
            build_index(tmp_path / "index", settings, encoder)


def test_the_quantizer_is_trained_without_the_documents_held_out(
    settings: IndexBuildSettings, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npm.indexing import stages

    seen: list[np.ndarray] = []
    trained = stages.train_quantizer

    def watched(folder: Path, vectors: object, rows: np.ndarray, *arguments: object, **named: object) -> object:
        seen.append(rows)
        return trained(folder, vectors, rows, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "HELD_OUT_EVERY", 5)
    monkeypatch.setattr(stages, "train_quantizer", watched)
    build_index(tmp_path / "index", settings, encoder)
    store = BlockStore.open(part_of(tmp_path / "index", "corpus"))
    _, rows, _ = stages.open_vectors([part_of(tmp_path / "index", "vectors")])
    documents = store.block_documents[store.block_of(rows.positions(np.arange(len(rows))))]
    expected = [row for row, document in enumerate(documents.tolist()) if document % 5 != 4]
    assert seen[0].tolist() == expected
    assert read_manifest(part_of(tmp_path / "index", "quantizer"), kind="quantizer").settings["held_out_every"] == 5


def test_documents_held_out_are_the_last_of_each_run() -> None:
    numbers = np.array([0, HELD_OUT_EVERY - 1, HELD_OUT_EVERY, 2 * HELD_OUT_EVERY - 1])
    assert is_held_out(numbers).tolist() == [False, True, False, True]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", ""])
def test_a_share_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="shard must be"):
        Shard.parse(text)


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_all_shares_together_have_every_item_once_in_order(count: int) -> None:
    items = list(range(11))
    together = [item for number in range(1, count + 1) for item in Shard(number, count).of(items)]
    assert together == items


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (SearchSettings(list_count=99_999), "list_count must be at most"),
        (SearchSettings(tier=SearchTier.ivf_pq), "at least 16 rows to train on, got"),
    ],
)
def test_lists_and_codes_without_enough_rows_are_refused_before_anything_is_encoded(
    search: SearchSettings, message: str, settings: IndexBuildSettings, encoder: Encoder, tmp_path: Path
) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text('{"text": "Rome."}\n', encoding="utf-8")
    corpus = replace(settings.corpus, files=[str(short)])
    asked = IndexBuildSettings(corpus=corpus, blocks=settings.blocks, search=search)
    with pytest.raises(UserError, match=message):
        build_index(tmp_path / "index", asked, encoder)
    assert not list(tmp_path.glob("index/vectors-*"))


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
    assert store.document_ids(range(2)) == [f"{file}:1" for file in files]


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
