"""Which names in the folder of an index are our own, and what is done about everything else that lies there.

Only what has such a name is ever removed, and of that only what `npm.core.artifact.remove` knows for ours. Links are
not followed: an index reaches nothing outside its folder, which may itself be named by a link.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from npm.core.artifact import MANIFEST_NAME, refuse_link, remove
from npm.core.errors import ArtifactError, named
from npm.core.locks import clear_locks
from npm.indexing.generation import (
    CODES_FOLDER,
    CORPUS_FOLDER,
    DELETED_FOLDER,
    LEXICON_FOLDER,
    ROTATION_FOLDER,
    SEARCH_FOLDER,
    SEGMENTS_FOLDER,
    VECTORS_FOLDER,
)

GROUPS = (SEGMENTS_FOLDER, SEARCH_FOLDER, DELETED_FOLDER)
QUANTISERS = r"quantiser(?:\.\d+)?"
PLACES = rf"(?:segments|search|deleted)/\d{{5}}|{QUANTISERS}|\.{QUANTISERS}\.partial|change|{ROTATION_FOLDER}"
PARTS = r"segments/\d{5}/(?:corpus|vectors|lexicon|codes)|search/\d{5}(?:/\d{5})?"
PLACE = re.compile(PLACES)
"""What one change writes and another one removes."""
FOLDER = re.compile(
    rf"segments|search|deleted|encoder|{PLACES}|{PARTS}|(?:{PARTS})/\d{{5}}"
    rf"|\.{QUANTISERS}\.partial/[0-9a-f]{{1,8}}"
)
TEMPORARY = re.compile(rf"(?:search|deleted)/\.\d{{5}}\.tmp|\.(?:{QUANTISERS}|encoder|change|{ROTATION_FOLDER})\.tmp")
INSIDE = (CORPUS_FOLDER, VECTORS_FOLDER, LEXICON_FOLDER, CODES_FOLDER, "packing", "quantiser")
"""What segments, search folders and unfinished quantisers hold that no manifest of their own names."""


def _entries(folder: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Everything in the index `folder` and in the folders of our own in it, by its path relative to `folder`."""
    with suppress(FileNotFoundError, NotADirectoryError):  # what another job renames or removes meanwhile
        for entry in sorted(os.scandir(folder / below), key=lambda entry: entry.name):
            name = f"{below}/{entry.name}" if below else entry.name
            yield name, folder / name
            if FOLDER.fullmatch(name) and entry.is_dir(follow_symlinks=False):
                yield from _entries(folder, name)


def refuse_links(folder: Path) -> None:
    """Raise ArtifactError if a link stands under one of our names in the index `folder`: before anything is changed."""
    for name, path in _entries(folder):
        above = name.rpartition("/")[0]
        if path.is_symlink() and (FOLDER.fullmatch(name) or (FOLDER.fullmatch(above) and above not in GROUPS)):
            refuse_link(path)


def refuse_file(folder: Path) -> None:
    """Raise ArtifactError if a file lies where a folder is to be, or an address is given in place of a path."""
    is_address = bool(folder.parts) and re.fullmatch(r"\w[\w+.-]+:", folder.parts[0]) is not None
    if is_address or (folder.exists() and not folder.is_dir()):
        found = "an address; npmlm publish and fetch copy to and from addresses" if is_address else "a file"
        raise ArtifactError(f"{folder} must be a folder, got {found}")


def refuse_others(folder: Path, *, own: Collection[str] = ()) -> None:
    """Raise ArtifactError if `folder` holds something, and is neither an index nor an unfinished build of one.

    Names in `own` may be there, as a fetch leaves them.
    """
    refuse_file(folder)
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))
    begun = folder / SEGMENTS_FOLDER
    if begun.is_dir() and (
        any(map(_is_segment, begun.iterdir())) or (names == [SEGMENTS_FOLDER] and not any(begun.iterdir()))
    ):
        return
    if set(names) <= set(own):
        return
    raise ArtifactError(f"{folder} is not the folder of an index: it holds {named(names)}; choose another index=DIR")


def _is_segment(path: Path) -> bool:
    """Whether `path` is what a build has begun: a numbered folder, empty or with parts or locks of a segment."""
    if not path.is_dir() or re.fullmatch(r"\d{5}", path.name) is None:
        return False
    names = [entry.name for entry in path.iterdir()]
    return not names or any(
        re.fullmatch(r"\.?(?:corpus|vectors|lexicon|codes|packing)(?:\.lock|\.tmp)?", name) for name in names
    )


def remove_places(folder: Path, *, kept: Collection[str] = ()) -> None:
    """Remove what this program wrote in the index `folder`, without the encoder and what is `kept`: search/00000.

    What somebody else put there stays. So does what cannot be removed, such as files that a reader on a network disk
    holds: the next change does it.
    """
    for name, path in list(_entries(folder)):
        if PLACE.fullmatch(name) and name not in kept:
            remove_place(path)
        elif TEMPORARY.fullmatch(name):
            shutil.rmtree(path, ignore_errors=True)
    clear_locks(folder)
    with suppress(OSError):
        (folder / DELETED_FOLDER).rmdir()


def remove_place(place: Path) -> None:
    """Remove what this program wrote as `place`, which is a segment or another folder that a change writes."""
    with suppress(OSError):
        remove(place, also=INSIDE)


def clear_folder(folder: Path, *, entirely: bool) -> None:
    """Take away a folder that a failed build made: all that it wrote, or what holds nothing finished."""
    if entirely:
        remove_places(folder)
    with suppress(OSError):  # another job may be at work in it
        folders = [path for name, path in _entries(folder) if FOLDER.fullmatch(name) and not path.is_symlink()]
        for path in (*reversed(folders), folder):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
