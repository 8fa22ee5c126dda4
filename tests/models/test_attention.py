"""Plain attention computes what transformers' own attention computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npm.models.encoder import Encoder, use_plain_attention
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

LENGTHS = (60, 9, 1)


def encoder_of(family: str, **config: Any) -> Encoder:
    """An encoder whose ModernBERT form sees four neighbors on each side in its second layer."""
    return tiny_encoder(family, **({"local_attention": 8} if family == "modernbert" else {}), **config)


def padded_batch(encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Random token ids of uneven lengths and their attention mask, i64 [B, L] each."""
    generator = torch.Generator().manual_seed(7)
    input_ids = torch.randint(10, 100, (len(LENGTHS), max(LENGTHS)), generator=generator)  # i64 [B, L]
    attention_mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()  # i64 [B, L]
    return input_ids.where(attention_mask.bool(), encoder.pad_id), attention_mask


def values_and_gradients(encoder: Encoder) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    input_ids, attention_mask = padded_batch(encoder)
    vectors = encoder.token_vectors(input_ids, attention_mask)[attention_mask.bool()]  # f32 [T, d]
    encoder.model.zero_grad()
    # the sum of squares alone would be flat: the last LayerNorm fixes the length of vectors
    (vectors * torch.linspace(-1, 1, vectors.numel()).reshape(vectors.shape)).sum().backward()
    gradients = {name: weight.grad for name, weight in encoder.model.named_parameters() if weight.grad is not None}
    return vectors.detach(), gradients


@pytest.mark.parametrize("other", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_attention_equals_that_of_transformers_in_values_and_gradients(family: str, other: str) -> None:
    encoder = encoder_of(family)
    encoder.model.set_attn_implementation(other)
    expected, expected_gradients = values_and_gradients(encoder)
    use_plain_attention(encoder.model)
    got, gradients = values_and_gradients(encoder)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(gradients[name], expected_gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_attention_in_bfloat16_gives_numbers_everywhere_even_under_padding(family: str) -> None:
    encoder = encoder_of(family, num_hidden_layers=4)
    exact, _ = values_and_gradients(encoder)
    use_plain_attention(encoder.model)
    input_ids, attention_mask = padded_batch(encoder)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        vectors = encoder.token_vectors(input_ids, attention_mask)  # f32 [B, L, d]
    assert vectors.isfinite().all()
    torch.testing.assert_close(vectors[attention_mask.bool()], exact, rtol=0, atol=0.1)


def test_plain_attention_drops_weights_in_training_only() -> None:
    encoder = encoder_of("bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    use_plain_attention(encoder.model)
    input_ids, attention_mask = padded_batch(encoder)
    for training in (False, True):
        encoder.model.train(training)
        first, second = (encoder.token_vectors(input_ids, attention_mask) for _ in range(2))
        assert torch.equal(first, second) is not training
