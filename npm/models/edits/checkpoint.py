"""A checkpoint as named tensors, a config and a tokenizer: read, made anew, written."""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npm.core.files import json_bytes, replace_file
from npm.models.edits.scopes import Family, family_of, names_in
from npm.models.edits.settings import Scope
from npm.models.encoder import Encoder
from npm.models.loading import load_config, load_language_model, new_language_model
from npm.models.names import locate_encoder
from npm.models.settings import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


RECORD = "edit.json"
"""What was edited, in the folder of the edited encoder."""


@dataclass(slots=True)
class Checkpoint:
    """An encoder, with or without a head for masked tokens, to be edited in place; no tensor is changed itself."""

    name: str
    fingerprint: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast
    tensors: dict[str, torch.Tensor]
    """All f32, by their names in the module tree without the prefix of the encoder; tied ones once."""
    has_head: bool
    family: Family

    @classmethod
    def read(cls, name: str) -> Checkpoint:
        """The checkpoint that `Encoder.load` finds. Raises EncoderError as that does, and for another family."""
        place = locate_encoder(name)
        family = family_of(load_config(place).model_type, where=place)
        encoder = Encoder.load(name, device="cpu", dtype=Precision.float32)
        model, missing = load_language_model(place, encoder.model.config)
        has_head = all(key.startswith(f"{family.prefix}.") for key in missing)
        return cls(
            name=encoder.name,
            fingerprint=encoder.fingerprint,
            config=copy.deepcopy(encoder.model.config),
            tokenizer=encoder.tokenizer,
            tensors=tensors_of(model, family, with_head=has_head),
            has_head=has_head,
            family=family,
        )

    def names(self, scope: Scope, layers: Collection[int] = ()) -> list[str]:
        """The names of the tensors in a scope."""
        return names_in(self.family, scope, layers, list(self.tensors))

    def language_model(self) -> PreTrainedModel:
        """A model with these tensors, those of a head that it has not being random."""
        with torch.random.fork_rng(devices=[]):
            model = new_language_model(copy.deepcopy(self.config))
        own, known = f"{self.family.prefix}.", model.state_dict().keys()
        state = {own + name if own + name in known else name: tensor for name, tensor in self.tensors.items()}
        report = model.load_state_dict(state, strict=False)
        tied = model.all_tied_weights_keys
        lacking = [name for name in report.missing_keys if name not in tied and (self.has_head or name.startswith(own))]
        assert not report.unexpected_keys and not lacking, f"{report.unexpected_keys}, {lacking}"
        return model.eval()

    def encoder(self, name: str) -> Encoder:
        """The encoder, with its head if there is one. Raises EncoderError for a tokenizer without mask or padding."""
        model = self.language_model()
        base: Any = model.base_model
        encoder = Encoder(base, self.tokenizer, name=name)
        encoder.language_model = model if self.has_head else None
        return encoder


def tensors_of(model: PreTrainedModel, family: Family, *, with_head: bool) -> dict[str, torch.Tensor]:
    """The tensors of a masked language model, each once, or those of its encoder alone; not shared with the model."""
    own = f"{family.prefix}."
    tied = model.all_tied_weights_keys
    return {
        name.removeprefix(own): tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if name not in tied and (with_head or name.startswith(own))
    }


def generator_of(seed: int, position: int, name: str) -> torch.Generator:
    """A generator for one draw: it depends on the seed, the edit's place in the list, and what is drawn."""
    digest = hashlib.sha256(f"{seed}/{position}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def new_tensors(checkpoint: Checkpoint, *, seed: int, position: int) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """The tensors of a newly made model of the checkpoint's config, and the rows of padding of those that have one."""
    family = checkpoint.family
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator_of(seed, position, "new model").initial_seed())
        model = new_language_model(copy.deepcopy(checkpoint.config))
    padding = {
        f"{name}.weight".removeprefix(f"{family.prefix}."): module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    return tensors_of(model, family, with_head=checkpoint.has_head), padding


def write_checkpoint(encoder: Encoder, out: Path, record: Mapping[str, Any]) -> None:
    """Write an edited encoder and its record as the folder `out`, whole or not at all."""
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of an edit that was killed
    encoder.save(temporary)
    replace_file(temporary / RECORD, json_bytes(record))
    if out.is_dir():
        out.rmdir()
    temporary.rename(out)
