"""One shard of a block store: written in one go, immutable from then on.

token_ids.npy     u16 or i32 [T]        start_chars.npy, end_chars.npy   u32 [T], absent without text
flags.npy         u8 [T]                documents.jsonl                  one JSON object a line
block_offsets.npy i64 [blocks + 1]      document_offsets.npy             i64 [documents + 1], bytes
block_documents.npy i64 [blocks], number of the document within the shard, -1 without one
text_bytes.npy    i64 [blocks, 2], where the block's text stands in documents.jsonl, as a piece of a JSON string
document_keys.npy u64 [documents], `document_key` of each id      field_values.json, field_codes.npy   see `fields`
counts.json       sources (what was read, documents or not), documents, blocks, tokens

field_values.json  {field: [value, …]}, the distinct values in the order in which they first come
field_codes.npy    i32 [fields, documents], fields in the order of their names; -1 where a document lacks the field

Nothing is held in memory for a document: offsets and keys are mapped, lines are read where they stand. Everything is
opened once, so that a reader goes on when a newer generation has taken the folder's place.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import FolderWriter, open_array
from npm.core.errors import damaged
from npm.core.files import ArrayStream
from npm.core.types import Block, Document
from npm.corpus.documents import document_key


class HeldFile:
    """A file opened once and read at any place, also by several threads and after its folder was removed.

    Takes one descriptor, given back when the object is collected.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.byte_count = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of the file. Raises ArtifactError if it was cut short after it was opened."""
        read = os.pread(self._descriptor, stop - start, start)
        if len(read) < stop - start:
            raise damaged(self._path, f"{os.fstat(self._descriptor).st_size} bytes, expected at least {stop}")
        return read


VALUES_NAME = "field_values"
CODES_NAME = "field_codes"
MISSING = -1

FieldValues = dict[str, tuple[list[Any], np.ndarray]]
"""By field: its distinct JSON values, and i32 [documents], the place of each document's among them, -1 without."""


class FieldEncoder:
    """Gathers the fields of documents in the order of their numbers; null counts as missing."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._codes_by_text: dict[str, dict[str, int]] = {}
        self._codes: dict[str, array[int]] = {}  # i32, up to the last document that has the field

    def append(self, number: int, fields: Mapping[str, Any]) -> None:
        """Add the fields of document `number` of the shard; numbers ascend."""
        for name, value in fields.items():
            if value is None:
                continue
            if name not in self._values:
                self._values[name], self._codes_by_text[name], self._codes[name] = [], {}, array("i")
            # By their JSON text, since 1, 1.0 and true are equal in Python, and lists are no keys.
            text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
            code = self._codes_by_text[name].setdefault(text, len(self._values[name]))
            if code == len(self._values[name]):
                self._values[name].append(value)
            codes = self._codes[name]
            codes.extend([MISSING] * (number - len(codes)))
            codes.append(code)

    def write(self, folder: FolderWriter, *, document_count: int) -> None:
        """Write the columns of all documents of the shard."""
        names = sorted(self._values)
        codes = np.full((len(names), document_count), MISSING, dtype=np.int32)  # [fields, documents]
        for row, name in enumerate(names):
            codes[row, : len(self._codes[name])] = self._codes[name]
        folder.write_json(VALUES_NAME, self._values)
        folder.write_array(CODES_NAME, codes)


class FieldColumns:
    """The kept fields of the documents of a shard, read from its folder; the values stay on disk."""

    def __init__(self, folder: Path) -> None:
        codes = open_array(folder, CODES_NAME)  # i32 [fields, documents]
        # Most corpora keep no field: then nothing is held open.
        self._codes = np.asarray(codes) if len(codes) else None
        self._values_file = HeldFile(folder / f"{VALUES_NAME}.json") if len(codes) else None

    def read(self) -> FieldValues:
        """The values and codes of every field.

        >>> import tempfile
        >>> from npm.core.artifact import write_folder
        >>> folder = Path(tempfile.mkdtemp()) / "shard"
        >>> with write_folder(folder, kind="example", settings={}) as writer:
        ...     fields = FieldEncoder()
        ...     fields.append(0, {"lang": "en"})
        ...     fields.append(2, {"lang": "de"})
        ...     fields.append(3, {"lang": "en"})
        ...     fields.write(writer, document_count=5)
        >>> values, codes = FieldColumns(folder).read()["lang"]
        >>> values, codes.tolist()
        (['en', 'de'], [0, -1, 1, 0, -1])
        """
        if self._values_file is None or self._codes is None:
            return {}
        values: dict[str, list[Any]] = json.loads(self._values_file.read(0, self._values_file.byte_count))
        # The file has its keys sorted, as the rows of codes are.
        return {name: (own, codes) for (name, own), codes in zip(values.items(), self._codes, strict=True)}


STORE_KIND = "block-store"
SHARD_KIND = "block-store-shard"
DOCUMENTS_FILE = "documents.jsonl"
LINE_START = '{"id": '
"""What every line of it begins with; the id follows as a JSON string."""
TEXT_START = b'"text": "'
"""What stands in a line before the text; inside a JSON string its quotes would be escaped."""
COUNTS_NAME = "counts"
CHARACTER_ARRAYS = ("start_chars", "end_chars")


def document_line(document: Document) -> bytes:
    """A document as it stands in `documents.jsonl`."""
    return (json.dumps(asdict(document), ensure_ascii=False, allow_nan=False) + "\n").encode()


def text_bytes(line: bytes, text: str, blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """First and past-the-last byte in a document's `line` of the text of each of its blocks, without the quotes."""
    places: list[tuple[int, int]] = []
    char, byte = 0, line.index(TEXT_START) + len(TEXT_START)
    for block in blocks:
        assert block.start_chars is not None and block.end_chars is not None, "a document's blocks have characters"
        first, stop = int(block.start_chars[0]), int(block.end_chars[-1])
        if first < char:  # two tokens of one character, cut apart
            char, byte = 0, line.index(TEXT_START) + len(TEXT_START)
        start = byte + _escaped_length(text[char:first])
        char, byte = stop, start + _escaped_length(text[first:stop])
        places.append((start, byte))
    return places


