"""Numbers that are not finite, and rows that no index has, are refused where they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.exact import ExactSearcher, check_finite, exact_top
from index.search import open_search
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError
from tests.helpers.sample_folders import rewrite_manifest
from tests.index.search_folders import (
    DIMENSIONS,
    QUERIES,
    ROWS,
    build_search,
    open_built,
    sample_queries,
    sample_vectors,
    settings_for,
)


def test_rows_that_no_index_has_are_refused_where_lists_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = sample_vectors()
    build_search(tmp_path, vectors, settings_for("ivf_sq8"))
    monkeypatch.setattr("npm.core.artifact.HASHED_AT_OPENING_BYTES", 1)  # as a large file of an older index
    file = tmp_path / "search" / "lists.bin"
    data = np.frombuffer(file.read_bytes(), dtype=np.int64).copy()
    data[(data >= 0) & (data < ROWS)] += 1 << 40
    file.write_bytes(data.tobytes())
    with pytest.raises(ArtifactError, match=f"index is damaged.*of {ROWS}"):
        open_built(tmp_path, vectors).scan(sample_queries()).top(5)


def test_lists_of_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    build_search(tmp_path, sample_vectors(), settings_for("ivf_sq8"))
    fewer = sample_vectors(rows=ROWS - 1)
    settings = dict(read_manifest(tmp_path / "search", kind="search").settings)
    rewrite_manifest(tmp_path / "search", settings=settings | {"row_count": ROWS - 1})
    with pytest.raises(ArtifactError, match=f"lists of {ROWS} rows"):
        open_search(tmp_path / "search", fewer, quantizer=tmp_path / "quantizer")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_each_number_that_is_not_finite_is_found(dtype: str, value: float) -> None:
    for rest in (-1.0, 1.0):  # also where it is the largest, or the smallest, of all bit patterns
        vectors = np.full((3, 4), rest, dtype=dtype)
        check_finite(vectors, np.arange(3))
        vectors[1, 2] = value
        with pytest.raises(ArtifactError, match="row 11 is not finite"):
            check_finite(vectors, np.arange(10, 13))


def test_similarities_too_large_for_single_precision_are_refused() -> None:
    huge = np.full((4, DIMENSIONS), 3e38, dtype=np.float32)
    read: list[Callable[[], object]] = [
        lambda: ExactSearcher(huge).scan(np.ones((QUERIES, DIMENSIONS), dtype=np.float32)),
        lambda: exact_top(huge, np.ones((QUERIES, DIMENSIONS), dtype=np.float32), 2),
    ]
    for search in read:
        with pytest.raises(ArtifactError, match="not finite"), np.errstate(over="ignore"):
            search()
