"""A study: cells of settings, each trained with several seeds and evaluated, and one table of means and deviations.

OUT/study.json                 what the study consists of; another study is refused
OUT/CELL/seed-N/run            a training run; its blocks and checkpoints go when it was evaluated
OUT/CELL/seed-N/NAME           what the evaluation of that name wrote; a cell that has all of them is finished
OUT/table.json, OUT/table.md   the table of what is finished so far
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from index.files import json_bytes, replace_file, storage_errors
from index.manifest import read_object
from index.removal import remove_own_files
from index.store import refuse_changed
from npm.errors import ArtefactError, SettingError

METRICS_FILE = "metrics.json"
Command = Callable[[list[str]], int]
"""Runs `npmlm` with these arguments in this process; returns its exit status."""
Check = Callable[[list[str]], object]
"""Raises SettingError if `npmlm` would refuse these arguments before it begins."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is trained and what is measured."""

    cells: Mapping[str, Sequence[str]]  # settings of a training run by the name of the cell
    train: Sequence[str]  # settings of all runs
    evaluations: Mapping[str, Sequence[str]]  # settings of every evaluation by its name
    metrics: Mapping[str, str]  # head of a column by the name of a number in metrics.json of each evaluation


def run_study(study: Study, out: Path, *, seeds: Sequence[int], command: Command, check: Check) -> int:
    """Train and evaluate every cell that is not finished, seed by seed; the table is written after each.

    Returns 0, or the exit status of the first command that failed. Raises SettingError if `out` holds another study, or
    what `check` raises for one of the commands, before the first of them.
    """
    for name in study.cells:
        for arguments in _commands(study, name, out / name / "seed-0", seed=0):
            check(arguments)
    _start(study, out)
    for seed in seeds:
        for name in study.cells:
            folder = out / name / f"seed-{seed}"
            if not _missing(study, folder):
                continue
            for arguments in _commands(study, name, folder, seed=seed):
                if status := command(arguments):
                    return status
            for part in (folder / "run" / "corpus", folder / "run" / "checkpoints"):
                remove_own_files(part, also=[checkpoint.name for checkpoint in part.glob("step-*")])
            write_table(study, out)
    return 0


def _missing(study: Study, folder: Path) -> list[str]:
    """The evaluations of a cell that are not there."""
    return [name for name in study.evaluations if not (folder / name / METRICS_FILE).is_file()]


def _commands(study: Study, cell: str, folder: Path, *, seed: int) -> list[list[str]]:
    """What is left to do for a cell and a seed."""
    run = folder / "run"
    train = ["train", f"run={run}", f"trainer.seed={seed}", *study.train, *study.cells[cell]]
    return [train] + [
        ["evaluate", f"encoder={run / 'encoder'}", f"out={folder / name}", *study.evaluations[name]]
        for name in _missing(study, folder)
    ]


def _start(study: Study, out: Path) -> None:
    """Record the study, or refuse another one where cells of this one are finished; files count by their names."""
    record = {
        "cells": {name: list(settings) for name, settings in study.cells.items()},
        "train": [_without_folders(setting) for setting in study.train],
        "evaluations": {
            name: [_without_folders(setting) for setting in settings] for name, settings in study.evaluations.items()
        },
    }
    file = out / "study.json"
    if file.is_file() and any(out.glob(f"*/seed-*/*/{METRICS_FILE}")):
        # a study that was begun when this setting had another key goes on
        recorded = json.dumps(read_object(file, fix="put it back from a copy, or choose another folder"))
        before = json.loads(recorded.replace('"masked_unit=', '"masked_tokens.unit='))
        refuse_changed(
            before,
            record,
            where=file,
            problem="this folder was begun with another study",
            fix="repeat it as it was to go on, or choose another folder",
            error=SettingError,
        )
        return
    with storage_errors(file):
        out.mkdir(parents=True, exist_ok=True)
    replace_file(file, json_bytes(record))


