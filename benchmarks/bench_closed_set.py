"""Time of choosing a label on one core, with the encoder's pass, against the reference's loop on the same data.

    python -m benchmarks.bench_closed_set parity_dir=../shared/parity [repeats=5] [index=DIR]

Claims: at least 4 times as many examples a second with the best 4096 rows of either query, at least 10 times exactly
over all occurrences of the labels' words. The other side is a plain loop as the reference has it (one example at a
time in float32; IVFPQ with 256 lists of which 8 are probed, 64 bytes a vector; similarities again from the stored
vectors; a dictionary of probabilities by token). 4 layers × 256, 206,684 vectors, prompts of about 40 tokens; 100 label
words. Processor time of one thread, so that other work on the machine does not count; waiting for a quiet
machine takes as long. The index is built in a temporary folder unless named.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_filling import open_parity_index
from index.faiss_library import faiss_threads, new_faiss_index
from npm.core.display import markdown_table
from npm.core.types import silent
from npm.evaluation.methods.nonparametric import NonparametricLabels
from npm.evaluation.methods.occurrences import find_occurrences
from npm.evaluation.tasks import (
    ClosedRetrieval,
    ClosedScoring,
    Example,
    Label,
    Task,
    TaskData,
)
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_queries

K = 4096
DTYPES = ("float32", "bfloat16")
GOALS = {"exact": "≥ 10", "top_k": "≥ 4"}
EXAMPLES, REFERENCE_EXAMPLES = 480, 40
LABELS, WORDS_PER_LABEL, WORDS_PASSED_OVER = 2, 50, 30
LISTS, PROBED_LISTS, CODE_BYTES = 256, 8, 64


class ReferenceLoop:
    """One example after the other, as the reference implementation goes about it."""

    def __init__(self, index: PhraseIndex, encoder: Encoder, labels: list[set[int]]) -> None:
        assert index.vectors is not None, "a built index has its vectors"
        self._encoder = encoder
        self._labels = labels  # token ids of each label
        self._vectors = index.vectors
        self._token_of_row = index.store.token_ids.take(index.rows.positions(np.arange(len(index.rows))))  # [rows]
        stored = index.vectors.take(np.arange(len(index.rows))).astype(np.float32)  # f32 [rows, d]
        self._faiss = new_faiss_index(f"IVF{LISTS},PQ{CODE_BYTES}x8", encoder.dimensions)
        self._faiss.train(stored)
        self._faiss.add(stored)
        self._faiss.nprobe = PROBED_LISTS

    def label(self, text: str) -> int:
        """The best label for one text."""
        vectors = encode_queries(self._encoder, [text])
        tokens: list[int] = []
        similarities: list[np.ndarray] = []
        for query in (vectors.start, vectors.end):  # f32 [1, d]
            rows = self._faiss.search(query, K)[1][0]  # i64 [k]
            rows = rows[rows >= 0]
            stored = self._vectors.take(rows).astype(np.float32)  # f32 [k, d]
            similarities.append(stored @ query[0] * self._encoder.similarity_scale)
            tokens += self._token_of_row[rows].tolist()
        pooled = np.concatenate(similarities)  # f32 [2k]
        shares = np.exp(pooled - pooled.max())
        shares /= shares.sum()
        share_of: dict[int, float] = {}
        for token, share in zip(tokens, shares.tolist(), strict=True):
            share_of[token] = share_of.get(token, 0.0) + share
        sums = [sum(share_of.get(token, 0.0) for token in of_label) for of_label in self._labels]
        return sums.index(max(sums))


def frequent_words(index: PhraseIndex, encoder: Encoder) -> list[str]:
    """Words of one token that stand often in the corpus, the most frequent of them passed over."""
    counts = np.bincount(index.store.token_ids.slice(0, index.store.token_count))  # i64 [largest id + 1]
    words = [str(encoder.tokenizer.decode([number])) for number in np.argsort(-counts, kind="stable").tolist()]
    whole = [word.strip() for word in words if word.startswith(" ") and word.strip().isalpha() and len(word) > 4]
    return whole[WORDS_PASSED_OVER : WORDS_PASSED_OVER + LABELS * WORDS_PER_LABEL]


def task_of(words: list[str]) -> Task:
    """Labels whose words are every LABELS-th of `words`."""
    labels = tuple(
        Label(value=number, name=f"label {number}", words=tuple(words[number::LABELS])) for number in range(LABELS)
    )
    return Task(name="bench", suite="closed", data=TaskData(file="-"), template="{{ text }} <mask>", labels=labels)


def seconds_of(job: Callable[[], object]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    job()
    return time.process_time() - started


def labels_of(
    index: PhraseIndex, encoder: Encoder, task: Task, examples: list[Example], retrieval: ClosedRetrieval
) -> list[int]:
    """The labels of all examples by a method that was not asked before."""
    # Without calibration, as the reference's loop: it is a cost per task, and this corpus has no sentences.
    scoring = ClosedScoring(retrieval=retrieval, k=K, label_mean="sum", calibration="none")
    method = NonparametricLabels(index, encoder, scoring=scoring)
    return [prediction.label for prediction in method.predict(task, examples, silent).answers]


def measure(
    index: PhraseIndex, encoders: dict[str, Encoder], task: Task, texts: list[str], repeats: int
) -> dict[str, list[float]]:
    """Seconds an example of every job, the jobs interleaved."""
    single = encoders["float32"]
    ids = [
        {single.tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in label.words}
        for label in task.labels
    ]
    loop = ReferenceLoop(index, single, ids)
    examples = [Example(id=str(number), text=texts[number % len(texts)]) for number in range(EXAMPLES)]
    asked = [example.text for example in examples]
    few = asked[:REFERENCE_EXAMPLES]
    jobs: dict[str, Callable[[], object]] = {
        "reference loop": lambda: [loop.label(text) for text in few],
        "reference loop, its encoder": lambda: [encode_queries(single, [text]) for text in few],
    }
    for dtype, encoder in encoders.items():
        jobs[f"encoder, {dtype}"] = partial(encode_queries, encoder, asked)
        for retrieval in ("exact", "top_k"):
            jobs[f"{retrieval}, {dtype}"] = partial(labels_of, index, encoder, task, examples, retrieval)
    times: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            seconds = seconds_of(job) / (REFERENCE_EXAMPLES if name.startswith("reference") else EXAMPLES)
            if turn:  # the first turn warms up
                times.setdefault(name, []).append(seconds)
    return times


def print_table(times: dict[str, list[float]], dtypes: list[str]) -> None:
    """Medians, ratios to the reference's loop within the same turn, and the share of the encoder."""
    rows = []
    for kind, goal in [("reference loop", None), *GOALS.items()]:
        for dtype in dtypes if goal else ["float32"]:
            name = f"{kind}, {dtype}" if kind in GOALS else kind
            taken = statistics.median(times[name])
            ratio = statistics.median(
                theirs / ours for theirs, ours in zip(times["reference loop"], times[name], strict=True)
            )
            encoder = times[f"encoder, {dtype}" if goal else "reference loop, its encoder"]
            share = statistics.median(encoder) / taken
            rows.append([name, f"{1 / taken:.0f}", f"{taken * 1e3:.2f}", f"{ratio:.1f}", goal or "", f"{share:.0%}"])
    print(markdown_table(["method", "examples/s", "ms", "ratio", "goal", "encoder"], rows))


def main(argv: list[str]) -> None:
    """Build, measure, print a table."""
    given = dict(argument.split("=", 1) for argument in argv)
    parity = Path(given.get("parity_dir", "../shared/parity"))
    torch.set_num_threads(1)
    recorded = json.loads((parity / "predictions.json").read_text(encoding="utf-8"))
    encoders = {dtype: Encoder.load(str(parity / "model"), device="cpu", dtype=dtype) for dtype in DTYPES}
    with tempfile.TemporaryDirectory() as temporary:
        exact = Path(given.get("index", Path(temporary) / "exact"))
        index = open_parity_index(parity, recorded, exact).index
        words = frequent_words(index, encoders["float32"])
        occurrences = find_occurrences(index, encoders["float32"], words)
        print(f"{len(index.rows):,} vectors × {encoders['float32'].dimensions}, {EXAMPLES} examples, 1 thread")
        print(f"{len(words)} label words with {len(occurrences):,} occurrences")
        with faiss_threads(1):
            texts = [query["text"] for query in recorded["queries"]]
            times = measure(index, encoders, task_of(words), texts, int(given.get("repeats", "5")))
        print_table(times, list(encoders))


if __name__ == "__main__":
    main(sys.argv[1:])
