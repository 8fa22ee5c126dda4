"""Labeled text in the trainer: every example once an epoch, exact resume, ranks, probes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from npm.core.errors import SettingError
from npm.corpus.labeled import LabeledSettings, encode_labeled
from npm.masking.batches import LabeledBatch
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.labeled import LabeledText
from npm.objectives.settings import ObjectiveSettings
from npm.training.labeled import LabeledSource
from npm.training.run import run_training
from npm.training.settings import (
    ScheduleSettings,
    StartSettings,
    TrainerSettings,
    TrainingEvaluationSettings,
    TrainingSettings,
)
from tests.helpers.labeled_texts import PAIRS, SENTENCES, encoder_of_pairs, write_rows
from tests.helpers.toy_training import untimed_metrics_of

PAIR_COLUMNS: dict[str, Any] = {
    "text_column": "sentence1",
    "second_column": "sentence2",
    "label_column": "score",
    "examples_per_device_batch": 5,
}


def settings_of(folder: Path, *, labeled: dict[str, Any] = {}, **changes: Any) -> TrainingSettings:
    """Two epochs on the sentences, or on what `labeled` says."""
    start = folder / "start"
    if not start.exists():
        encoder_of_pairs().save(start)
        write_rows(folder / "rows.jsonl", SENTENCES)
        write_rows(folder / "pairs.jsonl", PAIRS)
    own = {"files": [str(folder / "rows.jsonl")], "labels": ["0", "1"], "examples_per_device_batch": 10, **labeled}
    given: dict[str, Any] = {
        "encoder": str(start),
        "device": "cpu",
        "precision": Precision.float32,
        "labeled": LabeledSettings(**own),
        "objective": ObjectiveSettings(nonparametric_weight=0.0, labeled_weight=1.0),
        "start": StartSettings(hidden_dropout=0.1),
        "trainer": TrainerSettings(log_every_steps=1),
        "schedule": ScheduleSettings(max_epochs=2, learning_rate=1e-3),
    }
    return TrainingSettings(**{**given, **changes})


def source_of(folder: Path, encoder: Encoder, *, rank: int = 0, world_size: int = 1) -> LabeledSource:
    settings = LabeledSettings(files=[str(write_rows(folder / "pairs.jsonl", PAIRS))], **PAIR_COLUMNS)
    settings = replace(settings, examples_per_device_batch=settings.examples_per_device_batch // world_size)
    examples = encode_labeled(settings, encoder.tokenizer)
    return LabeledSource(examples, encoder, settings, seed=3, rank=rank, world_size=world_size)


def view_of(source: LabeledSource, micro_step: int) -> LabeledBatch:
    view = source.views(micro_step)["labeled"]
    assert isinstance(view, LabeledBatch)
    return view


def test_every_example_stands_in_an_epoch_once_with_the_types_of_its_pair(tmp_path: Path) -> None:
    encoder = encoder_of_pairs()
    source = source_of(tmp_path, encoder)
    assert source.micro_steps_per_epoch == 3  # twelve pairs, five at once
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(3):
            view = view_of(source, 3 * epoch + step)
            assert view.token_type_ids is not None
            for ids, types, mask in zip(view.input_ids, view.token_type_ids, view.attention_mask, strict=True):
                length = int(mask.sum())
                seen.append((tuple(ids[:length].tolist()), tuple(types[:length].tolist())))
                assert not types[length:].any()
        orders.append(seen)
    wanted = [encoder.tokenizer(row["sentence1"], row["sentence2"], return_token_type_ids=True) for row in PAIRS]
    expected = sorted((tuple(row["input_ids"]), tuple(row["token_type_ids"])) for row in wanted)
    assert sorted(orders[0]) == sorted(orders[1]) == expected
    assert orders[0] != orders[1]
    assert max(max(types) for _, types in expected) == 1


def test_two_ranks_share_the_examples_of_one_and_their_gradients_add_up(tmp_path: Path) -> None:
    """With two a rank the last of the twelve pairs' steps would be whole; with seven pairs one rank has none."""
    encoder = encoder_of_pairs()
    write_rows(tmp_path / "pairs.jsonl", PAIRS)
    settings = LabeledSettings(
        files=[str(tmp_path / "pairs.jsonl")], max_examples=5, **{**PAIR_COLUMNS, "examples_per_device_batch": 2}
    )
    examples = encode_labeled(settings, encoder.tokenizer)
    whole_settings = LabeledSettings(files=settings.files, **{**PAIR_COLUMNS, "examples_per_device_batch": 4})
    one = LabeledSource(examples, encoder, whole_settings, seed=3)
    ranks = [LabeledSource(examples, encoder, settings, seed=3, rank=rank, world_size=2) for rank in range(2)]
    torch.manual_seed(0)
    head = LabeledText(encoder.dimensions, 1).eval()
    for step in range(2):
        whole, parts = view_of(one, step), [view_of(source, step) for source in ranks]
        assert [len(part.targets) for part in parts] == ([2, 2] if step == 0 else [1, 0])
        sums = [_gradients(head, encoder, [part]) for part in parts]
        added = {name: sums[0][name] + sums[1][name] for name in sums[0]}
        expected = _gradients(head, encoder, [whole])
        assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
        torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-5)


