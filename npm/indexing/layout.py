"""The folder of an index: a root manifest, and parts that are named by what they are made from.

    manifest.json                       the present generation: its parts by digest, and how it was made
    corpus-<request>                    blocks and documents of what one build, add or compact brought (a segment)
    vectors-…, lexicon-…, codes-…       the segment's vectors, term counts and, in tiers with lists, codes
    quantizer-…, search-…               how vectors are searched; of a partitioned index a folder per partition
    deleted-…, rotation-…, encoder-…    deleted documents, axes of rotated vectors, a copy of the encoder
    adaptation-…                        maps of queries learned from corrected answers

`<request>` is a digest of everything that the part depends on, so a part that is there is the part that is needed: this
is how a build or a change resumes, and other settings have another name. A change replaces the root manifest last, by
one rename. Parts that it does not list are garbage; readers keep what they opened. Everything else in the folder is
somebody else's, and stays. Links are refused.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from npm.core.artifact import MANIFEST_NAME, clear_locks, refuse_link
from npm.core.errors import ArtifactError, named
from npm.core.files import digest_of

CORPUS, VECTORS, LEXICON, CODES, QUANTIZER = "corpus", "vectors", "lexicon", "codes", "quantizer"
SEARCH, DELETED, ROTATION, ENCODER, ADAPTATION = "search", "deleted", "rotation", "encoder", "adaptation"
PARTS = (CORPUS, VECTORS, LEXICON, CODES, QUANTIZER, SEARCH, DELETED, ROTATION, ENCODER, ADAPTATION)
_NAME = rf"(?:{'|'.join(PARTS)})-[0-9a-f]{{16}}"
_OURS = re.compile(rf"(?P<part>{_NAME})|\.+(?:{_NAME})\.tmp")
PartName = Annotated[str, Field(pattern=f"^{_NAME}$")]
GIVEN_CORPUS = f"{CORPUS}-{0:016x}"
"""The part that holds the blocks of `index_block_store`, which come without a request."""


def part(folder: Path, kind: str, request: Mapping[str, Any]) -> Path:
    """The part of the index `folder` that a `request` of JSON values makes. Raises ArtifactError for a link."""
    place = folder / f"{kind}-{digest_of(request)[:16]}"
    refuse_link(place)
    return place


def remove_unlisted(folder: Path, listed: Collection[str], *, kinds: Collection[str] = PARTS) -> None:
    """Remove the parts of these kinds that are not `listed`, and what killed processes left; the caller has the lock.

    Readers that have opened them keep their files. What cannot be removed now, the next change removes.
    """
    for path in folder.iterdir():
        found = _OURS.fullmatch(path.name)
        if found is None or found["part"] in listed or path.name.lstrip(".").partition("-")[0] not in kinds:
            continue
        with suppress(OSError):
            if path.is_symlink() or path.is_file():
                path.unlink()
                continue
            if found["part"]:  # a part of which files are missing must not have its name
                temporary = path.with_name(f".{path.name}.tmp")
                shutil.rmtree(temporary, ignore_errors=True)
                path = path.rename(temporary)
            shutil.rmtree(path)
    clear_locks(folder)


def refuse_file(folder: Path) -> None:
    """Raise ArtifactError if there is a file where a folder is to be, or an address is given instead of a path."""
    is_address = bool(folder.parts) and re.fullmatch(r"\w[\w+.-]+:", folder.parts[0]) is not None
    if is_address or (folder.exists() and not folder.is_dir()):
        found = "an address; copy the folder to a disk first" if is_address else "a file"
        raise ArtifactError(f"{folder} must be a folder, got {found}")


def refuse_others(folder: Path) -> None:
    """Raise ArtifactError if `folder` contains something, and is neither an index nor an unfinished one."""
    refuse_file(folder)
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))
    if names and not any(map(_OURS.fullmatch, names)):
        raise ArtifactError(f"{folder} is not the folder of an index: it has {named(names)}; choose another index=DIR")
