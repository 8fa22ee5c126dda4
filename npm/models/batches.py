"""Texts with `<mask>` as token ids, and token sequences of uneven length, encoded in batches of about equal cost.

Shapes: q texts, m `<mask>` of one text, S sequences, B sequences of a batch with N tokens in all, n slots whose vectors
are wanted, d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.errors import ArtifactError, QueryError, shown_start
from npm.core.types import MASK_TEXT
from npm.models.settings import LAST_LAYER_POOLERS, PoolerKind

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class EncodedBatch(NamedTuple):
    """Vectors of one pass."""

    vectors: np.ndarray  # f32 [n, d], at the slots of all sequences
    pooled: np.ndarray | None  # f32 [B, d], of length 1; None where no pooler was given


class EncodedSequences(NamedTuple):
    """Vectors of some sequences."""

    vectors: list[np.ndarray]  # f32 [n, d] of each sequence, at its slots
    pooled: np.ndarray | None  # f32 [S, d], of length 1; None where no pooler was given


def encode_sequences(
    encoder: Encoder,
    sequences: Sequence[np.ndarray],
    slots: Sequence[np.ndarray],
    pooler: PoolerKind | None = None,
    *,
    tokens_per_batch: int,
) -> EncodedSequences:
    """Encode sequences of token ids, batched by length: for each the vectors f32 [n, d] at its `slots` i64 [n].

    With a `pooler` in the same passes one vector of length 1 for each sequence, 0s for an empty one. Raises ValueError
    for a pooler that reads more than the last layer, ArtifactError for tokens unknown to the model.
    """
    vectors = [np.zeros((0, encoder.dimensions), dtype=np.float32)] * len(sequences)
    pooled = None if pooler is None else np.zeros((len(sequences), encoder.dimensions), dtype=np.float32)  # f32 [S, d]
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)  # i64 [S]
    filled = np.flatnonzero(lengths)  # i64 [not empty]
    for places in length_sorted_batches(lengths[filled], tokens_per_batch=tokens_per_batch):
        batch = filled[places]  # i64 [B]
        own = [slots[number] for number in batch]
        encoded = encode_batch(encoder, [sequences[number] for number in batch], own, pooler)
        parts = np.split(encoded.vectors, np.cumsum([len(each) for each in own])[:-1])
        for number, part in zip(batch.tolist(), parts, strict=True):
            vectors[number] = part
        if pooled is not None and encoded.pooled is not None:
            pooled[batch] = encoded.pooled
    return EncodedSequences(vectors, pooled)


def encode_batch(
    encoder: Encoder,
    sequences: Sequence[np.ndarray],
    slots: Sequence[np.ndarray],
    pooler: PoolerKind | None = None,
) -> EncodedBatch:
    """Encode sequences of token ids in one pass: the concatenated vectors at the `slots` i64 of each, and those pooled.

    Raises ValueError for a pooler that reads more than the last layer.
    """
    import torch

    if pooler is not None and pooler not in LAST_LAYER_POOLERS:
        raise ValueError(f"the pooler {pooler.name} reads more than the last layer")
    lengths = [len(sequence) for sequence in sequences]
    ids = torch.from_numpy(np.concatenate(sequences)).to(encoder.device)  # i64 [N]
    with torch.inference_mode():
        try:
            states = encoder.packed_vectors(ids, lengths)  # f32 [N, d]
        except IndexError:  # of torch's embedding, on the CPU; the ids of a foreign index may be anything
            raise ArtifactError(
                f"{encoder.name} has no token {int(ids.max())}: the stored blocks are damaged or forged; build again"
            ) from None
        starts = np.cumsum([0, *lengths[:-1]])  # i64 [B]
        rows = np.concatenate([start + own for start, own in zip(starts, slots, strict=True)])  # i64 [n]
        # chosen and pooled on the device: unwanted vectors are not copied to the host
        chosen = states.index_select(0, torch.from_numpy(rows).to(states.device)).cpu().numpy()  # f32 [n, d]
        if pooler is None:
            return EncodedBatch(chosen, None)
        parts = states.split(lengths)
        pooled = torch.stack([part.mean(0) if pooler is PoolerKind.avg else part[0] for part in parts])  # f32 [B, d]
    return EncodedBatch(chosen, torch.nn.functional.normalize(pooled, dim=1).cpu().numpy())


def length_sorted_batches(lengths: np.ndarray, *, tokens_per_batch: int) -> list[np.ndarray]:
    """Sequence numbers i64 [B] of each batch, longest first: a function of the lengths [S] alone.

    A batch, padded to its longest sequence, has at most `tokens_per_batch` tokens, or one sequence.

    >>> import numpy as np
    >>> [batch.tolist() for batch in length_sorted_batches(np.array([3, 9, 4, 4]), tokens_per_batch=10)]
    [[1], [2, 3], [0]]
    """
    order = np.argsort(-lengths, kind="stable")  # i64 [S]
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        count = max(1, tokens_per_batch // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + count])
        start += count
    return batches


class MaskedInputs(NamedTuple):
    """Texts as the encoder reads them."""

    sequences: list[np.ndarray]  # q of i64 [tokens], special tokens included
    slots: list[np.ndarray]  # q of i64 [m], where the mask tokens of each `<mask>` begin
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes


def token_ids(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text; a special token in a text is split like any word."""
    if not texts:
        return []
    found = encoder.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    ids: list[list[int]] = found["input_ids"]
    return ids


