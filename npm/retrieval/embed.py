"""The corpus as vectors: one for each token that a pruning rule keeps, in corpus order, in immutable shards.

Shapes: T tokens and n kept tokens of one shard, B blocks of a batch, L padded length, d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from index.store import ShardedArray, check_folder, open_array, write_folder, write_manifest
from npm.corpus.ranges import concatenated_ranges
from npm.errors import ArtefactError, EncoderError, check_range
from npm.retrieval.batches import encode_padded, length_sorted_batches
from npm.retrieval.manifests import keeps_finished
from npm.types import TokenFlag

if TYPE_CHECKING:
    from index.store import Manifest
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder

VECTORS_KIND, VECTOR_SHARD_KIND = "vectors", "vector-shard"


class PruningRule(Enum):
    """Which tokens have a vector, and so may stand at the start or the end of a phrase; special tokens never do."""

    all = "all"
    word_boundaries = "word_boundaries"
    without_punctuation = "without_punctuation"
    without_stopwords = "without_stopwords"


class VectorDtype(Enum):
    """Number format of stored vectors."""

    float16 = "float16"
    float32 = "float32"


@dataclass(kw_only=True, slots=True)
class VectorSettings:
    """Which token vectors are stored, and how."""

    pruning: PruningRule = PruningRule.without_stopwords
    """`all` tokens; first and last tokens of words (`word_boundaries`); of these not punctuation
    (`without_punctuation`); of these not stop-words either (`without_stopwords`)."""
    dtype: VectorDtype = VectorDtype.float16
    """2 or 4 bytes a number."""
    tokens_per_batch: int = 4096
    """Tokens encoded at once, padding included; the last bits of a vector may depend on it."""
    tokens_per_shard: int = 262_144
    """Tokens of a shard, up to one block more: what is encoded again after a build was killed."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_batch", "tokens_per_shard"):
            value = getattr(self, name)
            check_range(value >= 1, f"vectors.{name}", expected="at least 1", got=value)


def kept_tokens(flags: np.ndarray, rule: PruningRule) -> np.ndarray:
    """Whether each token has a vector under `rule`, bool [T], from its flags u8 [T].

    >>> import numpy as np
    >>> from npm.types import TokenFlag as F
    >>> flags = np.array([F.WORD_START | F.WORD_END, F.WORD_START | F.WORD_END | F.STOPWORD, F.SPECIAL, 0], np.uint8)
    >>> kept_tokens(flags, PruningRule.without_stopwords).tolist()
    [True, False, False, False]
    """
    kept = (flags & TokenFlag.SPECIAL.value) == 0  # bool [T]
    if rule is PruningRule.all:
        return kept
    kept &= (flags & (TokenFlag.WORD_START | TokenFlag.WORD_END).value) != 0
    if rule in (PruningRule.without_punctuation, PruningRule.without_stopwords):
        kept &= (flags & TokenFlag.PUNCTUATION.value) == 0
    if rule is PruningRule.without_stopwords:
        kept &= (flags & TokenFlag.STOPWORD.value) == 0
    return kept


