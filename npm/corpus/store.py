"""The tokens of a corpus on disk: shard folders of flat arrays, read memory-mapped as one.

A build that was killed continues: finished shards are kept, and their documents are read again but not tokenised.
Reading takes 16 bytes of private memory a block (where it begins, and its document), whatever the number of tokens.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.store import MANIFEST_NAME, Manifest, ShardedArray, check_folder, open_array
from npm.corpus.blocks import BlockPacker
from npm.corpus.building import Batches, Packed, Progress, StoreBuild
from npm.corpus.ranges import concatenated_ranges
from npm.corpus.shards import DOCUMENTS_FILE, SHARD_KIND, STORE_KIND
from npm.types import Document, Sequences

TOKENS_PER_SHARD = 4_194_304
DOCUMENTS_PER_BATCH = 64
CHARS_PER_BATCH = 1_000_000
CACHED_DOCUMENTS = 64


class BlockStore:
    """The blocks and documents of a corpus, numbered through all shards. Made by `BlockStore.open`.

    Token positions run through all blocks: block b is [block_offsets[b], block_offsets[b + 1]).
    """

    token_ids: ShardedArray  # u16 or i32 [T]
    flags: ShardedArray  # u8 [T], TokenFlag
    start_chars: ShardedArray | None  # u32 [T], code points in the document's text; None without text
    end_chars: ShardedArray | None  # u32 [T]
    block_offsets: np.ndarray  # i64 [blocks + 1]
    block_documents: np.ndarray  # i64 [blocks], -1 without a document

    def __init__(self, folder: Path, manifest: Manifest, shards: Sequence[Manifest]) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = manifest.settings
        self.digest = manifest.digest
        self.tokenizer_fingerprint: str = manifest.settings["tokenizer_fingerprint"]
        self.special_tokens_in_blocks: bool = manifest.settings["special_tokens_in_blocks"]
        self._folders = [folder / name for name in manifest.parts]
        with_text = all("start_chars.npy" in shard.files for shard in shards)
        self.token_ids = self._sharded("token_ids")
        self.flags = self._sharded("flags")
        self.start_chars = self._sharded("start_chars") if with_text else None
        self.end_chars = self._sharded("end_chars") if with_text else None
        self._document_offsets = [open_array(shard, "document_offsets") for shard in self._folders]  # i64 [docs + 1]
        self._first_documents = np.cumsum([0, *(len(offsets) - 1 for offsets in self._document_offsets)])
        self.block_offsets, self.block_documents = self._numbered_blocks()
        self.token_count = int(self.block_offsets[-1])
        self.block_count = len(self.block_documents)
        self.document_count = int(self._first_documents[-1])
        lengths = np.diff(self.block_offsets)  # [blocks]
        self.max_block_tokens = int(lengths.max()) if len(lengths) else 0
        self._cached_document = functools.lru_cache(CACHED_DOCUMENTS)(self._read_document)

    @classmethod
    def open(cls, folder: str | Path) -> BlockStore:
        """Open a finished store. Raises ArtefactError if it is missing, unfinished or damaged."""
        folder = Path(folder)
        manifest = check_folder(folder, kind=STORE_KIND)
        shards = [check_folder(folder / name, kind=SHARD_KIND) for name in manifest.parts]
        return cls(folder, manifest, shards)

    @staticmethod
    def is_finished(folder: str | Path) -> bool:
        """Whether a build in `folder` came to its end."""
        return (Path(folder) / MANIFEST_NAME).is_file()

    def sequences(self, blocks: np.ndarray | range) -> Sequences:
        """The tokens of the given blocks, in the given order; repeats are allowed."""
        numbers = np.asarray(blocks, dtype=np.int64)  # [S]
        starts = self.block_offsets[numbers]  # [S]
        lengths = self.block_offsets[numbers + 1] - starts  # [S]
        offsets = np.concatenate(([0], np.cumsum(lengths)))  # [S + 1]
        positions = concatenated_ranges(starts, starts + lengths)  # [T]
        token_ids = self.token_ids.take(positions).astype(np.int32)  # [T]
        return Sequences(token_ids=token_ids, flags=self.flags.take(positions), offsets=offsets)

    def document(self, number: int) -> Document:
        """Document `number` of the store, read from disk; the last few are kept."""
        return self._cached_document(int(number))

    def block_of(self, positions: np.ndarray) -> np.ndarray:
        """The blocks i64 [n] that hold the token positions i64 [n]."""
        return np.searchsorted(self.block_offsets, positions, side="right") - 1  # [n]

    def block_text(self, block: int) -> str:
        """The surface text of a block, from its first character to its last; "" where the store has no text."""
        document = int(self.block_documents[block])
        if self.start_chars is None or self.end_chars is None or document < 0:
            return ""
        first, stop = self.block_offsets[block : block + 2].tolist()
        start_char = int(self.start_chars.slice(first, first + 1)[0])
        end_char = int(self.end_chars.slice(stop - 1, stop)[0])
        return self.document(document).text[start_char:end_char]

    def _sharded(self, name: str) -> ShardedArray:
        return ShardedArray([open_array(shard, name) for shard in self._folders])

    def _numbered_blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Global offsets i64 [blocks + 1] and documents i64 [blocks] from those of the shards."""
        local_offsets = [open_array(shard, "block_offsets") for shard in self._folders]
        block_count = sum(len(offsets) - 1 for offsets in local_offsets)
        offsets = np.zeros(block_count + 1, dtype=np.int64)  # [blocks + 1]
        documents = np.empty(block_count, dtype=np.int64)  # [blocks]
        first = 0
        for shard, local in enumerate(local_offsets):
            stop = first + len(local) - 1
            offsets[first + 1 : stop + 1] = local[1:] + offsets[first]
            numbers = open_array(self._folders[shard], "block_documents")  # [blocks of the shard]
            documents[first:stop] = np.where(numbers < 0, -1, numbers + self._first_documents[shard])
            first = stop
        return offsets, documents

    def _read_document(self, number: int) -> Document:
        if not 0 <= number < self.document_count:
            raise IndexError(f"document {number} of {self.document_count}")
        shard = int(np.searchsorted(self._first_documents, number, side="right")) - 1
        local = number - int(self._first_documents[shard])
        start, stop = self._document_offsets[shard][local : local + 2].tolist()
        with (self._folders[shard] / DOCUMENTS_FILE).open("rb") as file:
            line = os.pread(file.fileno(), stop - start, start)
        return Document(**json.loads(line))


