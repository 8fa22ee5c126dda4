"""Texts read together with the blocks that they are answered from: one pass of the encoder over a text and a block.

The pass gives queries that have seen the block, and keys, the tokens of the block, that have seen the text. Among these
keys a phrase is scored as the objective `npm.objectives.reading` trains it,

    sim(q, k) − log Σ_{k' ∈ R ∪ {c}} exp sim(q, k'),

with R the tokens of the block and c the first token of the text, which represents "not here": so a block without the
answer has low scores everywhere, and blocks can be compared. These keys are never stored: they and their
queries keep all dimensions of the encoder's vectors, even if those of the index are shorter.

Shapes: q texts, m masks of one text, p pairs of a text and a block, n masks of all pairs, T tokens of one block,
d dimensions, k of stored vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.corpus.text import is_title
from npm.indexing.adaptation import mapped
from npm.models.batches import encode_sequences
from npm.retrieval.queries import QueryVectors, masked_inputs
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.blocks import Restriction

TRAINED_JOINT_SHARE = 0.75
"""Weight of the keys of the joint pass for an encoder that was trained for them."""
PAIRS_AT_ONCE = 256
"""Pairs whose keys are held at once: 100 MB of blocks of 256 tokens and 384 dimensions."""


class ReadPair(NamedTuple):
    """Vectors of one pass over a text and a block."""

    queries: np.ndarray  # f32 [m, 2, d], at the masks of the text
    keys: np.ndarray  # f32 [1 + T or fewer, d], of the text's first token and of the block's; [0, d] if not asked for
    flags: np.ndarray  # u8 [T], of the block's tokens


def joint_share(settings: FillSettings, encoder: Encoder) -> float:
    """Fraction of a similarity that comes from the keys of the joint pass."""
    if settings.joint_share is None:
        return TRAINED_JOINT_SHARE if encoder.reads_jointly else 0.0
    return settings.joint_share


def with_reading(
    index: PhraseIndex,
    encoder: Encoder,
    texts: Sequence[str],
    vectors: QueryVectors,
    restrictions: Sequence[Restriction | None],
    settings: FillSettings,
    *,
    passes: Iterable[ReadPair] | None = None,
) -> list[Restriction | None]:
    """For each mask the restriction of its text with queries for each block.

    `reading_share` of a query is from the text followed by the block. With a joint share also the similarities of
    the joint pass. `passes` are those of `read_restrictions` where they are known.
    """
    jointly = joint_share(settings, encoder) > 0
    given = read_restrictions(index, encoder, texts, restrictions, settings) if passes is None else passes
    of_blocks = (block_queries(index, encoder, pair, jointly=jointly) for pair in given)
    share = np.float32(settings.reading_share)
    result: list[Restriction | None] = []
    for restriction, (first, stop) in zip(restrictions, itertools.pairwise(vectors.offsets.tolist()), strict=True):
        if restriction is None:
            result += [None] * (stop - first)
            continue
        read = list(itertools.islice(of_blocks, len(restriction.blocks)))
        for mask in range(first, stop):
            alone = np.stack([vectors.start[mask], vectors.end[mask]])  # f32 [2, k]
            with_block = np.array([queries[mask - first] for queries, _ in read], dtype=np.float32)  # [blocks, 2, k]
            mixed = share * with_block.reshape(-1, *alone.shape) + (1 - share) * alone  # f32 [blocks, 2, k]
            joint = tuple(similarities[mask - first] for _, similarities in read) if jointly else None
            result.append(replace(restriction, queries=mixed, joint=joint))
    return result


def read_restrictions(
    index: PhraseIndex,
    encoder: Encoder,
    texts: Sequence[str],
    restrictions: Sequence[Restriction | None],
    settings: FillSettings,
) -> Iterator[ReadPair]:
    """Read each of q texts with each block of its restriction, in this order."""
    pairs = [
        (text, block)
        for text, restriction in zip(texts, restrictions, strict=True)
        if restriction is not None
        for block in restriction.blocks.tolist()
    ]
    jointly = joint_share(settings, encoder) > 0
    return read_pairs(index, encoder, pairs, jointly=jointly, tokens_per_batch=settings.tokens_per_batch)


def block_queries(
    index: PhraseIndex, encoder: Encoder, pair: ReadPair, *, jointly: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The queries f32 [m, 2, k] of stored vectors and, with `jointly`, for each mask the similarities f64 [2, T].

    These are of both queries with the block; a token that was cut off is as far from both as the farthest read.
    """
    import torch

    queries = encoder.shortened(torch.from_numpy(pair.queries)).numpy()  # f32 [m, 2, k]
    asked, maps = pair.queries, index.maps_for(Retrieval.hybrid.value)
    if maps is not None and maps.is_joint:
        asked = mapped(asked, maps.maps)
    elif maps is not None:
        queries = mapped(queries, maps.maps)
    scale = encoder.cut_to(None).similarity_scale
    return queries, [joint_similarities(each, pair.keys, pair.flags, scale) for each in asked] if jointly else []


