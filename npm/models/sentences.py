"""Sentences in, one vector each out.

Shapes: n sentences, R rows of one pass, L padded length, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from npm.errors import EncoderError, QueryError
from npm.models.encoder import ComputeDtype, Encoder
from npm.models.places import locate_encoder
from npm.models.poolers import Pooler, PoolerKind
from npm.models.sentence_transformer import pooler_kind_of, read_pooler


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
        dtype: ComputeDtype | str = ComputeDtype.float32,
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
            raise QueryError(
                f"sentence {empty + 1} of {len(texts)} is empty",
                expected="text",
                got=repr(texts[empty]),
                where=f"sentence {empty + 1}",
                fix="leave it out",
            )
        longest = self.encoder.max_input_tokens if max_sentence_tokens is None else max_sentence_tokens
        order = np.argsort([-len(text) for text in texts], kind="stable")  # [n]; the longest first: little padding
        vectors = np.empty((len(texts), self.encoder.dimensions), dtype=np.float32)  # f32 [n, d]
        modules: tuple[nn.Module, ...] = (self.encoder.model, self.pooler)
        modes = [module.training for module in modules]
        try:
            for module in modules:
                module.eval()
            for start in range(0, len(texts), rows_per_batch):
                numbers = order[start : start + rows_per_batch]  # [R]
                vectors[numbers] = self._vectors([texts[number] for number in numbers], longest)
        finally:
            for module, training in zip(modules, modes, strict=True):
                module.train(training)
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
        raise EncoderError(
            "there is no such pooler",
            expected=", ".join(PoolerKind.__members__),
            got=name,
            where="pooler",
            fix="choose one of these",
        )
    return PoolerKind[name]
