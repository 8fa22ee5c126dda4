"""Claim: a build that is killed again and again ends in the same bytes, and repeats at most one shard or 30 s a kill.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_kills [kills=20] [seed=0] [out=DIR] [json=FILE] [SETTING=VALUE …]

Builds a small corpus undisturbed; then again in another folder with `kill -9`, the same command each time, until it
has been killed so often, and once more to its end. Each moment is drawn at random from a stage's share of the time that
the stage took undisturbed; kills go through the stages in order. A build that ends before its moment is compared, and
the next one begins in a fresh folder. Blocks are counted in the encoder; the seconds repeated are at most those since
the last shard or checkpoint was finished, or since the work began. Settings, such as corpus.files, go to `npmlm build`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from npm.core.files import sha256_of_file

STAGES = ("encode", "quantise", "code", "merge")
STAGE_SHARES = (0.4, 0.25, 0.2, 0.15)
"""How many of the kills are meant for each stage."""
WANTED_INSIDE, MOST_REPEATED_SECONDS = 15, 30.0
POLL_SECONDS = 0.005
DEFAULTS = {
    "vectors.tokens_per_shard": "2048",
    "vectors.tokens_per_batch": "512",
    "search.tier": "ivf_rabitq",
    "search.list_count": "64",
    "search.train_iterations": "40",
}
"""Many shards of several batches, and every stage there is."""
OWN = ("kills", "seed", "out", "json")
GOOD_MANNERS = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what it cost."""

    number: int
    aimed_at: str
    stage: str  # that the build was in; "starting" before it held its lock
    seconds_into_work: float
    finished_parts: int  # shards and other folders that were finished on the disk
    repeated_seconds: float  # at most
    encoded_blocks: int  # encoded in this run
    repeated_blocks: int  # of these, encoded in an earlier run already


