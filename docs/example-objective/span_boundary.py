"""SpanBERT's span boundary objective: predict each token of a masked span from the tokens at its two sides.

    L = −(1/n) Σ_i log softmax(W f([h_l; h_r; p_j]) + b)[x_i]

for token i at place j of its span, with h_l and h_r the vectors just outside the span and p_j a learned vector of the
place (Joshi et al. 2020, arXiv 1907.10529, §3.2). W is the encoder's embedding.

Shapes: n targets, d dimensions, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from npm.core.settings import read_settings
from npm.masking.batches import MaskedBatch
from npm.models.encoder import Encoder
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedBatch
from npm.training.run import run_training
from npm.training.settings import TrainingSettings


class SpanBoundary(nn.Module):
    """Term `span_boundary`; it reads the masked copies that masked language modeling reads."""

    view = "tokens"
    reads_clean_copies = False

    def __init__(self, encoder: Encoder, *, max_span_tokens: int = 15, place_dimensions: int = 200) -> None:
        """Targets further into a span than `max_span_tokens` share the vector of the last place."""
        super().__init__()
        d = encoder.dimensions
        self.places = nn.Embedding(max_span_tokens, place_dimensions)
        self.transform = nn.Sequential(
            nn.Linear(2 * d + place_dimensions, d),
            nn.GELU(),
            nn.LayerNorm(d),
            nn.Linear(d, d),
            nn.GELU(),
            nn.LayerNorm(d),
        )
        self.bias = nn.Parameter(torch.zeros(len(encoder.tokenizer)))  # f32 [V]
        self._embedding = (encoder.model.get_input_embeddings(),)  # in a tuple: the encoder alone owns it

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """The denominator of the term on this rank, known before any forward pass."""
        return {"span_boundary": len(batch.span_sequences)}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The term of one batch."""
        batch = encoded.batch
        starts, stops = span_edges(batch.span_sequences, batch.start_slots)  # i64 [n] each
        rows, vectors = batch.span_sequences, encoded.query_vectors
        place = (batch.start_slots - starts).clamp_max(self.places.num_embeddings - 1)  # i64 [n]
        # a sequence is framed by special tokens, so there is always a token on either side
        inputs = torch.cat([vectors[rows, starts - 1], vectors[rows, stops], self.places(place)], dim=1)
        logits = self.transform(inputs) @ self._embedding[0].weight.T + self.bias  # [n, V]
        losses = nn.functional.cross_entropy(logits.float(), batch.span_token_ids[:, 0], reduction="sum")
        return {"span_boundary": Term(losses, len(rows))}


def span_edges(rows: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First slot of the run of neighboring targets that each target is in, and the slot behind it; i64 [n] each.

    >>> start, stop = span_edges(torch.tensor([0, 0, 0, 1]), torch.tensor([3, 4, 7, 8]))
    >>> start.tolist(), stop.tolist()
    ([3, 3, 7, 8], [5, 5, 8, 9])
    """
    begins = torch.ones_like(rows, dtype=torch.bool)  # bool [n]
    begins[1:] = (rows[1:] != rows[:-1]) | (slots[1:] != slots[:-1] + 1)
    run = begins.cumsum(0) - 1  # i64 [n]
    lengths = torch.bincount(run, minlength=0)  # i64 [runs]
    first = slots[begins][run]  # i64 [n]
    return first, first + lengths[run]


def train(run: Path, **settings: Any) -> Path:
    """Train it next to masked language modeling of spans of words; returns the folder of the encoder."""
    chosen = {
        "corruption": {"unit": "word", "sampler": "geometric"},
        "objective": {"nonparametric_weight": 0.0, "masked_weight": 1.0},
        **settings,
    }
    return run_training(
        run,
        read_settings(TrainingSettings, chosen),
        make_objectives=lambda encoder: {"span_boundary": (SpanBoundary(encoder), 1.0)},
    )
