"""What `make test` leaves to `make test-all`: every slow test says of which kind it is, and CI runs everything."""

from __future__ import annotations

import re

from tests.helpers.command_line import REPOSITORY

KINDS = {"browser", "fuzzing", "kills", "models", "notebooks", "package", "ray", "site"}
"""Of slow tests."""


def test_every_slow_test_names_a_kind() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    named = [re.findall(r"mark\.slow\b(?:\(\"(\w+)\"\))?", text) for text in texts]
    assert {kind for kinds in named for kind in kinds} == KINDS


def test_ci_runs_everything() -> None:
    targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^make check$", (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (check,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", targets, flags=re.MULTILINE)
    assert "$(MAKE) test-all" in check
    assert re.search(r"^test: .*\n\t.* -m \"not slow\"$", targets, flags=re.MULTILINE)
    assert re.search(r"^test-all: .*\n\t\$\(PYTEST\) \$\(SPREAD\)$", targets, flags=re.MULTILINE)
