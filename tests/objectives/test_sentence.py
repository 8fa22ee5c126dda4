"""The contrastive loss over sentences: by hand, by a plain loop, by sentence-transformers, and in pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from npm.masking.batches import SentenceBatch
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.sentence import SentenceContrast, contrast_logits, own_columns
from npm.objectives.settings import SentenceSettings
from tests.helpers.sentence_batches import batch_of, sentences
from tests.helpers.tiny_models import tiny_encoder


def loss_of(parts: list[torch.Tensor], *, temperature: float = 0.05) -> torch.Tensor:
    """The sum of the loss over all anchors, from 2 or 3 of f32 [n, d]."""
    logits = contrast_logits(*parts, temperature=temperature)
    return torch.nn.functional.cross_entropy(logits, own_columns(parts[0]), reduction="sum")


def plain_loss(parts: list[torch.Tensor], *, temperature: float) -> torch.Tensor:
    """The formula of the paper, term by term."""
    anchors, positives = parts[:2]
    total = torch.zeros(())
    for i in range(len(anchors)):
        denominator = torch.zeros(())
        for j in range(len(anchors)):
            denominator = denominator + (cosine(anchors[i], positives[j]) / temperature).exp()
            if len(parts) == 3:
                denominator = denominator + (cosine(anchors[i], parts[2][j]) / temperature).exp()
        total = total - cosine(anchors[i], positives[i]) / temperature + denominator.log()
    return total


def cosine(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right / (left.norm() * right.norm())


def random_parts(columns: int, pairs: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(pairs, 6, generator=generator).requires_grad_() for _ in range(columns)]


def test_two_orthogonal_pairs_have_the_loss_worked_out_by_hand() -> None:
    """Each anchor has cosine 1 with its positive and 0 with the other: log(1 + e^(−1/τ)) an anchor."""
    parts = [torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[5.0, 0.0], [0.0, 0.5]])]
    assert float(loss_of(parts, temperature=0.5)) == pytest.approx(2 * math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("pairs", [1, 2, 7])
def test_values_and_gradients_equal_a_plain_loop(columns: int, pairs: int) -> None:
    parts = random_parts(columns, pairs, seed=10 * columns + pairs)
    settings = {"temperature": 0.3}
    ours, plain = loss_of(parts, **settings), plain_loss(parts, **settings)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(ours, parts), torch.autograd.grad(plain, parts), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("pairs", [2, 9])
def test_values_and_gradients_equal_multiple_negatives_ranking_of_sentence_transformers(
    columns: int, pairs: int
) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    parts = random_parts(columns, pairs, seed=pairs)
    expected = theirs.compute_loss_from_embeddings(parts, None)
    ours = loss_of(parts) / pairs
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(ours, parts), torch.autograd.grad(expected, parts), rtol=1e-5, atol=1e-6
    )


def steep_encoder(*, dropout: float = 0.0) -> Encoder:
    """A tiny BERT whose sentences differ: with weights as small as BERT's they are nearly the same before training."""
    dropouts: dict[str, Any] = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return tiny_encoder("bert", initializer_range=0.3, **dropouts)


def batch(columns: int) -> SentenceBatch:
    """Two pairs or triplets of uneven length."""
    rows = sentences(2 * columns)
    return batch_of(*(rows[start : start + 2] for start in range(0, 2 * columns, 2)))


def objective(*, temperature: float = 0.05, **settings: Any) -> SentenceContrast:
    torch.manual_seed(1)
    return SentenceContrast(SentenceSettings(**settings), dimensions=32, temperature=temperature)


