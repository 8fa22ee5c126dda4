"""The corpus as vectors: one for each token that a pruning rule keeps, in corpus order, in immutable shards.

Here they are made, opened and compared with what the encoder makes now; and which tokens are kept is decided.

A shard `vectors/<number>` holds `vectors.npy`, rows of `stored_rows` [n, ·], without vectors of tokens [n, 0], and
`kept.npy`, u8 [ceil(T / 8)]: one bit a token, the lowest bit first, set if it is kept; and where blocks have vectors,
`blocks.npy` [blocks, ·], of length 1, pooled from the token vectors of the same pass. Any process may write any shard;
`vectors/manifest.json` comes last.

Shapes: T tokens and n kept tokens of one shard, B blocks of a batch, q texts, k blocks per text, d dimensions.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from index.arrays import ShardedArray, row_bytes, stored_rows
from index.exact import score_rows
from index.sign_codes import SignSearcher
from npm.core.artifact import (
    HASHED_AT_OPENING_BYTES,
    MANIFEST_NAME,
    RecordedSettings,
    check_files,
    check_part,
    open_array,
    part_folder,
    read_as,
    read_manifest,
    refuse_changed,
    written_once,
)
from npm.core.errors import EncoderError, damaged
from npm.core.types import Progress, TokenFlag, silent
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.store import BlockStore
from npm.indexing.rows import RowMap, pack_kept
from npm.indexing.settings import PruningRule, VectorSettings
from npm.models.batches import EncodedBatch, encode_batch, length_sorted_batches
from npm.models.settings import LAST_LAYER_POOLERS, PoolerKind

if TYPE_CHECKING:
    from index.types import Hits
    from npm.core.artifact import Manifest
    from npm.core.files import FolderWriter
    from npm.models.encoder import Encoder
    from npm.models.stored import StoredModel

_FLAG_VALUES = 256
VECTORS_KIND, VECTOR_SHARD_KIND = "vectors", "vector-shard"
_VECTORS_FILE, BLOCKS_FILE = "vectors.npy", "blocks.npy"
POOLER_KEY = "block_pooler"
"""Setting in the manifests of vectors; absent where blocks have none."""
_POOLER_NAME = Annotated[str, Field(pattern=f"^({'|'.join(kind.name for kind in LAST_LAYER_POOLERS)})$")]
_ALIKE = ("encoder_fingerprint", "tokenizer_fingerprint", "dimensions", "dtype")
"""Settings that the vectors of all segments of an index share."""
AXES_KEY = "axes"
"""Setting in the manifests of rotated vectors: the digest of the axes."""


def vector_shards(store: BlockStore, tokens_per_shard: int) -> list[tuple[int, int]]:
    """The block ranges [first, stop) of vector shards of `tokens_per_shard` tokens, up to one block more, in order."""
    block_offsets = store.block_offsets  # i64 [blocks + 1]
    cuts = np.searchsorted(block_offsets, np.arange(0, block_offsets[-1], tokens_per_shard))  # i64 [shards]
    bounds = np.unique(np.append(cuts, len(block_offsets) - 1)).tolist()
    return list(itertools.pairwise(bounds))


def recorded_vectors(
    store: BlockStore,
    encoder: Encoder,
    settings: VectorSettings,
    *,
    block_pooler: PoolerKind | None = None,
) -> dict[str, Any]:
    """All that the bytes of the vectors depend on, as recorded in the manifest of each shard.

    Blocks have vectors where there is a `block_pooler`. Raises EncoderError if the blocks were cut by
    another tokenizer or are longer than the encoder takes.
    """
    check_tokenizer(encoder, store)
    specials = 0 if store.special_tokens_in_blocks else len(encoder.prefix_ids) + len(encoder.suffix_ids)
    check_input_tokens(encoder, store.max_block_tokens + specials)
    return {
        "corpus": store.digest,
        "encoder_fingerprint": encoder.fingerprint,
        "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
        "compute_dtype": encoder.dtype_name,
        "dimensions": encoder.dimensions if settings.tokens else 0,
        "pruning": settings.pruning.value,
        "dtype": settings.dtype.value,
        "tokens_per_batch": settings.tokens_per_batch,
        "tokens_per_shard": settings.tokens_per_shard,
        **({} if block_pooler is None else {POOLER_KEY: block_pooler.name}),
        **({} if encoder.axes_digest is None else {AXES_KEY: encoder.axes_digest}),
    }


def recorded_pooler(settings: Mapping[str, Any]) -> PoolerKind | None:
    """Pooler of the block vectors of a folder whose manifest has `settings`; None without block vectors.

    Raises ArtifactError if the manifest names an unknown pooler.
    """
    if (name := settings.get(POOLER_KEY)) is None:
        return None
    file = settings.file if isinstance(settings, RecordedSettings) else Path(MANIFEST_NAME)
    return PoolerKind[read_as(_POOLER_NAME, name, file=file, key=POOLER_KEY)]


def shard_folder(folder: Path, number: int) -> Path:
    """Folder of vector shard `number` of the vectors in `folder`."""
    return folder / f"{number:05d}"


def shard_settings(store: BlockStore, blocks: tuple[int, int], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the manifest of the shard of the blocks [first, stop)."""
    first, stop = blocks
    token_count = int(store.block_offsets[stop] - store.block_offsets[first])
    return {**recorded, "first_block": first, "block_count": stop - first, "token_count": token_count}


