"""BERT in torch alone, for inference: a cold `npmlm fill` has no time for the import of `transformers`.

Every encoder with a config of plain BERT is read so (`is_plain_bert`); its fingerprint covers what is read here.
Parameters have the names of `transformers`' BertModel. Formulas: Devlin et al. 2019, §3, and Vaswani et al. 2017, §3.1,
normalized after each addition.

Shapes: B sequences of N tokens in all, L padded length, d dimensions, H heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from npm.models.memory import keep_few_kernels
from npm.models.names import WEIGHTS, locate_encoder
from npm.models.settings import OWN_KEY

IGNORED_WEIGHTS = ("pooler.", "cls.", "embeddings.position_ids")
"""Beginnings of the names of weights that no hidden state depends on."""
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
DEFAULTS: dict[str, Any] = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    **{"hidden_act": "gelu", "pad_token_id": 0, "is_encoder_decoder": False},
}
"""Values of keys that a config.json omits."""
REQUIRED = {
    **{"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False, "is_causal": False},
    **{"add_cross_attention": False, "quantization_config": None, "return_dict": True},
}
"""Values of keys that would change the vectors, where a config has them."""


def is_plain_bert(config: Mapping[str, Any]) -> bool:
    """Return True if a config, as in config.json, describes the model of this file."""
    return config.get("model_type") == "bert" and all(
        config.get(key, usual) == usual for key, usual in REQUIRED.items()
    )


class HiddenStates(NamedTuple):
    """Result of a pass."""

    last_hidden_state: torch.Tensor  # [B, L, d]


class PlainBert(nn.Module):
    """Encoder layers over embeddings, without dropout, pooler or gradient checkpointing."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings: _Embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: torch.Tensor) -> HiddenStates:
        """Last hidden states [B, L, d] of token ids i64 [B, L] under a mask [B, L], 1 for text; 0s for padding."""
        text = attention_mask.bool()  # [B, L]
        packed = self.packed(input_ids[text], attention_mask.sum(1).tolist())  # [N, d]
        return HiddenStates(packed.new_zeros(*text.shape, packed.shape[-1]).masked_scatter_(text[..., None], packed))

    def packed(self, ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """`packed_states` of this model."""
        return packed_states(self, ids, lengths)


def packed_states(model: Any, ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Last hidden states [N, d] of a `PlainBert`, or of a BertModel of `transformers` without its dropout.

    `ids` i64 [N] are those of concatenated sequences of these `lengths`, none of them 0. Nothing is padded: linear maps
    take all tokens at once, and adjacent sequences of equal length attend together.
    """
    parts = model.embeddings
    positions = torch.cat([torch.arange(length, device=ids.device) for length in lengths])  # i64 [N]
    words = parts.word_embeddings(ids) + parts.token_type_embeddings.weight[0]  # [N, d]
    states = parts.LayerNorm(words + parts.position_embeddings(positions))  # [N, d]
    runs = [len(list(run)) * length for length, run in itertools.groupby(lengths)]  # tokens of each run
    run_lengths = [length for length, _ in itertools.groupby(lengths)]
    for layer in model.encoder.layer:
        states = _layer_states(layer, states, runs, run_lengths, heads=model.config.num_attention_heads)  # [N, d]
    return states


def _layer_states(
    layer: Any, states: torch.Tensor, runs: Sequence[int], lengths: Sequence[int], *, heads: int
) -> torch.Tensor:
    attention = layer.attention.self
    products = [getattr(attention, name)(states).split(runs) for name in ("query", "key", "value")]  # [run, d] each
    mixed = [
        functional.scaled_dot_product_attention(
            *(each.unflatten(0, (-1, length)).unflatten(-1, (heads, -1)).transpose(1, 2) for each in run)
        )  # [sequences, H, length, d/H]
        .transpose(1, 2)
        .reshape(-1, states.shape[1])  # [run, d]
        for length, *run in zip(lengths, *products, strict=True)
    ]
    states = _normalized(layer.attention.output, torch.cat(mixed), states)  # [N, d]
    inner = functional.gelu(layer.intermediate.dense(states))  # [N, inner]
    return _normalized(layer.output, inner, states)  # [N, d]


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d = config.hidden_size
        self.word_embeddings = _table(config.vocab_size, d)
        self.position_embeddings = _table(config.max_position_embeddings, d)
        self.token_type_embeddings = _table(config.type_vocab_size, d)
        self.LayerNorm = nn.LayerNorm(d, eps=config.layer_norm_eps)


def _table(rows: int, d: int) -> nn.Embedding:
    """Embeddings without random values: drawing on a device of shapes alone makes torch import its compiler."""
    return nn.Embedding(rows, d, _weight=torch.empty(rows, d))


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(d, d) for name in ("query", "key", "value")}),
                "output": _added(d, d, config),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(d, inner)})
        self.output = _added(inner, d, config)


def _added(width: int, d: int, config: Any) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(width, d), "LayerNorm": nn.LayerNorm(d, eps=config.layer_norm_eps)})


def _normalized(parts: Any, inner: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    normalized: torch.Tensor = parts.LayerNorm(parts.dense(inner) + states)  # [N, d]
    return normalized


def load_plain_bert(place: str, entries: Mapping[str, Any]) -> tuple[PlainBert, dict[str, list[str]]]:
    """BERT of a folder with these config entries, in float32 for evaluation; and names of missing and surplus weights.

    Raises RuntimeError, TypeError or ValueError for weights that do not match the entries.
    """
    keep_few_kernels()  # before the first product: questions and blocks have all lengths
    config = SimpleNamespace(**(DEFAULTS | dict(entries)))
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(f"hidden_size {config.hidden_size} is no multiple of {config.num_attention_heads} heads")
    stored = {name.removeprefix("bert."): tensor for name, tensor in load_file(Path(place) / WEIGHTS).items()}
    if config.num_hidden_layers > len(stored):
        raise ValueError(f"num_hidden_layers is {config.num_hidden_layers}, but there are {len(stored)} weights")
    with torch.device("meta"):  # shapes alone: no random numbers for what is read at once
        model = PlainBert(config)
    state = {  # Google's own weights have gamma and beta
        name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias"): tensor.float()
        for name, tensor in stored.items()
        if not name.startswith(IGNORED_WEIGHTS)
    }
    if WORD_EMBEDDINGS not in state and (owner := dict(entries).get(OWN_KEY, {}).get("word_embeddings")):
        state[WORD_EMBEDDINGS] = load_file(Path(locate_encoder(owner)) / WEIGHTS)[WORD_EMBEDDINGS].float()
    report = model.load_state_dict(state, strict=False, assign=True)
    names = {"missing_keys": report.missing_keys, "unexpected_keys": report.unexpected_keys}
    return model.eval().requires_grad_(requires_grad=False), names
