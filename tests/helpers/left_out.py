"""Hooks of pytest that say in the last line how many slow tests of each kind a run with `-m "not slow"` left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

KINDS = ("browser", "fuzzing", "kills", "models", "notebooks", "package", "ray", "site")
"""What `@pytest.mark.slow` may name."""
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if mark := item.get_closest_marker("slow"):
            item.config.stash[LEFT_OUT][mark.args[0]] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its counts over; each worker collects all tests."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Below the summary, which is written before."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    counts = config.stash.get(LEFT_OUT, Counter())
    if counts and reporter is not None and not hasattr(config, "workeroutput"):
        reporter.write_line(last_line(counts))


def last_line(counts: Mapping[str, int]) -> str:
    """Such as `left to make test-all: 12 tests (browser 9, site 3)`."""
    kinds = ", ".join(f"{kind} {counts[kind]}" for kind in sorted(counts))
    return f"left to make test-all: {sum(counts.values())} tests ({kinds})"
