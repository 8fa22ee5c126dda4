"""Code shards merged into inverted lists that FAISS maps from disk, part by part, in memory that does not grow.

Shapes: n rows of the index, m rows of the lists at hand, K lists of the quantiser, k lists of one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.build import SearchTier, default_probed_lists, default_rerank_factor
from index.codes import CodeShard, open_code_shard
from index.exact import finite_chunks
from index.faiss_library import factory_error, faiss_threads, last_line, read_faiss, whole_threads, write_faiss
from index.files import CountingFile
from index.finished import finished_folder
from index.lists import LIST_PART_KIND, LISTS_FILE, capacities
from index.quantiser import Quantiser
from index.sharded import ShardedArray
from index.store import Manifest, digest_of, read_manifest, write_folder, write_manifest
from index.types import ArtefactError

SEARCH_KIND, FAISS_KIND = "search", "faiss-index"
FAISS_FILE, FAISS_FOLDER = "search.faiss", "faiss"
PART_BYTES = 1 << 30
BATCH_BYTES = 32 << 20
"""Codes and ids sorted at once; the memory of a merge is a few times that."""
ID_BYTES = 8


def list_parts(code_folders: Sequence[Path], quantiser: Quantiser) -> list[tuple[int, int]]:
    """Ranges [first, stop) of lists, all lists in order, of about `PART_BYTES` each at most, a list more if need be."""
    counts = np.zeros(quantiser.list_count, dtype=np.int64)  # [K]
    for folder in code_folders:
        counts += np.diff(open_code_shard(folder, quantiser, hash_all=False).list_offsets)
    return list(_cuts(counts, 0, quantiser.code_bytes, PART_BYTES))


def list_part_settings(
    code_folders: Sequence[Path], first_rows: Sequence[int], quantiser: Quantiser, lists: tuple[int, int]
) -> dict[str, Any]:
    """What a list part depends on: the quantiser, every code shard with the number of its first row, and the lists."""
    codes = digest_of([open_code_shard(folder, quantiser, hash_all=False).digest for folder in code_folders])
    first_row_digest = digest_of([int(row) for row in first_rows])
    first, stop = lists
    return {
        "quantiser": quantiser.digest,
        "codes": codes,
        "first_rows": first_row_digest,
        "first_list": first,
        "stop_list": stop,
        "code_bytes": quantiser.code_bytes,
    }


def write_list_part(
    folder: Path,
    code_folders: Sequence[Path],
    first_rows: Sequence[int],
    quantiser: Quantiser,
    *,
    lists: tuple[int, int],
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Merge the lists [lists[0], lists[1]) of all code shards into `folder`; a finished one of the same is kept.

    `first_rows` gives the row, in the whole index, of each shard's first vector. Within a list the rows ascend. One
    file holds, list after list, the codes and then the rows as i64. `progress(lists done, lists)`. Raises
    ArtefactError if a shard is damaged or coded with another quantiser, or `folder` holds something else.
    """
    settings = list_part_settings(code_folders, first_rows, quantiser, lists)
    if (kept := finished_folder(folder, kind=LIST_PART_KIND, settings=settings, stage="merge")) is not None:
        return kept
    first, stop = lists
    shards = [open_code_shard(path, quantiser, hash_all=True) for path in code_folders]
    counts = np.zeros(stop - first, dtype=np.int64)  # [k]
    for shard in shards:
        counts += np.diff(shard.list_offsets[first : stop + 1])
    with write_folder(folder, kind=LIST_PART_KIND, settings=settings) as writer:
        writer.write_array("list_sizes", counts)
        file = writer.open_binary(LISTS_FILE)
        for batch_first, batch_stop in _cuts(counts, first, quantiser.code_bytes, BATCH_BYTES):
            sizes = counts[batch_first - first : batch_stop - first]  # i64 [lists of the batch]
            _write_lists(file, shards, first_rows, batch_first, batch_stop, sizes)
            if progress is not None:
                progress(batch_stop - first, stop - first)
    return read_manifest(folder, kind=LIST_PART_KIND)


