"""One shard of a block store: .npy files, written in one go and memory-mapped from then on.

token_ids       u16 or i32 [T]      start_chars, end_chars  u32 [T], absent without text
flags           u8 [T]              document_keys   u64 [documents], `document_key` of each id
block_offsets   i64 [blocks + 1]    block_documents i64 [blocks], document within the shard, -1 without one
texts           u8 [bytes], the texts of the documents in UTF-8       text_offsets    i64 [documents + 1]
records         u8 [bytes], their ids, titles and fields as JSON      record_offsets  i64 [documents + 1]
block_bytes     i64 [blocks, 2], where the text of each block begins and ends in texts
field_values    u8 [bytes], JSON of {field: distinct values, in the order of their first documents}
field_codes     i32 [fields, documents], the value of each document; fields by name, -1 where the field is missing
counts.json     sources (what was read, documents or not), documents, blocks, tokens

Mapped files stay readable when a newer generation has taken the place of their folder.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import FolderWriter, open_array
from npm.core.files import ArrayStream
from npm.core.types import Block, Document
from npm.corpus.documents import document_key

STORE_KIND = "block-store"
SHARD_KIND = "block-store-shard"
COUNTS_NAME = "counts"
CHARACTER_ARRAYS = ("start_chars", "end_chars")
CACHED_DOCUMENTS = 64
MISSING = -1

FieldValues = dict[str, tuple[list[Any], np.ndarray]]
"""By field: its distinct JSON values, and i32 [documents], the index of each document's value, -1 without."""


def encoded_document(document: Document) -> tuple[bytes, bytes]:
    """Return a document as it is stored: id, title and fields as JSON, and its text."""
    record = {"id": document.id, "title": document.title, "fields": document.fields}
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode(), document.text.encode()