def embed_shard(
    store: BlockStore,
    encoder: Encoder,
    folder: Path,
    number: int,
    *,
    recorded: Mapping[str, Any],
    progress: Progress = silent,
) -> Manifest:
    """Encode the blocks of shard `number` and write `folder`/<number>; a finished shard is kept.

    Special tokens are put around blocks that do not hold them, and have no vector. Progress is of the shard's tokens.
    Raises ArtifactError if the shard was made otherwise, is damaged, or is being written by another process.
    """
    ranges = vector_shards(store, recorded["tokens_per_shard"])
    settings = shard_settings(store, ranges[number], recorded)
    place = shard_folder(folder, number)

    def write(writer: FolderWriter) -> None:
        blocks = ShardBlocks(store, encoder, settings)
        vectors, of_blocks = blocks.all_vectors(progress)  # [n, ·], [blocks, ·] or None
        writer.write_array("kept", pack_kept(blocks.kept))  # u8 [ceil(T / 8)]
        writer.write_array("vectors", vectors)
        if of_blocks is not None:
            writer.write_array("blocks", of_blocks)

    return written_once(place, kind=VECTOR_SHARD_KIND, settings=settings, write=write)


class ShardBlocks:
    """The blocks of one vector shard, in the batches that are encoded at once."""

    def __init__(
        self, store: BlockStore, encoder: Encoder, settings: Mapping[str, Any], *, blocks: np.ndarray | None = None
    ) -> None:
        """`settings` are those in the manifest of the shard; `blocks` i64 [blocks] replace those that it names."""
        if blocks is None:
            first = settings["first_block"]
            blocks = np.arange(first, first + settings["block_count"])  # i64 [blocks]
        sequences = store.sequences(blocks)
        self.kept = kept_tokens(sequences.flags, PruningRule(settings["pruning"]))  # bool [T]
        self._dtype = np.dtype(settings["dtype"])
        # Axes are computed from whole vectors, whatever the length in the settings; 0: tokens have no vectors.
        self._dimensions = encoder.dimensions if settings["dimensions"] else 0
        self._pooler = recorded_pooler(settings)
        self._encoder = encoder
        self._token_ids = sequences.token_ids  # i32 [T]
        self._offsets = sequences.offsets  # i64 [blocks + 1]
        self._positions = np.flatnonzero(self.kept)  # i64 [n]
        self._row_bounds = np.searchsorted(self._positions, self._offsets)  # i64 [blocks + 1]
        around = ([], []) if store.special_tokens_in_blocks else (encoder.prefix_ids, encoder.suffix_ids)
        self._prefix, self._suffix = (np.array(ids, dtype=np.int64) for ids in around)
        lengths = np.diff(self._offsets) + len(self._prefix) + len(self._suffix)  # i64 [blocks]
        # A function of the shard alone: the last bits of a vector depend on what else was in its batch, and a job that
        # resumes after a kill, or one of several, must write the same bytes.
        self.batches = length_sorted_batches(lengths, tokens_per_batch=settings["tokens_per_batch"])

    def all_vectors(self, progress: Progress = silent) -> tuple[np.ndarray, np.ndarray | None]:
        """The vectors of all kept tokens and those of the blocks, as `stored_rows` [n, ·] and [blocks, ·].

        Both in corpus order; without a pooler blocks have none.
        """
        vectors = self._rows(len(self._positions), self._dimensions)  # [n, ·]
        block_count = 0 if self._pooler is None else len(self._offsets) - 1
        of_blocks = self._rows(block_count, self._encoder.dimensions)  # [blocks, ·]
        tokens_done = 0
        for batch in self.batches if self._dimensions or block_count else ():
            encoded = self.encoded(batch)
            if self._dimensions:
                vectors[self.rows_of(batch)] = stored_rows(encoded.vectors, self._dtype)
            if encoded.pooled is not None:
                of_blocks[batch] = stored_rows(encoded.pooled, self._dtype)
            tokens_done += int((self._offsets[batch + 1] - self._offsets[batch]).sum())
            progress("vectors", tokens_done, len(self._token_ids))
        return vectors, None if self._pooler is None else of_blocks

    def _rows(self, count: int, dimensions: int) -> np.ndarray:
        """Space for `count` stored vectors; without columns where there are none to store."""
        if not dimensions:
            return np.empty((count, 0), dtype=np.float32)
        return np.empty((count, row_bytes(dimensions, self._dtype) // self._dtype.itemsize), dtype=self._dtype)

    def rows_of(self, batch: np.ndarray) -> np.ndarray:
        """The rows i64 [kept of the batch] within the shard, block after block of `batch` i64 [B]."""
        return concatenated_ranges(self._row_bounds[batch], self._row_bounds[batch + 1])

    def sequences_of(self, batch: np.ndarray) -> list[np.ndarray]:
        """Token ids i64 [tokens] that the encoder reads for each block of `batch` i64 [B]."""
        blocks = [self._token_ids[slice(*self._offsets[block : block + 2])] for block in batch]
        return [np.concatenate([self._prefix, block, self._suffix]) for block in blocks]

    def encoded(self, batch: np.ndarray) -> EncodedBatch:
        """The vectors of the rows `rows_of(batch)`, and those of the blocks of `batch` i64 [B]."""
        kept = [self._positions[slice(*self._row_bounds[block : block + 2])] for block in batch]
        slots = [own - self._offsets[block] + len(self._prefix) for own, block in zip(kept, batch, strict=True)]
        return encode_batch(self._encoder, self.sequences_of(batch), slots, self._pooler)


class BlockVectors:
    """The vectors of the blocks of all segments, memory-mapped. Opened by `open_vectors`."""

    def __init__(self, vectors: ShardedArray, pooler: PoolerKind) -> None:
        self.pooler = pooler
        self.vectors = vectors  # [blocks, d]
        self.block_count, self.dimensions = vectors.shape
        self._searcher = SignSearcher(vectors)
        self._live_blocks: np.ndarray | None = None  # bool [blocks], or None: all

    def with_live(self, live_blocks: np.ndarray | None) -> BlockVectors:
        """The same vectors, of which only those of live blocks, bool [blocks], are found; None: all."""
        if live_blocks is not None and live_blocks.shape != (self.block_count,):
            raise ValueError(f"live blocks {live_blocks.shape} for {self.block_count} blocks")
        live = copy.copy(self)
        live._live_blocks = live_blocks
        return live

    def best(self, queries: np.ndarray, k: int, *, allowed: np.ndarray | None = None) -> Hits:
        """The k blocks nearest to each of `queries` f32 [q, d], which have length 1; scores are cosines.

        Only blocks that are live and `allowed`, bool [blocks], are found. Ties go to the block that occurs earlier in
        the corpus. Of more than `EXACT_ROWS` blocks that are left one may be missed, as `SignSearcher` does.
        """
        masks = [mask for mask in (self._live_blocks, allowed) if mask is not None]
        among = np.logical_and.reduce(masks) if masks else None  # bool [blocks]
        return self._searcher.top(queries, k, among)

    def similarities(self, queries: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Cosines f32 [q, n] of `queries` f32 [q, d] of length 1 with `blocks` i64 [n], in any order, repeats allowed.

        Raises IndexError for a block that does not exist.
        """
        ascending, places = np.unique(blocks, return_inverse=True)
        if len(ascending) and not 0 <= ascending[0] <= ascending[-1] < self.block_count:
            raise IndexError(f"blocks {ascending[0]}..{ascending[-1]} of {self.block_count}")
        scores: np.ndarray = score_rows(self.vectors, queries, ascending)[:, places]  # f32 [q, n]
        return scores


class OpenedVectors(NamedTuple):
    """The vectors of several segments in order, as one."""

    tokens: ShardedArray  # [rows, d], memory-mapped
    rows: RowMap  # which tokens they are of
    blocks: BlockVectors | None


def open_vectors(
    folders: Sequence[Path], *, hash_all: bool = False, shards: tuple[int, int] | None = None
) -> OpenedVectors:
    """The stored vectors of several segments in order, or only those in the shards [first, stop) of them all.

    With `hash_all`, for callers that read all vectors anyway, all files are hashed; so they are if all of them together
    are small, else `npmlm verify` finds damage in vectors. Raises ArtifactError if a folder is unfinished or damaged,
    or its vectors are not of the first folder's kind.
    """
    parts: list[tuple[Path, str]] = []
    first: dict[str, Any] = {}
    for folder in folders:
        manifest = read_manifest(folder, kind=VECTORS_KIND)
        own = {name: manifest.settings[name] for name in _ALIKE}
        own |= {name: manifest.settings.get(name) for name in (POOLER_KEY, AXES_KEY)}
        first = first or own
        refuse_changed(first, own, where=folder)
        parts += [(part_folder(folder, name), digest) for name, digest in manifest.parts.items()]
    opened = [(place, check_part(place, digest)) for place, digest in parts[slice(*shards or (None,))]]
    pooler = recorded_pooler(manifest.settings)
    # The limit of a single file, for all: hashing many shards below it could take minutes.
    hashed = {
        name: hash_all or sum(shard.file(name).bytes for _, shard in opened) < HASHED_AT_OPENING_BYTES
        for name in (_VECTORS_FILE, *([BLOCKS_FILE] if pooler else []))
    }
    for place, shard in opened:
        check_files(place, shard, hashed=lambda name, _: hashed.get(name, True))
    vectors = ShardedArray.of_vectors([open_array(place, "vectors") for place, _ in opened])  # [rows, d]
    kept = [open_array(place, "kept") for place, _ in opened]  # u8 [ceil(T / 8)] each
    try:
        rows = RowMap(kept, [shard.settings.typed("token_count", int) for _, shard in opened])
        if len(rows) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors for {len(rows)} kept tokens")
    except ValueError as error:
        raise damaged(folders[0], str(error)) from error
    blocks = None
    if pooler is not None:
        stored = ShardedArray.of_vectors([open_array(place, "blocks") for place, _ in opened])  # [blocks, d]
        blocks = BlockVectors(stored, pooler)
    return OpenedVectors(vectors, rows, blocks)


def kept_tokens(flags: np.ndarray, rule: PruningRule) -> np.ndarray:
    """Mask of the tokens that have a vector, bool [T]: by `rule` from their flags u8 [T].

    >>> import numpy as np
    >>> from npm.core.types import TokenFlag as F
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


def pruning_counts(store: BlockStore, rule: PruningRule) -> dict[str, Any]:
    """The store's tokens, how many of them each rule alone would keep, and how many `rule` keeps."""
    every_flag = np.arange(_FLAG_VALUES, dtype=np.uint8)  # u8 [256]
    with_flags = np.zeros(_FLAG_VALUES, dtype=np.int64)  # i64 [256], tokens with exactly these flags
    for flags in store.flags.arrays:
        with_flags += np.bincount(flags, minlength=_FLAG_VALUES)
    by_rule = {each.value: int(with_flags[kept_tokens(every_flag, each)].sum()) for each in PruningRule}
    return {"tokens": store.token_count, "kept_by_rule": by_rule, "kept": by_rule[rule.value]}


def check_input_tokens(encoder: Encoder, token_count: int) -> None:
    """Raise EncoderError if blocks of up to `token_count` tokens, special tokens included, are too long for it."""
    if token_count > encoder.max_input_tokens:
        raise EncoderError(
            f"blocks.max_block_tokens must be at most {encoder.max_input_tokens} with special tokens, "
            f"the input of {encoder.name}, got {token_count}"
        )


def check_tokenizer(model: StoredModel, store: BlockStore) -> None:
    """Raise EncoderError unless the blocks of `store` were cut by the tokenizer of `model`."""
    if store.tokenizer_fingerprint != model.tokenizer_fingerprint:
        raise EncoderError(
            f"{store.folder} was cut by another tokenizer ({store.tokenizer_fingerprint}) than that of {model.name} "
            f"({model.tokenizer_fingerprint}); set encoder to the one of the blocks, or build another index"
        )
