"""Sentences in, one vector each out.

Shapes: n sentences, R rows of one pass, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from npm.core.errors import EncoderError, QueryError, near
from npm.models.encoder import Encoder
from npm.models.names import locate_encoder
from npm.models.sentence_folders import write_sentence_files
from npm.models.settings import PoolerKind, Precision
from npm.models.stored import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pool(kind: PoolerKind, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Sentence vectors [R, d], before any MLP, of last states [R, L, d]: their mean, or the first of each.

    Means are over all tokens that `attention_mask` i64 [R, L] shows, special tokens included.
    """
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
        """Pooler of a sentence outside training."""
        return PoolerKind.cls_before_pooler if self.kind is PoolerKind.cls and self.mlp_only_train else self.kind

    def forward(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Sentence vectors f32 [R, d] of last states [R, L, d]; the mask i64 [R, L] shows tokens."""
        vectors = pool(self.kind, states.float(), attention_mask)  # f32 [R, d]
        if self.mlp is None or (self.mlp_only_train and not self.training):
            return vectors
        return torch.tanh(self.mlp(vectors)).float()  # f32 [R, d]


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
        self.encoder.sentence_pooler = self.pooler.kind_after_training
        self.encoder.save(folder, dtype=dtype)
        write_sentence_files(
            folder,
            self.pooler.kind_after_training,
            self.pooler.mlp,
            d=self.encoder.dimensions,
            max_input_tokens=self.encoder.max_input_tokens,
        )


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
        if isinstance(pooler, str) and pooler not in PoolerKind.__members__:
            raise EncoderError(f"unknown pooler {pooler!r}: {near(pooler, PoolerKind.__members__)}")
        encoder = Encoder.load(place, device=device, dtype=dtype)
        kind = PoolerKind(pooler) if pooler is not None else encoder.sentence_pooler
        if kind is None:
            raise EncoderError(
                f"{encoder.name} records no usable pooler: set pooler to one of {', '.join(PoolerKind.__members__)}"
            )
        chosen = read_pooler(Path(locate_encoder(place)), kind=kind, dimensions=encoder.dimensions)
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
        states = self.encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state  # [R, L, d]
        vectors: np.ndarray = self.pooler(states, mask).float().cpu().numpy()  # f32 [R, d]
        return vectors
