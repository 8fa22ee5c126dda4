"""Texts with `<mask>`: checked, and encoded into the two vectors of each masked position.

Shapes: q texts, n `<mask>` of all texts in a row, m of one text, d dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np

from npm.core.errors import QueryError, SettingError, place_of, shown_start
from npm.core.types import MASK_TEXT, SURROGATE
from npm.corpus.text import with_full_stop, with_mask, words_of
from npm.indexing.adaptation import mapped
from npm.models.batches import MaskedInputs, encode_sequences, masked_inputs, token_ids

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind
    from npm.retrieval.settings import FillSettings


Value = TypeVar("Value")
Texts = list[str] | tuple[str, ...]
MAX_MASKS = 8
"""Maximum number of `<mask>` in a text that is filled jointly."""
YEAR_WORDS = frozenset({"in", "since"})
"""Words before a mask after which the year alone answers, as it does where the text says `year`; else the date does."""
JOINING = "$€£¥₹₩₽%‰°-"
"""Marks next to a mask that belong to its expression: `$<mask>`, `<mask>%`, `life-<mask>`."""
TOKENS_PER_BATCH = 8192
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters without a meaning in running text; tab and line breaks are white space."""
COLUMN = re.compile(r"\{([^{}]+)\}")
"""A column of a table in the template of a user, such as `{name}`."""


@dataclass(frozen=True, slots=True)
class Query:
    """A text as it is filled, read and checked once."""

    text: str
    place: str = "text"  # its name in messages
    line: int | None = None  # in a file or a pipe, from 1

    @classmethod
    def read(cls, text: str, place: str = "text", *, max_masks: int = 1) -> Self:
        """`text` as `read_query` gives it."""
        return cls(read_query(text, where=place, max_masks=max_masks), place)


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """The start and end query of each `<mask>`, text after text, and optionally each text's sentence vector."""

    start: np.ndarray  # f32 [n, d], at the first mask of the pair
    end: np.ndarray  # f32 [n, d], at the last mask of the pair; of a single mask the same
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes
    sentences: np.ndarray | None = None  # f32 [q, d], as in `MaskVectors`
    mask_counts: np.ndarray | None = None  # i64 [q], how many `<mask>` each text has; None: one each, so n is q

    @property
    def offsets(self) -> np.ndarray:
        """i64 [q + 1]; the masks of text i are [offsets[i], offsets[i + 1])."""
        counts = np.ones(len(self.cut), dtype=np.int64) if self.mask_counts is None else self.mask_counts  # i64 [q]
        return np.append(0, np.cumsum(counts))

    def mapped(self, maps: np.ndarray) -> QueryVectors:
        """Query vectors with both queries of each mask changed by `maps` f32 [2, d, d + 1]."""
        queries = mapped(np.stack([self.start, self.end], axis=1), maps)  # f32 [n, 2, d]
        return replace(self, start=queries[:, 0], end=queries[:, 1])

    def per_mask(self, of_texts: Sequence[Value]) -> list[Value]:
        """Repeat the value of each of the q texts once per mask: n values."""
        pairs = zip(of_texts, np.diff(self.offsets).tolist(), strict=True)
        return [value for value, count in pairs for _ in range(count)]


def check_query(text: str, *, where: str = "text", max_masks: int = 1) -> None:
    """Raise QueryError for a text that is empty or broken, or has no `<mask>` or more than `max_masks`."""
    check_text(text, where)
    if not 1 <= (count := text.count(MASK_TEXT)) <= max_masks:
        masks = f"exactly one {MASK_TEXT}" if max_masks == 1 else f"one to {max_masks} {MASK_TEXT}"
        raise QueryError(
            f"{where} must have {masks}, such as 'The capital of Iceland is {MASK_TEXT}.', "
            f"got {count}: {shown_start(text)}",
            code="too_many_masks",
        )


def read_query(text: str, *, where: str = "text", max_masks: int = 1) -> str:
    """The text as it is filled, with `<mask>` for `___` and `[MASK]`; a text without any gets one behind it.

    Raises QueryError as `check_query` does.

    >>> read_query("Iceland's capital is ___."), read_query("It is an island. Who governs it?")
    ("Iceland's capital is <mask>.", 'It is an island. Who governs it? <mask>.')
    """
    check_text(text, where)
    masked = with_mask(text)
    check_query(masked, where=where, max_masks=max_masks)
    return masked


