"""Every command that writes an index, ended by the system at one rename after the other until it is done.

    python -m tests.indexing.crashes FOLDER [COMMAND …]

prints a JSON object for each command. A folder takes two renames, of its manifest and of itself, so a run that dies
after its second or third adds one, and both together stop between any two. Children are forked from a process that has
computed nothing, and end without any cleaning up, as with kill -9.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from npm.core.settings import Shard
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.changes import add_documents, delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings, Stage
from tests.helpers.live_indexes import all_bytes, build_settings, record, write_records
from tests.helpers.tiny_models import tiny_encoder

DIED, MOST_RUNS = 9, 60
LISTS = "ivf_sq8 4"


def build(index: Path) -> None:
    settings = replace(build_settings(index.parent.parent / "first.jsonl", LISTS), copy_encoder=True)
    build_index(index, settings, tiny_encoder("bert"))


def jobs(index: Path) -> None:
    settings = build_settings(index.parent.parent / "first.jsonl", LISTS)
    for stage in Stage:
        for number in (1, 2):
            build_index(index, settings, tiny_encoder("bert"), stage=stage, shard=Shard(number, 2))


def add(index: Path) -> None:
    corpus = CorpusSettings(files=[str(index.parent.parent / "more.jsonl")])
    add_documents(index, AddSettings(corpus=corpus, replace=True), tiny_encoder("bert"))


def delete(index: Path) -> None:
    delete_documents(index, DeleteSettings(ids=["d2", "d7"]))


def compact(index: Path) -> None:
    compact_index(index, CompactSettings(retrain=True))


def partition(index: Path) -> None:
    partition_index(index, 2)


COMMANDS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (build, jobs, add, delete, compact, partition)
}
NEW = ("build", "jobs")
"""These begin without an index."""


def in_child(work: Callable[[], object]) -> int:
    """The exit status of `work` in a process of its own."""
    if (process := os.fork()) == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def dying(last: int, calls: tuple[str, ...] = ("rename", "replace")) -> None:
    """Let this process end after the call `last` of these; 0: it lives."""
    count = 0
    for name in calls:
        real = getattr(os, name)

        def deadly(*given: object, real: Callable[..., None] = real) -> None:
            nonlocal count
            real(*given)
            count += 1
            if count == last:
                os._exit(DIED)

        setattr(os, name, deadly)


def run(command: str, index: Path, last: int) -> None:
    """One run, after a look at what the one before left."""
    if command not in NEW:
        PhraseIndex.open(index)
    dying(last)
    COMMANDS[command](index)


def write_inputs(folder: Path) -> None:
    """The documents of the index, and those that are added."""
    write_records(folder / "first.jsonl", list(map(record, range(8))))
    write_records(folder / "more.jsonl", [record(3, text="Bergen lies in Norway."), *map(record, range(8, 11))])


def prepared(folder: Path) -> None:
    """An index of two segments, of which a document is deleted."""
    base = folder / "base" / "index"
    base.parent.mkdir(parents=True)
    build(base)
    delete_documents(base, DeleteSettings(ids=["d1"]))


def main(folder: Path, commands: list[str]) -> None:
    """Run each command undisturbed, then with deaths; print how many there were and whether the bytes are the same."""
    write_inputs(folder)
    assert in_child(lambda: prepared(folder)) == 0
    for command in commands or COMMANDS:
        places = {last: folder / f"{command}-{last}" / "index" for last in (0, 2, 3)}
        deaths = dict.fromkeys(places, 0)
        for last, index in places.items():
            index.parent.mkdir()
            if command not in NEW:
                shutil.copytree(folder / "base" / "index", index)
            while (status := in_child(partial(run, command, index, last))) == DIED:
                deaths[last] += 1
                assert deaths[last] < MOST_RUNS, f"{command} makes no progress"
            assert status == 0, (command, last, deaths[last])
        same = [all_bytes(index) == all_bytes(places[0]) for index in places.values()]
        sys.stdout.write(json.dumps({"command": command, "deaths": deaths, "same": same}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