def block_bytes(text: str, blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Return the first and past-the-last byte in a document's `text` of each of its blocks."""
    places: list[tuple[int, int]] = []
    char = byte = 0
    for block in blocks:
        assert block.start_chars is not None and block.end_chars is not None, "a document's blocks have characters"
        first, stop = int(block.start_chars[0]), int(block.end_chars[-1])
        if first < char:  # two tokens of one character, cut apart
            char = byte = 0
        start = byte + len(text[char:first].encode())
        char, byte = stop, start + len(text[first:stop].encode())
        places.append((start, byte))
    return places


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
        self._bytes = [folder.stream_array(name, np.uint8) for name in ("records", "texts")]
        self._offsets = [array("q", [0]), array("q", [0])]  # of records and texts
        self._source_count = 0
        self._block_offsets = array("q", [0])
        self._block_documents = array("q")
        self._block_bytes = array("q")
        self._document_keys = array("Q")
        self._codes: dict[str, dict[str, int]] = {}  # by field and JSON text: 1, 1.0 and true are equal in Python
        self._field_codes: dict[str, array[int]] = {}  # i32, up to the last document that has the field

    def append(self, document: Document | None, blocks: Sequence[Block]) -> None:
        """Add one document, which may have no blocks, or blocks without a document."""
        self._source_count += 1
        number = -1
        places = [(0, 0)] * len(blocks)
        if document is not None:
            number = len(self._document_keys)
            self._document_keys.append(document_key(document.id))
            self._append_fields(number, document)
            if blocks and blocks[0].start_chars is not None:
                first = self._offsets[1][-1]
                places = [(first + start, first + stop) for start, stop in block_bytes(document.text, blocks)]
            for stream, offsets, data in zip(self._bytes, self._offsets, encoded_document(document), strict=True):
                stream.append(np.frombuffer(data, dtype=np.uint8))
                offsets.append(offsets[-1] + len(data))
        for block, place in zip(blocks, places, strict=True):
            if not len(block.token_ids):
                raise ValueError("a block has no tokens")
            self._block_offsets.append(self._block_offsets[-1] + len(block.token_ids))
            self._block_documents.append(number)
            self._block_bytes.extend(place)
        if blocks:
            self._append_tokens(blocks)

    def finish(self) -> None:
        """Write what was gathered; nothing may follow."""
        if not self._block_documents:
            self._open_character_streams()
        names = sorted(self._codes)
        document_count = len(self._document_keys)
        codes = np.full((len(names), document_count), MISSING, dtype=np.int32)  # [fields, documents]
        for row, name in enumerate(names):
            codes[row, : len(self._field_codes[name])] = self._field_codes[name]
        values = "{" + ",".join(f"{json.dumps(name)}:[{','.join(self._codes[name])}]" for name in names) + "}"
        arrays: dict[str, np.ndarray] = {
            "block_offsets": np.array(self._block_offsets, dtype=np.int64),
            "block_documents": np.array(self._block_documents, dtype=np.int64),
            "block_bytes": np.array(self._block_bytes, dtype=np.int64).reshape(-1, 2),  # [blocks, 2]
            "record_offsets": np.array(self._offsets[0], dtype=np.int64),
            "text_offsets": np.array(self._offsets[1], dtype=np.int64),
            "document_keys": np.array(self._document_keys, dtype=np.uint64),
            "field_values": np.frombuffer(values.encode(), dtype=np.uint8),
            "field_codes": codes,
        }
        for name, values_of_name in arrays.items():
            self._folder.write_array(name, values_of_name)
        counts = {"documents": document_count, "blocks": len(self._block_documents), "tokens": self.token_count}
        self._folder.write_json(COUNTS_NAME, {"sources": self._source_count, **counts})

    def _append_fields(self, number: int, document: Document) -> None:
        """Add the fields of document `number`; null counts as missing."""
        for name, value in document.fields.items():
            if value is not None:
                text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
                codes_of_texts = self._codes.setdefault(name, {})
                codes = self._field_codes.setdefault(name, array("i"))
                codes.extend([MISSING] * (number - len(codes)))
                codes.append(codes_of_texts.setdefault(text, len(codes_of_texts)))

    def _append_tokens(self, blocks: Sequence[Block]) -> None:
        if self.token_count == 0 and blocks[0].start_chars is not None:
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


class ShardDocuments:
    """The documents of one shard folder, numbered within it."""

    def __init__(self, folder: Path) -> None:
        def mapped(name: str) -> np.ndarray:
            return np.asarray(open_array(folder, name))

        self.keys = mapped("document_keys")  # u64 [documents]
        self._records, self._texts = mapped("records"), mapped("texts")  # u8 [bytes]
        self._record_offsets, self._text_offsets = mapped("record_offsets"), mapped("text_offsets")
        self._block_bytes = mapped("block_bytes")  # i64 [blocks, 2]
        self._field_values, self._field_codes = mapped("field_values"), mapped("field_codes")

    def __len__(self) -> int:
        return len(self.keys)

    def encoded(self, number: int) -> tuple[bytes, bytes]:
        """Return document `number` of the shard as it is stored; see `encoded_document`."""
        start, stop = self._text_offsets[number : number + 2].tolist()
        return self._record(number), self._texts[start:stop].tobytes()

    def document(self, number: int) -> Document:
        """Return document `number` of the shard."""
        record, text = self.encoded(number)
        return Document(**json.loads(record), text=text.decode())

    def identifier(self, number: int) -> str:
        """Return the id of document `number` of the shard, without reading its text."""
        identifier: str = json.loads(self._record(number))["id"]
        return identifier

    def block_text(self, block: int) -> str:
        """Return the text of block `block` of the shard, from its first character to its last."""
        start, stop = self._block_bytes[block].tolist()
        return self._texts[start:stop].tobytes().decode()

    def fields(self) -> FieldValues:
        """Return the values and codes of every field."""
        values: dict[str, list[Any]] = json.loads(self._field_values.tobytes())
        return {name: (own, codes) for (name, own), codes in zip(values.items(), self._field_codes, strict=True)}

    def _record(self, number: int) -> bytes:
        start, stop = self._record_offsets[number : number + 2].tolist()
        return self._records[start:stop].tobytes()


class StoredDocuments:
    """The documents of several shards, numbered through all of them in order."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.shards = [ShardDocuments(folder) for folder in folders]
        self.first_documents = np.cumsum([0, *map(len, self.shards)], dtype=np.int64)  # [shards + 1]
        self._cached = functools.lru_cache(CACHED_DOCUMENTS)(self._read)

    def __len__(self) -> int:
        return int(self.first_documents[-1])

    def document(self, number: int) -> Document:
        """Return document `number`, read from disk; the last few are kept. Raises IndexError."""
        return self._cached(int(number))

    def identifiers(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """Return the ids of the documents `numbers` [n], in that order. Raises IndexError."""
        places = (self._place(int(number)) for number in numbers)
        return [shard.identifier(local) for shard, local in places]

    def find(self, identifiers: Sequence[str], among: np.ndarray | None = None) -> np.ndarray:
        """Return the numbers i64 [n] of the documents with these ids; -1 for other ids.

        `among` bool [documents] restricts them. Of several documents with one id, as an older one and its replacement,
        it is the last. One pass over the keys, and a record for each document whose key fits, since ids may share keys.
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
        """Return the numbers i64 [2], ascending, of two documents with one id; None if each has its own.

        Takes 24 bytes per document.
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
