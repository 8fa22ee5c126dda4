"""What `make release` refuses before it builds, and that the files of a release agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.command_line import REPOSITORY, Outcome, run_subprocess

FILES = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff", "docs/openapi.json")
VERSION, DAY = "7.8.9", "2031-02-03"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of the files that name the version, all committed, with the version and the day of a release."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        text = re.sub(
            r'^(version = |version: | +"version": )("?)[\d.]+', rf"\1\g<2>{VERSION}", text, flags=re.MULTILINE
        )
        text = re.sub(r"^## [\d.]+ \(.*\)$", f"## {VERSION} ({DAY})", text, count=1, flags=re.MULTILINE)
        text = re.sub(r"^date-released:.*\n", "", text, flags=re.MULTILINE)
        more = f"date-released: {DAY}\n" if name == "CITATION.cff" else ""
        (tmp_path / name).write_text(text + more, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    return committed(tmp_path)


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def committed(folder: Path) -> Path:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


def released(folder: Path, version: str) -> Outcome:
    """Run the script, with nothing to build with: it stops there at the latest."""
    return run_subprocess(sys.executable, REPOSITORY / "scripts" / "release.py", version, cwd=folder)


def test_another_version_is_refused_with_every_place_that_has_it(checkout: Path) -> None:
    outcome = released(checkout, "7.9.0")
    assert outcome.status == 2
    said = outcome.err.splitlines()
    assert said[0] == "no release 7.9.0:"
    assert [line.partition(":")[0].strip() for line in said[1:]] == [
        "pyproject.toml",
        "CHANGELOG.md, newest section",
        "CITATION.cff, version",
        "docs/openapi.json",
    ]
    assert all(line.endswith(f": expected 7.9.0, got {VERSION}") for line in said[1:])


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "docs/openapi.json",
            f'\n  "version": "{VERSION}"',
            '\n  "version": "7.8.8"',
            f"docs/openapi.json: expected {VERSION}, got 7.8.8, {VERSION}",
        ),
        ("CHANGELOG.md", f"({DAY})", "(unreleased)", f"CITATION.cff, date-released: expected a day, got {DAY}"),
        ("CITATION.cff", DAY, "2031-02-04", f"CITATION.cff, date-released: expected {DAY}, got 2031-02-04"),
        ("CITATION.cff", f"date-released: {DAY}\n", "", f"CITATION.cff, date-released: expected {DAY}, got none"),
    ],
)
def test_a_version_or_a_day_that_the_files_do_not_share_is_refused(
    checkout: Path, name: str, old: str, new: str, said: str
) -> None:
    text = (checkout / name).read_text(encoding="utf-8")
    (checkout / name).write_text(text.replace(old, new), encoding="utf-8")
    outcome = released(committed(checkout), VERSION)
    assert (outcome.status, outcome.err) == (2, f"no release {VERSION}:\n  {said}\n")


def test_what_is_not_committed_is_refused_and_what_agrees_is_not(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("mine", encoding="utf-8")
    outcome = released(checkout, VERSION)
    assert (outcome.status, outcome.err) == (2, f"no release {VERSION}:\n  not committed: ?? notes.txt\n")
    outcome = released(committed(checkout), VERSION)
    assert outcome.status == 1 and "no release" not in outcome.err  # it went on, and there is no package to build


def test_the_version_is_the_same_wherever_it_is_named() -> None:
    citation: dict[str, Any] = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert str(citation["version"]) == project["version"]
    assert f"\n## {project['version']} (" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["license"] == project["license"]


def test_the_citation_has_what_the_format_wants_and_names_the_method() -> None:
    citation: dict[str, Any] = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation) and citation["cff-version"] == "1.2.0"
    assert citation["authors"] == [{"name": "The npmlm developers"}]
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper) and paper["identifiers"][0]["value"] == "arXiv:2212.01349"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_every_target_of_the_makefile_has_a_line_of_help() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    said = run_subprocess("make", "--no-print-directory", "help").out
    assert {line.split("\t")[0] for line in said.splitlines()} == {*phony.group(1).split()}
