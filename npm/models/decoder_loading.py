"""Encoder-decoders as `transformers` loads them, with its mistakes told in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from npm.errors import EncoderError
from npm.models.loading import check_decoder, load_tokenizer, quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_DROPOUT_KEYS = ("dropout_rate", "dropout")


def load_encoder_decoder(place: str, *, dropout: float | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Encoder-decoder with its head, in float32, and fast tokenizer from a folder or hub name.

    `dropout` None keeps the model's own. Raises EncoderError when there is nothing of that name, the model has no
    decoder, a weight is lacking, or the tokenizer keeps no offsets.
    """
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    try:
        config = AutoConfig.from_pretrained(place)
        check_decoder(config, wanted=True, where=place)
        for key in _DROPOUT_KEYS:
            if dropout is not None and hasattr(config, key):
                setattr(config, key, dropout)
        with quiet_transformers():
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                place, config=config, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise EncoderError(
            "the encoder-decoder cannot be loaded",
            expected="a Hugging Face encoder-decoder with its tokenizer",
            got=(str(error).strip() or repr(error)).splitlines()[0],
            where=place,
            fix="check the name; without a network give a folder written by save_pretrained",
        ) from error
    # transformers fills what a file lacks with random numbers and goes on
    if missing := sorted(report["missing_keys"]):
        raise EncoderError(
            "the encoder-decoder's weights are incomplete",
            expected="a weight for every parameter of its config.json, the head for text to text included",
            got=f"{len(missing)} without a weight, the first of them {missing[0]}",
            where=place,
            fix="give the whole folder as save_pretrained wrote it",
        )
    return model, load_tokenizer(place)
