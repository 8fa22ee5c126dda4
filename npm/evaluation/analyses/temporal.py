"""Temporal adaptation: the same questions asked of an old corpus, a new one, and both.

Three ways to bring a model up to date are compared: another index; an index changed by `add replace=true`; one index
over both with dates kept, filtered for each question.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npm.core.artifact import refuse_changed
from npm.core.errors import ArtifactError, SettingError
from npm.core.files import check_writable, json_bytes, read_object, replace_file
from npm.core.settings import parse_list
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.sources import find_sources
from npm.evaluation.results import METRICS, read_predictions
from npm.evaluation.tasks.synthetic_time import DATES, json_lines, synthetic_files, write_synthetic_time
from npm.evaluation.tasks.task_file import load_task
from npm.indexing.generation import input_record

OURS = {"out": "runs/temporal", "task": "", "old": "", "new": "", "data_dir": ""}
"""What can be said of the study itself; `build.KEY=` goes to builds, OF_ALL to all commands, the rest to evaluate."""
OF_DUMPS = ("old", "new")
OF_ALL = ("encoder", "device", "precision")
OF_ROWS = ("index", "suite", "zero_shot.date", "fill.where", "build.index", "build.stage", "build.shard")
"""What each command of the study is given by its place, and what would make less or more of it than the table shows."""
SUBSETS, SYNTHETIC = ("unchanged", "changed"), "synthetic"
COSTS, REBUILD, CHANGE = "changes.json", "rebuild", "add replace=true"
HEADER = ("corpus", "method", "unchanged", "changed", "old answer", "answer held: unchanged", "answer held: changed")
MEANING = (
    "Exact match in per cent on facts that are the same at both dates, and on facts that have changed; how often the "
    "best phrase for a changed fact is the answer of the other date; and for what share of the facts the corpus holds "
    "an answer. Asked about the later date unless it is said."
)


@dataclass(frozen=True, slots=True)
class TemporalStudy:
    """Two dumps of a corpus, a task with two dates, and what else the commands are given."""

    out: Path
    task: str
    dates: tuple[str, str]
    dumps: tuple[str, str]  # values of corpus.files, the older first
    build: tuple[str, ...]
    evaluate: tuple[str, ...]
    is_synthetic: bool = False  # task and dumps are written to OUT/synthetic

    @classmethod
    def of(cls, arguments: Sequence[str], *, task_folder: Path) -> TemporalStudy:
        """From KEY=VALUE; without dumps and task the synthetic set. Raises SettingError for what cannot be met.

        Nothing is written.
        """
        pairs = dict(argument.partition("=")[::2] for argument in arguments)
        is_wrong = any("=" not in argument for argument in arguments) or len(pairs) < len(arguments)
        ours = {key: pairs.pop(key, default) for key, default in OURS.items()}
        out = Path(ours["out"])
        given = [bool(ours[key]) for key in ("task", *OF_DUMPS)]
        if is_wrong or any(given) != all(given) or not ours["out"]:
            raise SettingError(
                f"invalid arguments {' '.join(arguments)!r}: give KEY=VALUE, each key once, out=DIR, and task=, old= "
                "and new= together or not at all"
            )
        if owned := [key for key in pairs if key in OF_ROWS]:
            raise SettingError(f"the study sets {', '.join(owned)} itself: leave it out")
        if of_dumps := [key for key in pairs if key.startswith("build.corpus.")]:
            raise SettingError(f"the study reads its files as they are: leave {', '.join(of_dumps)} out")
        dates: Sequence[int | str] = DATES
        if any(given):
            dates = _dates_of(ours["task"], task_folder)
        else:
            synthetic = synthetic_files(out / SYNTHETIC)
            ours |= dict(zip(OF_DUMPS, map(str, synthetic.corpora.values()), strict=True))
            ours["task"] = str(synthetic.task)
        shared = [f"{key}={pairs.pop(key)}" for key in OF_ALL if key in pairs]
        build = [f"{key[6:]}={value}" for key, value in pairs.items() if key.startswith("build.")]
        evaluate = [f"{key}={value}" for key, value in pairs.items() if not key.startswith("build.")]
        evaluate += [f"data_dir={ours['data_dir']}"] if ours["data_dir"] else []
        return cls(
            out,
            ours["task"],
            (str(dates[0]), str(dates[1])),
            (ours["old"], ours["new"]),
            (*shared, *build),
            (*shared, *evaluate),
            is_synthetic=not any(given),
        )

    @property
    def asked(self) -> dict[str, tuple[str, list[str]]]:
        """Row of the table → the index that is asked, and settings of the evaluation."""
        first, last = self.dates
        return {
            first: ("old", []),
            last: ("new", []),
            f"{last}, by add replace=true": ("replaced", []),
            "both": ("both", []),
            f"both, date<={first}, asked about {first}": (
                "both",
                ["fill.where=[date<={date}]", f"zero_shot.date={first}"],
            ),
            f"both, date<={last}": ("both", ["fill.where=[date<={date}]"]),
            f"both, date={last}": ("both", ["fill.where=[date={date}]"]),
        }

    @property
    def files(self) -> dict[str, str]:
        """Index that is built → what it is built from."""
        return {"old": self.dumps[0], "new": self.dumps[1], "both": str(self.out / "both.jsonl")}

    @property
    def builds(self) -> dict[str, list[str]]:
        """Index → the command that builds it."""
        kept = {"both": ["corpus.kept_fields=[date]"]}
        return {
            name: ["build", f"corpus.files={own}", f"index={self.out / name}", *kept.get(name, []), *self.build]
            for name, own in self.files.items()
        }

    @property
    def evaluations(self) -> dict[str, list[str]]:
        """Row of the table → the command that asks it."""
        return {
            row: [
                "evaluate",
                f"task={self.task}",
                f"index={self.out / index}",
                f"out={self.folder(row)}",
                *settings,
                *self.evaluate,
            ]
            for row, (index, settings) in self.asked.items()
        }

    def folder(self, row: str) -> Path:
        """Where the results of a row go."""
        return self.out / "results" / str(list(self.asked).index(row))


def _dates_of(task: str, folder: Path) -> tuple[int | str, ...]:
    """The two dates that a task compares. Raises SettingError for a task without them, or without the two subsets."""
    loaded = load_task(task, folder=folder)
    if len(loaded.data.dates) != 2 or not {*SUBSETS} <= loaded.subsets.keys():
        raise SettingError(f"task={task} needs two data.dates and subsets: {{unchanged: unchanged, changed: changed}}")
    return loaded.data.dates


def run_temporal(
    study: TemporalStudy,
    command: Callable[[list[str]], int],
    *,
    check: Callable[[list[str]], object] | None = None,
) -> int:
    """Build the indexes and ask all rows, but for what is finished, and write table.md; the first status that is not 0.

    Indexes are OUT/old, new, replaced and both. OUT/changes.json has seconds and bytes of the change and the rebuild,
    null for seconds that are not known. `check` refuses an evaluation that is not to be begun: all are asked before
    the first build. Raises SettingError where OUT holds what was made with other settings or from other files.
    """
    check_writable(study.out)
    if study.is_synthetic:
        write_synthetic_time(study.out / SYNTHETIC)
    if check is not None:
        for evaluation in study.evaluations.values():
            check(evaluation)
    _check_begun(study)
    if not Path(study.files["both"]).is_file():
        write_both(study, Path(study.files["both"]))
    for name, build in study.builds.items():
        is_new = not (study.out / name).exists()  # what goes on, or finds nothing left, takes less than a rebuild
        status, seconds = _timed(command, build)
        if status:
            return status
        if name == "new" and (is_new or REBUILD not in _costs(study)):
            cost = {REBUILD: [seconds if is_new else None, _bytes_of(study.out / name)]}
            _write_costs(study, _costs(study) | cost)
    is_changed = CHANGE in _costs(study) and (study.out / "replaced").exists()
    if not is_changed and (status := _replace_documents(study, command)):
        return status
    for row, evaluation in study.evaluations.items():
        if not (study.folder(row) / METRICS).is_file() and (status := command(evaluation)):
            return status
    replace_file(study.out / "table.md", temporal_table(study).encode())
    return 0


def _check_begun(study: TemporalStudy) -> None:
    """Write OUT/study.json; raise SettingError where what OUT holds was made with other settings or other files."""
    files = {
        key: {source["name"]: source.get("sha256") for source in input_record(find_sources(parse_list(dump, key)))}
        for key, dump in zip(OF_DUMPS, study.dumps, strict=True)
    }
    record: dict[str, Any] = {"task": study.task, "dumps": list(study.dumps), "build": list(study.build)}
    record |= {"dates": list(study.dates), "files": files}
    begun, how = study.out / "study.json", {"evaluate": list(study.evaluate)}
    made = any((study.out / name).exists() for name in (*study.files, "both.jsonl", "replaced"))
    asked = any((study.folder(row) / METRICS).is_file() for row in study.asked)
    if begun.is_file() and (made or asked):
        fix = "choose another folder with out=DIR"
        before = read_object(begun, fix=fix)
        refuse_changed(
            record | (how if asked else {}),
            before if asked else {name: value for name, value in before.items() if name not in how},
            where=begun,
            problem=f"{study.out} holds {'results' if asked else 'indexes'} of other settings or files",
            fix=f"repeat them to go on, or {fix}",
            error=SettingError,
        )
    study.out.mkdir(parents=True, exist_ok=True)
    replace_file(begun, json_bytes(record | how))


def _replace_documents(study: TemporalStudy, command: Callable[[list[str]], int]) -> int:
    """Make OUT/replaced, a copy of OUT/old changed by `add replace=true`; the status of the command.

    It is changed once its cost is written: the copy is an index from the start, and would pass for the changed one.
    """
    copy = study.out / "replaced"
    _write_costs(study, {name: cost for name, cost in _costs(study).items() if name != CHANGE})
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(study.out / "old", copy)
    of_all = [setting for setting in study.build if setting.partition("=")[0] in OF_ALL]
    added = ["add", f"corpus.files={study.dumps[1]}", f"index={copy}", "replace=true", *of_all]
    status, seconds = _timed(command, added)
    if status == 0:
        cost = {CHANGE: [seconds, _bytes_of(copy) - _bytes_of(study.out / "old")]}
        _write_costs(study, _costs(study) | cost)
    return status


def _costs(study: TemporalStudy) -> dict[str, Any]:
    """What was done → its seconds, None if they are not known, and its bytes."""
    file = study.out / COSTS
    fix = "remove it; the change is then made again, and the time of the rebuild not known"
    costs = read_object(file, fix=fix) if file.is_file() else {}
    for name, cost in costs.items():
        match cost:
            case [int() | float() | None, int()]:
                continue
        raise ArtifactError(f"{file}: expected seconds and bytes of {name}, got {cost!r:.80}; {fix}")
    return costs


def _write_costs(study: TemporalStudy, costs: Mapping[str, Any]) -> None:
    replace_file(study.out / COSTS, json_bytes(costs))


def write_both(study: TemporalStudy, file: Path) -> None:
    """One file of the documents of both dumps: each with its dump's date, which its id names too."""
    unfinished = file.with_suffix(".tmp")
    with unfinished.open("wb") as lines:
        for date, files, key in zip(study.dates, study.dumps, OF_DUMPS, strict=True):
            for each in read_corpus(CorpusSettings(files=parse_list(files, key))):
                row = {"id": f"{each.id}@{date}", "title": each.title, "text": each.text, "date": _as_number(date)}
                lines.write(json_lines([row]))
    unfinished.replace(file)


