"""A Hugging Face encoder with its tokenizer and similarity scale: loaded, saved, fingerprinted.

On a CPU the fused attention of PyTorch 2.13 spends most of its time in the backward pass; for sequences of a few
hundred tokens `plain_attention` trains a 6×384 encoder in bfloat16 1.4 to 1.8 times faster
(`benchmarks/bench_training.py`). It is registered with transformers' public attention interface under the name `plain`.

Shapes: B sequences, H heads, L padded length, d dimensions, k of them kept, h dimensions of a head.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from npm.core.settings import PathText, as_json, checked
from npm.models.bert import PlainBert
from npm.models.loading import load_pretrained
from npm.models.names import SINGLE_MASK_NAMES, encoder_label, locate_encoder, pooler_of_modules
from npm.models.settings import (
    LAST_LAYER_POOLERS,
    OWN_KEY,
    EncoderSettings,
    PoolerKind,
    Precision,
    check_leading_dimensions,
    leading_scale,
)
from npm.models.stored import StoredModel, encoder_errors
from npm.models.tokenizer import special_id, special_ids_around, spells_bytes

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


PLAIN = "plain"


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query, key, value [B, H, L, h] under an additive mask [B, 1, L, L]; returns [B, L, H, h].

    `transformers` passes further keyword arguments that this form ignores.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):  # autocast would move the softmax to float32
        scores = torch.matmul(query * factor, key.transpose(2, 3))  # [B, H, L, L]
        if attention_mask is not None:
            # the lowest float32 would become -inf in bfloat16, and a row without any key (padding far from text, seen
            # through a sliding window) NaN, which the next layer spreads over the entire sequence
            lowest = torch.finfo(scores.dtype).min
            scores = scores + attention_mask.clamp_min(lowest).to(scores.dtype)
        weights = torch.softmax(scores, dim=-1)  # [B, H, L, L]
        weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None  # [B, L, H, h]


def use_plain_attention(model: PreTrainedModel) -> None:
    """Let `model` compute its attention with `plain_attention`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(PLAIN, plain_attention)
    AttentionMaskInterface.register(PLAIN, eager_mask)
    model.set_attn_implementation(PLAIN)


