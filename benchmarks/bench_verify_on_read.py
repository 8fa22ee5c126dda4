"""What it costs to check vectors as they are read: opening, the first query, the first answer, warmed ones.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_verify_on_read [tokens=1200000] [tier=ivf_sq8] [repeats=15] [work=DIR]

Builds one index with checksums and one without, of texts of random words, with random vectors near one of each word
(float16, as long as the shipped encoder's), and opens them in turns, in a fresh process each, files in the page cache:

- opening: `PhraseIndex.open`, everything but the encoder;
- first query: the two searches of one mask, the candidates reranked, nothing else;
- first answer: `fill` with dense retrieval, from the text to the phrases, the first use of the encoder with it.

The side without checksums reads as it was before there were any. Ratios are medians of checked / unchecked of a turn,
in time by the clock and in processor time, which other work on the machine disturbs less. `work` keeps what was built.
"""

from __future__ import annotations

import os

# Before torch and FAISS are imported: their thread pools are made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from index import checksums, exact, search
from index.faiss_library import import_faiss
from index.files import shown_bytes
from index.settings import SearchSettings, SearchTier
from npm.corpus.documents import CorpusSettings
from npm.indexing import embed
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import Retrieval

DEMO_CORPUS = Path(__file__).parents[1] / "npm" / "assets" / "demo"
QUESTION = "The capital of Iceland is <mask>."
WORDS_PER_DOCUMENT = 2000
NOISE = 0.5
"""The standard deviation of vectors of one word, where that of words is 1."""
WARMED = 40
MEDIAN_OF = 10
Times = dict[str, tuple[float, float]]
"""Milliseconds by the clock and of processor time, by what was measured."""


class RandomVectors(Encoder):
    """An encoder that costs nothing to run: a random vector for each word, and noise."""

    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Random vectors f32 [B, L, d]."""
        of_words = torch.Generator().manual_seed(0)
        table = torch.randn((len(self.tokenizer), self.dimensions), generator=of_words)  # [vocabulary, d]
        noise = torch.randn((*input_ids.shape, self.dimensions), generator=of_words)  # [B, L, d]
        return table[input_ids] + NOISE * noise


def build(index: Path, tokens: int, tier: SearchTier) -> None:
    """An index of about so many tokens; a finished one is kept."""
    corpus = index.parent / "corpus.jsonl"
    if not corpus.exists():
        words = sorted({word for file in DEMO_CORPUS.glob("*.jsonl") for word in file.read_text("utf-8").split()})
        words = [word for word in words if word.isalpha()]
        rng = np.random.default_rng(0)
        shares = 1 / np.arange(1, len(words) + 1)  # as often as words of natural languages
        with corpus.open("w", encoding="utf-8") as file:
            for number in range(max(1, round(tokens / WORDS_PER_DOCUMENT / 1.2))):
                drawn = rng.choice(rng.permuted(words), size=WORDS_PER_DOCUMENT, p=shares / shares.sum())
                record = {"id": str(number), "title": f"Text {number}", "text": " ".join(drawn) + "."}
                file.write(json.dumps(record) + "\n")
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]),
        search=SearchSettings(tier=tier, train_rows=1 << 18, train_iterations=2),
    )
    build_index(index, settings, RandomVectors.load(device="cpu"))


def read_unchecked() -> None:
    """Read vectors in this process as before there were checksums."""
    for module, name, value in (
        (embed, "ShardChecks", lambda _: None),
        (checksums, "open_checksums", lambda *_, **__: None),
        (exact, "checked_scores", lambda scores: scores),
        (search, "checked_scores", lambda scores: scores),
    ):
        setattr(module, name, value)


def timed(job: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Milliseconds of one call, by the clock and of processor time, and what it returned."""
    started = time.perf_counter(), time.process_time()
    result = job()
    return (1e3 * (time.perf_counter() - started[0]), 1e3 * (time.process_time() - started[1])), result


def median(times: list[tuple[float, float]]) -> tuple[float, float]:
    """The medians of both times."""
    return statistics.median(clock for clock, _ in times), statistics.median(processor for _, processor in times)


def measured_queries(folder: Path, turn: int) -> Times:
    """Opening, the first query and warmed ones in this process, which opened nothing before."""
    import_faiss()
    opening, index = timed(lambda: PhraseIndex.open(folder))
    rng = np.random.default_rng(turn)
    stored = index.vectors.arrays[0]
    near = stored[rng.integers(len(stored), size=(WARMED, 2))].astype(np.float32)  # f32 [queries, 2, d]
    queries = near + NOISE * rng.standard_normal(near.shape, dtype=np.float32)  # f32 [queries, 2, d]
    count = index.candidates_per_side
    times = [timed(lambda query=query: index.searcher.scan(query).top(count))[0] for query in queries]
    return {"opening": opening, "first query": times[0], "warmed query": median(times[-MEDIAN_OF:])}


def measured_answers(folder: Path) -> Times:
    """The first answer and warmed ones in this process, which opened nothing before."""
    filler = PhraseFiller.open(str(folder))
    times = [timed(lambda: filler.fill(QUESTION, retrieval=Retrieval.dense))[0] for _ in range(MEDIAN_OF + 1)]
    return {"first answer": times[0], "warmed answer": median(times[1:])}


def measure(work: Path, repeats: int) -> dict[str, list[Times]]:
    """What every turn measured, by side; the first turn, which fills the page cache, does not count."""
    found: dict[str, list[Times]] = {"unchecked": [], "checked": []}
    for turn in range(repeats + 1):
        for side in sorted(found, reverse=bool(turn % 2)):
            times: Times = {}
            for what in ("queries", "answers"):
                asked = [f"side={side}", f"measure={what}", f"turn={turn}", f"work={work}"]
                command = [sys.executable, "-m", "benchmarks.bench_verify_on_read", *asked]
                times |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            if turn:
                found[side].append(times)
    return found


def show(found: dict[str, list[Times]]) -> None:
    """Print the medians of both sides and of their ratios."""
    print("| | unchecked ms | checked ms | ratio | processor ms | processor ms, checked | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in found["checked"][0]:
        cells = []
        for kind in (0, 1):
            before, after = ([turn[name][kind] for turn in found[side]] for side in ("unchecked", "checked"))
            ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
            cells += [f"{statistics.median(before):.1f}", f"{statistics.median(after):.1f}", f"{ratio:.3f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def main(argv: list[str]) -> None:
    """Build both indexes, measure them in turns, print a table; with side=, measure one of them in this process."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(1)
    if "side" in given:
        if given["side"] == "unchecked":
            read_unchecked()
        index = Path(given["work"]) / given["side"]
        answers = given["measure"] == "answers"
        print(json.dumps(measured_answers(index) if answers else measured_queries(index, int(given["turn"]))))
        return
    tokens, tier = int(given.get("tokens", "1200000")), SearchTier(given.get("tier", "ivf_sq8"))
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(given.get("work", temporary))
        work.mkdir(parents=True, exist_ok=True)
        build(work / "checked", tokens, tier)
        with mock.patch.object(checksums, "CHECKSUMMED_FROM_BYTES", 1 << 60):
            build(work / "unchecked", tokens, tier)
        found = measure(work, int(given.get("repeats", "15")))
        index = PhraseIndex.open(work / "checked")
        size = sum(array.nbytes for array in index.vectors.arrays)
    print(
        f"{len(index.rows):,} vectors of {shown_bytes(size)}, {tier.value}; medians of {len(found['checked'])} turns\n"
    )
    show(found)


if __name__ == "__main__":
    main(sys.argv[1:])