def masked_inputs(
    encoder: Encoder, texts: Sequence[str], masks_per_text: int, *, left_free: int = 0, places: Sequence[str] = ()
) -> MaskedInputs:
    """Token ids of each text that passed `check_query`, each `<mask>` of it `masks_per_text` mask tokens.

    A text that is too long keeps the tokens nearest to its masks, and all between them; `left_free` tokens of the
    input stay free where they can. Raises QueryError, with the name of the text in `places`, where the masks do not
    fit.
    """
    pieces: list[str] = []
    strips_left, strips_right = mask_strips(encoder)
    for text in texts:
        own = text.split(MASK_TEXT)
        # Spaces go only where a mask token takes them: the beginning of the first piece and the end of the last stay.
        before = [piece.rstrip() if strips_left else piece for piece in own[:-1]] + own[-1:]
        pieces += before[:1] + [piece.lstrip() if strips_right else piece for piece in before[1:]]
    # The tokenizer itself would cut at its mask token before it looks at words, so the pieces can be separate.
    encoded = iter(token_ids(encoder, pieces))
    room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids)
    masks = [encoder.mask_id] * masks_per_text
    found = MaskedInputs([], [], np.zeros(len(texts), dtype=bool))
    for number, text in enumerate(texts):
        count = text.count(MASK_TEXT)
        before_masks, *between, after = itertools.islice(encoded, count + 1)
        lengths = masks_per_text + np.array([0, *map(len, between)])  # i64 [m], from the mask before to each mask
        kept = room - int(lengths.sum())  # tokens of the text before and after the masks
        if kept < 0 and count > 1:
            raise QueryError(
                f"{places[number] if places else 'text'} must have at most {room} tokens from the first {MASK_TEXT} "
                f"to the last, got {room - kept}: {shown_start(text)}",
                code="masks_too_far_apart",
            )
        kept = max(0, kept - left_free)
        if len(before_masks) + len(after) > kept:
            found.cut[number] = True
            kept_before = min(len(before_masks), max(kept // 2, kept - len(after)))
            before_masks, after = before_masks[len(before_masks) - kept_before :], after[: kept - kept_before]
        inside = [token for piece in between for token in (*piece, *masks)]
        ids = [*encoder.prefix_ids, *before_masks, *masks, *inside, *after, *encoder.suffix_ids]
        found.sequences.append(np.array(ids, dtype=np.int64))
        found.slots.append(len(encoder.prefix_ids) + len(before_masks) + np.cumsum(lengths) - masks_per_text)  # i64 [m]
    return found


def mask_strips(encoder: Encoder) -> tuple[bool, bool]:
    """For the left and the right: True if the mask token absorbs the space there (RoBERTa's: left)."""
    token = encoder.tokenizer.backend_tokenizer.get_added_tokens_decoder().get(encoder.mask_id)
    return (bool(token.lstrip), bool(token.rstrip)) if token is not None else (False, False)
