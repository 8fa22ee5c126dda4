"""Whether an index is whole: every byte against its hash, and a sample of its vectors against the encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from index.store import verify_folder
from npm.corpus.store import BlockStore
from npm.errors import ArtefactError
from npm.models.encoder import ComputeDtype
from npm.retrieval.embed import Reencoded, reencode_sample
from npm.retrieval.phrase_index import fitted_encoder, load_index_encoder
from npm.retrieval.segments import INDEX_KIND, Generation

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

LEAST_COSINE = 0.99
"""Between a stored vector and the same token encoded again: storing in float16 and computing in bfloat16 leave more."""


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """What encoding a sample again has shown."""

    row_count: int
    worst_cosine: float


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each piece.

    Raises ArtefactError on the first fault. If a change replaces the generation meanwhile, the new one is checked.
    """
    while True:
        before = Generation.read(folder).manifest.digest
        try:
            verify_folder(folder, INDEX_KIND, progress)
            return
        except (ArtefactError, FileNotFoundError):
            if Generation.read(folder).manifest.digest == before:
                raise


def index_encoder(folder: Path, name: str, *, device: str = "auto", dtype: ComputeDtype = ComputeDtype.auto) -> Encoder:
    """The encoder that made the index, by `name` or as `fill` finds it, its vectors as long as those stored.

    Raises ArtefactError if it is another one.
    """
    settings = Generation.read(folder).settings
    return fitted_encoder(
        folder, settings, load_index_encoder(folder, settings, name or None, device=device, dtype=dtype)
    )


def verify_vectors(folder: Path, encoder: Encoder, *, batches: int, seed: int) -> VectorCheck:
    """Encode `batches` random batches of every segment again and compare with what is stored.

    Raises ArtefactError if a vector points elsewhere: its cosine with the new one is below 0.99.
    """
    rng = np.random.default_rng(seed)
    row_count, worst_cosine = 0, 1.0
    generation = Generation.read(folder)
    encoder = encoder.cut_to(generation.settings.get("dimensions"))
    for segment in generation.segments:
        store = BlockStore.open(segment.corpus)
        found: Reencoded = reencode_sample(store, encoder, segment.vectors, batch_count=batches, rng=rng)
        row_count += found.row_count
        worst_cosine = min(worst_cosine, found.worst_cosine)
        if found.worst_cosine < LEAST_COSINE:
            raise ArtefactError(
                "stored vectors are not those of the encoder",
                expected=f"cosines of at least {LEAST_COSINE} with the same tokens encoded again",
                got=f"{found.worst_cosine:.4f}, the worst of {found.row_count} rows",
                where=str(segment.vectors),
                fix="build the index again; if it stays, the encoder computes otherwise here than where it was built",
            )
    return VectorCheck(row_count, worst_cosine)
