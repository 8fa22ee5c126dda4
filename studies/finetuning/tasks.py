"""The tasks that encoders are fine-tuned on: their columns and labels, their metrics, and where their files lie.

GLUE (Wang et al. 2019, arXiv 1804.07461) in three forms: TASK-{train,dev}.jsonl with `sentence`, or `sentence1` and
`sentence2`, and `label` or `score`; Parquet as the hub has it; the hub itself. Sentences of words with a label each:
TASK-{train,dev}.jsonl with `tokens` and `tags`, or .txt and .tsv with a word and its label a line.

Shapes: n targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from npm.core.errors import CorpusError, SettingError, named, unknown
from npm.corpus.labeled import LabeledSettings, LabelLevel
from npm.corpus.sources import HUB_PREFIX
from npm.evaluation.sts import pearson, spearman


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Harmonic mean of precision and recall of label 1; 0 where neither side has it.

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])), f1(np.zeros(2), np.zeros(2))
    (0.5, 0.0)
    """
    both = int(((predicted == 1) & (gold == 1)).sum())
    either = int((predicted == 1).sum() + (gold == 1).sum())
    return 2 * both / either if either else 0.0


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda predicted, gold: float((predicted == gold).mean()),
    "f1": f1,
    # of two labels, 0 and 1, it is Pearson's correlation (Matthews 1975, Biochimica et Biophysica Acta 405)
    "matthews": lambda predicted, gold: float(pearson(predicted, gold)),
    "pearson": lambda predicted, gold: float(pearson(predicted, gold)),
    "spearman": lambda predicted, gold: float(spearman(predicted, gold)),
}
"""Of predictions and gold [n] each, by name; entity_f1 needs to know which words make a sentence."""


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The entities of one sentence by its tags in BIO: first word, word after the last, kind.

    An I- that follows no entity of its kind begins one, as in the evaluation of CoNLL 2000.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"]))
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC'), (5, 6, 'ORG')]
    """
    found: set[tuple[int, int, str]] = set()
    first, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        position, _, own = tag.partition("-")
        if kind and (position != "I" or own != kind):
            found.add((first, place, kind))
            kind = ""
        if position != "O" and not kind:
            first, kind = place, own
    return found


def entity_f1(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """Harmonic mean of precision and recall of entities over all sentences, borders and kind being right.

    (Tjong Kim Sang and De Meulder 2003, CoNLL, §3.)

    >>> entity_f1([["B-PER", "I-PER", "O"], ["B-LOC"]], [["B-PER", "O", "O"], ["B-LOC"]])
    0.5
    """
    pairs = [(entities(ours), entities(theirs)) for ours, theirs in zip(predicted, gold, strict=True)]
    both = sum(len(ours & theirs) for ours, theirs in pairs)
    either = sum(len(ours) + len(theirs) for ours, theirs in pairs)
    return 2 * both / either if either else 0.0


def sample_summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation of a sample, None with too few values.

    >>> sample_summary([1.0, 3.0]) == {"mean": 2.0, "deviation": 2**0.5, "values": [1.0, 3.0]}
    True
    >>> sample_summary([])["mean"] is None
    True
    """
    return {
        "mean": fmean(values) if values else None,
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


MANY_EPOCHS, FEW_EPOCHS = 10, 3
"""Passes over small and over large training data."""
YES_OR_NO = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
BIO_4 = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
PARTS_OF_SPEECH = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT"),
    *("SCONJ", "SYM", "VERB", "X"),
)
SENTENCE, PAIR, WORDS = ("sentence", "label"), ("sentence1", "sentence2", "label"), ("tokens", "tags")


@dataclass(frozen=True, slots=True)
class Task:
    """One task."""

    name: str
    metrics: tuple[str, ...]
    """Names in METRICS, or entity_f1; the headline first."""
    hub: tuple[str, ...] = SENTENCE
    """Columns of the hub's files, the label last."""
    labels: tuple[str, ...] = YES_OR_NO
    """None: scores from 0 to 5."""
    epochs: int = FEW_EPOCHS
    halves: tuple[str, ...] = ("",)
    """Names of the development sets, where there is more than one."""

    @property
    def of_words(self) -> bool:
        """Return True if each word has a label."""
        return self.hub == WORDS

    @property
    def own(self) -> tuple[str, ...]:
        """Columns of TASK-train.jsonl."""
        if self.of_words:
            return WORDS
        return (*(SENTENCE if len(self.hub) == 2 else PAIR)[:-1], "label" if self.labels else "score")


