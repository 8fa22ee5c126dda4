"""The tokens of a corpus on disk: shard folders of flat arrays, read memory-mapped as one.

A build that was killed continues: finished shards are kept, and their documents are read again but not tokenised.
Reading takes 16 bytes of private memory a block (where it begins, and its document), whatever the number of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray
from index.files import digest_of
from index.store import MANIFEST_NAME, Manifest, check_folder, open_array
from npm.corpus.blocks import BlockPacker
from npm.corpus.building import Batches, Packed, Progress, StoreBuild
from npm.corpus.fields import FieldValues
from npm.corpus.ranges import concatenated_ranges
from npm.corpus.shards import SHARD_KIND, STORE_KIND
from npm.corpus.stored_documents import StoredDocuments
from npm.errors import ArtefactError
from npm.types import Document, Sequences

TOKENS_PER_SHARD = 4_194_304
DOCUMENTS_PER_BATCH = 64
CHARS_PER_BATCH = 1_000_000
SHARED_SETTINGS = ("tokenizer_fingerprint", "special_tokens_in_blocks", "vocabulary_size")
"""What must be equal in stores that are read as one."""


class BlockStore:
    """The blocks and documents of one or more segments, numbered through all their shards. Made by `BlockStore.open`.

    Token positions run through all blocks: block b is [block_offsets[b], block_offsets[b + 1]). What was opened stays
    readable after its folder was removed.
    """

    token_ids: ShardedArray  # u16 or i32 [T]
    flags: ShardedArray  # u8 [T], TokenFlag
    start_chars: ShardedArray | None  # u32 [T], code points in the document's text; None without text
    end_chars: ShardedArray | None  # u32 [T]
    block_offsets: np.ndarray  # i64 [blocks + 1]
    block_documents: np.ndarray  # i64 [blocks], -1 without a document
    shard_documents: np.ndarray  # i64 [shards + 1], first document of each shard, and their number
    shard_blocks: np.ndarray  # i64 [shards + 1], first block
    segment_documents: np.ndarray  # i64 [segments + 1], first document of each segment, and their number
    segment_blocks: np.ndarray  # i64 [segments + 1], first block
    segment_tokens: np.ndarray  # i64 [segments + 1], first token

    def __init__(self, folders: Sequence[Path], manifests: Sequence[Manifest], *, with_text: bool) -> None:
        self.folder = folders[0]
        self.settings: dict[str, Any] = manifests[0].settings
        digests = [manifest.digest for manifest in manifests]
        self.digest = digests[0] if len(digests) == 1 else digest_of(digests)
        self.tokenizer_fingerprint: str = self.settings["tokenizer_fingerprint"]
        self.special_tokens_in_blocks: bool = self.settings["special_tokens_in_blocks"]
        self._shard_folders = [
            folder / name for folder, manifest in zip(folders, manifests, strict=True) for name in manifest.parts
        ]
        self.token_ids = self._sharded("token_ids")
        self.flags = self._sharded("flags")
        self.start_chars = self._sharded("start_chars") if with_text else None
        self.end_chars = self._sharded("end_chars") if with_text else None
        self._documents = StoredDocuments(self._shard_folders)
        self.shard_documents = self._documents.first_documents
        self.shard_blocks, self.block_offsets, self.block_documents = self._numbered_blocks()
        self.token_count = int(self.block_offsets[-1])
        self.block_count = len(self.block_documents)
        self.document_count = len(self._documents)
        shards_before = np.cumsum([0, *(len(manifest.parts) for manifest in manifests)])  # [segments + 1]
        self.segment_documents = self.shard_documents[shards_before]  # [segments + 1]
        self.segment_blocks = self.shard_blocks[shards_before]  # [segments + 1]
        self.segment_tokens = self.block_offsets[self.segment_blocks]  # [segments + 1]
        lengths = np.diff(self.block_offsets)  # [blocks]
        self.max_block_tokens = int(lengths.max()) if len(lengths) else 0

    @classmethod
    def open(cls, folder: str | Path, *more_folders: str | Path) -> BlockStore:
        """Open finished stores as one, in the order given; `folder` and `settings` are then those of the first.

        Raises ArtefactError if one is missing, unfinished or damaged, or does not go together with the first.
        """
        folders = [Path(folder), *map(Path, more_folders)]
        manifests = [check_folder(path, kind=STORE_KIND) for path in folders]
        have_text = []
        for path, manifest in zip(folders, manifests, strict=True):
            shards = [check_folder(path / name, kind=SHARD_KIND) for name in manifest.parts]
            have_text.append(all("start_chars.npy" in shard.files for shard in shards))
            _check_fits(path, (manifest, have_text[-1]), folders[0], (manifests[0], have_text[0]))
        return cls(folders, manifests, with_text=have_text[0])

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
        """Document `number` of the store, read from disk; the last few are kept. Raises IndexError."""
        return self._documents.document(number)

    def document_ids(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of the documents `numbers` [n], in that order, without reading their texts. Raises IndexError."""
        return self._documents.identifiers(numbers)

    def find_documents(self, ids: Sequence[str], among: np.ndarray | None = None) -> np.ndarray:
        """The numbers i64 [n] of the documents with these ids, -1 where there is none.

        `among` bool [documents] says which may be found, such as those that are not deleted. Where several have one
        id, it is the last of them.
        """
        return self._documents.find(ids, among)

    def field_columns(self) -> Iterator[tuple[slice, FieldValues]]:
        """Shard by shard: the range of its documents, and the values of their kept fields."""
        for number, shard in enumerate(self._documents.shards):
            first, stop = self.shard_documents[number : number + 2].tolist()
            yield slice(first, stop), shard.fields.read()

    def blocks_of_documents(self, chosen: np.ndarray, *, without_document: bool = False) -> np.ndarray:
        """Which blocks belong to the documents `chosen` bool [documents], bool [blocks]; as told for those of none."""
        if chosen.shape != (self.document_count,):
            raise ValueError(f"expected bool [{self.document_count}], got {chosen.dtype} {list(chosen.shape)}")
        return np.append(chosen, without_document)[self.block_documents]  # [blocks], -1 takes the last

    def block_of(self, positions: np.ndarray) -> np.ndarray:
        """The blocks i64 [n] that hold the token positions i64 [n]."""
        return np.searchsorted(self.block_offsets, positions, side="right") - 1  # [n]

    def block_text(self, block: int) -> str:
        """The surface text of a block, from its first character to its last; "" where the store has no text."""
        if self.start_chars is None or self.block_documents[block] < 0:
            return ""
        shard = int(np.searchsorted(self.shard_blocks, block, side="right")) - 1
        return self._documents.shards[shard].block_text(block - int(self.shard_blocks[shard]))

    def _sharded(self, name: str) -> ShardedArray:
        return ShardedArray([open_array(shard, name) for shard in self._shard_folders])

    def _numbered_blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First blocks of the shards i64 [shards + 1], offsets i64 [blocks + 1] and documents i64 [blocks] of all."""
        local_offsets = [open_array(shard, "block_offsets") for shard in self._shard_folders]
        shard_blocks = np.cumsum([0, *(len(offsets) - 1 for offsets in local_offsets)], dtype=np.int64)  # [shards + 1]
        offsets = np.zeros(shard_blocks[-1] + 1, dtype=np.int64)  # [blocks + 1]
        documents = np.empty(shard_blocks[-1], dtype=np.int64)  # [blocks]
        for shard, local in enumerate(local_offsets):
            first, stop = shard_blocks[shard : shard + 2].tolist()
            offsets[first + 1 : stop + 1] = local[1:] + offsets[first]
            numbers = open_array(self._shard_folders[shard], "block_documents")  # [blocks of the shard]
            documents[first:stop] = np.where(numbers < 0, -1, numbers + self.shard_documents[shard])
        return shard_blocks, offsets, documents


def _check_fits(path: Path, own: tuple[Manifest, bool], first_path: Path, first: tuple[Manifest, bool]) -> None:
    """Raise ArtefactError unless two stores, each with its manifest and whether it has text, can be read as one."""
    got, expected = (
        {**{name: manifest.settings[name] for name in SHARED_SETTINGS}, "text": with_text}
        for manifest, with_text in (own, first)
    )
    if names := [name for name in got if got[name] != expected[name]]:
        raise ArtefactError(
            f"{path} does not go together with {first_path}",
            expected=", ".join(f"{name}={expected[name]!r}" for name in names),
            got=", ".join(f"{name}={got[name]!r}" for name in names),
            where=str(path),
            fix="add documents with the encoder and the settings that the index was built with",
        )


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
