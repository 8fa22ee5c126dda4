"""Documents as blocks of tokens, cut between sentences or words, with character offsets and flags.

Shapes: m ranges, x texts, T tokens of all texts in a row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt

from npm.core.errors import EncoderError, SettingError
from npm.core.settings import Fraction, Settings
from npm.core.types import Block, Document, Sequences, TokenFlag
from npm.corpus.markup import CELL, HIDDEN, Readable, readable
from npm.corpus.text import flagged_tokens

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the full definition of a fast tokenizer, without the truncation and padding of a call."""
    return _definition_digest(tokenizer.backend_tokenizer.to_str())


@lru_cache(maxsize=4)  # encoder and packer ask for that of the same tokenizer, which takes a tenth of a second
def _definition_digest(written: str) -> str:
    definition = json.loads(written)
    definition.pop("truncation", None)
    definition.pop("padding", None)
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


JUDGED_TOKENS, LEAST_JUDGED_TOKENS = 10_000, 100
"""A tokenizer is judged by the first tokens that it makes, as soon as there are enough of them."""
MOST_UNKNOWN_SHARE, NOTED_UNKNOWN_SHARE = 0.8, 0.05
"""An English WordPiece tokenizer makes 0.02 % of Wikipedia unknown and at most 3 % of one of its articles; of Chinese
about half (54 % in a trial), of Thai, Armenian and Khmer all; one without its vocabulary knows nothing."""


