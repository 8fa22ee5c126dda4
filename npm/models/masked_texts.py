"""Texts with `<mask>` as token ids that an encoder reads.

Shapes: q texts, m `<mask>` of one text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.errors import QueryError, place_of, shown_start
from npm.core.types import MASK_TEXT

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


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


def masked_inputs(encoder: Encoder, texts: Sequence[str], masks_per_text: int, *, where: str = "text") -> MaskedInputs:
    """Token ids of each text that passed `check_query`, each `<mask>` of it `masks_per_text` mask tokens.

    A text that is too long keeps the tokens nearest to its masks, and all between them. Raises QueryError
    where even that does not fit.
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
                f"{place_of(number + 1, len(texts), where)} must have at most {room} tokens from the first {MASK_TEXT} "
                f"to the last, got {room - kept}: {shown_start(text)}",
                code="masks_too_far_apart",
            )
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
