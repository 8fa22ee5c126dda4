"""Merged inverted lists, mapped from disk: FAISS reads of them what a query probes.

Shapes: k lists of a part, K lists of the quantiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.faiss_library import FaissIndex, import_faiss, inverted_file
from index.store import check_folder, open_array
from index.types import ArtefactError

LIST_PART_KIND, LISTS_FILE = "list-part", "lists.bin"
CAPACITY_STEP = 8
"""The space for codes is a multiple of so many, so that the ids after them lie at multiples of 8 bytes."""


def capacities(sizes: np.ndarray) -> np.ndarray:
    """Codes that lists of `sizes` i64 [k] have space for: i64 [k].

    >>> capacities(np.array([0, 1, 8, 9])).tolist()
    [0, 8, 8, 16]
    """
    return -(-sizes // CAPACITY_STEP) * CAPACITY_STEP


def attach_lists(index: FaissIndex, folders: Sequence[Path], *, quantiser_digest: str, row_count: int) -> list[Any]:
    """Put the list parts in `folders`, in order, into the trained `index`; returns what must live as long as it.

    Raises ArtefactError if a part is damaged, belongs to another quantiser, or the parts do not make up all lists
    or `row_count` rows.
    """
    faiss = import_faiss()
    ivf = inverted_file(index)
    assert ivf is not None, "only an index with lists takes list parts"
    parts = faiss.InvertedListsPtrVector()
    mapped = []
    next_list, rows_seen = 0, 0
    for folder in folders:
        settings = check_folder(folder, kind=LIST_PART_KIND).settings
        found = (settings["quantiser"], settings["code_bytes"], settings["first_list"])
        expected = (quantiser_digest, ivf.code_size, next_list)
        if found != expected:
            raise _foreign_part(folder, "quantiser {}, codes of {} bytes, first list {}", expected, found)
        sizes = open_array(folder, "list_sizes")  # i64 [k]
        mapped.append(_map_part(folder / LISTS_FILE, sizes, ivf.code_size))
        parts.push_back(mapped[-1])
        next_list, rows_seen = settings["stop_list"], rows_seen + int(sizes.sum())
    if (next_list, rows_seen) != (ivf.nlist, row_count):
        where = folders[0].parent if folders else Path()
        raise _foreign_part(where, "{} lists with {} rows", (ivf.nlist, row_count), (next_list, rows_seen))
    stacked = faiss.VStackInvertedLists(parts.size(), parts.data())
    ivf.replace_invlists(stacked, False)
    ivf.ntotal = index.ntotal = row_count
    return [parts, *mapped, stacked]


def _map_part(path: Path, sizes: np.ndarray, code_bytes: int) -> Any:
    """The lists of `sizes` i64 [k] in `path`, each its codes, then its rows."""
    faiss = import_faiss()
    space = capacities(sizes)  # i64 [k]
    ends = np.cumsum(space * code_bytes + sizes * 8)  # i64 [k]
    total = int(ends[-1]) if len(ends) else 0
    if (size := path.stat().st_size) != total:
        raise _foreign_part(path, "a file of {} bytes by its list sizes", (total,), (size,))
    offsets = np.concatenate([[0], ends[:-1]])  # i64 [k]
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size = len(sizes), code_bytes
    lists.read_only, lists.filename, lists.totsize = True, str(path), total
    lists.prefetch_nthread = 0  # its threads would read whole lists ahead of the search, into all cores
    for list_size, capacity, offset in zip(sizes.tolist(), space.tolist(), offsets.tolist(), strict=True):
        one = faiss.OnDiskOneList()
        one.size, one.capacity, one.offset = list_size, capacity, offset
        lists.lists.push_back(one)
    if total:
        lists.do_mmap()
    return lists


def _foreign_part(where: Path, form: str, expected: tuple[object, ...], got: tuple[object, ...]) -> ArtefactError:
    return ArtefactError(
        f"the lists in {where} do not belong to this index",
        expected=form.format(*expected),
        got=form.format(*got),
        where=str(where),
        fix="remove the search folder and merge again (stage=merge)",
    )
