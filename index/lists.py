"""From codes to inverted lists: code shards, lists merged out of them, and lists mapped from disk for a search.

Shapes: n rows of a shard or of the index, m rows of the lists at hand, K lists of the quantiser, k lists of one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray, to_float32
from index.exact import check_finite, finite_chunks
from index.faiss_library import (
    FaissIndex,
    factory_error,
    faiss_threads,
    import_faiss,
    inverted_file,
    last_line,
    read_faiss,
    whole_threads,
    write_faiss,
)
from index.quantiser import Quantiser
from index.settings import SearchTier, default_probed_lists, default_rerank_factor
from index.types import Report, no_report
from npm.core.artifact import (
    Manifest,
    check_files,
    check_folder,
    finished_folder,
    open_array,
    read_manifest,
    write_folder,
    write_manifest,
)
from npm.core.errors import ArtifactError
from npm.core.files import NewFile, digest_of

LIST_PART_KIND, LISTS_FILE = "list-part", "lists.bin"
CAPACITY_STEP = 8
"""The space for codes is a multiple of this, so that the ids after them lie at multiples of 8 bytes."""


def capacities(sizes: np.ndarray) -> np.ndarray:
    """Codes that lists of `sizes` i64 [k] have space for: i64 [k].

    >>> capacities(np.array([0, 1, 8, 9])).tolist()
    [0, 8, 8, 16]
    """
    return -(-sizes // CAPACITY_STEP) * CAPACITY_STEP


def attach_lists(index: FaissIndex, folders: Sequence[Path], *, quantiser_digest: str, row_count: int) -> list[Any]:
    """Put the list parts in `folders`, in order, into the trained `index`; returns what must live as long as it.

    Raises ArtifactError if a part is damaged, belongs to another quantiser, or the parts do not make up all lists
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
            raise _foreign_part(folder, f"quantizer, code bytes, first list {expected}, got {found}")
        sizes = open_array(folder, "list_sizes")  # i64 [k]
        mapped.append(_map_part(folder / LISTS_FILE, sizes, ivf.code_size))
        parts.push_back(mapped[-1])
        next_list, rows_seen = settings.typed("stop_list", int), rows_seen + int(sizes.sum())
    if (next_list, rows_seen) != (ivf.nlist, row_count):
        where = folders[0].parent if folders else Path()
        raise _foreign_part(
            where, f"{ivf.nlist} lists with {row_count} rows, got {next_list} lists with {rows_seen} rows"
        )
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
        raise _foreign_part(path, f"{total} bytes by the list sizes, got {size}")
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


def _foreign_part(where: Path, expected: str) -> ArtifactError:
    return ArtifactError(
        f"the lists in {where} do not belong to this index: expected {expected}; "
        "remove the search folder and merge again (stage=merge)"
    )


CODE_SHARD_KIND = "code-shard"
ROWS_PER_CHUNK = 1 << 14
"""Rows coded at once; the lists and codes of a row may depend on it in the last bit, so it is no setting."""


def code_shard_settings(quantiser: Quantiser, vectors_digest: str) -> dict[str, Any]:
    """What a code shard depends on: the quantiser and the vector shard, by the digests of their manifests."""
    return {"quantiser": quantiser.digest, "vectors": vectors_digest}