@pytest.mark.parametrize("columns", [2, 3])
def test_the_terms_are_those_of_the_pooled_vectors(columns: int) -> None:
    encoder, rows = steep_encoder(), batch(columns)
    part = objective(pooler=PoolerKind.avg, temperature=0.1)
    encoded = EncodedRows(Passes(encoder.model), rows)
    terms = part(encoded)
    vectors = part.pooler(encoded.states(), rows.attention_mask)
    parts = list(vectors.split(2))
    torch.testing.assert_close(terms["sentence"].sum, plain_loss(parts, temperature=0.1), rtol=1e-4, atol=1e-5)
    assert (
        {name: term.count for name, term in terms.items()} == part.counts(rows) == {"sentence": 2, "sentence_top1": 2}
    )
    assert [term.weight for term in terms.values()] == [1.0, 0.0]
    logits = contrast_logits(*parts, temperature=0.1)
    assert int(terms["sentence_top1"].sum) == sum(int(logits[i].argmax()) == i for i in range(2))


def gradients(rows_per_pass: int | None, *, dropout: float, recomputed: bool = True) -> dict[str, torch.Tensor]:
    """Gradients of the loss of two sentences and themselves, in pieces of so many rows, always under the same seed."""
    encoder = steep_encoder(dropout=dropout)
    part = objective()
    encoder.model.train()
    passes = Passes(encoder.model, rows_per_pass=rows_per_pass)
    if not recomputed:
        passes = KeptPieces(encoder.model, rows_per_pass=rows_per_pass)
    torch.manual_seed(5)
    part(EncodedRows(passes, batch(3)))["sentence"].sum.backward()
    named = [*encoder.model.named_parameters(), *part.named_parameters()]
    return {name: weight.grad for name, weight in named if weight.grad is not None}


class KeptPieces(Passes):
    """Pieces like those of gradient caching, kept in memory instead of computed twice."""

    def piecewise(self, function: Any, *rows: torch.Tensor) -> Any:
        size = self.rows_per_pass or len(rows[0])
        if len(rows[0]) <= size:
            return function(*rows)
        return torch.cat([function(*(part[at : at + size] for part in rows)) for at in range(0, len(rows[0]), size)])


@pytest.mark.parametrize("rows_per_pass", [1, 4, 5])
def test_gradient_caching_leaves_the_gradient_as_it_is(rows_per_pass: int) -> None:
    whole, cached = gradients(None, dropout=0.0), gradients(rows_per_pass, dropout=0.0)
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-3
    torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows_per_pass", [2, 4])
def test_gradient_caching_computes_each_piece_again_under_the_same_dropout(rows_per_pass: int) -> None:
    cached = gradients(rows_per_pass, dropout=0.3)
    torch.testing.assert_close(cached, gradients(rows_per_pass, dropout=0.3, recomputed=False), rtol=1e-5, atol=1e-7)
    assert any(not torch.allclose(cached[name], value) for name, value in gradients(2, dropout=0.0).items())


@pytest.mark.parametrize("rows_per_pass", [None, 1, 2, 3])
def test_a_sentence_and_itself_are_under_different_dropouts(rows_per_pass: int | None) -> None:
    rows = batch_of(sentences(2), sentences(2))
    assert torch.equal(rows.input_ids[:2], rows.input_ids[2:])
    encoder = steep_encoder(dropout=0.1)
    part = objective()
    torch.manual_seed(0)
    passes = Passes(encoder.model.train(), rows_per_pass=rows_per_pass)
    anchors, positives = part.row_vectors(EncodedRows(passes, rows)).split(2)
    assert (anchors - positives).abs().amax(1).min() > 1e-3
    encoder.model.eval()
    anchors, positives = part.row_vectors(EncodedRows(passes, rows)).split(2)
    torch.testing.assert_close(anchors, positives)


def test_cosines_keep_their_digits_where_the_encoder_computes_in_bfloat16() -> None:
    vectors = random_parts(2, 24, seed=5)
    pooled = torch.cat(vectors)

    class Pooled(SentenceContrast):
        def row_vectors(self, encoded: EncodedRows[SentenceBatch]) -> torch.Tensor:
            return pooled

    loss = Pooled(SentenceSettings(), dimensions=pooled.shape[1])
    rows = torch.ones(48, 1, dtype=torch.long)
    encoded = EncodedRows(Passes(torch.nn.Identity()), SentenceBatch(rows, rows, pair_count=24, pad_id=0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(encoded)["sentence"].sum
    assert torch.equal(found, loss_of(vectors))
