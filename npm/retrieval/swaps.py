"""What all changes of a live index share: the note of an unfinished one, the swap, and what is removed after it.

A change writes new folders beside the old ones. `change/` says which one is under way, so that after a kill only the
same command goes on with what it left; the root manifest is replaced last, and then `change/` goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.lists import SEARCH_KIND
from index.locking import remove_dead_locks
from index.quantiser import Quantiser
from index.settings import SearchSettings, SearchTier, chosen_tier
from index.store import MANIFEST_NAME, Manifest, check_folder, read_manifest, write_folder
from npm.errors import ArtefactError
from npm.retrieval.coding import code_segment, finish_codes, finish_search
from npm.retrieval.embed import VECTORS_KIND
from npm.retrieval.recording import search_settings_of
from npm.retrieval.segments import (
    DELETED_FOLDER,
    QUANTISER_FOLDER,
    SEARCH_FOLDER,
    SEGMENTS_FOLDER,
    Generation,
    Segment,
    write_deleted,
    write_generation,
)
from npm.settings import settings_from

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.retrieval.stages import IndexProgress

CHANGE_FOLDER, CHANGE_KIND = "change", "change"
WORTH_A_COMPACT = 0.25
"""From this share of deleted documents on, a compact is advised."""
OF_ONE_GENERATION = ("generation", "segments", "quantiser", "search_folder", "deleted", "searching", "counts")
"""What of the root manifest's settings a change makes anew; all else says how the index was made."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change left behind."""

    manifest: Manifest  # of the present generation
    was_finished: bool  # there was nothing to do
    added_documents: int = 0
    deleted_documents: int = 0  # with those that were replaced
    advice: str | None = None  # what may be worth doing next


@dataclass(frozen=True, slots=True)
class ChangeNote:
    """Which change is under way: its verb, what was asked for, and the segment that it writes."""

    verb: str
    segment: str
    request: dict[str, Any]


def read_note(folder: Path) -> ChangeNote | None:
    """The change that lies in the index `folder`; None if there is none. Raises ArtefactError if it is damaged."""
    place = folder / CHANGE_FOLDER
    if not (place / MANIFEST_NAME).is_file():
        return None
    settings = check_folder(place, kind=CHANGE_KIND).settings
    return ChangeNote(settings["verb"], settings["segment"], settings["request"])


def settled(folder: Path) -> tuple[Generation, ChangeNote | None, ChangeNote | None]:
    """The present generation, the unfinished change, and one that was finished but for its note, which is removed."""
    generation, note = Generation.read(folder), read_note(folder)
    if note is None or note.segment not in generation.settings["segments"]:
        return generation, note, None
    remove(folder / CHANGE_FOLDER)
    return generation, None, note


def begin_change(
    generation: Generation, unfinished: ChangeNote | None, verb: str, request: Mapping[str, Any]
) -> Segment:
    """Note down a change, and return the segment that it writes: that of `unfinished`, if it is the same change.

    Raises ArtefactError if `unfinished` is another one.
    """
    folder = generation.folder
    if unfinished is not None:
        if (unfinished.verb, unfinished.request) != (verb, dict(request)):
            raise other_change(folder, unfinished)
        return Segment(folder, unfinished.segment)
    segment = Segment(folder, f"{1 + max(int(segment.name) for segment in generation.segments):05d}")
    # What an abandoned change left under the names of this one.
    for leftover in (folder / CHANGE_FOLDER, segment.folder, *new_folders(generation)):
        remove(leftover)
    with write_folder(
        folder / CHANGE_FOLDER,
        kind=CHANGE_KIND,
        settings={"verb": verb, "segment": segment.name, "request": dict(request)},
    ):
        pass  # its manifest says it all
    return segment


def other_change(folder: Path, unfinished: ChangeNote) -> ArtefactError:
    """The refusal of a change while another one is unfinished."""
    sources = ", ".join(source["name"] for source in unfinished.request.get("sources", [])[:3])
    return ArtefactError(
        f"{folder} holds an unfinished change",
        expected="no other change, or the same command again",
        got=f"npmlm {unfinished.verb}" + (f" of {sources}" if sources else ""),
        where=str(folder / CHANGE_FOLDER),
        fix="finish it with the command that began it; or, to abandon it, remove this folder: the next change takes "
        "away what it left",
    )


def abandon_change(segment: Segment) -> None:
    """Take away what a change that cannot be made has written; its note first, so that nothing goes on with a part."""
    remove(segment.index / CHANGE_FOLDER)
    remove(segment.folder)


def new_folders(generation: Generation) -> tuple[Path, Path, Path, Path]:
    """The quantiser, its unfinished training, the search folder and the deleted documents of the next generation."""
    folder, number = generation.folder, generation.number + 1
    quantiser = f"{QUANTISER_FOLDER}.{number}"
    return (
        folder / quantiser,
        folder / f".{quantiser}.partial",
        folder / SEARCH_FOLDER / f"{number:05d}",
        folder / DELETED_FOLDER / f"{number:05d}",
    )


