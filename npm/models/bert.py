"""BERT in torch alone, for reading: the vectors of `transformers`' BertModel without the seconds its import takes.

Of a cold `npmlm fill` that import, with what it pulls in, is more than a third (`benchmarks/bench_cold_fill.py`); a
config that says nothing unusual is read without it too. Parameters have the same names, so that fingerprints are the
same; nothing but the last hidden states comes out.
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

from npm.models.folders import CONFIG, OWN_KEYS, WEIGHTS, read_json_object

LEFT_OUT = ("pooler.", "embeddings.position_ids")
"""Beginnings of the names of weights that no hidden state depends on."""
SIZES = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2},
}
RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": None}
SMALL = {"initializer_range": 0.02, "layer_norm_eps": 1e-12}
FIXED = {
    **{"model_type": "bert", "hidden_act": "gelu", "is_decoder": False, "add_cross_attention": False},
    **{"chunk_size_feed_forward": 0, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True},
}
DEFAULTS: dict[str, Any] = {**SIZES, **RATES, **SMALL, **FIXED, "pad_token_id": 0, "use_cache": True}
"""What `transformers`' BertConfig takes for the keys that a config.json leaves out."""
SPELLED_OUT = FIXED | {
    **{"position_embedding_type": "absolute", "architectures": ["BertModel"], "gradient_checkpointing": False},
    "classifier_dropout": None,
}
"""Values that some versions write and others leave out; another value is left to `transformers`."""
NUMBER_FORMATS = ("float32", "float16", "bfloat16")


class PlainConfig:
    """What config.json says of a BERT, made and asked as a config of `transformers` is: keys are attributes."""

    def __init__(self, **entries: Any) -> None:
        self.__dict__.update(DEFAULTS | entries)

    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any: ...

    def to_dict(self) -> dict[str, Any]:
        """All entries, those left out included."""
        return dict(self.__dict__)


def plain_config(place: str) -> PlainConfig | None:
    """The config of the BERT in a folder whose files were checked, if nothing in it needs `transformers`."""
    entries = read_json_object(Path(place) / CONFIG)
    if "model_type" not in entries or not all(_is_plain(key, value) for key, value in entries.items()):
        return None
    config = PlainConfig(**entries)
    return config if config.pad_token_id < config.vocab_size else None


def _is_plain(key: str, value: Any) -> bool:
    """Whether `transformers` takes this entry as it stands, without a refusal or a remark."""
    if key in SPELLED_OUT and value == SPELLED_OUT[key]:
        return type(value) is type(SPELLED_OUT[key])  # not 0 for False
    if key in SIZES or key == "pad_token_id":
        return type(value) is int and value >= (key in SIZES)
    if key in RATES:
        return type(value) in (int, float) and 0 <= value <= 1
    if key in SMALL:
        return type(value) is float and 0 < value < 1
    if key in ("dtype", "torch_dtype"):
        return value in NUMBER_FORMATS
    if key in OWN_KEYS:  # which we check ourselves
        return not isinstance(value, dict)
    return type(value) is {"use_cache": bool, "transformers_version": str, "_name_or_path": str}.get(key)


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


def load_plain_bert(place: str, config: PlainConfig) -> PlainBert | None:
    """The encoder in a folder in float32, evaluating, if its weights are those of `config` in one file.

    None for every other folder, a damaged one too: `transformers` loads it, or says what is wrong.
    """
    weights = Path(place) / WEIGHTS
    if config.hidden_size % config.num_attention_heads or not weights.is_file():
        return None
    try:
        with torch.device("meta"):  # shapes alone: no random numbers for what is read at once
            model = PlainBert(config)
        stored = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith(LEFT_OUT)}
        model.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, assign=True)
    except (SafetensorError, RuntimeError, TypeError, ValueError, OSError):
        return None
    return model.eval().requires_grad_(requires_grad=False)
