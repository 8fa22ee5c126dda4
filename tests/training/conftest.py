from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.made_once import made_once


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums over several threads would round differently from one machine to the next."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def runs() -> Path:
    """What two processes left behind: they are started once, because starting them costs seconds. Not to be changed."""
    from tests.training.two_processes import run_two_ranks
    from tests.training.two_ranks import work

    return made_once("two-ranks", lambda folder: run_two_ranks(work, folder))