def sentences_of(texts: Sequence[str], settings: FillSettings) -> list[str]:
    """The texts as encoder and reader get them: with a full stop, unless `settings` score as the reference does."""
    return list(texts) if settings.scoring.reference else [with_full_stop(text) for text in texts]


def check_template(template: str) -> None:
    """Raise SettingError for a template of a user without a column, or with one in double braces."""
    if not COLUMN.search(template) or "{{" in template:
        raise SettingError(f"template must name a column in single braces, such as {{name}}, got {template!r:.80}")


def check_unmasked(text: str, column: str, where: str) -> None:
    """Raise QueryError for the text of a column that contains a mask itself."""
    if MASK_TEXT in text:
        raise QueryError(
            f"{where}: column {column!r} contains {MASK_TEXT} itself, which only the template may: take it out of the "
            f"text, got {shown_start(text)}"
        )


def checked_texts(given: object, *, name: str) -> list[str]:
    """One text or several as a list; `name` is the name of each in messages. Raises QueryError for anything else."""
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise QueryError(f"{name}s must be a string or a list of strings, got {type(given).__name__}")
    several = [given] if isinstance(given, str) else list(given)
    for number, text in enumerate(several, start=1):
        check_text(text, place_of(number, len(several), name))
    return several


def check_text(text: object, where: str) -> None:
    """Raise QueryError for a text that is no string, is empty, or is not valid Unicode."""
    if not isinstance(text, str):
        raise QueryError(f"{where} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise QueryError(f"{where} is empty", code="empty")
    if half := SURROGATE.search(text):
        raise QueryError(
            f"{where} is not valid Unicode: got {half.group()!a} at character {half.start()}", code="invalid_unicode"
        )


def read_queries(given: object, *, max_masks: int = 1) -> list[Query]:
    """One text or several, or queries that were read before, as queries."""
    if isinstance(given, list | tuple) and given and all(isinstance(query, Query) for query in given):
        return list(given)
    several = checked_texts(given, name="text")
    places = [place_of(number, len(several)) for number in range(1, len(several) + 1)]
    return [Query.read(text, place, max_masks=max_masks) for text, place in zip(several, places, strict=True)]


def query_notes(text: str, *, cut: bool, max_input_tokens: int) -> tuple[str, ...]:
    """Notes for a reader of the answer about how the text was read."""
    masks = "the masks" if text.count(MASK_TEXT) > 1 else "the mask"
    longer = f"the text is longer than the {max_input_tokens} tokens of the encoder: it was cut around {masks}"
    has_controls = bool(CONTROL_CHARACTERS.search(text))
    return (longer,) * cut + ("the text contains control characters",) * has_controls


class MaskVectors(NamedTuple):
    """The vectors at the mask tokens of each `<mask>`, and each text's vector without them if requested."""

    vectors: np.ndarray  # f32 [n, masks, d]
    cut: np.ndarray  # bool [q], whether the text was longer than the encoder takes
    sentences: np.ndarray | None = None  # f32 [q, d], of length 1, or 0 for a text of masks alone


def encode_queries(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    pooler: PoolerKind | None = None,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    where: str = "text",
    places: Sequence[str] = (),
) -> QueryVectors:
    """Encode texts that passed `check_query`, with one `<mask>` or several, in the order given, batched by length.

    Each `<mask>` becomes a mask pair, or as `query_masks` says; the others stay masks in the same pass. With `pooler`,
    one of LAST_LAYER_POOLERS, each text is encoded once more, without its masks, and pooled. Raises QueryError as
    `masked_inputs` does, with the name of a text in `places`, or of texts that are all `where`.
    """
    places = places or [place_of(number, len(texts), where) for number in range(1, len(texts) + 1)]
    inputs = masked_inputs(encoder, texts, encoder.query_masks, places=places)
    found = _encoded(encoder, inputs, encoder.query_masks, pooler, tokens_per_batch)
    counts = np.array([len(slots) for slots in inputs.slots], dtype=np.int64)  # i64 [q]
    return QueryVectors(found.vectors[:, 0], found.vectors[:, -1], found.cut, found.sentences, counts)


def encode_masks(
    encoder: Encoder, texts: Sequence[str], *, masks_per_text: int, last_tokens: int | None = None
) -> MaskVectors:
    """Encode texts with one `<mask>` each that passed `check_query`, batched by length, in the order given.

    `<mask>` becomes `masks_per_text` mask tokens, for any form of the encoder's own. Of a text longer than
    `last_tokens`, special ones included, only the last are encoded, or those from the mask on. Raises ValueError for a
    text with several `<mask>`.
    """
    sequences, slots, cut = masked_inputs(encoder, texts, masks_per_text)
    if any(len(each) != 1 for each in slots):
        raise ValueError(f"a text has several {MASK_TEXT}")
    for number, at in enumerate(slots):
        dropped = min(len(sequences[number]) - (last_tokens or len(sequences[number])), int(at[0]))
        if last_tokens and dropped > 0:
            sequences[number], slots[number] = sequences[number][dropped : dropped + last_tokens], at - dropped
            cut[number] = True
    return _encoded(encoder, MaskedInputs(sequences, slots, cut), masks_per_text, None, TOKENS_PER_BATCH)


def _encoded(
    encoder: Encoder, inputs: MaskedInputs, masks_per_text: int, pooler: PoolerKind | None, tokens_per_batch: int
) -> MaskVectors:
    sequences = inputs.sequences
    places = [(slots[:, None] + np.arange(masks_per_text)).ravel() for slots in inputs.slots]  # i64 [m * masks] each
    unmasked = [] if pooler is None else [np.delete(*pair) for pair in zip(sequences, places, strict=True)]
    nowhere = [np.zeros(0, dtype=np.int64)] * len(unmasked)
    encoded = encode_sequences(
        encoder, sequences + unmasked, places + nowhere, pooler, tokens_per_batch=tokens_per_batch
    )
    sentences = None
    if encoded.pooled is not None:
        special_count = len(encoder.prefix_ids) + len(encoder.suffix_ids)
        has_words = np.array([len(sequence) > special_count for sequence in unmasked], dtype=bool)  # [q]
        sentences = encoded.pooled[len(sequences) :] * has_words[:, None]  # f32 [q, d]
    none = np.zeros((0, encoder.dimensions), dtype=np.float32)
    vectors = np.concatenate([none, *encoded.vectors[: len(sequences)]])  # f32 [n * masks, d]
    return MaskVectors(vectors.reshape(-1, masks_per_text, encoder.dimensions), inputs.cut, sentences)


@dataclass(frozen=True, slots=True)
class MaskNeighbors:
    """The tokens next to a mask, by which phrases are completed: `<mask> days`, `$<mask>`, `in <mask>`."""

    left: int = -1  # token id; -1: none
    right: int = -1
    asks_for_year: bool = False  # the year of a date is a full answer

    @classmethod
    def of(cls, text: str, encoder: Encoder) -> MaskNeighbors:
        """Those of the one `<mask>` of `text`; where there are several, only the flag if any asks for a year."""
        *before_masks, after = text.split(MASK_TEXT)
        preceding = {"".join(before.split()[-1:]).lower() for before in before_masks}
        by_year = not YEAR_WORDS.isdisjoint(preceding) or "year" in words_of(text)
        if len(before_masks) != 1:
            return cls(asks_for_year=by_year)
        (before,) = before_masks
        # With the space before a word, which some tokenizers make a part of it.
        words = "".join(re.findall(r" ?\S+$", before.rstrip())), "".join(re.findall(r" ?\S+", after)[:1])
        left, right = token_ids(encoder, words)
        # A full stop or a comma of the question belongs to no expression of the corpus.
        has_left, has_right = (
            bool(edge) and (edge.isalnum() or edge in JOINING) for edge in (words[0][-1:], words[1].strip()[:1])
        )
        return cls(left[-1] if left and has_left else -1, right[0] if right and has_right else -1, by_year)