def build_block_store(
    folder: str | Path,
    documents: Iterable[Document],
    packer: BlockPacker,
    *,
    settings: Mapping[str, Any],
    tokens_per_shard: int = TOKENS_PER_SHARD,
    progress: Progress | None = None,
) -> BlockStore:
    """Cut `documents` into blocks with `packer` and store them; continues an earlier build with the same settings.

    `settings` are kept in the manifest and say what else the bytes depend on, such as the input's fingerprint; JSON
    values only. Returns the opened store, at once if it is finished already. Raises ArtefactError if the folder holds
    something else or the documents are not those of the earlier build, CorpusError if there is no text in them.
    """

    def pack(batch: list[Document]) -> Iterator[Packed]:
        return zip(batch, packer.pack_many(batch), strict=True)

    def document_of(item: Document) -> Document:
        return item

    def char_count(item: Document) -> int:
        return len(item.text)

    StoreBuild(
        folder=Path(folder),
        settings=_store_settings(
            settings,
            blocks=asdict(packer.settings),
            tokens_per_shard=tokens_per_shard,
            tokenizer_fingerprint=packer.tokenizer_fingerprint,
            special_tokens_in_blocks=False,
            vocabulary_size=packer.vocabulary_size,
        ),
        pack=pack,
        document_of=document_of,
        progress=progress or _silent,
    ).run(Batches(documents, most_items=DOCUMENTS_PER_BATCH, most_chars=CHARS_PER_BATCH, chars=char_count))
    return BlockStore.open(folder)


def write_block_store(
    folder: str | Path,
    blocks_by_document: Iterable[Packed],
    *,
    settings: Mapping[str, Any],
    tokenizer_fingerprint: str,
    vocabulary_size: int = 1 << 31,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    special_tokens_in_blocks: bool = False,
    progress: Progress | None = None,
) -> BlockStore:
    """Store blocks that are cut already, each run of them with its document or None; see `build_block_store`.

    Token ids take two bytes where `vocabulary_size` allows it, else four.
    """
    StoreBuild(
        folder=Path(folder),
        settings=_store_settings(
            settings,
            tokens_per_shard=tokens_per_shard,
            tokenizer_fingerprint=tokenizer_fingerprint,
            special_tokens_in_blocks=special_tokens_in_blocks,
            vocabulary_size=vocabulary_size,
        ),
        pack=lambda batch: batch,
        document_of=lambda item: item[0],
        progress=progress or _silent,
    ).run(Batches(blocks_by_document, most_items=1, most_chars=1, chars=lambda _: 1))
    return BlockStore.open(folder)


def _silent(documents: int, tokens: int) -> None:
    """Report to nobody."""


def _store_settings(settings: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """Settings as they come back from JSON, so that they can be compared with stored ones."""
    stored: dict[str, Any] = json.loads(json.dumps({**settings, **own}, allow_nan=False))
    return stored
