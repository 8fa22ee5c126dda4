"""Encoders that start from random weights around a tokenizer that exists.

Studies of training itself need untrained starts. The encoder is of BERT's architecture (Devlin et al. 2019,
arXiv 1810.04805, §3) with feed-forward layers four times as wide as its vectors, or, where tokens read only their
neighbors, of ModernBERT's (Warner et al. 2024, arXiv 2412.13663, §2.1), gated and half as wide.

A small encoder spends most of its weights on a vocabulary of 30,522 pieces. Cutting it keeps the pieces that occur most
often, every special token, and of every piece that occurs its characters, so that a word whose piece was dropped is
still spelled with smaller ones. Unlike training a tokenizer this always gives the same result for the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import EncoderError, SettingError
from npm.corpus.blocks import private_backend
from npm.models.encoder import Encoder
from npm.models.loading import override_dropouts, without_pooler
from npm.models.settings import FreshSettings, Precision
from npm.models.tokenizer import load_tokenizer, redefined, special_ids_around

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


TEXTS_PER_BATCH = 256
MAX_COUNTED_CHARS = 20_000
"""Of each text only the beginning is counted, so that memory is bounded by a batch of them."""


def fresh_tokenizer(place: str, settings: FreshSettings, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Tokenizer at `place`, a folder or hub name, with a vocabulary cut for the first of `texts` where settings ask."""
    tokenizer = load_tokenizer(place)
    if not settings.vocabulary_size:
        return tokenizer
    return cut_vocabulary(tokenizer, islice(texts, settings.vocabulary_documents), size=settings.vocabulary_size)


def cut_vocabulary(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], *, size: int) -> PreTrainedTokenizerFast:
    """The same tokenizer with the `size` most useful pieces for `texts`, renumbered in their old order.

    Kept are all special tokens, all characters of pieces that occur, then the most frequent pieces; of equally frequent
    ones those with the lower id. Raises EncoderError for another model than WordPiece, SettingError where `size` is
    more than there are or less than must be kept.
    """
    definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    model = definition["model"]
    if model["type"] != "WordPiece":
        raise EncoderError(
            f"{tokenizer.name_or_path}: only a WordPiece vocabulary can be cut, got {model['type']}; "
            "set start.fresh.vocabulary_size=0 to keep all of it"
        )
    kept = kept_ids(definition, piece_counts(tokenizer, texts), size=size)  # i64 [size], ascending
    new_ids = {int(old): new for new, old in enumerate(kept)}
    model["vocab"] = {piece: new_ids[old] for piece, old in model["vocab"].items() if old in new_ids}
    for token in definition["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    definition["post_processor"] = None  # it has the old ids
    before, after = (tokenizer.convert_ids_to_tokens(ids) for ids in special_ids_around(tokenizer))
    return redefined(tokenizer, json.dumps(definition), (before, after))


def piece_counts(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> np.ndarray:
    """Counts i64 [V] of pieces in the beginnings of `texts`, special tokens taken as ordinary text."""
    backend = private_backend(tokenizer)
    counts = np.zeros(1 + max(backend.get_vocab(with_added_tokens=True).values()), dtype=np.int64)  # [V]
    remaining = iter(texts)
    while batch := [text[:MAX_COUNTED_CHARS] for text in islice(remaining, TEXTS_PER_BATCH)]:
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            counts += np.bincount(np.array(encoding.ids, dtype=np.int64), minlength=len(counts))  # [V]
    return counts


def kept_ids(definition: dict[str, Any], counts: np.ndarray, *, size: int) -> np.ndarray:
    """Ids i64 [size], ascending, that stay in the vocabulary of a tokenizer's JSON `definition`."""
    vocabulary: dict[str, int] = definition["model"]["vocab"]
    needed = {token["id"] for token in definition["added_tokens"]} | {vocabulary[definition["model"]["unk_token"]]}
    prefix = definition["model"]["continuing_subword_prefix"]
    for piece, token_id in vocabulary.items():
        if counts[token_id] and token_id not in needed:
            inside = piece.startswith(prefix) and piece != prefix
            text = piece.removeprefix(prefix) if inside else piece
            spelt = [prefix + text[i] if inside or i else text[i] for i in range(len(text))]  # "##ab": "##a", "##b"
            needed |= {vocabulary[character] for character in spelt if character in vocabulary}
    if not len(needed) <= size <= len(vocabulary):
        raise SettingError(
            f"start.fresh.vocabulary_size must be {len(needed)} (special tokens and characters of the text) to "
            f"{len(vocabulary)}, or 0 for all, got {size}"
        )
    usable = set(vocabulary.values()) - needed
    ranked = [token_id for token_id in np.argsort(-counts, kind="stable").tolist() if token_id in usable]
    return np.sort(np.array([*needed, *ranked[: size - len(needed)]]))


FEED_FORWARD_FACTOR = 4
"""Width of the feed-forward layers over the length of a token vector, as in BERT."""
GATED_FACTOR = 2
"""The same where a layer has three matrices, one of them a gate, instead of two."""


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
    seed give the same encoder; torch's own generators do not change. Raises EncoderError if there is no usable
    tokenizer, SettingError if its vocabulary cannot be cut to the size.
    """
    from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

    tokenizer = fresh_tokenizer(place, settings, texts)
    tokenizer.model_max_length = settings.max_input_tokens
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": settings.dimensions,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.attention_heads,
        "max_position_embeddings": settings.max_input_tokens,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model_class: Any = ModernBertModel if settings.window_tokens else BertModel
    config: Any
    if settings.window_tokens:
        config = ModernBertConfig(
            intermediate_size=GATED_FACTOR * settings.dimensions,
            local_attention=settings.window_tokens,
            layer_types=["sliding_attention"] * settings.layers,
            cls_token_id=tokenizer.cls_token_id,
            bos_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            eos_token_id=tokenizer.sep_token_id,
            **sizes,
        )
    else:
        config = BertConfig(intermediate_size=FEED_FORWARD_FACTOR * settings.dimensions, **sizes)
    override_dropouts(config, hidden_dropout=hidden_dropout, attention_dropout=attention_dropout)
    with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU
        torch.manual_seed(seed)
        model = model_class(config, **without_pooler(model_class))
    name = f"fresh-{settings.layers}x{settings.dimensions}"
    encoder = Encoder(model, tokenizer, name=name, similarity_scale=similarity_scale)
    return encoder.placed(device, Precision.float32)
