"""Folders of `sentence-transformers`: the pooler that one names, and the files that make an encoder one.

`SentenceTransformer(folder)` loads the encoder and gives the vectors of `SentenceEncoder`:

    cls_before_pooler   Transformer, Pooling of the first token
    cls                 Transformer, Pooling of the first token, Dense with tanh
    avg                 Transformer, Pooling of the mean

The one difference: special tokens such as [MASK] in a text are ordinary text for us, and special for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from npm.models.library_errors import safetensors_errors
from npm.models.names import CONFIG, read_json_object
from npm.models.settings import PoolerKind

MODULES = "modules.json"
KINDS = {"cls": PoolerKind.cls_before_pooler, "mean": PoolerKind.avg}
"""Poolers of its modes that need nothing else."""
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def pooler_of_modules(folder: Path) -> PoolerKind | None:
    """Pooler of a folder of `sentence-transformers`; None for another folder, or a pooler that we have not.

    Raises EncoderError for a damaged configuration of its pooling.
    """
    if not (folder / MODULES).is_file():
        return None
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        paths = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    kinds, path = [kind for kind in paths if kind != "Normalize"], paths.get("Pooling")
    if kinds != ["Transformer", "Pooling"] or not isinstance(path, str) or not re.fullmatch(r"\w+", path):
        return None
    config = read_json_object(folder / path / CONFIG)
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    mode = config.get("pooling_mode") or (MODES.get(on[0]) if len(on) == 1 else None)
    return KINDS.get(mode) if isinstance(mode, str) else None


def write_sentence_files(
    folder: Path, kind: PoolerKind, mlp: nn.Module | None, *, d: int, max_input_tokens: int
) -> None:
    """Write the files of `sentence-transformers` into the folder of an encoder of d dimensions.

    `mlp` is that of the pooler `cls`.
    """
    mode = "mean" if kind is PoolerKind.avg else "cls"
    transformer: dict[str, Any] = {"max_seq_length": max_input_tokens, "do_lower_case": False}
    config: dict[str, Any] = {}
    modules: list[tuple[str, dict[str, Any], dict[str, torch.Tensor]]] = [("Transformer", config, {})]
    pooling = {"word_embedding_dimension": d, **{name: mode == own for name, own in MODES.items()}}
    modules.append(("Pooling", pooling, {}))
    if kind is PoolerKind.cls:
        assert mlp is not None
        activation = "torch.nn.modules.activation.Tanh"
        config = {"in_features": d, "out_features": d, "bias": True, "activation_function": activation}
        tensors = {f"linear.{name}": tensor.detach().float().cpu() for name, tensor in mlp.state_dict().items()}
        modules.append(("Dense", config, tensors))
    listed = []
    for number, (name, config, tensors) in enumerate(modules):
        path = f"{number}_{name}" if number else ""
        kind_name = f"sentence_transformers.models.{name}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": kind_name})
        if number:
            _write_json(folder / path / CONFIG, config)
        if tensors:
            with safetensors_errors():
                safetensors.torch.save_file(tensors, folder / path / "model.safetensors")
            # written for the owner alone, whatever the umask
            (folder / path / "model.safetensors").chmod((folder / path / CONFIG).stat().st_mode & 0o777)
    _write_json(folder / MODULES, listed)
    _write_json(folder / "sentence_bert_config.json", transformer)
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
