"""The notebooks of docs/notebooks run from top to bottom, as `python` and as a notebook would run them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npm.cli.main import main
from scripts.docs_pages import CELL_MARK
from tests.helpers.command_line import REPOSITORY
from tests.helpers.shell_blocks import make_workplace

FOLDER = REPOSITORY / "docs" / "notebooks"
PRINTED = {
    "first_answers": ("Leonardo da Vinci 0.", "«Leonardo da Vinci»", "Nile", "Gustave Eiffel", "'1928'", "Oslo"),
    "own_corpus_with_filters": (
        "6 documents,",
        "no document is left",
        "is not a condition",
        "True",
        "6 documents are left",
    ),
    "comparing_retrieval": ("hybrid  hit@1", "dense   hit@1", "hybrid  mean score"),
    "evaluation_plots": ("demo: ECE ", "demo npm: answers that occur ", "plane.svg, reliability.svg"),
    "model_statistics": ("encoder-mini attention.self.query", "encoder-mini: own centroid 100.0%", "30,517 tokens"),
    "word_sense": ("encoder-mini, inner product: AUC 79.", "encoder-mini, cosine: AUC 81.", "sense 2"),
}
"""What a notebook prints, in this order."""


def test_every_notebook_is_run_and_listed() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {*PRINTED, "training_in_five_minutes"}
    listed = (REPOSITORY / "docs/python.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(notebooks/(\w+)\.py\)", listed)) == names


@pytest.mark.parametrize("name", [*PRINTED, "training_in_five_minutes"])
def test_a_notebook_has_cells_that_are_whole_and_no_output(name: str) -> None:
    head, *cells = CELL_MARK.split((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert head == "" and cells[0] == " [markdown]" and cells[1].startswith("\n# # ")
    for kind, body in zip(cells[::2], cells[1::2], strict=True):
        assert kind in ("", " [markdown]")
        assert bool(ast.parse(body).body) == (kind == ""), body


@pytest.mark.slow("notebooks")
@pytest.mark.parametrize("name", PRINTED)
def test_a_notebook_runs_and_prints_what_it_says(
    name: str, demo_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPMLM_NOTEBOOK_QUESTIONS", "16")
    printed = output_of(name, make_workplace(tmp_path / "clone", demo_index), monkeypatch)
    assert re.search(".*".join(map(re.escape, PRINTED[name])), printed, flags=re.DOTALL), printed


def output_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a notebook prints that runs in a folder."""
    monkeypatch.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile((FOLDER / f"{name}.py").read_text(encoding="utf-8"), name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.mark.slow("notebooks")
def test_training_in_five_minutes_runs_when_it_is_given_seconds(
    demo_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_workplace(tmp_path / "clone", demo_index)
    for page in (folder / "docs").glob("*.md"):
        opening = page.read_text(encoding="utf-8")[:4000]
        page.unlink()  # a link: the openings of few pages are indexed sooner
        if page.name in ("large-corpora.md", "python.md", "serving.md", "extend.md"):
            page.write_text(opening, encoding="utf-8")

    def run_here(command: list[str], *, check: bool) -> None:
        """A command in this process, which has loaded torch."""
        assert command[:3] == [sys.executable, "-m", "npm"] and check
        assert main(command[3:]) == 0

    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setenv("NPMLM_NOTEBOOK_MINUTES", "0.05")
    monkeypatch.setenv("NPMLM_NOTEBOOK_RUN", "runs/short")
    printed = output_of("training_in_five_minutes", folder, monkeypatch)
    assert "'held_out_loss'" in printed and "Up to a million vectors are searched <mask>." in printed
    assert (folder / "runs/short/encoder/model.safetensors").is_file()
