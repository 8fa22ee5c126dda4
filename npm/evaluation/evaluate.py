"""Zero-shot tasks × methods: every cell is measured on the same examples, written as predictions, metrics and tables.

Shapes: n examples, g groups, C labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError
from npm.core.files import sha256_of_bytes
from npm.core.settings import as_json
from npm.core.types import Progress, silent
from npm.evaluation.conditions import check_conditions, is_templated
from npm.evaluation.coverage import coverage_of, overlapping_examples
from npm.evaluation.data import MAX_ANSWER_TOKENS, answer_groups, find_data, read_task
from npm.evaluation.methods.admissible import NO_DOCUMENT
from npm.evaluation.methods.registry import GENERATORS, Method, load_generator, load_method, method_names
from npm.evaluation.methods.resources import Resources
from npm.evaluation.metrics import (
    Interval,
    bootstrap_interval,
    exact_match,
    group_mean_interval,
    macro_f1,
    wilson_interval,
)
from npm.evaluation.reliability import first_shares, reliability, reliability_note, reliability_table
from npm.evaluation.report import (
    Sample,
    ScoreTable,
    TaskScores,
    markdown_table,
    sample_card,
    score_table,
    suite_markdown,
    with_average,
)
from npm.evaluation.results import CheckRecord, Result, any_record, index_facts, model_facts
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, Split, Task, load_task, task_names
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex


EXAMPLES_PER_TASK = 3000
"""Without limit=, as in the paper."""
SAMPLE_ROWS = 3
"""Phrases or labels of a sample."""


@dataclass(frozen=True, slots=True)
class Score:
    """Share of examples that are answered right."""

    count: int
    micro: Interval | None  # over examples; None without any
    macro: Interval | None = None  # over groups; None where the task has none
    among: Interval | None = None  # over examples, of open tasks: one of the phrases is right


@dataclass(frozen=True, slots=True)
class MethodResult:
    """Answers of one method, and how often they are right."""

    name: str
    predictions: Sequence[Any]  # LabelPrediction or Answer, n of them
    right: np.ndarray  # bool [n]
    scores: Mapping[str, Score]  # over all, and of open tasks over covered, each subset, and with old answers
    facts: Mapping[str, Any]

    @property
    def shares(self) -> np.ndarray | None:
        """Share of the first phrase of each answer, f64 [n]; None for labels, and for scores that are no shares."""
        filling = self.facts.get("filling")
        return None if filling is None or filling["scoring"]["reference"] else first_shares(self.predictions)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All methods on the same examples of a task."""

    task: Task
    examples: Sequence[Example]
    methods: Sequence[MethodResult]
    coverage: Mapping[str, np.ndarray] = field(default_factory=dict)  # bool [n] each, of open tasks, with an index
    overlap: np.ndarray | None = None  # bool [n], examples of closed tasks that occur in the corpus
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)  # bool [n] each, examples of each score
    answer_tokens: Sequence[str] = ()  # of each example of an open task: 1, 2, 3 or 4+

    def row(self, scope: str, average: str) -> TaskScores | None:
        """The task's row of a table by `micro`, `macro` (where there is one) or `among`; None without such scores."""
        scores = {method.name: method.scores[scope] for method in self.methods if scope in method.scores}
        found = {name: getattr(score, average) or score.micro for name, score in scores.items()}
        known = {name: interval for name, interval in found.items() if interval is not None}
        return TaskScores(self.task.name, next(iter(scores.values())).count, known) if known else None

    def metrics(self) -> dict[str, Any]:
        """The task's part of metrics.json."""
        asked = [[each.id, each.text, each.label, list(each.answers), each.group] for each in self.examples]
        found: dict[str, Any] = {
            "suite": self.task.suite,
            "count": len(self.examples),
            "cut_count": sum(example.cut for example in self.examples),
            "examples_sha256": sha256_of_bytes(json.dumps(asked, ensure_ascii=False).encode()),
            "task_sha256": self.task.digest,
            "methods": {method.name: self._method_metrics(method) for method in self.methods},
        }
        if self.task.suite == "closed":
            found["labels"] = [label.name for label in self.task.labels]
            found["standing_in_corpus"] = None if self.overlap is None else int(self.overlap.sum())
        else:
            found["macro_over"] = self.task.macro
            if self.coverage:
                found["coverage"] = {scope: self._coverage_metrics(mask) for scope, mask in self.masks.items()}
        return found

    def _coverage_metrics(self, mask: np.ndarray) -> dict[str, Any]:
        kept = {name: own[mask] for name, own in self.coverage.items()}  # bool [examples in the mask] each
        if "subject_named" in kept:
            kept["answer_held_if_named"] = kept["answer_held"][kept["subject_named"]]
        means = {name: float(own.mean()) if len(own) else None for name, own in kept.items()}
        return {name: {"count": int(own.sum()), "share": means[name]} for name, own in kept.items()}

    def _method_metrics(self, method: MethodResult) -> dict[str, Any]:
        if self.task.suite == "open":
            found: dict[str, Any] = {scope: asdict(score) for scope, score in method.scores.items()}
            found["by_answer_tokens"] = _shares(method.right, self.answer_tokens)
            groups = [example.group for example in self.examples]
            if method.shares is not None:
                found["reliability"] = reliability(method.shares, method.right)
            return found | {"by_group": _shares(method.right, groups) if any(groups) else {}, "facts": method.facts}
        count = len(self.task.labels)
        confusion = np.zeros((count, count), dtype=np.int64)  # [C, C], by gold label (row) and predicted label (column)
        gold = [example.label for example in self.examples]
        np.add.at(confusion, (gold, [each.label for each in method.predictions]), 1)
        interval = method.scores["all"].micro
        return {
            "accuracy": None if interval is None else asdict(interval),
            "macro_f1": macro_f1(confusion),
            "confusion": confusion.tolist(),
            "predicted_counts": confusion.sum(0).tolist(),
            "facts": method.facts,
        }

    def notes(self) -> Iterator[str]:
        """Remarks for a reader of the table."""
        name, count = self.task.name, len(self.examples)
        if cut := sum(example.cut for example in self.examples):
            yield f"{name}: {cut} of {count} texts were cut to the longest prompt allowed."
        if blank := sum(example.blank for example in self.examples):
            yield f"{name}: {blank} of {count} examples have nothing in their fields."
        if self.overlap is not None and self.overlap.any():
            elsewhere = [method.right[~self.overlap] for method in self.methods]  # bool [n outside] each
            shares = (f"{100 * right.mean() if len(right) else float('nan'):.1f}" for right in elsewhere)
            told = ", ".join(f"{method.name} {share}" for method, share in zip(self.methods, shares, strict=True))
            found = f"{self.overlap.sum()} of {count} examples occur in the corpus"
            yield f"{name}: {found}; accuracy without them: {told}."
        if self.coverage:
            named = self.coverage.get("subject_named")  # bool [n]
            subjects = "" if named is None else f"names the subject of {named.sum()} and "
            held = self.coverage["answer_held"].sum()
            yield f"{name}: of {count} examples the corpus {subjects}holds an answer of {held}."
        for method in self.methods:
            if self.task.suite == "open":
                notes = [() if answer.phrases else answer.notes or ("",) for answer in method.predictions]
                if empty := sum(map(bool, notes)):
                    outside = sum(NO_DOCUMENT in each for each in notes)
                    without = f", for {outside} of them no document may answer" if outside else ""
                    yield f"{name}: {method.name} found no phrase for {empty} of {count} examples{without}."
            elif len({each.label for each in method.predictions}) == 1 and method.name != "majority":
                label = self.task.labels[method.predictions[0].label].name
                yield f"{name}: {method.name} answers {label!r} to every example."
            if method.shares is not None:
                yield reliability_note(f"{name}, {method.name}", method.shares, method.right)
            yield from (f"{name}, {method.name}: {note}" for note in method.facts.get("notes", ()))

    def records(self) -> Iterator[dict[str, Any]]:
        """The task's lines of predictions.jsonl, one for each example and method."""
        closed, names = self.task.suite == "closed", [label.name for label in self.task.labels]
        for method in self.methods:
            for number, (example, prediction) in enumerate(zip(self.examples, method.predictions, strict=True)):
                common = {"task": self.task.name, "method": method.name, "id": example.id, "text": example.text}
                if closed:
                    evidence = [asdict(each) for each in prediction.evidence]
                    own = {"gold": names[example.label], "prediction": names[prediction.label]}
                    own |= {"scores": list(prediction.scores), "evidence": evidence}
                else:
                    own = self._answer_record(number, prediction)
                yield {**common, "correct": bool(method.right[number]), **own}

    def _answer_record(self, number: int, answer: Any) -> dict[str, Any]:
        example, best = self.examples[number], answer.phrases[0] if answer.phrases else None
        names = ("phrase", "score", "occurrence_count")
        found: dict[str, Any] = {
            "gold": list(example.answers),
            "group": example.group,
            "prediction": best and best.phrase,
            "phrases": [{name: getattr(each, name) for name in names} for each in answer.phrases],
            "evidence": [asdict(each) for each in best.occurrences] if best else [],
        }
        found |= {name: bool(own[number]) for name, own in self.coverage.items()}
        if self.masks.keys() & self.task.subsets.keys():
            found["subsets"] = list(example.subsets)
        optional = {"old_answers": list(example.old_answers), "where": list(example.where)}
        return found | {name: value for name, value in optional.items() if value}

    def samples(self, count: int) -> Iterator[Sample]:
        """Predictions of the first method for some of the examples, evenly spread over all."""
        method, names = self.methods[0], [label.name for label in self.task.labels]
        for number in np.unique(np.linspace(0, len(self.examples) - 1, min(count, len(self.examples))).astype(int)):
            example, prediction = self.examples[number], method.predictions[number]
            title = f"{self.task.name}, {method.name}: {example.text}"
            if self.task.suite == "open":
                phrases = prediction.phrases[:SAMPLE_ROWS]
                rows = [
                    (exact_match(each.phrase, example.answers), each.score, each.phrase, (*each.occurrences, None)[0])
                    for each in phrases
                ]
                yield Sample(title, example.answers[0], rows)
            else:
                places = {each.label: each.occurrence for each in prediction.evidence}
                scores = prediction.scores
                order = sorted(range(len(names)), key=scores.__getitem__, reverse=True)[:SAMPLE_ROWS]
                rows = [(each == example.label, scores[each], names[each], places.get(each)) for each in order]
                yield Sample(title, names[example.label], rows)


