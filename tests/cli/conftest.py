from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_train import SHRUNK, write_texts


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


@pytest.fixture
def train(texts: Path, tmp_path: Path, tiny_encoder_folder: Path) -> list[str]:
    return ["train", f"corpus.files={texts}", f"run={tmp_path / 'run'}", f"encoder={tiny_encoder_folder}", *SHRUNK]
