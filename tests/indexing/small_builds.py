"""A small build in which every stage has something to do, and a process that is killed in one of them.

    python -m tests.indexing.small_builds CORPUS ENCODER INDEX

kills one build of INDEX after the other and prints a JSON object for each. The children are forked from a process that
has computed nothing yet, so that the heavy imports are paid for once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.settings import SearchSettings, SearchTier
from npm.core.files import NewFile
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.embed import ShardBlocks
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.models.batches import EncodedBatch
from npm.models.encoder import Encoder
from tests.helpers.tiny_models import SENTENCES

COPIES = 6
TOKENS_PER_SHARD = 400
KILLS = ("vectors", "quantiser", "codes", "lists")


def write_corpus(path: Path) -> Path:
    """Some dozens of documents."""
    records = [
        {"id": f"d{copy}-{number}", "title": f"Title {number}", "text": f"{text} {SENTENCES[(number + copy) % 8]}"}
        for copy in range(COPIES)
        for number, text in enumerate(SENTENCES)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def small_settings(corpus: Path) -> IndexBuildSettings:
    """Several shards of several batches each, and inverted lists of one-bit codes."""
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=TOKENS_PER_SHARD, tokens_per_batch=100),
        search=SearchSettings(tier=SearchTier.ivf_rabitq, list_count=8, train_iterations=6, thread_count=1),
    )


@dataclass(slots=True)
class Watched:
    """What one run did, written down as it goes, because a killed process tells nothing."""

    log: Path

    def note(self, **facts: object) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    def notes(self, name: str) -> list[int]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [json.loads(line)[name] for line in lines if name in json.loads(line)]


def watch(watched: Watched) -> None:
    """Note every block that is encoded and every round of k-means from here on."""
    encoded, begin = ShardBlocks.encoded, ShardBlocks.__init__
    first_blocks: dict[int, int] = {}

    def noted_begin(self: ShardBlocks, store: object, encoder: object, settings: dict[str, int]) -> None:
        begin(self, store, encoder, settings)  # type: ignore[arg-type]
        first_blocks[id(self)] = settings["first_block"]

    def noted(self: ShardBlocks, batch: np.ndarray) -> EncodedBatch:
        for block in batch.tolist():
            watched.note(block=first_blocks[id(self)] + block)
        return encoded(self, batch)

    ShardBlocks.__init__, ShardBlocks.encoded = noted_begin, noted  # type: ignore[method-assign,assignment]


def kill_in(part: str, watched: Watched) -> Callable[[str, int, int | None], None]:
    """Kill this process in the middle of writing the second shard of a part, or of a third round of k-means."""
    write = NewFile.__dict__["write"]

    def deadly(self: NewFile, data: bytes) -> int:
        place = str(self.name)
        second = {"vectors": "/vectors/.00001.tmp/vectors.npy", "codes": "/codes/.00001.tmp/codes.npy"}
        if place.endswith(second.get(part, "/lists.bin" if part == "lists" else "/nothing")):
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)  # type: ignore[no-any-return]

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "quantiser":
            watched.note(round=done)
            if part == "quantiser" and done == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    NewFile.write = deadly  # type: ignore[method-assign]
    return progress


def run(corpus: Path, encoder: Path, index: Path, part: str | None, log: Path) -> None:
    """One build in a child, killed in `part`; prints how it ended and what it had done."""
    process = os.fork()
    if process == 0:
        watched = Watched(log)
        watch(watched)
        progress = kill_in(part or "none", watched)
        build_index(
            index, small_settings(corpus), Encoder.load(str(encoder), device="cpu", dtype="float32"), progress=progress
        )
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    watched = Watched(log)
    facts = {
        "part": part,
        "signal": signalled,
        "status": 0 if signalled else os.waitstatus_to_exitcode(status),
        "blocks": watched.notes("block"),
        "rounds": watched.notes("round"),
        "finished": (index / "manifest.json").exists(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(corpus: Path, encoder: Path, index: Path) -> None:
    """Kill one build in each part, and let the last one finish."""
    for number, part in enumerate((*KILLS, None)):
        run(corpus, encoder, index, part, index.parent / f"log-{number}.jsonl")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