def _escaped_length(text: str) -> int:
    """Bytes that a piece of text takes inside a JSON string."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


class ShardWriter:
    """Streams documents and their blocks into the files of one shard folder."""

    def __init__(self, folder: FolderWriter, *, token_dtype: np.dtype) -> None:
        self.token_count = 0
        self._folder = folder
        self._token_dtype = token_dtype
        self._streams: dict[str, ArrayStream] = {
            "token_ids": folder.stream_array("token_ids", token_dtype),
            "flags": folder.stream_array("flags", np.uint8),
        }
        self._documents = folder.open_binary(DOCUMENTS_FILE)
        self._source_count = 0
        self._block_offsets = array("q", [0])
        self._block_documents = array("q")
        self._text_bytes = array("q")
        self._document_offsets = array("q", [0])
        self._document_keys = array("Q")
        self._fields = FieldEncoder()

    @property
    def document_count(self) -> int:
        """Documents added so far."""
        return len(self._document_keys)

    def append(self, document: Document | None, blocks: Sequence[Block]) -> None:
        """Add one document, which may have no blocks, or blocks without a document."""
        self._source_count += 1
        if document is not None:
            line = document_line(document)
            if blocks and blocks[0].start_chars is not None:
                places = np.array(text_bytes(line, document.text, blocks)) + self._document_offsets[-1]  # [blocks, 2]
                self._text_bytes.extend(places.reshape(-1).tolist())
            self._documents.write(line)
            self._document_offsets.append(self._document_offsets[-1] + len(line))
            self._fields.append(self.document_count, document.fields)
            self._document_keys.append(document_key(document.id))
        if not blocks:
            return
        number = -1 if document is None else self.document_count - 1
        if document is None or blocks[0].start_chars is None:
            self._text_bytes.extend([0, 0] * len(blocks))
        for block in blocks:
            if not len(block.token_ids):
                raise ValueError("a block has no tokens")
            self._block_offsets.append(self._block_offsets[-1] + len(block.token_ids))
            self._block_documents.append(number)
        self._append_tokens(blocks)

    def finish(self) -> None:
        """Write what was gathered; nothing may follow."""
        if not self._block_documents:
            self._open_character_streams()
        self._folder.write_array("block_offsets", np.array(self._block_offsets, dtype=np.int64))
        self._folder.write_array("block_documents", np.array(self._block_documents, dtype=np.int64))
        text_places = np.array(self._text_bytes, dtype=np.int64).reshape(-1, 2)  # [blocks, 2]
        self._folder.write_array("text_bytes", text_places)
        self._folder.write_array("document_offsets", np.array(self._document_offsets, dtype=np.int64))
        self._folder.write_array("document_keys", np.array(self._document_keys, dtype=np.uint64))
        self._fields.write(self._folder, document_count=self.document_count)
        counts = {
            "sources": self._source_count,
            "documents": self.document_count,
            "blocks": len(self._block_documents),
            "tokens": self.token_count,
        }
        self._folder.write_json(COUNTS_NAME, counts)

    def _append_tokens(self, blocks: Sequence[Block]) -> None:
        with_text = blocks[0].start_chars is not None
        if self.token_count == 0 and with_text:
            self._open_character_streams()
        if any((block.start_chars is not None) != (CHARACTER_ARRAYS[0] in self._streams) for block in blocks):
            raise ValueError("some blocks have character offsets and some have none")
        self.token_count = self._block_offsets[-1]
        for name, stream in self._streams.items():
            values = np.concatenate([getattr(block, name) for block in blocks])  # [T of the document]
            stored = values.astype(self._token_dtype) if name == "token_ids" else values  # u16 or i32
            if not np.array_equal(stored, values):
                raise ValueError(f"token ids up to {values.max()} do not fit into {stored.dtype}")
            stream.append(stored)

    def _open_character_streams(self) -> None:
        for name in CHARACTER_ARRAYS:
            self._streams[name] = self._folder.stream_array(name, np.uint32)


CACHED_DOCUMENTS = 64
ID_BYTES = 512
"""Read of a line when only its id is asked for; a longer id takes a second read, of the whole line."""


class ShardDocuments:
    """The documents of one shard folder, numbered within it."""

    def __init__(self, folder: Path) -> None:
        self.keys = np.asarray(open_array(folder, "document_keys"))  # u64 [documents], mapped
        self.fields = FieldColumns(folder)
        self._offsets = np.asarray(open_array(folder, "document_offsets"))  # i64 [documents + 1], mapped
        self._text_bytes = np.asarray(open_array(folder, "text_bytes"))  # i64 [blocks, 2], mapped
        self._lines = HeldFile(folder / DOCUMENTS_FILE)

    def __len__(self) -> int:
        return len(self.keys)

    def document(self, number: int) -> Document:
        """Document `number` of the shard."""
        return Document(**json.loads(self._lines.read(*self._line(number))))

    def block_text(self, block: int) -> str:
        """The text of block `block` of the shard, from its first character to its last; its document is not read."""
        start, stop = self._text_bytes[block].tolist()
        text: str = json.loads(b'"' + self._lines.read(start, stop) + b'"')
        return text

    def identifier(self, number: int) -> str:
        """The id of document `number` of the shard, without reading its text."""
        start, stop = self._line(number)
        line = self._lines.read(start, min(stop, start + ID_BYTES))
        try:
            # A character cut at the end is of no matter: then the id is not closed either.
            identifier, _ = json.JSONDecoder().raw_decode(line.decode(errors="ignore"), len(LINE_START))
        except json.JSONDecodeError:
            return self.document(number).id
        assert isinstance(identifier, str), f"an id of type {type(identifier).__name__}"
        return identifier

    def _line(self, number: int) -> tuple[int, int]:
        return int(self._offsets[number]), int(self._offsets[number + 1])


class StoredDocuments:
    """The documents of several shards, numbered through all of them in order."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.shards = [ShardDocuments(folder) for folder in folders]
        self.first_documents = np.cumsum([0, *map(len, self.shards)], dtype=np.int64)  # [shards + 1]
        self._cached = functools.lru_cache(CACHED_DOCUMENTS)(self._read)

    def __len__(self) -> int:
        return int(self.first_documents[-1])

    def document(self, number: int) -> Document:
        """Document `number`, read from disk; the last few are kept. Raises IndexError."""
        return self._cached(int(number))

    def identifiers(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of the documents `numbers` [n], in that order; a short read each. Raises IndexError."""
        places = (self._place(int(number)) for number in numbers)
        return [shard.identifier(local) for shard, local in places]

    def find(self, identifiers: Sequence[str], among: np.ndarray | None = None) -> np.ndarray:
        """The numbers i64 [n] of the documents with these ids among those chosen by `among` bool [documents]; else -1.

        Of several documents with one id, as an older one and its replacement, it is the last. One pass over the
        keys, and a short read for each document whose key fits, since two ids may share a key.
        """
        if among is not None and among.shape != (len(self),):
            raise ValueError(f"expected bool [{len(self)}], got {among.dtype} {list(among.shape)}")
        found = dict.fromkeys(identifiers, -1)
        if not found:
            return np.empty(0, dtype=np.int64)
        asked = np.unique(np.array([document_key(identifier) for identifier in found], dtype=np.uint64))  # [keys]
        for first, shard in zip(self.first_documents, self.shards, strict=False):
            places = np.minimum(np.searchsorted(asked, shard.keys), len(asked) - 1)  # [documents of the shard]
            numbers = first + np.flatnonzero(asked[places] == shard.keys)  # [hits]
            if among is not None:
                numbers = numbers[among[numbers]]  # [hits]
            found.update(zip(self.identifiers(numbers), numbers.tolist(), strict=True))
        return np.array([found[identifier] for identifier in identifiers], dtype=np.int64)  # [n]

    def repeated(self) -> np.ndarray | None:
        """The numbers i64 [2], ascending, of two documents with one id; None if each has its own.

        Takes 24 bytes a document.
        """
        keys = np.concatenate([shard.keys for shard in self.shards])  # u64 [documents]
        order = np.argsort(keys, kind="stable")  # i64 [documents]
        for place in np.flatnonzero(np.diff(keys[order]) == 0):
            pair = order[place : place + 2]  # i64 [2]
            if len(set(self.identifiers(pair))) == 1:  # two ids may share a key
                return pair
        return None

    def _place(self, number: int) -> tuple[ShardDocuments, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        shard = int(np.searchsorted(self.first_documents, number, side="right")) - 1
        return self.shards[shard], number - int(self.first_documents[shard])

    def _read(self, number: int) -> Document:
        shard, local = self._place(number)
        return shard.document(local)
