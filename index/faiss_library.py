"""FAISS as this project uses it: inner product only, its errors as ours. Only this file imports it, late."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from npm.core.errors import ArtifactError, UserError
from npm.core.files import NewFile

FaissIndex = Any
"""A `faiss.Index`; FAISS has no types and is imported late."""
QUERY_BITS = 4
"""Bits a dimension of a query compared with one-bit codes; 0 would mean no rounding, 20 times slower."""


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
    """Whether FAISS is installed."""
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


def whole_threads(factory: str, thread_count: int) -> int:
    """Threads with which FAISS may train and fill a whole index: one for graphs, whose edges depend on the order."""
    return 1 if "HNSW" in factory or "NSG" in factory else thread_count


def new_faiss_index(factory: str, dimensions: int) -> FaissIndex:
    """An untrained inner product index; raises UserError if FAISS does not know `factory`."""
    faiss = import_faiss()
    try:
        index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise factory_error(factory, f"FAISS says: {last_line(error)}") from error
    assert_inner_product(index)
    return index


def inverted_file(index: FaissIndex) -> FaissIndex | None:
    """The inverted file in `index`, by its own class, whatever wraps it; None if there is none."""
    faiss = import_faiss()
    ivf = faiss.try_extract_index_ivf(index)
    return None if ivf is None else faiss.downcast_index(ivf)


def assert_inner_product(index: FaissIndex) -> None:
    """FAISS falls back to L2 where a metric is not given or a wrapper drops it; the ranks would then be wrong."""
    faiss = import_faiss()
    ivf = inverted_file(index)
    for part in (index, ivf, None if ivf is None else ivf.quantizer):
        if part is not None and part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ArtifactError(
                f"a FAISS index must search by inner product, got metric {part.metric_type} in {type(part).__name__}; "
                "choose another search.factory, or build the search index again"
            )


def write_faiss(index: FaissIndex, file: NewFile) -> None:
    """Stream `index` into `file`, without a second copy of it in memory."""
    faiss = import_faiss()
    faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def read_faiss(path: Path, *, mapped: bool = True) -> FaissIndex:
    """The index stored in `path`; raises ArtifactError if FAISS cannot read it.

    A mapped one must not be added to: FAISS then ends the process.
    """
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except RuntimeError as error:
        raise ArtifactError(
            f"FAISS {faiss.__version__} cannot read {path}: {last_line(error)}; install the FAISS version that its "
            "manifest names, or build the search index again"
        ) from error
    assert_inner_product(index)
    return index


def last_line(error: Exception) -> str:
    """The last line of what FAISS says, without the place in its source files."""
    return re.sub(r"^Error in .* at \S+:\d+: ", "", str(error).strip().splitlines()[-1])


def factory_error(factory: str, got: str) -> UserError:
    """Error for a factory string that does not work."""
    return UserError(
        f"cannot make a FAISS index with search.factory={factory}: {got}; leave factory and list_count unset"
    )


def check_lists(factory: str, dimensions: int, *, train_rows: int, row_count: int | None = None) -> None:
    """Raise UserError unless FAISS knows `factory`, and its lists can be trained on the rows there are.

    A check before hours are spent on vectors; `row_count` None: they are not counted yet.
    """
    lists = inverted_file(new_faiss_index(factory, dimensions))
    most = train_rows if row_count is None else min(train_rows, row_count)
    if lists is not None and not 1 <= lists.nlist <= most:
        raise factory_error(factory, f"{lists.nlist} lists, at most {most} rows to train them on")
