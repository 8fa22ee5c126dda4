"""An index, or the files of a corpus, copied to an address and back: files first, the root manifest last.

At an address a folder without its manifest does not exist. Whatever is copied is hashed on its way, and its last piece
handed on only if the whole is what its manifest says, so that neither side ever holds a damaged copy of the right size.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from npm.core.artifact import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    folder_lock,
    manifest_bytes,
    parsed_manifest,
    part_folder,
)
from npm.core.errors import ArtifactError, CorpusError, SettingError, named
from npm.core.files import check_room, replace_file, sha256_of_bytes, stored_bytes
from npm.core.types import Progress, silent
from npm.corpus.addresses import Address, StoredFile
from npm.corpus.sources import find_sources
from npm.indexing.generation import INDEX_KIND, Generation, input_record
from npm.indexing.layout import refuse_file, refuse_others
from npm.indexing.settings import TransferSettings

CORPUS_KIND = "corpus-files"
CHUNK_BYTES, MOST_MANIFEST_BYTES = 16 << 20, 256 << 20
DIGEST_NAME = f"{MANIFEST_NAME}.sha256"
"""Written first, so that what lies at an address is never taken for a part of another index."""
Item = TypeVar("Item")
Made = TypeVar("Made")
Files = dict[str, FileRecord]


@dataclass(slots=True)
class _Copies:
    """Files copied `parallel` at once; the first that fails stops the others at their next piece."""

    stage: str
    parallel: int
    progress: Progress = silent
    total: int = 0
    done: int = 0
    is_stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def each(self, work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
        """`work` of all items, in their order."""
        with ThreadPoolExecutor(self.parallel) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                self.is_stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def pieces(self, file: StoredFile, record: FileRecord) -> Iterator[bytes]:
        """The content of `file`, counted; raises ArtifactError instead of its last piece if it is not as recorded."""
        content, size, held = hashlib.sha256(), 0, b""
        is_missing = isinstance(file, Path) and not file.is_file()  # else the store would be blamed for it
        with io.BytesIO() if is_missing else file.open("rb") as stream:
            while size <= record.bytes and (piece := stream.read(CHUNK_BYTES)):
                size += len(piece)
                content.update(piece)
                with self.lock:
                    if self.is_stopped:
                        raise CancelledError
                    self.done += len(piece)
                    self.progress(self.stage, self.done, self.total)
                if size > record.bytes:  # as many bytes as recorded must not be handed on
                    break
                if held:
                    yield held
                held = piece
        if (size, content.hexdigest()) != (record.bytes, record.sha256):
            raise ArtifactError(
                f"{file} is missing, damaged or another file: {size} bytes with SHA-256 {content.hexdigest()}, "
                f"expected {record.bytes} with {record.sha256}; copy it again"
            )
        yield held


def _manifest(file: StoredFile, digest: str | None = None) -> tuple[Manifest, bytes]:
    """The manifest that `file` is, whose digest is to be this. Raises ArtifactError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_MANIFEST_BYTES)
        manifest = parsed_manifest(data, Path(str(file)))
    except (ArtifactError, OSError) as error:
        raise ArtifactError(f"cannot read {file}: {error}") from error
    if digest not in (None, manifest.digest):
        raise ArtifactError(f"{file} is of another build: digest {manifest.digest}, expected {digest}; copy it again")
    return manifest, data


def _all_files(root: Manifest, data: bytes, file_of: Callable[[str], StoredFile], copies: _Copies) -> list[Files]:
    """Every file of a root manifest and of all its parts, by path: what is copied first, their manifests, the root."""
    files: Files = {}
    manifests: Files = {}
    level = {"": root}
    while level:
        files |= {above + name: record for above, each in level.items() for name, record in each.files.items()}
        parts = [(f"{above}{name}/", digest) for above, each in level.items() for name, digest in each.parts.items()]
        found = copies.each(lambda part: _manifest(file_of(part[0] + MANIFEST_NAME), part[1]), parts)
        level = {}
        for (above, _), (manifest, content) in zip(parts, found, strict=True):
            manifests[above + MANIFEST_NAME] = FileRecord(len(content), sha256_of_bytes(content))
            level[above] = manifest
    groups = [files, manifests, {MANIFEST_NAME: FileRecord(len(data), sha256_of_bytes(data))}]
    copies.total = sum(record.bytes for group in groups for record in group.values())
    return groups


def publish(
    index: str, corpus_files: list[str], settings: TransferSettings, progress: Progress = silent
) -> tuple[int, int]:
    """Copy the present generation of an index, or corpus files, or go on with that; files and bytes that were left.

    Files there of the same size are kept, since none is there whole that was not right when it was copied. Raises
    ArtifactError if the index is damaged or something else is at the address, StorageError if its store refuses.
    """
    _refuse_both(index, corpus_files, corpus="corpus.files=[FILE,…]")
    place, copies = Address(settings.address), _Copies("publish", settings.parallel, progress)
    if corpus_files:
        return _publish_corpus(corpus_files, place, copies)
    folder = Generation.read(Path(index)).folder

    def file_of(name: str) -> Path:
        return part_folder(folder, name)

    root, data = _manifest(file_of(MANIFEST_NAME))
    return _publish(_all_files(root, data, file_of, copies), file_of, data, place, copies)


