"""From training for several lengths of vectors to an index of the shortest, as a user does it; and the contrast with a
frozen teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from npm.indexing.generation import Generation
from npm.models.encoder import Encoder
from npm.training.trainer import Trainer
from tests.cli.test_train import NO_PHRASES
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.live_indexes import part_of

SHORTER = "objective.nonparametric.dimensions=[8,16]"


def test_an_encoder_trained_for_several_lengths_builds_and_fills_a_short_index(
    npmlm: CommandLine, train: list[str], texts: Path, tmp_path: Path
) -> None:
    npmlm(*train, SHORTER)
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert {"start", "end", "start_8", "end_16", "start_8_top1"} <= metrics.keys()
    encoder = tmp_path / "run" / "encoder"
    assert Encoder.load(str(encoder), device="cpu").trained_dimensions == [8, 16]

    build = ("build", f"corpus.files={texts}", f"encoder={encoder}", "blocks.max_block_tokens=64")
    outcome = npmlm(*build, f"index={tmp_path / 'index'}", "dimensions=8")
    assert (outcome.status, "note" in outcome.err) == (0, False), outcome.err
    assert Generation.read(tmp_path / "index").manifest.settings["dimensions"] == 8
    assert npmlm("verify", f"index={tmp_path / 'index'}", f"encoder={encoder}").status == 0
    filled = npmlm("fill", f"index={tmp_path / 'index'}", f"encoder={encoder}", "The <mask> of Iceland.", "output=json")
    assert (filled.status, len(filled.answers())) == (0, 1), filled.err
    other = npmlm(*build, f"index={tmp_path / 'other'}", "dimensions=4")
    assert "was not trained for vectors of 4 dimensions" in other.err
    for wrong in (0, 33):
        outcome = npmlm(*build, f"index={tmp_path / 'third'}", f"dimensions={wrong}")
        outcome.refused("dimensions", str(wrong))


def test_an_index_behind_a_rotation_is_built_shown_verified_added_to_and_filled_by_any_encoder(
    npmlm: CommandLine, texts: Path, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    encoder, index = f"encoder={tiny_encoder_folder}", f"index={tmp_path / 'index'}"
    build = ("build", f"corpus.files={texts}", encoder, index, "blocks.max_block_tokens=64")
    npmlm(*build, "rotation=pca").refused("rotation=pca requires dimensions", "dimensions=128")
    npmlm(*build, "rotation=pca", "dimensions=33").refused("dimensions", "32", "33")
    npmlm(*build, "rotation=turn", "dimensions=8").refused("'none' or 'pca'")
    outcome = npmlm(*build, "rotation=pca", "dimensions=8")
    assert (outcome.status, "note" in outcome.err, "rotation: " in outcome.err) == (0, False, True), outcome.err
    assert "pca of " in npmlm("inspect", index).out
    (facts,) = npmlm("inspect", index, "output=json").answers()
    assert (facts["dimensions"], facts["rotation"]["method"]) == (8, "pca")
    more = write_corpus(tmp_path / "more.jsonl", [{"id": "new", "title": "", "text": "Oslo is a city in Norway."}])
    for verb in (("add", f"corpus.files={more}"), ("fill", "The <mask> of Iceland.")):
        npmlm(verb[0], index, encoder, "rotation=pca", *verb[1:]).refused("rotation")
    assert npmlm("add", index, encoder, f"corpus.files={more}").status == 0
    assert npmlm("verify", index, encoder).status == 0
    filled = npmlm("fill", index, encoder, "The <mask> of Iceland.", "output=json")
    assert (filled.status, len(filled.answers())) == (0, 1), filled.err
    (part_of(tmp_path / "index", "rotation") / "axes.npy").unlink()
    npmlm("fill", index, encoder, "The <mask> of Iceland.").refused("axes.npy is damaged: it is missing")
    npmlm("verify", index, encoder).refused("axes.npy is damaged: it is missing")


def test_an_estimate_is_smaller_for_fewer_dimensions_and_counts_the_axes_of_a_rotation(
    npmlm: CommandLine, texts: Path, tiny_encoder_folder: Path
) -> None:
    command = ("estimate", f"corpus.files={texts}", f"encoder={tiny_encoder_folder}", "output=json")
    ways: tuple[tuple[str, ...], ...] = ((), ("dimensions=8",), ("dimensions=8", "rotation=pca"))
    (whole,), (short,), (rotated,) = (
        npmlm(*command, "blocks.max_block_tokens=64", *further).answers() for further in ways
    )
    assert short["disk"]["vectors"] < 0.3 * whole["disk"]["vectors"]
    assert rotated["disk"]["rotation"] == 4 * 8 * 32
    assert "rotation" not in short["disk"]


def test_a_run_with_a_teacher_saves_nothing_of_it_and_goes_on_exactly_with_the_same_teacher(
    npmlm: CommandLine, train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [part for part in train if not part.startswith(NO_PHRASES)]
    command += ["objective.nonparametric_weight=0", "objective.token_contrast_weight=1"]
    command += ["objective.masked_weight=1", "trainer.checkpoint_every_minutes=0"]
    outcome = npmlm(*command)
    assert outcome.status == 0, outcome.err
    whole = (tmp_path / "run" / "encoder" / "model.safetensors").read_bytes()
    (tmp_path / "run").rename(tmp_path / "whole")
    save = Trainer.save_checkpoint

    def interrupted(self: Trainer) -> None:
        save(self)
        if self.step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "save_checkpoint", interrupted)
        assert npmlm(*command).status == 130
    assert npmlm(*command).status == 0
    assert (tmp_path / "run" / "encoder" / "model.safetensors").read_bytes() == whole
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert {"masked", "masked_top1", "token_contrast", "token_contrast_top1"} <= metrics.keys()
    files = sorted((tmp_path / "run").rglob("*.safetensors"))
    assert len(files) >= 3
    for file in files:
        with safe_open(file, "np") as tensors:
            assert not [name for name in tensors.keys() if "teacher" in name], file  # noqa: SIM118 - no mapping
