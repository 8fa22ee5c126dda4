"""The tokens of a corpus on disk: shard folders of flat arrays, read memory-mapped as one.

A build that was killed continues: finished shards are kept, and their documents are read again but not tokenized.
Reading takes 16 bytes of private memory per block (its offset and its document), regardless of the number of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray
from npm.core.artifact import (
    MANIFEST_NAME,
    Manifest,
    check_folder,
    folder_lock,
    open_array,
    read_manifest,
    refuse_changed,
    write_folder,
    write_manifest,
)
from npm.core.errors import ArtifactError, CorpusError
from npm.core.files import digest_of
from npm.core.types import Block, Document, Progress, Sequences, silent
from npm.corpus.blocks import BlockPacker, concatenated_ranges
from npm.corpus.shards import (
    COUNTS_NAME,
    SHARD_KIND,
    STORE_KIND,
    FieldValues,
    ShardDocuments,
    ShardWriter,
    StoredDocuments,
    encoded_document,
)

LARGEST_U16_VOCABULARY = 1 << 16
NO_TEXT = "the corpus has no text; check corpus.files"

Packed = tuple[Document | None, Sequence[Block]]
"""A document and its blocks; blocks without a document; a document whose blocks are still to be cut."""


def next_batch(items: Iterator[Packed], max_items: int, max_chars: int) -> list[Packed]:
    """Take items up to a number of them, or of characters, whichever comes first; none at the end."""
    batch: list[Packed] = []
    chars = 0
    while len(batch) < max_items and chars < max_chars and (item := next(items, None)) is not None:
        batch.append(item)
        chars += len(item[0].text) if item[0] is not None else 0
    return batch


@dataclass(frozen=True, slots=True)
class StoreBuild:
    """Builds the shards of `folder` and then its manifest. `settings` decide every byte, together with the items.

    A shard ends with a batch, so that a continued build gives the packer the same batches as one never interrupted.
    """

    folder: Path
    settings: dict[str, Any]
    pack: Callable[[list[Packed]], Iterable[Packed]]
    max_items: int  # of a batch
    max_chars: int
    progress: Progress

    def run(self, items: Iterator[Packed]) -> None:
        """Build what is missing. Raises ArtifactError and CorpusError."""
        with folder_lock(self.folder):
            if (self.folder / MANIFEST_NAME).is_file():
                self._check_settings(read_manifest(self.folder, kind=STORE_KIND), self.folder)
                return
            try:
                parts = self._build_shards(items)
            except BaseException:
                with suppress(OSError):  # only an empty folder goes: finished shards are kept for the next attempt
                    self.folder.rmdir()
                raise
            write_manifest(self.folder, kind=STORE_KIND, settings=self.settings, parts=parts)

    def _build_shards(self, items: Iterator[Packed]) -> dict[str, str]:
        """Write or skip shard after shard; returns the manifest digest of each by its name."""
        parts: dict[str, str] = {}
        token_count = 0
        while True:
            name = f"{len(parts):05d}"
            path = self.folder / name
            if path.exists():
                manifest = self._skip(path, items)
            elif batch := next_batch(items, self.max_items, self.max_chars):
                self._write(path, batch, items, tokens_before=token_count)
                manifest = read_manifest(path, kind=SHARD_KIND)
            elif parts:
                return parts
            else:
                raise CorpusError(NO_TEXT)
            parts[name] = manifest.digest
            token_count += read_counts(path)["tokens"]
            self.progress("blocks", token_count, None)

    def _write(self, path: Path, batch: list[Packed], items: Iterator[Packed], *, tokens_before: int) -> None:
        """Write the shard that begins with `batch`."""
        token_dtype = np.dtype(np.uint16 if self.settings["vocabulary_size"] <= LARGEST_U16_VOCABULARY else np.int32)
        with write_folder(path, kind=SHARD_KIND, settings=self.settings) as folder:
            shard = ShardWriter(folder, token_dtype=token_dtype)
            while batch:
                for document, blocks in self.pack(batch):
                    shard.append(document, blocks)
                self.progress("blocks", tokens_before + shard.token_count, None)
                is_full = shard.token_count >= self.settings["tokens_per_shard"]
                batch = [] if is_full else next_batch(items, self.max_items, self.max_chars)
            if tokens_before + shard.token_count == 0:
                raise CorpusError(NO_TEXT)
            shard.finish()

    def _skip(self, path: Path, items: Iterator[Packed]) -> Manifest:
        """Skip the items of a finished shard, making sure that they are the same."""
        manifest = check_folder(path, kind=SHARD_KIND)
        self._check_settings(manifest, path)
        counts, stored, number = read_counts(path), ShardDocuments(path), 0
        for _ in range(counts["sources"]):
            item = next(items, None)
            if item is None:
                raise self._changed(path, "fewer documents")
            if (document := item[0]) is not None:
                if number == len(stored) or stored.encoded(number) != encoded_document(document):
                    raise self._changed(path, "another text or title")
                number += 1
        if counts["tokens"] < self.settings["tokens_per_shard"] and next(items, None) is not None:
            raise self._changed(path, "more documents")
        return manifest

    def _changed(self, path: Path, got: str) -> ArtifactError:
        return ArtifactError(
            f"the corpus has changed since the build of {path} began: {got}; remove {self.folder} and build it again"
        )

    def _check_settings(self, manifest: Manifest, path: Path) -> None:
        refuse_changed(
            self.settings,
            manifest.settings,
            problem=f"{path} was built with other settings",
            where=path,
            fix="choose another folder, give the settings it was built with, or remove it",
        )


def as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they come back from JSON, so that they can be compared with stored ones."""
    stored: dict[str, Any] = json.loads(json.dumps(settings, allow_nan=False))
    return stored


