"""From training for several lengths of vectors to an index of the shortest, as a user does it; and the contrast with a
frozen teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from npm.indexing.generation import Generation
from npm.models.encoder import Encoder
from npm.training.trainer import Trainer
from tests.cli.test_train import NO_PHRASES
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.toy_training import metrics_of

SHORTER = "objective.nonparametric.dimensions=[8,16]"


def test_vectors_of_several_lengths(npmlm: CommandLine, train: list[str], texts: Path, tmp_path: Path) -> None:
    npmlm(*train, SHORTER)
    metrics = metrics_of(tmp_path / "run")[-1]
    assert {"start", "end", "start_8", "end_16", "start_8_top1"} <= metrics.keys()
    encoder = tmp_path / "run" / "encoder"
    assert Encoder.load(str(encoder), device="cpu").trained_dimensions == [8, 16]

    build = ("build", f"corpus.files={texts}", f"encoder={encoder}", "blocks.max_block_tokens=64", "dimensions=8")
    outcome = npmlm(*build, f"index={tmp_path / 'index'}")
    assert (outcome.status, "note" in outcome.err) == (0, False), outcome.err
    assert Generation.read(tmp_path / "index").manifest.settings["dimensions"] == 8
    assert npmlm("verify", f"index={tmp_path / 'index'}", f"encoder={encoder}").status == 0
    filled = npmlm("fill", f"index={tmp_path / 'index'}", f"encoder={encoder}", "The <mask> of Iceland.", "output=json")
    assert (filled.status, len(filled.answers())) == (0, 1), filled.err


def test_an_index_behind_rotation(npmlm: CommandLine, texts: Path, tmp_path: Path, tiny_encoder_folder: Path) -> None:
    encoder, index = f"encoder={tiny_encoder_folder}", f"index={tmp_path / 'index'}"
    build = ("build", f"corpus.files={texts}", encoder, index, "blocks.max_block_tokens=64")
    outcome = npmlm(*build, "rotation=pca", "dimensions=8")
    assert (outcome.status, "note" in outcome.err, "rotation: " in outcome.err) == (0, False, True), outcome.err
    assert "pca of " in npmlm("inspect", index).out
    more = write_corpus(tmp_path / "more.jsonl", [{"id": "new", "title": "", "text": "Oslo is a city in Norway."}])
    for verb in (("add", f"corpus.files={more}"), ("fill", "The <mask> of Iceland.")):
        npmlm(verb[0], index, encoder, "rotation=pca", *verb[1:]).refused("rotation")
        assert npmlm(verb[0], index, encoder, *verb[1:]).status == 0


def test_a_run_with_a_teacher_saves_nothing_of_it_and_goes_on_exactly_with_the_same_teacher(
    npmlm: CommandLine, train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [part for part in train if not part.startswith(NO_PHRASES)]
    command += ["objective.nonparametric_weight=0", "objective.token_contrast_weight=1"]
    command += ["objective.masked_weight=1", "trainer.checkpoint_every_minutes=0"]
    npmlm(*command).done()
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
    metrics = metrics_of(tmp_path / "run")[-1]
    assert {"masked", "masked_top1", "token_contrast", "token_contrast_top1"} <= metrics.keys()
    files = sorted((tmp_path / "run").rglob("*.safetensors"))
    assert len(files) >= 3
    for file in files:
        with safe_open(file, "np") as tensors:
            assert not [name for name in tensors.keys() if "teacher" in name], file  # noqa: SIM118 - no mapping
