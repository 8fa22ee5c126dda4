"""Lines of text files, plain or compressed, decoded one by one and never more than one at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from npm.errors import CorpusError

CHUNK_BYTES = 1 << 18
BYTE_ORDER_MARK = "\ufeff"


def read_lines(
    path: Path, *, keep_ends: bool = False, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1; `.zst` files are decompressed.

    Only a line feed, with a carriage return before it or not, ends a line; it is removed unless `keep_ends`. A byte
    order mark at the beginning is not text. `on_bytes(bytes)` is called with the size of each piece of the file, as it
    lies on the disk, before its lines come. Raises CorpusError naming file and line for bytes that are not UTF-8 and
    for compressed data that is damaged or ends early.
    """
    stored = _plain_chunks(path, on_bytes)
    chunks = _decompressed_chunks(path, stored) if path.suffix == ".zst" else stored
    for number, line in enumerate(_split_lines(chunks), start=1):
        text = _decoded(line, path, number)
        text = text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
        yield number, text if keep_ends else text.removesuffix("\n").removesuffix("\r")


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path.name} is not UTF-8 in line {number}",
            expected="text encoded as UTF-8",
            got=f"byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line",
            where=f"{path}:{number}",
            fix="convert the file to UTF-8, for example with iconv",
        ) from None


def _split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of all chunks in a row, each with its line feed."""
    unfinished: list[bytes] = []
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join((*unfinished, line, b"\n"))
            unfinished.clear()
        unfinished.append(rest)
    if last := b"".join(unfinished):
        yield last


def _plain_chunks(path: Path, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            if on_bytes is not None:
                on_bytes(len(chunk))
            yield chunk


def _decompressed_chunks(path: Path, stored: Iterator[bytes]) -> Iterator[bytes]:
    """Frame by frame: zstandard's own stream reader ends quietly where a file was cut off."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    try:
        for compressed in stored:
            while compressed:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise CorpusError(
            f"{path.name} cannot be decompressed",
            expected="data compressed with zstd",
            got=str(error),
            where=str(path),
            fix="fetch or make the file again",
        ) from None
    if frame is not None:
        raise CorpusError(
            f"{path.name} ends in the middle of its compressed data",
            expected="a whole zstd file",
            got=f"the first {path.stat().st_size} bytes of one",
            where=str(path),
            fix="fetch or make the file again: it was not written or copied to the end",
        )
