"""Fine-tuning: a run of the trainer for each task, learning rate and seed, measured on the development data.

OUT/TASK/lr-RATE/seed-N/              a training run (npm/training/checkpoints.py); finished, it keeps settings,
                                      metrics, and its encoder with keep_encoders=true
OUT/TASK/lr-RATE/seed-N/result.json   the development metrics after each epoch; with it, the run is not repeated
OUT/metrics.json                      means and deviations over seeds, of what is finished so far; `unfinished` names
                                      the runs that are left

Shapes: N targets of a development set, n targets of a batch, C labels.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.display import markdown_table
from npm.core.errors import ArtifactError, missing
from npm.core.files import json_bytes, read_object, replace_file
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.labeled import LabeledExamples, LabeledSettings, encode_labeled, labeled_sources
from npm.evaluation.results import model_facts
from npm.masking.rendering import LABELED
from npm.models.batches import length_sorted_batches
from npm.models.encoder import Encoder
from npm.objectives.combine import WeightedSum
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.labeled import LabeledText
from npm.objectives.ranks import rank, world_size
from npm.objectives.settings import ObjectiveSettings
from npm.training.checkpoints import BEST_ENCODER, CHECKPOINTS, ENCODER, RunFolder
from npm.training.labeled import labeled_batch
from npm.training.model import TrainableModel, load_start
from npm.training.record import as_record, read_metrics, recorded_sources
from npm.training.run import recorded_facts, run_training
from npm.training.settings import ScheduleSettings, TrainingEvaluationSettings, TrainingSettings
from npm.training.trainer import StepReport
from npm.training.validation import Evaluator
from studies.finetuning.settings import FinetuneSettings
from studies.finetuning.tasks import METRICS, Task, TaskData, chosen_tasks, entity_f1, sample_summary, task_data

RESULT, METRICS_FILE = "result.json", "metrics.json"
TOKENS_PER_BATCH = 4096
PREFIX = "dev_"
SHOWN = ("seeds", "learning_rates", "epochs", "max_tokens", "limit", "layer", "mean_pooled", "contrast_weight")
"""Settings that metrics.json repeats; each run has all of its own."""


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task with its data read and its development sets encoded."""

    task: Task
    data: TaskData
    development: Mapping[str, LabeledExamples]
    train_examples: int
    sources: Mapping[str, Mapping[str, str]]
    """The files by content, of `train` and of `development`."""

    @property
    def headline(self) -> str:
        """The metric that counts, as metrics.jsonl has it."""
        return metric_name(self.task.halves[0], self.task.metrics[0])

    def measured(self, predicted: Mapping[str, np.ndarray]) -> dict[str, float]:
        """All metrics of the predictions f64 [N] for each development set."""
        found = {}
        for half, examples in self.development.items():
            both, labels = (predicted[half], examples.targets), self.data.development[half].labels
            for name in self.task.metrics:
                if name in METRICS:
                    found[metric_name(half, name)] = METRICS[name](*both)
                else:
                    bounds = examples.target_offsets[1:-1]  # i64 [sentences - 1]
                    tags = ([[labels[int(tag)] for tag in part] for part in np.split(side, bounds)] for side in both)
                    found[metric_name(half, name)] = entity_f1(*tags)
        return found

    def constant(self) -> dict[str, float]:
        """Each metric of a constant answer, with the label that is best for it."""
        answers = [
            self.measured({half: np.full(len(examples.targets), label) for half, examples in self.development.items()})
            for label in range(max(1, len(self.task.labels)))
        ]
        return {name: max(answer[name] for answer in answers) for name in answers[0]}


def metric_name(half: str, metric: str) -> str:
    """Name of a metric in metrics.jsonl.

    >>> metric_name("", "matthews"), metric_name("matched", "accuracy")
    ('dev_matthews', 'dev_matched_accuracy')
    """
    return PREFIX + (f"{half}_" if half else "") + metric


def prepare(task: Task, settings: FinetuneSettings, encoder: Encoder) -> PreparedTask:
    """Read all data of a task. Raises CorpusError or SettingError for unusable data."""
    data = task_data(task, settings.data_dir, max_tokens=settings.max_tokens, limit=settings.limit)
    per_batch = settings.examples_per_device_batch
    pooled, layer = settings.mean_pooled, settings.layer
    train = replace(data.train, layer=layer, mean_pooled=pooled, examples_per_device_batch=per_batch)
    train_examples = len(encode_labeled(train, encoder.tokenizer))
    development = {half: encode_labeled(each, encoder.tokenizer) for half, each in data.development.items()}
    held_out = {
        key: value
        for half, each in data.development.items()
        for key, value in recorded_sources(f"development{half and f'_{half}'}", labeled_sources(each)).items()
    }
    sources = {"train": recorded_sources("train", labeled_sources(train)), "development": held_out}
    return PreparedTask(task, replace(data, train=train), development, train_examples, sources)


