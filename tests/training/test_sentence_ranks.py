"""Two gloo ranks give the contrastive gradient of one process on the same pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.training.sentence_ranks import COLUMNS, LABELS, PAIRS, SHARES, gradients, labeled_gradients, write_gradients
from tests.training.two_processes import run_two_ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind; they are started once, because starting them costs seconds."""
    folder = tmp_path_factory.mktemp("sentence_ranks")
    run_two_ranks(write_gradients, folder)
    return folder


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_give_the_gradient_of_one_process(runs: Path, shares: str, columns: int) -> None:
    expected = gradients(PAIRS, columns)
    got = safetensors.torch.load_file(runs / f"{shares}-{columns}.safetensors")
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_contrast_labels_as_one_process_does(runs: Path, shares: str) -> None:
    expected = labeled_gradients(0, len(LABELS))
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    got = safetensors.torch.load_file(runs / f"{shares}-labeled.safetensors")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_half_of_the_pairs_alone_give_another_gradient() -> None:
    """Else the test above would hold without any gathering."""
    whole = gradients(PAIRS, 2)
    halves = [gradients(PAIRS[start : start + 2], 2) for start in (0, 2)]
    apart = {name: halves[0][name] + halves[1][name] for name in whole}
    assert max(float((apart[name] - whole[name]).abs().max()) for name in whole) > 1e-3
