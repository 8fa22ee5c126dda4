"""What `make test` leaves to `make test-all`: it is said in the last line, and CI runs everything."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import REPOSITORY, run_subprocess
from tests.helpers.left_out import KINDS

MARKED = """
import pytest

@pytest.mark.slow("site")
@pytest.mark.parametrize("number", [1, 2])
def test_a_site(number): ...

@pytest.mark.slow("browser")
def test_a_page(): ...

def test_every_day(): ...
"""


@pytest.mark.parametrize(
    ("given", "last"),
    [
        (("--numprocesses=0", "-m", "not slow"), "left to make test-all: 3 tests (browser 1, site 2)"),
        (("--numprocesses=1", "-m", "not slow"), "left to make test-all: 3 tests (browser 1, site 2)"),
        (("--numprocesses=0",), "4 passed in "),
    ],
)
def test_the_last_line_of_a_run_counts_what_was_left_out(given: tuple[str, ...], last: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MARKED, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow(kind)\naddopts = -q\n", encoding="utf-8")
    command = (sys.executable, "-m", "pytest", "-p", "tests.helpers.left_out", "-p", "no:cacheprovider", *given)
    done = run_subprocess(*command, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.status == 0, done.out + done.err
    assert done.out.splitlines()[-1].startswith(last), done.out


def test_every_slow_test_names_a_kind() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    named = [re.findall(r"mark\.slow\b(?:\(\"(\w+)\"\))?", text) for text in texts]
    assert {kind for kinds in named for kind in kinds} == set(KINDS)


def test_ci_runs_everything() -> None:
    targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^make check$", (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (check,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", targets, flags=re.MULTILINE)
    assert "$(MAKE) test-all" in check
    assert re.search(r"^test: .*\n\t.* -m \"not slow\"$", targets, flags=re.MULTILINE)
    assert re.search(r"^test-all: .*\n\t\$\(PYTEST\) \$\(SPREAD\)$", targets, flags=re.MULTILINE)
