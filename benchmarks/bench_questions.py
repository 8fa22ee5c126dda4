"""Questions of the demo with the packed pass, against the padded pass of `transformers` over the same index.

    python -m benchmarks.bench_questions index=DIR [questions=48] [precision=auto]

Claims: a question takes at most 0.85 of the processor time that it takes with padded batches, with the same first
phrase in float32; short texts in one batch take at most the time of sentence-transformers (batches of 32). One thread;
the two take turns, question by question, and every question is new to both.
"""

from __future__ import annotations

import os

# before numpy is imported: its thread pool is made then
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from npm.models.batches import encode_sequences
from npm.models.encoder import Encoder
from npm.models.names import locate_encoder
from npm.models.settings import PoolerKind
from npm.retrieval.filler import PhraseFiller

QUESTIONS = Path(__file__).parents[1] / "npm/assets/demo/questions.json"
TEXTS = 128


def seconds_of(job: Callable[[], object]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    job()
    return time.process_time() - started


def filled(fillers: dict[str, PhraseFiller], texts: list[str]) -> tuple[dict[str, list[float]], int]:
    """Seconds per question of each filler, and the number of questions with the same first phrase."""
    seconds: dict[str, list[float]] = {name: [] for name in fillers}
    firsts: dict[str, list[str]] = {name: [] for name in fillers}

    def fill(name: str, text: str) -> None:
        firsts[name].append(fillers[name].fill(text, k=1).phrases[0].phrase)

    for text in texts:
        for name in fillers:
            seconds[name].append(seconds_of(lambda name=name, text=text: fill(name, text)))
    return seconds, sum(map(str.__eq__, *firsts.values()))


def short_texts(encoder: Encoder, texts: list[str]) -> list[float]:
    """Ratios of the time of pooled vectors of short texts to that of sentence-transformers."""
    theirs = SentenceTransformer(locate_encoder(""), device="cpu", model_kwargs={"dtype": encoder.dtype_name})
    nowhere = [np.zeros(0, dtype=np.int64)] * len(texts)

    def ours() -> None:
        sequences = [np.array(ids) for ids in encoder.tokenizer(texts)["input_ids"]]
        encode_sequences(encoder, sequences, nowhere, PoolerKind.avg, tokens_per_batch=8192)

    jobs = (ours, lambda: theirs.encode(texts, batch_size=32, normalize_embeddings=True))
    pairs = [[seconds_of(job) for job in jobs] for _ in range(6)][1:]  # the first one warms up
    return [left / right for left, right in pairs]


def main(argv: list[str]) -> None:
    """Compare, and print both claims."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(1)
    texts = [each["text"] for each in json.loads(QUESTIONS.read_text(encoding="utf-8"))["questions"]]
    precision = given.get("precision", "auto")
    packed, padded = (Encoder.load("", dtype=precision, for_reading=for_reading) for for_reading in (True, False))
    fillers = {name: PhraseFiller.open(given["index"], each) for name, each in (("packed", packed), ("padded", padded))}
    seconds, same = filled(fillers, texts[: int(given.get("questions", "48")) + 1])
    ratios = [left / right for left, right in zip(seconds["packed"][1:], seconds["padded"][1:], strict=True)]
    print(f"question: {1000 * median(seconds['packed'][1:]):.0f} ms, ratio {median(ratios):.2f}, first phrase {same}")
    print(f"{TEXTS} short texts: ratio to sentence-transformers {median(short_texts(packed, texts[:TEXTS])):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
