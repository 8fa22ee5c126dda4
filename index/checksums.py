"""Checksums of the rows of a large file, so that what is read of it is checked, and nothing else is read.

A manifest's SHA-256 is of a whole file: of vectors that a query reads some thousandth of, it would cost many times the
query. So beside a file of at least `CHECKSUMMED_FROM_BYTES` lies `<name>.checksums.npy`, u32 [rows].
They find damage, as a disk or a copy does it; against forgery nothing in a folder helps.

Shapes: n rows of an array, m rows read, d dimensions, w words of a row.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import GOLDEN_GAMMA, mixed_bits
from index.exact import check_finite
from index.files import NPY_HEADER_BYTES, npy_header
from index.manifest import Manifest
from index.store import FolderWriter, open_array
from npm.core.errors import damaged

CHECKSUMMED_FROM_BYTES = 1 << 20
"""Files of this size on get checksums of their rows. Smaller ones are hashed whole in half a millisecond."""


@functools.cache
def _multipliers(count: int) -> np.ndarray:
    """Fixed odd numbers that look random, u64 [count]."""
    numbers: np.ndarray = mixed_bits(np.arange(count, dtype=np.uint64)) | np.uint64(1)
    return numbers


def row_checksums(rows: np.ndarray) -> np.ndarray:
    """A checksum of each of `rows` [n, d], of any dtype, in one pass: u32 [n].

    Multilinear hashing: the upper half of c + Σ aᵢ·xᵢ modulo 2^64 over the words xᵢ of a row (Lemire and Kaser,
    "Strongly universal string hashing is fast", 2014). Damage goes unseen once in 2^32 times. c is not 0: of two
    files that hold nothing but zeros neither fits the other.

    >>> row_checksums(np.zeros((1, 4), dtype=np.float16)).tolist(), row_checksums(np.eye(2, dtype=np.float32)).tolist()
    ([2654435769], [3762380350, 2260171193])
    """
    row_bytes = rows[:1].nbytes
    if row_bytes == 0:
        return np.full(len(rows), GOLDEN_GAMMA >> np.uint64(32), dtype=np.uint32)
    word = np.dtype(f"<u{math.gcd(row_bytes, 8)}")
    words = np.ascontiguousarray(rows).reshape(-1).view(word).reshape(len(rows), -1)  # [n, w]
    sums = np.einsum("ij,j->i", words, _multipliers(words.shape[1])) + GOLDEN_GAMMA  # u64 [n]
    return (sums >> np.uint64(32)).astype(np.uint32)


def write_checked_rows(
    writer: FolderWriter, name: str, dtype: np.dtype, shape: tuple[int, ...], chunks: Iterable[np.ndarray]
) -> None:
    """Write the array `name`.npy, `shape` [n, d], from `chunks` [c, d], and if it is large a checksum of each row."""
    stream = writer.stream_array(name, dtype, shape[1:], row_count=shape[0])
    values = [np.empty(0, dtype=np.uint32)]  # [c] each
    for chunk in chunks:
        stream.append(chunk)
        values.append(row_checksums(chunk))
    if np.dtype(dtype).itemsize * math.prod(shape) >= CHECKSUMMED_FROM_BYTES:
        write_checksums(writer, f"{name}.npy", np.concatenate(values))


def write_checksums(writer: FolderWriter, name: str, values: np.ndarray) -> None:
    """Write the checksums u32 [n] of the pieces of the file `name`."""
    writer.write_array(_stored_name(name), values)


def open_checksums(folder: Path, name: str, manifest: Manifest, *, pieces: int) -> np.ndarray | None:
    """The checksums u32 [n] of the file `name` of a folder, mapped; None if it was written without.

    Raises ArtifactError if they are not those of `pieces` pieces.
    """
    stored = _stored_name(name)
    if f"{stored}.npy" not in manifest.files:
        return None
    values = np.asarray(open_array(folder, stored))  # u32 [n]
    if (values.dtype, values.shape) != (np.uint32, (pieces,)):
        raise damaged(
            folder / f"{stored}.npy", f"checksums must be uint32 [{pieces}], got {values.dtype} {list(values.shape)}"
        )
    return values


def _stored_name(name: str) -> str:
    return f"{Path(name).stem}.checksums"


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One of the arrays that are read as one, and what tells whether it is as it was written."""

    file: Path
    array: np.ndarray  # [rows, d], mapped
    sha256: str
    checksums: np.ndarray | None  # u32 [rows]; None for a small file, and for one of an older index

    @classmethod
    def open(cls, folder: Path, name: str, manifest: Manifest) -> StoredShard:
        """The array in the file `name` of a checked folder. Raises ArtifactError if its checksums do not fit it."""
        array = open_array(folder, Path(name).stem)
        values = open_checksums(folder, name, manifest, pieces=len(array))
        return cls(folder / name, np.asarray(array), manifest.files[name].sha256, values)


class ShardChecks:
    """Checks rows of the arrays `shards` as they are read, as `ShardedArray` asks for it.

    A row with a checksum is checked whenever it is read, which takes less time than to remember whether it was; a
    file too small for checksums is hashed when the first of its rows is read. Of an older index, which has none, rows
    of half precision must at least be finite; scores tell as much of single precision.
    """

    def __init__(self, shards: Sequence[StoredShard]) -> None:
        self._shards = shards
        self._starts = np.cumsum([0, *(len(shard.array) for shard in shards)])  # i64 [shards + 1]
        self._is_unread = [shard.checksums is None and shard.array.nbytes < CHECKSUMMED_FROM_BYTES for shard in shards]
        self._is_old = [
            shard.checksums is None and not unread for shard, unread in zip(shards, self._is_unread, strict=True)
        ]

    def __call__(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Raise ArtifactError unless `rows` [m, d] are what was written as rows `numbers` i64 [m].

        The numbers ascend if there are several shards.
        """
        one = len(self._shards) == 1
        bounds = [0, len(numbers)] if one else numbers.searchsorted(self._starts).tolist()  # shards + 1 numbers
        got = row_checksums(rows)  # u32 [m]
        expected = got.copy()  # u32 [m]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start == stop:
                continue
            if (values := self._shards[number].checksums) is not None:
                values.take(numbers[start:stop] - self._starts[number], out=expected[start:stop], mode="clip")
            elif self._is_unread[number]:
                self._hash(number)
            elif self._is_old[number]:
                check_finite(rows[start:stop], numbers[start:stop])
        if (wrong := expected != got).any():
            place = int(np.argmax(wrong))
            shard = int(np.searchsorted(self._starts, numbers[place], side="right")) - 1
            file, array = self._shards[shard].file, self._shards[shard].array
            first = NPY_HEADER_BYTES + int(numbers[place] - self._starts[shard]) * array[:1].nbytes
            raise damaged(file, f"invalid checksum of bytes {first} to {first + array[:1].nbytes - 1}")

    def _hash(self, number: int) -> None:
        """Hash a whole file, as it is mapped: a newer generation may have taken the place of its folder."""
        shard = self._shards[number]
        content = hashlib.sha256(npy_header(shard.array.dtype, shard.array.shape))
        content.update(shard.array.reshape(-1).view(np.uint8).data)
        if content.hexdigest() != shard.sha256:
            raise damaged(shard.file, f"expected SHA-256 {shard.sha256}, got {content.hexdigest()}")
        self._is_unread[number] = False
