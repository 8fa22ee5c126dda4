"""Claim: a build that is killed again and again ends in the same bytes.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_kills [kills=20] [seed=0] [SETTING=VALUE …]

Builds a small corpus undisturbed; then again in another folder with `kill -9`, the same command each time, until it
has been killed so often, and once more to its end. Each delay is drawn so that kills spread over the time that the
undisturbed build took; a build that ends before its kill is compared, and the next one begins in a fresh folder. The
table shows the stage that each kill met, and the parts that were finished by then and stayed. Settings, such as
corpus.files, go to `npmlm build`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from npm.core.files import sha256_of_file

DEFAULTS = {  # many shards of several batches, and every stage there is
    "corpus.files": "npm/assets/demo/*.jsonl",
    "vectors.tokens_per_shard": "2048",
    "vectors.tokens_per_batch": "512",
    "search.tier": "ivf_pq",
    "search.list_count": "64",
    "search.train_iterations": "40",
}


def finished_parts(index: Path) -> dict[Path, int]:
    """Manifests of finished folders, checkpoints of k-means among them, and when they were written."""
    found = index.rglob("manifest.json")
    return {path: path.stat().st_mtime_ns for path in found if not path.parent.name.endswith(".tmp")}


def running_stage(index: Path) -> str:
    """The stage that a build must be in, by what is finished."""
    if not list(index.glob("vectors-*/manifest.json")):
        return "encode"
    if not list(index.glob("quantizer-*/manifest.json")):
        return "quantize"
    coded, shards = (len(list(index.glob(f"{part}-*/[0-9]*/manifest.json"))) for part in ("codes", "vectors"))
    return "code" if coded < shards else "merge"


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below the folder, and of what stands beside it in its name."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    files |= {path.name: path for path in folder.parent.glob(f".{folder.name}*") if path.is_file()}
    return {name: sha256_of_file(path) for name, path in files.items()}


def build(settings: list[str], index: Path, kill_after: float | None = None) -> bool:
    """Run `npmlm build`; with `kill_after`, kill it that many seconds after it began. Return True if it ended."""
    command = [sys.executable, "-m", "npm", "build", *settings, f"index={index}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    if process.returncode != 0:
        raise SystemExit(f"the build failed with status {process.returncode}:\n{errors.decode()}")
    return True


def main(arguments: list[str]) -> int:
    """Run and report; 1 if the bytes differ."""
    given = {"kills": "20", "seed": "0", **DEFAULTS, **dict(argument.split("=", 1) for argument in arguments)}
    kills, rng = int(given.pop("kills")), np.random.default_rng(int(given.pop("seed")))
    settings, differing, rewritten = [f"{name}={value}" for name, value in given.items()], list[str](), 0
    with TemporaryDirectory() as folder:
        started = time.monotonic()
        build(settings, Path(folder, "undisturbed", "index"))
        seconds = time.monotonic() - started
        wanted = contents(Path(folder, "undisturbed", "index"))
        print(f"undisturbed: {seconds:.1f} s\n\n| kill | stage | finished parts | made again |\n|---|---|---|---|")
        killed, parts = 0, dict[Path, int]()
        for number in count():
            index = Path(folder, f"killed-{number}", "index")
            while not build(settings, index, rng.uniform(0.1, 0.6) * seconds if killed < kills else None):
                killed, before, parts = killed + 1, parts, finished_parts(index)
                again = sum(parts.get(path) != written for path, written in before.items() if path in parts)
                rewritten += again
                print(f"| {killed} | {running_stage(index)} | {len(parts)} | {again} |", flush=True)
            got, parts = contents(index), {}
            differing += [name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name)]
            if killed == kills:
                break
    print(f"\n{killed} kills in {number + 1} builds; files that differ: {differing or 'none'} of {len(wanted)}")
    print(f"finished parts that were made again: {rewritten}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
