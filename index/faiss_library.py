"""FAISS as this project uses it: inner product only, imported late, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.errors import ArtifactError

FaissIndex = Any
"""A `faiss.Index`; FAISS has no types and is imported late."""
FAST_SCAN_ORDER = np.arange(32).reshape(2, 2, 8).transpose(0, 2, 1).reshape(-1)  # [32]
"""Rows of a block in the order of FAISS's fast scan, 0 8 1 9 … 7 15 16 24 … 23 31."""


def import_faiss() -> Any:
    """The module `faiss`, loaded when it is first used, as exact search needs none of it."""
    import faiss

    return faiss


@contextmanager
def faiss_threads(thread_count: int) -> Iterator[None]:
    """Let FAISS compute with `thread_count` threads: sums are added up in an order that depends on it."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(thread_count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def new_faiss_index(factory: str, dimensions: int) -> FaissIndex:
    """An untrained inner product index."""
    faiss = import_faiss()
    return faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)


def read_faiss(path: Path) -> FaissIndex:
    """The index stored in `path`, mapped; raises ArtifactError if FAISS cannot read it, or it is of another metric."""
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtifactError(
            f"FAISS {faiss.__version__} cannot read {path}: {str(error).strip().splitlines()[-1]}; install the FAISS "
            "version that its manifest names, or build the search index again"
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ArtifactError(f"{path} must search by inner product, got metric {index.metric_type}; build it again")
    return index


def split(index: FaissIndex) -> tuple[Any | None, FaissIndex]:
    """The rotation before the lists of `index`, or None, and the lists by their own class; `index` owns both."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.downcast_VectorTransform(index.chain.at(0)), faiss.downcast_index(index.index)
    return None, index


def block_rows(lists: FaissIndex) -> int:
    """Rows whose codes inverted lists store together: a list has space for a multiple of them."""
    return int(getattr(lists, "bbs", 8))  # without fast scan, so that the ids after the codes are at multiples of 8


def packed_codes(codes: np.ndarray, lists: FaissIndex) -> np.ndarray:
    """The `codes` u8 [n, code_bytes] of one list as `lists` store them, filled up with zeros: u8 [blocks, block bytes].

    A fast scan reads the codes of 4 bits of a block of 32 rows column by column, two rows in a byte: row i of the
    first half of the block in the low bits, row i of the second half in the high ones.
    """
    rows = block_rows(lists)
    padded = np.zeros((-(-len(codes) // rows), rows, codes.shape[1]), dtype=np.uint8)  # [blocks, rows, code_bytes]
    padded.reshape(-1, codes.shape[1])[: len(codes)] = codes
    if rows == 8:
        return padded.reshape(len(padded), -1)
    columns = np.ascontiguousarray(padded[:, FAST_SCAN_ORDER].transpose(0, 2, 1))  # [blocks, code_bytes, 32]
    first, second = columns[..., :16], columns[..., 16:]  # [blocks, code_bytes, 16], halves of a block
    pairs = np.concatenate([first & 15 | second << 4, first >> 4 | second & 240], axis=2)  # [blocks, code_bytes, 32]
    return pairs.reshape(len(pairs), -1)
