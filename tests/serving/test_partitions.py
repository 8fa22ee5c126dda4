"""An index that is served in partitions: the same answers, and what a client gets while one does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from index.types import Hits, Scan, Searcher
from npm.core.errors import ArtifactError, QueryError, SettingError
from npm.core.types import Answer
from npm.indexing.generation import Generation
from npm.indexing.partitions import local_searcher, open_partition
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from npm.serving.opened import OpenedIndex
from npm.serving.partitions import PartitionsLost, ServedPartitions
from npm.serving.requests import Options
from npm.serving.routes import fill_jobs
from npm.serving.settings import ServeSettings
from tests.helpers.running_server import until

RETRIEVALS = ("dense", "hybrid", "bm25")
TEXTS = ["The capital of <mask> is old.", "<mask> is a city in <mask>."]


class Switched:
    """A part that answers as long as it is on; calls to one that hangs wait until it is let go."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self.row_count, self.dimensions = searcher.row_count, searcher.dimensions
        self.max_queries_per_scan = searcher.max_queries_per_scan
        self.on, self.let_go = True, threading.Event()
        self.hangs = False

    def check(self) -> None:
        if not self.on:
            raise ConnectionError("off")

    def close(self) -> None:
        self.on = False

    def scan(self, queries: np.ndarray, allowed: np.ndarray | None = None) -> Scan:
        return SwitchedScan(self, self._searcher.scan(queries, allowed))


class SwitchedScan:
    def __init__(self, part: Switched, scan: Scan) -> None:
        self._part, self._scan = part, scan

    def top(self, k: int) -> Hits:
        if self._part.hangs:
            assert self._part.let_go.wait(60)
        self._part.check()
        return self._scan.top(k)

    def at(self, query: int, rows: np.ndarray) -> np.ndarray:
        self._part.check()
        return self._scan.at(query, rows)


