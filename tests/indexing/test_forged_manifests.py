"""A received index whose manifests say anything, with right digests: one refusal, and nothing outside is reached."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import ArtifactError, UserError
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.indexing.verify import verify_index
from npm.models.encoder import Encoder
from tests.helpers.forged_manifests import Forgery, Place, forgeries
from tests.helpers.live_indexes import all_bytes, built, record

SAMPLED = 30


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


def test_any_forged_value_ends_in_an_answer_or_in_one_refusal(finished: Path, tmp_path: Path) -> None:
    """A few of all, drawn anew whenever the layout changes; tests/test_fuzz.py draws others."""
    theirs = shutil.copytree(finished, tmp_path / "theirs")
    before = all_bytes(theirs)
    index = tmp_path / "received" / "index"
    for number, forgery in enumerate(random.Random(11).sample(list(forgeries(finished)), SAMPLED)):
        shutil.copytree(finished, index)
        forgery.write(index)
        for run in (*READS[:2], (READS + CHANGES)[2 + number % 3]):
            try:
                run(index)
            except UserError:
                pass
            except Exception as error:
                raise AssertionError(f"{forgery}, {run.__name__}") from error
        shutil.rmtree(index)
    assert all_bytes(theirs) == before


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"null", b"[]", b"\xff", b'{"format_version": 2, "settings": NaN}', b""]
)
def test_a_manifest_that_is_no_manifest_is_refused_and_nothing_is_to_be_removed(content: bytes, index: Path) -> None:
    (index / "manifest.json").write_bytes(content)
    for run in (*READS, *CHANGES):
        with pytest.raises(ArtifactError, match=str(index)) as caught:
            run(index)
        assert "remove" not in str(caught.value)