def evaluate_task(
    task: Task,
    examples: Sequence[Example],
    methods: Sequence[Method],
    *,
    encoder: Encoder | None = None,
    index: PhraseIndex | None = None,
    fill: FillSettings | None = None,
    seed: int = 0,
    resamples: int = 10_000,
    progress: Progress = silent,
) -> TaskResult:
    """Run every method on every example, and count how often the label, or the best phrase, is right.

    Open tasks need an `encoder`, which measures answers in tokens, and with `index` report their coverage by the
    documents that `fill` admits. Intervals of all methods are drawn with the same `seed`, so that they can be compared.
    """
    masks = {"all": np.ones(len(examples), dtype=bool)}  # bool [n] each
    result = TaskResult(task, examples, [], masks=masks)
    if task.suite == "open":
        assert encoder is not None, "answers are measured in its tokens"
        lengths = answer_groups(encoder, [example.answers for example in examples]).tolist()  # n of them
        answer_tokens = [f"{length}{'+' * (length == MAX_ANSWER_TOKENS)}" for length in lengths]
        coverage = {} if index is None else coverage_of(examples, index, encoder, fill or FillSettings())
        if "subject_named" in coverage:
            masks["covered"] = coverage["subject_named"]
        for name in task.subsets:
            mask = np.array([name in example.subsets for example in examples], dtype=bool)  # [n]
            masks |= {name: mask} if mask.any() else {}
        result = replace(result, coverage=coverage, masks=masks, answer_tokens=answer_tokens)
    elif index is not None:
        result = replace(result, overlap=overlapping_examples(examples, index))
    own_groups = {"answer_tokens": result.answer_tokens, "group": [each.group for each in examples]}
    score = partial(_score, own_groups.get(task.macro), seed=seed, resamples=resamples)
    has_old = np.array([bool(example.old_answers) for example in examples])  # bool [n]
    results: list[MethodResult] = []
    for number, method in enumerate(methods):

        def method_progress(stage: str, done: float, _: float | None, before: int = number * len(examples)) -> None:
            progress(stage, before + done, len(examples) * len(methods))

        predictions = method.predict(task, examples, method_progress)
        right = _right(predictions, examples, 1)  # bool [n]
        among = _right(predictions, examples, None) if task.suite == "open" else None  # bool [n]
        scores = {scope: score(right, mask, among) for scope, mask in result.masks.items()}
        if has_old.any():
            before = [replace(example, answers=example.old_answers) for example in examples]
            scores["old_answers"] = score(_right(predictions, before, 1), has_old, None)
        results.append(MethodResult(method.name, predictions, right, scores, method.facts))
    return replace(result, methods=results)


