"""A decoder that continues a text, with its tokenizer: loading, fingerprint, and logits of next tokens.

Shapes: S sequences, B sequences of a batch, L padded length, d dimensions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import EncoderError
from npm.models.batches import length_sorted_batches
from npm.models.loading import load_decoder
from npm.models.names import encoder_label, locate_encoder
from npm.models.settings import Precision
from npm.models.stored import StoredModel
from npm.models.tokenizer import special_ids_around

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOKENS_PER_BATCH = 2048
"""Tokens of a forward pass; the memory of its logits depends on how many are requested."""


class Decoder(StoredModel):
    """A decoder of `transformers` with its head for the next token, and its tokenizer."""

    FINGERPRINTED_KEYS = ("model_type", "num_attention_heads", "n_head", "hidden_act", "activation_function")

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str) -> None:
        super().__init__(model, tokenizer, name=name)
        self.prefix_ids, _ = special_ids_around(tokenizer)

    @classmethod
    def load(cls, name: str, *, device: str = "auto", dtype: Precision | str = Precision.auto) -> Decoder:
        """Load from a folder or the hub, in evaluation mode. Raises EncoderError when no decoder has that name."""
        return cls(*load_decoder(locate_encoder(name)), name=encoder_label(name)).placed(device, dtype)

    @property
    def beginning_ids(self) -> list[int]:
        """Tokens of an empty text: the decoder's prefix, else the token that begins or that ends a text.

        Raises EncoderError if its tokenizer has none of them.
        """
        tokenizer = self.tokenizer
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if not self.prefix_ids and begin is None:
            raise EncoderError(
                f"{self.name}: no token to begin a text with; "
                "set bos_token in tokenizer_config.json, or put words before <mask> in the template"
            )
        return list(self.prefix_ids or [begin])

    def next_logits(self, sequences: Sequence[np.ndarray], first: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """The index of each of S sequences i64 [tokens], and its logits f32 [tokens - first, V] from slot `first` on.

        Row i says what follows the token at first + i. Sequences come longest first.
        """
        lengths = np.array([len(each) for each in sequences], dtype=np.int64)  # i64 [S]
        for batch in length_sorted_batches(lengths, tokens_per_batch=TOKENS_PER_BATCH):
            places = batch.tolist()
            start = min(first[number] for number in places)
            inputs = self.padded([sequences[number] for number in places])  # no token sees the padding on the right
            wanted = torch.arange(start, inputs["input_ids"].shape[1], device=self.device)  # i64 [L - start]
            with torch.inference_mode():
                model: Any = self.model  # it keeps the logits of the named positions, of all sequences
                logits = model(**inputs, logits_to_keep=wanted, use_cache=False).logits.float()  # f32 [B, L - start, V]
            for row, number in enumerate(places):
                yield number, logits[row, first[number] - start : len(sequences[number]) - start]

    def states(self, sequences: Sequence[np.ndarray]) -> torch.Tensor:
        """Last hidden states f32 [B, L, d] of sequences i64 [tokens], in one pass; rows under padding mean nothing."""
        base: Any = self.model.base_model
        with torch.inference_mode():
            states: torch.Tensor = base(**self.padded(sequences), use_cache=False).last_hidden_state.float()
        return states  # f32 [B, L, d]
