"""Evaluation and averaged weights in training: what they measure and keep, and that training does not feel them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from npm.core.errors import ArtifactError, SettingError
from npm.models.encoder import Encoder
from npm.training.acceleration import AveragedWeights
from npm.training.settings import TrainingEvaluationSettings
from npm.training.trainer import EarlyStopping, StepReport, Trainer
from tests.helpers.toy_training import Stopped, parameters_of, stop_at, toy_trainer, untimed_metrics_of


def lines_of(run: Path, *, of_evaluation: bool) -> list[dict[str, Any]]:
    """The lines of metrics without what the clock says."""
    return [line for line in untimed_metrics_of(run) if ("learning_rate" not in line) == of_evaluation]


def scripted(trainer_of: Callable[[], Trainer], values: dict[int, float]) -> Callable[[], dict[str, float]]:
    """An evaluator that gives the value written for each step."""
    return lambda: {"score": values[trainer_of().step]}


def scripted_trainer(run: Path, values: dict[int, float], **settings: Any) -> Trainer:
    chosen = {"every_steps": 2, "best": "score", "higher_is_better": True, **settings.pop("evaluation", {})}
    trainers: list[Trainer] = []
    evaluator = scripted(lambda: trainers[0], values)
    trainers.append(
        toy_trainer(run, evaluation=TrainingEvaluationSettings(**chosen), evaluators=[evaluator], **settings)
    )
    return trainers[0]


def test_a_run_with_evaluations_has_the_losses_of_one_without(tmp_path: Path) -> None:
    def draws() -> dict[str, float]:
        return {"drawn": float(torch.rand(()))}

    settings: dict[str, Any] = {"max_steps": 7, "dropout": 0.3}
    with_evaluations = toy_trainer(
        tmp_path / "with", evaluation=TrainingEvaluationSettings(every_steps=2), evaluators=[draws], **settings
    )
    with_evaluations.train()
    without = toy_trainer(tmp_path / "without", **settings)
    without.train()
    torch.testing.assert_close(parameters_of(with_evaluations), parameters_of(without), rtol=0, atol=0)
    assert lines_of(tmp_path / "with", of_evaluation=False) == lines_of(tmp_path / "without", of_evaluation=False)
    drawn = {line["drawn"] for line in lines_of(tmp_path / "with", of_evaluation=True)}
    assert len(drawn) == 1  # every evaluation starts from the same seed


def test_it_measures_at_the_start_every_few_steps_and_at_the_end(tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", max_steps=5, evaluation=TrainingEvaluationSettings(every_steps=2)).train()
    lines = lines_of(tmp_path / "run", of_evaluation=True)
    assert [line["step"] for line in lines] == [0, 2, 4, 5]
    terms = {"start", "end", "start_top1", "end_top1", "masked", "masked_top1"}
    assert lines[0].keys() == {"step", "tokens", "held_out_loss"} | {f"held_out_{name}" for name in terms}


def test_the_metrics_are_the_terms_of_all_batches_over_their_counts_without_dropout(tmp_path: Path) -> None:
    trainer = toy_trainer(
        tmp_path / "run", max_steps=1, dropout=0.5, evaluation=TrainingEvaluationSettings(max_batches=3)
    )
    assert trainer.held_out is not None and trainer.held_out.batches is not None
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    trainer.model.eval()
    for micro_step in range(3):
        for name, term in trainer.model(trainer.held_out.batches[micro_step]).items():
            sums[name] = sums.get(name, 0.0) + float(term.sum.detach())
            counts[name] = counts.get(name, 0) + term.count
    means = {name: sums[name] / counts[name] for name in sums}
    trainer.train()
    line = lines_of(tmp_path / "run", of_evaluation=True)[0]
    for name, mean in means.items():
        assert line[f"held_out_{name}"] == pytest.approx(mean, rel=1e-5), name
    weighted = sum(means[name] for name in ("start", "end", "masked"))  # the others have weight 0
    assert line["held_out_loss"] == pytest.approx(weighted, rel=1e-5)


def test_the_encoder_of_the_best_evaluation_is_kept_beside_the_last(tmp_path: Path) -> None:
    trainer = scripted_trainer(tmp_path / "run", {0: 0.1, 2: 0.5, 4: 0.9, 6: 0.9, 8: 0.2}, max_steps=8)
    at_step: dict[int, torch.Tensor] = {}

    def note(done: StepReport) -> None:
        at_step[done.step] = parameters_of(trainer)["encoder_model.embeddings.word_embeddings.weight"]

    trainer.train(note)
    for name, step in (("best-encoder", 4), ("encoder", 8)):
        saved = Encoder.load(str(tmp_path / "run" / name), device="cpu", dtype="float32")
        torch.testing.assert_close(
            saved.model.get_input_embeddings().weight.detach(), at_step[step], rtol=0, atol=0, msg=name
        )
    assert not torch.equal(at_step[4], at_step[8])


@pytest.mark.parametrize("stops", [(1,), (3, 5)])
def test_a_killed_run_keeps_its_best_encoder_and_its_patience(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Without checkpoints of its own, so that only those of a new best are there to continue from."""
    values = {0: 0.2, 2: 0.5, 4: 0.3, 6: 0.4, 8: 0.9, 9: 0.1}
    settings: dict[str, Any] = {"max_steps": 9, "dropout": 0.2, "evaluation": {"patience_evaluations": 2}}
    undisturbed = scripted_trainer(tmp_path / "undisturbed", values, **settings)
    undisturbed.train()
    for stop in stops:
        with pytest.raises(Stopped):
            scripted_trainer(tmp_path / "killed", values, **settings).train(stop_at(stop))
    for _ in range(2):  # started again when its patience is over, it stays as it is
        resumed = scripted_trainer(tmp_path / "killed", values, **settings)
        resumed.train()
        assert resumed.step == undisturbed.step == 6
        assert resumed.early_stopping == undisturbed.early_stopping
        for name in ("encoder", "best-encoder"):
            files = [tmp_path / run / name / "model.safetensors" for run in ("undisturbed", "killed")]
            assert files[0].read_bytes() == files[1].read_bytes()
        for of_evaluation in (False, True):
            left, right = (lines_of(tmp_path / run, of_evaluation=of_evaluation) for run in ("undisturbed", "killed"))
            assert left == right


