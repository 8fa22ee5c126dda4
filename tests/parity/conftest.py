"""Recorded outputs of the reference implementation: the small record here, and a larger one where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LARGER = Path(os.environ.get("NPM_PARITY_DIR") or HERE.parents[1].parent / "shared" / "parity")


@pytest.fixture(scope="module", params=[HERE / "record", LARGER], ids=["small", "large"])
def parity_folder(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    if folder == LARGER and not (folder / "losses.json").is_file():
        pytest.skip("no larger parity record: set NPM_PARITY_DIR")
    return folder