def advice(folder: Path) -> str | None:
    """What the index in `folder` calls for after a change: a compact, or nothing."""
    generation = Generation.read(folder)
    counts = generation.settings["counts"]
    if counts["deleted_documents"] >= WORTH_A_COMPACT * counts["documents"]:
        told = f"{counts['deleted_documents']} of {counts['documents']} documents are deleted, but take room"
        return f"{told}: npmlm compact index={folder} rewrites the index without them"
    tier = chosen_tier(settings_from(SearchSettings, generation.settings["search"]), counts["rows"]).value
    made_for = read_manifest(generation.search, kind=SEARCH_KIND).settings["tier"]
    if tier != made_for:
        told = f"the index is searched as {made_for}, but with its {counts['rows']} rows {tier} serves better"
        return f"{told}: npmlm compact index={folder} changes to it"
    return None


def live_documents(generation: Generation, store: BlockStore) -> np.ndarray:
    """Which documents of all segments are not deleted, bool [documents]."""
    live = np.ones(store.document_count, dtype=bool)  # [documents]
    live[generation.deleted_documents()] = False
    return live


def search_lists(
    generation: Generation, segments: Sequence[Segment], quantiser: Path | None, progress: IndexProgress
) -> Path:
    """Code the last of `segments`, and write the search folder of the next generation over all of them."""
    opened = None if quantiser is None else Quantiser.open(quantiser)
    if opened is not None:
        code_segment(segments[-1], opened, progress=progress)
        finish_codes(segments[-1], opened)
    dimensions = read_manifest(segments[-1].vectors, kind=VECTORS_KIND).settings["dimensions"]
    exact = {"tier": SearchTier.exact.value, "dimensions": dimensions}
    resolved = exact if quantiser is None else search_settings_of(quantiser)
    _, _, search, _ = new_folders(generation)
    finish_search(search, segments, opened, resolved, progress=progress)
    return search


def swap(
    generation: Generation,
    *,
    segments: Mapping[str, Mapping[str, Any]],
    quantiser: Path | None,
    search: Path,
    deleted: np.ndarray,
    searching: Mapping[str, Any] | None = None,
    keeps_before: bool = True,
    request: str | None = None,
) -> Manifest:
    """Make the generation after `generation` the present one, then remove folders that no one needs any more.

    `segments` gives sources and counts of each; `deleted` i64 [n] ascending numbers of deleted documents; `searching`
    None is as before; `request` is the digest of what was to be deleted. `keeps_before` leaves the folders of
    `generation` for readers that are just opening it.
    """
    folder = generation.folder
    *_, place = new_folders(generation)
    name = generation.settings["deleted"]
    if len(deleted) == 0:
        name = None
    elif not np.array_equal(deleted, generation.deleted_documents()):
        remove(place)  # a killed change's, which may have been about fewer documents
        write_deleted(place, deleted, request=request)
        name = place.relative_to(folder).as_posix()
    manifest = write_generation(
        folder,
        number=generation.number + 1,
        made={key: value for key, value in generation.settings.items() if key not in OF_ONE_GENERATION},
        segments=segments,
        quantiser=None if quantiser is None else quantiser.relative_to(folder).as_posix(),
        search=search.relative_to(folder).as_posix(),
        searching=generation.settings["searching"] if searching is None else searching,
        deleted=name,
        deleted_count=len(deleted),
        replaces=generation.manifest.digest,
    )
    remove_unnamed(folder, [manifest, *([generation.manifest] if keeps_before else [])])
    if (note := read_note(folder)) is not None and note.segment in segments:
        remove(folder / CHANGE_FOLDER)
    return manifest


def remove_unnamed(folder: Path, manifests: Iterable[Manifest]) -> None:
    """Remove what killed changes left, and folders that none of the root `manifests` names; not an unfinished change.

    Readers that have opened them go on: their files stay until they are closed.
    """
    kept = {"/".join(part.split("/")[:2]) for manifest in manifests for part in manifest.parts}
    if (note := read_note(folder)) is not None:
        kept.add(f"{SEGMENTS_FOLDER}/{note.segment}")
    groups = (SEGMENTS_FOLDER, SEARCH_FOLDER, DELETED_FOLDER)
    places = [place for group in groups if (folder / group).is_dir() for place in sorted((folder / group).iterdir())]
    places += sorted([*folder.glob(f"{QUANTISER_FOLDER}*"), *folder.glob(f".{QUANTISER_FOLDER}*")])
    for place in places:
        if place.relative_to(folder).as_posix() not in kept:
            remove(place)
    remove_dead_locks(folder)
    if (folder / DELETED_FOLDER).is_dir() and not any((folder / DELETED_FOLDER).iterdir()):
        (folder / DELETED_FOLDER).rmdir()


def remove(path: Path) -> None:
    """Remove a folder or file if it is there.

    Its manifest goes first: what a kill leaves of a folder is never taken for a finished one. What cannot be removed,
    such as files that a reader on a network disk holds, is left to the next change.
    """
    with suppress(OSError):
        (path / MANIFEST_NAME if path.is_dir() else path).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
