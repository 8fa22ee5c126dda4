"""Masked copies of sequences with the masks in place: what masked language modelling reads.

Shapes: T tokens of all sequences in a row, S sequences, c copies, n masked spans, p predicted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from npm.corpus.blocks import concatenated_ranges
from npm.masking.contexts import masked_positions
from npm.masking.renderers import padded_rows
from npm.masking.selection import Selection, Selector
from npm.types import MaskedBatch, Sequences


@dataclass(frozen=True, slots=True)
class CorruptedGroup:
    """The c copies of each sequence of a group, one sequence after the other, and the group itself."""

    sequences: Sequences
    token_ids: np.ndarray  # i64 [cT], what the encoder sees
    offsets: np.ndarray  # i64 [cS + 1]; row r, a copy of sequence r // c, is [offsets[r], offsets[r + 1])
    predicted: np.ndarray  # i64 [p], sorted positions in [0, cT)
    targets: np.ndarray  # i64 [p], the tokens that stood there


@dataclass(frozen=True, slots=True)
class InPlaceRenderer:
    """A masked token becomes the mask token, a random token, or stays as it is (Devlin et al. 2019, section 3.1).

    `prefix_ids` and `suffix_ids` are the special tokens that the encoder wants around a sequence.
    """

    mask_id: int
    pad_id: int
    ordinary_ids: np.ndarray
    """i64 [v], what a random token is drawn from, evenly: the vocabulary without special tokens."""
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    random_fraction: float = 0.0
    unchanged_fraction: float = 0.0
    decide_per_unit: bool = False
    """Whether a masked span has one fate as a whole, instead of each of its tokens its own."""

    def corrupt(
        self, sequences: Sequences, selections: Sequence[Selection], rng: np.random.Generator
    ) -> CorruptedGroup:
        """The copies of one group, one for each selection, with their masked tokens replaced."""
        copies, count = len(selections), len(sequences)
        rows = np.repeat(np.arange(count), copies)  # i64 [cS], the sequence of each row
        sizes = np.diff(sequences.offsets)  # i64 [S]
        offsets = np.append(0, np.cumsum(sizes[rows]))  # i64 [cS + 1]
        sources = concatenated_ranges(sequences.offsets[rows], sequences.offsets[rows + 1])  # i64 [cT]
        originals = sequences.token_ids[sources].astype(np.int64)  # i64 [cT]
        token_ids = originals.copy()
        owners = np.repeat(np.arange(count), sizes)  # i64 [T]
        predicted = []
        for number, selection in enumerate(selections):
            # what to add to a position in the group for its place in this copy
            shifts = (offsets[:-1][number::copies] - sequences.offsets[:-1])[owners]  # i64 [T]
            positions = masked_positions(selection.masked)  # i64 [masked tokens]
            seen = self._seen_instead(sequences.token_ids[positions], selection.masked.lengths, rng)
            token_ids[positions + shifts[positions]] = seen
            predicted.append(selection.predicted + shifts[selection.predicted])
        places = np.sort(np.concatenate(predicted))  # i64 [p]
        return CorruptedGroup(sequences, token_ids, offsets, places, originals[places])

    def _seen_instead(self, token_ids: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What stands for the masked `token_ids` [masked tokens] of spans of `lengths` [n], i64 [masked tokens]."""
        seen = np.full(len(token_ids), self.mask_id, dtype=np.int64)  # i64 [masked tokens]
        if not self.random_fraction and not self.unchanged_fraction:
            return seen
        draws = np.repeat(rng.random(len(lengths)), lengths) if self.decide_per_unit else rng.random(len(token_ids))
        is_random = draws < self.random_fraction  # bool [masked tokens]
        is_unchanged = ~is_random & (draws < self.random_fraction + self.unchanged_fraction)  # bool [masked tokens]
        seen[is_random] = rng.choice(self.ordinary_ids, int(is_random.sum()))
        seen[is_unchanged] = token_ids[is_unchanged]
        return seen

    def render(self, groups: Sequence[CorruptedGroup]) -> MaskedBatch:
        """The batch of several groups, at least one; its spans are the predicted tokens, each one by itself."""
        query_offsets = _joined_offsets([group.offsets for group in groups])  # i64 [rows + 1]
        key_offsets = _joined_offsets([group.sequences.offsets for group in groups])  # i64 [sequences + 1]
        firsts = np.cumsum([0, *(len(group.token_ids) for group in groups)])  # i64 [groups + 1]
        shifted = [group.predicted + first for group, first in zip(groups, firsts[:-1], strict=True)]
        predicted = np.concatenate(shifted)  # i64 [p]
        rows = np.searchsorted(query_offsets, predicted, side="right") - 1  # i64 [p]
        slots = torch.from_numpy(predicted - query_offsets[rows] + len(self.prefix_ids))  # i64 [p]
        targets = np.concatenate([group.targets for group in groups])  # i64 [p]
        query_input_ids, query_attention_mask = self._padded([group.token_ids for group in groups], query_offsets)
        key_input_ids, key_attention_mask = self._padded([group.sequences.token_ids for group in groups], key_offsets)
        return MaskedBatch(
            query_input_ids=query_input_ids,
            query_attention_mask=query_attention_mask,
            key_input_ids=key_input_ids,
            key_attention_mask=key_attention_mask,
            span_sequences=torch.from_numpy(rows),
            start_slots=slots,
            end_slots=slots,
            span_token_ids=torch.from_numpy(targets[:, None]),  # i64 [p, 1]
            pad_id=self.pad_id,
        )

    def _padded(self, parts: list[np.ndarray], offsets: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return padded_rows(
            np.concatenate(parts),
            offsets,
            pad_id=self.pad_id,
            prefix_ids=self.prefix_ids,
            suffix_ids=self.suffix_ids,
        )


@dataclass(frozen=True, slots=True)
class InPlaceViews:
    """Makes the view for masked language modelling; a group's masks depend on its own generator only."""

    selector: Selector
    renderer: InPlaceRenderer

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> MaskedBatch:
        """The groups masked one by one, in one batch."""
        corrupted = [
            self.renderer.corrupt(group, self.selector.select(group, rng), rng)
            for group, rng in zip(groups, rngs, strict=True)
        ]
        return self.renderer.render(corrupted)


def _joined_offsets(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Offsets of ragged arrays that are put one behind the other, each [rows + 1]; i64 [all rows + 1]."""
    firsts = np.cumsum([0, *(part[-1] for part in parts)])  # i64 [parts + 1]
    moved = [part[:-1] + first for part, first in zip(parts, firsts[:-1], strict=True)]
    return np.concatenate([*moved, firsts[-1:]])
