"""Verification of an index: every byte against its SHA-256, and a sample of its vectors against its encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npm.core.artifact import check_folder, open_array, verify_folder
from npm.core.errors import ArtifactError
from npm.core.records import refuse_changed
from npm.corpus.store import BlockStore
from npm.indexing.embed import AXES_KEY, VECTOR_SHARD_KIND, VECTORS_KIND, ShardBlocks
from npm.indexing.generation import INDEX_KIND, Generation, on_present
from npm.indexing.partitions import check_partitions
from npm.indexing.phrase_index import check_encoder, load_index_encoder
from npm.models.settings import Precision

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

LEAST_COSINE = 0.99
"""Between a stored vector and the same token encoded again: storing in float16 and computing in bfloat16 leave more."""


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """Distance of stored vectors from those that an encoder now makes of the same batches."""

    row_count: int
    worst_cosine: float  # of a stored and a new vector of one token or block, computed in float64; 1 without rows


def reencode_sample(
    store: BlockStore, encoder: Encoder, folder: Path, *, batch_count: int, rng: np.random.Generator
) -> VectorCheck:
    """Encode `batch_count` random batches again, each as in its shard, and compare with the stored vectors.

    A batch is drawn at random from a shard that is drawn at random, none of them twice: fewer where a shard that is
    drawn several times has fewer. Raises ArtifactError if the vectors are unfinished, damaged, or were made with
    another encoder or corpus.
    """
    manifest = check_folder(folder, kind=VECTORS_KIND)
    ours = {
        "corpus": store.digest,
        "encoder_fingerprint": encoder.fingerprint,
        "dimensions": manifest.settings["dimensions"] and encoder.dimensions,
        AXES_KEY: encoder.axes_digest,
    }
    refuse_changed(ours, {name: manifest.settings.get(name) for name in ours}, where=folder)
    row_count, worst_cosine = 0, 1.0
    names = list(manifest.parts)
    numbers, counts = np.unique(rng.integers(len(names), size=batch_count), return_counts=True)  # i64 [shards] each
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        shard = folder / names[number]
        blocks = ShardBlocks(store, encoder, check_folder(shard, kind=VECTOR_SHARD_KIND).settings)
        for drawn in rng.permutation(len(blocks.batches))[:count].tolist():
            batch = blocks.batches[drawn]
            encoded = blocks.encoded(batch)
            pairs = []
            if manifest.settings["dimensions"]:
                row_count += len(encoded.vectors)
                pairs.append((open_array(shard, "vectors")[blocks.rows_of(batch)], encoded.vectors))  # [n, d] each
            if encoded.pooled is not None:
                pairs.append((open_array(shard, "blocks")[batch], encoded.pooled))  # [B, d] each
            for old, fresh in ((stored.astype(np.float64), new.astype(np.float64)) for stored, new in pairs):
                norms = np.linalg.norm(old, axis=1) * np.linalg.norm(fresh, axis=1)  # f64 [n]
                cosines = (old * fresh).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)  # f64 [n]
                worst_cosine = float(cosines.min(initial=worst_cosine))
    return VectorCheck(row_count, worst_cosine)


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each piece.

    Raises ArtifactError on the first fault. If a change replaces the generation meanwhile, the new one is checked.
    """

    def verify(generation: Generation) -> None:
        verify_folder(folder, INDEX_KIND, progress)
        check_partitions(generation)

    on_present(folder, verify)


def index_encoder(
    folder: Path, given: Encoder | str | None, *, device: str = "auto", dtype: Precision = Precision.auto
) -> Encoder:
    """The encoder that made the index, for reading, the one given or as `fill` finds it; vectors as those stored.

    Raises ArtifactError if it is another one.
    """
    manifest = Generation.read(folder).manifest
    return load_index_encoder(folder, manifest, given, device=device, dtype=dtype, for_reading=True)


def verify_vectors(folder: Path, encoder: Encoder, *, batches: int, seed: int) -> VectorCheck:
    """Encode up to `batches` random batches of every segment again and compare with what is stored.

    Raises ArtifactError if a vector points elsewhere: its cosine with the new one is below 0.99.
    """

    def verify(generation: Generation) -> VectorCheck:
        rng, found = np.random.default_rng(seed), [VectorCheck(0, 1.0)]
        checked = check_encoder(folder, generation.manifest, encoder)
        for segment in generation.segments:
            store = BlockStore.open(segment.corpus)
            found.append(reencode_sample(store, checked, segment.vectors, batch_count=batches, rng=rng))
            if found[-1].worst_cosine < LEAST_COSINE:
                raise ArtifactError(
                    f"{segment.vectors} differs from what the encoder computes now: the least cosine of "
                    f"{found[-1].row_count} rows is {found[-1].worst_cosine:.4f}, must be at least {LEAST_COSINE}; "
                    "build the index again"
                )
        return VectorCheck(sum(each.row_count for each in found), min(each.worst_cosine for each in found))

    return on_present(folder, verify)
