"""What a rank sees at a micro-step depends on seed and micro-step alone, and the gradient on no cut of the batch."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from npm.masking.batches import MaskedBatch, SentenceBatch, TrainingBatch, View
from npm.masking.rendering import PHRASES
from npm.training.acceleration import PreparedModel
from npm.training.data import TrainingBatches, iterate_batches
from tests.helpers.groups import group
from tests.helpers.toy_training import parameters_of, toy_batches, toy_encoder, toy_groups, toy_trainer


def phrases(batch: TrainingBatch) -> MaskedBatch:
    """The view that batches of these tests have."""
    (view,) = batch.views.values()
    assert isinstance(view, MaskedBatch)
    assert list(batch.views) == [PHRASES]
    return view


def assert_equal(first: MaskedBatch, second: MaskedBatch) -> None:
    for field in fields(MaskedBatch):
        left, right = getattr(first, field.name), getattr(second, field.name)
        assert left is right is None or torch.equal(torch.as_tensor(left), torch.as_tensor(right)), field.name


def numbered_batches(count: int, **settings: int) -> TrainingBatches:
    """Groups of two sequences that hold nothing but their group's number, from 50 on."""
    return toy_batches(
        toy_encoder(), [group([50 + number] * 2, [50 + number] * 2) for number in range(count)], **settings
    )


def group_numbers(batch: TrainingBatch) -> list[int]:
    return [int(row[1]) - 50 for row in phrases(batch).key_input_ids[::2]]  # the first token is special


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_stream_gives_the_batches_from_its_first_micro_step_on_whichever_process_makes_them(workers: int) -> None:
    stream = iterate_batches(
        toy_batches(toy_encoder(), views=("phrases", "tokens")), first_micro_step=5, workers=workers
    )
    found = list(islice(stream, 8))  # over the end of an epoch of eight
    batches = toy_batches(toy_encoder(), views=("phrases", "tokens"))
    for micro_step, batch in enumerate(found, start=5):
        assert batch.views.keys() == batches[micro_step].views.keys()
        for name, view in batch.views.items():
            assert_equal(view, batches[micro_step].views[name])