class Served:
    """An index in three parts, each of which can be switched off."""

    def __init__(self, folder: Path) -> None:
        self.parts: list[Switched] = []
        self.notices: list[str] = []
        encoder = PhraseFiller.open(folder).encoder
        settings = ServeSettings(fill=FillSettings(retrieval=Retrieval.dense))
        self.opened = OpenedIndex.open(folder, encoder, settings, [], self._open)
        assert self.opened.partitions is not None
        self.partitions = self.opened.partitions

    def _open(self, generation: Generation, vectors: ShardedArray) -> ServedPartitions:
        rows = [len(vectors) * number // 3 for number in range(4)]
        self.parts = [Switched(ExactSearcher(vectors.slice(*rows[n : n + 2]))) for n in range(3)]
        return ServedPartitions(self.parts, notice=self.notices.append)

    def answers(self, retrieval: str = "dense", documents: list[str] | None = None, **options: bool) -> list[Answer]:
        settings = replace(self.opened.settings.fill, retrieval=Retrieval(retrieval), documents=documents)
        return [done.value for done in self.opened.fill(TEXTS, settings, **options)]


@pytest.fixture
def served(built_index: Path) -> Iterator[Served]:
    index = Served(built_index)
    yield index
    index.opened.close()


def without_scores(answer: Answer) -> list[tuple[str, list[object]]]:
    return [(phrase.phrase, list(phrase.occurrences)) for phrase in answer.phrases]


def assert_alike(got: Answer, expected: Answer) -> None:
    assert without_scores(got) == without_scores(expected)
    assert [each.score for each in got.phrases] == pytest.approx([each.score for each in expected.phrases], abs=1e-6)


def test_parts_that_are_asked_at_once_answer_as_one_index(served: Served, built_index: Path) -> None:
    filler = PhraseFiller.open(built_index)
    for retrieval in RETRIEVALS:
        for got, whole in zip(served.answers(retrieval), filler.fill(TEXTS, retrieval=retrieval), strict=True):
            assert_alike(got, whole)
    assert served.opened.facts.partitions == 3


def test_a_part_that_does_not_answer_is_a_refusal_until_it_answers_again(served: Served) -> None:
    served.parts[1].on = False
    with pytest.raises(PartitionsLost) as refused:
        served.answers()
    assert refused.value.status == 503 and "1 of 3" in str(refused.value)
    assert served.opened.partitions_lost == {1}
    served.parts[1].on = True
    until(lambda: not served.opened.partitions_lost)
    assert served.answers()[0].phrases
    assert served.notices == ["partition 1 of 3 does not answer", "partition 1 of 3 answers again"]


def test_a_loss_is_noticed_before_anybody_asks(served: Served) -> None:
    served.parts[2].on = False
    until(lambda: served.opened.partitions_lost == {2})


def test_a_call_that_hangs_is_given_up_when_its_part_is_found_lost(served: Served) -> None:
    part = served.parts[0]
    part.hangs = True
    threading.Timer(0.2, lambda: setattr(part, "on", False)).start()
    try:
        with pytest.raises(PartitionsLost):
            served.answers()
    finally:
        part.let_go.set()


def test_the_rest_answers_those_who_allow_it_as_an_index_without_the_lost_rows(
    served: Served, built_index: Path
) -> None:
    served.parts[0].on = False
    index = PhraseIndex.open(built_index)
    lost_rows = np.arange(served.partitions.first_rows[1])
    lost_blocks = np.unique(index.store.block_of(index.rows.positions(lost_rows)))
    rest = np.setdiff1d(np.arange(index.store.block_count), lost_blocks)
    assert len(rest)
    assert len(lost_blocks)
    expected = PhraseFiller.open(built_index).fill(TEXTS[:1], retrieval="dense", blocks=rest.tolist())
    got = served.answers(allow_partial=True)[0]
    assert_alike(got, expected[0])
    assert got.notes[-1] == f"{len(lost_rows) / len(index.rows):.0%} of the index does not answer at present"
    done = served.opened.fill(TEXTS[:1], served.opened.settings.fill, allow_partial=True)[0]
    told = served.opened.answered(done.lost)
    assert (told.asked, told.answered) == (3, 2)
    assert told.missing_rows_share == len(lost_rows) / len(index.rows)


@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_no_place_in_a_lost_part_is_shown_by_any_way_of_retrieval_or_filter(
    served: Served, built_index: Path, retrieval: str
) -> None:
    index = PhraseIndex.open(built_index)
    split = int(served.partitions.first_rows[1])
    border = int(index.store.block_of(index.rows.positions(np.array([split - 1])))[0])
    documents = [index.store.document(number).id for number in range(index.store.document_count)]
    whole_documents = index.store.block_documents[border + 1 :]
    live = {documents[number] for number in whole_documents.tolist()}
    served.parts[0].on = False
    for asked in (None, documents):
        for answer in served.answers(retrieval, asked, allow_partial=True):
            masks = [answer.phrases] if not hasattr(answer, "masks") else [mask.phrases for mask in answer.masks]
            places = [place.document for phrases in masks for phrase in phrases for place in phrase.occurrences]
            assert set(places) <= live


def test_two_lost_parts_are_both_refused_and_both_left_out(served: Served) -> None:
    served.parts[0].on = served.parts[2].on = False
    with pytest.raises(PartitionsLost):
        served.answers()
    until(lambda: served.opened.partitions_lost == {0, 2})
    done = served.opened.fill(TEXTS[:1], served.opened.settings.fill, allow_partial=True)[0]
    assert done.lost == {0, 2}


def test_an_opening_that_fails_lets_its_parts_go(built_index: Path, tmp_path: Path) -> None:
    opened: list[ServedPartitions] = []

    def open_searcher(_: Generation, vectors: ShardedArray) -> ServedPartitions:
        opened.append(ServedPartitions([Switched(ExactSearcher(vectors))], notice=print))
        return opened[-1]

    settings = ServeSettings(examples=str(tmp_path / "not-there"))
    with pytest.raises(QueryError, match="examples"):
        OpenedIndex.open(built_index, PhraseFiller.open(built_index).encoder, settings, None, open_searcher)
    assert [each.closed for each in opened] == [True]


def test_nothing_is_answered_when_all_are_lost(served: Served) -> None:
    for part in served.parts:
        part.on = False
    with pytest.raises(PartitionsLost):
        served.answers(allow_partial=True)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_partitions_of_one_process_answer_as_one_index(built_index: Path, count: int) -> None:
    filler = PhraseFiller.open(built_index)
    parted = PhraseFiller(PhraseIndex.open(built_index, local_searcher(count)), filler.encoder)
    for retrieval in RETRIEVALS:
        pairs = zip(parted.fill(TEXTS, retrieval=retrieval), filler.fill(TEXTS, retrieval=retrieval), strict=True)
        for got, whole in pairs:
            assert_alike(got, whole)


def test_more_partitions_than_vectors_are_refused(built_index: Path) -> None:
    rows = len(PhraseIndex.open(built_index).rows)
    with pytest.raises(SettingError, match="partitions") as refused:
        PhraseIndex.open(built_index, local_searcher(rows + 1))
    assert str(rows) in str(refused.value)


def test_a_partition_of_a_generation_that_is_gone_is_refused(built_index: Path) -> None:
    with pytest.raises(ArtifactError, match="changed meanwhile"):
        open_partition(built_index, 0, count=2, digest="sha256:other")


def test_texts_that_allow_partial_answers_are_not_computed_with_texts_that_do_not(served: Served) -> None:
    async def groups() -> set[str]:
        both = (fill_jobs(served.opened, TEXTS[:1], Options(allow_partial=allowed)) for allowed in (False, True))
        return {job.group for jobs in both for job in jobs}

    assert len(asyncio.run(groups())) == 2
