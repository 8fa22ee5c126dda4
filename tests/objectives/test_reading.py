"""Joint reading: numbers worked by hand, equality with plain loops, gradients, and what the renderer says is read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from npm.core.types import MaskedBatch, Spans, TokenFlag
from npm.masking.masker import NO_CONTEXT, Contexts
from npm.masking.rendering import MaskRenderer
from npm.objectives.encoded import EncodedBatch
from npm.objectives.reading import JointReading
from tests.helpers.groups import WORD, group
from tests.objectives.batches import FIRST_ID, LAST_ID, MASK_ID, PAD_ID

TITLE = int(TokenFlag.TITLE)


def batch_that_reads(
    rows: list[list[int]], spans: list[tuple[int, int, int]], reads: list[int], *, titles: tuple[int, ...] = ()
) -> MaskedBatch:
    """Rows of token ids, spans (row, start, length), and which row each copy reads; the first of `titles` rows."""
    flags = [
        [TITLE if number in titles and not at else WORD for at in range(len(row))] for number, row in enumerate(rows)
    ]
    sequences = group(*rows, flags=flags)
    starts = np.array([sequences.offsets[row] + start for row, start, _ in spans], dtype=np.int64)  # i64 [n]
    lengths = np.array([length for _, _, length in spans], dtype=np.int64)  # i64 [n]
    renderer = MaskRenderer(mask_id=MASK_ID, pad_id=PAD_ID, prefix_ids=(FIRST_ID,), suffix_ids=(LAST_ID,))
    contexts = Contexts(np.array(reads), sequences.offsets[:-1], sequences.offsets[1:])
    return renderer.render(sequences, Spans(starts, lengths), contexts)


def encoded_as(queries: torch.Tensor, batch: MaskedBatch) -> EncodedBatch:
    """A batch whose masked copies are encoded as `queries` [Q, Lq, d]."""
    return EncodedBatch(lambda input_ids, attention_mask: queries, batch, with_clean_copies=False)


def plain_reading_loss(
    queries: torch.Tensor, batch: MaskedBatch, reads: list[list[int]], scale: float
) -> list[torch.Tensor]:
    """Start and end sums, one span and one key at a time; `reads` are the tokens that each copy reads."""
    sums = [torch.zeros((), dtype=queries.dtype) for _ in range(2)]
    for span, copy in enumerate(batch.span_sequences.tolist()):
        if not reads[copy]:
            continue
        tokens = [token for token in batch.span_token_ids[span].tolist() if token >= 0]
        size = int(batch.query_attention_mask[copy].sum())
        place = size - 1 - len(reads[copy])  # the last position is the suffix
        found = [at for at in range(len(reads[copy])) if reads[copy][at : at + len(tokens)] == tokens]
        for side, slot in enumerate((int(batch.start_slots[span]), int(batch.end_slots[span]))):
            keys = {-1: queries[copy, 0]} | {at: queries[copy, place + at] for at in range(len(reads[copy]))}
            logits = {at: scale * (queries[copy, slot] * key).sum() for at, key in keys.items()}
            right = [at + side * (len(tokens) - 1) for at in found] or [-1]
            every = torch.stack(list(logits.values())).exp().sum().log()
            sums[side] = sums[side] + every - torch.stack([logits[at] for at in right]).exp().sum().log()
    return sums


def test_the_loss_of_a_span_that_stands_in_the_block_and_of_one_that_does_not_worked_by_hand() -> None:
    # the copy of 5 6 with 5 masked: [CLS] M M 6 [SEP] 5 8 [SEP]; that of 5 8 with 8 masked reads 5 6, where no 8 is
    batch = batch_that_reads([[5, 6], [5, 8]], [(0, 0, 1), (1, 1, 1)], [1, 0])
    assert batch.query_input_ids.tolist() == [
        [FIRST_ID, MASK_ID, MASK_ID, 6, LAST_ID, 5, 8, LAST_ID],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 5, 6, LAST_ID],
    ]
    queries = torch.zeros(2, 8, 1)
    queries[0, 1], queries[0, 2] = 1.0, 2.0  # start and end query
    queries[0, 0], queries[0, 5], queries[0, 6] = 1.0, 3.0, 2.0  # "not here", 5, 8
    queries[1, 2], queries[1, 3] = 1.0, 1.0
    queries[1, 0], queries[1, 5], queries[1, 6] = 4.0, 1.0, 0.0
    terms = JointReading(1.0)(encoded_as(queries, batch))
    there = [math.log(math.exp(q) + math.exp(3 * q) + math.exp(2 * q)) - 3 * q for q in (1.0, 2.0)]
    absent = math.log(math.e**4 + math.e + 1) - 4
    assert terms["reading_start"].sum.item() == pytest.approx(there[0] + absent, abs=1e-5)
    assert terms["reading_end"].sum.item() == pytest.approx(there[1] + absent, abs=1e-5)
    assert terms["reading_start_top1"].sum.item() == 2
    assert {term.count for term in terms.values()} == {2}


@pytest.mark.parametrize("seed", range(5))
def test_values_and_gradients_equal_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 5, size).tolist() for size in (7, 4, 9, 3)]
    spans = [(0, 1, 2), (0, 5, 1), (1, 0, 1), (2, 3, 3), (2, 7, 2), (3, 1, 1)]
    reads = [2, NO_CONTEXT, 0, 2]
    batch = batch_that_reads(rows, spans, reads, titles=(2,))
    queries = torch.from_numpy(rng.standard_normal((*batch.query_input_ids.shape, 6))).float().requires_grad_()
    terms = JointReading(0.5)(encoded_as(queries, batch))
    shown = [rows[read][read == 2 :] if read >= 0 else [] for read in reads]  # without the title of the third
    start, end = plain_reading_loss(queries, batch, shown, 0.5)
    assert terms["reading_start"].sum.item() == pytest.approx(start.item(), rel=1e-5)
    assert terms["reading_end"].sum.item() == pytest.approx(end.item(), rel=1e-5)
    assert terms["reading_end"].count == 5  # all but the span of the copy that reads nothing
    (wanted,) = torch.autograd.grad(start + end, queries)
    (got,) = torch.autograd.grad(terms["reading_start"].sum + terms["reading_end"].sum, queries)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_titles_are_no_keys_of_the_clean_copies_and_none_of_the_read_blocks() -> None:
    batch = batch_that_reads([[7, 1, 2], [2, 3]], [(1, 0, 1)], [NO_CONTEXT, 0], titles=(0,))
    vectors = torch.arange(2 * 8, dtype=torch.float32).reshape(2, 8, 1)
    encoded = EncodedBatch(lambda input_ids, attention_mask: vectors[:, : input_ids.shape[1]], batch)
    assert encoded.key_token_ids.tolist() == [FIRST_ID, 1, 2, LAST_ID, FIRST_ID, 2, 3, LAST_ID]
    assert batch.read_tokens is not None
    assert batch.query_input_ids[1][batch.read_tokens[1]].tolist() == [1, 2]


def test_a_batch_in_which_no_copy_reads_has_terms_that_count_nothing() -> None:
    batch = batch_that_reads([[1, 2], [2, 3]], [(1, 0, 1)], [NO_CONTEXT, NO_CONTEXT])
    queries = torch.ones(*batch.query_input_ids.shape, 2, requires_grad=True)
    objective = JointReading(1.0)
    terms = objective(encoded_as(queries, batch))
    assert set(objective.counts(batch).values()) == {0}
    assert {(term.sum.item(), term.count) for term in terms.values()} == {(0.0, 0)}
