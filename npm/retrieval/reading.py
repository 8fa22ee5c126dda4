"""Questions read together with the blocks that they are answered from.

Shapes: q texts, T tokens of one block.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.corpus.text import is_title
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage, PassageTokens, Reader, TokenScores
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.blocks import Restriction


def with_reading(
    store: BlockStore,
    reader: Reader,
    texts: Sequence[str],
    restrictions: Sequence[Restriction | None],
    *,
    maps: np.ndarray | None = None,
) -> list[list[Restriction | None]]:
    """For each mask of each of q texts the restriction of the text, with what the reader says of its blocks.

    `maps` f32 [2, d, d + 1] change the queries of a `MaskReader`.
    """
    pairs = [
        (text, passage_of(store, block))
        for text, restriction in zip(texts, restrictions, strict=True)
        if restriction is not None
        for block in restriction.blocks.tolist()
    ]
    found = reader.read(pairs, maps=maps) if isinstance(reader, MaskReader) else reader.read(pairs)
    scores = (
        [(_of_block(each, passage.tokens), each.unknown_share) for each in own]
        for (_, passage), own in zip(pairs, found, strict=True)
        if passage.tokens is not None
    )
    result: list[list[Restriction | None]] = []
    for restriction in restrictions:
        if restriction is None:
            result.append([])
            continue
        read = list(itertools.islice(scores, len(restriction.blocks)))  # for each mask of each block
        of_masks: list[Restriction | None] = []
        for blocks in zip(*read, strict=True):
            joint, unknown = zip(*blocks, strict=True)  # f64 [2, T] and a share of each block
            of_masks.append(replace(restriction, joint=joint, unknown_share=float(np.mean(unknown))))
        result.append(of_masks)
    return result


def check_readable(
    index: PhraseIndex, reader: Reader | None, settings: FillSettings, blocks: np.ndarray | None
) -> None:
    """Raise SettingError unless `reader` chooses the phrases, as it must where tokens have no vectors."""
    reads = settings.retrieval is Retrieval.hybrid and settings.joint_share and not settings.scoring.reference
    if reader is not None and blocks is None and reads:
        return
    raise SettingError(
        f"{index.folder} has no vectors of tokens, so only retrieval=hybrid with a reader answers: leave retrieval, "
        "reader, joint_share, scoring and blocks as they are, or build with vectors=tokens",
        code="retrieval_unavailable",
    )


def _of_block(scores: TokenScores, tokens: PassageTokens) -> np.ndarray:
    """The scores f64 [2, T] of all tokens of a block; no phrase begins or ends in its title."""
    title = len(tokens.ids) - len(tokens.bounds)
    return np.pad(scores.of_tokens(tokens.bounds), ((0, 0), (title, 0)), constant_values=-np.inf)  # f64 [2, T]


def passage_of(store: BlockStore, block: int) -> Passage:
    """A block with text as a reader takes it."""
    assert store.start_chars is not None and store.end_chars is not None, "a reader reads text"
    first, stop = store.block_offsets[block : block + 2].tolist()
    flags = store.flags.slice(first, stop)  # u8 [title + T]
    is_text = ~is_title(flags)  # bool [title + T]
    bounds = np.stack([store.start_chars.slice(first, stop), store.end_chars.slice(first, stop)], axis=1)
    bounds = bounds[is_text].astype(np.int64)  # i64 [T, 2], in the document
    document = store.document(int(store.block_documents[block]))
    base, end = (int(bounds[0, 0]), int(bounds[-1, 1])) if len(bounds) else (0, 0)
    tokens = PassageTokens(
        tokenizer_fingerprint=str(store.settings["tokenizer_fingerprint"]),
        ids=store.token_ids.slice(first, stop).astype(np.int64),
        bounds=bounds - base,
    )
    return Passage(document.text[base:end], document.title, tokens)
