"""The tokens of a corpus on disk: shard folders of flat arrays, read memory-mapped as one.

A build that was killed continues: finished shards are kept, and their documents are read again but not tokenized.
Reading takes 20 bytes of private memory per block (its offset, its document and its first character), regardless of the
number of tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from index.arrays import ShardedArray
from npm.core.artifact import (
    MANIFEST_NAME,
    check_folder,
    folder_lock,
    open_array,
    read_manifest,
    refuse_changed,
    write_folder,
    write_manifest,
)
from npm.core.errors import CorpusError, damaged
from npm.core.files import digest_of
from npm.core.types import Document, Progress, Sequences, silent
from npm.corpus.blocks import JUDGED_TOKENS, BlockPacker, concatenated_ranges
from npm.corpus.shards import (
    COUNTS_NAME,
    SHARD_KIND,
    STORE_KIND,
    FieldValues,
    Packed,
    ShardDocuments,
    document_key,
    write_shard,
)

LARGEST_U16_VOCABULARY = 1 << 16
Item = TypeVar("Item")


def read_counts(shard: Path) -> dict[str, int]:
    """Number of items that were read for a shard, and of its tokens."""
    counts: dict[str, int] = json.loads((shard / f"{COUNTS_NAME}.json").read_bytes())
    return counts


TOKENS_PER_SHARD = 4_194_304
CACHED_DOCUMENTS = 64
DOCUMENTS_PER_BATCH = 64
CHARS_PER_BATCH = 1_000_000
SHARED_SETTINGS = ("tokenizer_fingerprint", "special_tokens_in_blocks", "vocabulary_size")
"""Settings that must be equal in stores that are read as one."""


@dataclass(eq=False, kw_only=True)
class BlockStore:
    """The blocks and documents of one or more segments, numbered through all their shards. Made by `BlockStore.open`.

    Token positions run through all blocks: block b is [block_offsets[b], block_offsets[b + 1]). An open store stays
    readable after its folder was removed.
    """

    folder: Path
    settings: dict[str, Any]
    digest: str
    token_ids: ShardedArray  # u16 or i32 [T]
    flags: ShardedArray  # u8 [T], TokenFlag
    char_offsets: ShardedArray  # u8, u16 or u32 [T], code points from the first character of the block
    char_lengths: ShardedArray  # u8, u16 or u32 [T]
    first_chars: np.ndarray  # u32 [blocks], first character of each block in the text of its document
    block_offsets: np.ndarray  # i64 [blocks + 1]
    block_documents: np.ndarray  # i64 [blocks]
    shard_documents: np.ndarray  # i64 [shards + 1], first document of each shard, and their number
    shard_blocks: np.ndarray  # i64 [shards + 1], first block
    shards_before: Sequence[int] | np.ndarray = (0, -1)
    """The shards before each segment, and their number; one segment unless given."""
    shards: Sequence[ShardDocuments] = ()

    def __post_init__(self) -> None:
        self.tokenizer_fingerprint: str = self.settings["tokenizer_fingerprint"]
        self.special_tokens_in_blocks: bool = self.settings["special_tokens_in_blocks"]
        before = np.asarray(self.shards_before)  # i64 [segments + 1]
        self.segment_documents = self.shard_documents[before]  # i64 [segments + 1], first document of each segment
        self.segment_blocks = self.shard_blocks[before]  # i64 [segments + 1], first block
        self.token_count = int(self.block_offsets[-1])
        self.block_count = len(self.block_documents)
        self.document_count = int(self.shard_documents[-1])
        self.max_block_tokens = int(np.diff(self.block_offsets).max(initial=0))
        self._kept_document = functools.lru_cache(CACHED_DOCUMENTS)(self._read_document)

    @classmethod
    def open(cls, folder: str | Path, *more_folders: str | Path) -> BlockStore:
        """Open finished stores as one, in the order given; `folder` and `settings` are then those of the first.

        Raises ArtifactError if one is missing, unfinished or damaged, or does not match the first.
        """
        folders = [Path(folder), *map(Path, more_folders)]
        manifests = [check_folder(path, kind=STORE_KIND) for path in folders]
        for path, manifest in zip(folders, manifests, strict=True):
            # Also files over 64 MB, of long documents or large shards: most are smaller, and hashed anyway.
            for name in manifest.parts:
                check_folder(path / name, kind=SHARD_KIND, hash_all=True)
            first, own = ({name: each.settings[name] for name in SHARED_SETTINGS} for each in (manifests[0], manifest))
            refuse_changed(
                first,
                own,
                where=path,
                problem=f"{path} does not go together with {folders[0]}",
                fix="add documents with the encoder and the settings that the index was built with",
            )
        digests = [manifest.digest for manifest in manifests]
        shards = [path / name for path, manifest in zip(folders, manifests, strict=True) for name in manifest.parts]
        opened = [ShardDocuments(shard) for shard in shards]
        first_documents = np.cumsum([0, *map(len, opened)], dtype=np.int64)  # [shards + 1]
        names = ("token_ids", "flags", "char_offsets", "char_lengths")
        arrays = {name: ShardedArray([open_array(shard, name) for shard in shards]) for name in names}
        shard_blocks, block_offsets, block_documents = _numbered_blocks(shards, first_documents)
        return cls(
            folder=folders[0],
            settings=manifests[0].settings,
            digest=digests[0] if len(digests) == 1 else digest_of(digests),
            **arrays,
            first_chars=np.concatenate([open_array(shard, "first_chars") for shard in shards]),  # u32 [blocks]
            block_offsets=block_offsets,
            block_documents=block_documents,
            shard_documents=first_documents,
            shard_blocks=shard_blocks,
            shards_before=np.cumsum([0, *(len(manifest.parts) for manifest in manifests)]),
            shards=opened,
        )

    @staticmethod
    def is_finished(folder: str | Path) -> bool:
        """Return True if a build in `folder` is complete."""
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
        return self._kept_document(number)

    def _read_document(self, number: int) -> Document:
        shard, local = self._shard_of(number)
        return shard.document(local)

    def _shard_of(self, number: int) -> tuple[ShardDocuments, int]:
        """The shard of a document, and its number there."""
        if not 0 <= number < self.document_count:
            raise IndexError(f"document {number} of {self.document_count}")
        shard = int(np.searchsorted(self.shard_documents, number, side="right")) - 1
        return self.shards[shard], number - int(self.shard_documents[shard])

    def document_ids(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of the documents `numbers` [n], in that order, without reading their texts. Raises IndexError."""
        places = (self._shard_of(int(number)) for number in numbers)
        return [shard.identifier(local) for shard, local in places]

    def find_documents(self, ids: Sequence[str], among: np.ndarray | None = None) -> np.ndarray:
        """The numbers i64 [n] of the documents with these ids, -1 where there is none.

        `among` bool [documents] says which may be found, such as those that are not deleted. Where several have one
        id, as an older one and its replacement, it is the last of them. One pass over the keys, and a record for each
        document whose key fits, since ids may share keys.
        """
        if among is not None and among.shape != (self.document_count,):
            raise ValueError(f"expected bool [{self.document_count}], got {among.dtype} {list(among.shape)}")
        found = dict.fromkeys(ids, -1)
        if not found:
            return np.empty(0, dtype=np.int64)
        asked = np.unique(np.array([document_key(identifier) for identifier in found], dtype=np.uint64))  # [keys]
        for first, shard in zip(self.shard_documents, self.shards, strict=False):
            places = np.minimum(np.searchsorted(asked, shard.keys), len(asked) - 1)  # [documents of the shard]
            numbers = first + np.flatnonzero(asked[places] == shard.keys)  # [hits]
            if among is not None:
                numbers = numbers[among[numbers]]  # [hits]
            found.update(zip(self.document_ids(numbers), numbers.tolist(), strict=True))
        return np.array([found[identifier] for identifier in ids], dtype=np.int64)  # [n]

    def find_parts(self, files: Collection[str], among: np.ndarray | None = None) -> dict[int, str]:
        """The files of the documents that are parts of `files`, their pages or rows, by the number of the document.

        `among` bool [documents] says which may be found. A page has the id of one, and the field `file` agrees with it;
        a row may have any id.
        """
        from npm.corpus.sources import file_of_part, is_table  # not needed to answer

        found: dict[int, str] = {}
        for documents, columns in self.field_columns():
            values, codes = columns.get("file", ([], np.empty(0, dtype=np.int32)))
            wanted = [code for code, value in enumerate(values) if isinstance(value, str) and value in files]
            for place in np.flatnonzero(np.isin(codes, wanted)).tolist():
                number, file = documents.start + place, values[codes[place]]
                [identifier] = self.document_ids([number])  # other documents may have a field of this name too
                is_part = is_table(file) or file_of_part(identifier) == file
                if is_part and (among is None or among[number]):
                    found[number] = file
        return found

    def repeated_documents(self) -> np.ndarray | None:
        """The numbers i64 [2], ascending, of two documents with one id; None if ids are unique.

        Takes 24 bytes per document.
        """
        keys = np.concatenate([shard.keys for shard in self.shards])  # u64 [documents]
        order = np.argsort(keys, kind="stable")  # i64 [documents]
        for place in np.flatnonzero(np.diff(keys[order]) == 0):
            pair = order[place : place + 2]  # i64 [2]
            if len(set(self.document_ids(pair))) == 1:  # two ids may share a key
                return pair
        return None

    def field_columns(self) -> Iterator[tuple[slice, FieldValues]]:
        """Shard by shard: the range of its documents, and the values of their kept fields."""
        for number, shard in enumerate(self.shards):
            first, stop = self.shard_documents[number : number + 2].tolist()
            yield slice(first, stop), shard.fields()

    def blocks_of_documents(self, chosen: np.ndarray) -> np.ndarray:
        """Mask bool [blocks] of those of the documents `chosen` bool [documents]."""
        if chosen.shape != (self.document_count,):
            raise ValueError(f"expected bool [{self.document_count}], got {chosen.dtype} {list(chosen.shape)}")
        return chosen[self.block_documents]  # bool [blocks]

    def block_of(self, positions: np.ndarray) -> np.ndarray:
        """The blocks i64 [n] that hold the token positions i64 [n]."""
        return np.searchsorted(self.block_offsets, positions, side="right") - 1  # [n]

    def block_places(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """First and past-the-last character of each token of a block in its document, u32 [T] each."""
        first, stop = self.block_offsets[block : block + 2].tolist()
        starts = self.first_chars[block] + self.char_offsets.slice(first, stop)  # u32 [T]
        return starts, starts + self.char_lengths.slice(first, stop)

    def block_chars(self, block: int) -> tuple[int, int]:
        """First and past-the-last character of a block in its document."""
        last = self.block_offsets[block + 1 : block + 2] - 1  # i64 [1], its last token
        length = self.char_offsets.take(last) + self.char_lengths.take(last)  # [1]
        first_char = int(self.first_chars[block])
        return first_char, first_char + int(length[0])

    def block_text(self, block: int) -> str:
        """The surface text of a block, from its first character to its last."""
        first, stop = self.block_chars(block)
        return self.document(int(self.block_documents[block])).text[first:stop]


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
        count = shard_documents[shard + 1] - shard_documents[shard]
        if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= count:
            raise damaged(shards[shard], "a block names a document that it does not have")
        documents[first:stop] = numbers + shard_documents[shard]
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

    `settings` are kept in the manifest and are what else the bytes depend on, such as the input's fingerprint; JSON
    values only. Returns the opened store, at once if it is finished already. Raises ArtifactError if the folder holds
    something else, CorpusError if there is no text in the documents.
    """
    if (Path(folder) / f"{0:05d}").exists():  # an earlier attempt began, and judged, with the beginning of the text
        packer.unknown.tokens = JUDGED_TOKENS

    def pack(batch: list[Document]) -> list[Packed]:
        return [*zip(batch, packer.pack_many(batch), strict=True)]

    own = {
        "blocks": asdict(packer.settings),
        "tokens_per_shard": tokens_per_shard,
        "tokenizer_fingerprint": packer.tokenizer_fingerprint,
        "special_tokens_in_blocks": False,
        "vocabulary_size": packer.vocabulary_size,
    }
    batches = _batches(documents, min(CHARS_PER_BATCH, tokens_per_shard))
    _write_store(Path(folder), batches, pack, {**settings, **own}, progress)
    return BlockStore.open(folder)


def _batches(documents: Iterable[Document], max_chars: int) -> Iterator[list[Document]]:
    """Runs of documents up to a number of them, or of characters, whichever comes first."""
    batch: list[Document] = []
    chars = 0
    for document in documents:
        batch.append(document)
        chars += len(document.text)
        if len(batch) == DOCUMENTS_PER_BATCH or chars >= max_chars:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def write_block_store(
    folder: str | Path,
    documents: Iterable[Packed],
    *,
    settings: Mapping[str, Any],
    tokenizer_fingerprint: str,
    vocabulary_size: int = 1 << 31,
    tokens_per_shard: int = TOKENS_PER_SHARD,
    special_tokens_in_blocks: bool = False,
    progress: Progress = silent,
) -> BlockStore:
    """Store documents whose blocks are cut already; see `build_block_store`.

    Token ids take two bytes where `vocabulary_size` allows it, else four.
    """
    own = {
        "tokens_per_shard": tokens_per_shard,
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "special_tokens_in_blocks": special_tokens_in_blocks,
        "vocabulary_size": vocabulary_size,
    }
    batches = ([item] for item in documents)
    _write_store(Path(folder), batches, lambda batch: batch, {**settings, **own}, progress)
    return BlockStore.open(folder)


def _write_store(
    folder: Path,
    batches: Iterator[list[Item]],
    pack: Callable[[list[Item]], list[Packed]],
    given: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Write the shards of a store that are missing, and then its manifest.

    A shard ends with a batch, so that the batches of finished shards can be skipped without packing them.
    """
    settings = json.loads(json.dumps(given, allow_nan=False))  # as they come back from the manifest
    token_dtype = np.dtype(np.uint16 if settings["vocabulary_size"] <= LARGEST_U16_VOCABULARY else np.int32)
    parts: dict[str, str] = {}
    token_count = 0

    def check(found: Mapping[str, Any], path: Path) -> None:
        fix = "choose another folder, give the settings it was built with, or remove it"
        refuse_changed(settings, found, problem=f"{path} was built with other settings", where=path, fix=fix)

    with folder_lock(folder):
        if (folder / MANIFEST_NAME).is_file():
            check(read_manifest(folder, kind=STORE_KIND).settings, folder)
            return
        try:
            while True:
                path = folder / f"{len(parts):05d}"
                if path.exists():
                    check(check_folder(path, kind=SHARD_KIND).settings, path)
                    sources = read_counts(path)["sources"]
                    while sources > 0 and (batch := next(batches, None)):
                        sources -= len(batch)
                else:
                    packed, tokens = [], 0
                    for batch in batches:
                        items = pack(batch)
                        packed += items
                        tokens += sum(len(block.token_ids) for _, blocks in items for block in blocks)
                        progress("blocks", token_count + tokens, None)
                        if tokens >= settings["tokens_per_shard"]:
                            break
                    if not packed and parts:
                        break
                    if not token_count + tokens:
                        raise CorpusError("the corpus has no text; check corpus.files")
                    with write_folder(path, kind=SHARD_KIND, settings=settings) as writer:
                        write_shard(writer, packed, token_dtype)
                parts[path.name] = read_manifest(path, kind=SHARD_KIND).digest
                token_count += read_counts(path)["tokens"]
                progress("blocks", token_count, None)
        except BaseException:
            with suppress(OSError):  # only an empty folder goes: finished shards are kept for the next attempt
                folder.rmdir()
            raise
        write_manifest(folder, kind=STORE_KIND, settings=settings, parts=parts)
