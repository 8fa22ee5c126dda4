"""`npmlm edit`: one edit after the other on the tensors of a checkpoint, and what each tensor became."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npm.core.errors import EncoderError, SettingError
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.edits.checkpoint import Checkpoint, check_new_folder, new_tensors, write_checkpoint
from npm.models.edits.schemes import generator_of, redrawn
from npm.models.edits.scopes import check_layers
from npm.models.edits.settings import EditName, EditStep, LayerChoice
from npm.models.edits.vocabulary import new_vocabulary, permute_rows, swap_embeddings
from npm.models.encoder import Encoder

LAYER_LISTS = ("layer_types",)
"""Keys of configs that have an entry a layer."""


@dataclass(frozen=True, slots=True)
class EditedEncoder:
    """What `edit_encoder` made."""

    encoder: Encoder
    record: dict[str, Any]
    """What edit.json holds."""

    @property
    def changed_count(self) -> int:
        """Tensors that are not as they were."""
        return sum(entry["changed"] for entry in self.record["tensors"].values())


def edit_encoder(name: str, steps: Sequence[EditStep], *, seed: int = 0) -> EditedEncoder:
    """The encoder that `Encoder.load` finds under `name`, edited in order; its own folder stays as it is.

    The same encoder, edits and seed give the same tensors. Raises EncoderError for an encoder of another family, a
    donor of another size or a tokenizer without mask; SettingError for a layer that is not there and for an edit that
    would change nothing.
    """
    return edit_checkpoint(Checkpoint.read(name), steps, seed=seed)


def edit_checkpoint(checkpoint: Checkpoint, steps: Sequence[EditStep], *, seed: int = 0) -> EditedEncoder:
    """Edit a checkpoint that was read, in place. Raises what `edit_encoder` does."""
    before, source = dict(checkpoint.tensors), _facts(checkpoint)
    done = []
    for position, step in enumerate(steps):
        done.append(_edit(checkpoint, step, seed=seed, position=position))
    encoder = checkpoint.encoder(checkpoint.name)
    record = {"source": source, "edits": done, "seed": seed, "tensors": _compared(before, checkpoint.tensors)}
    return EditedEncoder(encoder, record | {"fingerprint": encoder.fingerprint})


def write_edited(name: str, out: Path, steps: Sequence[EditStep], *, seed: int = 0) -> EditedEncoder:
    """Edit an encoder and write the folder `out`, which must not be there. Raises what `edit_encoder` does."""
    check_new_folder(out)
    edited = edit_encoder(name, steps, seed=seed)
    write_checkpoint(edited.encoder, out, edited.record)
    return edited


def _facts(checkpoint: Checkpoint) -> dict[str, str]:
    return {
        "name": checkpoint.name,
        "fingerprint": checkpoint.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(checkpoint.tokenizer),
    }


def _edit(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> dict[str, Any]:
    """Apply one edit; returns what is recorded of it. Raises SettingError if it changed nothing."""
    tensors, tokenizer = dict(checkpoint.tensors), checkpoint.tokenizer
    where = f"edits[{position}]"
    facts: dict[str, Any] = {}
    match step.name:
        case EditName.reverse_layers:
            _put_layers(checkpoint, range(checkpoint.config.num_hidden_layers)[::-1], step, where=where)
        case EditName.keep_layers:
            _put_layers(checkpoint, _kept(checkpoint, step, where=where), step, where=where)
        case EditName.reinitialise:
            _reinitialise(checkpoint, step, seed=seed, position=position)
        case EditName.permute_rows:
            permute_rows(checkpoint, step, seed=seed, position=position)
        case EditName.swap_embeddings:
            facts = swap_embeddings(checkpoint, step)
        case EditName.new_vocabulary:
            facts = new_vocabulary(checkpoint, step, seed=seed, position=position)
        case EditName.average:
            facts = _average(checkpoint, step)
        case EditName.untie:
            _untie(checkpoint)
    is_same = tensors.keys() == checkpoint.tensors.keys() and all(
        torch.equal(tensor, checkpoint.tensors[name]) for name, tensor in tensors.items()
    )
    if is_same and tokenizer is checkpoint.tokenizer:
        in_scope = f" with {len(checkpoint.names(step.scope, step.layers))} tensors in scope" if step.scope else ""
        raise SettingError(
            f"{where} changes nothing, got {step.record()}{in_scope}; leave it out, or choose another scope or layers"
        )
    return step.record() | facts


def _kept(checkpoint: Checkpoint, step: EditStep, *, where: str) -> Sequence[int]:
    count = checkpoint.config.num_hidden_layers
    if step.keep is LayerChoice.first_half:
        return range(max(1, count // 2))
    if step.keep is LayerChoice.every_second:
        return range(0, count, 2)
    check_layers(step.layers, count, where=f"{where}.layers")
    return step.layers


def _put_layers(checkpoint: Checkpoint, order: Sequence[int], step: EditStep, *, where: str) -> None:
    """Let layer i be the one that was `order[i]`; config and number of layers follow."""
    family, config = checkpoint.family, checkpoint.config
    if family.layers_differ and order[0] != 0 and not step.force:
        raise SettingError(
            f"{where}: layer 0 must stay first, since it has no norm before its attention, got layer {order[0]}; "
            "or give force: true"
        )
    places = {old: new for new, old in enumerate(order)}
    moved: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        layer = family.layer_of(name)
        if layer is None:
            moved[name] = tensor
        elif layer in places:
            beginning = f"{family.layers}{layer}."
            moved[f"{family.layers}{places[layer]}.{name.removeprefix(beginning)}"] = tensor
    config.num_hidden_layers = len(order)
    for key in LAYER_LISTS:
        if getattr(config, key, None):
            setattr(config, key, [getattr(config, key)[layer] for layer in order])
    new, _ = new_tensors(checkpoint, seed=0, position=0)  # what the places have and need
    checkpoint.tensors = {name: moved.get(name, tensor) for name, tensor in new.items()}


def _reinitialise(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> None:
    assert step.scope is not None, "checked with the settings"
    check_layers(step.layers, checkpoint.config.num_hidden_layers, where=f"edits[{position}].layers")
    new, padding_rows = new_tensors(checkpoint, seed=seed, position=position)
    for name in checkpoint.names(step.scope, step.layers):
        checkpoint.tensors[name] = redrawn(
            checkpoint.tensors[name],
            step,
            generator_of(seed, position, name),
            new=new[name],
            is_norm=name.lower().endswith("norm.weight"),
            padding_row=padding_rows.get(name),
        )


def _average(checkpoint: Checkpoint, step: EditStep) -> dict[str, Any]:
    """Let each tensor be (1 − fraction) · own + fraction · donor's, in float32; returns which donor it was."""
    donor = Checkpoint.read(step.donor)
    own, theirs = (
        (tokenizer_fingerprint(each.tokenizer), {name: tensor.shape for name, tensor in each.tensors.items()})
        for each in (checkpoint, donor)
    )
    if own != theirs:
        raise EncoderError(
            f"{step.donor} must have the tokenizer and the sizes of {checkpoint.name}, to be averaged with it; choose"
            " another donor"
        )
    for name, tensor in checkpoint.tensors.items():
        checkpoint.tensors[name] = (1 - step.fraction) * tensor + step.fraction * donor.tensors[name]
    return {"donor": donor.name, "donor_fingerprint": donor.fingerprint}


def _untie(checkpoint: Checkpoint) -> None:
    """Copy the word vectors, and what else is tied, under the names of the head."""
    family, tensors = checkpoint.family, checkpoint.tensors
    if not checkpoint.has_head:
        raise EncoderError(f"{checkpoint.name} has no head for masked tokens to untie; choose a masked language model")
    if family.output not in tensors:
        checkpoint.config.tie_word_embeddings = False
        copies = {family.output: family.words} | {name: family.bias[0] for name in family.bias[1:]}
        tensors |= {name: tensors[source].clone() for name, source in copies.items()}


def _compared(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """By name of a tensor before or after: whether it changed, and its Frobenius norm, null where it was not there."""

    def norm(tensor: torch.Tensor | None) -> float | None:
        return None if tensor is None else float(tensor.double().norm())

    result = {}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        changed = old is None or new is None or not torch.equal(old, new)
        result[name] = {"changed": changed, "norm_before": norm(old), "norm_after": norm(new)}
    return result