def test_starting_a_stream_draws_nothing_from_the_generator_of_dropouts() -> None:
    before = torch.get_rng_state()
    next(iterate_batches(toy_batches(toy_encoder()), first_micro_step=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_shows_every_group_once_and_the_next_one_in_another_order() -> None:
    batches = numbered_batches(10)
    epochs = [[*map(group_numbers, (batches[10 * epoch + step] for step in range(10)))] for epoch in range(3)]
    flat = [[number for numbers in epoch for number in numbers] for epoch in epochs]
    assert all(sorted(epoch) == list(range(10)) for epoch in flat)
    assert flat[0] != flat[1] != flat[2]


def test_a_group_is_masked_anew_in_every_epoch() -> None:
    batches = toy_batches(toy_encoder(), toy_groups(1))
    first, second = phrases(batches[0]), phrases(batches[1])
    assert not torch.equal(first.query_input_ids, second.query_input_ids)
    torch.testing.assert_close(first.key_input_ids, second.key_input_ids)


@pytest.mark.parametrize("groups_per_device_batch", [1, 2])
def test_the_ranks_share_an_epoch_without_a_group_in_common(groups_per_device_batch: int) -> None:
    ranks = [
        numbered_batches(12, groups_per_device_batch=groups_per_device_batch, rank=rank, world_size=3)
        for rank in range(3)
    ]
    steps = ranks[0].sources[0].micro_steps_per_epoch
    seen = [number for batches in ranks for step in range(steps) for number in group_numbers(batches[step])]
    assert sorted(seen) == list(range(12))


def test_two_ranks_together_see_what_one_process_with_twice_the_groups_sees() -> None:
    one = numbered_batches(12, groups_per_device_batch=2)
    two = [numbered_batches(12, rank=rank, world_size=2) for rank in range(2)]
    for step in range(8):
        assert group_numbers(one[step]) == group_numbers(two[0][step]) + group_numbers(two[1][step])


def test_a_query_that_reads_has_a_clean_copy_of_its_own_group_behind_it() -> None:
    encoder = toy_encoder()
    whole = phrases(toy_batches(encoder, groups_per_device_batch=2, context_fraction=1.0)[0])
    sequences_per_group = len(whole.key_input_ids) // 2
    clean = [row[mask.bool()].tolist() for row, mask in zip(whole.key_input_ids, whole.key_attention_mask, strict=True)]
    reading = 0
    for number, (row, mask) in enumerate(zip(whole.query_input_ids, whole.query_attention_mask, strict=True)):
        ids = row[mask.bool()].tolist()
        behind = ids[ids.index(encoder.suffix_ids[0]) + 1 :]
        if behind:
            readable = [other for other, tokens in enumerate(clean) if tokens[1:] == behind and other != number]
            assert any(other // sequences_per_group == number // sequences_per_group for other in readable)
            reading += 1
    assert reading > sequences_per_group


def test_the_masks_are_those_of_a_run_that_reads_nothing() -> None:
    encoder = toy_encoder()
    reads, plain = phrases(toy_batches(encoder, context_fraction=1.0)[3]), phrases(toy_batches(encoder)[3])
    assert_equal(
        replace(
            reads,
            **{name: getattr(plain, name) for name in ("query_input_ids", "query_attention_mask", "read_tokens")},
        ),
        plain,
    )
    for row, expected in zip(reads.query_input_ids, plain.query_input_ids, strict=True):
        size = int((expected != encoder.pad_id).sum())
        assert row[:size].tolist() == expected[:size].tolist()


def test_a_batch_counts_the_tokens_of_its_text_once_however_many_views_show_it() -> None:
    encoder = toy_encoder()
    both = toy_batches(encoder, views=("phrases", "tokens"))[0]
    assert both.token_count == phrases(toy_batches(encoder)[0]).token_count > 0


def test_different_texts_count_together() -> None:
    encoder = toy_encoder()

    class Sentences:
        rank, world_size, micro_steps_per_epoch = 0, 1, 1

        def views(self, micro_step: int) -> dict[str, View]:
            ids = torch.ones(4, 3, dtype=torch.long)
            return {"sentences": SentenceBatch(ids, ids, pair_count=2, pad_id=0)}

    blocks = toy_batches(encoder)
    together = TrainingBatches([*blocks.sources, Sentences()])[0]
    assert together.token_count == blocks[0].token_count + 12


def first_gradient(run: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """The gradient of the first window, as the optimizer would see it."""
    trainer = toy_trainer(run, max_steps=1, parts=("masked",), groups=toy_groups(32), **settings)
    trainer.model.train()
    window = [trainer.batches[micro_step] for micro_step in range(settings.get("accumulation_steps", 1))]
    taken: dict[str, torch.Tensor] = {}

    def take(prepared: PreparedModel) -> float:
        taken.update({name: p.grad.clone() for name, p in prepared.bare.named_parameters() if p.grad is not None})
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreparedModel, "clip", take)
        trainer.update(window)
    return taken


def test_one_batch_of_32_and_four_of_8_have_the_same_masked_lm_gradient(tmp_path: Path) -> None:
    """The third way, two ranks with 16 each, is in test_two_ranks.py."""
    at_once = first_gradient(tmp_path / "a", groups_per_device_batch=32)
    in_four = first_gradient(tmp_path / "b", groups_per_device_batch=8, accumulation_steps=4)
    assert sum(float(gradient.abs().max()) > 1e-3 for gradient in at_once.values()) > 10
    assert at_once.keys() == in_four.keys()
    torch.testing.assert_close(in_four, at_once, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_encoder_trains_as_a_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured by the compiler, but not turned into C++, which takes a minute for a tiny encoder."""
    backends: list[str] = []

    def compile_without_code(module: nn.Module, *args: Any, **settings: Any) -> None:
        backends.append("eager")
        original(module, *args, backend="eager", **settings)

    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", compile_without_code)
    results = []
    for name, compiled in (("plain", False), ("compiled", True)):
        trainer = toy_trainer(tmp_path / name, max_steps=2, parts=("masked",), compile=compiled)
        trainer.train()
        results.append(parameters_of(trainer))
        saved = safetensors.torch.load_file(tmp_path / name / "encoder" / "model.safetensors")
        assert not [weight for weight in saved if "_orig_mod" in weight]
    assert backends == ["eager"]
    assert results[0].keys() == results[1].keys()
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)