def write_code_shard(
    folder: Path, vectors: ShardedArray | np.ndarray, quantiser: Quantiser, *, settings: Mapping[str, Any]
) -> Manifest:
    """Code all `vectors` f16|f32 [n, d] of one shard; `settings` are those of `code_shard_settings`.

    A finished shard of the same settings is kept. Raises ArtifactError if the vectors have other dimensions than the
    quantiser, one is not finite, or `folder` was made with other settings.
    """
    if settings["quantiser"] != quantiser.digest:
        raise ValueError(f"settings name quantiser {settings['quantiser']}, not {quantiser.digest}")
    quantiser.check_dimensions(vectors.shape[1])
    if (kept := finished_folder(folder, kind=CODE_SHARD_KIND, settings=settings)) is not None:
        return kept
    sharded = vectors if isinstance(vectors, ShardedArray) else ShardedArray([vectors])
    row_count = len(sharded)
    lists = np.empty(row_count, dtype=np.int32)  # [n]
    codes = np.empty((row_count, quantiser.code_bytes), dtype=np.uint8)  # [n, code_bytes]
    for start in range(0, row_count, ROWS_PER_CHUNK):
        stop = min(start + ROWS_PER_CHUNK, row_count)
        chunk = sharded.slice(start, stop)  # [c, d]
        check_finite(chunk, np.arange(start, stop))
        lists[start:stop], codes[start:stop] = quantiser.encode(to_float32(chunk))
    order = np.argsort(lists, kind="stable").astype(np.uint32)  # [n]
    offsets = np.zeros(quantiser.list_count + 1, dtype=np.int64)  # [K + 1]
    np.cumsum(np.bincount(lists, minlength=quantiser.list_count), out=offsets[1:])
    with write_folder(folder, kind=CODE_SHARD_KIND, settings=settings) as writer:
        writer.write_array("list_offsets", offsets)
        writer.write_array("rows", order)
        stream = writer.stream_array("codes", np.uint8, (quantiser.code_bytes,))
        for start in range(0, row_count, ROWS_PER_CHUNK):
            stream.append(codes[order[start : start + ROWS_PER_CHUNK]])
    return read_manifest(folder, kind=CODE_SHARD_KIND)


