"""FAISS as this project uses it: inner product only, imported late, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from npm.core.errors import ArtifactError, UserError

FaissIndex = Any
"""A `faiss.Index`; FAISS has no types and is imported late."""


def import_faiss() -> Any:
    """The module `faiss`; raises UserError with the install line if there is none."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"approximate search needs FAISS ({error}): pip install faiss-cpu (or faiss-gpu), or set search.tier=exact"
        ) from error
    return faiss


def has_faiss() -> bool:
    """Return True if FAISS is installed."""
    return find_spec("faiss") is not None


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
