"""Encoders that start from random weights around a tokenizer that exists.

Studies of training itself need starts that know nothing. The encoder is of BERT's architecture (Devlin et al. 2019,
arXiv 1810.04805, §3) with feed-forward layers four times as wide as its vectors, or, where tokens read only their
neighbours, of ModernBERT's (Warner et al. 2024, arXiv 2412.13663, §2.1), gated and half as wide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npm.errors import check_range
from npm.models.encoder import Encoder, choose_device
from npm.models.loading import load_tokenizer
from npm.models.vocabulary import cut_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

FEED_FORWARD_FACTOR = 4
"""Width of the feed-forward layers over the length of a token vector, as in BERT."""
GATED_FACTOR = 2
"""The same where a layer has three matrices, one of them a gate, instead of two."""


@dataclass(kw_only=True, slots=True)
class FreshSettings:
    """A start from random weights; only the tokenizer comes from `encoder=`."""

    layers: int = 0
    """Layers of a new encoder with random weights; 0 starts from the weights of `encoder=`."""
    dimensions: int = 128
    """Length of its token vectors."""
    attention_heads: int = 2
    """Attention heads of a layer; dimensions must be a multiple of them."""
    max_input_tokens: int = 512
    """Longest input in tokens, special tokens included."""
    window_tokens: int = 0
    """Neighbours that a token reads in each layer, half of them on either side; 0 reads the whole input.

    A small encoder learns from its neighbours within 100 steps; to find them among all tokens takes it thousands.
    """
    vocabulary_size: int = 0
    """Cut a WordPiece vocabulary to this many of its pieces, those most frequent in the text; 0 keeps all of it."""
    vocabulary_documents: int = 10_000
    """Documents, from the beginning of the corpus, whose pieces are counted for that."""

    def __post_init__(self) -> None:
        lowest = {
            "layers": 0,
            "dimensions": 1,
            "attention_heads": 1,
            "max_input_tokens": 4,
            "window_tokens": 0,
            "vocabulary_size": 0,
            "vocabulary_documents": 1,
        }
        for name, low in lowest.items():
            value = getattr(self, name)
            check_range(value >= low, f"start.fresh.{name}", expected=f"at least {low}", got=value)
        check_range(
            self.window_tokens % 2 == 0, "start.fresh.window_tokens", expected="an even number", got=self.window_tokens
        )
        check_range(
            self.window_tokens == 0 or self.dimensions // self.attention_heads % 2 == 0,
            "start.fresh.dimensions",
            expected="an even number for each attention head, because positions turn pairs of numbers",
            got=f"dimensions={self.dimensions}, attention_heads={self.attention_heads}",
            fix="change one of the two, or leave start.fresh.window_tokens out",
        )
        check_range(
            self.dimensions % self.attention_heads == 0,
            "start.fresh.dimensions",
            expected=f"a multiple of start.fresh.attention_heads={self.attention_heads}",
            got=self.dimensions,
            fix="change one of the two",
        )


def fresh_encoder(
    place: str,
    settings: FreshSettings,
    *,
    texts: Iterable[str] = (),
    hidden_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    similarity_scale: float | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Encoder:
    """An encoder with random weights and the tokenizer found at `place`, a folder or hub name; in evaluation mode.

    `texts` are read only where `vocabulary_size` asks for a cut vocabulary. The same tokenizer, texts, settings and
    seed give the same encoder; torch's own generators are left as they are. Raises EncoderError if there is no usable
    tokenizer, SettingError if its vocabulary cannot be cut to the size.
    """
    tokenizer = load_tokenizer(place)
    if settings.vocabulary_size:
        counted = islice(texts, settings.vocabulary_documents)
        tokenizer = cut_vocabulary(tokenizer, counted, size=settings.vocabulary_size, where=place)
    tokenizer.model_max_length = settings.max_input_tokens
    model = _random_model(
        settings, tokenizer, hidden_dropout=hidden_dropout, attention_dropout=attention_dropout, seed=seed
    )
    name = f"fresh-{settings.layers}x{settings.dimensions}"
    encoder = Encoder(model, tokenizer, name=name, similarity_scale=similarity_scale)
    nn.Module.to(encoder.model, device=choose_device(device)).eval()
    return encoder


def _random_model(
    settings: FreshSettings,
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden_dropout: float,
    attention_dropout: float,
    seed: int,
) -> PreTrainedModel:
    """A model without pooler, its weights drawn on the CPU from a generator of their own."""
    from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": settings.dimensions,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.attention_heads,
        "max_position_embeddings": settings.max_input_tokens,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.window_tokens == 0:
            bert = BertConfig(
                intermediate_size=FEED_FORWARD_FACTOR * settings.dimensions,
                hidden_dropout_prob=hidden_dropout,
                attention_probs_dropout_prob=attention_dropout,
                **sizes,
            )
            return BertModel(bert, add_pooling_layer=False)
        local = ModernBertConfig(
            intermediate_size=GATED_FACTOR * settings.dimensions,
            local_attention=settings.window_tokens,
            layer_types=["sliding_attention"] * settings.layers,
            embedding_dropout=hidden_dropout,
            mlp_dropout=hidden_dropout,
            attention_dropout=attention_dropout,
            cls_token_id=tokenizer.cls_token_id,
            bos_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            eos_token_id=tokenizer.sep_token_id,
            **sizes,
        )
        return ModernBertModel(local)
