"""The phrase loss: numbers worked by hand, then equality with plain loops in values and gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from npm.objectives import nonparametric
from npm.objectives.combine import Term
from npm.objectives.encoded import clean_copy_keys
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.settings import NonparametricSettings, OwnSequence
from tests.objectives.batches import batch_of, encoded_with, plain_phrase_loss, random_batch, random_vectors


def objective_of(*, scale: float = 1.0, **settings: Any) -> NonparametricMasked:
    return NonparametricMasked(NonparametricSettings(**settings), similarity_scale=scale)


def loss_of(terms: dict[str, Term]) -> torch.Tensor:
    return sum((term.weight * term.sum for term in terms.values()), torch.zeros(()))


def three_sequences() -> tuple[Any, torch.Tensor]:
    """Sequences A = 5 6, B = 5 6 5, C = 5; masked are "5 6" in A and "5" in C; vectors of one dimension."""
    batch = batch_of([[5, 6], [5, 6, 5], [5]], [(0, 0, 2), (2, 0, 1)])
    vectors = torch.zeros(6, 3, 1)  # f32 [2B, L, d]
    vectors[0, :2, 0] = torch.tensor([1.0, 2.0])  # the mask pair of "5 6"
    vectors[2, :2, 0] = torch.tensor([1.0, 1.0])  # the mask pair of "5"
    vectors[3, :2, 0] = torch.tensor([11.0, 13.0]).log()  # keys of A
    vectors[4, :3, 0] = torch.tensor([2.0, 8.0, 5.0]).log()  # keys of B
    vectors[5, :1, 0] = torch.tensor([1.0]).log()  # keys of C
    return batch, vectors.requires_grad_()


def test_the_loss_of_two_phrases_worked_by_hand() -> None:
    """With q = 1 a key ln x has exp(q·k) = x, with q = 2 it has x².

    "5 6" in A looks at the keys of B and C. It begins at B₀ (5 6), not at B₂ or C₀, which nothing follows:
    start −ln 2 + ln(2 + 8 + 5 + 1) = ln 8. It ends at B₁: end, with q = 2, −ln 64 + ln(4 + 64 + 25 + 1) = ln(94/64).
    "5" in C looks at A and B, where it stands at A₀, B₀ and B₂: both sides −ln(11 + 2 + 5) + ln(11 + 13 + 2 + 8 + 5)
    = ln(39/18). The best key is a positive for the end of "5 6" alone (B₁; else B₁, A₁ and A₁ stand first).
    """
    batch, vectors = three_sequences()
    terms = objective_of()(encoded_with(vectors, batch))
    assert {name: term.count for name, term in terms.items()} == {"start": 2, "start_top1": 2, "end": 2, "end_top1": 2}
    assert terms["start"].sum.item() == pytest.approx(math.log(8) + math.log(39 / 18), rel=1e-6)
    assert terms["end"].sum.item() == pytest.approx(math.log(94 / 64) + math.log(39 / 18), rel=1e-6)
    assert (terms["start_top1"].sum.item(), terms["end_top1"].sum.item()) == (0, 1)
    assert (terms["start"].weight, terms["start_top1"].weight) == (1, 0)


def test_gradients_worked_by_hand() -> None:
    """d loss / d key = q · (softmax over all keys − softmax over positives).

    Start of "5 6": B₀ is the only positive among 2, 8, 5, 1 of 16, so its key gets 2/16 − 1, and C₀ gets 1/16.
    Start of "5" (twice, as both queries are 1): B₀ gets 2/39 − 2/18. End of "5 6", q = 2: C₀ gets 2 · 1/94.
    """
    batch, vectors = three_sequences()
    loss_of(objective_of()(encoded_with(vectors, batch))).backward()
    assert vectors.grad is not None
    # end of "5 6": B₀ is a negative, 2 · 4/94
    assert float(vectors.grad[4, 0, 0]) == pytest.approx(2 / 16 - 1 + 2 * (2 / 39 - 2 / 18) + 2 * 4 / 94, rel=1e-5)
    assert float(vectors.grad[5, 0, 0]) == pytest.approx(1 / 16 + 2 / 94, rel=1e-5)


def test_keys_of_the_own_sequence_are_neither_positive_nor_negative() -> None:
    """A = 5 7 5 with its first 5 masked, B = 5 7: A's other 5 does not matter, whatever its vector is."""
    batch = batch_of([[5, 7, 5], [5, 7]], [(0, 0, 1)])
    vectors = torch.zeros(4, 4, 1)  # f32 [2B, L, d]
    vectors[0, :2] = 1.0
    vectors[2, :3, 0] = torch.tensor([100.0, -100.0, 100.0])  # the keys of A
    vectors[3, :2, 0] = torch.tensor([3.0, 4.0]).log()
    vectors.requires_grad_()
    terms = objective_of()(encoded_with(vectors, batch))
    assert terms["start"].sum.item() == pytest.approx(math.log(7 / 3), rel=1e-6)
    loss_of(terms).backward()
    assert vectors.grad is not None
    assert not vectors.grad[2].any()
    assert vectors.grad[3, :2].all()


