"""An encoder-decoder through the one trainer: from a corpus to a folder that `transformers` loads."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from npm.core.errors import EncoderError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.masking.denoising import DenoisingSettings
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.settings import FreshSettings, Precision
from npm.objectives.settings import ObjectiveSettings
from npm.training.model import load_start
from npm.training.run import run_training
from npm.training.settings import GroupSettings, ScheduleSettings, TrainerSettings, TrainingSettings
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.helpers.toy_training import metrics_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A corpus, an encoder, and a T5 without mode tokens around its tokenizer."""
    folder = tmp_path_factory.mktemp("start")
    lines = [json.dumps({"id": str(number), "title": "", "text": " ".join(SENTENCES)}) for number in range(4)]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tiny_encoder("bert").save(folder / "bert")
    fresh_denoiser(str(folder / "bert"), FreshSettings(layers=1, dimensions=16), device="cpu").save(folder / "t5")
    return {name: str(folder / name) for name in ("corpus.jsonl", "bert", "t5")}


def settings_of(
    files: dict[str, str], *, start: str = "t5", denoising: DenoisingSettings | None = None
) -> TrainingSettings:
    return TrainingSettings(
        encoder=files[start],
        corpus=CorpusSettings(files=[files["corpus.jsonl"]]),
        blocks=BlockSettings(max_block_tokens=24),
        groups=GroupSettings(sequences_per_group=8),
        denoising=denoising or DenoisingSettings(),
        objective=ObjectiveSettings(nonparametric_weight=0.0, denoising_weight=1.0),
        device="cpu",
        precision=Precision.float32,
        trainer=TrainerSettings(log_every_steps=1, checkpoint_every_minutes=0, adam_epsilon=1e-8),
        schedule=ScheduleSettings(max_steps=16, learning_rate=1e-2),
    )


def test_a_run_that_was_stopped_lowers_the_loss_and_leaves_what_transformers_loads(
    files: dict[str, str], tmp_path: Path
) -> None:
    settings = settings_of(files)
    whole = run_training(tmp_path / "whole", settings)
    run_training(tmp_path / "run", settings, most_minutes=0)  # one step, and a checkpoint
    folder = run_training(tmp_path / "run", settings)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    lines = metrics_of(tmp_path / "run")
    first, last = (sum(line["denoising"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert last < math.log(len(tokenizer)) < first  # between them is a guess among all tokens alike
    drawn = set().union(*lines)  # a denoiser that was not drawn for a batch has no mean in its line
    assert {"denoising_top1", "denoising_R", "denoising_S", "denoising_X"} <= drawn
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = tokenizer("[R] Paris is the <extra_id_0> of France.", return_tensors="pt")
    assert inputs["input_ids"][0, 0] == tokenizer.get_vocab()["[R]"]
    assert torch.isfinite(model(**inputs, labels=inputs["input_ids"]).loss)
    trained, start = Denoiser.load(str(folder), device="cpu"), Denoiser.load(files["t5"], device="cpu")
    assert trained.fingerprint != start.fingerprint
    assert len(trained.tokenizer) == len(start.tokenizer) + 3  # mode tokens that the start had not


def test_a_stored_model_is_trained_in_float32_whatever_computes(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPMLM_AUTO_PRECISION", "bfloat16")
    model = load_start(replace(settings_of(files), precision=Precision.auto))
    assert {weight.dtype for weight in model.model.parameters()} == {torch.float32}


def test_too_few_sentinels_for_the_blocks_are_refused_before_anything_is_left(
    files: dict[str, str], tmp_path: Path
) -> None:
    long = replace(settings_of(files), blocks=BlockSettings(max_block_tokens=2000))
    with pytest.raises(EncoderError, match="sentinels"):
        run_training(tmp_path / "run", long)
    assert not (tmp_path / "run").exists()
