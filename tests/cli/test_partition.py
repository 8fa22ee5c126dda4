"""`npmlm partition` and what other verbs say of a partitioned index, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import QUESTION, CommandLine, all_bytes, write_corpus

TASK = """\
suite: closed
data: {file: places.csv, columns: {text: sentence, label: kind}}
template: "{{ text }} It is near <mask>."
labels:
  - {value: north, words: [Oslo, Reykjavík]}
  - {value: south, words: [Paris]}
"""
ROWS = "sentence,kind\nThe fjord is cold.,north\nThe Seine is warm.,south\nSnow falls here.,north\n"


@pytest.fixture
def settings(tiny_encoder_folder: Path, tmp_path: Path) -> list[str]:
    """Of a build with several vector shards."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    shards = ["blocks.max_block_tokens=64", "vectors.tokens_per_shard=25", "vectors.pruning=all"]
    return [f"corpus.files={corpus}", f"encoder={tiny_encoder_folder}", "copy_encoder=true", *shards]


def near(found: Any) -> Any:
    """JSON in which numbers compare within 1e-6."""
    if isinstance(found, float):
        return pytest.approx(found, abs=1e-6)
    if isinstance(found, dict):
        return {name: near(value) for name, value in found.items()}
    return [near(value) for value in found] if isinstance(found, list) else found


def test_an_index_is_cut_shown_and_put_together_again(npmlm: CommandLine, settings: list[str], tmp_path: Path) -> None:
    index, whole = tmp_path / "index", tmp_path / "whole"
    built = npmlm("build", *settings, f"index={index}", "partitions=3")
    assert (built.status, built.out) == (0, ""), built.err
    assert "is generation 1 now, in 3 partitions" in built.err
    assert "3 partitions already: nothing to do" in npmlm("build", *settings, f"index={index}", "partitions=3").err
    assert npmlm("build", *settings, f"index={whole}").status == 0
    assert npmlm("verify", f"index={index}").status == 0
    shown = json.loads(npmlm("inspect", f"index={index}", "output=json").out)
    assert len(shown["partitions"]) == 3
    sizes = ", ".join(f"{stop - first}" for first, stop in shown["partitions"])
    assert sizes in npmlm("inspect", f"index={index}").out
    for retrieval in ("dense", "hybrid", "bm25"):
        fill = ["output=json", "k=20", f"retrieval={retrieval}", QUESTION]
        ours, theirs = (npmlm("fill", f"index={folder}", *fill).answers() for folder in (index, whole))
        assert theirs[0]["phrases"]
        assert ours == near(theirs)
    again = npmlm("partition", f"index={index}", "partitions=1")
    assert (again.status, again.out) == (0, "")
    assert "is generation 2 now, in 1 partition\n" in again.err
    assert "1 partition already: nothing to do" in npmlm("partition", f"index={index}").err


def test_what_cannot_be_cut_is_refused(npmlm: CommandLine, settings: list[str], tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert npmlm("build", *settings, f"index={index}").status == 0
    before = all_bytes(index)
    npmlm("partition", f"index={index}", "partitions=99").refused("partitions", "99")
    npmlm("partition", f"index={index}", "partitions=0").refused("partitions")
    npmlm("partition", f"index={tmp_path / 'nowhere'}", "partitions=2").refused("nowhere")
    npmlm("build", *settings, f"index={index}", "stage=merge", "partitions=2").refused("npmlm partition")
    assert all_bytes(index) == before


@pytest.mark.parametrize("scoring", ["default", "reference"])
def test_a_closed_task_has_the_predictions_of_one_index(
    scoring: str, npmlm: CommandLine, settings: list[str], tmp_path: Path
) -> None:
    (tmp_path / "places.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "places.yaml").write_text(TASK, encoding="utf-8")
    predictions = []
    for partitions in (1, 2):
        index, out = tmp_path / f"index{partitions}", tmp_path / f"out{partitions}"
        assert npmlm("build", *settings, f"index={index}", f"partitions={partitions}").status == 0
        command = [f"task={tmp_path / 'places.yaml'}", f"index={index}", f"out={out}", "resamples=10"]
        reference = ["scoring=reference", "zero_shot.closed.single_tokens=false", "zero_shot.closed.k=30"]
        outcome = npmlm("evaluate", *command, "method=npm", *(reference if scoring == "reference" else []))
        assert outcome.status == 0, outcome.err
        lines = (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        predictions.append([json.loads(line) for line in lines])
    assert len(predictions[0]) == 3
    assert predictions[1] == near(predictions[0])
