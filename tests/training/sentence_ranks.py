"""What two gloo ranks compute of the contrastive loss over sentences, compared with one process by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from npm.masking.batches import LabeledBatch
from npm.models.sentences import pool
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.labeled import LabeledContrast
from npm.objectives.sentence import SentenceContrast
from npm.objectives.settings import SentenceSettings
from tests.helpers.sentence_batches import LAST_WORD_ID, batch_of, sentences

SHARES = {"even": (2, 2), "uneven": (3, 1)}
"""By name, the pairs of each rank out of the four of the global batch."""
COLUMNS = (2, 3)
PAIRS = list(zip(sentences(4, seed=0), sentences(4, seed=1), sentences(4, seed=2), strict=True))


class SmallEncoder(nn.Module):
    """Two layers in the place of an encoder: importing `transformers` twice would cost most of the test's time."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LAST_WORD_ID, dimensions)
        self.layers = nn.ModuleList(nn.Linear(2 * dimensions, dimensions) for _ in range(2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: bool) -> SimpleNamespace:
        states = [self.embedding(input_ids)]  # f32 [B, L, d]
        for layer in self.layers:
            mean = pool(PoolerKind.avg, states[-1], attention_mask)[:, None].expand_as(states[-1])  # f32 [B, L, d]
            states.append(torch.tanh(layer(torch.cat([states[-1], mean], dim=2))))
        return SimpleNamespace(hidden_states=tuple(states), last_hidden_state=states[-1])


def gradients(pairs: Sequence[tuple[torch.Tensor, ...]], columns: int) -> dict[str, torch.Tensor]:
    """Gradients of Σ terms / pairs of all ranks, on the pairs of this rank, by parameter name."""
    torch.manual_seed(1)
    encoder = SmallEncoder(16)
    settings = SentenceSettings(pooler=PoolerKind.cls)
    objective = SentenceContrast(settings, dimensions=16, temperature=0.2)
    batch = batch_of(*([pair[column] for pair in pairs] for column in range(columns)))
    encoded = EncodedRows(Passes(encoder, rows_per_pass=2), batch)
    (objective(encoded)["sentence"].sum / len(PAIRS)).backward()
    named = [*encoder.named_parameters(), *objective.named_parameters()]
    return {name: weight.grad for name, weight in named if weight.grad is not None}


LABELS = (0, 1, 0, 1)
"""Of the four texts of the global batch; where the ranks have three and one, the second has no pair of its own."""


def labeled_gradients(first: int, count: int) -> dict[str, torch.Tensor]:
    """Gradients of Σ supervised contrast / texts of all ranks, on `count` texts from `first` on, by parameter name."""
    torch.manual_seed(1)
    encoder = SmallEncoder(16)
    texts = [pair[0] for pair in PAIRS]
    ids, mask = (
        getattr(batch_of(texts, texts), name)[first : first + count] for name in ("input_ids", "attention_mask")
    )
    rows = torch.arange(count)  # i64 [n]
    labels = torch.tensor(LABELS[first : first + count])  # i64 [n]
    batch = LabeledBatch(ids, mask, None, rows=rows, slots=torch.zeros_like(rows), targets=labels)
    term = LabeledContrast(0.3)(EncodedRows(Passes(encoder), batch))["labeled_contrast"]
    (term.sum / len(LABELS)).backward()
    return {name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None}


def write_gradients(rank: int, runs: Path) -> None:
    """Write the gradients summed over both ranks, as RUNS/<share>-<columns>.safetensors."""
    for name, shares in SHARES.items():
        first = sum(shares[:rank])
        contrasted = labeled_gradients(first, shares[rank])
        for gradient in contrasted.values():
            dist.all_reduce(gradient)
        if rank == 0:
            safetensors.torch.save_file(contrasted, runs / f"{name}-labeled.safetensors")
        for columns in COLUMNS:
            summed = gradients(PAIRS[first : first + shares[rank]], columns)
            for gradient in summed.values():
                dist.all_reduce(gradient)
            if rank == 0:
                safetensors.torch.save_file(summed, runs / f"{name}-{columns}.safetensors")
