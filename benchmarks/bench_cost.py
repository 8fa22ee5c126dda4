"""What an index costs: bytes, seconds to build and to open, and where the milliseconds of a question go.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_cost index=DIR out=FOLDER [queries=100] [batch=32] [seed=0]
        [mlm=DIR] [devices=cpu,cuda] [corpus=FILE[,FILE]] [results=FOLDER,task]

Questions are drawn from the documents of the index, fewer than `queries` where these hold no more. Each is asked alone,
and as many as fill whole lists of `batch` once more in these, with every retrieval; `mlm` is a masked language model
that is asked beside them. `corpus` builds the index anew, in a temporary folder, for the seconds of each stage.
`results`, of `npmlm evaluate` on an open task, gives the exact match that is drawn over the milliseconds. Writes
cost.json, cost.md and, with results, cost.png. The parts of a question are exclusive: what one of them takes within
another counts once, and what is in none of them is called "else": no pass of the encoder is.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npm.evaluation.methods.parametric as parametric
import npm.retrieval.fill as fill
import npm.retrieval.filler as filler_module
from npm.core.errors import SettingError, UserError
from npm.core.figures import check_figure, colour, legend_below, marker, new_panels, plain_axes, save_figure
from npm.core.files import check_writable, read_object
from npm.corpus.documents import CorpusSettings
from npm.corpus.sources import find_sources
from npm.evaluation.methods.registry import loading
from npm.evaluation.metrics import Interval
from npm.evaluation.report import markdown_table
from npm.indexing.build import build_index
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, attach_masked_head
from npm.models.names import locate_encoder
from npm.models.stored import choose_device
from npm.retrieval.drawn_questions import draw_questions
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.spans import SpanFinder

METHODS = {
    "npm-dense": FillSettings(retrieval=Retrieval.dense),
    "npm-bm25": FillSettings(retrieval=Retrieval.bm25),
    "npm-hybrid": FillSettings(retrieval=Retrieval.hybrid),
    "npm-hybrid without reading": FillSettings(retrieval=Retrieval.hybrid, reading_share=0.0, joint_share=0.0),
}
PARTS = ("encoder", "block ranking", "reading", "search", "scoring", "answer text", "reranking")
ELSE = "else"
PIECES = (
    ("encoder", filler_module, "encode_queries"),
    ("encoder", parametric, "encode_masks"),
    ("block ranking", fill, "block_restrictions"),
    ("reading", fill, "with_reading"),
    ("scoring", SpanFinder, "find"),
    ("scoring", filler_module, "candidate_weights"),
    ("answer text", filler_module, "ranked_phrases"),
    ("reranking", filler_module, "rerank"),
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
        """What runs inside counts for `name`."""
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


def language_model(name: str, device: str) -> tuple[Encoder, MaskedHead]:
    """The masked language model and its head. Raises EncoderError if there is none of that name."""
    with loading("mlm"):
        model = Encoder.load(name, device=device)
        return model, attach_masked_head(model, locate_encoder(name), trained=True)


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
            encoder = index.load_encoder(given.get("encoder"), device=device)
            asks: dict[str, Callable[[list[str]], object]] = {
                name: PhraseFiller(timed, encoder, settings).fill for name, settings in METHODS.items()
            }
            if "mlm" in given:
                asks["mlm"] = parametric.ParametricPhrases(*language_model(given["mlm"], device)).fill
            for name, ask in asks.items():
                sizes = dict.fromkeys(min(batch, len(texts)) for batch in batches)
                found += [cost_of(ask, texts, size, clock, name, device) for size in sizes]
    return opening, len(texts), found


def build_seconds(files: Sequence[str], index: Path, encoder_name: str | None = None) -> dict[str, float]:
    """Seconds of each stage of a build over `files` with the encoder of `index`, as its progress tells."""
    encoder = PhraseIndex.open(index).load_encoder(encoder_name)
    seconds: defaultdict[str, float] = defaultdict(float)
    last = time.perf_counter()

    def progress(stage: str, *_: float | None) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage] += now - last
        last = now

    with tempfile.TemporaryDirectory() as place:
        settings = IndexBuildSettings(corpus=CorpusSettings(files=list(files)))
        build_index(Path(place) / "index", settings, encoder, progress=progress)
    return dict(seconds)


Quality = Mapping[str, tuple[int, Interval]]
"""Method → how many examples it was asked, and its exact match."""


def read_quality(given: Mapping[str, str]) -> tuple[str, Quality]:
    """The task of `results=FOLDER,task` and the methods of it that are measured. Raises UserError if there are none."""
    folder, _, task = given["results"].rpartition(",")
    fix = "results=FOLDER,task of npmlm evaluate task=TASK, an open one"
    tasks = _objects(read_object(Path(folder) / "metrics.json", fix=fix).get("tasks")) if folder else {}
    methods = _objects(tasks.get(task, {}).get("methods"))
    measured_here = [*METHODS, *(["mlm"] if "mlm" in given else [])]
    quality: dict[str, tuple[int, Interval]] = {}
    for name in measured_here:
        match methods.get(name, {}).get("all"):
            case {"count": int(count), "micro": {"mean": float(mean), "low": float(low), "high": float(high)}}:
                quality[name] = count, Interval(mean, low, high)
    if not quality:
        raise SettingError(
            f"results must have exact match on {task or 'a task'} of one of {', '.join(measured_here)}, "
            f"got {given['results']}: {', '.join(methods) or ', '.join(tasks) or 'none'}; give {fix}"
        )
    return task, quality


def _objects(found: Any) -> dict[str, dict[str, Any]]:
    """The objects in a JSON object; none if it is not one."""
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}


def draw_quality(found: Sequence[Cost], task: str, quality: Quality) -> Any:
    """Exact match of each method of a task, over the milliseconds of a question asked alone."""
    figure, (axes,) = new_panels(1)
    for number, cost in enumerate(each for each in found if each.method in quality and each.batch == 1):
        _, share = quality[cost.method]
        errors = [[share.mean - share.low], [share.high - share.mean]]
        look = {"color": colour(number), "marker": marker(number), "label": f"{cost.method}, {cost.device}"}
        axes.errorbar(cost.median, share.mean, yerr=errors, **look)
    axes.set_xscale("log")
    plain_axes(axes, x="median time of a question, ms", y="exact match, share", title=task)
    legend_below(figure, [axes], columns=2)
    return axes


def main(argv: list[str]) -> int:
    """Measure, print and write the tables; 2 after a user's mistake."""
    try:
        write_costs(checked_arguments(argv))
    except (UserError, OSError) as error:
        sys.stderr.write(f"bench_cost: error: {error}\n")
        return 2
    return 0


