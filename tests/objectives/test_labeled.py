"""The head over labeled text: its loss by hand, the vectors it reads, and rows without a target."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from npm.masking.batches import LabeledBatch
from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedRows, Passes, groups_by_length
from npm.objectives.labeled import LabeledContrast, LabeledText, supervised_contrast
from tests.helpers.labeled_texts import encoder_of_pairs


def batch_of(targets: torch.Tensor, *, rows: list[int], slots: list[int], types: bool = False) -> LabeledBatch:
    """Two rows of six tokens, the second of them shorter; with `types` the last three are of a second text."""
    ids = torch.tensor([[2, 20, 21, 3, 22, 3], [2, 23, 3, 24, 3, 0]])  # i64 [2, 6]
    token_types = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]])  # i64 [2, 6]
    return LabeledBatch(
        input_ids=ids,
        attention_mask=(ids > 0).long(),
        token_type_ids=token_types if types else None,
        rows=torch.tensor(rows, dtype=torch.int64),
        slots=torch.tensor(slots, dtype=torch.int64),
        targets=targets,
    )


@pytest.fixture
def encoder() -> Encoder:
    return encoder_of_pairs()


def encoded(encoder: Encoder, batch: LabeledBatch, **settings: int) -> EncodedRows[LabeledBatch]:
    return EncodedRows(Passes(encoder.model, **settings), batch)


def test_labels_of_sequences_are_predicted_by_an_mlp_over_the_first_token(encoder: Encoder) -> None:
    head = LabeledText(encoder.dimensions, 3).eval()
    batch = batch_of(torch.tensor([2, 0]), rows=[0, 1], slots=[0, 0])
    states = encoder.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    _, dense, _, _, output = head.head
    logits = output(torch.tanh(dense(states[:, 0])))  # f32 [2, 3]
    expected = -sum(torch.log_softmax(row, 0)[label] for row, label in zip(logits, (2, 0), strict=True))
    terms = head(encoded(encoder, batch))
    torch.testing.assert_close(terms["labeled"].sum, expected)
    right = int((logits.argmax(1) == batch.targets).sum())
    assert (int(terms["labeled_top1"].sum), terms["labeled_top1"].weight) == (right, 0.0)
    assert head.counts(batch) == {name: term.count for name, term in terms.items()} == dict.fromkeys(terms, 2)


def test_scores_have_the_squared_error_and_no_right_labels(encoder: Encoder) -> None:
    head = LabeledText(encoder.dimensions, 1).eval()
    batch = batch_of(torch.tensor([4.0, 1.5]), rows=[0, 1], slots=[0, 0])
    given = head.predictions(encoded(encoder, batch))[:, 0].tolist()
    terms = head(encoded(encoder, batch))
    assert terms["labeled"].sum.item() == pytest.approx((given[0] - 4) ** 2 + (given[1] - 1.5) ** 2, rel=1e-6)
    assert terms.keys() == head.counts(batch).keys() == {"labeled"}


def test_words_and_layers_are_read_where_they_stand(encoder: Encoder) -> None:
    batch = batch_of(torch.tensor([1, 0, 1]), rows=[0, 0, 1], slots=[1, 4, 3])
    output = encoder.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True)
    for layer in (None, 0, 1, 2):
        head = LabeledText(encoder.dimensions, 2, of_words=True, layer=layer).eval()
        states = output.hidden_states[2 if layer is None else layer]  # f32 [2, 6, d]
        chosen = torch.stack([states[0, 1], states[0, 4], states[1, 3]])  # f32 [3, d]
        expected = head.head[1](chosen)  # f32 [3, 2]
        torch.testing.assert_close(head.predictions(encoded(encoder, batch)), expected)


def test_pooled_heads_read_the_mean_of_all_tokens_but_padding(encoder: Encoder) -> None:
    batch = batch_of(torch.tensor([1, 1, 0]), rows=[0, 1, 1], slots=[0, 0, 0])
    states = encoder.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    means = torch.stack([states[0].mean(0), *[states[1, :5].mean(0)] * 2])  # f32 [3, d]
    head = LabeledText(encoder.dimensions, 2, mean_pooled=True).eval()
    torch.testing.assert_close(head.predictions(encoded(encoder, batch)), head.head(means))
    contrast = LabeledContrast(mean_pooled=True)(encoded(encoder, batch))["labeled_contrast"]
    unit = torch.nn.functional.normalize(means, dim=1)  # f32 [3, d]
    expected = supervised_contrast(unit, batch.targets, temperature=0.3)
    torch.testing.assert_close(contrast.sum, expected)
    words = LabeledText(encoder.dimensions, 2, of_words=True, mean_pooled=True).eval()
    torch.testing.assert_close(words.predictions(encoded(encoder, batch)), words.head(states[batch.rows, 0]))


def test_token_types_reach_the_encoder_and_pieces_change_nothing(encoder: Encoder) -> None:
    head = LabeledText(encoder.dimensions, 2).eval()
    targets, place = torch.tensor([1, 0]), {"rows": [0, 1], "slots": [0, 0]}
    typed = head.predictions(encoded(encoder, batch_of(targets, types=True, **place)))
    assert (typed - head.predictions(encoded(encoder, batch_of(targets, **place)))).abs().max() > 1e-4
    pieces = head.predictions(encoded(encoder, batch_of(targets, types=True, **place), rows_per_pass=1))
    torch.testing.assert_close(pieces, typed)


@pytest.mark.parametrize("layer", [None, 1])
def test_rows_of_like_lengths_together_give_the_vectors_and_gradients_of_one_pass(
    encoder: Encoder, layer: int | None, rng: np.random.Generator
) -> None:
    lengths = torch.from_numpy(rng.permutation([3, 3, 4, 4, 5, 5, 6, 7, 12, 24]))  # i64 [10]
    mask = (torch.arange(24) < lengths[:, None]).long()  # i64 [10, 24]
    ids = torch.from_numpy(rng.integers(5, len(encoder.tokenizer), (10, 24))) * mask
    types = torch.from_numpy(rng.integers(0, 2, (10, 24))) * mask
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = LabeledBatch(ids, mask, types, nothing, nothing, nothing)
    assert [len(rows) for rows in groups_by_length(mask)] == [2, 8]
    assert len(groups_by_length(mask[:, :4])) == 1  # little would be saved
    output = encoder.model(input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
    states = {True: output.hidden_states[2 if layer is None else layer], False: encoded(encoder, batch).states(layer)}
    weights = torch.randn(10, 24, encoder.dimensions) * mask[..., None]  # f32 [10, 24, d]
    torch.testing.assert_close(*((own * mask[..., None]) for own in states.values()))
    parameters = [p for name, p in encoder.model.named_parameters() if "layer.0" in name or "embeddings.word" in name]
    one, many = (torch.autograd.grad((own * weights).sum(), parameters) for own in states.values())
    torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)


def test_without_a_target_every_parameter_has_a_zero_gradient(encoder: Encoder) -> None:
    head = LabeledText(encoder.dimensions, 2)
    batch = batch_of(torch.zeros(0, dtype=torch.int64), rows=[], slots=[])
    term = head(encoded(encoder, batch))["labeled"]
    assert (term.sum.item(), term.count) == (0, 0)
    term.sum.backward()
    weights = [*head.parameters(), encoder.model.get_input_embeddings().weight]
    assert all(weight.grad is not None and not weight.grad.any() for weight in weights)


def test_the_contrast_of_labels_is_that_of_plain_loops(encoder: Encoder) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(6, 4, generator=generator), dim=1)  # f32 [6, 4]
    labels = [0, 1, 0, 0, 2, 1]
    total = 0.0
    for i in range(6):
        others = [k for k in range(6) if k != i]
        below = sum(math.exp(float(vectors[i] @ vectors[k]) / 0.3) for k in others)
        same = [j for j in others if labels[j] == labels[i]]
        for j in same:
            total -= math.log(math.exp(float(vectors[i] @ vectors[j]) / 0.3) / below) / len(same)
    found = supervised_contrast(vectors, torch.tensor(labels), temperature=0.3)
    assert float(found) == pytest.approx(total, rel=1e-5)

    lonely = batch_of(torch.tensor([1, 0]), rows=[0, 1], slots=[0, 0])
    term = LabeledContrast(0.3)(encoded(encoder, lonely))["labeled_contrast"]
    assert (term.sum.item(), term.count) == (0, 2)
    term.sum.backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in encoder.model.parameters())
