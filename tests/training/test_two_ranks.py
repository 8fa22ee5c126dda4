"""Two gloo ranks do what one process does on the same global batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.multiprocessing

from npm.training.batches import span_count
from tests.training.toy import STEEP, parameters_of, toy_trainer
from tests.training.two_ranks import PARTS, SPANS, WORLD_SIZE, batch_of, gradients, work


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind; they are started once, because starting them costs seconds."""
    folder = tmp_path_factory.mktemp("two_ranks")
    torch.multiprocessing.spawn(work, args=(folder,), nprocs=WORLD_SIZE)
    return folder


def test_the_ranks_have_different_numbers_of_spans() -> None:
    counts = {
        name: [span_count([batch_of(groups, rank=rank, world_size=WORLD_SIZE)]) for rank in range(WORLD_SIZE)]
        for name, groups in SPANS.items()
    }
    assert len(set(counts["uneven"])) == 2
    assert all(counts["uneven"])
    assert {name: [bool(count) for count in both].count(False) for name, both in counts.items()} == {
        "uneven": 0,
        "none on the second rank": 1,
        "none on the first rank": 1,
    }


@pytest.mark.parametrize("spans_name", SPANS)
@pytest.mark.parametrize("parts_name", PARTS)
def test_two_ranks_give_the_gradient_of_one_process(runs: Path, parts_name: str, spans_name: str) -> None:
    expected = gradients(SPANS[spans_name], PARTS[parts_name], rank=0, world_size=1)
    got = safetensors.torch.load_file(runs / f"gradients-{parts_name}-{spans_name}.safetensors")
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_two_trained_ranks_have_the_parameters_of_one_process_with_twice_the_groups(runs: Path, tmp_path: Path) -> None:
    one = toy_trainer(tmp_path / "run", groups_per_device_batch=2, **STEEP)
    start = parameters_of(one)
    one.train()
    both = [safetensors.torch.load_file(runs / f"trained-{rank}.safetensors") for rank in range(WORLD_SIZE)]
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=0)
    torch.testing.assert_close(both[0], parameters_of(one), rtol=0, atol=1e-5)
    assert max(float((start[name] - both[0][name]).abs().max()) for name in start) > 1e-3


def test_two_ranks_report_the_metrics_of_one_process(runs: Path, tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", groups_per_device_batch=2, **STEEP).train()
    one, two = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (tmp_path / "run", runs / "trained")
    )
    assert [line["step"] for line in two] == [1, 2, 3]
    for left, right in zip(one, two, strict=True):
        for name in left.keys() - {"seconds", "tokens_per_second"}:
            assert right[name] == pytest.approx(left[name], rel=1e-4), name


def test_two_ranks_that_were_killed_end_in_the_same_bits(runs: Path) -> None:
    saved = [(runs / name / "encoder" / "model.safetensors").read_bytes() for name in ("undisturbed", "resumed")]
    assert saved[0] == saved[1]


def test_each_rank_has_dropouts_of_its_own(runs: Path) -> None:
    (checkpoint,) = (runs / "undisturbed" / "checkpoints").glob("step-*")
    first, second = (np.load(checkpoint / f"generator-{rank}-cpu.npy") for rank in range(WORLD_SIZE))
    assert not np.array_equal(first, second)


def test_a_number_that_goes_bad_on_one_rank_stops_both_alike(runs: Path) -> None:
    told = [(runs / f"failed-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)]
    assert told[0] == told[1]
    assert told[0].startswith("the loss is not finite")


def test_only_the_first_rank_tells_of_a_run(runs: Path) -> None:
    told = [(runs / f"told-{rank}.txt").read_text(encoding="utf-8") for rank in range(WORLD_SIZE)]
    assert told == ["blocks\nsummary\nstep 1\nstep 2", ""]