def _score(
    groups: Sequence[str] | None,
    right: np.ndarray,
    mask: np.ndarray,
    among: np.ndarray | None,
    *,
    seed: int,
    resamples: int,
) -> Score:
    """Share of right answers over the examples in a mask bool [n], and over their `groups`."""

    def interval(kept: np.ndarray) -> Interval:
        if kept.all() or not kept.any():  # every resample is the same, and the bootstrap's interval a point
            return wilson_interval(int(kept.sum()), len(kept))
        return bootstrap_interval(kept, np.random.default_rng(seed), resamples=resamples)

    kept = right[mask]  # bool [kept]
    if not len(kept):
        return Score(0, None)
    macro = None if groups is None else interval(kept)
    if groups is not None and 0 < kept.mean() < 1:
        numbers = np.unique(np.array(groups)[mask], return_inverse=True)[1]  # i64 [kept]
        macro = group_mean_interval(kept, numbers, np.random.default_rng(seed), resamples=resamples)
    return Score(len(kept), interval(kept), macro, None if among is None else interval(among[mask]))


def _right(predictions: Sequence[Any], examples: Sequence[Example], count: int | None) -> np.ndarray:
    """Mask bool [n] of the labels that are right, or of the answers with a right one among the first phrases."""
    return np.array(
        [
            prediction.label == example.label
            if example.label >= 0
            else any(exact_match(each.phrase, example.answers) for each in prediction.phrases[:count])
            for prediction, example in zip(predictions, examples, strict=True)
        ],
        dtype=bool,
    )


