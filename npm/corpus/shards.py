"""One shard of a block store: written in one go, immutable from then on.

token_ids.npy     u16 or i32 [T]        start_chars.npy, end_chars.npy   u32 [T], absent without text
flags.npy         u8 [T]                documents.jsonl                  one JSON object a line
block_offsets.npy i64 [blocks + 1]      document_offsets.npy             i64 [documents + 1], bytes
block_documents.npy i64 [blocks], number of the document within the shard, -1 without one
text_bytes.npy    i64 [blocks, 2], where the block's text stands in documents.jsonl, as a piece of a JSON string
document_keys.npy u64 [documents], `document_key` of each id      field_values.json, field_codes.npy   see `fields`
counts.json       sources (what was read, documents or not), documents, blocks, tokens
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from index.files import ArrayStream
from index.store import FolderWriter
from npm.corpus.fields import FieldEncoder
from npm.corpus.identifiers import document_key
from npm.types import Block, Document

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
            stream.append(self._narrowed(values) if name == "token_ids" else values)

    def _narrowed(self, token_ids: np.ndarray) -> np.ndarray:
        stored = token_ids.astype(self._token_dtype)  # u16 or i32 [T of the document]
        if not np.array_equal(stored, token_ids):
            raise ValueError(f"token ids up to {token_ids.max()} do not fit into {stored.dtype}")
        return stored

    def _open_character_streams(self) -> None:
        for name in CHARACTER_ARRAYS:
            self._streams[name] = self._folder.stream_array(name, np.uint32)
