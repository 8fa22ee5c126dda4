"""Attention as two matrix products around a softmax, in the number format of its inputs.

On a CPU the fused attention of PyTorch 2.13 spends most of its time in the backward pass; for sequences of a few
hundred tokens this plain form trains a 6×384 encoder in bfloat16 1.4 to 1.8 times faster
(`benchmarks/bench_training.py`). It is registered with transformers' public attention interface under the name `plain`.

Shapes: B sequences, H heads, L padded length, h dimensions of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLAIN = "plain"


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query, key, value [B, H, L, h] under an additive mask [B, 1, L, L]; returns [B, L, H, h].

    `transformers` passes further keyword arguments that this form has no use for.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):  # autocast would move the softmax to float32
        scores = torch.matmul(query * factor, key.transpose(2, 3))  # [B, H, L, L]
        if attention_mask is not None:
            # the lowest float32 would become -inf in bfloat16, and a row without any key (padding far from text, seen
            # through a sliding window) NaN, which the next layer spreads over the whole sequence
            lowest = torch.finfo(scores.dtype).min
            scores = scores + attention_mask.clamp_min(lowest).to(scores.dtype)
        weights = torch.softmax(scores, dim=-1)  # [B, H, L, L]
        weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None  # [B, L, H, h]


def use_plain_attention(model: PreTrainedModel) -> None:
    """Let `model` compute its attention with `plain_attention`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(PLAIN, plain_attention)
    AttentionMaskInterface.register(PLAIN, eager_mask)
    model.set_attn_implementation(PLAIN)
