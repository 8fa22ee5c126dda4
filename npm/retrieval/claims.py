"""Claims whose content tokens are masked one at a time.

Shapes: n masked tokens of all claims, c claims, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.errors import QueryError
from npm.masking.rendering import MASKS_PER_SPAN
from npm.models.batches import encode_padded, length_sorted_batches
from npm.retrieval.queries import QueryVectors
from npm.types import Document, TokenFlag

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class ClaimMasks:
    """Each content token of each claim behind a mask pair."""

    inputs: tuple[np.ndarray, ...]  # n sequences of token ids i64, special tokens included
    slots: np.ndarray  # i64 [n], where the mask pair begins
    token_ids: np.ndarray  # i64 [n], what was masked
    offsets: np.ndarray  # i64 [c + 1]; claim i has the masked tokens [offsets[i], offsets[i + 1])

    @classmethod
    def of(cls, claims: Sequence[str], encoder: Encoder) -> ClaimMasks:
        """Raises QueryError for a claim without content tokens, or with more tokens than the encoder takes."""
        specials = len(encoder.prefix_ids) + len(encoder.suffix_ids)
        room = encoder.max_input_tokens - specials - (MASKS_PER_SPAN - 1)
        packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=room + specials))
        inputs: list[np.ndarray] = []
        slots: list[int] = []
        token_ids: list[int] = []
        offsets = [0]
        packed = packer.pack_many([Document(id="", title="", text=claim) for claim in claims])
        masks = np.full(MASKS_PER_SPAN, encoder.mask_id, dtype=np.int64)
        for number, blocks in enumerate(packed):
            where = "claim" if len(claims) == 1 else f"claim {number + 1} of {len(claims)}"
            if len(blocks) > 1:
                raise _too_long(sum(len(block.token_ids) for block in blocks), room, where)
            content = blocks[0] if blocks else None
            places = np.zeros(0, dtype=np.int64) if content is None else _content_places(content.flags)  # i64 [own]
            if content is None or len(places) == 0:
                raise _no_content(claims[number], where)
            ids = content.token_ids.astype(np.int64)  # i64 [tokens of the claim]
            for place in places.tolist():
                rest = (encoder.prefix_ids, ids[:place], masks, ids[place + 1 :], encoder.suffix_ids)
                inputs.append(np.concatenate([np.asarray(part, dtype=np.int64) for part in rest]))
                slots.append(len(encoder.prefix_ids) + place)
                token_ids.append(int(ids[place]))
            offsets.append(len(inputs))
        return cls(tuple(inputs), np.array(slots, dtype=np.int64), np.array(token_ids), np.array(offsets))

    def encode(self, encoder: Encoder, *, tokens_per_batch: int) -> QueryVectors:
        """The start and end query f32 [n, d] of each masked token."""
        start = np.zeros((len(self.inputs), encoder.dimensions), dtype=np.float32)  # [n, d]
        end = np.zeros_like(start)  # [n, d]
        lengths = np.array([len(sequence) for sequence in self.inputs], dtype=np.int64)  # i64 [n]
        for batch in length_sorted_batches(lengths, tokens_per_batch=tokens_per_batch):
            states = encode_padded(encoder, [self.inputs[number] for number in batch]).cpu().numpy()  # f32 [B, L, d]
            rows = np.arange(len(batch))
            start[batch] = states[rows, self.slots[batch]]
            end[batch] = states[rows, self.slots[batch] + MASKS_PER_SPAN - 1]
        return QueryVectors(start=start, end=end, cut=np.zeros(len(self.inputs), dtype=bool))

    def means(self, scores: np.ndarray) -> list[float]:
        """The mean of each claim's `scores` f64 [n]: c numbers."""
        return [float(own.mean()) for own in np.split(scores, self.offsets[1:-1])] if len(self.offsets) > 1 else []


def _content_places(flags: np.ndarray) -> np.ndarray:
    """Which tokens i64 are neither stop-words nor punctuation, by flags u8 [T]; pieces within a word are content."""
    return np.flatnonzero((flags & (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value) == 0)


def _too_long(token_count: int, room: int, where: str) -> QueryError:
    return QueryError(
        "the claim is longer than the encoder takes",
        expected=f"at most {room} tokens",
        got=f"{token_count} tokens",
        where=where,
        fix="split it into claims of one sentence each",
    )


def _no_content(claim: str, where: str) -> QueryError:
    return QueryError(
        "the claim has no content words",
        expected="a word that is neither a stop-word nor punctuation",
        got=repr(claim[:80]),
        where=where,
        fix="give a claim that says something",
    )
