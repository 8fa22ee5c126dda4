"""Texts with `<mask>`: checked, and encoded into the two vectors of a masked position.

Shapes: q texts, d dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.errors import QueryError
from npm.models.batches import encode_pooled
from npm.types import MASK_TEXT, SURROGATE

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind


SHOWN_CHARS = 80
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters without a meaning in running text; tab and line breaks are white space."""


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The start and end query of each text, and its sentence vector if that was asked for."""

    start: np.ndarray  # f32 [q, d], at the first mask of the pair
    end: np.ndarray  # f32 [q, d], at the last mask of the pair; of a single mask the same
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes
    sentences: np.ndarray | None = None  # f32 [q, d], as in `MaskVectors`

    def part(self, first: int, stop: int) -> QueryVectors:
        """Those of the texts [first, stop)."""
        sentences = None if self.sentences is None else self.sentences[first:stop]
        return QueryVectors(self.start[first:stop], self.end[first:stop], self.cut[first:stop], sentences)


def check_query(text: str, *, where: str = "text") -> None:
    """Refuse a text that is not one question: raises QueryError if empty, broken, without `<mask>` or with several."""
    mask_count = text.count(MASK_TEXT)
    if not text.strip():
        problem, expected, got = "the text is empty", f"a text with one {MASK_TEXT}", "nothing but space"
    elif half := SURROGATE.search(text):
        raise QueryError(
            "the text is not valid Unicode",
            expected="UTF-8",
            got=f"half a character, {half.group()!a}, at character {half.start()}",
            where=where,
            fix="save the text as UTF-8, or take out the escape that stands there in place of a character",
        )
    elif mask_count == 0:
        problem, expected, got = f"the text has no {MASK_TEXT}", f"exactly one {MASK_TEXT}", _shown(text)
    elif mask_count > 1:
        problem = f"the text has several {MASK_TEXT}"
        expected, got = f"exactly one {MASK_TEXT}", f"{mask_count}: {_shown(text)}"
    else:
        return
    fix = f"write {MASK_TEXT} once, where the phrase is missing, as in: The capital of Iceland is {MASK_TEXT}."
    raise QueryError(problem, expected=expected, got=got, where=where, fix=fix)


def checked_texts(given: object, *, name: str) -> list[str]:
    """One text or several as a list; `name` is what messages call each. Raises QueryError for anything else."""
    expected = "a string, or a list of strings"
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        got, fix = type(given).__name__, f"give one {name} as a string, or several in a list"
        raise QueryError(f"a {name} is no text", expected=expected, got=got, where=f"{name}s", fix=fix)
    several = [given] if isinstance(given, str) else list(given)
    for number, text in enumerate(several, start=1):
        where = name if len(several) == 1 else f"{name} {number} of {len(several)}"
        if not isinstance(text, str):
            fix = "give strings alone, or leave this one out"
            raise QueryError(f"a {name} is no text", expected=expected, got=type(text).__name__, where=where, fix=fix)
        if half := SURROGATE.search(text):
            raise QueryError(
                f"a {name} is not valid Unicode",
                expected="text that can be written as UTF-8",
                got=f"half a surrogate pair, {half.group()!a}, at character {half.start()}",
                where=where,
                fix="take out the escape that stands there in place of a character",
            )
    return several


def _shown(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text[: SHOWN_CHARS + 1])
    return printable if len(text) <= SHOWN_CHARS else printable[:SHOWN_CHARS] + "…"


def query_notes(text: str, *, cut: bool, max_input_tokens: int) -> tuple[str, ...]:
    """What a reader of the answer should know about how the text was read."""
    notes: list[str] = []
    if cut:
        notes.append(
            f"the text is longer than the {max_input_tokens} tokens of the encoder: it was cut around the mask"
        )
    if CONTROL_CHARACTERS.search(text):
        notes.append("the text contains control characters")
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class MaskVectors:
    """The vectors at the masks of each text, and the vector of the text without them if that was asked for."""

    vectors: np.ndarray  # f32 [q, masks, d]
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes
    sentences: np.ndarray | None = None  # f32 [q, d], of length 1, or 0 where nothing stands beside the mask


def encode_queries(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pooler: PoolerKind | None = None,
    tokens_per_batch: int = 8192,
) -> QueryVectors:
    """Encode texts that passed `check_query` with a mask pair each, or as `query_masks` says: see `encode_masks`."""
    found = encode_masks(
        encoder,
        texts,
        masks_per_text=encoder.query_masks,
        pooler=pooler,
        tokens_per_batch=tokens_per_batch,
    )
    return QueryVectors(found.vectors[:, 0], found.vectors[:, -1], found.cut, found.sentences)


def encode_masks(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    masks_per_text: int,
    pooler: PoolerKind | None = None,
    tokens_per_batch: int = 8192,
    last_tokens: int | None = None,
) -> MaskVectors:
    """Encode texts that passed `check_query`, batched by length, in the order given.

    With `pooler`, one of LAST_LAYER_POOLERS, each text is encoded once more, without its masks, and pooled.

    `<mask>` becomes `masks_per_text` mask tokens, whatever the encoder's own looks like. All else is ordinary text: a
    special token that somebody wrote is split like any word. A text that is too long keeps what is nearest to the mask;
    of one longer than `last_tokens`, special ones included, only the last are encoded, or those from the mask on.
    """
    if not texts:
        nothing = np.zeros((0, masks_per_text, encoder.dimensions), dtype=np.float32)  # [0, masks, d]
        return MaskVectors(nothing, np.zeros(0, dtype=bool), None if pooler is None else nothing[:, 0])
    sequences, slots, cut = masked_inputs(encoder, texts, masks_per_text)
    if last_tokens is not None:
        dropped = [min(max(len(each) - last_tokens, 0), slot) for each, slot in zip(sequences, slots, strict=True)]
        sequences = [each[count : count + last_tokens] for each, count in zip(sequences, dropped, strict=True)]
        slots = [slot - count for slot, count in zip(slots, dropped, strict=True)]
        cut = cut | (np.array(dropped) > 0)  # bool [q]
    places = list(np.array(slots)[:, None] + np.arange(masks_per_text))  # i64 [masks] for each text
    unmasked = [] if pooler is None else [np.delete(*pair) for pair in zip(sequences, places, strict=True)]
    nowhere = [np.zeros(0, dtype=np.int64)] * len(unmasked)
    encoded = encode_pooled(encoder, sequences + unmasked, places + nowhere, pooler, tokens_per_batch=tokens_per_batch)
    sentences = None
    if encoded.pooled is not None:
        special_count = len(encoder.prefix_ids) + len(encoder.suffix_ids)
        has_words = np.array([len(sequence) > special_count for sequence in unmasked])  # bool [q]
        sentences = encoded.pooled[len(texts) :] * has_words[:, None]  # f32 [q, d]
    return MaskVectors(np.stack(encoded.vectors[: len(texts)]), cut, sentences)  # f32 [q, masks, d]


def masked_inputs(
    encoder: Encoder, texts: Sequence[str], masks_per_text: int
) -> tuple[list[np.ndarray], list[int], np.ndarray]:
    """Token ids of each text, where its masks begin, and bool [q] whether it was cut."""
    halves: list[str] = []
    strips_left, strips_right = mask_strips(encoder)
    for text in texts:
        before, after = text.split(MASK_TEXT)
        halves.append(before.rstrip() if strips_left else before)
        halves.append(after.lstrip() if strips_right else after)
    # The tokenizer itself would cut at its mask token before it looks at words, so the halves can go on their own.
    encoded = encoder.tokenizer(
        halves, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids) - masks_per_text
    sequences: list[np.ndarray] = []
    slots: list[int] = []
    cut = np.zeros(len(texts), dtype=bool)  # [q]
    for number in range(len(texts)):
        before, after = encoded[2 * number], encoded[2 * number + 1]
        cut[number] = len(before) + len(after) > room
        if cut[number]:
            kept_before = min(len(before), max(room // 2, room - len(after)))
            before, after = before[len(before) - kept_before :], after[: room - kept_before]
        slots.append(len(encoder.prefix_ids) + len(before))
        masks = [encoder.mask_id] * masks_per_text
        sequences.append(np.array([*encoder.prefix_ids, *before, *masks, *after, *encoder.suffix_ids], dtype=np.int64))
    return sequences, slots, cut


def mask_strips(encoder: Encoder) -> tuple[bool, bool]:
    """Whether the tokenizer's mask token takes the space to its left and to its right with it (RoBERTa's: left)."""
    token = encoder.tokenizer.backend_tokenizer.get_added_tokens_decoder().get(encoder.mask_id)
    return (bool(token.lstrip), bool(token.rstrip)) if token is not None else (False, False)
