"""`npmlm edit`: one edit after the other on the tensors of a checkpoint, and the change of each tensor.

Tensors are redrawn by a scheme. With R of standard normal numbers, and sums over all elements of a matrix or an
embedding W except its row of padding:

    match_norm        W' = R · ‖W‖ / ‖R‖                                  ‖·‖ the Frobenius norm
    match_std         W' = (R − mean R) · std W / std R  [+ mean W]
    permute_elements  W' = the elements of W in random order

In the first two, biases become 0 and the weights of norms 1; the third permutes those too. `default` takes the tensor
of a newly made model. In the others, rows of padding stay unchanged.

Shapes: V tokens, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npm.core.errors import ArtifactError, EncoderError, SettingError
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.encoder import Encoder
from npm.models.names import encoder_label, locate_encoder
from npm.models.tokenizer import load_tokenizer
from studies.edits.checkpoint import (
    Checkpoint,
    generator_of,
    layer_of,
    matching_ids,
    new_tensors,
    take_tokenizer,
    write_checkpoint,
)
from studies.edits.settings import EditName, EditStep

Draw = Callable[[str], torch.Generator]
"""Generator for the tensor of a name."""


def write_edited(name: str, out: Path, steps: Sequence[EditStep], *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Write the encoder that `Encoder.load` finds under `name`, edited in order, as the new or empty folder `out`.

    The same encoder, edits and seed give the same tensors; returns the change of each. Raises ArtifactError if `out`
    has files, EncoderError for an encoder of another family, a donor of another size or a tokenizer without mask,
    SettingError for a layer that does not exist and for an edit that would change nothing.
    """
    is_folder = out.is_dir() and not out.is_symlink()
    if out.resolve() == Path.cwd() or (any(out.iterdir()) if is_folder else out.is_symlink() or out.exists()):
        raise ArtifactError(f"out must be a new or empty folder, and not the folder you are in, got {out}")
    encoder, record = edit_checkpoint(Checkpoint.read(name), steps, seed=seed)
    write_checkpoint(encoder, out, record)
    tensors: dict[str, dict[str, Any]] = record["tensors"]
    return tensors


def edit_checkpoint(
    checkpoint: Checkpoint, steps: Sequence[EditStep], *, seed: int = 0
) -> tuple[Encoder, dict[str, Any]]:
    """Edit a checkpoint in place; returns its encoder and the content of edit.json. Raises what `write_edited` does."""
    original = dict(checkpoint.tensors)
    source = {
        "name": checkpoint.name,
        "fingerprint": checkpoint.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(checkpoint.tokenizer),
    }
    done = []
    for position, step in enumerate(steps):
        count = checkpoint.config.num_hidden_layers
        if len(set(step.layers)) < len(step.layers) or not set(step.layers) <= set(range(count)):
            raise SettingError(
                f"edits[{position}].layers must be different numbers from 0 to {count - 1}, got {step.layers}"
            )
        tensors, tokenizer = dict(checkpoint.tensors), checkpoint.tokenizer
        facts = EDITS[step.name](checkpoint, step, partial(generator_of, seed, position))
        compared = _compared(tensors, checkpoint.tensors).values()
        if tokenizer is checkpoint.tokenizer and not any(entry["changed"] for entry in compared):
            raise SettingError(
                f"edits[{position}] changes nothing, got {step.record()}; omit it, or choose another scope or layers"
            )
        done.append(step.record() | (facts or {}))
    encoder = checkpoint.encoder()
    record = {"source": source, "edits": done, "seed": seed, "tensors": _compared(original, checkpoint.tensors)}
    return encoder, record | {"fingerprint": encoder.fingerprint}


