"""Partitioned indexes: what they answer, how they are made, changed and opened one by one, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from index.exact import ExactSearcher
from index.search import FaissSearcher, PartitionedSearcher
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError, SettingError
from npm.core.types import JointAnswer, Phrase
from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import footprint, inspect_index, verify_index
from npm.indexing.partitions import open_partition, partitions_of, shard_cuts
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import Retrieval
from tests.helpers.forged_manifests import Forgery, Place
from tests.helpers.kills import Killed
from tests.helpers.live_indexes import (
    TIERS,
    added,
    all_bytes,
    answers,
    assert_same_answers,
    built,
    record,
)

TWO_MASKS = "The <mask> of France is <mask>."
LISTS = "ivf_pq 4"


def made(folder: Path, encoder: Encoder, lists: str | None) -> Path:
    """Two segments of eight vector shards, equal passages in several of them, and two deleted documents."""
    built(folder, [record(number) for number in range(16)], encoder, lists)
    same = record(3)["text"]
    added(folder, [record(number, text=same, language="de") for number in range(16, 22)], encoder)
    delete_documents(folder, DeleteSettings(ids=["d1", "d17"]))
    return folder


@pytest.fixture(scope="module", params=TIERS, ids=str)
def of_each_tier(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("tier") / "index", encoder, request.param)


@pytest.fixture(scope="module")
def pristine(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("partitions") / "index", encoder, LISTS)


def rows_of(folder: Path) -> list[tuple[int, int]]:
    return [each.rows for each in partitions_of(Generation.read(folder))]


@pytest.mark.parametrize("partitions", [3, 7])
def test_a_partitioned_index_answers_as_one(
    partitions: int, of_each_tier: Path, encoder: Encoder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(of_each_tier, tmp_path / "index"))
    change = partition_index(folder, partitions)
    assert (change.was_finished, change.manifest.generation) == (False, 3)
    verify_index(folder)
    assert_same_answers(folder, of_each_tier, encoder)
    ours, theirs = PhraseFiller.open(folder, encoder), PhraseFiller.open(of_each_tier, encoder)
    assert isinstance(ours.index.searcher, PartitionedSearcher)
    assert len(ours.index.searcher.parts) == partitions
    found, expected = answers(ours, where=["lang=de"]), answers(theirs, where=["lang=de"])
    assert found.keys() == expected.keys()
    assert all(found[key] == (pytest.approx(score, abs=1e-6), places) for key, (score, places) in expected.items())
    # Of equal passages: their vectors differ in the last bits, as sums over a few rows in float32 do when they are cut.
    in_order = Generation.read(folder).quantizer is not None
    for documents in (None, ["d3", "d16", "d20"]):
        for retrieval in (Retrieval.dense, Retrieval.hybrid, Retrieval.bm25):
            own, other = (
                each.fill(TWO_MASKS, documents=documents, retrieval=retrieval, occurrences=1000)
                for each in (ours, theirs)
            )
            assert isinstance(own, JointAnswer) and isinstance(other, JointAnswer)
            masks = [[shown(mask.phrases, in_order=in_order) for mask in each.masks] for each in (own, other)]
            assert masks[0] == masks[1]
            assert [each.phrases for each in own.fillings] == [each.phrases for each in other.fillings]
            assert len(own.fillings) > 1 or documents is not None


def shown(phrases: Sequence[Phrase], *, in_order: bool) -> list[tuple[object, ...]]:
    """Phrases in order, with scores that compare within 1e-6, and their places, best first or sorted."""
    return [
        (
            each.phrase,
            pytest.approx(each.score, abs=1e-6),
            [(place.document, place.start_char) for place in each.occurrences]
            if in_order
            else sorted((place.document, place.start_char) for place in each.occurrences),
        )
        for each in phrases
    ]


def test_one_partition_again_has_the_bytes_of_before(pristine: Path, live: Path) -> None:
    before = footprint(Generation.read(live))
    partition_index(live, 3)
    partition_index(live, 2)
    assert len(list(live.glob("search-*"))) == 1
    partition_index(live, 1)
    generation = Generation.read(live)
    assert all_bytes(generation.search) == all_bytes(Generation.read(pristine).search)
    assert rows_of(live) == rows_of(pristine) == [(0, before.row_count)]
    assert "partitions" not in read_manifest(generation.search, kind="search").settings
    assert footprint(generation).disk == pytest.approx(before.disk, abs=1)  # 2 and 5 have as many digits


def test_borders_by_hand_are_those_of_shards_and_nearest_to_equal_shares() -> None:
    assert shard_cuts([4, 4, 4, 4, 4, 4, 4], 3) == [0, 2, 5, 7]
    assert shard_cuts([100, 1, 1, 1], 3) == [0, 1, 2, 4]
    assert shard_cuts([1, 1, 1, 100], 3) == [0, 1, 2, 4] or shard_cuts([1, 1, 1, 100], 3) == [0, 2, 3, 4]
    assert shard_cuts([0, 0, 5], 3) == [0, 1, 2, 3]
    assert shard_cuts([7], 1) == [0, 1]
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = rng.integers(0, 9, rng.integers(1, 12)).tolist()
        partitions = int(rng.integers(1, len(rows) + 1))
        cuts = shard_cuts(rows, partitions)
        assert (cuts[0], cuts[-1], len(cuts)) == (0, len(rows), partitions + 1)
        assert all(first < stop for first, stop in pairwise(cuts))


def test_one_partition_opens_where_nothing_else_of_vectors_and_lists_is(live: Path, encoder: Encoder) -> None:
    partition_index(live, 3)
    generation = Generation.read(live)
    whole = PhraseIndex.open(live)
    queries = np.random.default_rng(0).standard_normal((2, whole.searcher.dimensions)).astype(np.float32)
    partitions = partitions_of(generation)
    first, stop = partitions[1].rows
    expected = whole.searcher.scan(queries, np.arange(first, stop)).top(50)
    shards = [path for segment in generation.segments for path in sorted(segment.vectors.glob("0*"))]
    for number, shard in enumerate(shards):
        if not partitions[1].shards[0] <= number < partitions[1].shards[1]:
            (shard / "vectors.npy").unlink()
    for place in [*live.glob("corpus-*"), *live.glob("lexicon-*")]:
        shutil.rmtree(place)
    for number in (0, 2):
        shutil.rmtree(partitions[number].folder)
    opened = open_partition(live, 1)
    assert isinstance(opened, FaissSearcher)
    assert (opened.row_count, opened.dimensions) == (stop - first, 32)
    found = opened.scan(queries).top(50)  # all lists are looked into, and all rows reranked
    np.testing.assert_array_equal(found.rows + first * found.found, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    with pytest.raises(ArtifactError):
        open_partition(live, 0)
    for number in (-1, 3):
        with pytest.raises(SettingError, match=f"between 0 and 2, got {number}"):
            open_partition(live, number)


def test_the_whole_of_an_index_without_partitions_opens_as_one(of_each_tier: Path) -> None:
    opened = open_partition(of_each_tier, 0)
    assert opened.row_count == Generation.read(of_each_tier).manifest.counts.rows
    assert isinstance(opened, ExactSearcher | FaissSearcher)


def test_changes_keep_the_partitions_over_all_shards(live: Path, encoder: Encoder, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(live, tmp_path / "whole"))
    partition_index(live, 3)
    before = rows_of(live)
    for folder in (live, whole):
        delete_documents(folder, DeleteSettings(ids=["d2"]))
    assert rows_of(live) == before
    for folder in (live, whole):
        added(folder, [record(number) for number in range(30, 40)], encoder, name="third")
    after = rows_of(live)
    assert len(after) == 3
    assert after[-1][1] > before[-1][1]
    assert partition_index(live, 3).was_finished
    verify_index(live)
    for folder in (live, whole):
        compact_index(folder, CompactSettings(retrain=True))
    verify_index(live)
    assert len(rows_of(live)) == 3
    assert list(live.glob("search-*")) == [Generation.read(live).search]
    assert_same_answers(live, whole, encoder)
    delete_documents(live, DeleteSettings(ids=PhraseIndex.open(live).store.document_ids(range(2, 29))))
    compact_index(live, CompactSettings())
    shards = len(list(live.glob("vectors-*/0*")))
    assert len(rows_of(live)) == shards < 3, "no partition without a shard"
    verify_index(live)


def test_an_unfinished_partition_is_removed_by_another_change(live: Path, encoder: Encoder, tmp_path: Path) -> None:
    def kill(*_: object) -> None:
        raise Killed

    whole = Path(shutil.copytree(live, tmp_path / "whole"))
    with pytest.raises(Killed):
        partition_index(live, 3, progress=kill)
    for folder in (live, whole):
        delete_documents(folder, DeleteSettings(ids=["d5"]))
        partition_index(folder, 2)
    assert all_bytes(live) == all_bytes(whole)


@pytest.mark.parametrize("partitions", [0, -1, 12, 1000])
def test_too_few_and_too_many_partitions_are_refused(partitions: int, live: Path) -> None:
    before = all_bytes(live)
    shards = len(list(live.glob("vectors-*/0*")))
    with pytest.raises(SettingError, match=f"between 1 and {shards}, .* got {partitions}"):
        partition_index(live, partitions)
    assert all_bytes(live) == before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((0, "rows"), 1),  # a gap
        ((1, "rows"), 10_000),  # more than there are
        ((0, "shards"), 4),  # overlaps with the next one
        ((0, "shards"), 0),
        ((0, "rows"), -1),
        ((), []),
        ((), None),
        ((1,), {"shards": 1}),
    ],
    ids=str,
)
def test_partitions_that_do_not_make_up_the_index_are_refused(place: Place, value: object, live: Path) -> None:
    partition_index(live, 3)
    name = Generation.read(live).manifest.search_folder
    Forgery(name, ("settings", "partitions", *place), value).write(live)
    for act in (PhraseIndex.open, verify_index, lambda folder: open_partition(folder, 0)):
        with pytest.raises(ArtifactError):
            act(live)  # type: ignore[operator]


def test_borders_moved_within_the_right_sums_are_refused(live: Path) -> None:
    partition_index(live, 2)
    name = Generation.read(live).manifest.search_folder
    sizes = json.loads((live / name / "manifest.json").read_bytes())["settings"]["partitions"]
    moved = [{**sizes[0], "shards": sizes[0]["shards"] + 1}, {**sizes[1], "shards": sizes[1]["shards"] - 1}]
    Forgery(name, ("settings", "partitions"), moved).write(live)
    with pytest.raises(ArtifactError, match="built over other vectors"):
        PhraseIndex.open(live)
    with pytest.raises(ArtifactError, match="is damaged"):
        verify_index(live)


def test_a_partition_of_another_generation_or_quantizer_is_refused(live: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(live, tmp_path / "other"))
    partition_index(live, 2)
    compact_index(other, CompactSettings(retrain=True))
    partition_index(other, 2)
    ours, theirs = (partitions_of(Generation.read(folder))[1].folder for folder in (live, other))
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    for act in (PhraseIndex.open, verify_index, lambda folder: open_partition(folder, 1)):
        with pytest.raises(ArtifactError, match="is damaged") as refused:
            act(live)  # type: ignore[operator]
        assert "from another build" in str(refused.value)
    first, stop = rows_of(live)[1]
    Forgery(ours.relative_to(live).as_posix(), ("settings", "row_count"), stop - first).write(live)
    digest = json.loads((ours / "manifest.json").read_bytes())["digest"]
    Forgery(ours.parent.relative_to(live).as_posix(), ("parts", "00001"), digest).write(live)
    with pytest.raises(ArtifactError, match="another quantizer"):
        open_partition(live, 1)


def test_what_is_shown_of_partitions(live: Path) -> None:
    assert inspect_index(live).record()["partitions"] == [list(rows_of(live)[0])]
    before = footprint(Generation.read(live)).hot
    partition_index(live, 3)
    after = footprint(Generation.read(live)).hot
    assert inspect_index(live).record()["partitions"] == [list(rows) for rows in rows_of(live)]
    for name in ("centroids, codec", "list table"):
        assert after[name] == 3 * before[name]
    assert after["row ids"] == before["row ids"]


def test_a_partition_that_is_missing_is_named_and_nothing_is_made_again(live: Path) -> None:
    partition_index(live, 3)
    assert partition_index(live, 3).was_finished
    missing = partitions_of(Generation.read(live))[1].folder
    shutil.rmtree(missing)
    for partitions in (2, 3):
        with pytest.raises(ArtifactError, match=f"no folder {missing}.*build or copy it again"):
            partition_index(live, partitions)
