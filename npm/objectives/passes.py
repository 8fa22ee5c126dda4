"""Every pass of the encoder in training, whole or piece by piece with recomputation.

A contrastive loss compares all rows of a batch, so its batch cannot be cut into micro-batches. With `rows_per_pass`
the encoder works on a few rows at a time and keeps their outputs only; when the gradient of the outputs is known, each
piece is computed again, with the same dropout, and sent backwards (gradient caching, Gao et al. 2021,
arXiv 2101.06983). The gradient is the one of the whole batch; the price is a second forward pass.

Shapes: B rows, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Passes:
    """What objectives may ask of the encoder that is trained."""

    def __init__(self, model: nn.Module, *, rows_per_pass: int | None = None) -> None:
        self.model = model
        self.rows_per_pass = rows_per_pass

    def token_vectors(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Last hidden states [B, L, d] of token ids i64 [B, L]; positions i64 [B, L], if not 0, 1, 2, …"""
        given = (input_ids, attention_mask) if position_ids is None else (input_ids, attention_mask, position_ids)

        def last_states(ids: torch.Tensor, mask: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
            further = {"position_ids": positions[0]} if positions else {}
            vectors: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, **further).last_hidden_state
            return vectors  # [b, L, d]

        vectors: torch.Tensor = self.piecewise(last_states, *given)
        return vectors  # [B, L, d]

    def hidden_states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The embeddings and the states behind each layer, [B, L, d] each, of token ids i64 [B, L]."""

        def all_states(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
            output = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            return tuple(output.hidden_states)

        states: tuple[torch.Tensor, ...] = self.piecewise(all_states, input_ids, attention_mask)
        return states

    def piecewise(self, function: Callable[..., Any], *rows: torch.Tensor) -> Any:
        """`function` of tensors of B rows each; it returns one tensor, or a tuple of tensors, of as many rows."""
        count, size = len(rows[0]), self.rows_per_pass
        if size is None or count <= size or not torch.is_grad_enabled():
            return function(*rows)
        pieces = [
            checkpoint(function, *(tensor[start : start + size] for tensor in rows), use_reentrant=False)
            for start in range(0, count, size)
        ]
        if isinstance(pieces[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
        return torch.cat(pieces)