def write_search_folder(
    folder: Path,
    resolved: Mapping[str, Any],
    vectors: ShardedArray,
    *,
    quantiser: Quantiser | None = None,
    code_folders: Sequence[Path] = (),
    first_rows: Sequence[int] = (),
    probed_lists: int | None = None,
    rerank_factor: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Finish the search folder over `vectors` f16|f32 [n, d], with every part of it that is not there yet.

    Lists: the parts 00000, 00001, … of `list_parts`, written in turn unless jobs did so before. A quantiser without
    lists: one FAISS index in memory, to which all vectors are added. Exact: vectors are checked to be finite, and the
    manifest is all there is. `progress(done, of all)` counts rows where vectors are read, else lists. Raises
    ArtefactError for damage, another quantiser, or shards that do not make up the rows of `vectors`.
    """
    row_count, dimensions = vectors.shape
    settings = {**resolved, "row_count": row_count}
    parts: dict[str, str] = {}
    if resolved["tier"] == SearchTier.exact.value:
        _check_finite(vectors, progress)
        folder.mkdir(parents=True, exist_ok=True)
        return write_manifest(folder, kind=SEARCH_KIND, settings=settings)
    assert quantiser is not None, "only exact search has no quantiser"
    quantiser.check_dimensions(dimensions, where=str(folder))
    settings |= {
        "quantiser": quantiser.digest,
        "probed_lists": probed_lists or default_probed_lists(quantiser.list_count),
        "rerank_factor": rerank_factor or default_rerank_factor(resolved["factory"]),
    }
    if quantiser.has_lists:
        _check_rows(code_folders, first_rows, quantiser, row_count, folder)
        for number, lists in enumerate(list_parts(code_folders, quantiser)):
            name = f"{number:05d}"
            report = None if progress is None else _of_all(progress, lists[0], quantiser.list_count)
            part = write_list_part(folder / name, code_folders, first_rows, quantiser, lists=lists, progress=report)
            parts[name] = part.digest
    else:
        parts[FAISS_FOLDER] = _write_whole_index(folder / FAISS_FOLDER, settings, vectors, quantiser, progress).digest
    return write_manifest(folder, kind=SEARCH_KIND, settings=settings, parts=parts)


def _write_whole_index(
    folder: Path,
    settings: Mapping[str, Any],
    vectors: ShardedArray,
    quantiser: Quantiser,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    """Add all vectors to the trained index in memory, and write it; a finished one of the same settings is kept."""
    if (kept := finished_folder(folder, kind=FAISS_KIND, settings=settings, stage="merge")) is not None:
        return kept
    index = read_faiss(quantiser.file, mapped=False)
    threads = whole_threads(settings["factory"], settings["thread_count"])
    with faiss_threads(threads), write_folder(folder, kind=FAISS_KIND, settings=settings) as writer:
        for start, chunk in finite_chunks(vectors):
            try:
                index.add(chunk)
            except RuntimeError as error:
                raise factory_error(settings["factory"], f"adding failed: {last_line(error)}") from error
            if progress is not None:
                progress(start + len(chunk), len(vectors))
        write_faiss(index, writer.open_binary(FAISS_FILE))
    return read_manifest(folder, kind=FAISS_KIND)


def _cuts(counts: np.ndarray, first: int, code_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of the lists from `first` on, with `counts` i64 [k] rows, of at most so many bytes each."""
    ends = np.cumsum(capacities(counts) * code_bytes + counts * ID_BYTES)  # i64 [k]
    start, done = 0, 0
    while start < len(counts):
        stop = max(start + 1, int(np.searchsorted(ends, done + most_bytes, side="right")))
        yield first + start, first + stop
        start, done = stop, int(ends[stop - 1])


def _write_lists(
    file: CountingFile,
    shards: Sequence[CodeShard],
    first_rows: Sequence[int],
    first_list: int,
    stop_list: int,
    sizes: np.ndarray,
) -> None:
    """Append the lists [first_list, stop_list) with `sizes` i64 [lists] rows, of all shards, sorted by list."""
    pieces = [shard.read(first_list, stop_list) for shard in shards]
    lists = np.concatenate([piece[0] for piece in pieces])  # i64 [m], shard after shard
    order = np.argsort(lists, kind="stable")  # i64 [m]
    rows = [piece[1] + first for piece, first in zip(pieces, first_rows, strict=True)]
    ids = np.concatenate(rows)[order]  # i64 [m]
    codes = np.concatenate([piece[2] for piece in pieces])[order]  # u8 [m, code_bytes]
    padding = (capacities(sizes) - sizes) * codes.shape[1]  # i64 [lists]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    for (start, stop), padded in zip(itertools.pairwise(bounds), padding.tolist(), strict=True):
        if start < stop:
            file.write(codes[start:stop].tobytes() + bytes(padded))
            file.write(ids[start:stop].astype("<i8").tobytes())


def _check_rows(
    code_folders: Sequence[Path], first_rows: Sequence[int], quantiser: Quantiser, row_count: int, folder: Path
) -> None:
    """The shards must follow each other without gap, and make up all rows."""
    sizes = [int(open_code_shard(path, quantiser, hash_all=False).list_offsets[-1]) for path in code_folders]
    starts = list(itertools.accumulate(sizes, initial=0))
    if [*map(int, first_rows), row_count] != starts:
        raise ArtefactError(
            "the code shards do not make up the rows of the vectors",
            expected=f"{row_count} rows, in shards that start at {list(map(int, first_rows))[:8]}…",
            got=f"{starts[-1]} rows, in shards that start at {starts[:-1][:8]}…",
            where=str(folder),
            fix="code the vector shards that are missing or were made again (stage=code)",
        )


def _check_finite(vectors: ShardedArray, progress: Callable[[int, int], None] | None) -> None:
    chunk: np.ndarray
    for start, chunk in finite_chunks(vectors):
        if progress is not None:
            progress(start + len(chunk), len(vectors))


def _of_all(progress: Callable[[int, int], None], first: int, list_count: int) -> Callable[[int, int], None]:
    def report(done: int, _: int) -> None:
        progress(first + done, list_count)

    return report
