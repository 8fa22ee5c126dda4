"""The nonparametric phrase loss and its single-token form (Min et al. 2022, arXiv 2212.01349, §3.2).

For a masked span x = (x₁ … x_m) with start query q, and the keys K of all sequences but its own,

    loss_start = −log Σ_{k ∈ S⁺} exp(sim(q, k)) + log Σ_{k ∈ K} exp(sim(q, k)),

where S⁺ are the keys that begin an occurrence of x inside one sequence; loss_end is the same with the end query and
the keys that finish an occurrence. Keys come from the clean copies; special tokens are among them; tokens of the
query's own sequence are neither positive nor negative. Several positives enter as the log of the sum. Spans without a
positive on their rank, which phrases that recur always have, are omitted.

With `dimensions` the same losses are also taken of the leading numbers of all vectors, so that these alone can be
stored and searched (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147, §3): the terms `start_64`, `end_64`, … next to
`start` and `end`. The encoder runs once; the loss is the mean over all lengths.

Shapes: n spans of this rank, c spans of one chunk, T keys of all ranks, m tokens of the longest span, d dimensions, D
lengths of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from npm.masking.batches import MaskedBatch
from npm.models.settings import check_leading_dimensions, leading_scale
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedBatch, clean_copy_keys
from npm.objectives.ranks import gather_rows, rank, row_counts
from npm.objectives.settings import NonparametricSettings, OwnSequence

NO_TOKEN = -2
"""Id past the end of a sequence; -1 is the padding of `span_token_ids`."""
MAX_LOGITS_PER_CHUNK = 16_777_216
"""Query-key logits held at once; bounds memory by working through the queries in chunks."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of all ranks, compared with every query of this rank."""

    vectors: torch.Tensor  # f32 [T, d]
    token_ids: torch.Tensor  # i64 [T]
    sequences: torch.Tensor  # i64 [T], numbers unique over ranks, equal for tokens of one sequence

    def reversed(self) -> Keys:
        """The same from last to first: read backwards, the end of a span is its start."""
        return Keys(self.vectors.flip(0), self.token_ids.flip(0), self.sequences.flip(0))


@dataclass(frozen=True, slots=True)
class Length:
    """A number of leading dimensions of every vector, and the scale of their inner products."""

    suffix: str  # of the names of its terms
    dimensions: int
    scale: float