def _publish_corpus(files: list[str], place: Address, copies: _Copies) -> tuple[int, int]:
    """The files, and a manifest that has their SHA-256."""
    sources = {source.name: source for source in find_sources(files)}
    for name, source in sources.items():
        if source.format == "hub" or "/" in name:
            raise CorpusError(f"cannot publish {name}: corpus.files must be files with distinct names, not data sets")
    records = {record.pop("name"): record for record in input_record(list(sources.values()))}
    data = manifest_bytes(CORPUS_KIND, {}, records, {})
    root = parsed_manifest(data, Path(MANIFEST_NAME))
    groups = _all_files(root, data, lambda name: sources[name].file, copies)
    return _publish(groups, lambda name: sources[name].file, data, place, copies)


def _publish(
    groups: list[Files], file_of: Callable[[str], StoredFile], root: bytes, place: Address, copies: _Copies
) -> tuple[int, int]:
    there, digest = place.sizes(), sha256_of_bytes(root).encode()
    if there.keys() <= {DIGEST_NAME}:  # where the kill came first, it may be cut
        (place / DIGEST_NAME).write([digest])
    elif DIGEST_NAME not in there or _content(place / DIGEST_NAME) != digest:
        raise ArtifactError(f"{place} contains something else ({named(sorted(there))}); publish to a new address")
    left = [{name: each for name, each in group.items() if there.get(name) != each.bytes} for group in groups]
    copies.total = sum(record.bytes for group in left for record in group.values())
    for group in left[:-1]:
        copies.each(lambda item: (place / item[0]).write(copies.pieces(file_of(item[0]), item[1])), group.items())
    for name in left[-1]:  # from memory: the file may be that of a newer generation by now
        (place / name).write([root])
    return sum(map(len, left)), copies.total


def fetch(index: str, corpus: str, settings: TransferSettings, progress: Progress = silent) -> tuple[int, int]:
    """Copy what was published to the folder `index`, or `corpus`, or go on with that; files and bytes of the whole.

    A file lies under a temporary name until it is whole and checked; what an earlier fetch left is checked again.
    Raises ArtifactError if no such thing is at the address, it is damaged, or the folder holds something else,
    StorageError if the store refuses or the disk has no room.
    """
    _refuse_both(index, corpus, corpus="corpus=DIR")
    folder, kind = Path(index or corpus), INDEX_KIND if index else CORPUS_KIND
    refuse_file(folder)
    place, copies = Address(settings.address), _Copies("fetch", settings.parallel, progress)
    with folder_lock(folder):
        root, data = _published(place, kind)
        if kind == INDEX_KIND:
            refuse_others(folder, own={name.partition("/")[0] for name in root.parts})
        here = folder / MANIFEST_NAME
        if here.exists() and here.read_bytes() != data:
            raise ArtifactError(f"{folder} contains another {MANIFEST_NAME}; fetch into another folder")
        groups = _all_files(root, data, lambda name: place / name, copies)
        check_room(folder, copies.total - stored_bytes(folder), what="files to be fetched")

        def copy(item: tuple[str, FileRecord]) -> None:
            file = part_folder(folder, item[0])
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.exists():
                deque(copies.pieces(file, item[1]), maxlen=0)
            else:
                replace_file(file, copies.pieces(place / item[0], item[1]))

        for group in groups:
            copies.each(copy, group.items())
    return sum(map(len, groups)), copies.total


def _published(place: Address, kind: str) -> tuple[Manifest, bytes]:
    """The root manifest at an address. Raises ArtifactError if it is not of `kind`, or there is none."""
    if (place / MANIFEST_NAME).exists():
        root, data = _manifest(place / MANIFEST_NAME)
        if root.kind == kind:
            return root, data
        raise ArtifactError(
            f"{place} contains {root.kind}, expected {kind}; fetch an index to index=DIR, a corpus to corpus=DIR"
        )
    if (place / DIGEST_NAME).exists():
        raise ArtifactError(f"{place} was published only in part; run its npmlm publish again")
    raise ArtifactError(f"{place} has no {MANIFEST_NAME}; check the bucket, or folder, and the path")


def _refuse_both(index: str, other: object, *, corpus: str) -> None:
    if bool(index) == bool(other):
        raise SettingError(f"index=DIR or {corpus} is required, got {'both' if index else 'neither'}")


def _content(file: Address) -> bytes:
    with file.open() as stream:
        return stream.read(MOST_MANIFEST_BYTES)
