"""Labeled text as a source of batches: every example once per epoch, in an order drawn again for each.

Shapes: X examples, B rows of a batch, L padded length, n targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from npm.corpus.blocks import concatenated_ranges
from npm.corpus.groups import epoch_order
from npm.corpus.labeled import LabeledExamples, LabeledSettings, encode_labeled
from npm.masking.batches import LabeledBatch, View
from npm.masking.rendering import LABELED, padded_rows
from npm.models.encoder import Encoder
from npm.objectives.ranks import rank, world_size


def labeled_batch(
    examples: LabeledExamples, numbers: Iterable[int], *, encoder: Encoder, scores: bool, without_targets: bool = False
) -> LabeledBatch:
    """Some examples as one batch, on the CPU; words that were cut off have no target in it."""
    chosen = np.fromiter(numbers, dtype=np.int64)  # i64 [B]
    starts, stops = examples.offsets[chosen], examples.offsets[chosen + 1]  # i64 [B]
    tokens = concatenated_ranges(starts, stops)  # i64 [their tokens]
    offsets = np.append(0, np.cumsum(stops - starts))  # i64 [B + 1]
    ids, attention = padded_rows(examples.token_ids[tokens], offsets, pad_id=encoder.pad_id)  # i64 [B, L] each
    types, _ = padded_rows(examples.type_ids[tokens], offsets, pad_id=0)  # i64 [B, L]
    firsts, lasts = examples.target_offsets[chosen], examples.target_offsets[chosen + 1]  # i64 [B]
    places = concatenated_ranges(firsts, lasts)  # i64 [targets of these]
    rows = np.repeat(np.arange(len(chosen)), lasts - firsts)  # i64 [targets of these]
    kept = (examples.slots[places] >= 0) & (not without_targets)  # bool [targets of these]
    targets = examples.targets[places][kept]  # f64 [n]
    marks_texts = (getattr(encoder.model.config, "type_vocab_size", 0) or 0) > 1  # by token-type embeddings
    return LabeledBatch(
        input_ids=ids,
        attention_mask=attention,
        token_type_ids=types if marks_texts else None,
        rows=torch.from_numpy(rows[kept]),
        slots=torch.from_numpy(examples.slots[places][kept]),
        targets=torch.from_numpy(targets.astype(np.float32 if scores else np.int64)),
    )


@dataclass
class LabeledSource:
    """Each rank takes its part of the examples of a micro-step; the last one of an epoch has the remaining ones."""

    examples: LabeledExamples
    encoder: Encoder
    settings: LabeledSettings
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        self.examples_per_step = self.settings.examples_per_device_batch * self.world_size
        self.micro_steps_per_epoch = -(-len(self.examples) // self.examples_per_step)

    def views(self, micro_step: int) -> dict[str, View]:
        """This rank's examples at `micro_step`."""
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        order = epoch_order(len(self.examples), seed=self.seed, epoch=epoch)  # i64 [X]
        shared = order[place * self.examples_per_step : (place + 1) * self.examples_per_step]
        own = np.array_split(shared, self.world_size)[self.rank]  # i64 [B]
        # a rank for which none is left has a row without a target, as all ranks have to run the encoder
        batch = labeled_batch(
            self.examples,
            own if len(own) else shared[:1],
            encoder=self.encoder,
            scores=not self.settings.labels,
            without_targets=not len(own),
        )
        return {LABELED: batch}


def labeled_source(settings: LabeledSettings, encoder: Encoder, *, seed: int) -> tuple[LabeledSource, str]:
    """This rank's part of the source that `settings` describe, and notes about it. Raises as `encode_labeled` does."""
    examples = encode_labeled(settings, encoder.tokenizer)
    source = LabeledSource(examples, encoder, settings, seed=seed, rank=rank(), world_size=world_size())
    cut = int((examples.lengths == settings.max_tokens).sum())
    note = f"{len(examples):,} labeled examples of {len(examples.token_ids):,} tokens ({cut} of them fill max_tokens)"
    return source, note