def read_counts(shard: Path) -> dict[str, int]:
    """How many sources, documents, blocks and tokens a shard holds."""
    counts: dict[str, int] = json.loads((shard / f"{COUNTS_NAME}.json").read_bytes())
    return counts


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

    _documents: StoredDocuments

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        digest: str,
        *,
        token_ids: ShardedArray,
        flags: ShardedArray,
        start_chars: ShardedArray | None = None,
        end_chars: ShardedArray | None = None,
        block_offsets: np.ndarray,
        block_documents: np.ndarray,
        shard_documents: np.ndarray,
        shard_blocks: np.ndarray,
        shards_before: Sequence[int] | np.ndarray = (0, -1),
    ) -> None:
        """`shards_before` are the shards before each segment, and their number; one segment unless given."""
        self.folder = folder
        self.settings = settings
        self.digest = digest
        self.tokenizer_fingerprint: str = settings["tokenizer_fingerprint"]
        self.special_tokens_in_blocks: bool = settings["special_tokens_in_blocks"]
        self.token_ids = token_ids  # u16 or i32 [T]
        self.flags = flags  # u8 [T], TokenFlag
        self.start_chars = start_chars  # u32 [T], code points in the document's text; None without text
        self.end_chars = end_chars  # u32 [T]
        self.block_offsets = block_offsets  # i64 [blocks + 1]
        self.block_documents = block_documents  # i64 [blocks], -1 without a document
        self.shard_documents = shard_documents  # i64 [shards + 1], first document of each shard, and their number
        self.shard_blocks = shard_blocks  # i64 [shards + 1], first block
        before = np.asarray(shards_before)  # i64 [segments + 1]
        self.segment_documents = shard_documents[before]  # i64 [segments + 1], first document of each segment
        self.segment_blocks = shard_blocks[before]  # i64 [segments + 1], first block
        self.segment_tokens = block_offsets[self.segment_blocks]  # i64 [segments + 1], first token
        self.token_count = int(block_offsets[-1])
        self.block_count = len(block_documents)
        self.document_count = int(shard_documents[-1])
        self.max_block_tokens = int(np.diff(block_offsets).max(initial=0))

    @classmethod
    def open(cls, folder: str | Path, *more_folders: str | Path) -> BlockStore:
        """Open finished stores as one, in the order given; `folder` and `settings` are then those of the first.

        Raises ArtifactError if one is missing, unfinished or damaged, or does not go together with the first.
        """
        folders = [Path(folder), *map(Path, more_folders)]
        manifests = [check_folder(path, kind=STORE_KIND) for path in folders]
        have_text = []
        for path, manifest in zip(folders, manifests, strict=True):
            # Also files over 64 MB, of long documents or large shards: most are smaller, and hashed anyway.
            parts = [check_folder(path / name, kind=SHARD_KIND, hash_all=True) for name in manifest.parts]
            have_text.append(all("start_chars.npy" in part.files for part in parts))
            own, first = (
                {name: each.settings[name] for name in SHARED_SETTINGS} | {"text": with_text}
                for each, with_text in ((manifest, have_text[-1]), (manifests[0], have_text[0]))
            )
            refuse_changed(
                first,
                own,
                where=path,
                problem=f"{path} does not go together with {folders[0]}",
                fix="add documents with the encoder and the settings that the index was built with",
            )
        digests = [manifest.digest for manifest in manifests]
        shards = [path / name for path, manifest in zip(folders, manifests, strict=True) for name in manifest.parts]
        documents = StoredDocuments(shards)
        names = ("token_ids", "flags", *(("start_chars", "end_chars") if have_text[0] else ()))
        arrays = {name: ShardedArray([open_array(shard, name) for shard in shards]) for name in names}
        shard_blocks, block_offsets, block_documents = _numbered_blocks(shards, documents.first_documents)
        store = cls(
            folders[0],
            manifests[0].settings,
            digests[0] if len(digests) == 1 else digest_of(digests),
            **arrays,
            block_offsets=block_offsets,
            block_documents=block_documents,
            shard_documents=documents.first_documents,
            shard_blocks=shard_blocks,
            shards_before=np.cumsum([0, *(len(manifest.parts) for manifest in manifests)]),
        )
        store._documents = documents
        return store

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

    def repeated_documents(self) -> np.ndarray | None:
        """The numbers i64 [2], ascending, of two documents with one id; None if each has its own."""
        return self._documents.repeated()

    def field_columns(self) -> Iterator[tuple[slice, FieldValues]]:
        """Shard by shard: the range of its documents, and the values of their kept fields."""
        for number, shard in enumerate(self._documents.shards):
            first, stop = self.shard_documents[number : number + 2].tolist()
            yield slice(first, stop), shard.fields()

    def blocks_of_documents(self, chosen: np.ndarray, *, without_document: bool = False) -> np.ndarray:
        """Which blocks, bool [blocks], have a document of `chosen` bool [documents], or none (`without_document`)."""
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


