"""An encoder-decoder that restores corrupted text, with its tokenizer: loaded, created, saved, fingerprinted.

Its tokenizer has sentinels, <extra_id_0> and so on, that represent spans, and mode tokens that announce a denoiser.
Both are special tokens: text that looks like them is cut into ordinary pieces, and no mask ever covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING

import torch
from torch import nn

from npm.core.errors import EncoderError, named
from npm.masking.denoising import Sentinels
from npm.models.fresh import FEED_FORWARD_FACTOR, fresh_tokenizer
from npm.models.loading import load_encoder_decoder
from npm.models.names import encoder_label, locate_encoder
from npm.models.settings import FreshSettings, Precision
from npm.models.stored import StoredModel, quiet_transformers
from npm.models.tokenizer import redefined, special_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SENTINEL_COUNT = 256
"""Sentinels of a fresh tokenizer; the longest block of 256 tokens needs 44 under UL2's mixture, one of 512 needs 86."""


class Denoiser(StoredModel):
    """An encoder-decoder of `transformers` with its head for text to text, and its tokenizer."""

    FINGERPRINTED_KEYS = (
        *("model_type", "num_heads", "feed_forward_proj", "layer_norm_epsilon", "decoder_start_token_id"),
        *("relative_attention_num_buckets", "relative_attention_max_distance", "scale_decoder_outputs"),
        *("encoder_attention_heads", "decoder_attention_heads", "activation_function"),
    )

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str) -> None:
        super().__init__(model, tokenizer, name=name)
        self.end_id = special_id(tokenizer, "eos_token")
        self.pad_id = special_id(tokenizer, "pad_token")

    @classmethod
    def load(
        cls,
        name: str,
        *,
        mode_tokens: Iterable[str] = (),
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
        dropout: float | None = None,
    ) -> Denoiser:
        """Load from a folder or the hub, in evaluation mode; `dropout` None keeps the model's own.

        Those of `mode_tokens` missing from its tokenizer are added, with embeddings drawn from the mean and covariance
        of all others. Raises EncoderError when there is no encoder-decoder of that name.
        """
        place = locate_encoder(name)
        model, tokenizer = load_encoder_decoder(place, dropout=dropout)
        vocabulary = tokenizer.get_vocab()
        if lacking := [token for token in dict.fromkeys(mode_tokens) if token not in vocabulary]:
            tokenizer.add_special_tokens({"extra_special_tokens": lacking}, replace_extra_special_tokens=False)
        embeddings = model.get_input_embeddings()
        assert isinstance(embeddings, nn.Embedding), f"token embeddings are a {type(embeddings).__name__}"
        if len(tokenizer) > embeddings.num_embeddings:  # T5 already has more rows than tokens
            with torch.random.fork_rng(devices=[]), quiet_transformers():
                torch.manual_seed(0)
                model.resize_token_embeddings(len(tokenizer))
        return cls(model, tokenizer, name=encoder_label(name)).placed(device, dtype)

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """The ids of <extra_id_0>, <extra_id_1>, … as far as the tokenizer has them."""
        vocabulary = self.tokenizer.get_vocab()
        return tuple(vocabulary[name] for name in takewhile(vocabulary.__contains__, map(sentinel, count())))

    def sentinels(self, mode_tokens: Sequence[str] = ()) -> Sentinels:
        """Renderer of texts for this model, with the `mode_tokens` of the denoisers by their numbers.

        Raises EncoderError if one of them is missing from the tokenizer.
        """
        vocabulary = self.tokenizer.get_vocab()
        if lacking := sorted(set(mode_tokens) - vocabulary.keys()):
            raise EncoderError(
                f"{self.name}: the tokenizer has no {named(lacking)}; "
                "choose a model trained with mode tokens, or set denoising.mode_tokens=false"
            )
        mode_ids = tuple(vocabulary[token] for token in mode_tokens)
        return Sentinels(self.sentinel_ids, end_id=self.end_id, pad_id=self.pad_id, mode_ids=mode_ids)


def sentinel(number: int) -> str:
    """The name that T5's tokenizers give to a sentinel.

    >>> sentinel(0)
    '<extra_id_0>'
    """
    return f"<extra_id_{number}>"


def fresh_denoiser(
    place: str,
    settings: FreshSettings,
    *,
    mode_tokens: Iterable[str] = (),
    texts: Iterable[str] = (),
    dropout: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> Denoiser:
    """A T5 with random weights around the tokenizer of the encoder at `place`, a folder or hub name.

    It has `settings.layers` layers on each side (Raffel et al. 2020, arXiv 1910.10683, §2.1), and sentinels and
    `mode_tokens` next to the vocabulary. The same tokenizer, texts, settings and seed give the same model; torch's own
    generators do not change. In evaluation mode.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = _denoising_tokenizer(fresh_tokenizer(place, settings, texts), mode_tokens)
    config = T5Config(  # type: ignore[call-arg]  # arguments that every config takes are not fields of its class
        vocab_size=len(tokenizer),
        d_model=settings.dimensions,
        d_kv=settings.dimensions // settings.attention_heads,
        d_ff=FEED_FORWARD_FACTOR * settings.dimensions,
        num_layers=settings.layers,
        num_decoder_layers=settings.layers,
        num_heads=settings.attention_heads,
        dropout_rate=dropout,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
    name = f"fresh-t5-{settings.layers}x{settings.dimensions}"
    return Denoiser(model, tokenizer, name=name).placed(device, Precision.float32)


def _denoising_tokenizer(tokenizer: PreTrainedTokenizerFast, mode_tokens: Iterable[str]) -> PreTrainedTokenizerFast:
    """The vocabulary of an encoder's tokenizer with sentinels and mode tokens; a text is followed by its end alone.

    The encoder's separator serves as end. Raises EncoderError if it has none.
    """
    special_id(tokenizer, "pad_token")
    if tokenizer.eos_token is None:
        special_id(tokenizer, "sep_token")
    end = str(tokenizer.eos_token or tokenizer.sep_token)
    roles = {"pad_token": tokenizer.pad_token, "unk_token": tokenizer.unk_token, "eos_token": end}
    special = [*map(sentinel, range(SENTINEL_COUNT)), *dict.fromkeys(mode_tokens)]
    definition = tokenizer.backend_tokenizer.to_str()
    return redefined(tokenizer, definition, ((), (end,)), extra_special_tokens=special, **roles)
