"""The first answer of a cold `npmlm fill`, as a whole process: without `transformers`, and with it.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_cold_fill [repeats=7] [index=DIR | files=FOLDER]

Without `index` the demo index is built into a temporary folder; `files` is read into a cache by the first process, and
the others find it there. Processes of the kinds take turns, files in the page
cache: without `transformers`; with its tokenizer and model; and one that imports torch and nothing else. Prints
medians of seconds by the clock and of processor time, and the median of the ratios of a turn in processor time, which
other work on the machine disturbs less.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for this process and those that it starts

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings

DEMO_CORPUS = Path(__file__).parents[1] / "npm" / "assets" / "demo"
TEXT = "The Mona Lisa was painted by <mask>."
RUN = "from npm.cli.main import main; raise SystemExit(main())"
LEFT = "import npm.models.loading as loading; loading.is_plain_bert = lambda config: False; "
USUAL = "without transformers"
KINDS = {
    USUAL: RUN,
    "tokenizer and model of transformers": LEFT + RUN,
    "import torch": "import torch",
}
Seconds = tuple[float, float]
"""By the clock, and of processor time."""


def process_seconds(code: str, corpus: str) -> Seconds:
    """Seconds of one process that is asked with the setting `corpus`."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", code, "fill", corpus, TEXT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(given.get("index", f"{scratch}/index"))
        os.environ["XDG_CACHE_HOME"] = scratch
        corpus = f"files={given['files']}" if "files" in given else f"index={index}"
        if "files" not in given and not index.exists():
            files = [str(file) for file in sorted(DEMO_CORPUS.glob("*.jsonl"))]
            build_index(index, IndexBuildSettings(corpus=CorpusSettings(files=files)))
        first = process_seconds(KINDS[USUAL], corpus)
        for code in KINDS.values():  # into the page cache
            process_seconds(code, corpus)
        turns = [
            {kind: process_seconds(code, corpus) for kind, code in KINDS.items()}
            for _ in range(int(given.get("repeats", "7")))
        ]
    print(f"the first of all: {first[0]:.2f} s by the clock, {first[1]:.2f} s of the processor")
    print(f"| process | s by the clock | s of the processor | × {USUAL} |\n|---|---:|---:|---:|")
    for kind in KINDS:
        clock, processor = (statistics.median(turn[kind][which] for turn in turns) for which in (0, 1))
        ratio = statistics.median(turn[kind][1] / turn[USUAL][1] for turn in turns)
        print(f"| {kind} | {clock:.2f} | {processor:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