def predictions(
    head: LabeledText, encoder: Encoder, examples: LabeledExamples, settings: LabeledSettings
) -> np.ndarray:
    """Predictions for each target, f64 [N]: the label's number, or the score; label 0 for words that were cut.

    In the mode that the modules are in, and with their gradients.
    """
    predicted = np.zeros(len(examples.targets))  # f64 [N]
    for numbers in length_sorted_batches(examples.lengths, tokens_per_batch=TOKENS_PER_BATCH):
        batch = labeled_batch(examples, numbers, encoder=encoder, scores=not settings.labels)
        outputs = head.predictions(EncodedRows(Passes(encoder.model), batch.to(encoder.device)))  # f32 [n, C]
        places = concatenated_ranges(examples.target_offsets[numbers], examples.target_offsets[numbers + 1])
        places = places[examples.slots[places] >= 0]  # i64 [n]
        predicted[places] = (outputs.argmax(1) if settings.labels else outputs[:, 0]).cpu().numpy()
    return predicted


def training_settings(
    prepared: PreparedTask, settings: FinetuneSettings, *, rate: float, seed: int
) -> TrainingSettings:
    """One run of the trainer."""
    return TrainingSettings(
        encoder=settings.encoder,
        device=settings.device,
        precision=settings.precision,
        labeled=prepared.data.train,
        start=settings.start,
        objective=ObjectiveSettings(
            nonparametric_weight=0.0,
            labeled_weight=1.0 - settings.contrast_weight,
            labeled_contrast_weight=settings.contrast_weight,
        ),
        trainer=replace(settings.trainer, seed=seed),
        schedule=ScheduleSettings(
            max_epochs=settings.epochs or prepared.task.epochs,
            learning_rate=rate,
            warmup_fraction=settings.warmup_fraction,
        ),
        evaluation=TrainingEvaluationSettings(best=prepared.headline, higher_is_better=True),
    )


def run_once(
    folder: Path,
    prepared: PreparedTask,
    settings: TrainingSettings,
    *,
    keep_encoder: bool,
    report_step: Callable[[StepReport], None],
) -> list[dict[str, float]]:
    """The development metrics after each epoch of one run, which is trained unless it is finished.

    Raises SettingError if `folder` was begun with other settings, ArtifactError if it was finished with other data.
    """
    file = folder / RESULT
    if file.is_file():
        facts = recorded_facts(settings, load_start(settings), {LABELED})
        RunFolder(folder).start(as_record(settings, ranks=world_size()) | facts)
        fix = f"remove {folder} to repeat this run"
        result = read_object(file, fix=fix)
        if result.get("development") != prepared.sources["development"]:
            raise ArtifactError(
                f"{file} was measured on {result.get('development')}, expected {prepared.sources['development']}: put "
                f"the old data back, choose another out, or {fix}"
            )
        if keep_encoder and not (folder / ENCODER).is_dir():
            raise ArtifactError(f"{folder / ENCODER} was not kept: leave keep_encoders out, or {fix}")
        finished: list[dict[str, float]] = result["epochs"]
        return finished

    def make_evaluators(trained: TrainableModel, objective: WeightedSum) -> Sequence[Evaluator]:
        head = objective.objectives["labeled"]
        assert isinstance(trained, Encoder) and isinstance(head, LabeledText), "made by these settings"

        def measure() -> dict[str, float]:
            sets = prepared.data.development
            predicted = {
                half: predictions(head, trained, examples, sets[half])
                for half, examples in prepared.development.items()
            }
            return prepared.measured(predicted)

        return (measure,)

    run_training(folder, settings, report_step=report_step, make_evaluators=make_evaluators)
    epochs = [
        {"epoch": epoch, "step": line["step"], **{name: line[name] for name in line if name.startswith(PREFIX)}}
        for epoch, line in enumerate(
            line for _, line in read_metrics(RunFolder(folder).metrics_path) if prepared.headline in line
        )
    ][1:]  # without that of the head as it was drawn
    if rank() == 0:
        replace_file(file, json_bytes({"epochs": epochs, "development": prepared.sources["development"]}))
        for name in (CHECKPOINTS, BEST_ENCODER, *(() if keep_encoder else (ENCODER,))):
            shutil.rmtree(folder / name, ignore_errors=True)
    return epochs


