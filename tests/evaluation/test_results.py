"""The folder of results: replaced complete or not at all, and nothing else in it touched."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from npm.core.artifact import check_folder, manifest_bytes, read_manifest
from npm.core.errors import ArtifactError
from npm.evaluation.results import EVALUATION_KIND, write_results
from tests.helpers.command_line import all_bytes


def test_results_replace_those_of_an_earlier_evaluation_and_nothing_else(tmp_path: Path) -> None:
    def write(folder: Path, number: int) -> None:
        write_results(folder, record={}, predictions=[{"number": number}], metrics={"number": number})

    write(tmp_path / "out", 1)
    write(tmp_path / "out", 2)
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes()) == {"number": 2}
    (tmp_path / "notes").mkdir()
    write(tmp_path / "notes", 1)  # an empty folder may be filled
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="not a folder for results"):
        write(tmp_path / "texts", 1)
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["mine.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out", "texts"]


def test_results_that_were_half_replaced_are_known_as_damaged_and_replaced_whole(tmp_path: Path) -> None:
    def write(folder: Path, number: int) -> None:
        write_results(folder, record={}, predictions=[{"number": number}], metrics={"number": number})

    write(tmp_path / "out", 1)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == "metrics.json":
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        write(tmp_path / "out", 2)
    with pytest.raises(ArtifactError, match="is damaged"):
        check_folder(tmp_path / "out", kind=EVALUATION_KIND)
    write(tmp_path / "out", 2)
    write(tmp_path / "fresh", 2)
    (tmp_path / "fresh" / "notes.txt").write_text("mine")
    assert all_bytes(tmp_path / "out") == all_bytes(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["metrics.json", "results.md"])
def test_a_file_of_that_name_that_no_evaluation_wrote_is_never_replaced(tmp_path: Path, name: str) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={})
    if name == "metrics.json":
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).mkdir()
    else:
        (tmp_path / "out" / name).write_text("mine")
        write_results(tmp_path / "out", record={}, predictions=[], metrics={})  # has no results.md
    before = all_bytes(tmp_path)
    with pytest.raises(ArtifactError, match="not a folder for results"):
        write_results(tmp_path / "out", record={}, predictions=[], metrics={}, report="a table")
    assert all_bytes(tmp_path) == before


def test_a_forged_manifest_of_results_names_nothing_that_is_removed(tmp_path: Path) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={}, report="a table")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    held = read_manifest(tmp_path / "out", kind="evaluation")
    files = {name: asdict(record) for name, record in held.files.items()}
    files["mine.txt"] = files["results.md"]
    (tmp_path / "out" / "manifest.json").write_bytes(manifest_bytes("evaluation", {}, files, {}))
    write_results(tmp_path / "out", record={}, predictions=[], metrics={})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "metrics.json",
        "mine.txt",
        "predictions.jsonl",
    ]


def test_results_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={"number": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        write_results(tmp_path / "out", record={}, predictions=[], metrics={"number": float("nan")})
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes()) == {"number": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
