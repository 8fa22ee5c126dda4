"""Fingerprints of models: their weights, and the entries of their config that can change a vector."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from npm.models.bert import is_plain_bert
from npm.models.library_errors import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HARMLESS_KEYS = re.compile(
    r"_?name_or_path|architectures|auto_map|transformers_version|(torch_)?dtype|npm"  # origin, storage, our settings
    r"|\w*(num_labels|id2label|label2id)|problem_type|finetuning_task|task_specific_params|(classifier|summary)_\w+"
    r"|return_dict|output_\w+|use_cache|torchscript|chunk_size_feed_forward|decoder_bias"  # what is returned, heads
    r"|(?!\w*token_dropout)(\w+_)?(dropout(_prob|_rate)?|\w*drop|drop_path_rate)"  # ESM's token_dropout always acts
    r"|pooler_\w+|directionality|tie_weights_"  # poolers are left out
    r"|initializer_\w+|gradient_checkpointing|sparse_pred\w*|reference_compile|deterministic_\w+"
    r"|(bos|eos|cls|sep|unk)_token_id"  # the tokenizer defines these
)
"""Keys of a config on which no vector depends: names, heads, what acts in training only."""
SIZE_KEYS = (
    *("vocab_size", "type_vocab_size", "embedding_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "d_model", "d_ff", "d_kv", "num_layers", "num_decoder_layers", "num_heads"),
    *("dim", "emb_dim", "hidden_dim", "n_layers", "n_heads"),
)
"""Keys that decide the shapes of weights, which are counted with them, or the defaults of other keys."""
LONG_DEFAULTS = {"position_embedding_type": "absolute"}
"""Former keys of `transformers`, and the value that changes nothing."""


def fingerprint(model: PreTrainedModel, always: Mapping[str, Any], weights: str) -> str:
    """SHA-256 over the entries `always`, further ones that can change a vector, and the digest of the weights."""
    facts = {**always}
    if not is_plain_bert(vars(model.config)):  # of which all that it reads is in `always` and in the weights
        facts = own_settings(model) | facts
    return hashlib.sha256(json.dumps([facts, weights], sort_keys=True).encode()).hexdigest()


def own_settings(model: PreTrainedModel) -> dict[str, Any]:
    """Entries of the config that can change a vector and differ from those of its class with the same sizes.

    So files that spell out the usual entries, files that omit them, and those of a later `transformers` with one more
    key have the same fingerprint.
    """
    config = model.config.to_dict()
    sizes = {key: config[key] for key in SIZE_KEYS if key in config}
    with quiet_transformers():  # it warns that its default ids of special tokens are beyond a small vocabulary
        usual = LONG_DEFAULTS | type(model.config)(**sizes).to_dict()
    passed = {*sizes}
    if any("position_embeddings" in name for name, _ in model.named_parameters()):
        passed.add("max_position_embeddings")  # the shape of a weight; with rotary positions it is none
    if "mask_token_id" not in usual:  # else the model reads it, as ESM does, and not only the tokenizer
        passed.add("mask_token_id")
    own = {key: value for key, value in config.items() if key not in passed and not HARMLESS_KEYS.fullmatch(key)}
    return {key: value for key, value in own.items() if key not in usual or usual[key] != value}


def weights_digest(model: PreTrainedModel) -> str:
    """SHA-256 over the names, shapes and values of all weights, as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