class Encoder(StoredModel):
    """An encoder that turns token ids into one vector per token, its tokenizer, and its similarity scale."""

    FINGERPRINTED_KEYS = (
        "model_type",
        "num_attention_heads",
        "hidden_act",
        "hidden_activation",
        "layer_norm_eps",
        "norm_eps",
        "local_attention",
    )
    OPTIONAL_KEYS = (
        *("is_decoder", "is_causal", "pad_token_id", "layer_types", "rope_parameters", "token_dropout"),
        *("mask_token_id", "relative_attention", "position_buckets", "max_relative_positions", "pos_att_type"),
    )

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str,
        similarity_scale: float | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name=name)
        recorded = EncoderSettings.read(getattr(model.config, OWN_KEY, None), where=name)
        self.similarity_scale = similarity_scale or recorded.similarity_scale or self.whole_dimensions**-0.5
        self.trained_dimensions: Sequence[int] = recorded.trained_dimensions
        self.title_tokens, self.query_masks = recorded.title_tokens, recorded.query_masks
        self.reads_jointly, self.sentence_pooler = recorded.reads_jointly, recorded.sentence_pooler
        self.mask_id = special_id(tokenizer, "mask_token")
        self.pad_id = special_id(tokenizer, "pad_token")
        self.prefix_ids, self.suffix_ids = special_ids_around(tokenizer)
        self._leading: int | None = None
        self._axes: torch.Tensor | None = None  # f32 [k, d], of which the vectors are the coordinates

    @property
    def frame_ids(self) -> dict[str, Any]:
        """Ids of the mask, of padding, and of the special tokens around a text, as renderers take them."""
        around = {"prefix_ids": tuple(self.prefix_ids), "suffix_ids": tuple(self.suffix_ids)}
        return {"mask_id": self.mask_id, "pad_id": self.pad_id, **around}

    def recorded(self) -> dict[str, Any]:
        """The entry `npm` of config.json."""
        settings = EncoderSettings(
            similarity_scale=self._scale,
            trained_dimensions=sorted(self.trained_dimensions),
            title_tokens=self.title_tokens,
            query_masks=self.query_masks,
            reads_jointly=self.reads_jointly,
            sentence_pooler=self.sentence_pooler,
        )
        return {OWN_KEY: as_json(asdict(settings))}

    def fingerprinted(self) -> dict[str, Any]:
        """The scale."""
        return {"similarity_scale": self._scale}

    @classmethod
    def of(cls, given: Encoder | str | Path | None, device: str, dtype: Precision | str) -> Encoder:
        """An encoder that a caller gave, loaded or by name, or the shipped one; for reading. Raises SettingError."""
        found: Encoder | str | None = checked(given, Encoder | PathText | None, "encoder")
        if isinstance(found, Encoder):
            return found
        return cls.load(found or "", device=device, dtype=checked(dtype, Precision, "dtype"), for_reading=True)

    @classmethod
    def load(
        cls,
        name: str = "",
        *,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
        similarity_scale: float | None = None,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        half_input_tokens: int | None = None,
        for_reading: bool = False,
    ) -> Encoder:
        """Load from a folder, the hub, the extra `pretrained` (`minilm`) or the shipped one (`encoder-mini`, or empty).

        `similarity_scale` None takes the saved one, else 1/√d. Dropouts None keep its own. `half_input_tokens` takes
        an encoder-decoder's, for inputs of that length; `for_reading` takes what loads fastest, gives only token
        vectors and cannot be saved. In evaluation mode. Raises EncoderError if there is none.
        """
        place = locate_encoder(name)
        dropouts = {"hidden_dropout": hidden_dropout, "attention_dropout": attention_dropout}
        loaded = load_pretrained(place, **dropouts, half_input_tokens=half_input_tokens, for_reading=for_reading)
        encoder = cls(*loaded, name=encoder_label(name), similarity_scale=similarity_scale)
        encoder.for_reading = for_reading
        if encoder.sentence_pooler is None:
            with encoder_errors(place):
                encoder.sentence_pooler = pooler_of_modules(Path(place))
        if name.partition("@")[0] in SINGLE_MASK_NAMES:
            encoder.query_masks = 1
        return encoder.placed(device, dtype)

    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Last hidden states f32 [B, L, k] of token ids i64 [B, L], shortened; rows under padding mean nothing."""
        return self.shortened(self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state)

    def packed_vectors(self, ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Last hidden states f32 [N, k], shortened, of concatenated token ids i64 [N] of sequences; none is empty."""
        if isinstance(self.model, PlainBert):
            return self.shortened(self.model.packed(ids, lengths))
        padded = pad_sequence(ids.split(list(lengths)), batch_first=True, padding_value=self.pad_id)  # i64 [B, L]
        text = torch.arange(padded.shape[1], device=ids.device) < torch.tensor(lengths, device=ids.device)[:, None]
        return self.token_vectors(padded, text.long())[text]  # f32 [N, k]

    def shortened(self, vectors: torch.Tensor) -> torch.Tensor:
        """Shortened vectors f32 [..., k] of full ones [..., d]."""
        if self._axes is None:
            return vectors[..., : self._leading].float()  # f32 [..., k]
        return vectors.float() @ self._axes.T.to(vectors.device)  # f32 [..., k]

    def cut_to(self, dimensions: int | None, *, axes: np.ndarray | None = None) -> Encoder:
        """The same encoder, with only the leading `dimensions` of its vectors; None: all of them.

        With `axes` f32 [dimensions, d] vectors become the coordinates on these, to the scale of full vectors. Model,
        tokenizer and fingerprint are shared, and full vectors are saved. Raises SettingError for a length that is not
        positive or greater than that of full vectors.
        """
        if dimensions is not None:
            check_leading_dimensions([dimensions], where="dimensions", most=self.whole_dimensions)
        shorter = copy.copy(self)
        shorter._leading, shorter._axes = dimensions, None if axes is None else torch.from_numpy(axes)
        return shorter

    @property
    def axes_digest(self) -> str | None:
        """SHA-256 of the axes on which its vectors are projected; None: on none."""
        return None if self._axes is None else hashlib.sha256(self._axes.numpy().tobytes()).hexdigest()

    @property
    def similarity_scale(self) -> float:
        """Factor between an inner product and a logit."""
        if self._axes is not None:
            return self._scale
        return leading_scale(self._scale, self.dimensions, self.whole_dimensions)

    @similarity_scale.setter
    def similarity_scale(self, scale: float) -> None:
        self._scale = float(scale)  # of full vectors

    @property
    def dimensions(self) -> int:
        """Length d of a token vector."""
        return self._leading or self.whole_dimensions

    @property
    def whole_dimensions(self) -> int:
        """Length of a full token vector."""
        return int(self.model.config.hidden_size)

    @property
    def spells_bytes(self) -> bool:
        """Return True if its tokens are bytes."""
        return spells_bytes(self.tokenizer)

    @property
    def block_pooler(self) -> PoolerKind | None:
        """Pooler for vectors of blocks; None without one, or for one that reads more than the last layer."""
        return self.sentence_pooler if self.sentence_pooler in LAST_LAYER_POOLERS else None

    @property
    def max_input_tokens(self) -> int:
        """Longest input in tokens, special tokens included."""
        return int(self.model.config.max_position_embeddings) - self.first_position

    @property
    def first_position(self) -> int:
        """Position id of a sequence's first token: 0, or in RoBERTa the id of padding + 1."""
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        padding = table.padding_idx if isinstance(table, nn.Embedding) else None
        return 0 if padding is None else int(padding) + 1
