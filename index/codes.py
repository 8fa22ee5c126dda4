"""Code shards: the codes of one vector shard, list after list, as several machines may write them side by side.

Shapes: n rows of the shard, K lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.exact import check_finite
from index.finished import finished_folder
from index.half import to_float32
from index.quantiser import Quantiser
from index.sharded import ShardedArray
from index.store import Manifest, check_files, open_array, read_manifest, write_folder
from index.types import ArtefactError

CODE_SHARD_KIND = "code-shard"
ROWS_PER_CHUNK = 1 << 14
"""Rows coded at once; the lists and codes of a row may depend on it in the last bit, so it is no setting."""


def code_shard_settings(quantiser: Quantiser, vectors_digest: str) -> dict[str, Any]:
    """What a code shard depends on: the quantiser and the vector shard, by the digests of their manifests."""
    return {"quantiser": quantiser.digest, "vectors": vectors_digest}


def write_code_shard(
    folder: Path,
    vectors: ShardedArray | np.ndarray,
    quantiser: Quantiser,
    *,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Code all `vectors` f16|f32 [n, d] of one shard; `settings` are those of `code_shard_settings`.

    `progress(rows done, n)`. A finished shard of the same settings is kept. Raises ArtefactError if the vectors have
    other dimensions than the quantiser, one is not finite, or `folder` was made with other settings.
    """
    if settings["quantiser"] != quantiser.digest:
        raise ValueError(f"settings name quantiser {settings['quantiser']}, not {quantiser.digest}")
    quantiser.check_dimensions(vectors.shape[1], where=str(folder))
    if (kept := finished_folder(folder, kind=CODE_SHARD_KIND, settings=settings, stage="code")) is not None:
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
        if progress is not None:
            progress(stop, row_count)
    order = np.argsort(lists, kind="stable").astype(np.uint32)  # [n]
    offsets = np.zeros(quantiser.list_count + 1, dtype=np.int64)  # [K + 1]
    np.cumsum(np.bincount(lists, minlength=quantiser.list_count), out=offsets[1:])
    with write_folder(folder, kind=CODE_SHARD_KIND, settings=settings) as writer:
        writer.write_array("list_offsets", offsets)
        writer.write_array("rows", order)
        stream = writer.stream_array("codes", np.uint8, (quantiser.code_bytes,), row_count=row_count)
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
    """The code shard in `folder`; raises ArtefactError if it is damaged or coded with another quantiser.

    `hash_all` is for who goes on to read its codes; else only the small file with the sizes of lists is hashed.
    """
    manifest = read_manifest(folder, kind=CODE_SHARD_KIND)
    check_files(folder, manifest, hashed=lambda name, _: hash_all or name == "list_offsets.npy")
    if manifest.settings["quantiser"] != quantiser.digest:
        raise ArtefactError(
            f"the codes in {folder} come from another quantiser",
            expected=f"quantiser {quantiser.digest}",
            got=f"quantiser {manifest.settings['quantiser']}",
            where=str(folder),
            fix="remove this folder and code its vectors again (stage=code)",
        )
    offsets = np.array(open_array(folder, "list_offsets"))  # i64 [K + 1]
    rows, codes = open_array(folder, "rows"), open_array(folder, "codes")
    shapes = ((quantiser.list_count + 1,), (len(codes),), (int(offsets[-1]), quantiser.code_bytes))
    if (offsets.shape, rows.shape, codes.shape) != shapes:
        raise ArtefactError(
            f"the arrays in {folder} do not fit each other",
            expected=f"list_offsets, rows, codes of {shapes}",
            got=f"{(offsets.shape, rows.shape, codes.shape)}",
            where=str(folder),
            fix="remove this folder and code its vectors again (stage=code)",
        )
    return CodeShard(folder=folder, digest=manifest.digest, list_offsets=offsets)