def checked_arguments(argv: list[str]) -> dict[str, str]:
    """The settings of the command line. Raises SettingError for others, and for counts below 1 or that are none."""
    given = dict(argument.partition("=")[::2] for argument in argv)
    known = ("index", "out", "queries", "batch", "seed", "mlm", "devices", "corpus", "results", "encoder")
    counts = {"queries": 1, "batch": 1, "seed": 0}
    wrong = [name for name in given if name not in known or not given[name]]
    wrong += [name for name in given.keys() & counts if not re.fullmatch(r"\d+", given[name])]
    wrong += [name for name, least in counts.items() if name not in wrong and int(given.get(name, "1")) < least]
    keys = [argument.partition("=")[0] for argument in argv]
    wrong += [f"{key}, given twice" for key in given if keys.count(key) > 1]
    if wrong or not {"index", "out"} <= set(given):
        raise SettingError(
            "usage: index=DIR out=FOLDER [queries=100] [batch=32] [seed=0] [mlm=DIR] [devices=cpu,cuda] "
            f"[corpus=FILE[,FILE]] [results=FOLDER,task] [encoder=DIR]; got {' '.join(argv) or 'nothing'}: "
            + (f"correct {', '.join(wrong)}" if wrong else "give index= and out=")
        )
    return given


def check_before(given: Mapping[str, str], out: Path, devices: Sequence[str]) -> None:
    """Raise UserError for devices, a model, a corpus, an `out` or a picture that are refused later on."""
    check_writable(out)
    if "results" in given:
        check_figure(out / "cost.png")
    for device in devices:
        choose_device(device)
    if "corpus" in given:
        find_sources(given["corpus"].split(","))
        if "mlm" in given:  # else it is loaded before the first question anyway
            language_model(given["mlm"], "cpu")


def write_costs(given: Mapping[str, str]) -> None:
    """Measure, print and write the tables."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    out, index = Path(given["out"]), Path(given["index"])
    devices = given.get("devices", "cpu").split(",")
    quality = read_quality(given) if "results" in given else None
    check_before(given, out, devices)
    inspected = inspect_index(index)
    out.mkdir(parents=True, exist_ok=True)
    seconds = build_seconds(given["corpus"].split(","), index, given.get("encoder")) if "corpus" in given else {}
    opening, count, found = costs(given, devices, (1, int(given.get("batch", "32"))))
    disk, hot = (sum(sizes.values()) for sizes in (inspected.footprint.disk, inspected.footprint.hot))
    facts = [["tokens", f"{inspected.counts['tokens']:,}"], ["stored vectors", f"{inspected.counts['rows']:,}"]]
    facts += [
        ["MB on disk", f"{disk / 1e6:.1f}"],
        ["MB hot", f"{hot / 1e6:.1f}"],
        ["seconds to open", f"{opening:.2f}"],
        ["questions", str(count)],
    ]
    facts += [[f"seconds of the build: {stage}", f"{spent:.1f}"] for stage, spent in seconds.items()]
    header = ["ms a question", "asked at once", "p50", "p95", *PARTS, ELSE]
    text = f"{markdown_table(['index', ''], facts)}\n\n{markdown_table(header, [cost.row() for cost in found])}\n"
    (out / "cost.md").write_text(text, encoding="utf-8")
    record = {"index": inspected.counts, "disk_bytes": disk, "hot_bytes": hot, "opening_seconds": opening}
    record["questions"] = count
    record |= {"build_seconds": seconds, "costs": [{n: getattr(each, n) for n in Cost.__slots__} for each in found]}
    (out / "cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(text)
    if quality is not None:
        figure = draw_quality(found, *quality).figure
        save_figure(figure, out / "cost.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
