"""A checkpoint as named tensors, a config and a tokenizer: read, looked up by scope, drawn again, written.

Tensors have the names of the module tree without the prefix that a masked language model puts before its encoder
(`bert.`, `roberta.`, `model.`), so they are the same with and without a head.
"""

from __future__ import annotations

import copy
import hashlib
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npm.core.errors import EncoderError
from npm.core.files import json_bytes, replace_file, sync_all
from npm.models.encoder import Encoder
from npm.models.loading import language_model, load_config
from npm.models.names import locate_encoder
from npm.models.settings import Precision
from npm.models.tokenizer import special_id
from studies.edits.settings import Scope

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

RECORD = "edit.json"
"""Record of the edit in the folder of the edited encoder."""
HEADS = {"bert": "cls.predictions.", "roberta": "lm_head.", "xlm-roberta": "lm_head.", "modernbert": ""}
"""Prefixes of the output matrix and its bias by `model_type`, for all families that can be edited."""
LAYER = r"(?:encoder\.layer|layers)\.(\d+)\."
SCOPES = {
    "word_embeddings": r"embeddings\.(word|tok)_embeddings\..+",
    "position_embeddings": r"embeddings\.position_embeddings\..+",
    "token_type_embeddings": r"embeddings\.token_type_embeddings\..+",
    "embedding_norm": r"embeddings\.(LayerNorm|norm)\..+",
    "layers": LAYER + ".+",
    "attention": LAYER + r"(attention\.(self\.\w+|output\.dense)|attn\.\w+)\.\w+",
    "feed_forward": LAYER + r"((intermediate|output)\.dense|mlp\.\w+)\.\w+",
    "norms": rf"(embeddings|{LAYER}[\w.]+)\.(LayerNorm|norm)\.\w+|{LAYER}\w+_norm\.\w+|final_norm\.\w+",
    "head": r"(?!.*decoder\.weight)(cls|lm_head|head|decoder)\..+",  # that matrix counts as word embeddings
    "all": ".+",
}
"""Regular expressions of full names, of all families."""


LATIN_PIECE, LATIN_WORD = r"(##)?[A-Za-z]+", r"\s?[A-Za-z]+"
"""Tokens of Latin letters: of WordPiece, and of tokenizers whose tokens carry the space before them."""
SPACE = "▁"
"""SentencePiece's mark of a space."""


def layer_of(name: str) -> int | None:
    """Index of the layer that a tensor belongs to."""
    found = re.match(LAYER, name)
    return int(found[1]) if found else None


@dataclass(slots=True)
class Checkpoint:
    """An encoder, with or without a head for masked tokens, edited in place by replacing tensors."""

    name: str
    fingerprint: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast
    tensors: dict[str, torch.Tensor]
    """All f32; tied ones once."""
    has_head: bool

    @classmethod
    def read(cls, name: str) -> Checkpoint:
        """The checkpoint that `Encoder.load` finds. Raises EncoderError as that does, and for another family."""
        place = locate_encoder(name)
        kind = load_config(place).model_type
        if kind not in HEADS:
            raise EncoderError(f"{place} has model type {kind}, which is not edited: choose one of {', '.join(HEADS)}")
        encoder = Encoder.load(name, device="cpu", dtype=Precision.float32)
        config = copy.deepcopy(encoder.model.config)
        model, missing = language_model(encoder.model.config, place)
        has_head = all(key.startswith(f"{model.base_model_prefix}.") for key in missing)
        tensors = tensors_of(model, with_head=has_head)
        return cls(encoder.name, encoder.fingerprint, config, encoder.tokenizer, tensors, has_head)

    @property
    def words(self) -> str:
        """Name of the word embeddings."""
        return self.names("word_embeddings")[0]

    @property
    def output(self) -> str:
        """Name of the head's output matrix, which is a tensor only where it is not the word embeddings."""
        return f"{HEADS[self.config.model_type]}decoder.weight"

    @property
    def biases(self) -> list[str]:
        """Names of the output bias; BERT and RoBERTa have it twice where the output matrix is untied."""
        prefix = HEADS[self.config.model_type]
        return [name for name in (f"{prefix}bias", f"{prefix}decoder.bias") if name in self.tensors]

    def names(self, scope: Scope, layers: Collection[int] = ()) -> list[str]:
        """Names of the tensors in a scope; empty `layers` mean all."""
        matches = re.compile(SCOPES[scope]).fullmatch
        return [name for name in self.tensors if matches(name) and (not layers or layer_of(name) in layers)]

    def encoder(self) -> Encoder:
        """The encoder, with its head if there is one. Raises EncoderError for a tokenizer without mask or padding."""
        with torch.random.fork_rng(devices=[]):
            model, _ = language_model(copy.deepcopy(self.config))
        own, known = f"{model.base_model_prefix}.", model.state_dict().keys()
        state = {own + name if own + name in known else name: tensor for name, tensor in self.tensors.items()}
        surplus = model.load_state_dict(state, strict=False).unexpected_keys  # a missing head stays random
        assert not surplus, surplus
        encoder = Encoder(model.eval().base_model, self.tokenizer, name=self.name)
        encoder.language_model = model if self.has_head else None
        return encoder


def tensors_of(model: PreTrainedModel, *, with_head: bool) -> dict[str, torch.Tensor]:
    """Copies of the tensors of a masked language model, each once, or of those of its encoder alone."""
    own = f"{model.base_model_prefix}."
    return {
        name.removeprefix(own): tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if name not in model.all_tied_weights_keys and (with_head or name.startswith(own))
    }


def generator_of(seed: int, position: int, name: str) -> torch.Generator:
    """A generator for one draw: it depends on the seed, the edit's index in the list, and the drawn tensor."""
    digest = hashlib.sha256(f"{seed}/{position}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def new_tensors(checkpoint: Checkpoint, generator: torch.Generator) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Tensors of a new model of the checkpoint's config, and the rows of padding of those that have one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        model, _ = language_model(copy.deepcopy(checkpoint.config))
    padding = {
        f"{name}.weight".removeprefix(f"{model.base_model_prefix}."): module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    return tensors_of(model, with_head=checkpoint.has_head), padding


def write_checkpoint(encoder: Encoder, out: Path, record: Mapping[str, Any]) -> None:
    """Write an edited encoder and its record as the folder `out`, completely or not at all."""
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of an edit that was killed
    encoder.save(temporary)
    replace_file(temporary / RECORD, json_bytes(record))
    sync_all(temporary)
    if out.is_dir():
        out.rmdir()
    temporary.rename(out)


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
        (name,) = checkpoint.names("position_embeddings")
        table = checkpoint.tensors[name]  # f32 [positions, d]
        unused = table[old_pad_id].expand(pad_id + 1, -1)  # f32 [pad_id + 1, d], of padding and unused ids
        checkpoint.tensors[name] = torch.cat([unused, table[old_pad_id + 1 :]])  # f32 [positions + pad - old, d]
        config.max_position_embeddings = len(checkpoint.tensors[name])
    config.vocab_size = size
    for key, role in {"pad": "pad", "cls": "cls", "sep": "sep", "bos": "cls", "eos": "sep"}.items():
        if getattr(config, f"{key}_token_id", None) is not None:
            setattr(config, f"{key}_token_id", getattr(tokenizer, f"{role}_token_id"))
    checkpoint.tokenizer = tokenizer