def _without_folders(setting: str) -> str:
    """A setting whose list of files holds their names only.

    >>> _without_folders("corpus.files=[/data/a.jsonl,b.jsonl]"), _without_folders("schedule.max_steps=5")
    ('corpus.files=[a.jsonl,b.jsonl]', 'schedule.max_steps=5')
    """
    key, _, value = setting.partition("=")
    if not key.endswith("files"):
        return setting
    return f"{key}=[{','.join(Path(file).name for file in value.strip('[]').split(','))}]"


def table_rows(study: Study, out: Path) -> list[dict[str, Any]]:
    """A row for each cell: its name, the seeds that are finished, and by evaluation the mean and deviation of metrics.

    The deviation is that of a sample, None with one seed; both are None where nothing is finished.
    """
    rows = []
    for name in study.cells:
        finished = [folder for folder in sorted((out / name).glob("seed-*")) if not _missing(study, folder)]
        row: dict[str, Any] = {"cell": name, "seeds": len(finished)}
        for each in study.evaluations:
            measured = [_metrics(folder / each / METRICS_FILE, study.metrics) for folder in finished]
            row[each] = {metric: _summary([numbers[metric] for numbers in measured]) for metric in study.metrics}
        rows.append(row)
    return rows


def _metrics(file: Path, names: Iterable[str]) -> dict[str, float]:
    """The numbers `names` of an evaluation's metrics. Raises ArtefactError."""
    fix = f"remove {file.parent} and run the study again, which repeats this evaluation"
    found = read_object(file, fix=fix)
    try:
        return {name: float(found[name]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise ArtefactError(
            f"{file} holds no such metrics",
            expected=f"the numbers {', '.join(names)}",
            got=f"{type(error).__name__}: {error}",
            where=str(file),
            fix=fix,
        ) from error


def _summary(values: list[float]) -> dict[str, Any]:
    return {
        "mean": fmean(values) if values else None,
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def write_table(study: Study, out: Path) -> None:
    """Write table.json and table.md for the cells that are finished; what is not stays empty."""
    rows = table_rows(study, out)
    heads = ["cell", "seeds", *(f"{name}: {head}" for name in study.evaluations for head in study.metrics.values())]
    lines = ["| " + " | ".join(heads) + " |", "| --- " + "| ---: " * (len(heads) - 1) + "|"]
    for row in rows:
        numbers = [_entry(row[name][metric]) for name in study.evaluations for metric in study.metrics]
        entries = [row["cell"], str(row["seeds"]), *numbers]
        lines.append("| " + " | ".join(entries) + " |")
    replace_file(out / "table.json", json_bytes(rows))
    replace_file(out / "table.md", ("\n".join(lines) + "\n").encode())


def _entry(measured: Mapping[str, float | None]) -> str:
    """Mean ± deviation in four digits, whatever the size of the number."""
    mean, deviation = measured["mean"], measured["deviation"]
    if mean is None:
        return ""
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"


RATES = {f"rate-{percent}": [f"corruption.masked_fraction={percent / 100:g}"] for percent in (15, 40, 80)}
UNITS = {
    "unit-word": ["corruption.unit=word"],
    "unit-span": ["corruption.unit=word", "corruption.sampler=geometric"],
    "unit-collocation": ["corruption.unit=collocation"],
}  # at 15 %; rate-15 is the unit token
CORRUPTION_AND_PREDICTION = {
    f"corrupt-{corrupted}-predict-{predicted}": [
        f"corruption.masked_fraction={corrupted / 100:g}",
        f"corruption.predicted_fraction={predicted / 100:g}",
        f"corruption.copies={str(predicted > corrupted).lower()}",
    ]
    for corrupted, predicted in ((40, 20), (20, 20), (20, 40), (10, 40))
}  # rate-40 is 40/40
ABLATIONS = {
    "as it is": [],
    "masks: any spans": ["masking.unit=span"],
    "span lengths: p=0.2": ["masking.span_success_probability=0.2"],
    "span lengths: p=1": ["masking.span_success_probability=1.0"],
    "groups: any blocks": ["groups.mixing=random"],
    "groups: a rare token": ["groups.mixing=lexical"],
    "keys: masked copies": ["objective.nonparametric.keys=masked"],
    "own sequence: negatives": ["objective.nonparametric.own_sequence=negatives"],
}
"""What the phrase loss is made of, one choice changed at a time; single tokens are measured on other questions."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study but for its files: what is trained, and what of it is measured on held-out articles."""

    cells: Mapping[str, Sequence[str]]
    experiment: str
    evaluations: Mapping[str, Sequence[str]]
    metrics: Mapping[str, str]


PLANS = {
    "masking": StudyPlan(
        cells=RATES | UNITS | CORRUPTION_AND_PREDICTION,
        experiment="masking_study",
        evaluations={f"{unit}s": ["task=masked_tokens", f"masked_tokens.unit={unit}"] for unit in ("token", "word")},
        metrics={"accuracy": "masked accuracy", "perplexity": "perplexity", "loss": "NLL"},
    ),
    "ablations": StudyPlan(
        cells=ABLATIONS,
        experiment="ablations",
        evaluations={"in batch": ["task=in_batch"]},
        metrics={"start_top1": "start top-1", "end_top1": "end top-1"},
    ),
}
OURS = {"out": "", "files": "", "held_out": "", "seeds": "[0,1,2]", "articles": "100"}
"""What can be said of the study itself; all else are settings of its training runs."""


@dataclass(frozen=True, slots=True)
class ChosenStudy:
    """The cells, where they go, and with which seeds they are trained."""

    study: Study
    out: Path
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, arguments: list[str]) -> ChosenStudy:
        """From its name and KEY=VALUE. Raises SettingError for what is neither, lacking files and strange seeds."""
        name, *others = arguments or [""]
        if name not in PLANS:
            raise SettingError(
                "there is no such study",
                expected=f"first one of {', '.join(PLANS)}",
                got=name or "nothing",
                where="the command line",
                fix="name one of these; --help shows an example",
            )
        plan, given = PLANS[name], _parsed(others)
        ours = {key: given.pop(key) for key in OURS}
        measure = [f"corpus.files={ours['held_out']}", f"limit={ours['articles']}"]
        study = Study(
            cells=plan.cells,
            train=[f"experiment={plan.experiment}", f"corpus.files={ours['files']}", *map("=".join, given.items())],
            evaluations={each: [*settings, *measure] for each, settings in plan.evaluations.items()},
            metrics=plan.metrics,
        )
        return cls(study, Path(ours["out"] or f"runs/{name}"), _seeds(ours["seeds"]))


def _parsed(arguments: list[str]) -> dict[str, str]:
    """Our settings and those of training. Raises SettingError for what is no setting, and where files are lacking."""
    pairs = [argument.partition("=") for argument in arguments]
    keys = [key for key, _, _ in pairs]
    strange = [argument for argument in arguments if "=" not in argument]
    repeated = sorted({key for key in keys if keys.count(key) > 1} - set(strange))
    given = OURS | {key: value for key, _, value in pairs}
    lacking = [key for key in ("files", "held_out") if not given[key].strip("[]")]
    if strange or repeated or lacking:
        wrong = {"": strange, "more than one of ": repeated, "nothing for ": lacking}
        raise SettingError(
            "the study cannot begin",
            expected="files=[FILE,…] held_out=[FILE,…] and settings as KEY=VALUE, each once",
            got="; ".join(prefix + ", ".join(names) for prefix, names in wrong.items() if names),
            where="the command line",
            fix="correct these; --help shows an example",
        )
    return given


def _seeds(value: str) -> tuple[int, ...]:
    """The seeds in a list such as [0,1,2]. Raises SettingError."""
    parts = value.strip().removeprefix("[").removesuffix("]").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise SettingError(
            "these are no seeds",
            expected="whole numbers of at least 0, such as [0,1,2]",
            got=value,
            where="seeds",
            fix="correct the list",
        )
    return tuple(int(part) for part in parts)
