"""Open a search folder: the one way from a built index to a searcher."""

from __future__ import annotations

from pathlib import Path

from index.approximate import FaissSearcher, read_faiss
from index.build import FAISS_FILE, SEARCH_KIND, SearchTier
from index.exact import ExactSearcher
from index.sharded import ShardedArray
from index.store import check_folder, read_manifest
from index.types import ArtefactError


def searches_exactly(folder: Path) -> bool:
    """Whether `folder` was built for exact search, which reads all vectors into memory when it is opened.

    Raises ArtefactError if its manifest is missing or damaged.
    """
    return bool(read_manifest(folder, kind=SEARCH_KIND).settings["tier"] == SearchTier.exact.value)


def open_search(
    folder: Path, vectors: ShardedArray, *, probed_lists: int | None = None, rerank_factor: int | None = None
) -> ExactSearcher | FaissSearcher:
    """The searcher that `folder` was built for, over the stored `vectors` f32|f16 [n, d].

    Exact search reads all vectors into memory, so they are best hashed before, whatever their size. FAISS maps its
    file and the vectors and reads what a query asks for: of these, files over 64 MB are hashed by `verify_folder` only.
    `probed_lists` and `rerank_factor` replace the recorded ones; exact search has neither. Raises ArtefactError if
    the folder is damaged or was built over other vectors.
    """
    manifest = check_folder(folder, kind=SEARCH_KIND)
    settings = manifest.settings
    built_over = (settings["row_count"], settings["dimensions"])
    if built_over != vectors.shape:
        raise ArtefactError(
            f"{folder} was built over other vectors",
            expected=f"{built_over[0]} rows of {built_over[1]} dimensions",
            got=f"{vectors.shape[0]} rows of {vectors.shape[1]} dimensions",
            where=str(folder),
            fix="remove this folder and build the search index again",
        )
    if settings["tier"] == SearchTier.exact.value:
        return ExactSearcher(vectors)
    return FaissSearcher(
        read_faiss(folder / FAISS_FILE),
        vectors,
        probed_lists=probed_lists or settings["probed_lists"],
        rerank_factor=rerank_factor or settings["rerank_factor"],
    )
