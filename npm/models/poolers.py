"""A sentence as one vector: what is taken of the hidden states of its tokens (Gao et al. 2021, arXiv 2104.08821, §6.3).

Shapes: R rows, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import nn

POOLER_KEY = "sentence_pooler"
"""Attribute of the Hugging Face config that carries the kind of pooler that an encoder was trained for."""


class PoolerKind(Enum):
    """How token vectors become the vector of a sentence."""

    cls = "cls"  # the first token of the last layer, through a linear map and tanh
    cls_before_pooler = "cls_before_pooler"  # the first token of the last layer
    avg = "avg"  # the mean over the tokens of the last layer
    avg_top2 = "avg_top2"  # the mean over the tokens of the last two layers
    avg_first_last = "avg_first_last"  # the mean over the tokens of the first and the last layer


def pool(kind: PoolerKind, hidden_states: Sequence[torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence vectors f32 [R, d], before any MLP, from the embeddings and the states of each layer, [R, L, d] each.

    Means are over all tokens that `attention_mask` i64 [R, L] shows, special tokens included. The first layer is
    `hidden_states[1]`: `hidden_states[0]` are the embeddings, with which the results are worse (SimCSE's issue 285).
    """
    assert len(hidden_states) > 1, "hidden states of the embeddings only"
    last = hidden_states[-1].float()  # f32 [R, L, d]
    if kind in (PoolerKind.cls, PoolerKind.cls_before_pooler):
        return last[:, 0]  # f32 [R, d]
    if kind is PoolerKind.avg:
        return token_mean(last, attention_mask)
    other = hidden_states[-2] if kind is PoolerKind.avg_top2 else hidden_states[1]  # [R, L, d]
    return token_mean((last + other.float()) / 2, attention_mask)  # f32 [R, d]


def token_mean(vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The mean [R, d] of the vectors [R, L, d] where `attention_mask` i64 [R, L] is 1."""
    shown = attention_mask.unsqueeze(-1).to(vectors.dtype)  # [R, L, 1]
    return (vectors * shown).sum(1) / shown.sum(1)  # [R, d]


class Pooler(nn.Module):
    """`pool`, and for `cls` the MLP behind it: tanh(W h + b), newly initialised.

    With `mlp_only_train` the MLP works in training mode only, and the vector of a sentence is h itself afterwards.
    """

    def __init__(self, kind: PoolerKind, dimensions: int, *, mlp_only_train: bool = False) -> None:
        """The MLP of `dimensions` d starts from torch's default generator, as every linear map of an encoder does."""
        super().__init__()
        self.kind, self.mlp_only_train = kind, mlp_only_train
        self.mlp: nn.Linear | None = None
        if kind is PoolerKind.cls:
            self.mlp = nn.Linear(dimensions, dimensions)
            nn.init.normal_(self.mlp.weight, std=0.02)
            nn.init.zeros_(self.mlp.bias)

    @property
    def kind_after_training(self) -> PoolerKind:
        """What gives the vector of a sentence outside training."""
        return PoolerKind.cls_before_pooler if self.kind is PoolerKind.cls and self.mlp_only_train else self.kind

    def forward(self, hidden_states: Sequence[torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
        """Sentence vectors f32 [R, d] from hidden states [R, L, d] each; the mask i64 [R, L] shows tokens."""
        vectors = pool(self.kind, hidden_states, attention_mask)  # f32 [R, d]
        if self.mlp is None or (self.mlp_only_train and not self.training):
            return vectors
        return torch.tanh(self.mlp(vectors)).float()  # f32 [R, d]
