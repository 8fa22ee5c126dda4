"""What the fingerprint of an encoder counts: its weights, and the entries of its config that can change a vector."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import torch

from npm.models.loading import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HARMLESS_KEYS = re.compile(
    r"_?name_or_path|architectures|auto_map|transformers_version|(torch_)?dtype"  # where it comes from, how it is kept
    r"|\w*(num_labels|id2label|label2id)|problem_type|finetuning_task|task_specific_params|(classifier|summary)_\w+"
    r"|return_dict|output_\w+|use_cache|torchscript|chunk_size_feed_forward|decoder_bias"  # what is returned, heads
    r"|(?!\w*token_dropout)(\w+_)?(dropout(_prob|_rate)?|\w*drop|drop_path_rate)"  # ESM's token_dropout always acts
    r"|pooler_\w+|directionality|tie_weights_"  # poolers are left out
    r"|initializer_\w+|gradient_checkpointing|sparse_pred\w*|reference_compile|deterministic_\w+"
    r"|(bos|eos|cls|sep|unk)_token_id"  # the tokenizer says these
    r"|trained_dimensions|sentence_pooler|title_tokens|query_masks|reads_jointly"  # ours: how it is asked
)
"""Keys of a config on which no vector depends: names, heads, what acts in training only."""
SIZE_KEYS = (
    *("vocab_size", "type_vocab_size", "embedding_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "d_model", "d_ff", "d_kv", "num_layers", "num_decoder_layers", "num_heads"),
    *("dim", "emb_dim", "hidden_dim", "n_layers", "n_heads"),
)
"""Keys that decide the shapes of weights, which are counted with them, or the defaults of other keys."""
LONG_DEFAULTS = {"position_embedding_type": "absolute"}
"""Keys that `transformers` had once, and the value that changes nothing."""


def own_settings(model: PreTrainedModel) -> dict[str, Any]:
    """The entries of the config that can change a vector and are not what a config of its class and sizes has.

    Entries that are as they always are do not count, so that a file that spells them out, one that leaves them out and
    one that a later `transformers` reads with a key more have the same fingerprint.
    """
    config = model.config.to_dict()
    sizes = {key: config[key] for key in SIZE_KEYS if key in config}
    with quiet_transformers():  # it remarks that its default ids of special tokens are beyond a small vocabulary
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
