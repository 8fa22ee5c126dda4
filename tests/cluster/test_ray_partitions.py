"""`npmlm serve … cluster=ray`: a real server, its partitions in processes of their own, and one of them killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from npm.cluster.ray_partitions import serving_on_ray
from npm.cluster.settings import ServeCluster
from npm.core.errors import SettingError
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.filler import PhraseFiller
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.running_server import RunningServer, replica_processes, until

pytestmark = [
    pytest.mark.slow("ray"),
    pytest.mark.skipif(find_spec("ray") is None, reason='needs Ray: pip install "ray>=2.60"'),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, such as of sockets that it leaves to be collected
]

TEXT = "The capital of <mask> is old."


@pytest.fixture(scope="module")
def index(built_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(built_index, tmp_path_factory.mktemp("served") / "index"))


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[RunningServer]:
    settings = ("partitions=2", "cluster=ray", "cluster.cpus_per_replica=0.5", "timeout_seconds=20", "reload_seconds=1")
    with RunningServer(index, *settings) as running:
        running.url  # noqa: B018 - waits until it answers
        yield running


def phrases(server: RunningServer, **options: object) -> list[tuple[str, int]]:
    reply = server.ask("POST", "/v1/fill", {"text": TEXT, **options})
    assert reply.status == 200, reply.body
    return [(each["phrase"], each["occurrence_count"]) for each in reply.json["answers"][0]["phrases"]]


@pytest.mark.parametrize("retrieval", ["dense", "hybrid", "bm25"])
def test_partitions_on_ray_answer_as_the_library(server: RunningServer, index: Path, retrieval: str) -> None:
    expected = PhraseFiller.open(index).fill(TEXT, retrieval=retrieval)
    reply = server.ask("POST", "/v1/fill", {"text": TEXT, "retrieval": retrieval})
    assert reply.json["partitions"] == {"asked": 2, "answered": 2, "missing_rows_share": 0.0}
    (answer,) = reply.json["answers"]
    assert [each["phrase"] for each in answer["phrases"]] == [each.phrase for each in expected.phrases]
    scores = [each["score"] for each in answer["phrases"]]
    assert scores == pytest.approx([each.score for each in expected.phrases], abs=1e-6)


def test_a_killed_partition_is_a_refusal_or_a_flagged_answer_and_comes_back_by_itself(server: RunningServer) -> None:
    whole = phrases(server, retrieval="dense")
    killed = replica_processes(server.process.pid)[0]
    os.kill(killed, signal.SIGKILL)
    strict = {"text": TEXT, "retrieval": "dense"}
    until(lambda: server.ask("POST", "/v1/fill", strict).status == 503)
    assert server.ask("GET", "/ready").status == 503
    partial = server.ask("POST", "/v1/fill", {**strict, "allow_partial": True})
    assert partial.status == 200
    assert partial.json["partitions"]["answered"] == 1
    assert 0 < partial.json["partitions"]["missing_rows_share"] < 1
    assert partial.json["answers"][0]["notes"][-1].endswith("of the index does not answer at present")
    assert b"npmlm_partitions_lost 1.0" in server.ask("GET", "/metrics").body
    until(lambda: server.ask("GET", "/ready").status == 200)
    assert phrases(server, retrieval="dense") == whole
    assert killed not in replica_processes(server.process.pid)


def test_a_new_generation_is_served_by_new_partitions(
    server: RunningServer, index: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    before = set(replica_processes(server.process.pid))
    documents = [{"id": "more", "title": "More", "text": "The capital of another land is old and has a harbour."}]
    more = write_corpus(tmp_path / "more.jsonl", documents)
    assert npmlm("add", f"index={index}", f"corpus.files={more}").status == 0
    until(lambda: server.ask("GET", "/v1/index").json["generation"] == 1)
    assert phrases(server, retrieval="dense")
    assert set(replica_processes(server.process.pid)) - before


def test_the_partitions_end_with_the_server(server: RunningServer) -> None:
    assert server.stop() == 0
    until(lambda: not replica_processes(server.process.pid))
    assert "Traceback" not in server.errors


def test_another_replica_answers_at_once_for_one_that_is_killed(machines: object, index: Path) -> None:
    settings = ServeCluster(engine="ray", replicas=2, cpus_per_replica=0.25)
    filler, notices = PhraseFiller.open(index), list[str]()
    with serving_on_ray(settings, 2, timeout_seconds=20, notice=notices.append) as open_searcher:
        parted = PhraseFiller(PhraseIndex.open(index, open_searcher), filler.encoder)
        expected = filler.fill(TEXT, retrieval="dense")
        until(lambda: len(replica_processes(os.getpid())) == 4)  # a process has its name a little after it answers
        for killed in replica_processes(os.getpid()):  # in turn, so that each partition loses the replica that it asks
            os.kill(killed, signal.SIGKILL)
            got = parted.fill(TEXT, retrieval="dense")
            assert [each.phrase for each in got.phrases] == [each.phrase for each in expected.phrases]
            until(lambda: len(replica_processes(os.getpid())) == 4)
    assert not notices


def test_partitions_without_room_are_refused(machines: object, index: Path) -> None:
    settings = ServeCluster(engine="ray", cpus_per_replica=100.0)
    with (
        pytest.raises(SettingError, match="cpus_per_replica"),
        serving_on_ray(settings, 2, timeout_seconds=20, notice=print) as open_searcher,
    ):
        PhraseIndex.open(index, open_searcher)
