"""Stages as jobs: any number of shares, in any order, at once or not, ends in the bytes of one undivided build."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError, SettingError, UserError
from npm.core.settings import Shard
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings, Stage
from npm.indexing.stages import HELD_OUT_EVERY, is_held_out
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import all_bytes, part_of
from tests.helpers.locks import locked_elsewhere
from tests.helpers.tiny_models import tiny_encoder
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
    numbers = np.array([-1, 0, HELD_OUT_EVERY - 1, HELD_OUT_EVERY, 2 * HELD_OUT_EVERY - 1])
    assert is_held_out(numbers[1:]).tolist() == [False, True, False, True]
    assert not is_held_out(np.array([-1]))[0]


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
