"""Tokens by their text, and edits of word embeddings: rows that change places, a donor's rows, another tokenizer.

Shapes: V tokens, d dimensions.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import torch

from npm.core.errors import EncoderError
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.edits.checkpoint import Checkpoint, generator_of, new_tensors
from npm.models.edits.settings import EditStep, Scope
from npm.models.names import encoder_label, locate_encoder
from npm.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


LATIN_PIECE, LATIN_WORD = r"(##)?[A-Za-z]+", r"\s?[A-Za-z]+"
"""Tokens of Latin letters: of WordPiece, and of tokenizers whose tokens carry the space before them."""
SPACE = "▁"
"""What SentencePiece writes for a space."""


def token_texts(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """The text of every token that is not special, by id: bytes decoded, a word's beginning with the space before it.

    Pieces of WordPiece keep their mark for the inside of a word.
    """
    backend = tokenizer.backend_tokenizer
    definition: dict[str, Any] = json.loads(backend.to_str())
    special = set(tokenizer.all_special_ids)
    by_id = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number not in special)
    if (definition["decoder"] or {}).get("type") == "ByteLevel":
        return {number: backend.decoder.decode([token]) for number, token in by_id}
    return {number: token.replace(SPACE, " ") for number, token in by_id}


def matching_ids(tokenizer: PreTrainedTokenizerFast, pattern: str = "") -> tuple[list[int], list[int]]:
    """Ids of the tokens whose whole text matches, and of the other ones, special tokens in neither; both ascending.

    An empty pattern stands for Latin letters, as the kind of the tokenizer writes them.
    """
    texts = token_texts(tokenizer)
    is_wordpiece = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"] == "WordPiece"
    matches = re.compile(pattern or (LATIN_PIECE if is_wordpiece else LATIN_WORD)).fullmatch
    chosen = [number for number, text in texts.items() if matches(text)]
    return chosen, sorted(texts.keys() - set(chosen))


def permute_rows(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> None:
    """Let the word vectors of the tokens that match change places, and with `others` those of the others too."""
    words = checkpoint.tensors[checkpoint.family.words]  # f32 [V, d]
    result = words.clone()
    matching, others = matching_ids(checkpoint.tokenizer, step.filter)
    for name, ids in (("matching", matching), ("others", others if step.others else [])):
        rows = torch.tensor(ids, dtype=torch.int64)  # i64 [n]
        order = torch.randperm(len(rows), generator=generator_of(seed, position, name))  # i64 [n]
        result[rows] = words[rows[order]]
    checkpoint.tensors[checkpoint.family.words] = result


def swap_embeddings(checkpoint: Checkpoint, step: EditStep) -> dict[str, Any]:
    """Take tokenizer, word vectors and output bias of a donor; returns which donor it was.

    A donor without a head for masked tokens gives an output bias of 0. Raises EncoderError for a donor whose vectors
    have another length.
    """
    donor = Checkpoint.read(step.donor)
    words = donor.tensors[donor.family.words]  # f32 [V', d']
    if donor.config.hidden_size != checkpoint.config.hidden_size:
        raise EncoderError(
            f"{step.donor}: vectors must have {checkpoint.config.hidden_size} dimensions, as the encoder's, "
            f"got {donor.config.hidden_size}; choose another donor"
        )
    output = donor.tensors.get(donor.family.output, words)  # f32 [V', d]
    bias = donor.tensors.get(donor.family.bias[-1], donor.tensors.get(donor.family.bias[0]))  # f32 [V'] or none
    _take_tokenizer(checkpoint, donor.tokenizer, len(words))
    _take_rows(checkpoint, words, output, torch.zeros(len(words)) if bias is None else bias)
    return {"donor": donor.name, "donor_fingerprint": donor.fingerprint}


def new_vocabulary(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> dict[str, Any]:
    """Take another tokenizer, word vectors drawn for it and an output bias of 0; returns which tokenizer it was."""
    tokenizer = load_tokenizer(locate_encoder(step.tokenizer))
    _take_tokenizer(checkpoint, tokenizer, 1 + max(tokenizer.get_vocab().values()))
    new, _ = new_tensors(checkpoint, seed=seed, position=position)
    words = new[checkpoint.family.words]  # f32 [V', d]
    _take_rows(checkpoint, words, new.get(checkpoint.family.output, words), torch.zeros(len(words)))
    return {"tokenizer": encoder_label(step.tokenizer), "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer)}


def _take_rows(checkpoint: Checkpoint, words: torch.Tensor, output: torch.Tensor, bias: torch.Tensor) -> None:
    """Put word vectors f32 [V, d], the output matrix f32 [V, d] and bias f32 [V] where the checkpoint has such."""
    family, tensors = checkpoint.family, checkpoint.tensors
    rows = {family.words: words, family.output: output} | dict.fromkeys(family.bias, bias)
    tensors |= {name: value.clone() for name, value in rows.items() if name in tensors}


def _take_tokenizer(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerFast, size: int) -> None:
    """Give the checkpoint another tokenizer of ids below `size`. Raises EncoderError without mask or padding."""
    lacking = [role for role in ("mask", "pad") if getattr(tokenizer, f"{role}_token_id") is None]
    if lacking:
        raise EncoderError(
            f"{tokenizer.name_or_path}: the tokenizer has no {lacking[0]} token; choose that of a masked language model"
        )
    config = checkpoint.config
    config.vocab_size = size
    _shift_positions(checkpoint, tokenizer.pad_token_id)
    roles = {"pad": "pad", "cls": "cls", "sep": "sep", "bos": "cls", "eos": "sep"}
    for key, role in roles.items():
        if getattr(config, f"{key}_token_id", None) is not None:
            setattr(config, f"{key}_token_id", getattr(tokenizer, f"{role}_token_id"))
    checkpoint.tokenizer = tokenizer


def _shift_positions(checkpoint: Checkpoint, pad_id: int) -> None:
    """Let RoBERTa's positions, which are counted from pad id + 1, begin where the new padding token lets them begin."""
    config, old = checkpoint.config, checkpoint.config.pad_token_id
    if config.model_type not in ("roberta", "xlm-roberta") or pad_id == old:
        return
    (name,) = checkpoint.names(Scope.position_embeddings)
    table = checkpoint.tensors[name]  # f32 [positions, d]
    unused = table[old].expand(pad_id + 1, -1)  # f32 [pad_id + 1, d], of padding, and of what is never counted
    checkpoint.tensors[name] = torch.cat([unused, table[old + 1 :]])  # f32 [positions + pad_id - old, d]
    config.max_position_embeddings = len(checkpoint.tensors[name])
