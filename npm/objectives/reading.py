"""Joint reading: the span is found among the tokens of the block that its masked copy reads, in the same pass.

For a masked span x of a copy that reads a block, with start query q and the tokens R of that block,

    loss_start = −log Σ_{k ∈ S⁺} exp(sim(q, k)) + log Σ_{k ∈ R ∪ {c}} exp(sim(q, k)),

where S⁺ are the tokens of R that begin an occurrence of x; where there is none, S⁺ is the first token c of the copy,
which then means "not here" (as for questions without an answer, Devlin et al. 2019, arXiv 1810.04805, §4.3).
loss_end is the same with the end query and the tokens that finish an occurrence. All vectors are of one pass over the
copy and the block, so keys know the question; and as every block has the same alternative, scores in one block can be
compared with those in another.

Shapes: n spans, r spans of copies that read, Q masked copies, Lq padded length, T tokens read and first tokens of all
copies, m tokens of the longest span, d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn

from npm.masking.batches import MaskedBatch
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import Keys, choice_losses, phrase_edges

SIDES = ("reading_start", "reading_end")


class JointReading(nn.Module):
    """Terms `reading_start` and `reading_end`, sums over the spans of copies that read; each with a `…_top1`."""

    view = "phrases"
    reads_clean_copies = False

    def __init__(self, scale: float) -> None:
        """`scale` is the similarity scale of the phrase loss."""
        super().__init__()
        self._scale = scale

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Spans of this rank in copies that read, known before any forward pass."""
        count = int(_reading_spans(batch).sum())
        return {f"{side}{kind}": count for side in SIDES for kind in ("", "_top1")}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """Terms of one batch."""
        batch = encoded.batch
        spans = _reading_spans(batch)  # bool [n]
        queries = {"reading_start": encoded.start_queries[spans], "reading_end": encoded.end_queries[spans]}
        if batch.read_tokens is None:
            nothing = encoded.query_vectors.sum() * 0.0
            return {name: Term(nothing, 0) for name in self.counts(batch)}
        is_key = batch.read_tokens.clone()  # bool [Q, Lq]
        is_key[:, 0] = batch.read_tokens.any(1)
        copies, places = is_key.nonzero(as_tuple=True)  # i64 [T] each
        keys = Keys(encoded.query_vectors[is_key], batch.query_input_ids[is_key], copies)
        own = copies == batch.span_sequences[spans][:, None]  # bool [r, T]
        terms: dict[str, Term] = {}
        for name, edges in zip(SIDES, phrase_edges(batch.span_token_ids[spans], keys), strict=True):
            with torch.autocast(keys.vectors.device.type, enabled=False):
                logits = queries[name].float() @ keys.vectors.float().T * self._scale  # f32 [r, T]
            losses, correct = reading_losses(logits, edges, own, places == 0)
            terms[name] = Term(losses.sum(), len(losses))
            terms[f"{name}_top1"] = Term(correct.sum(), len(losses), weight=0.0)
        return terms


def reading_losses(
    logits: torch.Tensor,
    edges: torch.Tensor,
    own: torch.Tensor,
    first: torch.Tensor,
    log_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses f32 [r] of the logits f32 [r, T] of r queries, and whether the best key is a positive, bool [r].

    `edges` bool [r, T] are the keys at an edge of the sought spans, `own` bool [r, T] those of the pass of each query,
    and `first` bool [T] those for "not here", which are right where no edge is among a query's own keys. `log_weights`
    f32 [r, T] are those of `choice_losses`.
    """
    positive = edges & own & ~first  # bool [r, T]
    positive |= own & first & ~positive.any(1, keepdim=True)
    return choice_losses(logits, positive, own, log_weights)


def _reading_spans(batch: MaskedBatch) -> torch.Tensor:
    """Mask of the spans in copies that read a block, bool [n]."""
    if batch.read_tokens is None:
        return torch.zeros_like(batch.span_sequences, dtype=torch.bool)  # bool [n]
    return batch.read_tokens.any(1)[batch.span_sequences]
