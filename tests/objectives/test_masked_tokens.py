"""Masked-token prediction equals a dense cross entropy; objectives add up; one encoder pass serves them all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from npm.masking.batches import TrainingBatch
from npm.models.masked_lm import MaskedHead
from npm.objectives.combine import WeightedSum
from npm.objectives.encoded import EncodedBatch
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.settings import NonparametricSettings
from tests.objectives.batches import batch_of, encoded_with, random_batch, random_vectors

VOCABULARY, DIMENSIONS = 100, 8


@pytest.fixture
def masked() -> MaskedTokens:
    torch.manual_seed(0)
    transform = nn.Sequential(nn.Linear(DIMENSIONS, DIMENSIONS), nn.GELU(), nn.LayerNorm(DIMENSIONS))
    bias = nn.Parameter(torch.randn(VOCABULARY))  # f32 [V]
    return MaskedTokens(MaskedHead(transform, bias, nn.Embedding(VOCABULARY, DIMENSIONS)))


def dense_cross_entropy(head: MaskedHead, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over all positions with a label of vectors f32 [B, L, d], labels i64 [B, L] with -100 elsewhere."""
    logits = nn.functional.linear(head.transform(vectors), head.embedding.weight, head.bias)  # f32 [B, L, V]
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


def test_the_loss_equals_a_dense_cross_entropy_in_values_and_gradients(masked: MaskedTokens) -> None:
    rng = np.random.default_rng(1)
    batch = random_batch(rng, specials=True, mask_pairs=False)
    vectors = random_vectors(batch, rng, dimensions=DIMENSIONS).detach().float().requires_grad_()
    labels = torch.full(batch.query_input_ids.shape, -100)  # i64 [B, Lq]
    for span, tokens in enumerate(batch.span_token_ids.tolist()):
        sequence = batch.span_sequences[span]
        labels[sequence, batch.start_slots[span]] = tokens[0]
    queries = vectors[: len(labels), : labels.shape[1]]  # f32 [B, Lq, d]
    expected = dense_cross_entropy(masked.head, queries, labels)
    wanted = [vectors, *masked.parameters(), masked.head.embedding.weight]
    expected_gradients = torch.autograd.grad(expected, wanted)

    terms = masked(encoded_with(vectors, batch))
    assert terms["masked"].count == int((labels >= 0).sum()) == masked.counts(batch)["masked"]
    torch.testing.assert_close(terms["masked"].sum, expected)
    torch.testing.assert_close(torch.autograd.grad(terms["masked"].sum, wanted), expected_gradients)


def test_without_spans_every_parameter_still_gets_a_zero_gradient(masked: MaskedTokens) -> None:
    batch = batch_of([[5, 6], [5]], [], mask_pairs=False)
    vectors = torch.randn(4, 2, DIMENSIONS, requires_grad=True)
    term = masked(encoded_with(vectors, batch))["masked"]
    assert (term.sum.item(), term.count, masked.counts(batch)["masked"]) == (0, 0, 0)
    term.sum.backward()
    for tensor in (vectors, *masked.parameters(), masked.head.embedding.weight):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def combined(masked: MaskedTokens, *, scale: float = 0.5) -> WeightedSum:
    phrase_loss = NonparametricMasked(NonparametricSettings(), similarity_scale=scale)
    return WeightedSum({"nonparametric": phrase_loss, "masked": masked}, {"nonparametric": 2.0, "masked": 0.25})


def test_a_weighted_sum_keeps_every_term_with_its_count_and_multiplies_its_weight(masked: MaskedTokens) -> None:
    rng = np.random.default_rng(2)
    batches = {
        "phrases": random_batch(rng, specials=True),
        "tokens": random_batch(rng, specials=True, mask_pairs=False),
    }
    encoded = {
        name: encoded_with(random_vectors(batch, rng, dimensions=DIMENSIONS).detach().float(), batch)
        for name, batch in batches.items()
    }
    objective = combined(masked)
    terms = objective(encoded)
    apart = objective.objectives["nonparametric"](encoded["phrases"]) | masked(encoded["tokens"])
    counts = objective.counts(TrainingBatch(dict(batches), token_count=0))
    assert counts == {name: term.count for name, term in apart.items()}
    for name, term in apart.items():
        factor = 0.25 if name.startswith("masked") else 2.0
        assert (terms[name].sum.item(), terms[name].count) == (term.sum.item(), term.count)
        assert terms[name].weight == factor * term.weight


def test_masked_tokens_alone_need_no_vectors_of_the_clean_copies(masked: MaskedTokens) -> None:
    rng = np.random.default_rng(3)
    batch = random_batch(rng, specials=True, mask_pairs=False)
    vectors = random_vectors(batch, rng, dimensions=DIMENSIONS).detach().float()
    masked_copies = vectors[: len(batch.query_input_ids), : batch.query_input_ids.shape[1]]  # f32 [B, Lq, d]
    asked: list[torch.Tensor] = []

    def token_vectors(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        asked.append(input_ids)
        return masked_copies

    terms = masked(EncodedBatch(token_vectors, batch, with_clean_copies=False))
    expected = masked(encoded_with(vectors, batch))
    assert len(asked) == 1 and torch.equal(asked[0], batch.query_input_ids)
    torch.testing.assert_close(terms["masked"].sum, expected["masked"].sum)
    assert terms["masked"].count == expected["masked"].count > 0
