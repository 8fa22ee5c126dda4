"""Sentences as tokens with flags, many at once: the same as one by one with `BlockPacker`, and several times faster.

Shapes: x texts, T tokens of all texts in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.corpus.words import SPACE, character_kinds, code_points, token_flags, trimmed_offsets
from npm.errors import EncoderError
from npm.types import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BETWEEN = "\n"
"""No word and no sentence reaches over it."""


class SentenceTokenizer:
    """Cuts each text after so many tokens; special tokens in a text are ordinary text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int) -> None:
        """Works on a private copy of a fast tokenizer; special tokens do not count among `max_tokens`."""
        backend: Any = tokenizer.backend_tokenizer
        self._backend = type(backend).from_str(backend.to_str())
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        # one more, because it tells whether the last one kept is the end of a word
        self._backend.enable_truncation(max_tokens + 1)
        self._max_tokens = max_tokens
        self._special_ids = np.array(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))

    def encode(self, texts: Sequence[str]) -> Sequences:
        """The tokens of x texts; those of a text may be none. Raises EncoderError for a special token among them."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings])  # i64 [x]
        token_ids = np.array(list(chain.from_iterable(encoding.ids for encoding in encodings)), np.int32)  # i32 [T]
        offsets = np.array(list(chain.from_iterable(encoding.offsets for encoding in encodings)), np.int64)
        first_chars = np.cumsum([0, *(len(text) + len(BETWEEN) for text in texts[:-1])])  # i64 [x]
        offsets = offsets.reshape(-1, 2) + np.repeat(first_chars, lengths)[:, None]  # i64 [T, 2]
        joined = BETWEEN.join(texts)
        kinds = character_kinds()[code_points(joined)]  # u8 [characters]
        starts, ends = trimmed_offsets(offsets[:, 0], offsets[:, 1], kinds == SPACE)  # i64 [T] each
        flags = token_flags(joined, starts, ends, kinds)  # u8 [T]
        self._check_special(token_ids, texts)
        stops = np.cumsum(lengths)  # i64 [x]
        places = np.arange(len(token_ids)) - np.repeat(stops - lengths, lengths)  # i64 [T], place in its text
        kept = places < self._max_tokens  # bool [T]
        kept_lengths = np.minimum(lengths, self._max_tokens)  # i64 [x]
        return Sequences(token_ids[kept], flags[kept], np.append(0, np.cumsum(kept_lengths)))

    def _check_special(self, token_ids: np.ndarray, texts: Sequence[str]) -> None:
        present = np.intersect1d(token_ids, self._special_ids)
        if len(present):
            raise EncoderError(
                "the tokenizer makes special tokens out of ordinary text",
                expected="a tokenizer that splits its special tokens when they stand in a text",
                got=repr(self._backend.id_to_token(int(present[0]))),
                where=f"one of the sentences from {texts[0][:40]!r} on",
                fix="choose another encoder, or take these characters out of the text",
            )
