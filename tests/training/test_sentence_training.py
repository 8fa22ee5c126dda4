"""SimCSE end to end, and two gloo ranks with the contrastive gradient of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from npm.core.errors import SettingError
from npm.corpus.sentence_pairs import SentenceDataSettings
from npm.corpus.settings import CorpusSettings
from npm.models.sentences import SentenceEncoder
from npm.models.settings import PoolerKind, Precision
from npm.objectives.settings import ObjectiveSettings, SentenceSettings
from npm.training.run import run_training
from npm.training.settings import ScheduleSettings, StartSettings, TrainerSettings, TrainingSettings
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.helpers.toy_training import metrics_of
from tests.training.sentence_ranks import COLUMNS, LABELS, PAIRS, SHARES, gradients, labeled_gradients

SENTENCE_PAIRS = [sentence.split(". ") for sentence in SENTENCES if ". " in sentence]
TRAINER = TrainerSettings(log_every_steps=1, max_gradient_norm=1e6)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A random encoder on disk."""
    tiny_encoder("bert").save(tmp_path / "start")
    return tmp_path / "start"


def settings_of(start: Path, *, steps: int, masked_weight: float = 0.0, **sentence: Any) -> TrainingSettings:
    """SimCSE on the sentences of a small corpus."""
    (start.parent / "corpus.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    return TrainingSettings(
        encoder=str(start),
        device="cpu",
        precision=Precision.float32,
        corpus=CorpusSettings(files=[str(start.parent / "corpus.txt")]),
        sentences=SentenceDataSettings(pairs_per_device_batch=4),
        start=StartSettings(hidden_dropout=0.1),
        objective=ObjectiveSettings(
            nonparametric_weight=0.0,
            sentence_weight=1.0,
            sentence=SentenceSettings(**{"mlp_only_train": True, **sentence}),
            masked_weight=masked_weight,
        ),
        trainer=TRAINER,
        schedule=ScheduleSettings(max_steps=steps, learning_rate=2e-3),
    )


def most_alike(encoder: SentenceEncoder) -> float:
    """The mean cosine of different sentences."""
    vectors = encoder.encode(list(SENTENCES))
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float((vectors @ vectors.T)[~np.eye(len(vectors), dtype=bool)].mean())


def test_training_on_sentences_that_was_stopped_drives_them_apart(tmp_path: Path, start: Path) -> None:
    settings = settings_of(start, steps=20, pooler=PoolerKind.avg, mlp_only_train=False)
    whole = run_training(tmp_path / "whole", settings)
    run_training(tmp_path / "run", settings, most_minutes=0)  # one step, and a checkpoint
    encoder_folder = run_training(tmp_path / "run", settings)
    assert (encoder_folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert lines[-1]["sentence"] < 0.7 * lines[0]["sentence"]
    after = SentenceEncoder.load(str(encoder_folder), device="cpu")
    assert after.pooler.kind is PoolerKind.avg
    before = SentenceEncoder.load(str(start), pooler="avg", device="cpu")
    assert most_alike(after) < most_alike(before) - 0.1


def test_training_on_pairs_makes_a_folder_that_sentence_transformers_loads(tmp_path: Path, start: Path) -> None:
    rows = [{"sentence1": one, "sentence2": two, "score": 5} for one, two in SENTENCE_PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    columns = {"anchor_column": "sentence1", "positive_column": "sentence2", "score_column": "score"}
    data = SentenceDataSettings(files=[str(tmp_path / "pairs.jsonl")], pairs_per_device_batch=3, **columns)  # type: ignore[arg-type]
    settings = replace(
        settings_of(start, steps=3, mlp_only_train=False),
        corpus=CorpusSettings(),
        sentences=data,
        trainer=replace(TRAINER, rows_per_pass=2),
    )
    encoder_folder = run_training(tmp_path / "run", settings)
    ours = SentenceEncoder.load(str(encoder_folder), device="cpu")
    assert ours.pooler.kind is PoolerKind.cls
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(encoder_folder), device="cpu")
    np.testing.assert_allclose(theirs.encode(list(SENTENCES)), ours.encode(list(SENTENCES)), atol=1e-5)


def test_a_first_token_that_sees_a_window_only_is_no_sentence_vector(tmp_path: Path) -> None:
    windows = {"layer_types": ["sliding_attention"] * 2, "local_attention": 4}
    tiny_encoder("modernbert", **windows).save(tmp_path / "start")
    with pytest.raises(SettingError, match=r"set objective\.sentence\.pooler=avg"):
        run_training(tmp_path / "run", settings_of(tmp_path / "start", steps=1))
    run_training(
        tmp_path / "run", settings_of(tmp_path / "start", steps=1, pooler=PoolerKind.avg, mlp_only_train=False)
    )


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_give_the_gradient_of_one_process(runs: Path, shares: str, columns: int) -> None:
    expected = gradients(PAIRS, columns)
    got = safetensors.torch.load_file(runs / "sentences" / f"{shares}-{columns}.safetensors")
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_contrast_labels_as_one_process_does(runs: Path, shares: str) -> None:
    expected = labeled_gradients(0, len(LABELS))
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    got = safetensors.torch.load_file(runs / "sentences" / f"{shares}-labeled.safetensors")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_half_of_the_pairs_alone_give_another_gradient() -> None:
    """Else the test above would hold without any gathering."""
    whole = gradients(PAIRS, 2)
    halves = [gradients(PAIRS[start : start + 2], 2) for start in (0, 2)]
    apart = {name: halves[0][name] + halves[1][name] for name in whole}
    assert max(float((apart[name] - whole[name]).abs().max()) for name in whole) > 1e-3
