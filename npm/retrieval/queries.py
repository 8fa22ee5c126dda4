"""Texts with `<mask>`: checked, encoded into the two vectors of a masked position, restricted to the best blocks.

Shapes: q texts, d dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npm.errors import QueryError, SettingError
from npm.masking.rendering import MASKS_PER_SPAN
from npm.models.batches import encode_sequences
from npm.retrieval.settings import FillSettings, Retrieval
from npm.types import MASK_TEXT, SURROGATE

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


SHOWN_CHARS = 80
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters without a meaning in running text; tab and line breaks are white space."""


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The start and end query of each text."""

    start: np.ndarray  # f32 [q, d], at the first mask of the pair
    end: np.ndarray  # f32 [q, d], at the last mask of the pair
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes


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
    """The vectors at the masks of each text."""

    vectors: np.ndarray  # f32 [q, masks, d]
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes


def encode_queries(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    contexts: Sequence[np.ndarray] | None = None,
    tokens_per_batch: int = 8192,
) -> QueryVectors:
    """Encode texts that passed `check_query` with a mask pair each: see `encode_masks`."""
    found = encode_masks(
        encoder, texts, masks_per_text=MASKS_PER_SPAN, contexts=contexts, tokens_per_batch=tokens_per_batch
    )
    return QueryVectors(start=found.vectors[:, 0], end=found.vectors[:, -1], cut=found.cut)


def encode_masks(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    masks_per_text: int,
    contexts: Sequence[np.ndarray] | None = None,
    tokens_per_batch: int = 8192,
) -> MaskVectors:
    """Encode texts that passed `check_query`, batched by length, in the order given.

    `contexts` are the token ids i64 [T] of a passage for each text, which stands behind it and is cut to fit.

    `<mask>` becomes `masks_per_text` mask tokens, whatever the encoder's own looks like. All else is ordinary text: a
    special token that somebody wrote is split like any word. A text that is too long keeps what is nearest to the mask.
    """
    if not texts:
        nothing = np.zeros((0, masks_per_text, encoder.dimensions), dtype=np.float32)  # [0, masks, d]
        return MaskVectors(nothing, np.zeros(0, dtype=bool))
    sequences, slots, cut = _masked_inputs(encoder, texts, masks_per_text)
    if contexts is not None:
        # behind the suffix, as queries read in training (npm/masking/rendering.py)
        suffix = np.array(encoder.suffix_ids, dtype=np.int64)
        for number, (sequence, context) in enumerate(zip(sequences, contexts, strict=True)):
            room = encoder.max_input_tokens - len(sequence) - len(suffix)
            if room > 0:
                sequences[number] = np.concatenate([sequence, context[:room].astype(np.int64), suffix])
    places = np.array(slots)[:, None] + np.arange(masks_per_text)  # i64 [q, masks]
    vectors = encode_sequences(encoder, sequences, list(places), tokens_per_batch=tokens_per_batch)
    return MaskVectors(np.stack(vectors), cut)  # f32 [q, masks, d]


def _masked_inputs(
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
