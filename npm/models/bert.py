"""BERT in torch alone, for reading: the vectors of `transformers`' BertModel without the seconds its import takes.

Of a cold `npmlm fill` that import, with what it pulls in, is more than a third (`benchmarks/bench_cold_fill.py`).
Parameters have the same names, so that fingerprints are the same; nothing but the last hidden states comes out.
Formulas: Devlin et al. 2019, §3, and Vaswani et al. 2017, §3.1, normalised after each addition.

Shapes: B sequences, L padded length, d dimensions, H heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

USUAL = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
}
"""What a config says of an encoder that is computed here, or says nothing of."""
LEFT_OUT = ("pooler.", "embeddings.position_ids")
"""Beginnings of the names of weights that no hidden state depends on."""


class HiddenStates(NamedTuple):
    """What a pass returns."""

    last_hidden_state: torch.Tensor  # [B, L, d]


class PlainBert(nn.Module):
    """Encoder layers over embeddings, without dropout, pooler or gradient checkpointing."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: torch.Tensor) -> HiddenStates:
        """Last hidden states [B, L, d] of token ids i64 [B, L] under a mask [B, L], 1 for text and 0 for padding."""
        # no mask where nothing is padded: the kernels without one are faster
        seen = None if bool(attention_mask.all()) else attention_mask.bool()[:, None, None, :]  # bool [B, 1, 1, L]
        states = self.embeddings(input_ids)  # [B, L, d]
        layers: Any = self.encoder["layer"]
        for layer in layers:
            states = layer(states, seen)  # [B, L, d]
        return HiddenStates(states)


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d = config.hidden_size
        self.word_embeddings = _table(config.vocab_size, d)
        self.position_embeddings = _table(config.max_position_embeddings, d)
        self.token_type_embeddings = _table(config.type_vocab_size, d)
        self.LayerNorm = nn.LayerNorm(d, eps=config.layer_norm_eps)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = self.position_embeddings.weight[: input_ids.shape[1]]  # [L, d]
        words = self.word_embeddings(input_ids) + self.token_type_embeddings.weight[0]  # [B, L, d]
        states: torch.Tensor = self.LayerNorm(words + positions)  # [B, L, d]
        return states


def _table(rows: int, d: int) -> nn.Embedding:
    """Embeddings that nothing is drawn for: drawing on a device of shapes alone makes torch import its compiler."""
    return nn.Embedding(rows, d, _weight=torch.empty(rows, d))


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(d, d) for name in ("query", "key", "value")}),
                "output": _added(d, d, config),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(d, inner)})
        self.output = _added(inner, d, config)

    def forward(self, states: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        parts: Any = self.attention
        query, key, value = (
            parts["self"][name](states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, L, d/H]
            for name in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)  # [B, H, L, d/H]
        states = _normalised(parts["output"], mixed.transpose(1, 2).flatten(2), states)  # [B, L, d]
        inner = functional.gelu(self.intermediate["dense"](states))  # [B, L, inner]
        return _normalised(self.output, inner, states)  # [B, L, d]


def _added(width: int, d: int, config: Any) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(width, d), "LayerNorm": nn.LayerNorm(d, eps=config.layer_norm_eps)})


def _normalised(parts: Any, inner: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    normalised: torch.Tensor = parts["LayerNorm"](parts["dense"](inner) + states)  # [B, L, d]
    return normalised


def load_plain_bert(place: str, config: PreTrainedConfig) -> PlainBert | None:
    """The encoder in a folder in float32, evaluating, if it is a BERT as `save_pretrained` writes one in one file.

    None for every other folder, a damaged one too: `transformers` loads it, or says what is wrong.
    """
    weights = Path(place) / "model.safetensors"
    is_usual = all(getattr(config, key, value) == value for key, value in USUAL.items())
    heads = config.num_attention_heads if is_usual else 0
    if heads < 1 or config.hidden_size % heads or not weights.is_file():
        return None
    try:
        with torch.device("meta"):  # shapes alone: no random numbers for what is read at once
            model = PlainBert(config)
        stored = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith(LEFT_OUT)}
        model.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, assign=True)
    except (SafetensorError, RuntimeError, TypeError, ValueError, OSError):
        return None
    return model.eval().requires_grad_(requires_grad=False)
