"""How a tensor is drawn anew.

With R of standard normal numbers, and sums over all elements of a matrix or an embedding W but its row of padding:

    match_norm        W' = R · ‖W‖ / ‖R‖                                  ‖·‖ the Frobenius norm
    match_std         W' = (R − mean R) · std W / std R  [+ mean W]
    permute_elements  W' = the elements of W in random order

In the first two, biases become 0 and the weights of norms 1; the third permutes those too. `default` takes the tensor
of a newly made model, whatever the rule of its family is. In the others, rows of padding stay as they are.
"""

from __future__ import annotations

import hashlib

import torch

from npm.models.edits.settings import EditStep, Scheme


def generator_of(seed: int, position: int, name: str) -> torch.Generator:
    """A generator for one draw: it depends on the seed, the edit's place in the list, and what is drawn."""
    digest = hashlib.sha256(f"{seed}/{position}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def redrawn(
    old: torch.Tensor,
    step: EditStep,
    generator: torch.Generator,
    *,
    new: torch.Tensor,
    is_norm: bool,
    padding_row: int | None,
) -> torch.Tensor:
    """A tensor f32 [...] in the place of `old`; `new` is that of a newly made model, of the same shape."""
    is_matrix = old.ndim > 1
    if step.scheme is Scheme.default:
        return new.clone()
    if step.scheme is Scheme.permute_elements:
        if step.matrices_only and not is_matrix:
            return old
    elif not is_matrix:
        return torch.ones_like(old) if is_norm else torch.zeros_like(old)
    drawn = torch.ones(len(old), dtype=torch.bool)  # bool [rows]
    if padding_row is not None and padding_row < len(old):
        drawn[padding_row] = False
    values = old[drawn].flatten().double()  # f64 [n], all elements that are drawn
    result = old.clone()  # f32 [...]
    result[drawn] = _drawn(values, step, generator).float().reshape(old[drawn].shape)
    return result


def _drawn(values: torch.Tensor, step: EditStep, generator: torch.Generator) -> torch.Tensor:
    """Numbers f64 [n] in the place of `values` f64 [n]."""
    if step.scheme is Scheme.permute_elements:
        return values[torch.randperm(len(values), generator=generator)]  # f64 [n]
    random = torch.randn(len(values), generator=generator, dtype=torch.float64)  # f64 [n]
    if step.scheme is Scheme.match_norm:
        return random * (values.norm() / random.norm())
    centred = (random - random.mean()) * (values.std(correction=0) / random.std(correction=0))  # f64 [n]
    return centred + values.mean() if step.keep_mean else centred
