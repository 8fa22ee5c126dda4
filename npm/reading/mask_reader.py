"""The reader of this project: the states of the two masks of a question against those of the passage's tokens.

Question and passage are read in one pass, as `npm.objectives.reading` trains it: question with its mask pair, suffix,
title, passage, suffix. The logit of a token is the scaled inner product of its state with that of the first mask for a
start and of the last mask for an end; "not here" is the first token of the pass.

Shapes: m masks of a text, T tokens of a passage, d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.models.batches import encode_sequences, masked_inputs
from npm.reading.confidence import Confidence
from npm.reading.reader import Passage, TokenScores, merged, normalized, windows

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

PASSES_AT_ONCE = 256
"""Passes whose keys are held at once: 100 MB of passages of 256 tokens and 384 dimensions."""


class JointPass(NamedTuple):
    """Vectors of one pass over a text and a window of a passage."""

    queries: np.ndarray  # f32 [m, 2, d], at the masks of the text
    keys: np.ndarray  # f32 [1 + T, d], of the first token and of the passage's


class MaskReader:
    """An encoder that was trained to read (`objective.reader_weight`)."""

    def __init__(self, encoder: Encoder, *, confidence: Confidence | None = None, tokens_per_batch: int = 8192) -> None:
        self.confidence = confidence
        self.encoder = encoder.cut_to(None)
        self.name = encoder.name
        self._tokens_per_batch = tokens_per_batch
        self._full_stop = self._cut(".")[0]  # i64 [.]

    @property
    def fingerprint(self) -> str:
        """That of the encoder."""
        return self.encoder.fingerprint

    def read(
        self, pairs: Sequence[tuple[str, Passage]], *, maps: np.ndarray | None = None
    ) -> Iterator[list[TokenScores]]:
        """As `Reader.read`; `maps` f32 [2, d, d + 1] change start and end queries first."""
        from npm.indexing.adaptation import mapped

        texts, cut = [text for text, _ in pairs], [self._tokens(passage) for _, passage in pairs]
        scale = self.encoder.similarity_scale
        unknown_id = self.encoder.tokenizer.unk_token_id
        for (parts, passes), (_, ids, own) in zip(self._passes(texts, cut), cut, strict=True):
            unknown = float(np.mean(ids == unknown_id)) if len(ids) else 0.0
            scores = []
            for mask in range(len(passes[0].queries)):
                logits = []
                for window, each in zip(parts, passes, strict=True):
                    queries = each.queries[mask : mask + 1]  # f32 [1, 2, d]
                    asked = queries[0] if maps is None else mapped(queries, maps)[0]  # f32 [2, d]
                    found = asked.astype(np.float64) @ each.keys.T.astype(np.float64) * scale  # f64 [2, 1 + T]
                    logits.append((window, found[:, 1:], found[:, 0]))
                scores.append(TokenScores(own, *normalized(*merged(logits, len(own))), unknown))
            yield scores

    def passes(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[JointPass]:
        """The vectors of each text read with the beginning of its passage, as far as one pass takes it."""
        cut = [self._tokens(passage) for _, passage in pairs]
        for _, found in self._passes([text for text, _ in pairs], cut):
            yield found[0]

    def _passes(
        self, texts: Sequence[str], cut: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> Iterator[tuple[list[slice], list[JointPass]]]:
        """The windows of each passage and their passes."""
        encoder = self.encoder
        # without room for a passage nothing could be read
        inputs = masked_inputs(encoder, texts, encoder.query_masks, left_free=encoder.max_input_tokens // 4)
        suffix = np.array(encoder.suffix_ids, dtype=np.int64)
        sequences, slots, all_windows = list[np.ndarray](), list[np.ndarray](), list[list[slice]]()
        for asked, masks, (title, ids, _) in zip(inputs.sequences, inputs.slots, cut, strict=True):
            room = encoder.max_input_tokens - len(asked) - len(title) - len(suffix)
            parts = windows(len(ids), max(1, room)) if room > 0 else [slice(0, 0)]
            places = (masks[:, None] + [0, encoder.query_masks - 1]).ravel()  # i64 [2 m]
            for part in parts:
                read = [title, ids[part], suffix] if room > 0 else []
                sequences.append(np.concatenate([asked, *read]))
                first = len(asked) + len(title)
                slots.append(np.concatenate([places, [0], np.arange(first, first + part.stop - part.start)]))
            all_windows.append(parts)
        vectors = self._encoded(sequences, slots)
        for masks, parts in zip(inputs.slots, all_windows, strict=True):
            count = 2 * len(masks)
            own = list(itertools.islice(vectors, len(parts)))
            yield parts, [JointPass(each[:count].reshape(len(masks), 2, -1), each[count:]) for each in own]

    def _encoded(self, sequences: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The vectors f32 [n, d] of each sequence i64 [.] at its slots i64 [n]."""
        for start in range(0, len(sequences), PASSES_AT_ONCE):
            own = slice(start, start + PASSES_AT_ONCE)
            found = encode_sequences(self.encoder, sequences[own], slots[own], tokens_per_batch=self._tokens_per_batch)
            yield from found.vectors

    def _tokens(self, passage: Passage) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids i64 [.] of a passage's title with a full stop, i64 [T] of its text, and their bounds i64 [T, 2]."""
        known = passage.tokens
        if known is not None and known.tokenizer_fingerprint == self.encoder.tokenizer_fingerprint:
            first = len(known.ids) - len(known.bounds)
            return known.ids[:first], known.ids[first:], known.bounds
        title = self._cut(passage.title)[0][: self.encoder.title_tokens]  # i64 [.]
        return np.append(title, self._full_stop) if len(title) else title, *self._cut(passage.text)

    def _cut(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Token ids i64 [T] of a text and their bounds i64 [T, 2]."""
        found = self.encoder.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        bounds = np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2)  # i64 [T, 2]
        return np.array(found["input_ids"], dtype=np.int64), bounds
