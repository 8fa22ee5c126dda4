"""The stages that make an index out of documents; each may be split among jobs, and goes on where it was killed.

encode: documents → blocks → vectors and term counts; quantise: a sample → quantiser; code: vectors → codes;
merge: codes → inverted lists. What a stage writes depends on the corpus and the settings, not on how many jobs ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import check_room
from index.locking import folder_lock
from index.store import MANIFEST_NAME
from npm.corpus.store import BlockStore
from npm.errors import CorpusError
from npm.memory import return_freed_memory
from npm.retrieval.embed import VectorSettings, embed_shard, finish_vectors, recorded_vectors, vector_shards
from npm.retrieval.lexicon_shards import LexiconSettings, finish_lexicon, write_lexicon_shard
from npm.retrieval.pruning import frequent_token_ids, kept_tokens
from npm.retrieval.shares import Share

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.retrieval.segments import Segment

IndexProgress = Callable[[str, int, int | None], None]
"""Called with a stage (blocks, vectors, lexicon, quantiser, codes, lists), how much is done, and the total if known."""
WHOLE = Share()


class Stage(Enum):
    """A part of a build that jobs may share."""

    encode = "encode"
    quantise = "quantise"
    code = "code"
    merge = "merge"


def silent(stage: str, done: int, total: int | None) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """What the vectors and the term counts of a segment are made with."""

    encoder: Encoder
    vectors: VectorSettings
    lexicon: LexiconSettings
    frequent_token_ids: Sequence[int] | None = None  # those of the index's first segment; None: counted in this one

    def recorded(self, store: BlockStore) -> dict[str, Any]:
        """All that the vectors of `store` depend on."""
        frequent = self.frequent_token_ids
        if frequent is None:
            ids = frequent_token_ids(store, self.vectors.max_token_share)  # i64 [n]
        else:
            ids = np.array(frequent, dtype=np.int64)  # i64 [n]
        return recorded_vectors(store, self.encoder, self.vectors, frequent_token_ids=ids)


def encode_segment(
    segment: Segment,
    store: BlockStore,
    settings: SegmentSettings,
    *,
    share: Share = WHOLE,
    progress: IndexProgress = silent,
) -> None:
    """Write this share's vector shards and term counts of a segment whose blocks are in `store`.

    Raises ArtefactError if a shard was made otherwise, StorageError if the disk refuses or has no room for them.
    """
    recorded = settings.recorded(store)
    shards = vector_shards(store, settings.vectors)
    mine = share.of(range(len(shards)))
    _check_vector_room(segment, store, settings, share)
    total = sum(_tokens(store, shards[number]) for number in mine)
    done = 0
    for number in mine:

        def report(tokens: int, _: int, before: int = done) -> None:
            progress("vectors", before + tokens, total)

        embed_shard(store, settings.encoder, segment.vectors, number, recorded=recorded, progress=report)
        return_freed_memory()
        done += _tokens(store, shards[number])
    count_segment_words(segment, store, settings.lexicon, share=share, progress=progress)


def count_segment_words(
    segment: Segment,
    store: BlockStore,
    settings: LexiconSettings,
    *,
    share: Share = WHOLE,
    progress: IndexProgress = silent,
) -> None:
    """Write this share of the term counts of a segment; nothing where the blocks have no text."""
    if store.start_chars is None:
        return
    corpus_shards = share.of(range(len(store.shard_blocks) - 1))
    for count, number in enumerate(corpus_shards, start=1):
        write_lexicon_shard(segment.lexicon / f"{number:05d}", store, number, settings)
        progress("lexicon", count, len(corpus_shards))


def finish_encoding(segment: Segment, store: BlockStore, settings: SegmentSettings) -> dict[str, int]:
    """Write the manifests of the segment's vectors and term counts once all shards are there; returns its counts.

    Raises ArtefactError, naming the missing shards, if there are any, CorpusError if no token has a vector.
    """
    return finish_segment(segment, store, settings.recorded(store), settings.lexicon)


def finish_segment(
    segment: Segment, store: BlockStore, recorded: Mapping[str, Any], lexicon: LexiconSettings
) -> dict[str, int]:
    """As `finish_encoding`, for vectors made with the settings `recorded`."""
    with folder_lock(segment.vectors, wait=True):
        manifest = finish_vectors(segment.vectors, store, recorded=recorded)
    if store.start_chars is not None:
        finish_lexicon(segment.lexicon, store, lexicon)
    kept = int(manifest.settings["pruning_counts"]["kept"])
    if kept == 0:
        raise CorpusError(
            "no token of the corpus has a vector",
            expected="words that the pruning rule keeps",
            got=f"{store.token_count} tokens, none kept by vectors.pruning={recorded['pruning']}",
            where=str(segment.index),
            fix="choose another rule, such as vectors.pruning=word_boundaries",
        )
    return {
        "documents": store.document_count,
        "blocks": store.block_count,
        "tokens": store.token_count,
        "rows": kept,
    }


def _check_vector_room(segment: Segment, store: BlockStore, settings: SegmentSettings, share: Share) -> None:
    """Refuse to begin what the disk cannot hold: vectors of this share, by the tokens that pruning keeps at most."""
    number_bytes = np.dtype(settings.vectors.dtype.value).itemsize
    shards = vector_shards(store, settings.vectors)
    needed = 0
    for number in share.of(range(len(shards))):
        if (segment.vectors / f"{number:05d}" / MANIFEST_NAME).is_file():
            continue
        first, stop = (int(store.block_offsets[block]) for block in shards[number])
        kept = int(kept_tokens(store.flags.slice(first, stop), settings.vectors.pruning).sum())
        needed += kept * settings.encoder.dimensions * number_bytes + (stop - first) // 8
    check_room(segment.vectors, needed, what="vectors")


def _tokens(store: BlockStore, blocks: tuple[int, int]) -> int:
    return int(store.block_offsets[blocks[1]] - store.block_offsets[blocks[0]])
