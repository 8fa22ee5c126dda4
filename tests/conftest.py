from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npm.models.encoder import Encoder
from tests.helpers import precision  # noqa: F401 - settles it
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.left_out import (  # noqa: F401 - hooks
    pytest_configure,
    pytest_deselected,
    pytest_sessionfinish,
    pytest_testnodedown,
    pytest_unconfigure,
)
from tests.helpers.made_once import made_once
from tests.helpers.tiny_models import tiny_encoder


def pytest_collection_finish() -> None:
    """Modules and the tests themselves stay: the collector, which some tests call, need not walk over them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing is written into the home folder, by processes that tests start neither."""
    folder = tmp_path_factory.mktemp("user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def unsynced_disk() -> Iterator[None]:
    """No test cuts the power, and a killed process loses nothing that it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def npmlm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """A tiny encoder. Not to be changed."""
    return tiny_encoder("bert")


@pytest.fixture(scope="session")
def tiny_encoder_folder() -> Path:
    """Not to be changed: copy it first."""
    return made_once("tiny-encoder", lambda folder: tiny_encoder("bert").save(folder / "tiny")) / "tiny"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture(scope="session")
def built_index(tiny_encoder_folder: Path) -> Path:
    """An index over six documents, with its encoder inside. Not to be changed: copy it first."""
    from npm.cli.main import main

    def make(folder: Path) -> None:
        corpus = write_corpus(folder / "corpus.jsonl")
        arguments = [f"corpus.files={corpus}", f"index={folder / 'index'}", f"encoder={tiny_encoder_folder}"]
        assert main(["build", *arguments, "copy_encoder=true", "blocks.max_block_tokens=64"]) == 0

    return made_once("built", make) / "index"


@pytest.fixture(scope="session")
def demo_index() -> Path:
    """The demo corpus indexed by the shipped encoder, where `fill` without index= puts it. Not to be changed.

    It lies in a cache of its own: XDG_CACHE_HOME is two folders above.
    """
    from npm.cli.main import main

    def make(cache: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(cache))
            assert main(["fill", "The capital of Iceland is <mask>."]) == 0

    (manifest,) = made_once("demo", make).glob("npmlm/demo-*/manifest.json")
    return manifest.parent


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20230106)
