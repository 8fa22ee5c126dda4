"""Joint reading: a phrase is found among the tokens of a block, in one pass over them and the text that asks for it.

With start query q, the tokens R of the block and the first token c of the row,

    loss_start = −log Σ_{k ∈ S⁺} exp(s(q, k)) + log Σ_{k ∈ R ∪ {c}} exp(s(q, k)),

where s is the scaled inner product, and S⁺ are the tokens of R that begin the phrase; where there is none, S⁺ is c,
which then means "not here" (as for questions without an answer, Devlin et al. 2019, arXiv 1810.04805, §4.3). loss_end
is the same with the end query and the tokens that finish the phrase. Keys know the question; and as every block has the
same alternative, scores in one block can be compared with those in another.

`JointReading` is of masked copies that read a block, and of their spans; `ReaderLoss` is of questions that are read
with a passage. Unlike a head of linear maps (ibid., §4.2), its queries too are the states of the masks, so that a
statement with a blank in its middle is read like a question.

Shapes: n spans, r spans of copies that read, Q masked copies, Lq padded length, T tokens read and first tokens of all
copies, m tokens of the longest span; of passages B rows, N tokens of all rows, L padded length; d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from npm.masking.batches import MaskedBatch, PassageBatch
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedBatch, EncodedRows
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

    def forward(self, encoded: EncodedRows[PassageBatch]) -> dict[str, Term]:
        """The terms of one batch."""
        batch = encoded.batch
        lengths = list(batch.lengths)
        is_key = _padded(batch.is_key, lengths)  # bool [B, L]
        with torch.autocast(batch.input_ids.device.type, enabled=False):  # bfloat16 logits would be off by 0.1 and more
            states = encoded.passes.packed_states(batch.input_ids, lengths).float()  # f32 [N, d]
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
