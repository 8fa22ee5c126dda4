"""One shard of a block store: .npy files, written in one go and memory-mapped from then on.

token_ids       u16 or i32 [T]      flags           u8 [T]
block_offsets   i64 [blocks + 1]    block_documents i64 [blocks], document within the shard
first_chars     u32 [blocks], the first code point of each block in the text of its document
char_offsets    u8, u16 or u32 [T], code points from there to each token
char_lengths    u8, u16 or u32 [T], code points of each token, 0 for tokens that are not in the text
document_keys   u64 [documents], `document_key` of each id
texts           u8 [bytes], the texts of the documents in UTF-8       text_offsets    i64 [documents + 1]
records         u8 [bytes], their ids, titles and fields as JSON      record_offsets  i64 [documents + 1]
field_values    u8 [bytes], JSON of {field: distinct values, in the order of their first documents}
field_codes     i32 [fields, documents], the value of each document; fields by name, -1 where the field is missing
counts.json     sources (items that were read, documents or not) and tokens

Mapped files stay readable when a newer generation has replaced their folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import open_array
from npm.core.errors import damaged
from npm.core.files import FolderWriter
from npm.core.types import Block, Document

STORE_KIND = "block-store"
SHARD_KIND = "block-store-shard"
COUNTS_NAME = "counts"
MISSING = -1

Packed = tuple[Document, Sequence[Block]]
"""A document and its blocks."""
FieldValues = dict[str, tuple[list[Any], np.ndarray]]
"""By field: its distinct JSON values, and i32 [documents], the index of each document's value, -1 without."""


def document_key(identifier: str) -> int:
    """Hash an id for looking it up, in [1, 2^64): BLAKE2b of 8 bytes; 0 is left to mean no id.

    A text from outside that is not valid Unicode has a key too, though no document can have such an id.
    """
    return int.from_bytes(blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest()) or 1


def encoded_document(document: Document) -> tuple[bytes, bytes]:
    """Return a document as it is stored: id, title and fields as JSON, and its text."""
    record = {"id": document.id, "title": document.title, "fields": document.fields}
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode(), document.text.encode()


def write_shard(folder: FolderWriter, packed: Sequence[Packed], token_dtype: np.dtype) -> None:
    """Write documents, which may have no blocks, as the files of a shard."""
    documents = [document for document, _ in packed]
    blocks = [block for _, own in packed for block in own]
    names, values, codes = _field_columns(documents)
    field_values = "{" + ",".join(f"{json.dumps(name)}:[{','.join(values[name])}]" for name in names) + "}"
    arrays = {
        "flags": np.concatenate([np.zeros(0, np.uint8), *(block.flags for block in blocks)]),  # u8 [T]
        "block_offsets": np.cumsum([0, *(len(block.token_ids) for block in blocks)], dtype=np.int64),
        "block_documents": np.repeat(np.arange(len(packed)), [len(own) for _, own in packed]),  # i64 [blocks]
        "document_keys": np.array([document_key(document.id) for document in documents], dtype=np.uint64),
        "field_values": np.frombuffer(field_values.encode(), dtype=np.uint8),
        "field_codes": codes,
    }
    token_ids = np.concatenate([np.zeros(0, np.int32), *(block.token_ids for block in blocks)])  # i32 [T]
    arrays["token_ids"] = token_ids.astype(token_dtype)
    if not np.array_equal(arrays["token_ids"], token_ids):
        raise ValueError(f"token ids up to {token_ids.max()} do not fit into {token_dtype}")
    arrays |= stored_places(blocks)
    encoded = [encoded_document(document) for document in documents]
    for name, parts in (("record", [record for record, _ in encoded]), ("text", [text for _, text in encoded])):
        arrays[f"{name}s"] = np.frombuffer(b"".join(parts), dtype=np.uint8)
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    for name, array in arrays.items():
        folder.write_array(name, array)
    folder.write_json(COUNTS_NAME, {"sources": len(packed), "tokens": len(token_ids)})


