"""Shell blocks of README.md and of docs do what they say: those that can run here run, the others say why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.command_line import REPOSITORY, CommandLine
from tests.helpers.shell_blocks import bash_blocks, commands_of, make_workplace, pages_of_docs, run_block

PAGES = ["README.md", *(path.relative_to(REPOSITORY).as_posix() for path in pages_of_docs())]
WIKI_BUILD = (
    'npmlm build "corpus.files=[wiki/*.jsonl.zst]" "corpus.kept_fields=[lang,year]" index=wiki-index '
    "vectors.tokens_per_shard=2048"
)
"""The index that pages call wiki-index, small and of several shards."""


@dataclass(frozen=True, slots=True)
class Runs:
    """A block that runs: how it begins, and what each of its commands prints.

    That is how the output begins and, behind dots, what follows further on; "" is an empty output.
    """

    begins: str
    prints: tuple[str, ...]


ACCURACY, COMPARED, ESTIMATED = "Closed tasks: accuracy", "task       method", "what a build needs"
INSPECTED, OUTAGE = "contents", "The outage was caused by <mask>."
RUNS: dict[str, tuple[Runs, ...]] = {
    "README.md": (
        Runs(
            "npmlm fill files=texts/",
            ("What was the outage caused by?…power failure", "", f"{OUTAGE}…power failure", '{"text"', ""),
        ),
        Runs('npmlm build "corpus.files=[docs/example-task', ("", "", ACCURACY)),
        Runs("npmlm train experiment=encoder_mini", ("", "", ESTIMATED)),
    ),
    "docs/index.md": (Runs("npmlm fill", ("The capital of Iceland is <mask>.…Reykjavík",)),),
    "docs/label.md": (
        Runs("npmlm build", ("", "", '{"message": "My parcel…"labels": [{"label": "logistics"')),
        Runs("npmlm label", ("",)),
    ),
    "docs/large-corpora.md": (
        Runs("npmlm partition", ("", INSPECTED, "")),
        Runs("npmlm estimate", (ESTIMATED,)),
    ),
    "docs/own-corpus.md": (
        Runs("cat > incidents.jsonl", ()),
        Runs("mkdir -p handbook", ("", '{"text": "The…Office of Communications…handbook/history.txt')),
        Runs(
            "cat > handbook/rooms.md",
            ("", "The reading…Linden…Rooms, First floor (handbook/rooms.md", "The room…Maple"),
        ),
        Runs("npmlm estimate", (ESTIMATED, "", f"{INSPECTED}…year, team")),
        Runs("npmlm fill", ("The memory leak was found by <mask>.…Priya Raman", '{"text": "Backups…Frankfurt')),
        Runs("cat > questions.txt", ('{"text": "Exports went to <mask>."…Excel…Tomas Lindqvist',)),
        Runs("npmlm fill", (f"{OUTAGE}…expired certificate", f"{OUTAGE}…memory leak", "Exports…Excel")),
        Runs("cat > open-cases.csv", ("incident,customers,answer…full disk…clock", "")),
        Runs("npmlm fill files=handbook/", ("Who opened…Ana Duarte",)),
        Runs("npmlm sync", ("",)),
        Runs("cat > new.jsonl", ("", "", "Backups…Dublin", "", "incidents is intact")),
    ),
    "docs/extend.md": (
        Runs("npmlm build", ("", ACCURACY)),
        Runs("npmlm evaluate", (ACCURACY, ACCURACY, COMPARED, COMPARED)),
    ),
    "docs/evaluation.md": (Runs("npmlm evaluate task=demo index=runs/demo/index split=test", ("Open tasks…hit@5",)),),
    "docs/trace.md": (Runs("npmlm trace", ("file,start_char…1503,found",)),),
    "docs/studies/interventions.md": (
        Runs("npmlm edit", ("", "")),
        Runs("npmlm train encoder=DIR", ("",)),
    ),
}
"""Blocks that run, page by page and in their order."""

SHORTENED: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {
        "train": ("schedule.max_minutes=null", "schedule.max_steps=2", "groups.sequences_per_group=4"),
    },
    "docs/evaluation.md": {"evaluate": ("limit=20",)},
    "docs/studies/interventions.md": {"train": ("schedule.max_epochs=1",)},
}
"""Settings with which a command of a page is short enough to run, by verb."""

NEEDS_NETWORK = "fetches packages"
NEEDS_DATA = "reads public data sets, or text and encoders that take hours to make"
NEEDS_WEIGHTS = "fetches the published weights from the model hub"
NEEDS_STEPS = "trains for hours, from the extra pretrained"
NEEDS_MACHINES = "needs several GPUs, a cluster or its scheduler"
WAITS = "waits for requests: tests/serving and tests/cluster start servers"
DOES_NOT_RUN: dict[str, dict[str, str]] = {
    "README.md": {
        "make demo": "makes an environment and runs this suite",
        "pip install": NEEDS_NETWORK,
        "npmlm serve": WAITS,
    },
    "docs/evaluation.md": {
        "npmlm evaluate": NEEDS_DATA,
        "npmlm geometry": NEEDS_DATA,
        "python scripts/make_article_questions.py": NEEDS_DATA,
    },
    "docs/deploy.md": {
        "sudo": "needs root and systemd: the page says what was run",
        "cd /srv": "needs root",
        "printf": "needs root",
        "curl": WAITS,
        "docker": "needs Docker: tests/test_container.py reads the Dockerfile",
    },
    "docs/index.md": {
        "pip install": NEEDS_NETWORK,
        "pip uninstall": NEEDS_NETWORK,
        "uv tool": NEEDS_NETWORK,
    },
    "docs/large-corpora.md": {
        "pip install": NEEDS_MACHINES,
        "export RAY": NEEDS_MACHINES,
        "for stage": "tests/cluster runs the same jobs",
        "#!/bin/bash": NEEDS_MACHINES,
        "job=": NEEDS_MACHINES,
        "aws s3": "needs an object store: tests/corpus/test_addresses.py reads a corpus from one in memory",
    },
    "docs/own-corpus.md": {
        "npmlm calibrate": NEEDS_DATA,
        "npmlm adapt": "takes minutes and a user's corrections: tests/cli/test_adapt.py runs it",
    },
    "docs/serving.md": {
        "pip install": NEEDS_NETWORK,
        "curl": WAITS,
        "npmlm serve": WAITS,
    },
    "docs/studies/artificial-text.md": {"": NEEDS_DATA},
    "docs/studies/interventions.md": {"npmlm finetune": NEEDS_DATA, "awk": NEEDS_DATA},
    "docs/studies/masking.md": {"": NEEDS_DATA},
    "docs/studies/npm.md": {"": "reads public data sets, or the published weights"},
    "docs/training.md": {
        "python -m scripts.make_questions": NEEDS_DATA,
        "python -m scripts.found_passages": "needs a GPU: tests/test_distil_reader.py runs the parts without one",
        "npmlm edit encoder=encoder-mini": "needs the encoder that the block above trains",
        "npmlm train experiment": NEEDS_STEPS,
        "npmlm train …": "dots stand for the settings of a run",
        "npmlm train encoder=bytes": NEEDS_WEIGHTS,
        "OUT=out": "needs a GPU: tests/test_train_on_gpu.py runs the script without one",
        "scripts/train_on_gpu.sh": "needs a GPU: tests/test_train_on_gpu.py runs the script without one",
        "accelerate launch": NEEDS_MACHINES,
        "torchrun": NEEDS_MACHINES,
    },
}
"""How the other blocks begin, and why they do not run here; "" is all of a page."""


def blocks_of(page: str) -> list[str]:
    """The shell blocks of a page."""
    return bash_blocks((REPOSITORY / page).read_text(encoding="utf-8"))


def runs(page: str) -> dict[str, Runs]:
    """The blocks of a page that run, in their order."""
    left = list(RUNS.get(page, ()))
    found: dict[str, Runs] = {}
    for block in blocks_of(page):
        if left and block.startswith(left[0].begins):
            found[block] = left.pop(0)
    assert not left, f"{page} has no block {left[0].begins!r} there any more"
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_shell_block_runs_here_or_says_why_not(page: str) -> None:
    reasons = DOES_NOT_RUN.get(page, {})
    others = [block for block in blocks_of(page) if block not in runs(page)]
    for block in others:
        assert any(block.startswith(begins) for begins in reasons), f"{page}: {block}"
    for begins in reasons:
        assert any(block.startswith(begins) for block in others), f"{page} has no block {begins!r} any more"


@pytest.mark.parametrize("page", RUNS)
def test_the_blocks_of_a_page_print_what_they_should(
    page: str, demo_index: Path, npmlm: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_workplace(tmp_path / "clone", demo_index))
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo_index.parents[1]))
    if "wiki-index" in "".join(runs(page)):
        run_block(WIKI_BUILD, npmlm, {})
    for block, expected in runs(page).items():
        commands = commands_of(block)
        assert len(commands) == len(expected.prints), block
        outcomes = run_block(block, npmlm, SHORTENED.get(page, {}))
        for command, outcome, words in zip(commands, outcomes, expected.prints, strict=True):
            assert outcome.status == 0, f"{command}: {outcome.err}"
            first, *others = words.split("…")
            assert outcome.out.lstrip().startswith(first), f"{command}: {outcome.out}"
            assert first or not outcome.out, f"{command}: {outcome.out}"
            assert re.search(".*".join(map(re.escape, others)), outcome.out, flags=re.DOTALL), (
                f"{command}: {outcome.out}"
            )
