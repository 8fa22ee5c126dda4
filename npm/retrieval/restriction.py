"""The blocks that a text is answered from when not all of them are searched, and what each one lends to its phrases.

Shapes: q texts, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npm.errors import SettingError
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Restriction:
    """The blocks that one text is answered from, and what each one adds to the similarities found in it."""

    blocks: np.ndarray  # i64 [blocks], ascending
    bonuses: np.ndarray  # f64 [blocks]
    queries: np.ndarray | None = None  # f32 [blocks, 2, d], start and end query for each block; None: the same for all


def lexical_restrictions(
    index: PhraseIndex, texts: Sequence[str], settings: FillSettings, *, allowed: np.ndarray | None = None
) -> list[Restriction | None]:
    """The best blocks of each text by BM25; without any, `hybrid` looks everywhere (None) and `bm25` nowhere.

    Only blocks in the mask `allowed` bool [blocks] are looked in, all if None.

    Raises SettingError if the index has no text.
    """
    if index.lexicon is None:
        raise SettingError(
            f"retrieval={settings.retrieval.value} needs the text of the blocks",
            expected="retrieval=dense, or an index over blocks with text",
            got="an index over blocks of token ids",
            where=str(index.folder),
            fix="use retrieval=dense",
        )
    hybrid = settings.retrieval is Retrieval.hybrid
    hits = index.lexicon.best_blocks(texts, settings.bm25_blocks, allowed=allowed)
    restrictions: list[Restriction | None] = []
    for blocks, scores, found in zip(hits.blocks, hits.scores, hits.found, strict=True):
        if hybrid and not found.any():
            restrictions.append(None)
            continue
        kept = np.flatnonzero(found)
        kept = kept[np.argsort(blocks[kept])]
        share = scores[kept].astype(np.float64) / max(float(scores[0]), np.finfo(np.float32).tiny)  # f64 [blocks]
        weight = settings.lexical_weight if hybrid else 0.0
        restrictions.append(Restriction(blocks[kept], weight * share))
    return restrictions


def with_reading(
    index: PhraseIndex,
    encoder: Encoder,
    texts: Sequence[str],
    vectors: QueryVectors,
    restrictions: Sequence[Restriction | None],
    settings: FillSettings,
) -> list[Restriction | None]:
    """The same restrictions with queries for each block: `reading_share` from the text with the block behind it."""
    numbers = [number for number, restriction in enumerate(restrictions) if restriction for _ in restriction.blocks]
    blocks = [block for restriction in restrictions if restriction for block in restriction.blocks.tolist()]
    passages = index.store.sequences(np.array(blocks, dtype=np.int64))
    contexts = np.split(passages.token_ids, passages.offsets[1:-1]) if blocks else []
    read = encode_queries(
        encoder,
        [texts[number] for number in numbers],
        contexts=contexts,
        tokens_per_batch=settings.tokens_per_batch,
    )
    share = np.float32(settings.reading_share)
    alone = np.stack([vectors.start[numbers], vectors.end[numbers]], axis=1)  # f32 [pairs, 2, d]
    mixed = share * np.stack([read.start, read.end], axis=1) + (1 - share) * alone  # f32 [pairs, 2, d]
    done = 0
    result: list[Restriction | None] = []
    for restriction in restrictions:
        count = len(restriction.blocks) if restriction else 0
        result.append(replace(restriction, queries=mixed[done : done + count]) if restriction else None)
        done += count
    return result