def test_special_tokens_are_keys_and_padding_is_not() -> None:
    """ "5" is masked in one sequence and stands in the other, 1 of whose 4 tokens, first and last included, it is."""
    batch = batch_of([[5], [5, 6]], [(0, 0, 1)], specials=True)
    vectors = torch.zeros(4, 4, 1)  # f32 [2B, L, d]
    vectors[0, 1:3] = 1.0
    terms = objective_of()(encoded_with(vectors, batch))
    assert terms["start"].sum.item() == pytest.approx(math.log(4), rel=1e-6)
    _, token_ids, sequences = clean_copy_keys(batch)
    assert token_ids.tolist() == [97, 5, 98, 97, 5, 6, 98]
    assert sequences.tolist() == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_values_and_gradients_equal_those_of_plain_loops(seed: int, specials: bool) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, specials=specials)
    vectors = random_vectors(batch, rng, dimensions=3)
    expected = plain_phrase_loss(vectors, batch, 0.7)
    (expected.start + 2 * expected.end).backward()
    assert vectors.grad is not None
    expected_gradient, vectors.grad = vectors.grad, None

    terms = objective_of(scale=0.7)(encoded_with(vectors, batch))
    (terms["start"].sum + 2 * terms["end"].sum).backward()
    assert len(batch.span_sequences) > 0
    torch.testing.assert_close(terms["start"].sum.item(), expected.start.item(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(terms["end"].sum.item(), expected.end.item(), rtol=1e-5, atol=1e-5)
    assert int(terms["start_top1"].sum) == expected.start_top1
    assert int(terms["end_top1"].sum) == expected.end_top1
    torch.testing.assert_close(vectors.grad, expected_gradient, rtol=1e-5, atol=1e-5)


def test_logits_are_those_of_float32_where_the_encoder_computes_in_bfloat16() -> None:
    batch = random_batch(np.random.default_rng(0), specials=True)
    vectors = (4 * random_vectors(batch, np.random.default_rng(0), dimensions=8)).float()
    expected = objective_of()(encoded_with(vectors, batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = objective_of()(encoded_with(vectors, batch))
    for name, term in terms.items():
        torch.testing.assert_close(term.sum, expected[name].sum, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_single_token_loss_equals_that_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, specials=True, mask_pairs=False)
    vectors = random_vectors(batch, rng, dimensions=3)
    objective = NonparametricMasked(NonparametricSettings(), similarity_scale=1.0, end_queries=False)
    terms = objective(encoded_with(vectors, batch))
    assert terms.keys() == {"start", "start_top1"} == objective.counts(batch).keys()
    expected = plain_phrase_loss(vectors, batch, 1.0)
    torch.testing.assert_close(terms["start"].sum.item(), expected.start.item(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expected.start.item(), expected.end.item())


def test_a_batch_without_spans_has_no_loss_and_zero_gradients_everywhere() -> None:
    batch = batch_of([[5, 6], [5]], [])
    vectors = random_vectors(batch, np.random.default_rng(0), dimensions=3)
    terms = objective_of()(encoded_with(vectors, batch))
    assert {(name, term.sum.item(), term.count) for name, term in terms.items()} == {
        (name, 0.0, 0) for name in ("start", "end", "start_top1", "end_top1")
    }
    loss_of(terms).backward()
    assert vectors.grad is not None
    assert not vectors.grad.any()


def test_the_own_sequence_can_be_made_of_negatives() -> None:
    """A = 5 7 5 with its first 5 masked, B = 5 7: the keys 11, 13 and 2 of A now stand below, never above."""
    batch = batch_of([[5, 7, 5], [5, 7]], [(0, 0, 1)])
    vectors = torch.zeros(4, 4, 1)  # f32 [2B, L, d]
    vectors[0, :2] = 1.0
    vectors[2, :3, 0] = torch.tensor([11.0, 13.0, 2.0]).log()
    vectors[3, :2, 0] = torch.tensor([3.0, 4.0]).log()
    terms = objective_of(own_sequence=OwnSequence.negatives)(encoded_with(vectors, batch))
    assert terms["start"].sum.item() == pytest.approx(math.log(33 / 3), rel=1e-6)


def test_spans_that_stand_nowhere_else_are_left_out_of_the_mean() -> None:
    batch = batch_of([[5, 6], [5, 6, 5], [5]], [(0, 0, 2), (0, 1, 1), (1, 1, 2)])
    two = batch_of([[5, 6], [5, 6, 5], [5]], [(0, 0, 2), (0, 1, 1)])
    vectors = random_vectors(two, np.random.default_rng(0), dimensions=3)
    alone, others = objective_of(), objective_of()
    kept = alone(encoded_with(vectors, two))
    more = others(encoded_with(vectors, replace(batch, query_input_ids=two.query_input_ids)))
    assert [term.count for term in more.values()] == [2] * 4  # "6 5" in B stands in no other sequence
    torch.testing.assert_close(more["start"].sum, kept["start"].sum)
    assert others.counts(batch) == {name: term.count for name, term in more.items()}


def test_spans_that_are_known_to_recur_are_not_looked_up() -> None:
    batch, vectors = three_sequences()
    known = NonparametricMasked(NonparametricSettings(), similarity_scale=1.0, spans_recur=True)
    assert known.counts(batch) == objective_of().counts(batch)
    looked_up, not_looked_up = objective_of()(encoded_with(vectors, batch)), known(encoded_with(vectors, batch))
    for name, term in looked_up.items():
        torch.testing.assert_close(not_looked_up[name].sum, term.sum, rtol=0, atol=0)


def test_queries_meet_the_keys_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks with the same batch, seen from the third: 12 sequences, its own 6 to 8."""
    batch, vectors = three_sequences()
    encoded = encoded_with(vectors, batch)
    own, _ = nonparametric.gather_keys(encoded)
    monkeypatch.setattr(nonparametric, "rank", lambda: 2)
    monkeypatch.setattr(nonparametric, "row_counts", lambda rows: [len(rows)] * 4)

    def gathered(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        numbers = rows.dtype is torch.int64 and int(rows.max()) > 6  # of sequences: 6, 7, 8 on this rank
        parts = [rows + 3 * (other - 2) if numbers else rows for other in range(len(counts))]
        return torch.cat(parts)

    monkeypatch.setattr(nonparametric, "gather_rows", gathered)
    keys, first = nonparametric.gather_keys(encoded)
    assert (first, sorted(set(keys.sequences.tolist()))) == (6, [*range(12)])
    torch.testing.assert_close(keys.vectors, own.vectors.repeat(4, 1))
