"""The phrase loss at several lengths of vectors at once equals plain loops over the lengths, values and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from npm.models.settings import leading_scale
from npm.objectives import nonparametric
from npm.objectives.combine import Term
from npm.objectives.encoded import clean_copy_keys
from npm.objectives.nonparametric import NonparametricMasked, span_losses
from npm.objectives.settings import NonparametricSettings
from tests.objectives.batches import (
    batch_of,
    encoded_with,
    plain_phrase_loss,
    random_batch,
    random_vectors,
)

WHOLE = 8
SHORTER = [5, 2]
"""In any order."""


def objective_of(*, scale: float = 0.6, dimensions: list[int] | None = None, **settings: Any) -> NonparametricMasked:
    chosen = SHORTER if dimensions is None else dimensions
    return NonparametricMasked(
        NonparametricSettings(dimensions=chosen, **settings), similarity_scale=scale, dimensions=WHOLE
    )


def loss_of(terms: dict[str, Term]) -> torch.Tensor:
    return sum((term.weight * term.sum for term in terms.values()), torch.zeros(()))


def test_the_scale_of_a_quarter_of_the_vector_is_twice_the_whole_ones() -> None:
    """scale × √(whole / dimensions), which is 1/√dimensions where the whole has 1/√whole."""
    assert leading_scale(0.25, 96, 384) == 0.5
    assert leading_scale(384**-0.5, 64, 384) == pytest.approx(64**-0.5)
    assert leading_scale(0.25, 384, 384) == 0.25


def test_the_losses_of_one_span_at_two_lengths_worked_by_hand() -> None:
    """ "5" is masked in A and stands in B = 5 6, whose keys are (ln 3, ln 2) and (0, ln 8); q = (1, 1), scale 1.

    Whole: −ln 6 + ln(6 + 8) = ln(14/6). The first number alone, at scale √2: −√2 ln 3 + ln(3^√2 + 1).
    """
    batch = batch_of([[5], [5, 6]], [(0, 0, 1)])
    vectors = torch.zeros(4, 2, 2)  # f32 [2B, L, d]
    vectors[0] = 1.0
    vectors[3] = torch.tensor([[3.0, 2.0], [1.0, 8.0]]).log()
    settings = NonparametricSettings(dimensions=[1])
    terms = NonparametricMasked(settings, similarity_scale=1.0, dimensions=2)(encoded_with(vectors, batch))
    first = 3 ** math.sqrt(2)
    assert terms["start"].sum.item() == pytest.approx(math.log(14 / 6), rel=1e-6)
    assert terms["start_1"].sum.item() == pytest.approx(math.log((first + 1) / first), rel=1e-6)
    assert (terms["start"].weight, terms["start_1"].weight) == (0.5, 0.5)
    # by whole vectors the wrong key is the best one, by their first number the right one
    assert (terms["start_top1"].sum.item(), terms["start_1_top1"].sum.item()) == (0, 1)
    assert (terms["start_top1"].weight, terms["start_1_top1"].weight) == (0, 0)


@pytest.mark.parametrize("max_logits_per_chunk", [10**6, 1, 200])
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_equal_those_of_a_plain_loop_over_lengths(
    seed: int, max_logits_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonparametric, "MAX_LOGITS_PER_CHUNK", max_logits_per_chunk)
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, specials=True)
    vectors = random_vectors(batch, rng, dimensions=WHOLE)
    expected = torch.zeros((), dtype=torch.float64)
    sums: dict[str, float] = {}
    for length in (*SHORTER, WHOLE):
        plain = plain_phrase_loss(vectors[..., :length], batch, 0.6 * math.sqrt(WHOLE / length))
        suffix = "" if length == WHOLE else f"_{length}"
        sums |= {f"start{suffix}": plain.start.item(), f"end{suffix}": plain.end.item()}
        sums |= {f"start{suffix}_top1": plain.start_top1, f"end{suffix}_top1": plain.end_top1}
        expected = expected + (plain.start + plain.end) / 3  # the mean over lengths
    expected.backward()
    assert vectors.grad is not None
    expected_gradient, vectors.grad = vectors.grad, None

    objective = objective_of()
    terms = objective(encoded_with(vectors, batch))
    loss_of(terms).backward()
    assert len(batch.span_sequences) > 0
    assert objective.counts(batch) == {name: term.count for name, term in terms.items()}
    assert {name: term.sum.item() for name, term in terms.items()} == pytest.approx(sums, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(vectors.grad, expected_gradient, rtol=1e-5, atol=1e-5)


def test_a_chunk_holds_no_more_logits_than_allowed_those_of_all_lengths_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = random_batch(np.random.default_rng(3), specials=True)
    encoded = encoded_with(random_vectors(batch, np.random.default_rng(3), dimensions=WHOLE), batch)
    key_count, held = len(clean_copy_keys(batch)[1]), []

    def counted(queries: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        held.append(len(queries) * key_count * (1 + len(SHORTER)))
        return span_losses(queries, *others)

    monkeypatch.setattr(nonparametric, "span_losses", counted)
    limit = 2 * key_count * (1 + len(SHORTER))
    monkeypatch.setattr(nonparametric, "MAX_LOGITS_PER_CHUNK", limit)
    objective_of()(encoded)
    assert max(held) == limit
