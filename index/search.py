"""Open a search folder: the one way from a built index to a searcher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from index.approximate import FaissSearcher
from index.build import SearchTier
from index.exact import ExactSearcher
from index.faiss_library import QUERY_BITS, read_faiss
from index.lists import attach_lists
from index.merge import FAISS_FILE, FAISS_FOLDER, FAISS_KIND, SEARCH_KIND
from index.quantiser import Quantiser
from index.sharded import ShardedArray
from index.store import Manifest, check_folder, read_manifest
from index.torch_device import fitting_device
from index.types import ArtefactError

if TYPE_CHECKING:
    from index.torch_exact import TorchExactSearcher


def searches_exactly(folder: Path) -> bool:
    """Whether `folder` was built for exact search, which reads all vectors into memory when it is opened.

    Raises ArtefactError if its manifest is missing or damaged.
    """
    return bool(read_manifest(folder, kind=SEARCH_KIND).settings["tier"] == SearchTier.exact.value)


def open_search(
    folder: Path,
    vectors: ShardedArray,
    *,
    quantiser: Path | None,
    probed_lists: int | None = None,
    rerank_factor: int | None = None,
    device: str | None = None,
) -> ExactSearcher | TorchExactSearcher | FaissSearcher:
    """The searcher that `folder` was built for, over the stored `vectors` f32|f16 [n, d].

    Exact search reads all vectors into memory (that of a GPU, where torch finds one with room), so they are best
    hashed before, whatever their size. The other tiers need the folder of their `quantiser`, map the lists and the
    vectors, and read what a query asks for: of these, files over 64 MB are hashed by `verify_folder` only.
    `probed_lists` and `rerank_factor` replace the recorded ones; exact search has neither. `device` is that of exact
    search, `cpu` or one of torch; unset, a GPU with room for the vectors is taken. Raises ArtefactError if
    the folder is damaged, or was built over other vectors or with another quantiser.
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
        return _exact_searcher(vectors, device)
    if FAISS_FOLDER in manifest.parts:
        check_folder(folder / FAISS_FOLDER, kind=FAISS_KIND)
        index, held = read_faiss(folder / FAISS_FOLDER / FAISS_FILE), []
    else:
        trained = _recorded_quantiser(quantiser, manifest, folder)
        index, parts = trained.index, [folder / name for name in manifest.parts]
        held = attach_lists(index, parts, quantiser_digest=trained.digest, row_count=len(vectors))
    return FaissSearcher(
        index,
        vectors,
        probed_lists=probed_lists or settings["probed_lists"],
        rerank_factor=rerank_factor or settings["rerank_factor"],
        query_bits=QUERY_BITS,
        held=held,
    )


def _exact_searcher(vectors: ShardedArray, device: str | None) -> ExactSearcher | TorchExactSearcher:
    if device is None:
        device = fitting_device(vectors.shape[0] * vectors.shape[1] * vectors.dtype.itemsize)
    if device in (None, "cpu"):
        return ExactSearcher(vectors)
    from index.torch_exact import TorchExactSearcher

    return TorchExactSearcher(vectors, device=str(device))


def _recorded_quantiser(path: Path | None, manifest: Manifest, folder: Path) -> Quantiser:
    """The quantiser in `path`, which must be the one that the search folder was built with."""
    expected = manifest.settings["quantiser"]
    opened = None if path is None else Quantiser.open(path)
    if opened is None or opened.digest != expected:
        raise ArtefactError(
            f"{folder} was built with another quantiser",
            expected=f"quantiser {expected}",
            got="no quantiser" if opened is None else f"quantiser {opened.digest}",
            where=str(folder if path is None else path),
            fix="open it with the quantiser of its own index, or code and merge again (stage=code, stage=merge)",
        )
    return opened
