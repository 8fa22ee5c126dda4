"""`npmlm generate` and what comes behind it: a source is trained on artificial text and measured on all of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.split_lines import main as split_lines
from tests.helpers.command_line import CommandLine
from tests.studies.treebanks import write_treebank

SIZES = ["start.fresh.layers=1", "start.fresh.dimensions=8", "start.fresh.attention_heads=1"]


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    return write_treebank(tmp_path / "toy.conllu")


def test_a_source_is_trained_on_artificial_text_and_measured_on_every_document(
    npmlm: CommandLine, treebank: Path, tmp_path: Path
) -> None:
    art, run = tmp_path / "art", tmp_path / "run"
    generate = ["generate", f"treebank=[{treebank}]", f"out={art}", "sentences=60", "sentences_per_file=40"]
    outcome = npmlm(*generate, "lexicon.types=30")
    assert outcome.status == 0, outcome.err
    shown = json.loads(outcome.out)
    assert shown["grammar"]["expected_length"] == pytest.approx(4) and 0 < shown["ceilings"]["top1"] < 1
    assert "nothing to do" in npmlm(*generate, "lexicon.types=30").err
    train = ["train", "experiment=artificial_source", f"encoder={art}/tokenizer", f"run={run}", *SIZES]
    trained = npmlm(*train, f"corpus.files=[{art}/texts/00000.jsonl]", "schedule.max_steps=2")
    assert trained.status == 0, trained.err
    measure = ["evaluate", "task=masked_tokens", f"encoder={run}/encoder", f"corpus.files=[{art}/texts/00001.jsonl]"]
    every = "held_out.every_document=true"
    found = npmlm(*measure, every, f"out={tmp_path / 'all'}")
    assert found.status == 0 and "all held-out documents" in found.out
    metrics = json.loads((tmp_path / "all" / "metrics.json").read_text())
    assert metrics["article_count"] == 20 and metrics["settings"]["every_document"]
    npmlm(*measure, f"out={tmp_path / 'long'}").refused("too few long articles")
    npmlm(*measure, every, "limit=5", f"out={tmp_path / 'x'}").refused("limit and held_out.every_document")


def test_mistakes_are_one_message_each(npmlm: CommandLine, treebank: Path, tmp_path: Path) -> None:
    out = f"out={tmp_path / 'out'}"
    (tmp_path / "bad.conllu").write_text("1\tdog\tdog\n")
    npmlm("generate", f"treebank=[{tmp_path}/bad.conllu]", out).refused("bad.conllu:1: not CoNLL-U")
    npmlm("generate", f"treebank=[{tmp_path}/none.conllu]", out).refused("none.conllu")
    npmlm("generate", f"treebank=[{treebank}]").refused("out is required")
    npmlm("generate", f"treebank=[{treebank}]", out, "lexicon.kind=zip").refused("lexicon.kind")
    assert not (tmp_path / "out").exists()


def test_texts_are_split_by_what_they_say(tmp_path: Path) -> None:
    lines = [f"linenn {number} a zo amañ" for number in range(300)]
    rows = [json.dumps({"text": line}) for line in [*lines, *[line.upper() for line in lines]]]
    (tmp_path / "lines.jsonl").write_text("\n".join(rows), encoding="utf-8")
    parts = [tmp_path / "target" / name for name in ("train.jsonl", "held_out.jsonl")]
    split_lines(str(tmp_path / "lines.jsonl"), *map(str, parts))
    train, held_out = (
        [json.loads(line)["text"].casefold() for line in part.read_text("utf-8").splitlines()] for part in parts
    )
    assert sorted(train + held_out) == sorted(lines) and 15 < len(held_out) < 50