def test_a_kill_between_checkpoint_and_best_encoder_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {0: 0.2, 2: 0.5, 4: 0.3}
    original = Trainer.save_encoder

    def killed(self: Trainer, name: str) -> None:
        if name == "best-encoder" and self.step == 2:
            raise Stopped
        original(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_encoder", killed)
        with pytest.raises(Stopped):
            scripted_trainer(tmp_path / "run", values, max_steps=4).train()
    scripted_trainer(tmp_path / "run", values, max_steps=4).train()
    scripted_trainer(tmp_path / "undisturbed", values, max_steps=4).train()
    files = [tmp_path / run / "best-encoder" / "model.safetensors" for run in ("run", "undisturbed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_metric_that_is_not_measured_is_refused_before_the_first_step(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", max_steps=3, evaluation=TrainingEvaluationSettings(best="held_out_startt"))
    with pytest.raises(SettingError, match=r"evaluation.best"):
        trainer.train()
    assert trainer.step == 0


def test_a_number_that_is_not_finite_is_never_the_best() -> None:
    best = EarlyStopping()
    nan, infinity = float("nan"), float("inf")
    given = [nan, 1.0, infinity, 2.0, nan]
    better = [best.update(step=step, value=value, higher_is_better=True) for step, value in enumerate(given)]
    assert better == [False, True, False, True, False]
    assert (best.value, best.step, best.evaluations_since, best.last_step) == (2.0, 3, 1, 4)
    assert [best.patience_exhausted(patience) for patience in (1, 2, None)] == [True, False, False]


def one_weight(value: float) -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([value]))
    model.fixed = nn.Parameter(torch.tensor([7.0]), requires_grad=False)
    return model


def set_weight(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        model.get_parameter("weight").fill_(value)


def test_the_average_by_hand() -> None:
    model = one_weight(11.0)
    averaged = AveragedWeights(model, decay=0.2)
    set_weight(model, 22.0)
    averaged.update(step=1)  # 2/11 of the old one
    assert averaged.state()["weight"].item() == pytest.approx(11.0 * 2 / 11 + 22.0 * 9 / 11)
    set_weight(model, 5.0)
    averaged.update(step=2)  # 3/12 would be above 0.2
    assert averaged.state()["weight"].item() == pytest.approx(20.0 * 0.2 + 5.0 * 0.8)
    assert averaged.state().keys() == {"weight"}


def test_the_model_has_its_own_weights_again_after_an_error_too() -> None:
    model = one_weight(1.0)
    averaged = AveragedWeights(model, decay=0.5)
    set_weight(model, 3.0)
    with pytest.raises(KeyError), averaged.in_place():
        assert model.get_parameter("weight").item() == 1.0
        raise KeyError
    assert model.get_parameter("weight").item() == 3.0


def test_a_run_with_averages_trains_as_without_and_saves_and_measures_the_average(tmp_path: Path) -> None:
    measured: list[float] = []

    def run(name: str, **settings: Any) -> Any:
        trainer = toy_trainer(
            tmp_path / name,
            max_steps=4,
            parts=("masked",),
            evaluation=TrainingEvaluationSettings(every_steps=2, best="length"),
            evaluators=[lambda: {"length": measure(trainer)}],
            **settings,
        )
        trainer.train()
        return trainer

    def measure(trainer: Any) -> float:
        measured.append(float(trainer.model.encoder_model.embeddings.word_embeddings.weight.norm()))
        return measured[-1]

    without, averaging = run("without"), run("with", ema_decay=0.75)
    raw, end = parameters_of(without), parameters_of(averaging)
    assert all(torch.equal(raw[name], end[name]) for name in raw)
    means = averaging.averaged.state()
    name = "embeddings.word_embeddings.weight"
    saved = safetensors.torch.load_file(tmp_path / "with" / "encoder" / "model.safetensors")
    assert torch.equal(saved[name], means[f"encoder_model.{name}"])
    assert not torch.equal(saved[name], raw[f"encoder_model.{name}"])
    assert measured[-1] == pytest.approx(float(saved[name].norm())) != pytest.approx(measured[2], rel=1e-6)
    best = safetensors.torch.load_file(tmp_path / "with" / "best-encoder" / "model.safetensors")
    assert float(best[name].norm()) == pytest.approx(min(measured[3:]))


def test_a_checkpoint_without_the_averages_of_its_run_is_refused(tmp_path: Path) -> None:
    toy_trainer(tmp_path / "run", max_steps=2, checkpoint_every_minutes=0.0).train()
    with pytest.raises(ArtifactError, match="KeyError"):
        toy_trainer(tmp_path / "run", max_steps=2, ema_decay=0.5).train()
