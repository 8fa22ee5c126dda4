"""Costs of an index: bytes, seconds to open, and where the milliseconds of a question go.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_cost index=DIR out=FOLDER [queries=100] [batch=32] [seed=0]
        [mlm=DIR] [devices=cpu,cuda] [encoder=DIR]

Questions are drawn from the documents of the index, fewer than `queries` where these hold no more. Each is asked alone,
and as many as fill whole lists of `batch` once more in these, with every retrieval; `mlm` is a masked language model
that is asked beside them. Writes cost.json and cost.md. The parts of a question are exclusive: what one of them takes
within another counts once, and what is in none of them is called "else": no pass of the encoder is.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npm.evaluation.methods.parametric as parametric
import npm.retrieval.filler as filler_module
from benchmarks.drawn_questions import draw_questions
from npm.core.display import markdown_table
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.models.masked_lm import attach_masked_head
from npm.models.names import locate_encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.spans import SpanFinder

METHODS = {
    "npm-dense": FillSettings(retrieval=Retrieval.dense),
    "npm-bm25": FillSettings(retrieval=Retrieval.bm25),
    "npm-hybrid": FillSettings(retrieval=Retrieval.hybrid),
    "npm-hybrid without reading": FillSettings(retrieval=Retrieval.hybrid, reader="none"),
}
PARTS = ("encoder", "block ranking", "reading", "search", "scoring", "answer text")
ELSE = "else"
PIECES = (
    ("encoder", filler_module, "encode_queries"),
    ("encoder", parametric, "encode_masks"),
    ("block ranking", filler_module, "choose_blocks"),
    ("reading", filler_module, "read_blocks"),
    ("scoring", SpanFinder, "find"),
    ("scoring", filler_module, "weigh"),
    ("answer text", filler_module, "ranked_phrases"),
)
"""Functions by the part of a question that they are, and the module or class that they are looked up in."""


class PartClock:
    """Exclusive seconds of each part: the clock of a part stands still while another runs within it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[str] = [ELSE]
        self._since = clock()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def current(self) -> str:
        """The part that runs now."""
        return self._open[-1]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for `name`."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """The seconds of each part since the last call; they add up to all that passed."""
        self._turn()
        found, self.seconds = dict(self.seconds), defaultdict(float)
        return found

    def _turn(self) -> None:
        now = self._clock()
        self.seconds[self.current] += now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose calls count for `name`."""

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*given, **named)

        return call


class TimedSearch:
    """A searcher, or one of its scans, whose `scan` and `top` count as search."""

    def __init__(self, inner: Any, clock: PartClock) -> None:
        self._inner, self._clock = inner, clock

    def scan(self, *given: Any) -> Any:
        """As of the searcher; the scan is timed too."""
        with self._clock.part("search"):
            return TimedSearch(self._inner.scan(*given), self._clock)

    def top(self, *given: Any) -> Any:
        """As of the scan."""
        with self._clock.part("search"):
            return self._inner.top(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def measured(clock: PartClock) -> Iterator[None]:
    """Within, the functions of `PIECES` are timed."""
    before = [(module, name, getattr(module, name)) for _, module, name in PIECES]
    try:
        for (part, module, name), (_, _, function) in zip(PIECES, before, strict=True):
            setattr(module, name, clock.timed(part, function))
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds a question of one method."""

    method: str
    device: str
    batch: int
    median: float
    p95: float
    parts: Mapping[str, float]  # means; they add up to the mean

    def row(self) -> list[str]:
        """As in the table."""
        shown = [f"{self.parts.get(part, 0.0):.2f}" for part in (*PARTS, ELSE)]
        return [f"{self.method}, {self.device}", str(self.batch), f"{self.median:.2f}", f"{self.p95:.2f}", *shown]


def cost_of(
    ask: Callable[[list[str]], object], texts: Sequence[str], batch: int, clock: PartClock, method: str, device: str
) -> Cost:
    """Ask `texts`, at least `batch` of them, in whole lists of `batch`, after one call that is not counted.

    What is left over is not asked.
    """
    ask(list(texts[:batch]))
    totals: list[float] = []
    parts: defaultdict[str, float] = defaultdict(float)
    for first in range(0, len(texts) - batch + 1, batch):  # whole batches only
        own = list(texts[first : first + batch])
        clock.take()
        ask(own)
        spent = clock.take()
        totals += [1000 * sum(spent.values()) / len(own)] * len(own)
        for part, seconds in spent.items():
            parts[part] += 1000 * seconds / (len(texts) // batch * batch)
    median, p95 = np.quantile(totals, [0.5, 0.95]).tolist()
    return Cost(method, device, batch, median, p95, dict(parts))


def costs(given: Mapping[str, str], devices: Sequence[str], batches: Sequence[int]) -> tuple[float, int, list[Cost]]:
    """Seconds to open the index, how many questions it gave, and what each method costs on each device."""
    clock, found = PartClock(), []
    started = time.perf_counter()
    index = PhraseIndex.open(Path(given["index"]))
    opening = time.perf_counter() - started
    count, seed = int(given.get("queries", "100")), int(given.get("seed", "0"))
    texts = [question.text for question in draw_questions(index, count, seed=seed)]
    timed = replace(index, searcher=TimedSearch(index.searcher, clock))
    with measured(clock):
        for device in devices:
            encoder = index.load_encoder(given.get("encoder"), device=device, for_reading=True)
            asks: dict[str, Callable[[list[str]], object]] = {
                name: PhraseFiller(timed, encoder, settings).fill for name, settings in METHODS.items()
            }
            if "mlm" in given:
                model = Encoder.load(given["mlm"], device=device)
                head = attach_masked_head(model, locate_encoder(given["mlm"]), trained=True)
                asks["mlm"] = parametric.ParametricPhrases(model, head).fill
            for name, ask in asks.items():
                sizes = dict.fromkeys(min(batch, len(texts)) for batch in batches)
                found += [cost_of(ask, texts, size, clock, name, device) for size in sizes]
    return opening, len(texts), found


def main(arguments: list[str]) -> None:
    """Measure, print and write the tables."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    given = dict(argument.split("=", 1) for argument in arguments)
    out, inspected = Path(given["out"]), inspect_index(Path(given["index"]))
    out.mkdir(parents=True, exist_ok=True)
    opening, count, found = costs(given, given.get("devices", "cpu").split(","), (1, int(given.get("batch", "32"))))
    disk, hot = (sum(sizes.values()) for sizes in (inspected.footprint.disk, inspected.footprint.hot))
    facts = {
        "tokens": f"{inspected.counts['tokens']:,}",
        "stored vectors": f"{inspected.counts['rows']:,}",
        "MB on disk": f"{disk / 1e6:.1f}",
        "MB hot": f"{hot / 1e6:.1f}",
        "seconds to open": f"{opening:.2f}",
        "questions": str(count),
    }
    header = ["ms a question", "asked at once", "p50", "p95", *PARTS, ELSE]
    text = (
        f"{markdown_table(['index', ''], facts.items())}\n\n{markdown_table(header, [each.row() for each in found])}\n"
    )
    (out / "cost.md").write_text(text, encoding="utf-8")
    record = {"index": inspected.counts, "disk_bytes": disk, "hot_bytes": hot, "opening_seconds": opening}
    record |= {"questions": count, "costs": [asdict(each) for each in found]}
    (out / "cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
