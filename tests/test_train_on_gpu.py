"""`scripts/train_on_gpu.sh` at tiny size on a CPU, where only what a bare GPU image has can be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from npm.core.errors import ArtifactError, SettingError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.models.encoder import Encoder
from npm.training.run import run_training
from npm.training.settings import ScheduleSettings, TrainingEvaluationSettings, TrainingSettings
from tests.helpers.tiny_models import SENTENCES
from tests.helpers.toy_training import toy_settings

REPOSITORY = Path(__file__).parents[1]
SCRIPT = REPOSITORY / "scripts" / "train_on_gpu.sh"
ABSENT = ("hydra", "omegaconf", "datasets", "pyarrow", "faiss", "zstandard", "rich", "scipy", "matplotlib")
WITHOUT = f"""
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {ABSENT!r} else found(name, path, target)
PathFinder.find_spec = classmethod(find_spec)
"""


def settings_of(folder: Path, **changes: Any) -> TrainingSettings:
    held_out = folder / "held-out.txt"
    held_out.write_text("\n\n".join(f"{sentence} " * 5 for sentence in SENTENCES), encoding="utf-8")
    evaluation = TrainingEvaluationSettings(files=[str(held_out)], max_batches=2)
    return toy_settings(folder, **{"evaluation": evaluation, **changes})


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A run of one step, whose text is packed by it."""
    run_training(tmp_path / "packed", settings_of(tmp_path))
    return tmp_path / "packed"


def script(folder: Path, *arguments: Any, minutes: str = "5") -> subprocess.CompletedProcess[str]:
    (folder / "bare").mkdir(exist_ok=True)
    (folder / "bare" / "sitecustomize.py").write_text(WITHOUT)
    variables = {"PYTHON": sys.executable, "PYTHONPATH": str(folder / "bare"), "MINUTES": minutes}
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, arguments)],
        env={**os.environ, **variables, "OUT": str(folder / "out"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_in_parts_on_a_bare_machine_ends_in_the_weights_of_one_that_was_never_moved(
    tmp_path: Path, packed: Path
) -> None:
    assert script(tmp_path, "pack", packed, tmp_path / "start", tmp_path / "pieces").returncode == 0
    train = ("train", tmp_path / "pieces", tmp_path / "run", "schedule.max_steps=4")
    assert script(tmp_path, "train", tmp_path / "pieces", tmp_path / "undisturbed", *train[3:]).returncode == 0
    assert list((tmp_path / "out").glob("encoder.tar.*"))
    (tmp_path / "out" / "evaluation.json").unlink()
    (tmp_path / "out" / "metrics.jsonl").unlink()
    # another run into the same folder takes the finished one's place
    part = script(tmp_path, *train, minutes="0")  # one step
    assert part.returncode == 3, part.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "evaluation.json",
        "metrics.jsonl",
        "run.tar.0000",
        "run.tar.sha256",
    ]
    assert script(tmp_path, "join", tmp_path / "out", tmp_path / "moved").returncode == 0
    assert (tmp_path / "moved" / "checkpoints").is_dir()
    moved = script(tmp_path, "train", tmp_path / "pieces", tmp_path / "moved", *train[3:])
    assert moved.returncode == 0, moved.stderr
    assert script(tmp_path, "join", tmp_path / "out", tmp_path / "joined").returncode == 0
    assert Encoder.load(str(tmp_path / "joined" / "encoder"), device="cpu").dimensions == 32
    measured = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert measured["step"] == 4 and {"held_out_loss", "held_out_start_top1"} <= measured.keys()

    weights = [(tmp_path / run / "encoder" / "model.safetensors") for run in ("undisturbed", "moved")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert weights[1].read_bytes() == (tmp_path / "joined" / "encoder" / "model.safetensors").read_bytes()
    # The trainer itself may compute on more threads here than the script does: equal but for rounding.
    here = run_training(tmp_path / "here", settings_of(tmp_path, schedule=ScheduleSettings(max_steps=4)))
    ours, theirs = (safetensors.torch.load_file(file) for file in (weights[0], here / "model.safetensors"))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5) for name in ours)


def test_a_part_too_short_for_a_line_of_metrics_is_brought_back_and_pieces_of_others_are_refused(
    tmp_path: Path, packed: Path
) -> None:
    shutil.rmtree(packed / "held-out")  # an evaluation at the start would be a line
    script(tmp_path, "pack", packed, tmp_path / "start", tmp_path / "pieces")
    changes = ("schedule.max_steps=4", "trainer.log_every_steps=10", "evaluation.max_batches=50")
    train = ("train", tmp_path / "pieces", tmp_path / "run", *changes)
    part = script(tmp_path, *train, minutes="0")
    assert part.returncode == 3, part.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run.tar.0000", "run.tar.sha256"]
    (tmp_path / "out" / "encoder.tar.sha256").write_text("")  # as of the pieces of another run
    assert "several archives" in script(tmp_path, "join", tmp_path / "out", tmp_path / "joined").stderr
    sums = tmp_path / "pieces" / "packed.tar.sha256"
    sums.write_text(sums.read_text() + "\n")
    changed = script(tmp_path, *train)
    assert changed.returncode == 2 and "made of other pieces" in changed.stderr


def test_damaged_pieces_and_mistakes_are_one_message(tmp_path: Path, packed: Path) -> None:
    script(tmp_path, "pack", packed, tmp_path / "start", tmp_path / "pieces")
    wrong = script(tmp_path, "train", tmp_path / "pieces", tmp_path / "run", "schedule.max_stepz=4")
    assert wrong.returncode == 2 and "unknown setting schedule.max_stepz" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    piece = tmp_path / "pieces" / "packed.tar.0000"
    piece.write_bytes(piece.read_bytes()[:-1] + b"\x01")
    refused = script(tmp_path, "join", tmp_path / "pieces", tmp_path / "joined")
    assert refused.returncode != 0 and "packed.tar.0000" in refused.stdout + refused.stderr
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train",), "expected: train PIECES RUN"),
        (("pack", "nowhere", "start", "pieces"), "no packed text"),
        (("join", "nowhere", "joined"), "no pieces of an archive"),
    ],
)
def test_wrong_arguments_are_one_message(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    refused = script(tmp_path, *arguments)
    assert refused.returncode == 2 and says in refused.stderr and refused.stderr.count("\n") == 1
    assert not (tmp_path / "pieces").exists()
    assert "no number of minutes" in script(tmp_path, "train", "pieces", "run", minutes="abc").stderr


def test_blocks_cut_otherwise_and_files_beside_them_are_refused(tmp_path: Path, packed: Path) -> None:
    nothing: dict[str, Any] = {
        "corpus": CorpusSettings(),
        "evaluation": TrainingEvaluationSettings(),
        "packed": str(packed),
    }
    with pytest.raises(ArtifactError, match="cut with other settings"):
        run_training(tmp_path / "run", settings_of(tmp_path, **nothing, blocks=BlockSettings(max_block_tokens=20)))
    with pytest.raises(SettingError, match="packed replaces"):
        run_training(tmp_path / "run", settings_of(tmp_path, packed=str(packed)))
    assert not (tmp_path / "run").exists()
