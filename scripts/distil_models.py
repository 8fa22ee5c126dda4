"""The teacher and the reader of `scripts/distil_reader.py`.

Shapes: B pairs, L padded length, d dimensions.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from scripts.distil_pairs import CLS, CUDA, DEVICE, MASK, PAD, SEP, Pairs

SCALE, LONGEST_ANSWER = 1 / 3, 20


class Teacher(nn.Module):
    """MPNet with a span head, and the states of the masks as further queries."""

    def __init__(self, folder: Path) -> None:
        from transformers import MPNetConfig, MPNetModel

        super().__init__()
        self.body = MPNetModel(MPNetConfig(**json.loads((folder / "config.json").read_text())), add_pooling_layer=False)
        d = self.body.config.hidden_size
        self.spans, self.asked = nn.Linear(d, 2), nn.Linear(2 * d, 2 * d)
        nn.init.normal_(self.asked.weight, std=0.002)

    def forward(self, ids: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Logits [2, B, L] of starts and ends for ids [B, L] and masks [B, 2]."""
        own = ids + 4  # MPNet's vocabulary: <s>, <pad>, </s>, <unk>, BERT's, <mask>
        for theirs, ours in ((PAD, 1), (CLS, 0), (SEP, 2), (MASK, self.body.config.vocab_size - 1)):
            own = torch.where(ids == theirs, ours, own)  # i32 [B, L]
        states = self.body(input_ids=own.long(), attention_mask=(ids != PAD).long()).last_hidden_state  # [B, L, d]
        queries = self.asked(_at(states, masks).flatten(1)).unflatten(1, (2, -1))  # [B, 2, d]
        with torch.autocast(DEVICE, enabled=False):
            states, queries = states.float(), queries.float()
            products = torch.einsum("bqd,bld->qbl", queries, states) / math.sqrt(states.shape[-1])  # [2, B, L]
            return self.spans(states).permute(2, 0, 1) + products


class Reader(nn.Module):
    """As `npm/objectives/reading.py` reads."""

    def __init__(self, folder: Path) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.body = BertModel(BertConfig(**json.loads((folder / "config.json").read_text())), add_pooling_layer=False)
        self.body.embeddings.word_embeddings.weight.requires_grad_(requires_grad=False)

    def forward(self, ids: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Logits [2, B, L] of starts and ends for ids [B, L] and masks [B, 2]."""
        given = {"input_ids": ids.clamp(min=0).long(), "attention_mask": (ids != PAD).long()}
        with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            states = self.body(**given).last_hidden_state  # [B, L, d]
        with torch.autocast(DEVICE, enabled=False):
            states = states.float()
            return torch.einsum("bqd,bld->qbl", _at(states, masks), states) * SCALE  # [2, B, L]


def _at(states: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """States [B, 2, d] at masks [B, 2]."""
    return states[torch.arange(len(states), device=states.device)[:, None], masks]


def read_weights(body: nn.Module, path: Path) -> None:
    """Weights of a file; of matrices in 8 bits, each row times its scale (`NAME#scale`)."""
    given = load_file(path)
    state = {name: value.float() for name, value in given.items() if not name.endswith("#scale")}
    for name in state:
        if (scale := given.get(f"{name}#scale")) is not None:
            state[name] *= scale.float()[:, None]
    body.load_state_dict(state)


def span_losses(logits: torch.Tensor, keys: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Losses [2, B] of starts and ends."""
    known = logits.masked_fill(~keys, -1e4)
    return known.logsumexp(-1) - known.masked_fill(~edges, -1e4).logsumexp(-1)


@torch.no_grad()
def measure(model: nn.Module, pairs: Pairs) -> dict[int, tuple[int, float]]:
    """Questions of each set, and the share of those whose best span is an answer, token by token."""
    model.eval()
    right = np.zeros(len(pairs.kind), bool)
    rows = np.argsort(-pairs.lengths, kind="stable")[: None if CUDA else 16]
    for start in range(0, len(rows), 128):
        ids, keys, masks, _, own = [torch.from_numpy(each).to(DEVICE) for each in pairs.batch(rows[start:][:128])]
        with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            logits = model(ids, masks).float()
        keys[:, 0] = False
        starts, ends = logits.masked_fill(~keys, -1e4)  # [B, L] each
        sums = starts[:, :, None] + ends[:, None, :]  # [B, L, L]
        allowed = torch.ones_like(sums[0], dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
        best = sums.masked_fill(~allowed, -1e9).flatten(1).argmax(1)  # i64 [B]
        first, last = (best // ids.shape[1]).tolist(), (best % ids.shape[1]).tolist()
        for place, row in enumerate(own.tolist()):
            found = ids[place, first[place] : last[place] + 1].tolist()
            spans = pairs.spans[slice(*pairs.span_offsets[row : row + 2])].astype(int)
            base = int(keys[place].nonzero()[0, 0])
            right[row] = any(ids[place, base + a : base + b + 1].tolist() == found for a, b in spans.tolist())
    seen = np.isin(np.arange(len(right)), rows)
    numbers = np.unique(pairs.number[seen]).tolist()
    return {
        number: (int((own := seen & (pairs.number == number)).sum()), round(float(right[own].mean()), 3))
        for number in numbers
    }
