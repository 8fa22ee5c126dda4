"""Visible-only encoding: the encoder reads what is not masked, at its own positions; the decoder fills the masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch
from npm.models.encoder import Encoder
from npm.models.masked_lm import VisibleOnly, attach_masked_head, visible_columns
from npm.objectives.encoded import EncodedBatch, Passes
from npm.objectives.masked import MaskedTokens
from npm.objectives.settings import MaskedSettings
from tests.helpers.tiny_models import FAMILIES, tiny_encoder


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(str(request.param))


def random_rows(encoder: Encoder, sizes: list[int], *, masked_share: float, seed: int = 0) -> MaskedBatch:
    """Rows of uneven length between special tokens, some of their tokens masked; most of the masks are targets."""
    rng = np.random.default_rng(seed)
    width = max(sizes) + 2
    clean = torch.full((len(sizes), width), encoder.pad_id)  # i64 [B, L]
    attention = torch.zeros_like(clean)
    for row, size in enumerate(sizes):
        tokens = rng.integers(10, len(encoder.tokenizer), size).tolist()
        clean[row, : size + 2] = torch.tensor([encoder.prefix_ids[0], *tokens, encoder.suffix_ids[0]])
        attention[row, : size + 2] = 1
    inside = attention.bool()
    inside[:, 0] = False
    inside[torch.arange(len(sizes)), torch.tensor(sizes) + 1] = False
    is_masked = inside & torch.from_numpy(rng.random(clean.shape) < masked_share)  # bool [B, L]
    is_target = is_masked & torch.from_numpy(rng.random(clean.shape) < 0.8)  # the others are masked, not predicted
    sequences, slots = is_target.nonzero(as_tuple=True)  # i64 [n]
    return MaskedBatch(
        query_input_ids=clean.masked_fill(is_masked, encoder.mask_id),
        query_attention_mask=attention,
        key_input_ids=clean,
        key_attention_mask=attention,
        span_sequences=sequences,
        start_slots=slots,
        end_slots=slots,
        span_token_ids=clean[is_target][:, None],
        pad_id=encoder.pad_id,
    )


def recording(encoder: Encoder, **settings: Any) -> tuple[Any, list[tuple[torch.Tensor, ...]]]:
    """The encoder as objectives call it, and a list of what it was given and what it answered."""
    passes, calls = Passes(encoder.model, **settings), []

    def token_vectors(*given: torch.Tensor) -> torch.Tensor:
        vectors = passes.states(*given)
        calls.append((*given, vectors))
        return vectors

    return token_vectors, calls


def test_with_nothing_masked_the_encoder_gives_the_vectors_of_a_plain_pass(encoder: Encoder) -> None:
    batch = random_rows(encoder, [7, 3, 12, 1], masked_share=0.0)
    token_vectors, calls = recording(encoder)
    ids, mask = batch.query_input_ids, batch.query_attention_mask
    with torch.no_grad():
        VisibleOnly(encoder, decoder_layers=1).eval()(token_vectors, ids, mask)
        plain = encoder.token_vectors(ids, mask)  # f32 [B, L, d]
    *_, vectors = calls[0]
    torch.testing.assert_close(vectors[mask.bool()], plain[mask.bool()], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_each_visible_token_is_encoded_at_its_own_position_among_the_visible_alone(family: str) -> None:
    encoder = tiny_encoder(family)
    batch = random_rows(encoder, [9, 4, 11], masked_share=0.4)
    token_vectors, calls = recording(encoder)
    ids, mask = batch.query_input_ids, batch.query_attention_mask
    with torch.no_grad():
        VisibleOnly(encoder, decoder_layers=1).eval()(token_vectors, ids, mask)
        # masks hidden by attention instead of left out; every token stands where it stood
        hidden = encoder.token_vectors(ids, mask * (ids != encoder.mask_id))  # f32 [B, L, d]
    given_ids, given_mask, _, vectors = calls[0]
    visible = mask.bool() & (ids != encoder.mask_id)  # bool [B, L]
    assert given_ids.shape[1] == int(visible.sum(1).max()) < ids.shape[1]
    assert not (given_ids[given_mask.bool()] == encoder.mask_id).any()
    torch.testing.assert_close(vectors[given_mask.bool()], hidden[visible], rtol=1e-5, atol=1e-5)


def test_columns_of_visible_tokens_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        rows, width = int(rng.integers(1, 6)), int(rng.integers(1, 12))
        ids = torch.from_numpy(rng.integers(1, 5, (rows, width)))  # i64 [B, L]; 1 is the mask
        lengths = torch.from_numpy(rng.integers(1, width + 1, rows))
        attention = (torch.arange(width) < lengths[:, None]).long()
        columns, visible = visible_columns(ids, attention, mask_id=1)
        for row in range(rows):
            expected = [at for at in range(int(lengths[row])) if ids[row, at] != 1]
            assert columns[row][visible[row]].tolist() == expected
            assert len(set(columns[row].tolist())) == columns.shape[1]
        assert columns.shape[1] == int(visible.sum(1).max())


def test_the_decoder_sees_encoded_tokens_in_their_places_and_the_mask_vector_elsewhere(encoder: Encoder) -> None:
    batch = random_rows(encoder, [9, 4, 11], masked_share=0.5)
    visible_only = VisibleOnly(encoder, decoder_layers=1).eval()
    token_vectors, calls = recording(encoder)
    seen: list[torch.Tensor] = []
    visible_only.decoder.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["inputs_embeds"]), with_kwargs=True
    )
    ids, mask = batch.query_input_ids, batch.query_attention_mask
    with torch.no_grad():
        decoded = visible_only(token_vectors, ids, mask)
    assert decoded.shape == (*ids.shape, encoder.dimensions)
    _, given_mask, positions, vectors = calls[0]
    columns = positions - visible_only.first_position
    filled = torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        for at, there in enumerate(given_mask[row].tolist()):
            if there:
                torch.testing.assert_close(seen[0][row, columns[row, at]], vectors[row, at], rtol=0, atol=0)
                filled[row, columns[row, at]] = True
    assert torch.equal(filled, mask.bool() & (ids != encoder.mask_id))
    assert (seen[0][~filled] == visible_only.mask_vector).all()


def objective_of(encoder: Encoder, folder: Path, *, decoder_layers: int = 1) -> MaskedTokens:
    encoder.save(folder)
    torch.manual_seed(0)
    head = attach_masked_head(encoder, str(folder), trained=False)
    return MaskedTokens(head, visible=VisibleOnly(encoder, decoder_layers=decoder_layers)).eval()


def test_the_loss_at_the_masks_equals_a_dense_head_over_all_positions(encoder: Encoder, tmp_path: Path) -> None:
    objective = objective_of(encoder, tmp_path)
    batch = random_rows(encoder, [9, 4, 11], masked_share=0.5)
    token_vectors, _ = recording(encoder)
    terms = objective(EncodedBatch(token_vectors, batch, with_clean_copies=False))
    assert objective.visible is not None
    decoded = objective.visible(token_vectors, batch.query_input_ids, batch.query_attention_mask)  # f32 [B, L, d]
    labels = torch.full(batch.query_input_ids.shape, -100)  # i64 [B, L]
    labels[batch.span_sequences, batch.start_slots] = batch.span_token_ids[:, 0]
    logits = objective.head(decoded)  # f32 [B, L, V]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(terms["masked"].sum, expected)
    right = ((logits.argmax(2) == labels) & (labels >= 0)).sum()
    assert int(terms["masked_top1"].sum) == int(right)
    count = int((labels >= 0).sum())
    assert (
        objective.counts(batch)
        == {"masked": count, "masked_top1": count}
        == {name: term.count for name, term in terms.items()}
    )


def test_piece_by_piece_the_gradient_is_that_of_the_whole_batch(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    objective = objective_of(encoder, tmp_path)
    batch = random_rows(encoder, [9, 4, 11, 2, 5], masked_share=0.5)
    wanted = [*objective.parameters(), *encoder.model.parameters()]
    gradients = []
    for rows_per_pass in (None, 2):
        token_vectors, _ = recording(encoder, rows_per_pass=rows_per_pass)
        loss = objective(EncodedBatch(token_vectors, batch, with_clean_copies=False))["masked"].sum
        gradients.append(torch.autograd.grad(loss, wanted))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_kept_or_replaced_tokens_do_not_go_with_encoding_the_visible_alone() -> None:
    MaskedSettings(visible_only=True).check_masks(1.0)
    MaskedSettings(visible_only=False).check_masks(0.8)
    with pytest.raises(SettingError, match="visible_only"):
        MaskedSettings(visible_only=True).check_masks(0.8)