def _numbered_blocks(shards: Sequence[Path], shard_documents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First blocks of the shards i64 [shards + 1], offsets i64 [blocks + 1] and documents i64 [blocks] of all."""
    local_offsets = [open_array(shard, "block_offsets") for shard in shards]
    shard_blocks = np.cumsum([0, *(len(offsets) - 1 for offsets in local_offsets)], dtype=np.int64)  # [shards + 1]
    offsets = np.zeros(shard_blocks[-1] + 1, dtype=np.int64)  # [blocks + 1]
    documents = np.empty(shard_blocks[-1], dtype=np.int64)  # [blocks]
    for shard, local in enumerate(local_offsets):
        first, stop = shard_blocks[shard : shard + 2].tolist()
        offsets[first + 1 : stop + 1] = local[1:] + offsets[first]
        numbers = open_array(shards[shard], "block_documents")  # [blocks of the shard]
        documents[first:stop] = np.where(numbers < 0, -1, numbers + shard_documents[shard])
    return shard_blocks, offsets, documents


def build_block_store(
    folder: str | Path,
    documents: Iterable[Document],
    packer: BlockPacker,
    *,
    settings: Mapping[str, Any],
    tokens_per_shard: int = TOKENS_PER_SHARD,
    progress: Progress = silent,
) -> BlockStore:
    """Cut `documents` into blocks with `packer` and store them; continues an earlier build with the same settings.

    `settings` are kept in the manifest and say what else the bytes depend on, such as the input's fingerprint; JSON
    values only. Returns the opened store, at once if it is finished already. Raises ArtifactError if the folder holds
    something else or the documents are not those of the earlier build, CorpusError if there is no text in them.
    """
    if (Path(folder) / f"{0:05d}").exists():  # an earlier attempt began, and judged, with the beginning of the text
        packer.unknown.settle()

    def pack(batch: list[Packed]) -> Iterable[Packed]:
        given = [document for document, _ in batch if document is not None]
        return zip(given, packer.pack_many(given), strict=True)

    own = {
        "blocks": asdict(packer.settings),
        "tokens_per_shard": tokens_per_shard,
        "tokenizer_fingerprint": packer.tokenizer_fingerprint,
        "special_tokens_in_blocks": False,
        "vocabulary_size": packer.vocabulary_size,
    }
    max_chars = min(CHARS_PER_BATCH, tokens_per_shard)
    build = StoreBuild(Path(folder), as_stored({**settings, **own}), pack, DOCUMENTS_PER_BATCH, max_chars, progress)
    build.run((document, ()) for document in documents)
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
    progress: Progress = silent,
) -> BlockStore:
    """Store blocks that are cut already, each run of them with its document or None; see `build_block_store`.

    Token ids take two bytes where `vocabulary_size` allows it, else four.
    """
    own = {
        "tokens_per_shard": tokens_per_shard,
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "special_tokens_in_blocks": special_tokens_in_blocks,
        "vocabulary_size": vocabulary_size,
    }
    build = StoreBuild(Path(folder), as_stored({**settings, **own}), lambda batch: batch, 1, 1, progress)
    build.run(iter(blocks_by_document))
    return BlockStore.open(folder)
