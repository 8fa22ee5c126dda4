"""A received index whose arrays say anything, with right hashes: one sentence, or an answer."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from npm import PhraseFiller, UserError
from npm.core.artifact import MANIFEST_NAME
from npm.core.files import digest_of, json_bytes, sha256_of_file
from npm.indexing.verify import verify_index
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings
from tests.helpers.live_indexes import built, record


@pytest.fixture(scope="module")
def finished(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("forged") / "index", list(map(record, range(4))), encoder)


def hash_again(folder: Path) -> str:
    """Bring the sizes and hashes of a folder and of its parts in line with the files; returns its digest."""
    file = folder / MANIFEST_NAME
    content = json.loads(file.read_bytes())
    for name in content["files"]:
        path = folder / name
        content["files"][name] = {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
    content["parts"] = {name: hash_again(folder / name) for name in content["parts"]}
    content.pop("digest")
    file.write_bytes(json_bytes({**content, "digest": digest_of(content)}))
    return digest_of(content)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # scores of blocks without a word
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_forged_arrays_end_in_one_sentence(byte: int, finished: Path, encoder: Encoder, tmp_path: Path) -> None:
    refused = 0
    arrays = sorted(path.relative_to(finished) for path in finished.rglob("*.npy"))
    for name in arrays:
        index = shutil.copytree(finished, tmp_path / "received")
        array = np.load(index / name, mmap_mode="r+", allow_pickle=False)
        if array.size:
            array.view(np.uint8)[...] = byte
            array.flush()
        hash_again(index)
        for retrieval in ("hybrid", "dense"):
            try:
                settings = FillSettings(retrieval=retrieval)  # type: ignore[arg-type]
                PhraseFiller.open(index, encoder, settings=settings).fill("The capital of Norway is <mask>.")
            except UserError:
                refused += 1
        with suppress(UserError):
            verify_index(index)
        shutil.rmtree(index)
    assert refused, f"none of {len(arrays)} arrays was noticed"
