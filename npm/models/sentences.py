"""Sentences in, one vector each out.

Shapes: n sentences, R rows of one pass, L padded length, d dimensions.

What is saved is a folder of `sentence-transformers` too: `SentenceTransformer(folder)` loads the encoder as it stands
and gives the vectors of `SentenceEncoder`:

    cls_before_pooler          Transformer, Pooling of the first token
    cls                        Transformer, Pooling of the first token, Dense with tanh
    avg                        Transformer, Pooling of the mean
    avg_top2, avg_first_last   Transformer, WeightedLayerPooling, Pooling of the mean

So all kinds can be expressed. The one difference: special tokens such as [MASK] that stand in a text are ordinary text
for us, and special for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from index.files import storage_errors
from npm.core.errors import EncoderError, QueryError, near
from npm.models.encoder import LAST_LAYER_POOLERS, Encoder, evaluating
from npm.models.folders import MODULES_FILE, POOLER_KEY, POOLING_MODES, locate_encoder, pooler_of_modules
from npm.models.loading import safetensors_errors
from npm.models.settings import PoolerKind, Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pool(kind: PoolerKind, hidden_states: Sequence[torch.Tensor], attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence vectors f32 [R, d], before any MLP, from the embeddings and the states of each layer, [R, L, d] each.

    Means are over all tokens that `attention_mask` i64 [R, L] shows, special tokens included. The first layer is
    `hidden_states[1]`: `hidden_states[0]` are the embeddings, with which the results are worse (SimCSE's issue 285).
    """
    assert len(hidden_states) > 1, "hidden states of the embeddings only"
    last = hidden_states[-1].float()  # f32 [R, L, d]
    if kind in (*LAST_LAYER_POOLERS, PoolerKind.cls):
        return pool_last(kind, last, attention_mask)
    other = hidden_states[-2] if kind is PoolerKind.avg_top2 else hidden_states[1]  # [R, L, d]
    return token_mean((last + other.float()) / 2, attention_mask)  # f32 [R, d]