class UnknownTokens:
    """Counts unknown tokens among the first that a tokenizer makes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._unknown_id, self._name = tokenizer.unk_token_id, str(tokenizer.name_or_path)
        self.tokens = self._unknown = 0

    def count(self, token_ids: Sequence[np.ndarray]) -> None:
        """Take the next tokens of a text, or of several. Raises EncoderError where most are unknown."""
        if self.tokens >= JUDGED_TOKENS:
            return
        self.tokens += sum(len(ids) for ids in token_ids)
        self._unknown += sum(int(np.count_nonzero(ids == self._unknown_id)) for ids in token_ids)
        if self.tokens >= LEAST_JUDGED_TOKENS and self._unknown > MOST_UNKNOWN_SHARE * self.tokens:
            raise EncoderError(
                f"the tokenizer of {self._name} knows too little of this text, {self._unknown:,} of the first "
                f"{self.tokens:,} tokens are unknown: choose an encoder for its script"
            )

    @property
    def note(self) -> str:
        """Note on a text of which a part is unknown; empty if hardly any is."""
        if self._unknown <= NOTED_UNKNOWN_SHARE * self.tokens:
            return ""
        share = self._unknown / self.tokens
        return f"the encoder's tokenizer does not know {share:.0%} of the first {self.tokens:,} tokens of the text"


def private_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the backend of a fast tokenizer that neither cuts nor pads; special tokens in a text are ordinary."""
    backend: Any = tokenizer.backend_tokenizer
    copied: Tokenizer = type(backend).from_str(backend.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = True
    return copied


MAX_PIECE_CHARS = 1_000_000
"""Longer texts are encoded in pieces cut before a space: an encoding takes about 40 times the bytes of its text."""

MOST_TITLE_TOKENS = 64
LEAST_TEXT_SHARE = 0.5
"""Minimum fraction of text in a block after its title."""

CHARS_PER_TOKEN = 12
"""Characters of a title that are encoded per token."""


class BlockSettings(Settings):
    """Settings of cutting documents into blocks."""

    max_block_tokens: Annotated[int, Field(ge=4)] = 256
    """Tokens of a block as the encoder sees it, its special tokens included."""

    max_block_words: PositiveInt | None = None
    """Words of a block at most, marks among them as for fill.max_phrase_words, titles not; unset: no such limit."""

    max_document_tokens: PositiveInt | None = None
    """Tokens kept from the beginning of each document; null keeps all."""

    min_filled_fraction: Fraction = 0.5
    """A block ends with a sentence, or else before a space, only if this fraction of it is filled; near 1 keeps
    blocks full and cuts sentences."""

    title_tokens: Annotated[int, Field(ge=0, le=MOST_TITLE_TOKENS)] | None = None
    """Tokens of its document's title, and a full stop, that precede every block as the encoder sees it: a block
    from the middle of a text does not say what it is about. They are never masked and no answer is found in them. 0:
    none; unset: as many as the encoder was trained with."""

    def resolved(self, trained_title_tokens: int) -> BlockSettings:
        """The same with nothing left open: unset titles become those that the encoder was trained with."""
        return replace(self, title_tokens=trained_title_tokens if self.title_tokens is None else self.title_tokens)


class BlockPacker:
    """Cuts documents into blocks with a fast tokenizer; special tokens in the text are ordinary text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: BlockSettings) -> None:
        """Raises SettingError if special tokens or titles leave a block no space; `tokenizer` is a fast one."""
        self.settings = settings
        self.tokenizer_fingerprint = tokenizer_fingerprint(tokenizer)
        self._backend = private_backend(tokenizer)
        self.vocabulary_size = 1 + max(self._backend.get_vocab(with_added_tokens=True).values())
        special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self._special_ids = np.array(sorted(special_ids), dtype=np.int32)  # [special tokens]
        self.unknown = UnknownTokens(tokenizer)
        self.block_capacity = settings.max_block_tokens - tokenizer.num_special_tokens_to_add()
        title_tokens = settings.title_tokens or 0
        self._full_stop = self._backend.encode(".", add_special_tokens=False).ids if title_tokens else []
        if title_tokens and self.block_capacity < LEAST_TEXT_SHARE * settings.max_block_tokens + title_tokens:
            raise SettingError(
                f"titles leave too little room for text: decrease blocks.title_tokens={title_tokens}, or increase "
                f"blocks.max_block_tokens={settings.max_block_tokens}"
            )
        if self.block_capacity < 1:
            raise SettingError(
                f"blocks.max_block_tokens must be above {settings.max_block_tokens - self.block_capacity}, the special "
                f"tokens of a block, got {settings.max_block_tokens}"
            )

    def pack(self, document: Document) -> list[Block]:
        """The blocks of one document, in order; none if the tokenizer makes no token of its text.

        Raises EncoderError where most of the first tokens are unknown, or one is special.
        """
        return self.pack_many([document])[0]

    def pack_many(self, documents: Sequence[Document]) -> list[list[Block]]:
        """The blocks of each of `documents`; the same as one by one, and faster."""
        read = [
            readable(document.text) if HIDDEN in document.text or CELL in document.text else None
            for document in documents
        ]
        plain = [
            document if own is None else replace(document, text=own.text)
            for document, own in zip(documents, read, strict=True)
        ]
        packed = [
            blocks if own is None else _placed(blocks, own)
            for blocks, own in zip(self._packed(plain), read, strict=True)
        ]
        self.unknown.count([block.token_ids for blocks in packed for block in blocks])
        return packed

    def _packed(self, documents: Sequence[Document]) -> list[list[Block]]:
        pieces: list[str] = []
        piece_starts: list[list[int]] = []
        for text in (document.text for document in documents):
            starts = [0]
            while starts[-1] < len(text):
                stop = _cut_before_space(text, starts[-1], MAX_PIECE_CHARS)
                pieces.append(text[starts[-1] : stop])
                starts.append(stop)
            piece_starts.append(starts[:-1])
        encodings = iter(self._backend.encode_batch(pieces, add_special_tokens=False))
        return [
            self._cut(document, [(start, next(encodings)) for start in starts])
            for document, starts in zip(documents, piece_starts, strict=True)
        ]

    def _cut(self, document: Document, encodings: Sequence[tuple[int, Encoding]]) -> list[Block]:
        """One document's encodings, each with the character it starts at, as blocks."""
        ids = [np.array(encoding.ids, dtype=np.int32) for _, encoding in encodings]
        token_ids = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)  # [T]
        if not len(token_ids):
            return []
        _check_special(self._backend, token_ids, self._special_ids, f"document {document.id!r}")
        offsets = np.concatenate(
            [np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) + start for start, encoding in encodings]
        )  # [T, 2]
        starts, ends, flags = flagged_tokens(document.text, offsets)  # [T] each
        token_count = min(len(token_ids), self.settings.max_document_tokens or len(token_ids))
        while 0 < token_count < len(token_ids) and starts[token_count] < ends[token_count - 1]:
            token_count -= 1  # no part of a character
        title_ids = self._title_ids(document.title)  # i32 [title]
        cuts = block_cuts(
            flags[:token_count],
            starts[:token_count],
            ends[:token_count],
            self.block_capacity - len(title_ids),
            max_words=self.settings.max_block_words,
            min_filled_fraction=self.settings.min_filled_fraction,
        )
        start_chars, end_chars = starts.astype(np.uint32), ends.astype(np.uint32)  # [T]
        blocks = [Block(token_ids[a:b], flags[a:b], start_chars[a:b], end_chars[a:b]) for a, b in pairwise(cuts)]
        return [_with_title(block, title_ids) for block in blocks] if len(title_ids) else blocks

    def _title_ids(self, title: str) -> np.ndarray:
        """The first tokens of a title and a full stop, i32 [title]; none of a title without a token."""
        most = self.settings.title_tokens or 0
        if not most or not title.strip():
            return np.empty(0, dtype=np.int32)  # [0]
        ids = self._backend.encode(title[: most * CHARS_PER_TOKEN], add_special_tokens=False).ids[:most]
        _check_special(self._backend, np.array(ids), self._special_ids, f"the title {title!r}")
        return np.array([*ids, *self._full_stop] if len(ids) else [], dtype=np.int32)  # [title]