def _put_layers(checkpoint: Checkpoint, step: EditStep, draw: Draw) -> None:
    """Let layer i be the one that was `order[i]`; config and number of layers follow."""
    config: Any = checkpoint.config
    layers = range(config.num_hidden_layers)
    rules = {"first_half": layers[: max(1, len(layers) // 2)], "every_second": layers[::2], "listed": step.layers}
    order: Sequence[int] = layers[::-1] if step.name == "reverse_layers" else rules[step.keep]
    if config.model_type == "modernbert" and order[0] != 0 and not step.force:
        raise SettingError(
            f"{step.name}: layer 0 must stay first, since it has no norm before its attention, got layer "
            f"{order[0]}; or set force: true"
        )
    moved: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        layer = layer_of(name)
        if layer is None:
            moved[name] = tensor
        elif layer in order:
            moved[name.replace(f".{layer}.", f".{order.index(layer)}.", 1)] = tensor
    config.num_hidden_layers = len(order)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in order]
    new, _ = new_tensors(checkpoint, draw("new model"))  # tensors that the positions have and need
    checkpoint.tensors = {name: moved.get(name, tensor) for name, tensor in new.items()}


def _reinitialize(checkpoint: Checkpoint, step: EditStep, draw: Draw) -> None:
    assert step.scope is not None, "checked with the settings"
    new, padding_rows = new_tensors(checkpoint, draw("new model"))
    for name in checkpoint.names(step.scope, step.layers):
        old = checkpoint.tensors[name]  # f32 [...]
        if step.scheme == "default":
            checkpoint.tensors[name] = new[name].clone()
        elif old.ndim > 1 or (step.scheme == "permute_elements" and not step.matrices_only):
            checkpoint.tensors[name] = _redrawn(old, step, draw(name), padding_rows.get(name))
        elif step.scheme != "permute_elements":
            checkpoint.tensors[name] = torch.full_like(old, float(name.lower().endswith("norm.weight")))


def _redrawn(old: torch.Tensor, step: EditStep, generator: torch.Generator, padding_row: int | None) -> torch.Tensor:
    """A tensor f32 [...] in place of `old`, by another scheme than `default`."""
    drawn = torch.arange(len(old)) != (-1 if padding_row is None else padding_row)  # bool [rows]
    values = old[drawn].flatten().double()  # f64 [n], all elements that are drawn
    if step.scheme == "permute_elements":
        found = values[torch.randperm(len(values), generator=generator)]  # f64 [n]
    else:
        found = torch.randn(len(values), generator=generator, dtype=torch.float64)  # f64 [n]
        if step.scheme == "match_norm":
            found = found * (values.norm() / found.norm())
        else:
            found = (found - found.mean()) * (values.std(correction=0) / found.std(correction=0))
            found = found + values.mean() if step.keep_mean else found
    result = old.clone()  # f32 [...]
    result[drawn] = found.float().reshape(old[drawn].shape)
    return result


def _permute_rows(checkpoint: Checkpoint, step: EditStep, draw: Draw) -> None:
    """Permute the word vectors of the tokens that match, and with `others` those of the others too."""
    words = checkpoint.tensors[checkpoint.words]  # f32 [V, d]
    result = words.clone()
    matching, others = matching_ids(checkpoint.tokenizer, step.filter)
    for name, ids in (("matching", matching), ("others", others if step.others else [])):
        rows = torch.tensor(ids, dtype=torch.int64)  # i64 [n]
        result[rows] = words[rows[torch.randperm(len(rows), generator=draw(name))]]
    checkpoint.tensors[checkpoint.words] = result


def _swap_embeddings(checkpoint: Checkpoint, step: EditStep, _: Draw) -> dict[str, Any]:
    """Take tokenizer, word vectors and output bias of a donor; one without a head gives an output bias of 0."""
    donor = Checkpoint.read(step.donor)
    words = donor.tensors[donor.words]  # f32 [V', d']
    if donor.config.hidden_size != checkpoint.config.hidden_size:
        raise EncoderError(
            f"{step.donor}: vectors must have {checkpoint.config.hidden_size} dimensions, as the encoder's, "
            f"got {donor.config.hidden_size}; choose another donor"
        )
    bias = donor.tensors[donor.biases[-1]] if donor.biases else torch.zeros(len(words))  # f32 [V']
    take_tokenizer(checkpoint, donor.tokenizer, len(words))
    _take_rows(checkpoint, words, donor.tensors.get(donor.output, words), bias)
    return {"donor": donor.name, "donor_fingerprint": donor.fingerprint}


def _new_vocabulary(checkpoint: Checkpoint, step: EditStep, draw: Draw) -> dict[str, Any]:
    """Take another tokenizer, word vectors drawn for it and an output bias of 0."""
    tokenizer = load_tokenizer(locate_encoder(step.tokenizer))
    take_tokenizer(checkpoint, tokenizer, 1 + max(tokenizer.get_vocab().values()))
    new, _ = new_tensors(checkpoint, draw("new model"))
    words = new[checkpoint.words]  # f32 [V', d]
    _take_rows(checkpoint, words, new.get(checkpoint.output, words), torch.zeros(len(words)))
    return {"tokenizer": encoder_label(step.tokenizer), "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer)}


def _take_rows(checkpoint: Checkpoint, words: torch.Tensor, output: torch.Tensor, bias: torch.Tensor) -> None:
    """Put word vectors f32 [V, d], the output matrix f32 [V, d] and bias f32 [V] where the checkpoint has such."""
    rows = {checkpoint.words: words, checkpoint.output: output} | dict.fromkeys(checkpoint.biases, bias)
    checkpoint.tensors |= {name: rows[name].clone() for name in checkpoint.tensors.keys() & rows.keys()}


def _average(checkpoint: Checkpoint, step: EditStep, _: Draw) -> dict[str, Any]:
    """Let each tensor be (1 − fraction) · own + fraction · donor's, in float32."""
    donor = Checkpoint.read(step.donor)
    own, other = (
        (tokenizer_fingerprint(each.tokenizer), {name: tensor.shape for name, tensor in each.tensors.items()})
        for each in (checkpoint, donor)
    )
    if own != other:
        raise EncoderError(
            f"{step.donor} must have the tokenizer and the sizes of {checkpoint.name}, to be averaged with it; choose"
            " another donor"
        )
    for name, tensor in checkpoint.tensors.items():
        checkpoint.tensors[name] = (1 - step.fraction) * tensor + step.fraction * donor.tensors[name]
    return {"donor": donor.name, "donor_fingerprint": donor.fingerprint}


def _untie(checkpoint: Checkpoint, *_: object) -> None:
    """Copy the word vectors, and the output bias of BERT and RoBERTa, under their names in the head."""
    if not checkpoint.has_head:
        raise EncoderError(f"{checkpoint.name} has no head for masked tokens to untie; choose a masked language model")
    if checkpoint.output not in checkpoint.tensors:
        checkpoint.config.tie_word_embeddings = False
        copies = {checkpoint.output: checkpoint.words}
        copies[checkpoint.output.replace("decoder.weight", "decoder.bias")] = checkpoint.biases[0]
        checkpoint.tensors |= {name: checkpoint.tensors[source].clone() for name, source in copies.items()}


EDITS: dict[EditName, Callable[[Checkpoint, EditStep, Draw], dict[str, Any] | None]] = {
    "reverse_layers": _put_layers,
    "keep_layers": _put_layers,
    "reinitialize": _reinitialize,
    "permute_rows": _permute_rows,
    "swap_embeddings": _swap_embeddings,
    "new_vocabulary": _new_vocabulary,
    "average": _average,
    "untie": _untie,
}
"""Functions that change a checkpoint in place, and return the facts of their donor for edit.json."""


def _compared(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """By name of a tensor before or after: whether it changed, and its Frobenius norm, null where it is missing."""
    result = {}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        norms = [None if tensor is None else float(tensor.double().norm()) for tensor in (old, new)]
        changed = old is None or new is None or not torch.equal(old, new)
        result[name] = {"changed": changed, "norm_before": norms[0], "norm_after": norms[1]}
    return result
