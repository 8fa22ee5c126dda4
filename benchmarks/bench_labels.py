"""Labels for texts by `npmlm label`, next to labels whose embedding is nearest to that of the text, in one run.

    python -m benchmarks.bench_labels data_dir=DIR news=INDEX reviews=INDEX [texts=500]

Claims: 200 labels cost at most 1.5 times the time of two; a text costs at most 1.5 times that of all-MiniLM-L6-v2, from
which encoder-mini was trained (extra `pretrained`); with the same words it is right as often on topics (AG News). It
is right less often on sentiment (SST-2). The other side is sentence-transformers in batches of 32; the vector of a
label is the mean over its words, each in the sentence that ends the prompt. Texts are drawn with seed 0 from what
results are reported on; processor time of one thread, with calibration, without loading.
"""

from __future__ import annotations

import os

# before numpy is imported: its thread pool is made then
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from npm.core.display import markdown_table
from npm.core.settings import config_folder
from npm.core.types import MASK_TEXT
from npm.evaluation.data import read_task
from npm.evaluation.labeling import label_rows, label_task
from npm.evaluation.methods.occurrences import find_occurrences
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.tasks import load_task, load_verbalizer
from npm.models.names import minilm_folder
from npm.retrieval.filler import PhraseFiller

SENTENCES = {"agn": f"The text topic is about {MASK_TEXT}.", "sst2": f"It was {MASK_TEXT}."}
MANY = 200


def timed(job: Callable[[], list[Any]]) -> tuple[list[Any], float]:
    """Result and processor time of one call."""
    started = time.process_time()
    return job(), time.process_time() - started


def nearest_labels(model: SentenceTransformer, texts: list[str], words: list[list[str]], sentence: str) -> list[int]:
    """The label of each text whose mean vector over its words is nearest."""
    means = [model.encode([sentence.replace(MASK_TEXT, word) for word in own]).mean(axis=0) for own in words]
    labels = np.stack([mean / np.linalg.norm(mean) for mean in means])  # f32 [L, d]
    found = model.encode(texts, batch_size=32, normalize_embeddings=True) @ labels.T  # f32 [q, L]
    nearest: list[int] = found.argmax(axis=1).tolist()
    return nearest


def compared(
    name: str, filler: PhraseFiller, data_dir: Path, count: int, model: SentenceTransformer
) -> list[list[str]]:
    """Rows of the table for one task: its single words, and its list of words."""
    shipped, sentence = load_task(name, folder=config_folder() / "task"), SENTENCES[name]
    examples = read_task(shipped, data_dir, limit=count)
    texts = [each.text.removesuffix(sentence).strip() for each in examples]
    gold, rows = [each.label for each in examples], []
    for verbalizer in ("label_words", shipped.verbalizer):
        task = label_task(replace(shipped, verbalizer=verbalizer), f"{{text}} {sentence}")
        placed, names = [("", {"text": text}) for text in texts], [label.name for label in task.labels]
        words = [list(own) for own in load_verbalizer(task, verbalizer).words]
        jobs: dict[str, Callable[[], list[int]]] = {
            "npmlm label": lambda: [names.index(each.labels[0].label) for each in label_rows(filler, task, placed)],  # noqa: B023
            "all-MiniLM-L6-v2": lambda: nearest_labels(model, texts, words, sentence),  # noqa: B023
        }
        seconds = dict[str, float]()
        for method, job in jobs.items():
            found, seconds[method] = timed(job)
            hits = sum(map(int.__eq__, found, gold))
            interval = wilson_interval(hits, len(gold))
            ratio = seconds[method] / seconds["npmlm label"]
            accuracy = f"{100 * hits / len(gold):.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
            milliseconds = f"{1000 * seconds[method] / len(gold):.1f}"
            rows.append(
                [f"{name} ({len(gold)})", f"{sum(map(len, words))}", method, accuracy, milliseconds, f"{ratio:.2f}"]
            )
    return rows


def show_cost_of_many(filler: PhraseFiller, texts: list[str]) -> None:
    """Print the time of many labels of one word over that of two."""
    shipped = load_task("agn", folder=config_folder() / "task")
    words = [word for own in load_verbalizer(shipped, "agn").words for word in own if word.isalpha()]
    counts = find_occurrences(filler.index, filler.encoder, words).counts  # i64 [W]
    frequent = [(word, count) for word, count in zip(words, counts.tolist(), strict=True) if count][:MANY]
    names = [word for word, _ in frequent]
    placed = [("", {"text": text}) for text in texts]
    few, many = (
        timed(lambda own=own: list(label_rows(filler, label_task(own), placed)))[1] for own in (names[:2], names)
    )
    total = sum(count for _, count in frequent)
    print(f"{len(names)} labels: {many / few:.2f} times the time of two, {total:,} occurrences")


def main(argv: list[str]) -> None:
    """Compare, and print the table and the ratio."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(1)
    count, data_dir = int(given.get("texts", "500")), Path(given["data_dir"])
    fillers = {name: PhraseFiller.open(given[key]) for name, key in (("agn", "news"), ("sst2", "reviews"))}
    dtype = fillers["agn"].encoder.dtype_name
    model = SentenceTransformer(str(minilm_folder()), device="cpu", model_kwargs={"dtype": dtype})
    rows = [row for name, filler in fillers.items() for row in compared(name, filler, data_dir, count, model)]
    print(markdown_table(["task (n)", "words", "method", "accuracy, %", "ms per text", "time ratio"], rows))
    examples = read_task(load_task("agn", folder=config_folder() / "task"), data_dir, limit=count)
    show_cost_of_many(fillers["agn"], [each.passage for each in examples])


if __name__ == "__main__":
    main(sys.argv[1:])
