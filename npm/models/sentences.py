"""Sentences in, one vector each out, and the files by which `sentence-transformers` gives the same ones.

`SentenceTransformer(folder)` of a saved `SentenceEncoder` loads

    cls_before_pooler   Transformer, Pooling of the first token
    cls                 Transformer, Pooling of the first token, Dense with tanh
    avg                 Transformer, Pooling of the mean

The one difference: special tokens such as [MASK] in a text are ordinary text for us, and special for it.

Shapes: n sentences, R rows of one pass, L padded length, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from npm.core.errors import EncoderError, QueryError
from npm.core.settings import checked
from npm.models.encoder import Encoder
from npm.models.names import CONFIG, MODULES, POOLING, POOLING_MODES, WEIGHTS, locate_encoder
from npm.models.settings import PoolerKind, Precision
from npm.models.stored import encoder_errors, evaluating

ROWS_PER_BATCH = 64
MLP = "2_Dense"
MLP_WEIGHTS = f"{MLP}/{WEIGHTS}"


def pool(kind: PoolerKind, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence vectors [R, d], before any MLP, of last states [R, L, d]: their mean, or the first of each.

    Means are over all tokens that `attention_mask` i64 [R, L] shows, special tokens included.
    """
    if kind is not PoolerKind.avg:
        return vectors[:, 0]  # [R, d]
    shown = attention_mask.unsqueeze(-1).to(vectors.dtype)  # [R, L, 1]
    return (vectors * shown).sum(1) / shown.sum(1)  # [R, d]


class Pooler(nn.Module):
    """`pool`, and for `cls` the MLP after it: tanh(W h + b), newly initialized.

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
        """Pooler of a sentence outside training."""
        return PoolerKind.cls_before_pooler if self.kind is PoolerKind.cls and self.mlp_only_train else self.kind

    def forward(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Sentence vectors f32 [R, d] of last states [R, L, d]; the mask i64 [R, L] shows tokens."""
        vectors = pool(self.kind, states.float(), attention_mask)  # f32 [R, d]
        if self.mlp is None or (self.mlp_only_train and not self.training):
            return vectors
        return torch.tanh(self.mlp(vectors)).float()  # f32 [R, d]


class SentenceEncoder:
    """An encoder and the pooler that gives a sentence its vector, which may be trained and saved together."""

    def __init__(self, encoder: Encoder, pooler: Pooler) -> None:
        self.encoder, self.pooler = encoder, pooler
        self.model = encoder.model
        self.weights_changed = encoder.weights_changed

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write the encoder as `Encoder.save` does, and the files that make it one of `sentence-transformers`."""
        kind = self.encoder.sentence_pooler = self.pooler.kind_after_training
        self.encoder.save(folder, dtype=dtype)
        self._write_modules(folder, kind)

    def _write_modules(self, folder: Path, kind: PoolerKind) -> None:
        """The files of `sentence-transformers` in the folder of the encoder."""
        d, mode = self.encoder.dimensions, "mean" if kind is PoolerKind.avg else "cls"
        modes = {name: mode == each for name, each in POOLING_MODES.items()}
        modules = {"": "Transformer", POOLING: "Pooling"}
        files: dict[str, Any] = {
            "sentence_bert_config.json": {"max_seq_length": self.encoder.max_input_tokens, "do_lower_case": False},
            "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
            f"{POOLING}/{CONFIG}": {"word_embedding_dimension": d} | modes,
        }
        if kind is PoolerKind.cls:
            assert self.pooler.mlp is not None
            modules[MLP] = "Dense"
            sizes = {"in_features": d, "out_features": d, "bias": True}
            files[f"{MLP}/{CONFIG}"] = sizes | {"activation_function": "torch.nn.modules.activation.Tanh"}
            weights = self.pooler.mlp.state_dict().items()
            tensors = {f"linear.{name}": tensor.detach().float().cpu() for name, tensor in weights}
            (folder / MLP).mkdir(exist_ok=True)
            (folder / MLP_WEIGHTS).write_bytes(safetensors.torch.save(tensors))
        files[MODULES] = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (path, name) in enumerate(modules.items())
        ]
        for file, value in files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        place: str = "",
        *,
        pooler: PoolerKind | str | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.float32,
    ) -> SentenceEncoder:
        """Load from anything that `Encoder.load` accepts; the pooler is the one given, or the one saved with it.

        Raises EncoderError where none is recorded, or the MLP of `cls` is missing.
        """
        given: PoolerKind | None = checked(pooler, PoolerKind | None, "pooler")
        encoder = Encoder.load(place, device=device, dtype=dtype)
        kind = given or encoder.sentence_pooler
        if kind is None:
            raise EncoderError(
                f"{encoder.name} records no usable pooler: set pooler to one of {', '.join(PoolerKind.__members__)}"
            )
        chosen = Pooler(kind, encoder.dimensions).eval()
        if chosen.mlp is not None:
            weights = Path(locate_encoder(place)) / MLP_WEIGHTS
            if not weights.is_file():
                raise EncoderError(
                    f"{weights} is missing: choose pooler=cls_before_pooler, "
                    "or an encoder trained with objective.sentence.pooler=cls"
                )
            with encoder_errors(str(weights), "a linear map"):
                tensors = safetensors.torch.load_file(weights)
                chosen.mlp.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in tensors.items()})
        return cls(encoder, chosen.to(encoder.device))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors f32 [n, d] of n texts, in their order; texts are cut to what the encoder takes.

        Special tokens within a text are ordinary text. The model and the pooler work in evaluation mode, which
        is then restored. Raises QueryError for a text that is empty.
        """
        if (empty := next((number for number, text in enumerate(texts) if not text.strip()), None)) is not None:
            raise QueryError(f"sentence {empty + 1} of {len(texts)} is empty: leave it out")
        order = np.argsort([-len(text) for text in texts], kind="stable")  # [n]; the longest first: little padding
        vectors = np.empty((len(texts), self.encoder.dimensions), dtype=np.float32)  # f32 [n, d]
        tokenizer: Any = self.encoder.tokenizer
        options = {"max_length": self.encoder.max_input_tokens, "split_special_tokens": True, "return_tensors": "pt"}
        with evaluating(self.encoder.model, self.pooler), torch.inference_mode():
            for start in range(0, len(texts), ROWS_PER_BATCH):
                numbers = order[start : start + ROWS_PER_BATCH]  # [R]
                inputs = tokenizer([texts[number] for number in numbers], padding=True, truncation=True, **options)
                ids, mask = (inputs[name].to(self.encoder.device) for name in ("input_ids", "attention_mask"))
                states = self.encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state  # [R, L, d]
                vectors[numbers] = self.pooler(states, mask).float().cpu().numpy()  # f32 [R, d]
        return vectors