def embed_block_store(
    store: BlockStore,
    encoder: Encoder,
    folder: Path,
    *,
    settings: VectorSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Encode every block and store the vectors of the tokens that the pruning rule keeps, in shards under `folder`.

    Batches are a function of the shard alone; special tokens are put around blocks that do not hold them, and have
    no vector. `progress(tokens done, tokens of the corpus)` is called after each batch. Finished shards are kept.
    Raises ArtefactError if `folder` holds vectors made otherwise, EncoderError if blocks are longer than the
    encoder takes.
    """
    _check_block_length(store, encoder)
    recorded = {
        "corpus": store.digest,
        "encoder_fingerprint": encoder.fingerprint,
        "compute_dtype": str(next(encoder.model.parameters()).dtype).removeprefix("torch."),
        "dimensions": encoder.dimensions,
        "pruning": settings.pruning.value,
        "dtype": settings.dtype.value,
        "tokens_per_batch": settings.tokens_per_batch,
        "tokens_per_shard": settings.tokens_per_shard,
    }
    if finished := keeps_finished(folder, kind=VECTORS_KIND, settings=recorded):
        return finished
    parts: dict[str, str] = {}
    for number, (first, stop) in enumerate(_shard_blocks(store.block_offsets, settings.tokens_per_shard)):
        name = f"{number:05d}"
        shard_settings = {**recorded, "first_block": first, "block_count": stop - first}
        shard = keeps_finished(folder / name, kind=VECTOR_SHARD_KIND, settings=shard_settings)
        if shard is None:
            positions, vectors = _embed_blocks(store, encoder, first, stop, settings=settings, progress=progress)
            with write_folder(folder / name, kind=VECTOR_SHARD_KIND, settings=shard_settings) as writer:
                writer.write_array("positions", positions)  # u32 [n], from the shard's first token on
                writer.write_array("vectors", vectors)  # [n, d]
            shard = check_folder(folder / name, kind=VECTOR_SHARD_KIND)
        elif progress is not None:
            progress(int(store.block_offsets[stop]), store.token_count)
        parts[name] = shard.digest
    return write_manifest(folder, kind=VECTORS_KIND, settings=recorded, parts=parts)


def open_vectors(folder: Path, store: BlockStore, *, hash_all: bool = False) -> tuple[ShardedArray, np.ndarray]:
    """The stored vectors [rows, d], memory-mapped, and the token position i64 [rows] of each in the corpus.

    `hash_all` is for who goes on to read all vectors: their files are hashed even if they are large.
    Raises ArtefactError if the folder is unfinished, damaged, or was made from another corpus.
    """
    manifest = check_folder(folder, kind=VECTORS_KIND)
    if manifest.settings["corpus"] != store.digest:
        raise ArtefactError(
            "the vectors were made from another corpus",
            expected=f"corpus {store.digest}",
            got=f"corpus {manifest.settings['corpus']}",
            where=str(folder),
            fix="remove this folder and run the command that made it again",
        )
    arrays, positions = [], []
    for name in manifest.parts:
        shard = check_folder(folder / name, kind=VECTOR_SHARD_KIND, hash_all=hash_all)
        first_token = store.block_offsets[shard.settings["first_block"]]
        positions.append(open_array(folder / name, "positions").astype(np.int64) + first_token)  # i64 [n]
        arrays.append(open_array(folder / name, "vectors"))  # [n, d]
    return ShardedArray(arrays), np.concatenate(positions)


def _check_block_length(store: BlockStore, encoder: Encoder) -> None:
    specials = 0 if store.special_tokens_in_blocks else len(encoder.prefix_ids) + len(encoder.suffix_ids)
    if store.max_block_tokens + specials > encoder.max_input_tokens:
        raise EncoderError(
            "blocks are longer than the encoder takes",
            expected=f"at most {encoder.max_input_tokens} tokens, special tokens included",
            got=f"{store.max_block_tokens + specials}",
            where=f"encoder {encoder.name}",
            fix=f"set blocks.max_block_tokens={encoder.max_input_tokens} or less",
        )


def _shard_blocks(block_offsets: np.ndarray, tokens_per_shard: int) -> list[tuple[int, int]]:
    """The block ranges [first, stop) of shards of `tokens_per_shard` tokens, up to one block more."""
    cuts = np.searchsorted(block_offsets, np.arange(0, block_offsets[-1], tokens_per_shard))  # i64 [shards]
    bounds = np.unique(np.append(cuts, len(block_offsets) - 1)).tolist()
    return list(itertools.pairwise(bounds))


def _embed_blocks(
    store: BlockStore,
    encoder: Encoder,
    first_block: int,
    stop_block: int,
    *,
    settings: VectorSettings,
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Kept positions u32 [n] within the shard, ascending, and their vectors [n, d]."""
    import torch

    sequences = store.sequences(np.arange(first_block, stop_block))
    offsets = sequences.offsets  # i64 [blocks + 1]
    positions = np.flatnonzero(kept_tokens(sequences.flags, settings.pruning))  # i64 [n]
    row_bounds = np.searchsorted(positions, offsets)  # i64 [blocks + 1]
    vectors = np.empty((len(positions), encoder.dimensions), dtype=settings.dtype.value)  # [n, d]
    around = ([], []) if store.special_tokens_in_blocks else (encoder.prefix_ids, encoder.suffix_ids)
    prefix, suffix = (np.array(ids, dtype=np.int64) for ids in around)
    lengths = np.diff(offsets) + len(prefix) + len(suffix)  # i64 [blocks]
    tokens_done = int(store.block_offsets[first_block])
    for batch in length_sorted_batches(lengths, tokens_per_batch=settings.tokens_per_batch):
        blocks = [sequences.token_ids[offsets[block] : offsets[block + 1]] for block in batch]
        states = encode_padded(encoder, [np.concatenate([prefix, block, suffix]) for block in blocks])  # f32 [B, L, d]
        rows = concatenated_ranges(row_bounds[batch], row_bounds[batch + 1])  # i64 [kept of the batch]
        in_block = positions[rows] - np.repeat(offsets[batch], np.diff(row_bounds)[batch])  # i64 [kept of the batch]
        places = np.repeat(np.arange(len(batch)), np.diff(row_bounds)[batch])  # i64 [kept of the batch]
        slots = torch.from_numpy(places * states.shape[1] + in_block + len(prefix)).to(states.device)
        kept = states.reshape(-1, states.shape[2]).index_select(0, slots)  # f32 [kept of the batch, d]
        vectors[rows] = kept.cpu().numpy()
        tokens_done += int((offsets[batch + 1] - offsets[batch]).sum())
        if progress is not None:
            progress(tokens_done, store.token_count)
    return positions.astype(np.uint32), vectors