@dataclass(frozen=True, slots=True)
class CodeShard:
    """A checked code shard; its arrays are opened when they are read, so that many shards need no open files."""

    folder: Path
    digest: str
    list_offsets: np.ndarray  # i64 [K + 1]

    def read(self, first_list: int, stop_list: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the rows in these lists, in order: list i64 [m], row within the shard i64 [m], code u8 [m, code_bytes]."""
        offsets = self.list_offsets[first_list : stop_list + 1]  # i64 [lists + 1]
        taken = slice(int(offsets[0]), int(offsets[-1]))
        lists = np.repeat(np.arange(first_list, stop_list), np.diff(offsets))  # i64 [m]
        rows = np.array(open_array(self.folder, "rows")[taken], dtype=np.int64)  # [m]
        return lists, rows, np.array(open_array(self.folder, "codes")[taken])  # copies: the files are closed again


def open_code_shard(folder: Path, quantiser: Quantiser, *, hash_all: bool) -> CodeShard:
    """The code shard in `folder`; raises ArtifactError if it is damaged or coded with another quantiser.

    `hash_all` is for callers that go on to read its codes; else only the small file with the sizes of lists is hashed.
    """
    manifest = read_manifest(folder, kind=CODE_SHARD_KIND)
    check_files(folder, manifest, hashed=lambda name, _: hash_all or name == "list_offsets.npy")
    if manifest.settings["quantiser"] != quantiser.digest:
        raise ArtifactError(
            f"the codes in {folder} come from another quantizer; remove this folder and run stage=code again"
        )
    offsets = np.array(open_array(folder, "list_offsets"))  # i64 [K + 1]
    rows, codes = open_array(folder, "rows"), open_array(folder, "codes")
    shapes = ((quantiser.list_count + 1,), (len(codes),), (int(offsets[-1]), quantiser.code_bytes))
    if (offsets.shape, rows.shape, codes.shape) != shapes:
        raise ArtifactError(
            f"list_offsets, rows and codes in {folder} must be of {shapes}, got "
            f"{(offsets.shape, rows.shape, codes.shape)}; remove this folder and run stage=code again"
        )
    return CodeShard(folder=folder, digest=manifest.digest, list_offsets=offsets)


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
    progress: Report = no_report,
) -> Manifest:
    """Merge the lists [lists[0], lists[1]) of all code shards into `folder`; a finished one of the same is kept.

    `first_rows` gives the row, in the whole index, of each shard's first vector. Within a list the rows ascend. One
    file holds, list after list, the codes and then the rows as i64. `progress(lists done, lists)`. Raises
    ArtifactError if a shard is damaged or coded with another quantiser, or `folder` holds something else.
    """
    settings = list_part_settings(code_folders, first_rows, quantiser, lists)
    if (kept := finished_folder(folder, kind=LIST_PART_KIND, settings=settings)) is not None:
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
    progress: Report = no_report,
) -> Manifest:
    """Finish the search folder over `vectors` f16|f32 [n, d], with every part of it that is not there yet.

    Lists: the parts 00000, 00001, … of `list_parts`, written in turn unless jobs did so before. A quantiser without
    lists: one FAISS index in memory, to which all vectors are added. Exact: vectors are checked to be finite, and the
    manifest is all there is. `progress(done, of all)` counts rows where vectors are read, else lists. Raises
    ArtifactError for damage, another quantiser, or shards that do not make up the rows of `vectors`.
    """
    row_count, dimensions = vectors.shape
    settings = {**resolved, "row_count": row_count}
    parts: dict[str, str] = {}
    if resolved["tier"] == SearchTier.exact.value:
        chunk: np.ndarray
        for start, chunk in finite_chunks(vectors):
            progress(start + len(chunk), row_count)
        folder.mkdir(parents=True, exist_ok=True)
        return write_manifest(folder, kind=SEARCH_KIND, settings=settings)
    assert quantiser is not None, "only exact search has no quantiser"
    quantiser.check_dimensions(dimensions)
    settings |= {
        "quantiser": quantiser.digest,
        "probed_lists": default_probed_lists(quantiser.list_count),
        "rerank_factor": default_rerank_factor(resolved["factory"]),
    }
    if quantiser.has_lists:
        _check_rows(code_folders, first_rows, quantiser, row_count, folder)
        for number, lists in enumerate(list_parts(code_folders, quantiser)):
            name = f"{number:05d}"

            def report(done: int, _: int, first: int = lists[0]) -> None:
                progress(first + done, quantiser.list_count)

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
    progress: Report,
) -> Manifest:
    """Add all vectors to the trained index in memory, and write it; a finished one of the same settings is kept."""
    if (kept := finished_folder(folder, kind=FAISS_KIND, settings=settings)) is not None:
        return kept
    index = read_faiss(quantiser.file, mapped=False)
    threads = whole_threads(settings["factory"], settings["thread_count"])
    with faiss_threads(threads), write_folder(folder, kind=FAISS_KIND, settings=settings) as writer:
        for start, chunk in finite_chunks(vectors):
            try:
                index.add(chunk)
            except RuntimeError as error:
                raise factory_error(settings["factory"], f"adding failed: {last_line(error)}") from error
            progress(start + len(chunk), len(vectors))
        write_faiss(index, writer.open_binary(FAISS_FILE))
    return read_manifest(folder, kind=FAISS_KIND)


def _cuts(counts: np.ndarray, first: int, code_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of the lists from `first` on, with `counts` i64 [k] rows, of at most `most_bytes` each."""
    ends = np.cumsum(capacities(counts) * code_bytes + counts * ID_BYTES)  # i64 [k]
    start, done = 0, 0
    while start < len(counts):
        stop = max(start + 1, int(np.searchsorted(ends, done + most_bytes, side="right")))
        yield first + start, first + stop
        start, done = stop, int(ends[stop - 1])


def _write_lists(
    file: NewFile,
    shards: Sequence[CodeShard],
    first_rows: Sequence[int],
    first_list: int,
    stop_list: int,
    sizes: np.ndarray,
) -> None:
    """Append the lists [first_list, stop_list) with `sizes` i64 [lists] rows, of all shards, sorted by list."""
    pieces = [shard.read(first_list, stop_list) for shard in shards]
    # Shards follow each other in the order of their rows, and the sort is stable: so the rows of a list ascend, and the
    # bytes are the same however the lists were divided into batches and parts.
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
        raise ArtifactError(
            f"the code shards do not make up the {row_count} rows of {folder}: they have {starts[-1]}; "
            "code the vector shards that are missing or were made again (stage=code)"
        )