def _placed(blocks: Sequence[Block], read: Readable) -> list[Block]:
    """Blocks of a text as it is read, with the offsets of the text as stored; no phrase has a header cell."""
    places = read.places.astype(np.uint32)  # u32 [characters + 1]
    is_header, is_inserted = np.append(read.is_header, False), np.append(read.is_inserted, False)  # [characters + 1]
    placed: list[Block] = []
    for block in blocks:
        starts = places[block.start_chars]  # u32 [T]
        is_empty = (block.end_chars == block.start_chars) | is_inserted[block.start_chars]  # bool [T]
        ends = np.where(is_empty, starts, places[np.maximum(block.end_chars, 1) - 1] + 1)  # u32 [T]
        barred = block.flags & ~np.uint8(TokenFlag.JOINED) | np.uint8(TokenFlag.STOPWORD)  # u8 [T]
        flags = np.where(is_header[block.start_chars], barred, block.flags)  # u8 [T]
        placed.append(Block(block.token_ids, flags, starts, ends.astype(np.uint32)))
    return placed


def _with_title(block: Block, title_ids: np.ndarray) -> Block:
    """A block, the tokens i32 [title] of its document's title before it: T + title tokens.

    In the text they are, without a character, at the start of the block.
    """
    count = len(title_ids)
    place = np.repeat(block.start_chars[:1], count)  # u32 [title]
    return Block(
        np.concatenate([title_ids, block.token_ids]),  # i32 [title + T]
        np.concatenate([np.full(count, TokenFlag.TITLE, dtype=np.uint8), block.flags]),  # u8 [title + T]
        np.concatenate([place, block.start_chars]),  # u32 [title + T]
        np.concatenate([place, block.end_chars]),  # u32 [title + T]
    )


def block_cuts(
    flags: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    capacity: int,
    *,
    max_words: int | None = None,
    min_filled_fraction: float = 0.5,
) -> list[int]:
    """Cuts [0, …, T] of a document's T tokens into blocks of at most `capacity` tokens and `max_words` words.

    Each block is the longest that ends at a sentence's end, if that fills enough of it; else the longest
    before a space, likewise; else the longest that ends with a word; else the longest that cuts a word,
    but no character.
    """
    count = len(flags)
    # of text: bytes and byte pairs may be nothing but a space, which ends where the next word starts
    ends_before = np.append(0, np.maximum.accumulate(np.where(ends > starts, ends, 0))[:-1])  # [T]
    starts_word = (flags & TokenFlag.WORD_START.value) != 0  # [T]
    choices = (
        (np.flatnonzero(flags & TokenFlag.SENTENCE_START.value), min_filled_fraction),
        (np.flatnonzero(starts_word & (starts > ends_before)), min_filled_fraction),
        (np.flatnonzero(starts_word), 0.0),
        (np.flatnonzero(starts >= ends_before), 0.0),  # where a token is a part of a character
    )
    words = np.append(np.flatnonzero(starts_word), count)  # i64 [words + 1]

    def room(start: int) -> int:
        """Tokens of the longest block from `start` on."""
        behind = int(np.searchsorted(words, start)) + (max_words or count)  # the first word that is too many
        return min(capacity, int(words[min(behind, len(words) - 1)]) - start)

    cuts = [0]
    while count - cuts[-1] > room(cuts[-1]):
        cuts.append(_cut_after(cuts[-1], room(cuts[-1]), choices))
    return [*cuts, count] if count else cuts


