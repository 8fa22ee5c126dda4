"""Maps of the two mask vectors that `npmlm adapt` learned from corrected answers: a part of the index.

A query q becomes q + W q + b, with a W and b for the start query and others for the end query. Vectors of the corpus
do not change. The part is `adaptation-…`, with the array `maps`, f32 [2, d, d + 1]: W in its first d columns, b in the
last. Its manifest has the facts of the training. An index has one such part or none.

Shapes: d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.artifact import check_folder, check_part, open_array, part_folder, read_manifest, written_once
from npm.core.errors import damaged
from npm.core.files import FolderWriter, sha256_of_bytes
from npm.indexing.generation import ADAPTATION, part

if TYPE_CHECKING:
    from npm.indexing.generation import IndexManifest

ADAPTATION_KIND = "adaptation"


@dataclass(frozen=True, slots=True)
class QueryMaps:
    """The maps of the start and the end query, for one retrieval of `fill`."""

    retrieval: str
    reader: str
    """Fingerprint of the reader whose queries the maps change, and of no other; empty: they change the queries of
    stored vectors."""
    maps: np.ndarray  # f32 [2, d, d + 1]

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest) -> QueryMaps | None:
        """Maps of the index in `folder`; None if it has none. Raises ArtifactError if their part is damaged."""
        if manifest.adaptation_folder is None:
            return None
        place = part_folder(folder, manifest.adaptation_folder)
        check_part(place, manifest.parts[place.name])
        opened = check_folder(place, kind=ADAPTATION_KIND, hash_all=True)
        opened.file("maps.npy")
        maps = np.array(open_array(place, "maps"))  # f32 [2, d, d + 1]
        if maps.dtype != np.float32 or maps.shape != (2, maps.shape[-1] - 1, maps.shape[-1]):
            raise damaged(place / "maps.npy", f"float32 [2, d, d + 1] expected, got {maps.dtype} {list(maps.shape)}")
        return cls(opened.settings.typed("retrieval", str), opened.settings.typed("reader", str), maps)

    def write(self, folder: Path, facts: Mapping[str, Any]) -> str:
        """Write the part into the index `folder`, with the `facts` of the training; returns its name."""
        digest = sha256_of_bytes(self.maps.tobytes())
        request = {"retrieval": self.retrieval, "reader": self.reader, "sha256": digest, "facts": dict(facts)}
        place = part(folder, ADAPTATION, request)

        def write(writer: FolderWriter) -> None:
            writer.write_array("maps", self.maps)

        written_once(place, kind=ADAPTATION_KIND, settings=request, write=write)
        return place.name


def mapped(queries: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Start and end queries f32 [..., 2, d], each changed by its map of f32 [2, d, d + 1].

    >>> maps = np.array([[[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]], np.zeros((2, 3))])
    >>> mapped(np.array([[2.0, 3.0], [4.0, 5.0]]), maps).tolist()
    [[4.5, 3.0], [4.0, 5.0]]
    """
    moved = queries + np.einsum("...sd,sed->...se", queries, maps[..., :-1]) + maps[..., -1]  # [..., 2, d]
    return np.asarray(moved, dtype=queries.dtype)


def adaptation_facts(folder: Path, manifest: IndexManifest) -> dict[str, Any] | None:
    """Facts of the training of the maps of the index in `folder`, as JSON values; None: not adapted."""
    if manifest.adaptation_folder is None:
        return None
    settings = read_manifest(folder / manifest.adaptation_folder, kind=ADAPTATION_KIND).settings
    return {"retrieval": settings["retrieval"], **settings.typed("facts", dict[str, Any])}