def stored_places(blocks: Sequence[Block]) -> dict[str, np.ndarray]:
    """Characters of the tokens of some blocks as a shard stores them, in the smallest types that hold all of them.

    An offset and a length can be added in the type of the offsets. Raises ValueError if a token ends before it starts.

    >>> none = np.zeros(2, dtype=np.uint8)
    >>> places = stored_places([Block(none, none, np.uint32([0, 4]), np.uint32([3, 9])),
    ...     Block(none, none, np.uint32([70_010, 70_011]), np.uint32([70_010, 70_020]))])
    >>> [(name, each.tolist(), str(each.dtype)) for name, each in places.items()]  # doctest: +NORMALIZE_WHITESPACE
    [('first_chars', [0, 70010], 'uint32'),
     ('char_offsets', [0, 4, 0, 1], 'uint8'),
     ('char_lengths', [3, 5, 0, 9], 'uint8')]
    """
    none = np.zeros(0, dtype=np.uint32)
    first_chars = np.array([block.start_chars.min() for block in blocks], dtype=np.uint32)  # [blocks]
    starts = np.concatenate([none, *(block.start_chars for block in blocks)])  # u32 [T]
    ends = np.concatenate([none, *(block.end_chars for block in blocks)])  # u32 [T]
    if (ends < starts).any():
        raise ValueError("a token ends before it starts")
    firsts = np.repeat(first_chars, [len(block.start_chars) for block in blocks])  # u32 [T]
    longest, widest = (ends - starts).max(initial=0), (ends - firsts).max(initial=0)
    return {
        "first_chars": first_chars,
        "char_offsets": (starts - firsts).astype(np.min_scalar_type(widest)),
        "char_lengths": (ends - starts).astype(np.min_scalar_type(longest)),
    }


def _field_columns(documents: Sequence[Document]) -> tuple[list[str], dict[str, dict[str, int]], np.ndarray]:
    """Names of fields, sorted; by name each distinct value as JSON with its code; codes i32 [fields, documents]."""
    names = sorted({name for each in documents for name, value in each.fields.items() if value is not None})
    values: dict[str, dict[str, int]] = {name: {} for name in names}  # by JSON: 1, 1.0 and true are equal in Python
    codes = np.full((len(names), len(documents)), MISSING, dtype=np.int32)  # [fields, documents]
    for row, name in enumerate(names):
        known = values[name]
        for number, document in enumerate(documents):
            if (value := document.fields.get(name)) is not None:
                text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
                codes[row, number] = known.setdefault(text, len(known))
    return names, values, codes


class ShardDocuments:
    """The documents of one shard folder, numbered within it."""

    def __init__(self, folder: Path) -> None:
        names = ("records", "record_offsets", "texts", "text_offsets", "field_values", "field_codes")
        self._folder = folder
        self._arrays = {name: np.asarray(open_array(folder, name)) for name in names}
        self.keys = np.asarray(open_array(folder, "document_keys"))  # u64 [documents]

    def __len__(self) -> int:
        return len(self.keys)

    def document(self, number: int) -> Document:
        """Return document `number` of the shard."""
        try:
            return Document(**json.loads(self._bytes("record", number)), text=self._bytes("text", number).decode())
        except (ValueError, TypeError) as error:  # the hashes were right
            raise damaged(self._folder, f"document {number} cannot be read ({error})") from error

    def identifier(self, number: int) -> str:
        """Return the id of document `number` of the shard, without reading its text."""
        identifier: str = json.loads(self._bytes("record", number))["id"]
        return identifier

    def fields(self) -> FieldValues:
        """Return the values and codes of every field."""
        values: dict[str, list[Any]] = json.loads(self._arrays["field_values"].tobytes())
        codes = self._arrays["field_codes"]  # i32 [fields, documents]
        return {name: (own, row) for (name, own), row in zip(values.items(), codes, strict=True)}

    def _bytes(self, name: str, number: int) -> bytes:
        start, stop = self._arrays[f"{name}_offsets"][number : number + 2].tolist()
        return self._arrays[f"{name}s"][start:stop].tobytes()
