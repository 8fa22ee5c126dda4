"""Claim: a build takes private memory that does not grow with the corpus, and time and disk in proportion to it.

    OMP_NUM_THREADS=2 python -m benchmarks.bench_build corpus=FILES [documents=N,N,…] [file_counts=N,N,…] [encoder=]
                                [out=DIR] [json=FILE] [plot=FILE.png] [estimate=true] [SETTING=VALUE …]

Runs `npmlm build` for each size (the first N documents, the first N files in order, or all) in a child process, and
samples the private memory (RssAnon + RssShmem) of its process tree every 50 ms. When a stage ended is read off the
files that it finished, so the command is the one that users run. Prints time, memory, bytes on the disk and hot bytes
a stored vector; what `npmlm estimate` said before; and, from the largest build, the arithmetic for a billion tokens.
A size whose record is in `out` already is not built again. Further settings go to `npmlm build`.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from npm.core.files import shown_bytes, stored_bytes
from npm.core.memory import private_bytes
from npm.indexing.generation import Generation
from npm.indexing.inspect import footprint

STAGES = ("start", "blocks", "vectors", "lexicon", "quantiser", "codes", "lists")
SAMPLE_SECONDS = 0.05
BILLION = 1_000_000_000
OWN = ("corpus", "documents", "file_counts", "out", "json", "plot", "estimate")


@dataclass(frozen=True, slots=True)
class Built:
    """One build, as it was measured."""

    label: str
    tier: str
    tokens: int
    rows: int
    seconds: dict[str, float]  # by stage
    peak_bytes: dict[str, int]  # private memory of the process tree, by stage
    disk_bytes: dict[str, int]  # by part of the index
    hot_bytes: dict[str, int]  # by item
    went_on: bool  # something was there already, so the times are those of the rest
    estimate: dict[str, Any] | None

    @property
    def total_seconds(self) -> float:
        """From the start of the command to its end."""
        return sum(self.seconds.values())

    @property
    def peak(self) -> int:
        """Over all stages."""
        return max(self.peak_bytes.values())

    @property
    def disk(self) -> int:
        """Bytes of the whole index."""
        return sum(self.disk_bytes.values())

    @property
    def hot(self) -> int:
        """Bytes that a search needs in memory."""
        return sum(self.hot_bytes.values())


def process_tree(process: int) -> list[int]:
    """The process and all its descendants."""
    found = [process]
    for parent in found:
        for task in glob.glob(f"/proc/{parent}/task/*/children"):  # noqa: PTH207 - processes vanish at any moment
            try:
                found += map(int, Path(task).read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def watched_build(arguments: list[str], index: Path) -> tuple[float, float, float, list[tuple[float, int]]]:
    """Run `npmlm build`; when it began, held its lock, and ended, and its memory in time. All in seconds since 1970."""
    lock = index.parent / f".{index.name}.lock"
    command = [sys.executable, "-m", "npm", "build", *arguments, f"index={index}"]
    began = working = time.time()
    memory: list[tuple[float, int]] = []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        now = time.time()
        memory.append((now, sum(map(private_bytes, process_tree(process.pid)))))
        if working == began and lock.exists():
            working = now
        time.sleep(SAMPLE_SECONDS)
    if process.returncode != 0:
        raise SystemExit(f"the build ended with status {process.returncode}")
    return began, working, time.time(), memory


def stage_ends(index: Path, working: float, ended: float) -> list[float]:
    """When each of `STAGES` ended, by the files that it finished; the moment before where a stage had nothing to do."""
    segment = index / "segments" / "00000"
    finished = (
        [segment / "corpus" / "manifest.json"],
        list((segment / "vectors").glob("[0-9]*/manifest.json")),
        list((segment / "lexicon").glob("[0-9]*/manifest.json")),
        [index / "quantiser" / "manifest.json"],
        list((segment / "codes").glob("[0-9]*/manifest.json")),
    )
    ends = [working]
    for files in finished:
        ends.append(max([ends[-1], *(path.stat().st_mtime for path in files if path.exists())]))
    return [*ends, ended]


def measure(label: str, arguments: list[str], folder: Path, *, estimates: bool) -> Built:
    """Estimate and build one size, or read what was measured before."""
    record = folder / f"{label}.json"
    if record.exists():
        return Built(**json.loads(record.read_text(encoding="utf-8")))
    estimate = None
    if estimates:
        command = [sys.executable, "-m", "npm", "estimate", *arguments, "output=json"]
        estimate = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    index = folder / label
    went_on = index.exists()
    began, working, ended, memory = watched_build(arguments, index)
    bounds = [began, *stage_ends(index, working, ended)]
    spans = dict(zip(STAGES, pairwise(bounds), strict=True))
    generation = Generation.read(index)
    measured = footprint(generation)
    built = Built(
        label=label,
        tier=tier_of(generation),
        tokens=measured.token_count,
        rows=measured.row_count,
        seconds={stage: stop - start for stage, (start, stop) in spans.items()},
        peak_bytes={
            stage: max((taken for at, taken in memory if start <= at <= stop), default=0)
            for stage, (start, stop) in spans.items()
        },
        disk_bytes=measured.disk,
        hot_bytes=measured.hot,
        went_on=went_on,
        estimate=estimate,
    )
    if (stored := stored_bytes(index)) != built.disk:
        print(f"{label}: {shown_bytes(stored)} lie in the folder, {shown_bytes(built.disk)} belong to the index")
    record.write_text(json.dumps(asdict(built), indent=1) + "\n", encoding="utf-8")
    return built


def tier_of(generation: Generation) -> str:
    """Tier and factory, as the search folder records them."""
    settings = json.loads((generation.search / "manifest.json").read_bytes())["settings"]
    return " ".join(str(settings[name]) for name in ("tier", "factory") if name in settings)


def print_builds(builds: list[Built]) -> None:
    """One line a size, and then the stages and parts of each."""
    print(
        "| size | tokens | vectors | s | tokens/s | peak private | on disk | bytes a token | hot bytes a vector |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for built in builds:
        print(
            f"| {built.label} | {built.tokens:,} | {built.rows:,} | {built.total_seconds:,.0f} |"
            f" {built.tokens / built.total_seconds:,.0f} | {shown_bytes(built.peak)} | {shown_bytes(built.disk)} |"
            f" {built.disk / built.tokens:.0f} | {built.hot / built.rows:.1f} |"
        )
    for built in builds:
        note = "; went on with what was there" if built.went_on else ""
        print(f"\n{built.label}: {built.tier}{note}\n")
        print("| stage | s | share | peak private | left on disk | estimated |\n|---|---|---|---|---|---|")
        left = stage_disk(built.disk_bytes)
        estimated = stage_disk((built.estimate or {}).get("disk", {}))
        for stage in STAGES:
            taken = built.seconds[stage]
            sizes_of_stage = map(shown_bytes, (built.peak_bytes[stage], left[stage], estimated[stage]))
            print(f"| {stage} | {taken:,.1f} | {taken / built.total_seconds:.1%} | {' | '.join(sizes_of_stage)} |")
        if (estimate := built.estimate) is not None:
            memory = shown_bytes(estimate["build_bytes"])
            print(f"\nestimated: {estimate['encoding_seconds']:,.0f} s of encoding, {memory} of memory")
        hot = ", ".join(f"{name} {count / built.rows:.2f}" for name, count in built.hot_bytes.items())
        print(f"\nhot bytes a vector: {hot}")


def stage_disk(disk_bytes: Mapping[str, float]) -> dict[str, float]:
    """What each stage left, by the parts of the index."""
    parts = {"blocks": "corpus", "lists": "search"} | {
        name: name for name in ("vectors", "lexicon", "quantiser", "codes")
    }
    return {stage: disk_bytes.get(parts.get(stage, ""), 0) for stage in STAGES}


def print_growth(builds: list[Built]) -> None:
    """Memory against tokens, and what the largest build means for a billion tokens on the same machine."""
    for smaller, larger in pairwise(builds):
        print(
            f"\n{larger.tokens / smaller.tokens:.2f} times the tokens: {larger.peak / smaller.peak - 1:+.1%} private"
            f" memory, {larger.total_seconds / smaller.total_seconds:.2f} times the time,"
            f" {larger.disk / smaller.disk:.2f} times the disk"
        )
    largest = builds[-1]
    times = BILLION / largest.tokens
    print(f"\na billion tokens, {times:.1f} times {largest.label}; training does not grow, all else does:\n")
    print("| stage | one job | 20 jobs | left on disk |\n|---|---|---|---|")
    left = stage_disk(largest.disk_bytes)
    one_job = shared = 0.0
    for stage in STAGES[1:]:
        seconds = largest.seconds[stage] * (1 if stage == "quantiser" else times)
        among = seconds / (20 if stage in ("vectors", "lexicon", "codes") else 1)
        one_job, shared = one_job + seconds, shared + among
        print(f"| {stage} | {seconds / 3600:.2f} h | {among / 3600:.2f} h | {shown_bytes(left[stage] * times)} |")
    print(f"| all | {one_job / 3600:.1f} h | {shared / 3600:.1f} h | {shown_bytes(largest.disk * times)} |")
    print(f"\n{shown_bytes(largest.hot * times)} hot, {largest.rows * times:,.0f} vectors")


def draw(builds: list[Built], file: Path) -> None:
    """Time and bytes against tokens."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tokens = [built.tokens / 1e6 for built in builds]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    for stage in STAGES[1:]:
        left.plot(tokens, [built.seconds[stage] / 60 for built in builds], marker=".", label=stage)
    for part in builds[-1].disk_bytes:
        middle.plot(tokens, [built.disk_bytes.get(part, 0) / 2**30 for built in builds], marker=".", label=part)
    right.plot(tokens, [built.peak / 2**30 for built in builds], marker=".", label="peak private memory")
    right.plot(tokens, [built.hot / 2**30 for built in builds], marker=".", label="hot for search")
    for axis, label in ((left, "minutes"), (middle, "GiB on disk"), (right, "GiB")):
        axis.set_xlabel("million tokens")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def sizes(given: dict[str, str]) -> dict[str, list[str]]:
    """By label, what says how much of the corpus is built."""
    files = sorted(file for pattern in given["corpus"].split(",") for file in glob.glob(pattern))  # noqa: PTH207
    chosen: dict[str, list[str]] = {}
    for count in filter(None, given.get("documents", "").split(",")):
        chosen[f"documents-{count}"] = [f"corpus.files=[{','.join(files)}]", f"corpus.max_documents={count}"]
    for count in filter(None, given.get("file_counts", "").split(",")):
        chosen[f"files-{count}"] = [f"corpus.files=[{','.join(files[: int(count)])}]"]
    return chosen or {"all": [f"corpus.files=[{','.join(files)}]"]}


def main(argv: list[str]) -> None:
    """Build every size, smallest first, and report."""
    given = dict(argument.split("=", 1) for argument in argv)
    settings = [f"{name}={value}" for name, value in given.items() if name not in OWN]
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"{os.cpu_count()} cores, OMP_NUM_THREADS {threads}; settings {' '.join(settings) or 'as they are'}\n")
    with TemporaryDirectory() as temporary:
        folder = Path(given.get("out") or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        builds = [
            measure(label, [*files, *settings], folder, estimates=given.get("estimate", "true") == "true")
            for label, files in sizes(given).items()
        ]
        builds.sort(key=lambda built: built.tokens)
        print_builds(builds)
        print_growth(builds)
    if "json" in given:
        records = json.dumps([asdict(built) for built in builds], indent=1)
        Path(given["json"]).write_text(records + "\n", encoding="utf-8")
    if "plot" in given:
        draw(builds, Path(given["plot"]))


if __name__ == "__main__":
    main(sys.argv[1:])