def read_pairs(
    index: PhraseIndex, encoder: Encoder, pairs: Sequence[tuple[str, int]], *, jointly: bool, tokens_per_batch: int
) -> Iterator[ReadPair]:
    """Read each checked text with the block of its pair; a block is cut to what the encoder takes.

    The keys are there with `jointly`.
    """
    if not pairs:
        return
    sequences, mask_slots, _ = masked_inputs(encoder, [text for text, _ in pairs], encoder.query_masks)
    passages = index.store.sequences(np.array([block for _, block in pairs], dtype=np.int64))
    suffix = np.array(encoder.suffix_ids, dtype=np.int64)
    slots: list[np.ndarray] = []
    for number, sequence in enumerate(sequences):
        # after the suffix, as queries read in training (npm/masking/rendering.py)
        room = max(0, encoder.max_input_tokens - len(sequence) - len(suffix))
        passage = passages.token_ids[slice(*passages.offsets[number : number + 2])][:room].astype(np.int64)  # [read]
        if room:
            sequences[number] = np.concatenate([sequence, passage, suffix])
        masks = mask_slots[number][:, None] + [0, encoder.query_masks - 1]  # i64 [m, 2]
        keys = [[0], len(sequence) + np.arange(len(passage))] if jointly else []
        slots.append(np.concatenate([masks.ravel(), *keys]))
    whole = encoder.cut_to(None)
    size = PAIRS_AT_ONCE if jointly else len(sequences)
    for start in range(0, len(sequences), size):
        own = slice(start, start + size)
        encoded = encode_sequences(whole, sequences[own], slots[own], tokens_per_batch=tokens_per_batch).vectors
        for number, vectors in enumerate(encoded, start=start):  # f32 [slots, d]
            count = 2 * len(mask_slots[number])
            queries = vectors[:count].reshape(-1, 2, whole.dimensions)  # f32 [m, 2, d]
            flags = passages.flags[slice(*passages.offsets[number : number + 2])]  # u8 [T]
            yield ReadPair(queries, vectors[count:], flags)


def joint_similarities(queries: np.ndarray, keys: np.ndarray, flags: np.ndarray, scale: float) -> np.ndarray:
    """The scores f64 [2, T] of a block's tokens for the queries f32 [2, d], as the module says.

    `keys` f32 [1 + T or fewer, d] are the first token's vector and those of the block's tokens, of the same pass; by
    their `flags` u8 [T] the tokens of a title are not keys.
    """
    read = len(keys) - 1
    is_key = np.append(True, ~is_title(flags[:read]))  # bool [1 + read]
    scaled = queries.astype(np.float64) @ keys.T.astype(np.float64) * scale  # f64 [2, 1 + read]
    most = scaled[:, is_key].max(1, keepdims=True)  # f64 [2, 1]
    log_sums = most + np.log(np.exp(scaled[:, is_key] - most).sum(1, keepdims=True))  # f64 [2, 1]
    scores = scaled - log_sums  # f64 [2, 1 + read]
    cut_off = np.repeat(scores.min(1, keepdims=True), len(flags) - read, axis=1)  # f64 [2, T - read]
    return np.concatenate([scores[:, 1:], cut_off], axis=1)  # f64 [2, T]
