"""Kept fields and document keys as they stand in a shard's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from npm.corpus.store import BlockStore
from tests.helpers.stores import stored_documents


def columns_on_disk(store: BlockStore, shard: int) -> tuple[dict[str, list[Any]], list[list[int]]]:
    folder = store.folder / f"{shard:05d}"
    return json.loads(np.load(folder / "field_values.npy").tobytes()), np.load(folder / "field_codes.npy").tolist()


def test_each_distinct_value_stands_once_in_the_order_of_its_first_document(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"year": 3, "lang": "en"},
        {"lang": "de"},
        {"year": None, "lang": "en"},
        {"tags": ["b", "a"]},
        {},
    ]
    store = stored_documents(tmp_path / "store", fields, documents_per_shard=6)
    assert columns_on_disk(store, 0) == (
        {"lang": ["en", "de"], "tags": [["b", "a"]], "year": [3]},
        [[-1, 0, 1, 0, -1, -1], [-1, -1, -1, -1, 0, -1], [-1, 0, -1, -1, -1, -1]],
    )
    assert store.document(3).fields == {"year": None, "lang": "en"}


def test_values_that_are_equal_in_python_but_not_in_json_stay_apart(tmp_path: Path) -> None:
    values = [1, 1.0, True, "1", [1], {"b": 1, "a": 2}, {"a": 2, "b": 1}, 1]
    store = stored_documents(tmp_path / "store", [{"n": value} for value in values], documents_per_shard=9)
    stored_values, codes = columns_on_disk(store, 0)
    assert json.dumps(stored_values["n"]) == '[1, 1.0, true, "1", [1], {"a": 2, "b": 1}]'
    assert codes == [[0, 1, 2, 3, 4, 5, 5, 0]]
