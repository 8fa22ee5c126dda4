"""The loss of encoder-decoders: against plain loops over rows and tokens, its gradient, its counts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from npm.masking.batches import DenoisingBatch
from npm.masking.denoising import NO_TARGET, DenoisingSettings, Sentinels, build_denoising_views
from npm.objectives.combine import Term
from npm.objectives.denoising import Denoising
from npm.objectives.encoded import EncodedDenoising, Passes
from tests.helpers.groups import random_group

SETTINGS = DenoisingSettings()
FAMILIES = SETTINGS.families()
MODE_IDS = {"[R]": 92, "[S]": 93, "[X]": 94}
SENTINELS = Sentinels(tuple(range(60, 90)), end_id=90, pad_id=91, mode_ids=tuple(MODE_IDS[m] for m in SETTINGS.modes()))


def tiny_t5(seed: int = 0) -> T5ForConditionalGeneration:
    config = T5Config(vocab_size=95, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0)
    config.pad_token_id = config.decoder_start_token_id = 91
    config.eos_token_id = 90
    torch.manual_seed(seed)
    return T5ForConditionalGeneration(config).train()


def random_batch(seed: int, *, sequences: int = 9) -> DenoisingBatch:
    rng = np.random.default_rng(seed)
    group = random_group(rng, sequence_count=sequences, max_tokens=30, vocabulary=60)
    return build_denoising_views(SETTINGS, SENTINELS, max_text_tokens=30).view([group], [rng])


def terms_of(model: nn.Module, batch: DenoisingBatch, rows_per_pass: int | None = None) -> dict[str, Term]:
    terms: dict[str, Term] = Denoising(FAMILIES)(EncodedDenoising(Passes(model, rows_per_pass=rows_per_pass), batch))
    return terms


def plain_terms(model: nn.Module, batch: DenoisingBatch) -> dict[str, torch.Tensor]:
    """Sums of each term, each row read alone, without padding, its decoder inputs shifted by hand."""
    sums = {name: torch.zeros(()) for name in ("denoising", "denoising_top1", *(f"denoising_{f}" for f in "RSX"))}
    for row in range(len(batch.input_ids)):
        inputs = batch.input_ids[row][batch.attention_mask[row].bool()][None]
        targets = [token for token in batch.target_ids[row].tolist() if token != NO_TARGET]
        shifted = torch.tensor([[91, *targets[:-1]]])
        logits = model(input_ids=inputs, decoder_input_ids=shifted).logits[0]
        for place, token in enumerate(targets):
            loss = torch.logsumexp(logits[place], 0) - logits[place, token]
            sums["denoising"] = sums["denoising"] + loss
            sums[f"denoising_{FAMILIES[int(batch.denoisers[row])]}"] += loss.detach()
            sums["denoising_top1"] += float(logits[place].argmax() == token)
    return sums


def test_a_worked_example() -> None:
    batch = DenoisingBatch(
        input_ids=torch.zeros(2, 1, dtype=torch.int64),
        attention_mask=torch.ones(2, 1, dtype=torch.int64),
        target_ids=torch.tensor([[0, 1], [1, NO_TARGET]]),
        denoisers=torch.tensor([0, 1]),
        text_token_count=3,
    )
    logits = torch.tensor([[[3.0, 1.0], [0.0, 0.0]], [[0.0, math.log(3.0)], [9.0, -9.0]]]).requires_grad_()
    terms = Denoising(("R", "X"))(SimpleNamespace(batch=batch, logits=logits))  # type: ignore[arg-type]
    first, second = math.log(1 + math.exp(-2)) + math.log(2), math.log(4 / 3)
    assert float(terms["denoising"].sum.detach()) == pytest.approx(first + second)
    assert float(terms["denoising_R"].sum) == pytest.approx(first)
    assert float(terms["denoising_X"].sum) == pytest.approx(second)
    assert {name: term.count for name, term in terms.items()} == {
        "denoising": 3,
        "denoising_top1": 3,
        "denoising_R": 2,
        "denoising_X": 1,
    }
    assert int(terms["denoising_top1"].sum) == 2  # the tie of the second token goes to token 0, which is wrong
    assert [name for name, term in terms.items() if term.weight] == ["denoising"]


@pytest.mark.parametrize("rows_per_pass", [None, 2, 4])
def test_terms_and_gradient_equal_a_plain_loop_over_rows(rows_per_pass: int | None) -> None:
    for seed in range(3):
        model, batch = tiny_t5(seed), random_batch(seed)
        expected = plain_terms(model, batch)
        expected["denoising"].backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        model.zero_grad()
        terms = terms_of(model, batch, rows_per_pass)
        terms["denoising"].sum.backward()
        for name, term in terms.items():
            assert float(term.sum.detach()) == pytest.approx(float(expected[name].detach()), rel=1e-5), name
        for name, parameter in model.named_parameters():
            assert torch.allclose(parameter.grad, gradients[name], rtol=1e-4, atol=1e-5), name  # type: ignore[arg-type]


def test_padding_changes_nothing() -> None:
    model, batch = tiny_t5(), random_batch(2)
    wide = DenoisingBatch(
        input_ids=nn.functional.pad(batch.input_ids, (0, 5), value=91),
        attention_mask=nn.functional.pad(batch.attention_mask, (0, 5)),
        target_ids=nn.functional.pad(batch.target_ids, (0, 3), value=NO_TARGET),
        denoisers=batch.denoisers,
        text_token_count=batch.text_token_count,
    )
    first, second = (float(terms_of(model, each)["denoising"].sum.detach()) for each in (batch, wide))
    assert second == pytest.approx(first, rel=1e-5)