def _gradients(head: LabeledText, encoder: Encoder, batches: list[LabeledBatch]) -> dict[str, torch.Tensor]:
    for weight in (*head.parameters(), *encoder.model.parameters()):
        weight.grad = None
    for batch in batches:
        head(EncodedRows(Passes(encoder.model), batch))["labeled"].sum.backward()
    named = [*head.named_parameters(), *encoder.model.named_parameters()]
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def test_a_run_by_epochs_resumes_exactly_and_is_evaluated_after_each(tmp_path: Path) -> None:
    held_out = TrainingEvaluationSettings(files=[str(tmp_path / "rows.jsonl")], max_batches=2)
    settings = settings_of(tmp_path, evaluation=held_out)
    whole = run_training(tmp_path / "whole", settings)
    for _ in range(6):  # three steps an epoch: a stop after every step
        run_training(tmp_path / "parts", settings, most_minutes=0)
    assert untimed_metrics_of(tmp_path / "parts") == untimed_metrics_of(tmp_path / "whole")
    saved = [
        safetensors.torch.load_file(run / "encoder" / "model.safetensors") for run in (whole.parent, tmp_path / "parts")
    ]
    torch.testing.assert_close(saved[1], saved[0], rtol=0, atol=0)
    evaluated = [line["step"] for line in untimed_metrics_of(tmp_path / "whole") if "held_out_labeled" in line]
    assert evaluated == [0, 3, 6]


def test_a_probe_leaves_the_encoder_as_it_is(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, labeled={"layer": 1}, start=StartSettings())
    encoder = run_training(tmp_path / "probe", settings)
    before = safetensors.torch.load_file(tmp_path / "start" / "model.safetensors")
    torch.testing.assert_close(safetensors.torch.load_file(encoder / "model.safetensors"), before, rtol=0, atol=0)
    losses = [line["labeled"] for line in untimed_metrics_of(tmp_path / "probe")]
    assert losses[-1] != losses[0]


def test_what_does_not_fit_a_run_on_labels_is_refused(tmp_path: Path) -> None:
    blocks = ObjectiveSettings(nonparametric_weight=1.0, labeled_weight=1.0)
    for changes, expected in (
        ({"labeled": {"files": []}}, "no labeled rows"),
        ({"labeled": {"layer": 3}}, "labeled.layer"),
        ({"labeled": {"layer": 1}, "objective": blocks}, "labeled.layer"),
        ({"labeled": {"max_tokens": 999}}, "labeled.max_tokens"),
        ({"evaluation": TrainingEvaluationSettings(patience_evaluations=2)}, "evaluation.files"),
    ):
        with pytest.raises(SettingError, match=expected):
            run_training(tmp_path / "run", settings_of(tmp_path, **changes))
        assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match=r"schedule.max_epochs"):
        TrainingSettings(schedule=ScheduleSettings(max_epochs=1))


@pytest.mark.parametrize(
    ("given", "expected"), [({"dropout_until_step": 2}, "110000"), ({"dropout_from_step": 4}, "000011")]
)
def test_dropout_is_on_in_the_steps_that_are_named(tmp_path: Path, given: dict[str, int], expected: str) -> None:
    modes = ""

    class Watched(LabeledText):
        def forward(self, encoded: EncodedRows[LabeledBatch]) -> Any:
            nonlocal modes
            assert self.training
            modes += str(int(encoded.passes.model.training))
            assert {part.training for part in self.head if isinstance(part, torch.nn.Dropout)} == {modes[-1] == "1"}
            return super().forward(encoded)

    settings = settings_of(tmp_path, trainer=TrainerSettings(log_every_steps=1, **given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npm.objectives.labeled.LabeledText", Watched)
        run_training(tmp_path / "run", settings)
    assert modes == expected
    with pytest.raises(SettingError, match="dropout_until_step"):
        TrainerSettings(gradient_checkpointing=True, **given)
    with pytest.raises(SettingError, match="dropout_until_step"):
        TrainerSettings(dropout_from_step=2, dropout_until_step=2)


def test_cross_entropy_and_contrast_share_one_pass(tmp_path: Path) -> None:
    weights = {"nonparametric_weight": 0.0, "labeled_weight": 0.1, "labeled_contrast_weight": 0.9}
    run_training(tmp_path / "run", settings_of(tmp_path, objective=ObjectiveSettings(**weights)))
    lines = untimed_metrics_of(tmp_path / "run")
    assert all({"labeled", "labeled_contrast"} <= line.keys() for line in lines)
    scored = {"labels": [], "files": [str(tmp_path / "pairs.jsonl")], **PAIR_COLUMNS}
    with pytest.raises(SettingError, match="labeled_contrast_weight"):
        settings_of(tmp_path, labeled=scored, objective=ObjectiveSettings(**weights))
