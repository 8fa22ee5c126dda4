"""Two gloo ranks do what one process does on the same global batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.helpers.command_line import run_subprocess
from tests.helpers.toy_training import STEEP, metrics_of, parameters_of, toy_trainer, untimed_metrics_of
from tests.training.sharded_ranks import PIECES, measuring_trainer
from tests.training.two_processes import WORLD_SIZE
from tests.training.two_ranks import PARTS, SPANS, batch_of, gradients


def test_the_ranks_have_different_numbers_of_spans() -> None:
    counts = {
        name: [
            len(batch_of(groups, rank=rank, world_size=WORLD_SIZE).views["phrases"].span_sequences)
            for rank in range(WORLD_SIZE)
        ]
        for name, groups in SPANS.items()
    }
    assert len(set(counts["uneven"])) == 2
    assert all(counts["uneven"])
    assert {name: [bool(count) for count in both].count(False) for name, both in counts.items()} == {
        "uneven": 0,
        "none on the second rank": 1,
        "none on the first rank": 1,
    }


@pytest.mark.parametrize("file", [*SPANS, "in-passes"])
@pytest.mark.parametrize("parts_name", PARTS)
def test_two_ranks_give_the_gradient_of_one_process(runs: Path, parts_name: str, file: str) -> None:
    expected = gradients(SPANS.get(file, SPANS["uneven"]), PARTS[parts_name], rank=0, world_size=1)
    got = safetensors.torch.load_file(runs / f"gradients-{parts_name}-{file}.safetensors")
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_two_ranks_report_the_metrics_of_one_process(runs: Path, tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", groups_per_device_batch=2, **STEEP).train()
    one, two = map(untimed_metrics_of, (tmp_path / "run", runs / "trained"))
    assert [line["step"] for line in two] == [1, 2, 3]
    for left, right in zip(one, two, strict=True):
        assert right == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("name", ["measured", "sharded-measured"])
def test_two_ranks_measure_on_held_out_text_what_one_process_measures(runs: Path, tmp_path: Path, name: str) -> None:
    """And keep the same best encoder, whether each has whole weights or not."""
    measuring_trainer(tmp_path / "run", groups_per_device_batch=2).train()
    one, two = (
        [line for line in metrics_of(run) if "learning_rate" not in line] for run in (tmp_path / "run", runs / name)
    )
    assert [line["step"] for line in two] == [0, 2, 3]
    for left, right in zip(one, two, strict=True):
        assert right == pytest.approx(left, rel=1e-4)
    best = [
        safetensors.torch.load_file(run / "best-encoder" / "model.safetensors")
        for run in (tmp_path / "run", runs / name)
    ]
    torch.testing.assert_close(best[0], best[1], rtol=0, atol=1e-5)


def test_two_ranks_that_were_killed_end_in_the_same_bits(runs: Path) -> None:
    saved = [(runs / name / "encoder" / "model.safetensors").read_bytes() for name in ("undisturbed", "resumed")]
    assert saved[0] == saved[1]


def test_each_rank_has_dropouts_of_its_own(runs: Path) -> None:
    assert len({(runs / f"seed-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)}) == WORLD_SIZE
    (checkpoint,) = (runs / "undisturbed" / "checkpoints").glob("step-*")
    states = safetensors.torch.load_file(checkpoint / "generators.safetensors")
    assert not torch.equal(states["0-cpu"], states["1-cpu"])


def test_a_number_that_goes_bad_on_one_rank_stops_both_alike(runs: Path) -> None:
    told = [(runs / f"failed-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)]
    assert told[0] == told[1]
    assert told[0].startswith("the loss is not finite")


def test_the_clock_of_a_run_is_that_of_the_first_rank(runs: Path) -> None:
    assert [(runs / f"clock-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)] == ["180.0"] * 2


def test_only_the_first_rank_tells_of_a_run(runs: Path) -> None:
    told = [(runs / f"told-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)]
    assert told == ["blocks\nsummary\nstep 1\nstep 2", ""]


def test_two_ranks_with_small_passes_and_accumulation_train_as_one_process_without_passes(
    runs: Path, tmp_path: Path
) -> None:
    one = toy_trainer(tmp_path / "run", groups_per_device_batch=2, accumulation_steps=2, **STEEP)
    one.train()
    got = safetensors.torch.load_file(runs / "in-passes-0.safetensors")
    torch.testing.assert_close(got, parameters_of(one), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "settings"), [("trained", STEEP), ("sharded", STEEP), ("sharded-pieces", PIECES)])
def test_two_ranks_train_as_one_process_with_twice_the_groups_whether_they_share_weights_or_not(
    runs: Path, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    one = toy_trainer(tmp_path / "run", groups_per_device_batch=2, **settings)
    start = parameters_of(one)
    one.train()
    both = [safetensors.torch.load_file(runs / f"{name}-{rank}.safetensors") for rank in range(WORLD_SIZE)]
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=0)
    torch.testing.assert_close(both[0], parameters_of(one), rtol=0, atol=1e-5)
    assert max(float((start[key] - both[0][key]).abs().max()) for key in start) > 1e-3


def test_the_gradient_that_both_ranks_shorten_was_too_long(tmp_path: Path) -> None:
    """Else the test above would not see how the length is measured over ranks."""
    lengths = []
    for name, allowed in (("a", PIECES["max_gradient_norm"]), ("b", 1e6)):
        trainer = toy_trainer(tmp_path / name, groups_per_device_batch=2, **{**PIECES, "max_gradient_norm": allowed})
        before = parameters_of(trainer)
        trainer.train()
        moved = [(before[key] - weight).square().sum() for key, weight in parameters_of(trainer).items()]
        lengths.append(float(torch.stack(moved).sum().sqrt()))
    assert lengths[0] < 0.9 * lengths[1]


def test_each_of_the_ranks_that_share_weights_holds_half_of_them(runs: Path) -> None:
    shares = [
        [int(part) for part in (runs / f"sharded-share-{rank}.txt").read_text().split()] for rank in range(WORLD_SIZE)
    ]
    for own, whole in shares:
        assert own < 0.55 * whole
    assert sum(own for own, _ in shares) >= 0.99 * shares[0][1]


def test_what_ranks_that_share_weights_save_is_whole_and_continues_in_the_same_bits(runs: Path) -> None:
    names = ("sharded-undisturbed", "sharded-resumed")
    saved = [(runs / name / "encoder" / "model.safetensors").read_bytes() for name in names]
    assert saved[0] == saved[1]
    encoder = safetensors.torch.load_file(runs / "sharded" / "encoder" / "model.safetensors")
    trained = safetensors.torch.load_file(runs / "sharded-0.safetensors")
    for name, tensor in encoder.items():
        assert torch.equal(tensor, trained[f"encoder_model.{name}"]), name


def test_a_rank_without_its_others_is_one_sentence(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The Rhine flows to the North Sea.\n" * 40)
    train = (sys.executable, "-m", "npm", "train", f"run={tmp_path / 'run'}", f"corpus.files=[{corpus}]")
    outcome = run_subprocess(*train, "encoder=encoder-mini", WORLD_SIZE="2")
    assert outcome.status == 2
    assert "WORLD_SIZE" in outcome.err
    assert not (tmp_path / "run").exists()
