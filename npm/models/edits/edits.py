"""`npmlm edit`: one edit after the other on the tensors of a checkpoint, and what each tensor became.

Tensors are redrawn by a scheme. With R of standard normal numbers, and sums over all elements of a matrix or an
embedding W but its row of padding:

    match_norm        W' = R · ‖W‖ / ‖R‖                                  ‖·‖ the Frobenius norm
    match_std         W' = (R − mean R) · std W / std R  [+ mean W]
    permute_elements  W' = the elements of W in random order

In the first two, biases become 0 and the weights of norms 1; the third permutes those too. `default` takes the tensor
of a newly made model. In the others, rows of padding stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npm.core.errors import ArtifactError, EncoderError, SettingError
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.edits.checkpoint import Checkpoint, generator_of, new_tensors, write_checkpoint
from npm.models.edits.scopes import check_layers
from npm.models.edits.settings import EditName, EditStep, LayerChoice, Scheme
from npm.models.edits.vocabulary import new_vocabulary, permute_rows, swap_embeddings
from npm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class EditedEncoder:
    """Result of an edit."""

    encoder: Encoder
    record: dict[str, Any]
    """What edit.json holds."""

    @property
    def changed_count(self) -> int:
        """Tensors that are not as they were."""
        return sum(entry["changed"] for entry in self.record["tensors"].values())


def write_edited(name: str, out: Path, steps: Sequence[EditStep], *, seed: int = 0) -> EditedEncoder:
    """Write the encoder that `Encoder.load` finds under `name`, edited in order, as the new or empty folder `out`.

    The same encoder, edits and seed give the same tensors. Raises ArtifactError if `out` holds something, EncoderError
    for an encoder of another family, a donor of another size or a tokenizer without mask; SettingError for a layer
    that does not exist and for an edit that would change nothing.
    """
    is_folder = out.is_dir() and not out.is_symlink()
    if out.resolve() == Path.cwd() or (any(out.iterdir()) if is_folder else out.is_symlink() or out.exists()):
        raise ArtifactError(f"out must be a new or empty folder, and not the folder you are in, got {out}")
    edited = edit_checkpoint(Checkpoint.read(name), steps, seed=seed)
    write_checkpoint(edited.encoder, out, edited.record)
    return edited


def edit_checkpoint(checkpoint: Checkpoint, steps: Sequence[EditStep], *, seed: int = 0) -> EditedEncoder:
    """Edit a checkpoint that was read, in place. Raises what `write_edited` does."""
    before = dict(checkpoint.tensors)
    source = {
        "name": checkpoint.name,
        "fingerprint": checkpoint.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(checkpoint.tokenizer),
    }
    done = [_edit(checkpoint, step, seed=seed, position=position) for position, step in enumerate(steps)]
    encoder = checkpoint.encoder(checkpoint.name)
    record = {"source": source, "edits": done, "seed": seed, "tensors": _compared(before, checkpoint.tensors)}
    return EditedEncoder(encoder, record | {"fingerprint": encoder.fingerprint})


def _edit(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> dict[str, Any]:
    """Apply one edit; returns what is recorded of it. Raises SettingError if it changed nothing."""
    tensors, tokenizer = dict(checkpoint.tensors), checkpoint.tokenizer
    where = f"edits[{position}]"
    facts: dict[str, Any] = {}
    match step.name:
        case EditName.reverse_layers:
            _put_layers(checkpoint, range(checkpoint.config.num_hidden_layers)[::-1], step, where=where)
        case EditName.keep_layers:
            count = checkpoint.config.num_hidden_layers
            check_layers(step.layers, count, where=f"{where}.layers")
            rules = {LayerChoice.first_half: range(max(1, count // 2)), LayerChoice.every_second: range(0, count, 2)}
            _put_layers(checkpoint, rules.get(step.keep, step.layers), step, where=where)
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
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in order]
    new, _ = new_tensors(checkpoint, seed=0, position=0)  # what the places have and need
    checkpoint.tensors = {name: moved.get(name, tensor) for name, tensor in new.items()}


def _reinitialise(checkpoint: Checkpoint, step: EditStep, *, seed: int, position: int) -> None:
    assert step.scope is not None, "checked with the settings"
    check_layers(step.layers, checkpoint.config.num_hidden_layers, where=f"edits[{position}].layers")
    new, padding_rows = new_tensors(checkpoint, seed=seed, position=position)
    for name in checkpoint.names(step.scope, step.layers):
        old = checkpoint.tensors[name]  # f32 [...]
        if step.scheme is Scheme.default:
            checkpoint.tensors[name] = new[name].clone()
        elif old.ndim > 1 or (step.scheme is Scheme.permute_elements and not step.matrices_only):
            checkpoint.tensors[name] = _redrawn(old, step, generator_of(seed, position, name), padding_rows.get(name))
        elif step.scheme is not Scheme.permute_elements:
            checkpoint.tensors[name] = torch.full_like(old, float(name.lower().endswith("norm.weight")))


def _redrawn(old: torch.Tensor, step: EditStep, generator: torch.Generator, padding_row: int | None) -> torch.Tensor:
    """A tensor f32 [...] in the place of `old`, by another scheme than `default`."""
    drawn = torch.ones(len(old), dtype=torch.bool)  # bool [rows]
    if padding_row is not None and padding_row < len(old):
        drawn[padding_row] = False
    values = old[drawn].flatten().double()  # f64 [n], all elements that are drawn
    if step.scheme is Scheme.permute_elements:
        found = values[torch.randperm(len(values), generator=generator)]  # f64 [n]
    else:
        found = torch.randn(len(values), generator=generator, dtype=torch.float64)  # f64 [n]
        if step.scheme is Scheme.match_norm:
            found = found * (values.norm() / found.norm())
        else:
            found = (found - found.mean()) * (values.std(correction=0) / found.std(correction=0))
            found = found + values.mean() if step.keep_mean else found
    result = old.clone()  # f32 [...]
    result[drawn] = found.float().reshape(old[drawn].shape)
    return result


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
