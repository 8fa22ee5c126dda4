"""The documents of corpus shards: read by number, found by id, with columns of their kept fields.

Nothing is held in memory for a document: offsets and keys are mapped, lines are read where they stand. Everything is
opened once, so that a reader goes on when a newer generation has taken the folder's place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from index.store import open_array
from npm.corpus.fields import FieldColumns
from npm.corpus.held_files import HeldFile
from npm.corpus.identifiers import document_key
from npm.corpus.shards import DOCUMENTS_FILE, LINE_START
from npm.types import Document

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

    def _place(self, number: int) -> tuple[ShardDocuments, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        shard = int(np.searchsorted(self.first_documents, number, side="right")) - 1
        return self.shards[shard], number - int(self.first_documents[shard])

    def _read(self, number: int) -> Document:
        shard, local = self._place(number)
        return shard.document(local)
