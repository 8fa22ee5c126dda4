"""Builds that are killed, kept out, or find a dead owner's lock: the next same call ends in the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from npm.core.errors import ArtifactError
from npm.core.locks import folder_lock
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index
from npm.indexing.embed import vector_shards
from npm.models.encoder import Encoder
from tests.helpers.command_line import all_bytes, run_subprocess
from tests.helpers.tiny_models import tiny_encoder
from tests.indexing.small_builds import KILLS, small_settings, write_corpus


@pytest.fixture(scope="module")
def bert() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def undisturbed(bert: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    build_index(folder / "index", small_settings(write_corpus(folder / "corpus.jsonl")), bert)
    return folder / "index"


def test_builds_killed_in_every_stage_end_in_the_same_bytes_and_encode_at_most_one_shard_again(
    bert: Encoder, undisturbed: Path, tmp_path: Path
) -> None:
    encoder = tmp_path / bert.name  # the manifest tells the name
    bert.save(encoder)
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    (tmp_path / "killed").mkdir()
    index = tmp_path / "killed" / "index"
    outcome = run_subprocess(sys.executable, "-m", "tests.indexing.small_builds", corpus, encoder, index)
    assert outcome.status == 0, outcome.err
    *killed, last = outcome.answers()
    assert [(run["part"], run["signal"], run["finished"]) for run in killed] == [
        (part, signal.SIGKILL, False) for part in KILLS
    ], outcome.err
    assert (last["signal"], last["status"], last["finished"]) == (0, 0, True), outcome.err
    assert all_bytes(index) == all_bytes(undisturbed)
    assert not [path.name for path in index.parent.glob(".*")]

    store = BlockStore.open(index / "segments" / "00000" / "corpus")
    shards = vector_shards(store, small_settings(corpus).vectors.tokens_per_shard)
    assert len(shards) > 3
    # the first run was killed in the middle of its second shard, whose blocks alone came twice
    blocks = [set(run["blocks"]) for run in (*killed, last)]
    assert blocks[0] == set(range(shards[1][1]))
    assert blocks[0] & blocks[1] == set(range(*shards[1]))
    assert blocks[1] == set(range(shards[1][0], store.block_count))
    assert not any(blocks[2:])
    # and k-means, killed in its third round, went on from there
    assert killed[1]["rounds"] == [1, 2, 3]
    assert killed[2]["rounds"] == [4, 5, 6]


def hold(folder: Path, pipe: Connection) -> None:
    with folder_lock(folder):
        pipe.send("held")
        pipe.recv()


def test_a_second_build_of_the_same_folder_is_kept_out_and_a_dead_owners_lock_is_taken_over(
    bert: Encoder, undisturbed: Path, tmp_path: Path
) -> None:
    settings = small_settings(write_corpus(tmp_path / "corpus.jsonl"))
    index = tmp_path / "index"
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    owner = fork.Process(target=hold, args=(index, theirs))
    owner.start()
    assert ours.recv() == "held"
    with pytest.raises(ArtifactError, match="another process is writing"):
        build_index(index, settings, bert)
    assert not index.exists()
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    assert (tmp_path / ".index.lock").is_file()
    build_index(index, settings, bert)
    assert all_bytes(index) == all_bytes(undisturbed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_what_a_killed_build_left_is_no_index_until_it_is_finished(bert: Encoder, tmp_path: Path) -> None:
    class Killed(BaseException):
        """Stands for the end of the process."""

    def kill(stage: str, done: int, total: int | None) -> None:
        if stage == "codes":
            raise Killed

    settings = small_settings(write_corpus(tmp_path / "corpus.jsonl"))
    with pytest.raises(Killed):
        build_index(tmp_path / "index", settings, bert, progress=kill)
    from npm.indexing.phrase_index import PhraseIndex

    with pytest.raises(ArtifactError):
        PhraseIndex.open(tmp_path / "index")
    made_of = json.loads((tmp_path / "index" / "segments" / "00000" / "vectors" / "manifest.json").read_text())
    assert made_of["parts"]
