"""`npmlm add`, `delete`, `compact`, `partition`, `estimate`, job arrays and filters as a user meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_zero_shot import ROWS, TASK
from tests.helpers.command_line import QUESTION, CommandLine, all_bytes, write_corpus

GREENLAND = {"id": "a, b", "title": "Greenland", "text": "Nuuk is the capital of Greenland and lies on a fjord."}


@pytest.fixture
def index(built_index: Path, tmp_path: Path) -> Path:
    shutil.copytree(built_index, tmp_path / "index")
    return tmp_path / "index"


def documents_in(npmlm: CommandLine, index: Path, *settings: str) -> set[str]:
    """The documents of everything that a dense question finds."""
    outcome = npmlm("fill", f"index={index}", "output=json", "k=1000", "retrieval=dense", *settings, QUESTION).done()
    return {each["document"] for phrase in outcome.answers()[0]["phrases"] for each in phrase["occurrences"]}


def test_documents_come_and_go_and_the_rest_answers_as_before(npmlm: CommandLine, index: Path, tmp_path: Path) -> None:
    more = write_corpus(tmp_path / "more.jsonl", [GREENLAND])
    outcome = npmlm("add", f"index={index}", f"corpus.files={more}")
    assert (outcome.status, outcome.out) == (0, "")
    assert "generation 1" in outcome.err and "1 document added, 0 deleted, 7 answer" in outcome.err
    assert "a, b" in documents_in(npmlm, index)
    again = npmlm("add", f"index={index}", f"corpus.files={more}").done()
    assert "nothing to do" in again.err
    same = write_corpus(tmp_path / "same.jsonl", [{**GREENLAND, "text": "Nuuk lies in Greenland."}])
    npmlm("add", f"index={index}", f"corpus.files={same}").refused("a, b", "replace=true")
    replaced = npmlm("add", f"index={index}", f"corpus.files={same}", "replace=true")
    assert "1 document added, 1 deleted, 7 answer" in replaced.err
    assert npmlm("delete", f"index={index}", "ids=['a, b',france]").status == 0
    assert documents_in(npmlm, index).isdisjoint({"a, b", "france"})
    npmlm("compact", f"index={index}").done()
    assert documents_in(npmlm, index) == {"iceland", "bank", "poland", "norway", "book"}
    assert len(list(index.glob("corpus-*"))) == 1
    assert npmlm("verify", f"index={index}").status == 0
    assert "nothing to do" in npmlm("compact", f"index={index}").err


def test_filters_are_given_as_lists(npmlm: CommandLine, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    records = [{**GREENLAND, "id": f"d{year}", "year": year, "lang": "en, us"} for year in (1980, 1990, 2000)]
    corpus = write_corpus(tmp_path / "years.jsonl", records)
    index = tmp_path / "years"
    settings = [f"corpus.files={corpus}", f"encoder={tiny_encoder_folder}", "copy_encoder=true"]
    kept = "corpus.kept_fields=[year,lang]"
    assert npmlm("build", *settings, f"index={index}", kept, "blocks.max_block_tokens=64").status == 0
    assert documents_in(npmlm, index) == {"d1980", "d1990", "d2000"}
    assert documents_in(npmlm, index, "where=year>=1990") == {"d1990", "d2000"}
    assert documents_in(npmlm, index, "where=['lang=en, us', year in [1980, 2000]]") == {"d1980", "d2000"}
    assert documents_in(npmlm, index, "documents=d1980") == {"d1980"}
    npmlm("fill", f"index={index}", "where=color=red", QUESTION).refused("color", "year", "corpus.kept_fields")
    npmlm("fill", f"index={index}", "where=year=1", QUESTION).refused("no document is left")
    npmlm("fill", f"index={index}", "documents=[d1,d2]", QUESTION).refused("'d1', 'd2'")


def test_an_estimate(npmlm: CommandLine, tiny_encoder_folder: Path, corpus: Path, tmp_path: Path) -> None:
    given = [f"corpus.files={corpus}", f"encoder={tiny_encoder_folder}", "blocks.max_block_tokens=64"]
    before = all_bytes(tmp_path)
    table = npmlm("estimate", *given).done()
    assert all(part in table.out for part in ("corpus", "vectors", "lexicon", "takes about", "6 documents"))
    record = json.loads(npmlm("estimate", *given, "output=json").out)
    assert record["documents"] == 6
    assert all_bytes(tmp_path) == before
    npmlm("estimate").refused("corpus")


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


@pytest.mark.parametrize("scoring", ["default", "reference"])
def test_partitions_predict_like_a_whole(scoring: str, npmlm: CommandLine, settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "places.yaml").write_text(TASK, encoding="utf-8")
    predictions = []
    for partitions in (1, 2):
        index, out = tmp_path / f"index{partitions}", tmp_path / f"out{partitions}"
        assert npmlm("build", *settings, f"index={index}", f"partitions={partitions}").status == 0
        command = [f"task={tmp_path / 'places.yaml'}", f"index={index}", f"out={out}", "resamples=10"]
        reference = ["scoring=reference", "zero_shot.closed.single_tokens=false", "zero_shot.closed.k=30"]
        npmlm("evaluate", *command, "method=npm", *(reference if scoring == "reference" else [])).done()
        lines = (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        predictions.append([json.loads(line) for line in lines])
    assert len(predictions[0]) == 3
    assert predictions[1] == near(predictions[0])