TASKS = {
    task.name: task
    for task in (
        Task("cola", ("matthews", "accuracy"), epochs=MANY_EPOCHS),
        Task("sst2", ("accuracy",)),
        Task("mrpc", ("f1", "accuracy"), PAIR, epochs=MANY_EPOCHS),
        Task("qqp", ("f1", "accuracy"), ("question1", "question2", "label")),
        Task("stsb", ("spearman", "pearson"), PAIR, labels=(), epochs=MANY_EPOCHS),
        Task(
            "mnli",
            ("accuracy",),
            ("premise", "hypothesis", "label"),
            ("entailment", "neutral", "contradiction"),
            halves=("matched", "mismatched"),
        ),
        Task("qnli", ("accuracy",), ("question", "sentence", "label"), ENTAILMENT),
        Task("rte", ("accuracy",), PAIR, ENTAILMENT, MANY_EPOCHS),
        Task("wnli", ("accuracy",), PAIR, epochs=MANY_EPOCHS),
        Task("conll", ("entity_f1", "accuracy"), WORDS, (*BIO_4, "B-MISC", "I-MISC")),
        Task("wikiann", ("entity_f1", "accuracy"), WORDS, BIO_4),
        Task("upos", ("accuracy",), WORDS, PARTS_OF_SPEECH),
    )
}


def chosen_tasks(names: list[str]) -> list[Task]:
    """The tasks called so. Raises SettingError for another name, none, or one that comes twice."""
    for name in names:
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    if not names or len(set(names)) < len(names):
        raise SettingError(f"task must be one or more tasks, each once, got {named(names) or 'none'}")
    return [TASKS[name] for name in names]


@dataclass(frozen=True, slots=True)
class TaskData:
    """The training data of a task and its development sets, as the trainer's settings name them."""

    train: LabeledSettings
    development: Mapping[str, LabeledSettings]
    """By the name of the half, "" where there is only one."""


EXTENSIONS = (".jsonl", ".jsonl.zst", ".tsv", ".txt")
"""Of TASK-train and TASK-dev; the last two for words."""


def task_data(task: Task, data_dir: str, *, max_tokens: int, limit: int | None) -> TaskData:
    """Files of `task` below `data_dir`, in the first form that is found. Raises CorpusError for none."""
    base = LabeledSettings(
        labels=list(task.labels),
        level=LabelLevel.token if task.of_words else LabelLevel.sequence,
        max_tokens=max_tokens,
        max_examples=limit,
    )
    endings = {half: f"_{half}" if half else "" for half in task.halves}

    def data(columns: tuple[str, ...], train: str, development: Mapping[str, str]) -> TaskData:
        second = columns[1] if len(columns) > 2 else ""
        chosen = replace(base, text_column=columns[0], second_column=second, label_column=columns[-1])
        return TaskData(
            replace(chosen, files=[train]), {half: replace(chosen, files=[file]) for half, file in development.items()}
        )

    if data_dir.startswith(HUB_PREFIX) and not task.of_words:
        splits = {half: f"{data_dir}@{task.name}/validation{end}" for half, end in endings.items()}
        return data(task.hub, f"{data_dir}@{task.name}/train", splits)
    folder = Path(data_dir)
    for extension in EXTENSIONS if task.of_words else EXTENSIONS[:2]:
        if (file := folder / f"{task.name}-train{extension}").is_file():
            own = {half: str(folder / f"{task.name}-dev{end}{extension}") for half, end in endings.items()}
            return data(task.own, str(file), own)
    parquet = folder / task.name
    if not task.of_words and any(parquet.glob("train-*.parquet")):
        files = {half: str(parquet / f"validation{end}-*.parquet") for half, end in endings.items()}
        return data(task.hub, str(parquet / "train-*.parquet"), files)
    forms = f"{task.name}-train.jsonl" + ("" if task.of_words else f" or {task.name}/train-*.parquet")
    raise CorpusError(
        f"data_dir={data_dir}: the data of {task.name} is missing: expected {forms}, and development data"
    )
