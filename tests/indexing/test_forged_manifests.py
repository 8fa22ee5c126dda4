"""A received index whose manifests or arrays say anything, with right digests: one refusal, nothing outside reached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm import PhraseFiller
from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import ArtifactError, UserError
from npm.core.files import digest_of, json_bytes, sha256_of_file
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import inspect_index, verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings
from tests.helpers.forged_manifests import Forgery, Place
from tests.helpers.live_indexes import all_bytes, built, record


@pytest.fixture(scope="module")
def finished(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with inverted lists and a deleted document; an index of somebody else's lies two folders above."""
    index = built(tmp_path_factory.mktemp("forged") / "index", list(map(record, range(12))), encoder, "ivf_sq8 4")
    delete_documents(index, DeleteSettings(ids=["d3"]))
    return index


@pytest.fixture
def index(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "theirs")
    return shutil.copytree(finished, tmp_path / "received" / "index")


def delete(index: Path) -> None:
    delete_documents(index, DeleteSettings(ids=["d4"]))


def compact(index: Path) -> None:
    compact_index(index, CompactSettings())


READS: tuple[Callable[[Path], Any], ...] = (PhraseIndex.open, inspect_index, verify_index)
CHANGES: tuple[Callable[[Path], Any], ...] = (delete, compact)

REFUSED: list[tuple[Place, Any]] = [
    *(
        (("settings", name), value)
        for name in ("segments", "counts", "encoder", "searching")
        for value in (None, [], 3)
    ),
    *((("settings", name), None) for name in ("generation", "search_folder", "search", "vectors", "corpus", "blocks")),
    (("settings", "search"), {"tier": "foo"}),
    (("settings", "search", "tier"), "foo"),
    (("settings", "blocks"), {}),
    (("settings", "vectors", "tokens_per_shard"), 0),
    (("settings", "generation"), -1),
    (("settings", "generation"), True),
    (("settings", "search_folder"), "../../theirs/search-0123456789abcdef"),
    (("settings", "search_folder"), "/etc"),
    (("settings", "quantizer"), "../../theirs/quantizer"),
    (("settings", "deleted"), "../../theirs/deleted-0123456789abcdef"),
    (("settings", "dimensions"), "x"),
    (("settings", "rotation"), "pca"),
    (("settings", "rotation"), "x"),
    (("settings", "counts", "rows"), 2**70),
    (("settings", "counts", "rows"), 1),
    (("settings", "segments", 0, "counts"), {}),
    (("settings", "segments", 0, "corpus"), "../../theirs/corpus-0123456789abcdef"),
    (("settings", "segments", 0, "vectors"), "zz"),
    (("settings", "segments", 0, "sources"), "x"),
    (("settings", "encoder", "fingerprint"), None),
    (("settings", "searching", "probed_lists"), "4"),
    (("settings",), None),
    (("files",), None),
    (("files",), {"/etc/passwd": {"bytes": 1, "sha256": "0" * 64}}),
    (("files",), {"../theirs/manifest.json": {"bytes": 1, "sha256": "0" * 64}}),
    (("files",), {"x": {"bytes": -1, "sha256": "0" * 64}}),
    (("files",), {"x": {"bytes": 1, "sha256": "0"}}),
    (("files",), {"x": {"bytes": 1}}),
    (("parts",), None),
    (("parts",), {}),
    (("parts", "corpus-*"), None),
    (("parts", "../../theirs/corpus-0123456789abcdef"), "0" * 64),
    (("parts", "corpus-0123456789abcdef/../../theirs"), "0" * 64),
]
RENAMED: list[tuple[Place, str]] = [
    (("parts", "corpus-*"), "/etc"),
    (("parts", "vectors-*"), "vectors-zz"),
]


@pytest.mark.parametrize(
    "forgery",
    [Forgery(".", *each) for each in REFUSED] + [Forgery(".", *each, renames=True) for each in RENAMED],
    ids=str,
)
def test_a_root_manifest_that_does_not_fit_is_refused_by_all_that_read_or_change_it(
    forgery: Forgery, index: Path, tmp_path: Path
) -> None:
    forgery.write(index)
    before = all_bytes(tmp_path)
    for run in (*READS, *CHANGES):
        with pytest.raises(ArtifactError) as caught:
            run(index)
        assert str(index) in str(caught.value) and "remove /etc" not in str(caught.value)
    assert all_bytes(tmp_path) == before


def test_dimensions_that_the_vectors_do_not_have_are_refused_at_opening(index: Path) -> None:
    Forgery(".", ("settings", "dimensions"), 7).write(index)
    with pytest.raises(ArtifactError, match="dimensions, expected 7"):
        PhraseIndex.open(index)


@pytest.fixture(scope="module")
def built_lists(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_forged_arrays_end_in_one_sentence(byte: int, built_lists: Path, encoder: Encoder, tmp_path: Path) -> None:
    refused = 0
    arrays = sorted(path.relative_to(built_lists) for path in built_lists.rglob("*.npy"))
    for name in arrays:
        index = shutil.copytree(built_lists, tmp_path / "received")
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