def rate_summary(runs: Sequence[Sequence[Mapping[str, float]]], headline: str) -> dict[str, Any]:
    """Summary of the runs of one learning rate, a seed each: last epoch, best epoch, best of all.

    The best epoch of a run is the first with the highest headline; all its metrics are taken from there.
    """
    names = [name for name in runs[0][0] if name.startswith(PREFIX)]
    last = [epochs[-1] for epochs in runs]
    best = [max(epochs, key=lambda epoch: epoch[headline]) for epochs in runs]
    return {
        "last_epoch": {name: sample_summary([epoch[name] for epoch in last]) for name in names},
        "best_epoch": {name: sample_summary([epoch[name] for epoch in best]) for name in names},
        "best_of_best": max(epoch[headline] for epoch in best),
    }


def task_summary(
    prepared: PreparedTask, runs: Mapping[float, Sequence[Sequence[Mapping[str, float]]]]
) -> dict[str, Any]:
    """All that is known of one task: by rate, and the rate that the development data choose."""
    headline = prepared.headline
    rates = {rate: rate_summary(of_rate, headline) for rate, of_rate in runs.items()}
    chosen = max(rates, key=lambda rate: rates[rate]["last_epoch"][headline]["mean"])
    return {
        "headline": headline,
        "train_examples": prepared.train_examples,
        "development_examples": {half: len(each) for half, each in prepared.development.items()},
        "sources": {**prepared.sources["train"], **prepared.sources["development"]},
        "constant_answer": prepared.constant(),
        "rates": {f"{rate:g}": rates[rate] for rate in rates},
        "chosen_rate": chosen,
        "chosen_by": "the highest mean over seeds of the last epoch, on the development data",
        **rates[chosen],
    }


def finetune(
    settings: FinetuneSettings,
    *,
    announce: Callable[[str], None] = lambda _: None,
    report_step: Callable[[str, StepReport], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train the unfinished runs and return the contents of metrics.json, which is written after every run.

    All data is read, and all settings are checked, before the first run. Only the first rank writes and announces.
    Raises SettingError, CorpusError, EncoderError or ArtifactError.
    """
    for name in ("data_dir", "out"):
        if not getattr(settings, name):
            raise missing(name, f"{name}=DIR")
    tasks, out = chosen_tasks(settings.task), Path(settings.out)
    encoder = load_start(TrainingSettings(encoder=settings.encoder, start=settings.start, device="cpu"))
    assert isinstance(encoder, Encoder), "an encoder-decoder is for denoising"
    prepared = [prepare(task, settings, encoder) for task in tasks]
    for each in prepared:
        training_settings(each, settings, rate=settings.learning_rates[0], seed=settings.seeds[0])
    shown = {name: value for name, value in asdict(settings).items() if name in SHOWN}
    found: dict[str, Any] = {"encoder": model_facts(encoder), "settings": shown, "tasks": {}}
    plan = [(each, rate, seed) for each in prepared for rate in settings.learning_rates for seed in settings.seeds]
    names = [f"{each.task.name}/lr-{rate:g}/seed-{seed}" for each, rate, seed in plan]
    runs: dict[str, dict[float, list[list[dict[str, float]]]]] = {}
    for number, ((each, rate, seed), name) in enumerate(zip(plan, names, strict=True), start=1):
        epochs = run_once(
            out / name,
            each,
            training_settings(each, settings, rate=rate, seed=seed),
            keep_encoder=settings.keep_encoders,
            report_step=lambda report, name=name: report_step(name, report),  # type: ignore[misc]
        )
        runs.setdefault(each.task.name, {}).setdefault(rate, []).append(epochs)
        found["tasks"][each.task.name] = task_summary(each, runs[each.task.name])
        if rank() == 0:
            announce(f"{name}: {each.headline.removeprefix(PREFIX)} {epochs[-1][each.headline]:.4f}")
            left = {"unfinished": names[number:]} if number < len(names) else {}
            replace_file(out / METRICS_FILE, json_bytes(found | left))
    return found


def report(found: Mapping[str, Any]) -> str:
    """The table of all tasks, in per cent: the last epoch, the best epoch, the best of all, and a constant answer."""
    header = ["task", "metric", "rate", "last epoch", "best epoch", "best of best", "constant answer"]
    rows = []
    for name, task in found["tasks"].items():
        for metric in task["last_epoch"]:
            is_headline = metric == task["headline"]
            means = [_percent(task[kind][metric]) for kind in ("last_epoch", "best_epoch")]
            best = f"{100 * task['best_of_best']:.1f}" if is_headline else ""
            floor = f"{100 * task['constant_answer'][metric]:.1f}"
            rate = f"{task['chosen_rate']:g}"
            rows.append([name, metric.removeprefix(PREFIX).replace("_", " "), rate, *means, best, floor])
    return markdown_table(header, rows)


def _percent(measured: Mapping[str, Any]) -> str:
    deviation = "" if measured["deviation"] is None else f" ± {100 * measured['deviation']:.1f}"
    return f"{100 * measured['mean']:.1f}{deviation}"
