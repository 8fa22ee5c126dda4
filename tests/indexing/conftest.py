from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def live(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the module's index, to be changed."""
    return Path(shutil.copytree(pristine, tmp_path / "index"))
