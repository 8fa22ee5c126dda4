"""The reader: which phrase of a passage answers a question that was read with it, or that none does.

For a question read with a passage, with start query q, the tokens R of the passage and the first token c of the row,

    loss_start = −log Σ_{k ∈ S⁺} exp(s(q, k)) + log Σ_{k ∈ R ∪ {c}} exp(s(q, k)),

where s is the scaled inner product, and S⁺ are the tokens that begin an answer; where the passage has none, S⁺ is c,
which then means "not here" (Devlin et al. 2019, arXiv 1810.04805, §4.3). loss_end is the same with the end query and
the tokens that finish an answer. Unlike a head of linear maps (ibid., §4.2), the queries are the states of the two
masks, so that a statement with a blank in its middle is read like a question.

Shapes: B rows, N tokens of all rows, L padded length, d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from npm.masking.batches import PassageBatch
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedPassages
from npm.objectives.nonparametric import choice_losses


class ReaderLoss(nn.Module):
    """Terms `read_start` and `read_end`, sums over rows; `…_top1`, of weight 0, count right first choices."""

    view = "passages"
    reads_clean_copies = False

    def __init__(self, scale: float) -> None:
        """`scale` is the factor of the inner products."""
        super().__init__()
        self._scale = scale

    def counts(self, batch: PassageBatch) -> dict[str, int]:
        """Rows of this rank; those with an answer for `answer_top1`, those without for `absent_top1`."""
        rows = len(batch.lengths)
        absent = int(_is_absent(batch).sum())
        return {"read_start": rows, "read_end": rows, "answer_top1": rows - absent, "absent_top1": absent}

    def forward(self, encoded: EncodedPassages) -> dict[str, Term]:
        """The terms of one batch."""
        batch = encoded.batch
        lengths = list(batch.lengths)
        is_key = _padded(batch.is_key, lengths)  # bool [B, L]
        with torch.autocast(batch.input_ids.device.type, enabled=False):  # bfloat16 logits would be off by 0.1 and more
            states = encoded.states.float()  # f32 [N, d]
            keys = pad_sequence(list(states.split(lengths)), batch_first=True)  # f32 [B, L, d]
            queries = states[batch.mask_slots]  # f32 [B, 2, d]
            logits = torch.einsum("bqd,bld->qbl", queries, keys) * self._scale  # f32 [2, B, L]
        sums, right = [], torch.ones(len(lengths), dtype=torch.bool, device=is_key.device)  # bool [B]
        for side, edges in zip(logits, batch.edges, strict=True):
            losses, is_right = choice_losses(side, _padded(edges, lengths), is_key)  # f32 [B], bool [B]
            sums.append(losses.sum())
            right &= is_right
        absent = _is_absent(batch)  # bool [B]
        counts = self.counts(batch)
        return {
            "read_start": Term(sums[0], counts["read_start"], 0.5),
            "read_end": Term(sums[1], counts["read_end"], 0.5),
            "answer_top1": Term((right & ~absent).sum(), counts["answer_top1"], 0.0),
            "absent_top1": Term((right & absent).sum(), counts["absent_top1"], 0.0),
        }


def _padded(marks: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Marks bool [N] of concatenated rows as rows bool [B, L]."""
    return pad_sequence(list(marks.split(lengths)), batch_first=True)


def _is_absent(batch: PassageBatch) -> torch.Tensor:
    """Rows whose passage has no answer, bool [B]: their first token is the one to choose."""
    firsts = torch.tensor((0, *batch.lengths[:-1]), device=batch.edges.device).cumsum(0)  # i64 [B]
    return batch.edges[0, firsts]
