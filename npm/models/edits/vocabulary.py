"""Tokens by their text, and the change of a checkpoint's tokenizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from npm.models.edits.checkpoint import Checkpoint
from npm.models.edits.settings import Scope
from npm.models.tokenizer import special_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


LATIN_PIECE, LATIN_WORD = r"(##)?[A-Za-z]+", r"\s?[A-Za-z]+"
"""Tokens of Latin letters: of WordPiece, and of tokenizers whose tokens carry the space before them."""
SPACE = "▁"
"""SentencePiece's mark of a space."""


def token_texts(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """The text of every token that is not special, by id: bytes decoded, a word's beginning with the space before it.

    Pieces of WordPiece keep their mark for the inside of a word.
    """
    backend = tokenizer.backend_tokenizer
    special = set(tokenizer.all_special_ids)
    by_id = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number not in special)
    if type(backend.decoder).__name__ == "ByteLevel":
        return {number: backend.decoder.decode([token]) for number, token in by_id}
    return {number: token.replace(SPACE, " ") for number, token in by_id}


def matching_ids(tokenizer: PreTrainedTokenizerFast, pattern: str = "") -> tuple[list[int], list[int]]:
    """Ids of the tokens whose full text matches, and of the others, special tokens in neither; both ascending.

    An empty pattern means Latin letters, as the kind of the tokenizer writes them.
    """
    texts = token_texts(tokenizer)
    is_wordpiece = type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"
    matches = re.compile(pattern or (LATIN_PIECE if is_wordpiece else LATIN_WORD)).fullmatch
    chosen = [number for number, text in texts.items() if matches(text)]
    return chosen, sorted(texts.keys() - set(chosen))


def take_tokenizer(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerFast, size: int) -> None:
    """Give the checkpoint another tokenizer of ids below `size`. Raises EncoderError without mask or padding.

    RoBERTa's positions, which are counted from pad id + 1, begin after the new padding token.
    """
    config = checkpoint.config
    special_id(tokenizer, "mask_token")
    pad_id, old_pad_id = special_id(tokenizer, "pad_token"), config.pad_token_id
    if config.model_type in ("roberta", "xlm-roberta") and pad_id != old_pad_id:
        (name,) = checkpoint.names(Scope.position_embeddings)
        table = checkpoint.tensors[name]  # f32 [positions, d]
        unused = table[old_pad_id].expand(pad_id + 1, -1)  # f32 [pad_id + 1, d], of padding and unused ids
        checkpoint.tensors[name] = torch.cat([unused, table[old_pad_id + 1 :]])  # f32 [positions + pad - old, d]
        config.max_position_embeddings = len(checkpoint.tensors[name])
    config.vocab_size = size
    for key, role in {"pad": "pad", "cls": "cls", "sep": "sep", "bos": "cls", "eos": "sep"}.items():
        if getattr(config, f"{key}_token_id", None) is not None:
            setattr(config, f"{key}_token_id", getattr(tokenizer, f"{role}_token_id"))
    checkpoint.tokenizer = tokenizer