class Attempt:
    """One run of the command, watched from outside."""

    def __init__(self, arguments: list[str], index: Path, log: Path) -> None:
        self.index, self.log = index, log
        command = [sys.executable, "-m", "benchmarks.bench_kills", "child", str(log), *arguments, f"index={index}"]
        self.process = subprocess.Popen(
            command, env={**os.environ, **GOOD_MANNERS}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.work_began: float | None = None
        self.stage_began: dict[str, float] = {}
        self.parts: frozenset[tuple[str, int]] = frozenset()
        self.last_change = time.monotonic()

    def poll(self) -> str:
        """Look at lock and files; returns the stage that runs, `starting` or `ended`."""
        if self.process.poll() is not None:
            return "ended"
        now = time.monotonic()
        if self.work_began is None:
            if not (self.index.parent / f".{self.index.name}.lock").exists():
                return "starting"
            self.work_began = self.last_change = now
        if (parts := finished_parts(self.index)) != self.parts:
            self.parts, self.last_change = parts, now
        stage = running_stage(self.index)
        self.stage_began.setdefault(stage, now)
        return stage

    def end(self) -> None:
        """Wait for the end; raises SystemExit with what it said if the build failed."""
        _, said = self.process.communicate()
        if self.process.returncode != 0:
            raise SystemExit(f"the build failed with status {self.process.returncode}:\n{said.decode()}")

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        (self.index.parent / f".{self.index.name}.lock").unlink(
            missing_ok=True
        )  # so that the next one shows when it began

    def blocks(self) -> list[int]:
        """The blocks that this run encoded, in order."""
        return [int(number) for number in self.log.read_text().split()] if self.log.exists() else []


def finished_parts(index: Path) -> frozenset[tuple[str, int]]:
    """Every folder that is finished, checkpoints of k-means among them, with the time of its manifest."""
    found = set()
    for folder, _, files in os.walk(index):  # passes over folders that vanish meanwhile
        if "manifest.json" in files and not folder.endswith(".tmp"):
            try:
                found.add((folder, (Path(folder) / "manifest.json").stat().st_mtime_ns))
            except FileNotFoundError:
                continue
    return frozenset(found)


def running_stage(index: Path) -> str:
    """The stage that a build must be in, by what is finished."""
    segment = index / "segments" / "00000"
    if not (segment / "vectors" / "manifest.json").exists():
        return "encode"
    if not (index / "quantiser" / "manifest.json").exists():
        return "quantise"
    coded = len(list((segment / "codes").glob("[0-9]*/manifest.json")))
    return "code" if coded < len(list((segment / "vectors").glob("[0-9]*/manifest.json"))) else "merge"


def child(log: Path, arguments: list[str]) -> int:
    """`npmlm build`, which also writes every block that it encodes to `log`."""
    from npm.cli.main import main as npmlm
    from npm.indexing.embed import ShardBlocks
    from npm.models.batches import EncodedBatch

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    begin, encoded = ShardBlocks.__init__, ShardBlocks.encoded
    first_blocks: dict[int, int] = {}

    def noted_begin(self: ShardBlocks, store: object, encoder: object, settings: dict[str, int]) -> None:
        begin(self, store, encoder, settings)  # type: ignore[arg-type]
        first_blocks[id(self)] = settings["first_block"]

    def noted(self: ShardBlocks, batch: np.ndarray) -> EncodedBatch:
        vectors = encoded(self, batch)
        os.write(descriptor, "".join(f"{first_blocks[id(self)] + block}\n" for block in batch.tolist()).encode())
        return vectors

    ShardBlocks.__init__, ShardBlocks.encoded = noted_begin, noted  # type: ignore[method-assign,assignment]
    return npmlm(["build", *arguments])


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below the folder, and of what stands beside it in its name."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files |= {path.name: path for path in folder.parent.glob(f".{folder.name}*") if path.is_file()}
    return {name: sha256_of_file(path) for name, path in files.items()}


def undisturbed(arguments: list[str], index: Path, log: Path) -> tuple[dict[str, float], int]:
    """Seconds of each stage, and the number of blocks."""
    attempt = Attempt(arguments, index, log)
    while attempt.poll() != "ended":
        time.sleep(POLL_SECONDS)
    attempt.end()
    ended = time.monotonic()
    times = [*(attempt.stage_began.get(stage, ended) for stage in STAGES), ended]
    seconds = {stage: after - at for stage, (at, after) in zip(STAGES, pairwise(times), strict=True)}
    return seconds, len(attempt.blocks())


def killed_at(attempt: Attempt, stage: str, delay: float) -> str | None:
    """Kill the build `delay` seconds into the stage, or in a later one; the stage it was in, None if it had ended."""
    while True:
        running = attempt.poll()
        if running == "ended":
            attempt.end()
            return None
        reached = running in STAGES and STAGES.index(running) >= STAGES.index(stage)
        if reached and time.monotonic() - attempt.stage_began[running] >= (delay if running == stage else 0):
            attempt.kill()
            return running
        time.sleep(POLL_SECONDS)


def aims(kills: int, seconds: dict[str, float], rng: np.random.Generator) -> list[tuple[str, float]]:
    """Stage and delay of every kill, stage after stage."""
    counts = np.floor(np.array(STAGE_SHARES) * kills).astype(int)  # i64 [stages]
    counts[0] += kills - counts.sum()
    return [
        (stage, float(rng.uniform(0, seconds[stage] / count)))  # what one run did is not done again by the next
        for stage, count in zip(STAGES, counts.tolist(), strict=True)
        for _ in range(count)
    ]


def differences(index: Path, wanted: dict[str, str]) -> list[str]:
    """The files that are not those wanted, or not there, or too many."""
    got = contents(index)
    return sorted(name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name))


def cost(attempt: Attempt, *, number: int, aimed_at: str, stage: str, seen: set[int]) -> Kill:
    """What a killed run had done, and what of it is to be done again; `seen` are the blocks encoded before it."""
    now = time.monotonic()
    blocks = attempt.blocks()
    return Kill(
        number=number,
        aimed_at=aimed_at,
        stage=stage,
        seconds_into_work=now - (attempt.work_began or now),
        finished_parts=len(attempt.parts),
        repeated_seconds=now - attempt.last_change,
        encoded_blocks=len(blocks),
        repeated_blocks=len(seen.intersection(blocks)),
    )