def pool_last(kind: PoolerKind, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence vectors f32 [R, d] of the states of the last layer f32 [R, L, d]: their mean, or the first of each."""
    return token_mean(vectors, attention_mask) if kind is PoolerKind.avg else vectors[:, 0]


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


_CLS_KINDS = (PoolerKind.cls, PoolerKind.cls_before_pooler)


class SavedSentenceEncoder:
    """An encoder that is trained together with a pooler; what is saved is a sentence encoder."""

    def __init__(self, encoder: Encoder, pooler: Pooler) -> None:
        self.encoder, self.pooler = encoder, pooler

    @property
    def model(self) -> PreTrainedModel:
        """The encoder's model."""
        return self.encoder.model

    def weights_changed(self) -> None:
        """To be called after the weights were changed, as training does."""
        self.encoder.weights_changed()

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write the encoder as `Encoder.save` does, and beside it what gives a sentence its vector."""
        setattr(self.encoder.model.config, POOLER_KEY, self.pooler.kind_after_training.name)
        self.encoder.save(folder, dtype=dtype)
        write_sentence_files(folder, self.encoder, self.pooler)


def forget_pooler(encoder: Encoder) -> None:
    """Let an encoder that was a sentence encoder be none any more, as training with other objectives makes it."""
    encoder.pooler_of_modules = None
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
    pooling |= {name: mode == own for name, own in POOLING_MODES.items()}
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
                f"{weights} is missing: choose pooler=cls_before_pooler, "
                "or an encoder trained with objective.sentence.pooler=cls"
            )
        try:
            tensors = safetensors.torch.load_file(weights)
            pooler.mlp.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in tensors.items()})
        except (SafetensorError, OSError, RuntimeError) as error:
            raise EncoderError(
                f"cannot read {weights} as a linear map of {dimensions} dimensions: {str(error).splitlines()[0]}"
            ) from error
    return pooler.eval()


def pooler_kind_of(folder: Path, encoder: Encoder) -> PoolerKind:
    """The kind that an encoder was trained for: what its config says, else its modules of `sentence-transformers`.

    Raises EncoderError where neither says it, or they name one that we have not.
    """
    saved = getattr(encoder.model.config, POOLER_KEY, None)
    if isinstance(saved, str) and saved in PoolerKind.__members__:
        return PoolerKind[saved]
    kind = pooler_of_modules(folder) if saved is None else None
    if kind is None:
        raise EncoderError(
            f"{folder}: no usable {MODULES_FILE}, and {POOLER_KEY} in config.json is {saved!r:.80}; "
            f"set pooler to one of {', '.join(PoolerKind.__members__)}"
        )
    return kind


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


class SentenceEncoder:
    """An encoder and a pooler."""

    def __init__(self, encoder: Encoder, pooler: Pooler) -> None:
        self.encoder, self.pooler = encoder, pooler

    @classmethod
    def load(
        cls,
        place: str = "",
        *,
        pooler: PoolerKind | str | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.float32,
    ) -> SentenceEncoder:
        """Load from whatever `Encoder.load` takes; the pooler is the one that was saved with it, or the one given.

        Raises EncoderError where nothing says how a sentence gets its vector, or the MLP of `cls` is lacking.
        """
        encoder = Encoder.load(place, device=device, dtype=dtype)
        folder = Path(locate_encoder(place))
        kind = pooler_kind_of(folder, encoder) if pooler is None else _kind(pooler)
        chosen = read_pooler(folder, kind=kind, dimensions=encoder.dimensions)
        return cls(encoder, chosen.to(encoder.device))

    def encode(
        self,
        texts: Sequence[str],
        *,
        rows_per_batch: int = 64,
        unit: bool = False,
        max_sentence_tokens: int | None = None,
    ) -> np.ndarray:
        """The vectors f32 [n, d] of n texts, in their order; of length 1 with `unit`.

        Texts are cut after `max_sentence_tokens`, special tokens included; None cuts what the encoder cannot take.
        Special tokens that stand in a text are ordinary text. The model and the pooler work in evaluation mode, which
        they leave as they found it. Raises QueryError for a text that is empty.
        """
        if (empty := next((number for number, text in enumerate(texts) if not text.strip()), None)) is not None:
            raise QueryError(f"sentence {empty + 1} of {len(texts)} is empty: leave it out")
        longest = self.encoder.max_input_tokens if max_sentence_tokens is None else max_sentence_tokens
        order = np.argsort([-len(text) for text in texts], kind="stable")  # [n]; the longest first: little padding
        vectors = np.empty((len(texts), self.encoder.dimensions), dtype=np.float32)  # f32 [n, d]
        with evaluating(self.encoder.model, self.pooler):
            for start in range(0, len(texts), rows_per_batch):
                numbers = order[start : start + rows_per_batch]  # [R]
                vectors[numbers] = self._vectors([texts[number] for number in numbers], longest)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else vectors

    @torch.inference_mode()
    def _vectors(self, texts: list[str], longest: int) -> np.ndarray:
        """The vectors f32 [R, d] of R texts, in one pass."""
        tokenizer: Any = self.encoder.tokenizer
        inputs = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=longest,
            split_special_tokens=True,
            return_tensors="pt",
        )
        ids, mask = (inputs[name].to(self.encoder.device) for name in ("input_ids", "attention_mask"))  # i64 [R, L]
        output = self.encoder.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        vectors: np.ndarray = self.pooler(output.hidden_states, mask).float().cpu().numpy()  # f32 [R, d]
        return vectors


def _kind(name: PoolerKind | str) -> PoolerKind:
    if isinstance(name, PoolerKind):
        return name
    if name not in PoolerKind.__members__:
        raise EncoderError(f"unknown pooler {name!r}: {near(name, PoolerKind.__members__)}")
    return PoolerKind[name]
