"""The files that make a saved encoder a sentence encoder, for `sentence-transformers` and for us.

`SentenceTransformer(folder)` then loads the encoder as it stands and gives the vectors of `SentenceEncoder`:

    cls_before_pooler          Transformer, Pooling of the first token
    cls                        Transformer, Pooling of the first token, Dense with tanh
    avg                        Transformer, Pooling of the mean
    avg_top2, avg_first_last   Transformer, WeightedLayerPooling, Pooling of the mean

So all kinds can be expressed. The one difference: special tokens such as [MASK] that stand in a text are ordinary text
for us, and special for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from index.files import storage_errors
from npm.errors import EncoderError
from npm.models.encoder import Encoder
from npm.models.loading import safetensors_errors
from npm.models.poolers import POOLER_KEY, Pooler, PoolerKind

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODULES_FILE = "modules.json"
_CLS_KINDS = (PoolerKind.cls, PoolerKind.cls_before_pooler)
_KINDS_OF_POOLING = {"cls": PoolerKind.cls_before_pooler, "mean": PoolerKind.avg}
_OLD_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


class SavedSentenceEncoder:
    """An encoder that is trained together with a pooler; what is saved is a sentence encoder."""

    def __init__(self, encoder: Encoder, pooler: Pooler) -> None:
        self.encoder, self.pooler = encoder, pooler

    @property
    def model(self) -> PreTrainedModel:
        """The encoder's model."""
        return self.encoder.model

    def weights_changed(self) -> None:
        """To be called by whoever has changed the weights, as training does."""
        self.encoder.weights_changed()

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write the encoder as `Encoder.save` does, and beside it what gives a sentence its vector."""
        setattr(self.encoder.model.config, POOLER_KEY, self.pooler.kind_after_training.name)
        self.encoder.save(folder, dtype=dtype)
        write_sentence_files(folder, self.encoder, self.pooler)


def forget_pooler(encoder: Encoder) -> None:
    """Let an encoder that was a sentence encoder be none any more, as training with other objectives makes it."""
    if getattr(encoder.model.config, POOLER_KEY, None) is not None:
        setattr(encoder.model.config, POOLER_KEY, None)


def write_sentence_files(folder: Path, encoder: Encoder, pooler: Pooler) -> None:
    """Write the files of `sentence-transformers` into `folder`, which holds `encoder`, for the use after training.

    Raises StorageError when the operating system refuses a write.
    """
    kind = pooler.kind_after_training
    transformer: dict[str, Any] = {"max_seq_length": encoder.max_input_tokens, "do_lower_case": False}
    mode = "cls" if kind in _CLS_KINDS else "mean"
    pooling = {"word_embedding_dimension": encoder.dimensions}
    pooling |= {name: mode == own for name, own in _OLD_MODES.items()}
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    with storage_errors(folder):
        if kind in (PoolerKind.avg_top2, PoolerKind.avg_first_last):
            transformer["config_args"] = {"output_hidden_states": True}
            modules = [
                ("Transformer", ""),
                ("WeightedLayerPooling", "1_WeightedLayerPooling"),
                ("Pooling", "2_Pooling"),
            ]
            _write_layer_weights(folder / "1_WeightedLayerPooling", encoder, kind)
        if kind is PoolerKind.cls:
            modules.append(("Dense", "2_Dense"))
            _write_dense(folder / "2_Dense", pooler)
        _write_json(folder / modules[-1 if mode == "mean" else 1][1] / "config.json", pooling)
        listed = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (name, path) in enumerate(modules)
        ]
        _write_json(folder / MODULES_FILE, listed)
        _write_json(folder / "sentence_bert_config.json", transformer)
        _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def read_pooler(folder: Path, *, kind: PoolerKind, dimensions: int) -> Pooler:
    """The pooler of `kind` for the encoder in `folder`. Raises EncoderError if the MLP of its kind is not there."""
    pooler = Pooler(kind, dimensions)
    if pooler.mlp is not None:
        weights = folder / "2_Dense" / "model.safetensors"
        if not weights.is_file():
            raise EncoderError(
                "the encoder has no trained MLP for the pooler cls",
                expected="weights in 2_Dense/model.safetensors",
                got="no such file",
                where=str(folder),
                fix="choose pooler=cls_before_pooler, or an encoder trained with objective.sentence.pooler=cls",
            )
        tensors = safetensors.torch.load_file(weights)
        pooler.mlp.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in tensors.items()})
    return pooler.eval()


def pooler_kind_of(folder: Path, encoder: Encoder) -> PoolerKind:
    """The kind that an encoder was trained for: what its config says, else its modules of `sentence-transformers`.

    Raises EncoderError where neither says it, or they name one that we have not.
    """
    saved = getattr(encoder.model.config, POOLER_KEY, None)
    if isinstance(saved, str) and saved in PoolerKind.__members__:
        return PoolerKind[saved]
    kind = _kind_of_modules(folder) if saved is None and (folder / MODULES_FILE).is_file() else None
    if kind is None:
        raise EncoderError(
            "nothing says how this encoder makes the vector of a sentence",
            expected=f"{POOLER_KEY} in config.json, or {MODULES_FILE} with Transformer, Pooling and Normalize only",
            got=repr(saved) if saved is not None else "neither",
            where=str(folder),
            fix=f"choose one with pooler=: {', '.join(PoolerKind.__members__)}",
        )
    return kind


def _kind_of_modules(folder: Path) -> PoolerKind | None:
    modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
    names = [module["type"].rpartition(".")[2] for module in modules]
    if [name for name in names if name != "Normalize"] != ["Transformer", "Pooling"]:
        return None
    place = folder / modules[names.index("Pooling")]["path"] / "config.json"
    config = json.loads(place.read_text(encoding="utf-8"))
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    mode = config.get("pooling_mode") or (_OLD_MODES.get(on[0]) if len(on) == 1 else None)
    return _KINDS_OF_POOLING.get(mode) if isinstance(mode, str) else None


def _write_layer_weights(folder: Path, encoder: Encoder, kind: PoolerKind) -> None:
    layers = int(encoder.model.config.num_hidden_layers)
    start = layers - 1 if kind is PoolerKind.avg_top2 else 1
    weights = torch.zeros(layers + 1 - start)  # f32 [layers from `start` on, the embeddings being number 0]
    weights[0] += 1.0
    weights[-1] += 1.0  # the same one where there is one layer only
    config = {"word_embedding_dimension": encoder.dimensions, "layer_start": start, "num_hidden_layers": layers}
    _write_json(folder / "config.json", config)
    _write_tensors(folder / "model.safetensors", {"layer_weights": weights})


def _write_dense(folder: Path, pooler: Pooler) -> None:
    assert pooler.mlp is not None, f"no MLP in a pooler {pooler.kind.name}"
    size = pooler.mlp.out_features
    activation = "torch.nn.modules.activation.Tanh"
    config = {"in_features": size, "out_features": size, "bias": True, "activation_function": activation}
    _write_json(folder / "config.json", config)
    tensors = {f"linear.{name}": tensor.detach().float().cpu() for name, tensor in pooler.mlp.state_dict().items()}
    _write_tensors(folder / "model.safetensors", tensors)


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with safetensors_errors():
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod((path.parent / "config.json").stat().st_mode & 0o777)  # written for the owner alone, whatever the umask


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