def _shares(right: np.ndarray, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Examples and share of right ones of each group, in the order of their names."""
    names, numbers, counts = np.unique(np.array(groups), return_inverse=True, return_counts=True)  # [g], [n], [g]
    shares = np.bincount(numbers, weights=right) / counts  # f64 [g]
    return {
        str(name): {"count": int(count), "exact_match": float(share)}
        for name, count, share in zip(names, counts, shares, strict=True)
    }


def score_tables(results: Sequence[TaskResult]) -> list[ScoreTable]:
    """Accuracy of closed tasks; exact match of open ones, over all examples and over parts of them."""
    closed = [result for result in results if result.task.suite == "closed"]
    opened = [result for result in results if result.task.suite == "open"]
    titles = {"all": "Open tasks", "covered": "Open tasks whose subject the corpus names"}
    titles |= {name: f"Open tasks, subset {name}" for each in opened for name in each.masks if name not in titles}
    chosen = [("Closed tasks: accuracy", closed, "all", "micro")]
    averages = ("macro", "micro") if any(each.task.macro != "none" for each in opened) else ("micro",)
    for average in averages:
        note = f", {average} average" if len(averages) > 1 else ""
        chosen += [(f"{titles[scope]}: exact match (hit@1){note}", opened, scope, average) for scope in titles]
    answers = (answer for each in opened for method in each.methods for answer in method.predictions)
    if (most := max((len(answer.phrases) for answer in answers), default=0)) > 1:
        chosen.append((f"Open tasks: right in the first {most} (hit@{most})", opened, "all", "among"))
    old = "Open tasks: share answered with what was right at another date only"
    chosen.append((old, opened, "old_answers", "micro"))
    rows = [(title, [each.row(scope, average) for each in own]) for title, own, scope, average in chosen]
    found = [(title, [row for row in own if row is not None]) for title, own in rows]
    return [(title, with_average(own)) for title, own in found if own]


def chosen_tasks(settings: ZeroShotEvaluation, folder: Path, others: Sequence[str] = ()) -> list[Task]:
    """The tasks of the suite, in the order of their names, and those of task=.

    `folder` holds the shipped ones; `others` are those with their own evaluator. Raises SettingError for an unknown
    task, or if two have one name.
    """
    shipped = [load_task(name, folder=folder) for name in task_names(folder)] if settings.suite else []
    tasks = [task for task in shipped if settings.suite in ("all", task.suite)]
    named = [load_task(name, folder=folder, others=others) for name in settings.task]
    tasks += [task for task in named if task not in tasks]
    names = [task.name for task in tasks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"two tasks are named {repeated[0]}: leave one out, or rename its file")
    return tasks


def evaluate_suite(
    settings: ZeroShotEvaluation,
    tasks: Sequence[Task],
    *,
    show: int = 0,
    check_record: CheckRecord = any_record,
    progress: Progress,
) -> Result:
    """Ask the methods of `settings` the examples of all `tasks`, of each of which `show` predictions are shown.

    All tasks are read and all methods checked before the first is run. Raises UserError for what does not fit.
    """
    resources = Resources(settings)
    names = {task.name: method_names(settings, task) for task in tasks}
    if unused := [name for name in settings.method if not any(name in own for own in names.values())]:
        raise SettingError(f"method {unused[0]} answers none of the tasks {', '.join(names)}: leave it out")
    check_conditions(settings.fill.where, where="fill.where")
    data_dir = _check_data(settings, tasks)
    sources = {task.name: _sources(resources, task) for task in tasks}
    record = {"task": "zero_shot", "settings": _recorded(settings, names), "sources": sources}
    check_record(record)

    def read(task: Task, split: Split, limit: int | None) -> list[Example]:
        return read_task(
            task,
            data_dir,
            split=split,
            limit=limit,
            seed=settings.seed,
            encoder=resources.encoder(task),
            cut=task.suite == "open" or resources.scoring(task).last_tokens is None,
            conditions=[each for each in settings.fill.where if is_templated(each)] if task.suite == "open" else (),
        )

    examples = {task.name: read(task, settings.split, settings.limit or EXAMPLES_PER_TASK) for task in tasks}
    made = {
        task.name: [
            load_method(name, task, resources, lambda task=task: read(task, "dev", None))  # type: ignore[misc]
            for name in names[task.name]
        ]
        for task in tasks
    }
    results = []
    for task in tasks:
        encoder = resources.encoder(task)
        if task.suite == "open" and encoder is None:  # only the most frequent answer is evaluated
            encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
        result = evaluate_task(
            task,
            examples[task.name],
            made.pop(task.name),  # a task's methods keep vectors of its words, and go with the task
            encoder=encoder,
            index=resources.index(task)[0] if settings.index else None,
            fill=resources.fill_settings(task),
            seed=settings.seed,
            resamples=settings.resamples,
            progress=progress,
        )
        results.append(result)
    return suite_result(results, record, show)


def suite_result(results: Sequence[TaskResult], record: Mapping[str, Any], show: int) -> Result:
    """Lines, metrics and tables of all tasks, and `show` predictions of each to show."""
    tables, notes = score_tables(results), [note for result in results for note in result.notes()]
    by_share = [
        (result.task.name, method.name, reliability(method.shares, method.right))
        for result in results
        for method in result.methods
        if method.shares is not None
    ]
    shown = [reliability_table(by_share)] if by_share else []
    curves = [f"\n## {table.title}\n\n{markdown_table(table.header, table.rows)}\n" for table in shown]
    return Result(
        record,
        [line for result in results for line in result.records()],
        {"tasks": {result.task.name: result.metrics() for result in results}},
        [*map(score_table, tables), *shown],
        notes,
        report=suite_markdown(tables, notes) + "".join(curves),
        samples=[sample_card(sample) for result in results for sample in result.samples(show)] if show else [],
    )


def _check_data(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> Path | None:
    """`data_dir`; all missing files are named in one message, before any network access."""
    data_dir = Path(settings.data_dir) if settings.data_dir else None
    if data_dir is not None and not data_dir.is_dir():
        raise SettingError(f"data_dir={data_dir} is not a folder")
    if absent := [task for task in tasks if find_data(task, data_dir, settings.split) is None]:
        files = ", ".join(task.data.file for task in absent)
        others = ",".join(task.name for task in tasks if task not in absent)
        other = f", or choose task=[{others}]" if others else ""
        raise SettingError(
            f"the data of {len(absent)} of {len(tasks)} tasks is missing ({files}): set data_dir, or correct "
            f"data.file{other}"
        )
    return data_dir


def _sources(resources: Resources, task: Task) -> dict[str, Any]:
    """SHA-256 of the task's file, and which index and models are asked."""
    settings, facts = resources.settings, dict[str, Any](task_file=task.digest)
    if settings.index:
        index, encoder = resources.index(task)
        facts |= {"index": index_facts(index), "encoder": model_facts(encoder)}
    if settings.zero_shot.mlm.encoder:
        facts["language_model"] = model_facts(resources.language_model[0])
    for kind in GENERATORS:
        if getattr(settings.zero_shot, kind).model:
            facts[kind] = model_facts(load_generator(kind, resources))
    return facts


def _recorded(settings: ZeroShotEvaluation, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Settings that the numbers depend on, without paths: JSON values only."""
    closed, causal = asdict(settings.zero_shot.closed), asdict(settings.zero_shot.causal)
    closed["verbalizer"] = closed["verbalizer"] and Path(closed["verbalizer"]).name
    given = {name: getattr(settings, name) for name in ("split", "seed", "resamples")}
    given |= {"limit": settings.limit or EXAMPLES_PER_TASK, "dtype": settings.precision, "methods": names}
    given |= {"closed": closed, "fill": asdict(settings.fill)}
    if any("causal-knn" in own for own in names.values()):
        given["causal-knn"] = {name.removeprefix("knn_"): value for name, value in causal.items() if name != "model"}
    return as_json(given)
