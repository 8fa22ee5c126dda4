"""The build of a block store: shard after shard, continued where an earlier build was killed."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from index.locking import folder_lock
from index.store import MANIFEST_NAME, Manifest, check_folder, read_manifest, write_folder, write_manifest
from npm.corpus.shards import COUNTS_NAME, DOCUMENTS_FILE, SHARD_KIND, STORE_KIND, ShardWriter, document_line
from npm.errors import ArtefactError, CorpusError
from npm.types import Block, Document

LARGEST_U16_VOCABULARY = 1 << 16

Item = TypeVar("Item")
Packed = tuple[Document | None, Sequence[Block]]
Progress = Callable[[int, int], None]
"""Called with the documents and the tokens that are in the store so far."""


class Batches(Generic[Item]):
    """Takes items in batches; what was taken too much can be put back."""

    def __init__(
        self, items: Iterable[Item], *, most_items: int, most_chars: int, chars: Callable[[Item], int]
    ) -> None:
        self._items = iter(items)
        self._put_back: deque[Item] = deque()
        self._most_items, self._most_chars, self._chars = most_items, most_chars, chars

    def one(self) -> Item | None:
        """The next item, None at the end."""
        return self._put_back.popleft() if self._put_back else next(self._items, None)

    def take(self) -> list[Item]:
        """The next batch, at least one item; empty at the end."""
        batch: list[Item] = []
        char_count = 0
        while len(batch) < self._most_items and char_count < self._most_chars:
            item = self.one()
            if item is None:
                break
            batch.append(item)
            char_count += self._chars(item)
        return batch

    def put_back(self, items: Sequence[Item]) -> None:
        """Make `items` the next ones."""
        self._put_back.extendleft(reversed(items))


@dataclass(frozen=True, slots=True)
class StoreBuild(Generic[Item]):
    """Builds the shards of `folder` and then its manifest. `settings` decide every byte, together with the items.

    A batch never reaches over the end of a shard: what is left of it is packed again at the beginning of the next,
    so that a continued build hands the packer the same batches as one that was never interrupted.
    """

    folder: Path
    settings: dict[str, Any]
    pack: Callable[[list[Item]], Iterable[Packed]]
    document_of: Callable[[Item], Document | None]
    progress: Progress

    def run(self, batches: Batches[Item]) -> None:
        """Build what is not there yet. Raises ArtefactError, CorpusError and StorageError."""
        with folder_lock(self.folder):
            if (self.folder / MANIFEST_NAME).is_file():
                self._check_settings(read_manifest(self.folder, kind=STORE_KIND), self.folder)
                return
            try:
                parts = self._build_shards(batches)
            except BaseException:
                with suppress(OSError):  # only an empty folder goes: finished shards are kept for the next attempt
                    self.folder.rmdir()
                raise
            write_manifest(self.folder, kind=STORE_KIND, settings=self.settings, parts=parts)

    def _build_shards(self, batches: Batches[Item]) -> dict[str, str]:
        """Write or pass over shard after shard; returns the manifest digest of each by its name."""
        parts: dict[str, str] = {}
        document_count = token_count = 0
        while True:
            name = f"{len(parts):05d}"
            path = self.folder / name
            if path.exists():
                manifest = self._skip(path, batches)
            elif batch := batches.take():
                self._write(path, batch, batches, documents_before=document_count, tokens_before=token_count)
                manifest = read_manifest(path, kind=SHARD_KIND)
            elif parts:
                return parts
            else:
                raise no_text(self.folder, got="no document")
            parts[name] = manifest.digest
            counts = read_counts(path)
            document_count += counts["documents"]
            token_count += counts["tokens"]
            self.progress(document_count, token_count)

    def _write(
        self, path: Path, batch: list[Item], batches: Batches[Item], *, documents_before: int, tokens_before: int
    ) -> None:
        """Write the shard that begins with `batch`."""
        enough_tokens = self.settings["tokens_per_shard"]
        token_dtype = np.dtype(np.uint16 if self.settings["vocabulary_size"] <= LARGEST_U16_VOCABULARY else np.int32)
        with write_folder(path, kind=SHARD_KIND, settings=self.settings) as folder:
            shard = ShardWriter(folder, token_dtype=token_dtype)
            while batch:
                for number, (document, blocks) in enumerate(self.pack(batch)):
                    if shard.token_count >= enough_tokens:
                        batches.put_back(batch[number:])
                        break
                    shard.append(document, blocks)
                self.progress(documents_before + shard.document_count, tokens_before + shard.token_count)
                batch = batches.take() if shard.token_count < enough_tokens else []
            if tokens_before + shard.token_count == 0:
                raise no_text(self.folder, got="documents without any token")
            shard.finish()

    def _skip(self, path: Path, batches: Batches[Item]) -> Manifest:
        """Pass over the items of a finished shard, making sure that they are the same."""
        manifest = check_folder(path, kind=SHARD_KIND)
        self._check_settings(manifest, path)
        counts = read_counts(path)
        with (path / DOCUMENTS_FILE).open("rb") as lines:
            for _ in range(counts["sources"]):
                item = batches.one()
                document = None if item is None else self.document_of(item)
                if item is None or (document is not None and lines.readline() != document_line(document)):
                    got = "fewer documents" if item is None else "another text or title"
                    raise self._changed(path, got)
            if lines.readline():
                raise self._changed(path, "fewer documents")
        if counts["tokens"] < self.settings["tokens_per_shard"] and (item := batches.one()) is not None:
            raise self._changed(path, "more documents")
        return manifest

    def _changed(self, path: Path, got: str) -> ArtefactError:
        return ArtefactError(
            f"the corpus has changed since the build of {self.folder} began",
            expected="the same documents in the same order",
            got=got,
            where=str(path),
            fix=f"remove {self.folder} and build it again",
        )

    def _check_settings(self, manifest: Manifest, path: Path) -> None:
        if manifest.settings == self.settings:
            return
        names = sorted(
            name
            for name in manifest.settings.keys() | self.settings.keys()
            if manifest.settings.get(name) != self.settings.get(name)
        )
        raise ArtefactError(
            f"{path} was built with other settings",
            expected=", ".join(f"{name}={self.settings.get(name)!r}" for name in names),
            got=", ".join(f"{name}={manifest.settings.get(name)!r}" for name in names),
            where=str(path),
            fix="choose another folder, give the settings it was built with, or remove it",
        )


def read_counts(shard: Path) -> dict[str, int]:
    """How many sources, documents, blocks and tokens a shard holds."""
    counts: dict[str, int] = json.loads((shard / f"{COUNTS_NAME}.json").read_bytes())
    return counts


def no_text(folder: Path, *, got: str) -> CorpusError:
    """The error for a corpus without a single token."""
    return CorpusError(
        "the corpus has no text",
        expected="at least one document with a token",
        got=got,
        where=str(folder),
        fix="check the files of the corpus",
    )
