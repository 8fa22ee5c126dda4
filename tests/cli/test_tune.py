from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.command_line import CommandLine, all_bytes


def test_tune_prints_a_table_and_leaves_a_report(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    before = all_bytes(built_index)
    outcome = npmlm(
        "tune", f"index={built_index}", "queries=2", "candidates_per_side=[8,16]", f"out={tmp_path / 'out'}"
    )
    assert outcome.status == 0, outcome.err
    assert "chosen" in outcome.out and "agreement" in outcome.out
    record = json.loads((tmp_path / "out" / "tune.json").read_text(encoding="utf-8"))
    assert record["questions"]["asked"] == 2
    assert {each["candidates_per_side"] for each in record["measured"]} >= {8, 16}
    assert all(each["agreement"] == 1 for each in record["measured"])
    assert all_bytes(built_index) == before


def test_a_place_for_the_report_is_tried_before_the_work_and_not_left_there_empty(
    npmlm: CommandLine, built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    message = npmlm("tune", f"index={built_index}", f"out={tmp_path / 'file' / 'out'}").refused("file/out")
    assert "questions: " not in message
    monkeypatch.setattr("npm.retrieval.drawn_questions.MIN_SENTENCE_CHARS", 10_000)
    npmlm("tune", f"index={built_index}", f"out={tmp_path / 'deep' / 'out'}").refused("no question")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_tune_writes_is_what_inspect_shows(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(built_index, index)
    goals = ("recall_goal=0", "agreement_goal=0")
    assert npmlm("tune", f"index={index}", "queries=2", "candidates_per_side=[8]", "write=true", *goals).status == 0
    outcome = npmlm("inspect", f"index={index}", "output=json")
    assert outcome.status == 0, outcome.err
    shown = outcome.answers()[0]
    assert shown["generation"] == 1
    assert shown["searching"]["candidates_per_side"] in (8, json.loads(outcome.out)["counts"]["rows"])
    assert npmlm("verify", f"index={index}").status == 0
