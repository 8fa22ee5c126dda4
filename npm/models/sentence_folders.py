"""Folders of `sentence-transformers`: the pooler that one names, and the files that turn an encoder into one.

`SentenceTransformer(folder)` loads the encoder and gives the vectors of `SentenceEncoder`:

    cls_before_pooler   Transformer, Pooling of the first token
    cls                 Transformer, Pooling of the first token, Dense with tanh
    avg                 Transformer, Pooling of the mean

The one difference: special tokens such as [MASK] in a text are ordinary text for us, and special for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from npm.models.names import CONFIG, WEIGHTS, read_json_object
from npm.models.settings import PoolerKind

MODULES, POOLING, MLP = "modules.json", "1_Pooling", "2_Dense"
MLP_WEIGHTS = f"{MLP}/{WEIGHTS}"
KINDS = {"cls": PoolerKind.cls_before_pooler, "mean": PoolerKind.avg}
"""Poolers of its modes that need nothing else."""
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def pooler_of_modules(folder: Path) -> PoolerKind | None:
    """Pooler of a folder of `sentence-transformers`; None for another folder, or an unsupported pooler.

    Raises EncoderError for a damaged configuration of its pooling.
    """
    if not (folder / MODULES).is_file() or not (folder / POOLING).is_dir():
        return None
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        kinds = [module["type"].rpartition(".")[2] for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if [kind for kind in kinds if kind != "Normalize"] != ["Transformer", "Pooling"]:
        return None
    config = read_json_object(folder / POOLING / CONFIG)
    on = [MODES.get(name) for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return KINDS.get(str(config.get("pooling_mode") or (on[0] if len(on) == 1 else None)))


def write_sentence_files(
    folder: Path, kind: PoolerKind, mlp: nn.Module | None, *, d: int, max_input_tokens: int
) -> None:
    """Write the files of `sentence-transformers` into the folder of an encoder of d dimensions.

    `mlp` is that of the pooler `cls`.
    """
    mode = "mean" if kind is PoolerKind.avg else "cls"
    modules = {"": "Transformer", POOLING: "Pooling"}
    files: dict[str, Any] = {
        "sentence_bert_config.json": {"max_seq_length": max_input_tokens, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        f"{POOLING}/{CONFIG}": {"word_embedding_dimension": d} | {name: mode == each for name, each in MODES.items()},
    }
    if kind is PoolerKind.cls:
        assert mlp is not None
        modules[MLP] = "Dense"
        activation = "torch.nn.modules.activation.Tanh"
        files[f"{MLP}/{CONFIG}"] = {
            "in_features": d,
            "out_features": d,
            "bias": True,
            "activation_function": activation,
        }
        tensors = {f"linear.{name}": tensor.detach().float().cpu() for name, tensor in mlp.state_dict().items()}
        (folder / MLP).mkdir(exist_ok=True)
        (folder / MLP_WEIGHTS).write_bytes(safetensors.torch.save(tensors))
    files[MODULES] = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (path, name) in enumerate(modules.items())
    ]
    for file, value in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
