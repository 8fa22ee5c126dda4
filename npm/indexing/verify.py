"""Verification of an index: every byte against its SHA-256, and a sample of its vectors against its encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npm.core.artifact import verify_folder
from npm.core.errors import ArtifactError
from npm.corpus.store import BlockStore
from npm.indexing.embed import VectorCheck, reencode_sample
from npm.indexing.generation import INDEX_KIND, Generation
from npm.indexing.partitions import check_partitions
from npm.indexing.phrase_index import check_encoder, load_index_encoder
from npm.models.settings import Precision

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

LEAST_COSINE = 0.99
"""Between a stored vector and the same token encoded again: storing in float16 and computing in bfloat16 leave more."""


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each piece.

    Raises ArtifactError on the first fault. If a change replaces the generation meanwhile, the new one is checked.
    """
    while True:
        before = Generation.read(folder).manifest.digest
        try:
            verify_folder(folder, INDEX_KIND, progress)
            check_partitions(Generation.read(folder))
            return
        except (ArtifactError, FileNotFoundError):
            if Generation.read(folder).manifest.digest == before:
                raise


def index_encoder(folder: Path, name: str, *, device: str = "auto", dtype: Precision = Precision.auto) -> Encoder:
    """The encoder that made the index, for reading, by `name` or as `fill` finds it; vectors as long as those stored.

    Raises ArtifactError if it is another one.
    """
    manifest = Generation.read(folder).manifest
    return check_encoder(
        folder,
        manifest,
        load_index_encoder(folder, manifest, name or None, device=device, dtype=dtype, for_reading=True),
    )


def verify_vectors(folder: Path, encoder: Encoder, *, batches: int, seed: int) -> VectorCheck:
    """Encode up to `batches` random batches of every segment again and compare with what is stored.

    Raises ArtifactError if a vector points elsewhere: its cosine with the new one is below 0.99.
    """
    rng = np.random.default_rng(seed)
    row_count, worst_cosine = 0, 1.0
    generation = Generation.read(folder)
    encoder = check_encoder(folder, generation.manifest, encoder)
    for segment in generation.segments:
        store = BlockStore.open(segment.corpus)
        found = reencode_sample(store, encoder, segment.vectors, batch_count=batches, rng=rng)
        row_count += found.row_count
        worst_cosine = min(worst_cosine, found.worst_cosine)
        if found.worst_cosine < LEAST_COSINE:
            raise ArtifactError(
                f"{segment.vectors} differs from what the encoder computes now: the least cosine of {found.row_count} "
                f"rows is {found.worst_cosine:.4f}, must be at least {LEAST_COSINE}; build the index again"
            )
    return VectorCheck(row_count, worst_cosine)
