"""Claim: a build takes private memory that does not grow with the corpus, and time and disk in proportion to it.

    OMP_NUM_THREADS=2 python -m benchmarks.bench_build corpus=FILES [documents=N,N,…] [out=DIR] [SETTING=VALUE …]

Runs `npmlm build` over the first N documents, or all, in a child process, and samples the private memory
(RssAnon + RssShmem) of its process tree every 50 ms. When a stage ended is read off the files that it finished, so the
command is the one that users run. Prints time, memory, bytes on disk and hot bytes a stored vector by stage, and the
arithmetic for a billion tokens. Further settings go to `npmlm build`; with `out` the indexes stay.
"""

from __future__ import annotations

import glob
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from npm.core.display import markdown_table
from npm.core.files import shown_bytes
from npm.indexing.generation import Generation
from npm.indexing.inspect import Footprint, footprint
from npm.models.memory import private_bytes

STAGES = {  # the part of the index that each leaves
    "start": "",
    "blocks": "corpus",
    "vectors": "vectors",
    "lexicon": "lexicon",
    "quantizer": "quantizer",
    "codes": "codes",
    "lists": "search",
}
BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Built:
    """One build, as it was measured."""

    seconds: dict[str, float]  # by stage
    peak_bytes: dict[str, int]  # private memory of the process tree, by stage
    sizes: Footprint

    @property
    def total(self) -> tuple[float, int, int]:
        """Seconds, peak of private memory, and bytes on disk."""
        return sum(self.seconds.values()), max(self.peak_bytes.values()), sum(self.sizes.disk.values())


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


def measure(arguments: list[str], index: Path) -> Built:
    """Build one size, and watch it."""
    lock = index.parent / f".{index.name}.lock"
    began = working = time.time()
    memory: list[tuple[float, int]] = []
    command = [sys.executable, "-m", "npm", "build", *arguments, f"index={index}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        memory.append((time.time(), sum(map(private_bytes, process_tree(process.pid)))))
        if working == began and lock.exists():
            working = memory[-1][0]
        time.sleep(0.05)
    if process.returncode != 0:
        raise SystemExit(f"the build ended with status {process.returncode}")
    ends = [began, working]
    for part in ("corpus", "vectors", "lexicon", "quantizer", "codes"):
        ends.append(max([ends[-1], *(path.stat().st_mtime for path in index.glob(f"{part}-*/**/manifest.json"))]))
    spans = dict(zip(STAGES, pairwise([*ends, time.time()]), strict=True))
    peaks = {
        stage: max((taken for at, taken in memory if start <= at <= stop), default=0)
        for stage, (start, stop) in spans.items()
    }
    seconds = {stage: stop - start for stage, (start, stop) in spans.items()}
    return Built(seconds, peaks, footprint(Generation.read(index)))


def print_build(name: str, built: Built) -> None:
    """Time, memory and disk by stage, and what they mean for a billion tokens on the same machine."""
    sizes, (total, peak, disk) = built.sizes, built.total
    times, rows = BILLION / sizes.token_count, []
    for stage, part in STAGES.items():
        taken, left = built.seconds[stage], sizes.disk.get(part, 0)
        of_billion = taken * (1 if stage in ("start", "quantizer") else times) / 3600  # training does not grow
        shares = [f"{taken:,.1f}", f"{taken / total:.1%}", shown_bytes(built.peak_bytes[stage]), shown_bytes(left)]
        rows.append([stage, *shares, f"{of_billion:.2f} h", shown_bytes(left * times)])
    print(f"\n{name}: {sizes.token_count:,} tokens, {sizes.row_count:,} vectors\n")
    print(markdown_table(["stage", "s", "share", "peak private", "on disk", "a billion tokens", "on disk"], rows))
    hot = ", ".join(f"{item} {size / sizes.row_count:.2f}" for item, size in sizes.hot.items())
    print(
        f"\n{total:,.0f} s, {sizes.token_count / total:,.0f} tokens/s, {shown_bytes(peak)} private at the peak, "
        f"{shown_bytes(disk)} on disk, {disk / sizes.token_count:.0f} bytes a token; hot bytes a vector: {hot}"
    )


def main(arguments: list[str]) -> None:
    """Build every size, smallest first, and report."""
    given = dict(argument.split("=", 1) for argument in arguments)
    files = ",".join(file for pattern in given.pop("corpus").split(",") for file in sorted(glob.glob(pattern)))  # noqa: PTH207
    counts = [each for each in given.pop("documents", "").split(",") if each]
    out, builds = given.pop("out", ""), list[Built]()
    settings = [f"corpus.files=[{files}]", *(f"{name}={value}" for name, value in given.items())]
    with TemporaryDirectory() as temporary:
        for number in counts or [""]:
            limit = [f"corpus.max_documents={number}"] if number else []
            name = f"documents-{number}" if number else "all"
            builds.append(measure([*settings, *limit], Path(out or temporary) / name))
            print_build(name, builds[-1])
    for smaller, larger in pairwise(builds):
        tokens = larger.sizes.token_count / smaller.sizes.token_count
        ratios = [after / before for before, after in zip(smaller.total, larger.total, strict=True)]
        print(
            "\n{:.2f} times the tokens: times {:.2f} the time, {:.2f} the private memory, {:.2f} the disk".format(
                tokens, *ratios
            )
        )


if __name__ == "__main__":
    main(sys.argv[1:])