class NonparametricMasked(nn.Module):
    """The phrase loss: terms `start` and `end`, each a sum over spans; the trainer divides each by its count.

    The terms `start_top1` and `end_top1` have weight 0: the number of spans whose best key is a positive. With
    shorter lengths there are the same terms for each, such as `start_64` and `start_64_top1`.
    """

    view = "phrases"

    def __init__(
        self,
        settings: NonparametricSettings,
        *,
        similarity_scale: float,
        dimensions: int | None = None,
        end_queries: bool = True,
        spans_recur: bool = False,
    ) -> None:
        """`similarity_scale` is that of full vectors; shorter lengths need `dimensions`, their length.

        Without `end_queries` it is the single-token model, which has one query per span.
        With `spans_recur` every span is known to occur in another sequence too, without a search.
        Raises SettingError if a shorter length is not below it.
        """
        super().__init__()
        if settings.dimensions:
            assert dimensions is not None, "shorter lengths of vectors whose own length is not given"
            check_leading_dimensions(
                settings.dimensions, where="objective.nonparametric.dimensions", most=dimensions - 1
            )
        self.settings = settings
        self.scale = similarity_scale
        self._end_queries, self._spans_recur = end_queries, spans_recur

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Denominators of this rank's terms, known before any forward pass."""
        sides = ("start", "end") if self._end_queries else ("start",)
        suffixes = ["", *(f"_{shorter}" for shorter in self.settings.dimensions)]
        names = [f"{side}{suffix}{kind}" for side in sides for suffix in suffixes for kind in ("", "_top1")]
        return dict.fromkeys(names, int(self._has_positive(batch).sum()))

    def _has_positive(self, batch: MaskedBatch) -> torch.Tensor:
        """True for spans that occur in another sequence of this rank too, bool [n]: only they have a loss."""
        if self._spans_recur:
            return torch.ones_like(batch.span_sequences, dtype=torch.bool)  # [n]
        _, token_ids, sequences = clean_copy_keys(batch)  # i64 [keys] each
        keys = Keys(token_ids.new_zeros(0, 1), token_ids, sequences)  # without vectors
        positive = positive_keys(batch.span_token_ids, following_tokens(keys, batch.span_token_ids.shape[1]))
        return (positive & (keys.sequences != batch.span_sequences[:, None])).any(1)

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """Terms of one batch; on several ranks the keys of all of them serve, with gradient."""
        batch = encoded.batch
        keys, first_sequence = gather_keys(encoded)
        kept = self._has_positive(batch)  # bool [spans]
        spans, own_sequences = batch.span_token_ids[kept], batch.span_sequences[kept] + first_sequence  # [n, m], [n]
        terms = self._side_terms("start", encoded.start_queries[kept], spans, own_sequences, keys)
        if self._end_queries:
            backwards = reversed_spans(spans)  # i64 [n, m]
            terms |= self._side_terms("end", encoded.end_queries[kept], backwards, own_sequences, keys.reversed())
        return terms

    def _side_terms(
        self, side: str, queries: torch.Tensor, spans: torch.Tensor, own_sequences: torch.Tensor, keys: Keys
    ) -> dict[str, Term]:
        count, dimensions, shorter = len(queries), queries.shape[1], sorted(self.settings.dimensions)
        lengths = [Length(f"_{each}", each, leading_scale(self.scale, each, dimensions)) for each in shorter]
        lengths.append(Length("", dimensions, self.scale))
        rows_per_chunk = max(1, MAX_LOGITS_PER_CHUNK // max(1, len(keys.token_ids) * len(lengths)))
        following = following_tokens(keys, spans.shape[1])  # i64 [m, T]
        own_is_negative = self.settings.own_sequence is OwnSequence.negatives
        nothing = (queries.sum() + keys.vectors.sum()) * 0.0  # keeps the graph complete when there is no span
        loss_sums = nothing.expand(len(lengths))  # f32 [D]
        top1_sums = torch.zeros(len(lengths), device=queries.device)  # [D]
        for start in range(0, count, rows_per_chunk):
            chunk = slice(start, start + rows_per_chunk)
            arguments = (queries[chunk], spans[chunk], own_sequences[chunk], keys, following, lengths, own_is_negative)
            if count > rows_per_chunk and torch.is_grad_enabled():
                losses, correct = checkpoint(span_losses, *arguments, use_reentrant=False)
            else:
                losses, correct = span_losses(*arguments)
            loss_sums = loss_sums + losses.sum(1)
            top1_sums = top1_sums + correct.sum(1)
        terms: dict[str, Term] = {}
        for length, loss_sum, top1_sum in zip(lengths, loss_sums, top1_sums, strict=True):
            name = f"{side}{length.suffix}"
            terms[name] = Term(loss_sum, count, weight=1 / len(lengths))
            terms[f"{name}_top1"] = Term(top1_sum.detach(), count, weight=0.0)
        return terms


def gather_keys(encoded: EncodedBatch) -> tuple[Keys, int]:
    """Keys of all ranks, and the index of this rank's first sequence among all sequences."""
    is_key, token_ids, sequences = clean_copy_keys(encoded.batch)  # bool [B, Lk], i64 [keys of this rank] each
    counts = row_counts(token_ids)
    first_sequence = sum(row_counts(encoded.batch.key_input_ids)[: rank()])
    own = encoded.clean_vectors[is_key], token_ids, sequences + first_sequence
    return Keys(*(gather_rows(part, counts) for part in own)), first_sequence


def following_tokens(keys: Keys, span_tokens: int) -> torch.Tensor:
    """Row j holds the token j positions after each key, i64 [m, T]; -2 where that is another sequence.

    >>> keys = Keys(torch.zeros(4, 1), torch.tensor([7, 8, 9, 7]), torch.tensor([0, 0, 0, 1]))
    >>> following_tokens(keys, 3).tolist()
    [[7, 8, 9, 7], [8, 9, -2, -2], [9, -2, -2, -2]]
    """
    total = len(keys.token_ids)
    following = keys.token_ids.new_full((span_tokens, total), NO_TOKEN)  # i64 [m, T]
    for step in range(min(span_tokens, total)):
        same = keys.sequences[step:] == keys.sequences[: total - step]  # bool [T - step]
        following[step, : total - step] = torch.where(same, keys.token_ids[step:], NO_TOKEN)
    return following


def reversed_spans(span_token_ids: torch.Tensor) -> torch.Tensor:
    """Each span's tokens i64 [n, m] in reverse order, the padding of -1 still at the end.

    >>> reversed_spans(torch.tensor([[1, 2, 3], [4, -1, -1]])).tolist()
    [[3, 2, 1], [4, -1, -1]]
    """
    lengths = (span_token_ids >= 0).sum(1, keepdim=True)  # i64 [n, 1]
    places = torch.arange(span_token_ids.shape[1], device=span_token_ids.device)  # i64 [m]
    source = (lengths - 1 - places).clamp_min(0)  # i64 [n, m]
    return span_token_ids.gather(1, source).masked_fill(places >= lengths, -1)


def positive_keys(spans: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Keys that begin an occurrence of each span: bool [c, T] from spans i64 [c, m] and `following_tokens`."""
    matches = spans[:, 0, None] == following[0]  # bool [c, T]
    for step in range(1, spans.shape[1]):
        tokens = spans[:, step, None]  # i64 [c, 1]
        matches &= (tokens == following[step]) | (tokens < 0)
    return matches


def phrase_edges(spans: torch.Tensor, keys: Keys) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys that begin, and keys that end, an occurrence of each span i64 [c, m]: bool [c, T] each.

    >>> keys = Keys(torch.zeros(4, 1), torch.tensor([7, 8, 9, 7]), torch.tensor([0, 0, 0, 1]))
    >>> [edges.int().tolist() for edges in phrase_edges(torch.tensor([[7, 8], [7, -1]]), keys)]
    [[[1, 0, 0, 0], [1, 0, 0, 1]], [[0, 1, 0, 0], [1, 0, 0, 1]]]
    """
    starts = positive_keys(spans, following_tokens(keys, spans.shape[1]))  # bool [c, T]
    ends = positive_keys(reversed_spans(spans), following_tokens(keys.reversed(), spans.shape[1]))  # bool [c, T]
    return starts, ends.flip(1)


def choice_losses(
    logits: torch.Tensor, positive: torch.Tensor, compared: torch.Tensor, log_weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """log Σ_compared w exp − log Σ_positive exp of logits f32 [c, T], f32 [c]; bool [c], best is positive.

    Several positives are summed inside the log, so that one near key is enough and the others may be far.
    `log_weights` f32 [c, T] are log w.
    """
    logits = logits.masked_fill(~compared, -torch.inf)
    log_positive = logits.masked_fill(~positive, -torch.inf).logsumexp(1)  # f32 [c]
    best = logits.argmax(1, keepdim=True)  # i64 [c, 1]
    right = positive.gather(1, best)[:, 0]  # bool [c]
    return (logits if log_weights is None else logits + log_weights).logsumexp(1) - log_positive, right


def span_losses(
    queries: torch.Tensor,
    spans: torch.Tensor,
    own_sequences: torch.Tensor,
    keys: Keys,
    following: torch.Tensor,
    lengths: Sequence[Length],
    own_is_negative: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses f32 [D, c] of one chunk of queries [c, d], and whether the best key is a positive, bool [D, c].

    `lengths` ascend; the inner products of each are those of the one before plus those of the dimensions between them,
    so that all together cost as much as the longest.
    """
    # the clean copy of a span's own sequence is omitted from both sums: there the answer is at the span's own position,
    # which could be found by position alone; as a negative it teaches not to look there
    foreign = keys.sequences != own_sequences[:, None]  # bool [c, T]
    positive = positive_keys(spans, following) & foreign  # bool [c, T]
    compared = torch.ones_like(foreign) if own_is_negative else foreign  # bool [c, T]
    products: torch.Tensor | float = 0.0
    losses, correct = [], []
    for (first, _), (stop, scale) in pairwise([(0, 0.0), *((each.dimensions, each.scale) for each in lengths)]):
        with torch.autocast(queries.device.type, enabled=False):  # bfloat16 logits would be off by 0.1 and more
            added = queries[:, first:stop].float() @ keys.vectors[:, first:stop].float().T  # f32 [c, T]
            products = added if first == 0 else products + added  # f32 [c, T]
            logits = products * scale  # f32 [c, T]
        loss, is_right = choice_losses(logits, positive, compared)
        losses.append(loss)
        correct.append(is_right)
    return torch.stack(losses), torch.stack(correct)
