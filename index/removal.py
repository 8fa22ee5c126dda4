"""Removing folders: only what this program wrote into them, never what a link leads to or somebody else put there.

What was written is what the folder's own manifest names: its files, its parts, and the locks and temporary names beside
them. In a folder without a manifest, which a build left unfinished, it is the numbered folders that have one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from index.files import storage_errors
from index.locking import is_own_temporary, remove_temporary
from index.manifest import MANIFEST_NAME, read_any_manifest
from npm.core.errors import ArtifactError, named

NUMBERED = re.compile(r"[0-9a-f]{1,16}")
"""Shards, parts, checkpoints: what an unfinished folder holds before it has a manifest."""
LEFT_BEHIND = re.compile(r"\.(.+)\.(lock|tmp)")


def remove_written(folder: Path, *, also: Collection[str] = ()) -> None:
    """Remove what this program wrote as `folder`, and the folder.

    `also` are names in it, of files or parts, that are ours without a manifest to say so. A link is removed itself, and
    what it leads to stays; nothing happens where nothing is. Raises ArtifactError, with nothing removed, if anything
    else lies in the folder, StorageError if the operating system refuses.
    """
    if others := foreign_files(folder, also=also):
        raise ArtifactError(
            f"{folder} holds files that npmlm did not write: {named(others)}; "
            "move them elsewhere and run the same command again"
        )
    remove_own_files(folder, also=also)


def holds_others(folder: Path, names: Sequence[str], *, expected: str, fix: str) -> ArtifactError:
    """Error for a folder to be written where somebody else has put `names`."""
    return ArtifactError(f"{folder} holds other files: {named(names)}; expected {expected}; {fix}")


def foreign_files(folder: Path, *, also: Collection[str] = ()) -> list[str]:
    """What lies in `folder` and was not written by this program, relative to it; a folder stands for all in it.

    `also` as in `remove_written`. Empty for a folder of our own, for a link, and where nothing is.
    """
    if folder.is_symlink() or not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        return [folder.name]
    return [path.relative_to(folder).as_posix() for path, is_own in _content(folder, set(also)) if not is_own]


def remove_own_files(folder: Path, *, also: Collection[str] = ()) -> None:
    """Remove what this program wrote as `folder`; what somebody else put there stays, and so do the folders around it.

    The manifest goes last: what a kill leaves can still be told apart, and lacks files that its manifest names.
    """
    with storage_errors(folder):
        if folder.is_symlink():
            folder.unlink()
        if not folder.is_dir():
            return
        for path, is_own in list(_content(folder, set(also))):
            if is_own:
                _remove(path)
        _remove(folder)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif is_own_temporary(path):
        remove_temporary(path)
    else:
        with suppress(OSError):  # it holds something of somebody else's
            path.rmdir()


def _content(folder: Path, names: Collection[str], above: Collection[str] = ()) -> Iterator[tuple[Path, bool]]:
    """Each thing in `folder`, after what lies in it, and whether it is ours; of what is not ours only the uppermost.

    `names` are ours beside those of its manifest, also in folders of our own that are unfinished as it is; `above` the
    parts that a folder above says lie in this one.
    """
    parts, is_unfinished = set(above), not above
    with suppress(ArtifactError):
        manifest = read_any_manifest(folder)
        names = {*names, MANIFEST_NAME, *manifest.files}
        parts |= set(manifest.parts)
        is_unfinished = False
    names = {*names, *(part.partition("/")[0] for part in parts)}

    def is_ours(name: str) -> bool:
        return name in names or (is_unfinished and NUMBERED.fullmatch(name) is not None)

    for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST_NAME, path.name)):
        is_folder, beside = path.is_dir() and not path.is_symlink(), LEFT_BEHIND.fullmatch(path.name)
        if beside is not None and path.name not in names:  # a lock or a temporary name beside something of ours
            is_own = is_ours(beside[1]) or beside[1] == MANIFEST_NAME
            yield path, is_own and (not is_folder or is_own_temporary(path))
        elif not is_folder:
            yield path, path.name in names
        else:
            if is_ours(path.name):
                inner = [part.partition("/")[2] for part in parts if part.startswith(f"{path.name}/")]
                yield from _content(path, names if is_unfinished else (), inner)
            yield path, is_ours(path.name)
