"""Tiny random encoders with tokenizers trained on a few sentences, one of each family that must work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from npm.models.encoder import Encoder

FAMILIES = ("bert", "roberta", "modernbert")
WORDPIECE_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
BYTE_BPE_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}

SENTENCES = (
    "Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.",
    "Paris is the capital of France, and the Seine flows through Paris.",
    "The Bank of America was founded in San Francisco. Its founder was Amadeo Giannini.",
    "Hydrogen is the lightest element; its symbol is H and its atomic number is 1.",
    "Łódź and Kraków are cities in Poland. São Paulo is a city in Brazil.",
    "The river Rhine rises in Switzerland and flows to the North Sea in the Netherlands.",
    "Don Quixote was written by Miguel de Cervantes. It appeared in 1605 in Madrid.",
    "Norway's capital, Oslo, lies at the end of the Oslofjord.",
)


def tiny_encoder(
    family: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    seed: int = 0,
    dimensions: int = 32,
    max_positions: int = 128,
    **config: Any,
) -> Encoder:
    """A random two-layer encoder in float32 on the CPU; its tokenizer knows the characters of `sentences`.

    `bert` is uncased WordPiece and strips accents, `roberta` and `modernbert` are cased byte-level BPE. `config` holds
    further fields of the Hugging Face config, such as dropouts.
    """
    tokenizer = wordpiece_tokenizer(sentences) if family == "bert" else byte_bpe_tokenizer(sentences)
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": dimensions,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * dimensions,
        "pad_token_id": tokenizer.pad_token_id,
        **config,
    }
    if family == "bert":
        model = BertModel(BertConfig(max_position_embeddings=max_positions, **sizes), add_pooling_layer=False)
    elif family == "roberta":
        roberta_config = RobertaConfig(max_position_embeddings=max_positions + tokenizer.pad_token_id + 1, **sizes)
        model = RobertaModel(roberta_config, add_pooling_layer=False)
    else:
        ids = {
            "cls_token_id": tokenizer.cls_token_id,
            "sep_token_id": tokenizer.sep_token_id,
            "bos_token_id": tokenizer.cls_token_id,
            "eos_token_id": tokenizer.sep_token_id,
        }
        model = ModernBertModel(ModernBertConfig(max_position_embeddings=max_positions, **sizes, **ids))
    return Encoder(model.eval(), tokenizer, name=f"tiny-{family}", similarity_scale=0.3)


def wordpiece_tokenizer(sentences: Sequence[str] = SENTENCES, *, vocabulary_size: int = 320) -> PreTrainedTokenizerFast:
    """An uncased WordPiece tokenizer like BERT's."""
    backend = Tokenizer(models.WordPiece(unk_token=WORDPIECE_SPECIALS["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = token_decoders.WordPiece()
    alphabet = {"initial_alphabet": [chr(code) for code in range(33, 127)]}
    return _trained(backend, trainers.WordPieceTrainer, sentences, WORDPIECE_SPECIALS, vocabulary_size, **alphabet)


def byte_bpe_tokenizer(sentences: Sequence[str] = SENTENCES, *, vocabulary_size: int = 420) -> PreTrainedTokenizerFast:
    """A cased byte-level BPE tokenizer like RoBERTa's, whose mask takes the space before it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = token_decoders.ByteLevel()
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    return _trained(backend, trainers.BpeTrainer, sentences, BYTE_BPE_SPECIALS, vocabulary_size, **alphabet)


def _trained(
    backend: Tokenizer,
    trainer: type,
    sentences: Sequence[str],
    specials: dict[str, str],
    vocabulary_size: int,
    **trainer_settings: object,
) -> PreTrainedTokenizerFast:
    mask = AddedToken(specials["mask"], lstrip=specials is BYTE_BPE_SPECIALS, special=True, normalized=False)
    others = [AddedToken(token, special=True, normalized=False) for role, token in specials.items() if role != "mask"]
    settings = {"vocab_size": vocabulary_size, "show_progress": False, "special_tokens": [*others, mask]}
    backend.train_from_iterator(sentences, trainer(**settings, **trainer_settings))
    cls, sep = specials["cls"], specials["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(cls, backend.token_to_id(cls)), (sep, backend.token_to_id(sep))],
    )
    named = {f"{role}_token": token for role, token in specials.items() if role != "mask"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token=mask, model_max_length=512, **named)
