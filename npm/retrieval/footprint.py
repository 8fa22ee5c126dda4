"""How many bytes an index takes: on disk, part by part, and hot, which is all that a search needs in memory.

Computed from manifests, file sizes and counts alone, so that it takes no time at any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.lists import FAISS_FILE, ID_BYTES, LISTS_FILE, SEARCH_KIND
from index.quantiser import QUANTISER_KIND, TRAINED_FILE
from index.settings import SearchTier
from index.store import MANIFEST_NAME, read_any_manifest, read_manifest
from npm.retrieval.rows import ROWS_PER_SAMPLE
from npm.retrieval.segments import SEGMENTS_FOLDER

if TYPE_CHECKING:
    from npm.retrieval.segments import Generation

LIST_ENTRY_BYTES = 24
"""FAISS keeps size, capacity and offset of each list that it maps, 8 bytes each."""
HOT_FILES = (LISTS_FILE, FAISS_FILE, TRAINED_FILE)
"""Files of which every search reads, so that they must be in memory, mapped or not."""
ROW_COUNT_LIMIT = 2**32


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one generation of an index."""

    disk: dict[str, int]  # by part, all segments together
    hot: dict[str, int]  # by item
    cold: int  # on disk, and not in a hot file
    token_count: int
    row_count: int

    @property
    def hot_bytes_per_vector(self) -> float:
        """Hot bytes for each stored vector."""
        return sum(self.hot.values()) / self.row_count

    @property
    def cold_bytes_per_token(self) -> float:
        """Bytes left on disk for each token of the corpus, vectors and texts among them."""
        return self.cold / self.token_count

    @property
    def disk_bytes_per_token(self) -> float:
        """All bytes on disk for each token of the corpus."""
        return sum(self.disk.values()) / self.token_count

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows": self.row_count,
            "tokens": self.token_count,
            "disk_bytes": self.disk,
            "hot_bytes": self.hot,
            "cold_bytes": self.cold,
            "hot_bytes_per_vector": self.hot_bytes_per_vector,
            "cold_bytes_per_token": self.cold_bytes_per_token,
            "disk_bytes_per_token": self.disk_bytes_per_token,
        }


def footprint(generation: Generation) -> Footprint:
    """The bytes of `generation`. Raises ArtefactError if a manifest of it is missing or damaged."""
    disk: dict[str, int] = {"manifest": _manifest_bytes(generation.folder)}
    cold = disk["manifest"]
    for name in generation.manifest.parts:
        part = Path(name).name if name.startswith(f"{SEGMENTS_FOLDER}/") else Path(name).parts[0]
        sizes = file_sizes(generation.folder / name)
        disk[part] = disk.get(part, 0) + sum(sizes.values())
        cold += sum(size for path, size in sizes.items() if path.name not in HOT_FILES)
    counts = generation.settings["counts"]
    return Footprint(
        disk=disk,
        hot={**_search_bytes(generation), **table_bytes(generation)},
        cold=cold,
        token_count=int(counts["tokens"]),
        row_count=int(counts["rows"]),
    )


def file_sizes(folder: Path) -> dict[Path, int]:
    """The bytes of every file of `folder` and of the folders that its manifest names, manifests among them."""
    manifest = read_any_manifest(folder)
    sizes = {folder / name: record.bytes for name, record in manifest.files.items()}
    sizes[folder / MANIFEST_NAME] = _manifest_bytes(folder)
    for name in manifest.parts:
        sizes |= file_sizes(folder / name)
    return sizes


def table_bytes(generation: Generation) -> dict[str, int]:
    """Bytes of the arrays that an opened index holds in memory beside its searcher, whatever the tier."""
    counts = generation.settings["counts"]
    documents, blocks, tokens, rows = (int(counts[name]) for name in ("documents", "blocks", "tokens", "rows"))
    words = tokens // 64 + 1  # see npm/retrieval/rows.py
    count_bytes = 4 if rows < ROW_COUNT_LIMIT else 8
    found = {
        "row bitmap": 8 * words,
        "row counts": count_bytes * words + 8 * (-(-rows // ROWS_PER_SAMPLE) + 1),
        "block offsets": 8 * (blocks + 1),
        "block documents": 8 * blocks,
        "block lengths": 4 * blocks if _has_lexicon(generation) else 0,
    }
    if generation.settings["deleted"] is not None:
        found["live documents, blocks, rows"] = documents + blocks + -(-rows // 8)
    return found


def _search_bytes(generation: Generation) -> dict[str, int]:
    """Bytes that the searcher needs."""
    search = read_manifest(generation.search, kind=SEARCH_KIND)
    rows, dimensions = int(search.settings["row_count"]), int(search.settings["dimensions"])
    if search.settings["tier"] == SearchTier.exact.value:
        return {"vectors (float32)": 4 * rows * dimensions}
    sizes = file_sizes(generation.search)
    if whole := sum(size for path, size in sizes.items() if path.name == FAISS_FILE):
        return {"search index": whole}
    assert generation.quantiser is not None, "inverted lists have a quantiser"
    quantiser = read_manifest(generation.quantiser, kind=QUANTISER_KIND)
    lists = sum(size for path, size in sizes.items() if path.name == LISTS_FILE)
    return {
        "codes": lists - ID_BYTES * rows,
        "row ids": ID_BYTES * rows,
        "centroids, graph, codec": quantiser.files[TRAINED_FILE].bytes,
        "list table": LIST_ENTRY_BYTES * _list_count(generation),
    }


def _list_count(generation: Generation) -> int:
    """The lists of all list parts."""
    search = read_manifest(generation.search, kind=SEARCH_KIND)
    return max(int(read_any_manifest(generation.search / name).settings["stop_list"]) for name in search.parts)


def _has_lexicon(generation: Generation) -> bool:
    return any(segment.lexicon.is_dir() for segment in generation.segments)


def _manifest_bytes(folder: Path) -> int:
    return (folder / MANIFEST_NAME).stat().st_size