def run(given: dict[str, str], folder: Path) -> dict[str, object]:
    """Both builds and all kills; returns what the table is made of."""
    settings = {**DEFAULTS, **{name: value for name, value in given.items() if name not in OWN}}
    settings.setdefault("corpus.files", "npm/assets/demo/*.jsonl")
    arguments = [f"{name}={value}" for name, value in settings.items()]
    rng = np.random.default_rng(int(given.get("seed", "0")))
    seconds, block_count = undisturbed(arguments, folder / "undisturbed" / "index", folder / "undisturbed.log")
    wanted = contents(folder / "undisturbed" / "index")
    undisturbed_seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items())
    print(f"undisturbed: {undisturbed_seconds}", file=sys.stderr)
    kills: list[Kill] = []
    seen: set[int] = set()
    differing: list[str] = []
    builds, runs = 1, 0
    for stage, delay in aims(int(given.get("kills", "20")), seconds, rng):
        while True:
            runs += 1
            attempt = Attempt(arguments, folder / f"killed-{builds}" / "index", folder / f"run-{runs}.log")
            killed_in = killed_at(attempt, stage, delay)
            if killed_in is not None:
                break
            differing += differences(attempt.index, wanted)
            builds, seen = builds + 1, set()
        kills.append(cost(attempt, number=len(kills) + 1, aimed_at=stage, stage=killed_in, seen=seen))
        seen.update(attempt.blocks())
        print(f"kill {len(kills)}: {killed_in}", file=sys.stderr)
    last = Attempt(arguments, folder / f"killed-{builds}" / "index", folder / "last.log")
    last.end()
    differing += differences(last.index, wanted)
    return {
        "settings": settings,
        "undisturbed_seconds": seconds,
        "blocks": block_count,
        "kills": [asdict(kill) for kill in kills],
        "last_run_repeated_blocks": len(seen.intersection(last.blocks())),
        "builds": builds,
        "differing_files": differing,
        "files": len(wanted),
    }


def main(argv: list[str]) -> int:
    """Run and report; 1 if the bytes differ, a kill cost too much, or too few met a running stage."""
    given = dict(argument.split("=", 1) for argument in argv)
    with TemporaryDirectory() as temporary:
        folder = Path(given.get("out") or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        assert not any(folder.iterdir()), f"{folder} is not empty: give a new folder"
        found = run(given, folder)
    kills = found["kills"]
    assert isinstance(kills, list)
    print(
        "| kill | stage | s into its work | finished parts | s repeated at most | blocks encoded | encoded again |\n"
        "|---|---|---|---|---|---|---|"
    )
    for kill in kills:
        print(
            f"| {kill['number']} | {kill['stage']} | {kill['seconds_into_work']:.2f} | {kill['finished_parts']} |"
            f" {kill['repeated_seconds']:.2f} | {kill['encoded_blocks']} | {kill['repeated_blocks']} |"
        )
    inside = sum(kill["stage"] in STAGES for kill in kills)
    most = max((kill["repeated_seconds"] for kill in kills), default=0.0)
    again = max([kill["repeated_blocks"] for kill in kills] + [found["last_run_repeated_blocks"]])
    print(
        f"\n{len(kills)} kills, {inside} inside a running stage; {found['builds']} builds of {found['blocks']} blocks"
    )
    print(f"at most {again} blocks were encoded again after a kill, at most {most:.2f} s of work repeated")
    print(f"files that differ from the undisturbed build: {found['differing_files'] or 'none'} of {found['files']}")
    if "json" in given:
        Path(given["json"]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    too_few = inside < min(WANTED_INSIDE, len(kills))
    return int(bool(found["differing_files"]) or most > MOST_REPEATED_SECONDS or too_few)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
