"""The vectors of a batch do not depend on which copies went through the encoder together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npm.core.types import Spans
from npm.masking.batches import MaskedBatch
from npm.masking.masker import NO_CONTEXT, Contexts
from npm.masking.rendering import MaskRenderer
from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedBatch, Passes, clean_copy_keys
from tests.helpers.groups import group
from tests.helpers.tiny_models import tiny_encoder

SIZES = (14, 12, 9, 3)
READS = {
    "none": [NO_CONTEXT] * 4,
    "some": [1, NO_CONTEXT, 0, NO_CONTEXT],
    "all": [1, 0, 0, 0],
    "a short one only": [NO_CONTEXT, NO_CONTEXT, NO_CONTEXT, 2],
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert")


def batch_that_reads(encoder: Encoder, reads: list[int]) -> MaskedBatch:
    rng = np.random.default_rng(0)
    sequences = group(*(rng.integers(20, 60, size).tolist() for size in SIZES))
    starts = sequences.offsets[:-1] + 1  # i64 [S]
    renderer = MaskRenderer(
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids),
        suffix_ids=tuple(encoder.suffix_ids),
    )
    contexts = Contexts(np.array(reads), sequences.offsets[:-1], sequences.offsets[1:])
    return renderer.render(sequences, Spans(starts, np.ones(len(SIZES), dtype=np.int64)), contexts)


def alone(encoder: Encoder, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[torch.Tensor]:
    """The vectors [l, d] of each row in a pass of its own, without padding."""
    rows = []
    for ids, mask in zip(input_ids, attention_mask, strict=True):
        size = int(mask.sum())
        rows.append(encoder.token_vectors(ids[None, :size], mask[None, :size])[0])
    return rows


@pytest.mark.parametrize("name", READS)
def test_vectors_of_masked_and_clean_copies_equal_those_of_one_copy_at_a_time(
    name: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_that_reads(encoder, READS[name])
    monkeypatch.setattr("npm.objectives.encoded.MIN_SAVED_CPU", 8)
    calls: list[torch.Size] = []
    hook = encoder.model.register_forward_pre_hook(
        lambda _, __, given: calls.append(given["input_ids"].shape), with_kwargs=True
    )
    with torch.no_grad():
        encoded = EncodedBatch(Passes(encoder.model).states, batch)
        _ = encoded.query_vectors
        hook.remove()
        queries = alone(encoder, batch.query_input_ids, batch.query_attention_mask)
        keys = alone(encoder, batch.key_input_ids, batch.key_attention_mask)
        assert encoded.query_vectors.shape[:2] == batch.query_input_ids.shape
        for row, expected in zip(encoded.query_vectors, queries, strict=True):
            torch.testing.assert_close(row[: len(expected)], expected, rtol=0, atol=1e-5)
        is_key, token_ids, _ = clean_copy_keys(batch)
        torch.testing.assert_close(encoded.clean_vectors[is_key], torch.cat(keys), rtol=0, atol=1e-5)
        for vectors, slots in ((encoded.start_queries, batch.start_slots), (encoded.end_queries, batch.end_slots)):
            at_slots = [queries[row][slot] for row, slot in zip(batch.span_sequences, slots, strict=True)]
            torch.testing.assert_close(vectors, torch.stack(at_slots), rtol=0, atol=1e-5)
    assert len(calls) > (name != "a short one only")  # rows of similar lengths together
    assert token_ids.tolist() == batch.key_input_ids[batch.key_attention_mask.bool()].tolist()


def test_gradients_reach_the_encoder_from_copies_of_both_passes(encoder: Encoder) -> None:
    batch = batch_that_reads(encoder, READS["some"])
    gradients = []
    for together in (True, False):
        encoder.model.zero_grad()
        if together:
            queries = EncodedBatch(Passes(encoder.model).states, batch).query_vectors
            chosen = queries[batch.span_sequences, batch.start_slots]
        else:
            rows = alone(encoder, batch.query_input_ids, batch.query_attention_mask)
            chosen = torch.stack(
                [rows[row][slot] for row, slot in zip(batch.span_sequences, batch.start_slots, strict=True)]
            )
        chosen[:, 0].sum().backward()
        weights = encoder.model.get_input_embeddings().weight
        assert isinstance(weights, torch.Tensor) and weights.grad is not None
        gradients.append(weights.grad.clone())
    encoder.model.zero_grad()
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)
    assert gradients[0].abs().max() > 1e-3