def _cut_after(start: int, room: int, choices: Sequence[tuple[np.ndarray, float]]) -> int:
    for places, filled in choices:
        at = int(np.searchsorted(places, start + room, side="right")) - 1
        if at >= 0 and places[at] >= start + max(1, math.ceil(filled * room)):
            return int(places[at])
    return start + room


def _cut_before_space(text: str, start: int, max_chars: int) -> int:
    """End of the piece of `text` from `start`: before a space, if there is one within `max_chars`."""
    stop = start + max_chars
    if stop >= len(text):
        return len(text)
    space = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    return space if space > start else stop


def concatenated_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The integers of the half-open ranges [starts[i], stops[i]), one range after the other, i64 [Σ lengths].

    >>> import numpy as np
    >>> concatenated_ranges(np.array([3, 9, 5]), np.array([5, 9, 8])).tolist()
    [3, 4, 5, 6, 7]
    """
    lengths = stops - starts  # [m]
    shifts = starts - (np.cumsum(lengths) - lengths)  # [m], what to add to a running number
    return np.arange(lengths.sum(), dtype=np.int64) + np.repeat(shifts, lengths)  # i64 [Σ lengths]


SEPARATOR = "\n"
"""Joins texts; never inside a word or a sentence."""


class SentenceTokenizer:
    """Cuts each text after `max_tokens` tokens; special tokens in a text are ordinary text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int) -> None:
        """`tokenizer` is a fast one; special tokens do not count among `max_tokens`."""
        self._backend = private_backend(tokenizer)
        # one more, because it shows whether the last one kept is the end of a word
        self._backend.enable_truncation(max_tokens + 1)
        self._max_tokens = max_tokens
        self._special_ids = np.array(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))
        self._unknown = UnknownTokens(tokenizer)

    def encode(self, texts: Sequence[str]) -> Sequences:
        """The tokens of x texts; those of a text may be none. Raises EncoderError for a special token among them,
        or where most of the first are unknown.
        """
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings])  # i64 [x]
        token_ids = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), np.int32)  # i32 [T]
        offsets = np.array(list(chain.from_iterable(encoding.offsets for encoding in encodings)), np.int64)
        first_chars = np.cumsum([0, *(len(text) + len(SEPARATOR) for text in texts[:-1])])  # i64 [x]
        offsets = offsets.reshape(-1, 2) + np.repeat(first_chars, lengths)[:, None]  # i64 [T, 2]
        joined = SEPARATOR.join(texts)
        _, _, flags = flagged_tokens(joined, offsets)  # u8 [T]
        _check_special(self._backend, token_ids, self._special_ids, f"the sentences from {joined[:40]!r} on")
        self._unknown.count([token_ids])
        stops = np.cumsum(lengths)  # i64 [x]
        places = np.arange(len(token_ids)) - np.repeat(stops - lengths, lengths)  # i64 [T], position in its text
        kept = places < self._max_tokens  # bool [T]
        kept_lengths = np.minimum(lengths, self._max_tokens)  # i64 [x]
        return Sequences(token_ids[kept], flags[kept], np.append(0, np.cumsum(kept_lengths)))


def _check_special(backend: Any, token_ids: np.ndarray, special_ids: np.ndarray, place: str) -> None:
    """Raise EncoderError if any of `token_ids` [T], made from ordinary text, is special."""
    present = np.intersect1d(token_ids, special_ids)
    if len(present):
        raise EncoderError(
            f"the tokenizer reads text as the special token {backend.id_to_token(int(present[0]))!r} in {place}: "
            "choose another encoder, or remove these characters"
        )