def _as_number(date: str) -> int | str:
    return int(date) if date.isdecimal() else date


def _timed(command: Callable[[list[str]], int], arguments: list[str]) -> tuple[int, float]:
    """The status of a command, and how many seconds it took."""
    began = time.monotonic()
    return command(arguments), time.monotonic() - began


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def temporal_table(study: TemporalStudy) -> str:
    """The results of all rows as Markdown, with the cost of the change and whether it answers as a rebuild does."""
    lines = ["| " + " | ".join(HEADER) + " |", "| --- | --- " + "| ---: " * (len(HEADER) - 2) + "|"]
    for row in study.asked:
        (metrics,) = json.loads((study.folder(row) / METRICS).read_text("utf-8"))["tasks"].values()
        for name, method in metrics["methods"].items():
            scores = [_per_cent(method["subsets"][subset]["all"]["micro"]) for subset in SUBSETS]
            stale = _per_cent(method.get("old_answers", {}).get("micro"))
            held = [_held(metrics["subsets"][subset]) for subset in SUBSETS]
            lines.append(f"| {row} | {name} | {' | '.join([*scores, stale, *held])} |")
    parts = [MEANING, "\n".join(lines)]
    rebuilt, changed = (study.folder(row) for row in list(study.asked)[1:3])
    same, count = agreement(rebuilt, changed)
    parts.append(f"The changed index answers {same} of {count} questions with the phrase of the rebuilt one.")
    for name, (seconds, size) in _costs(study).items():
        took = "time not known" if seconds is None else f"{seconds:.1f} s"
        parts.append(f"{name}: {took}, {size / 1e6:.1f} MB.")
    return "\n\n".join(parts) + "\n"


def agreement(first: Path, second: Path) -> tuple[int, int]:
    """How many predictions of two results are the same phrase, and how many there are."""
    answers = [
        {(line["task"], line["method"], line["id"]): line["prediction"] for _, line in read_predictions(folder)}
        for folder in (first, second)
    ]
    shared = answers[0].keys() & answers[1].keys()
    return sum(answers[0][key] == answers[1][key] for key in shared), len(shared)


def _per_cent(interval: Mapping[str, float] | None) -> str:
    """A mean with its interval; a dash without examples."""
    if interval is None:
        return "–"
    return f"{100 * interval['mean']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _held(subset: Mapping[str, Any]) -> str:
    share = subset["coverage"]["answer_held"]["share"] if subset["coverage"] else None
    return "–" if share is None else f"{100 * share:.1f}"
