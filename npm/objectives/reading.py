"""Joint reading: the span is found among the tokens of the block that its masked copy reads, in the same pass.

For a masked span x of a copy that reads a block, with start query q and the tokens R of that block,

    loss_start = −log Σ_{k ∈ S⁺} exp(sim(q, k)) + log Σ_{k ∈ R ∪ {c}} exp(sim(q, k)),

where S⁺ are the tokens of R that begin an occurrence of x; where there is none, S⁺ is the first token c of the copy,
which then stands for "not here" (as for questions without an answer, Devlin et al. 2019, arXiv 1810.04805, §4.3).
loss_end is the same with the end query and the tokens that finish an occurrence. All vectors are of one pass over the
copy and the block, so keys know the question; and as every block has the same alternative, scores in one block can be
compared with those in another.

Shapes: n spans, r spans of copies that read, Q masked copies, Lq padded length, T tokens read and first tokens of all
copies, m tokens of the longest span, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from npm.models.similarity import scaled_similarity
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import Keys, following_tokens, positive_keys, reversed_spans
from npm.types import MaskedBatch, Term

SIDES = ("reading_start", "reading_end")


class JointReading(nn.Module):
    """Terms `reading_start` and `reading_end`, sums over the spans of copies that read; each with a `…_top1`."""

    view = "phrases"
    reads_clean_copies = False

    def __init__(self, scale: Callable[[], torch.Tensor | float]) -> None:
        """`scale` gives the similarity scale of the phrase loss, which may be learned there."""
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
        first = places == 0  # bool [T]
        own_copies, phrases = batch.span_sequences[spans], batch.span_token_ids[spans]  # i64 [r], i64 [r, m]
        reverse = Keys(keys.vectors.flip(0), keys.token_ids.flip(0), keys.sequences.flip(0))
        sides = zip(SIDES, (phrases, reversed_spans(phrases)), (keys, reverse), (first, first.flip(0)), strict=True)
        terms: dict[str, Term] = {}
        for name, tokens, own_keys, own_first in sides:
            losses, correct = reading_losses(queries[name], tokens, own_copies, own_keys, own_first, self._scale())
            terms[name] = Term(losses.sum(), len(losses))
            terms[f"{name}_top1"] = Term(correct.sum(), len(losses), weight=0.0)
        return terms


def reading_losses(
    queries: torch.Tensor,
    spans: torch.Tensor,
    copies: torch.Tensor,
    keys: Keys,
    first: torch.Tensor,
    scale: torch.Tensor | float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses f32 [r] of queries [r, d], and whether the best key is a positive, bool [r].

    `spans` i64 [r, m] are what was masked and `copies` i64 [r] where; `first` bool [T] are the keys for "not here".
    """
    own = keys.sequences == copies[:, None]  # bool [r, T]
    following = following_tokens(keys, span_tokens=spans.shape[1])  # i64 [m, T]
    positive = positive_keys(spans, following) & own & ~first  # bool [r, T]
    positive |= own & first & ~positive.any(1, keepdim=True)
    with torch.autocast(queries.device.type, enabled=False):
        logits = scaled_similarity(queries.float() @ keys.vectors.float().T, scale)  # f32 [r, T]
    logits = logits.masked_fill(~own, -torch.inf)
    losses = logits.logsumexp(1) - logits.masked_fill(~positive, -torch.inf).logsumexp(1)  # f32 [r]
    best = logits.argmax(1, keepdim=True)  # i64 [r, 1]
    return losses, positive.gather(1, best)[:, 0]


def _reading_spans(batch: MaskedBatch) -> torch.Tensor:
    """Which spans stand in a copy that reads a block, bool [n]."""
    if batch.read_tokens is None:
        return torch.zeros_like(batch.span_sequences, dtype=torch.bool)  # bool [n]
    return batch.read_tokens.any(1)[batch.span_sequences]
