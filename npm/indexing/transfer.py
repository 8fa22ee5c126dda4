"""An index, or the files of a corpus, copied to an address and back: files first, the root manifest last.

At an address a folder without its manifest does not exist. Every file is hashed before it is sent and when it arrives,
and gets its name on the disk only if it matches its manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from npm.core.artifact import MANIFEST_NAME, Manifest, check_file, manifest_bytes, parsed_manifest, part_folder
from npm.core.errors import ArtifactError, CorpusError, SettingError, named
from npm.core.files import check_room, replace_file, sha256_of_bytes, sha256_of_file, stored_bytes, sync, sync_all
from npm.core.locks import folder_lock
from npm.core.records import FileRecord
from npm.core.types import Progress, silent
from npm.corpus.addresses import Address, StoredFile
from npm.corpus.sources import find_sources, input_record
from npm.indexing.generation import INDEX_KIND, Generation
from npm.indexing.layout import refuse_file, refuse_others
from npm.indexing.settings import TransferSettings

CORPUS_KIND = "corpus-files"
MAX_MANIFEST_BYTES = 256 << 20
DIGEST_NAME = f"{MANIFEST_NAME}.sha256"
"""Written first, so that files at an address are never taken for parts of another index."""
Files = dict[str, FileRecord]


def publish(
    index: str, corpus_files: list[str], settings: TransferSettings, progress: Progress = silent
) -> tuple[int, int]:
    """Copy the present generation of an index, or corpus files, or resume that; files and bytes that were left.

    Files there of the same size are kept: none is sent that is not right. Raises ArtifactError if the index is damaged
    or something else is at the address, StorageError if its store refuses.
    """
    _refuse_both(index, corpus_files, corpus="corpus.files=[FILE,…]")
    place = Address(settings.address)
    if corpus_files:
        sources = find_sources(corpus_files)
        for source in sources:
            if source.format == "hub" or "/" in source.name or not isinstance(source.file, Path):
                raise CorpusError(
                    f"cannot publish {source.name}: corpus.files must be files of this machine with distinct names"
                )
        paths = {source.name: Path(source.path) for source in sources}
        records = {record.pop("name"): record for record in input_record(sources)}
        data = manifest_bytes(CORPUS_KIND, {}, records, {})
        groups = [{name: FileRecord(**record) for name, record in records.items()}]
    else:
        folder = Generation.read(Path(index)).folder
        _, data, groups = _listed(folder, settings.parallel)
        paths = {name: part_folder(folder, name) for group in groups for name in group}
    there, digest = place.sizes(), sha256_of_bytes(data).encode()
    if there.keys() <= {DIGEST_NAME}:  # a kill may have cut it
        (place / DIGEST_NAME).write(digest)
    elif DIGEST_NAME not in there or (place / DIGEST_NAME).read(MAX_MANIFEST_BYTES) != digest:
        raise ArtifactError(f"{place} contains something else ({named(sorted(there))}); publish to a new address")
    left = [{name: each for name, each in group.items() if there.get(name) != each.bytes} for group in groups]

    def send(name: str, record: FileRecord) -> None:
        check_file(paths[name], record, hashed=True)
        (place / name).upload(paths[name])

    try:
        sent = _copy_all("publish", send, left, settings.parallel, progress)
    except ArtifactError:
        if not corpus_files and (folder / MANIFEST_NAME).read_bytes() != data:
            raise ArtifactError(f"{index} was changed while it was published; publish it to a new address") from None
        raise
    if there.get(MANIFEST_NAME) == len(data):
        return sent
    (place / MANIFEST_NAME).write(data)  # the file may be that of a newer generation by now
    return sent[0] + 1, sent[1] + len(data)


def fetch(index: str, corpus: str, settings: TransferSettings, progress: Progress = silent) -> tuple[int, int]:
    """Copy what was published to the folder `index`, or `corpus`, or resume that; files and bytes of all of it.

    A file has a temporary name until it is complete and checked; what an earlier fetch left is checked again. Raises
    ArtifactError if no such thing is at the address, it is damaged, or the folder contains something else, StorageError
    if the store refuses or the disk has no space.
    """
    _refuse_both(index, corpus, corpus="corpus=DIR")
    folder, kind = Path(index or corpus), INDEX_KIND if index else CORPUS_KIND
    refuse_file(folder)
    place = Address(settings.address)
    with folder_lock(folder):
        if not (place / MANIFEST_NAME).exists():
            if (place / DIGEST_NAME).exists():
                raise ArtifactError(f"{place} was published only in part; run its npmlm publish again")
            raise ArtifactError(f"{place} has no {MANIFEST_NAME}; check the bucket, or folder, and the path")
        root, data, groups = _listed(place, settings.parallel)
        if root.kind != kind:
            raise ArtifactError(
                f"{place} contains {root.kind}, expected {kind}; fetch an index to index=DIR, a corpus to corpus=DIR"
            )
        if kind == INDEX_KIND:
            refuse_others(folder)
        here = folder / MANIFEST_NAME
        if here.exists() and here.read_bytes() != data:
            raise ArtifactError(f"{folder} contains another {MANIFEST_NAME}; fetch into another folder")
        needed = sum(record.bytes for group in groups for record in group.values()) - stored_bytes(folder)
        check_room(folder, needed, what="files to be fetched")

        def receive(name: str, record: FileRecord) -> None:
            file = part_folder(folder, name)
            is_there, arriving = file.exists(), file.with_name(f".{file.name}.tmp")
            if not is_there:
                file.parent.mkdir(parents=True, exist_ok=True)
                (place / name).download(arriving)
            got = sha256_of_file(file if is_there else arriving)
            if got != record.sha256:
                arriving.unlink(missing_ok=True)
                raise ArtifactError(
                    f"{file if is_there else place / name} is damaged or another file: SHA-256 {got}, "
                    f"expected {record.sha256}; copy it again"
                )
            if not is_there:
                sync(arriving)
                arriving.rename(file)

        files, size = _copy_all("fetch", receive, groups, settings.parallel, progress)
        sync_all(folder)  # names of files too, before the manifest that lists them
        replace_file(here, data)
        sync(folder.absolute().parent)
    return files + 1, size + len(data)


def _listed(root: StoredFile, parallel: int) -> tuple[Manifest, bytes, list[Files]]:
    """The manifest in a folder, its bytes, and the files of all its parts by path, then the manifests of these."""
    first, data = _manifest(root / MANIFEST_NAME)
    files: Files = {}
    manifests: Files = {}
    level = {"": first}
    with ThreadPoolExecutor(parallel) as pool:
        while level:
            files |= {above + name: record for above, each in level.items() for name, record in each.files.items()}
            parts = {f"{above}{name}/": part for above, each in level.items() for name, part in each.parts.items()}
            found = pool.map(lambda part: _manifest(root / (part[0] + MANIFEST_NAME), part[1]), parts.items())
            level = {}
            for above, (manifest, content) in zip(parts, found, strict=True):
                level[above] = manifest
                manifests[above + MANIFEST_NAME] = FileRecord(len(content), sha256_of_bytes(content))
    return first, data, [files, manifests]


def _manifest(file: StoredFile, digest: str | None = None) -> tuple[Manifest, bytes]:
    """The manifest in `file`, and its bytes. Raises ArtifactError unless it has this digest."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES)
        manifest = parsed_manifest(data, Path(str(file)))
    except (ArtifactError, OSError) as error:
        raise ArtifactError(f"cannot read {file}: {error}") from error
    if digest not in (None, manifest.digest):
        raise ArtifactError(f"{file} is of another build: digest {manifest.digest}, expected {digest}; copy it again")
    return manifest, data


def _copy_all(
    stage: str, copy: Callable[[str, FileRecord], None], groups: list[Files], parallel: int, progress: Progress
) -> tuple[int, int]:
    """Copy the files of each group, `parallel` at once, after those of the one before; their number and bytes."""
    total, done = sum(record.bytes for group in groups for record in group.values()), 0
    for group in groups:
        with ThreadPoolExecutor(parallel) as pool:
            for record, _ in zip(group.values(), pool.map(copy, group.keys(), group.values()), strict=True):
                done += record.bytes
                progress(stage, done, total)
    return sum(map(len, groups)), total


def _refuse_both(index: str, other: object, *, corpus: str) -> None:
    if bool(index) == bool(other):
        raise SettingError(f"index=DIR or {corpus} is required, got {'both' if index else 'neither'}")
