"""Results of a task as a table by columns: one row a method and example. Every number is a group-by over it.

Shapes: R rows, n examples, C labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from npm.core.files import sha256_of_bytes
from npm.core.types import Progress, silent
from npm.corpus.markup import visible
from npm.evaluation.data import MAX_ANSWER_TOKENS, answer_groups
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.methods.registry import NO_DOCUMENT, Method, Predictions, admissible_parts
from npm.evaluation.metrics import (
    bootstrap_interval,
    exact_match,
    group_mean_interval,
    macro_f1,
    reliability,
    reliability_note,
    wilson_interval,
)
from npm.evaluation.tasks import Example, Task
from npm.indexing.embed import check_tokenizer
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

MIN_WORDS, BLOCKS_LOOKED_IN, MIN_ASCII_LETTERS = 8, 3, 24


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Answers of all methods to the same examples of a task: the rows of the first method, then of the next."""

    task: Task
    examples: Sequence[Example]  # n of them
    methods: Mapping[str, Predictions]  # those of each method, by its name
    columns: Mapping[str, np.ndarray]
    """[R] each: `method`, `place` (number of the example), `right`, `group`; of open tasks also `answer_tokens`,
    `among` (any phrase is right), `has_old` and `stale` (right at another date), `share` of the first phrase or nan."""
    flags: Mapping[str, np.ndarray]
    """bool [R] each: coverage by the corpus, named as by `coverage_of` and `overlapping_examples`."""
    scopes: Mapping[str, np.ndarray]
    """bool [R] each: `all` rows, and of open tasks those `covered` and those of each subset."""
    seed: int = 0
    resamples: int = 10_000

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self["right"])

    def where(self, rows: np.ndarray) -> ResultTable:
        """The rows in the mask bool [R]."""
        columns, flags, scopes = (
            {name: column[rows] for name, column in each.items()} for each in (self.columns, self.flags, self.scopes)
        )
        return replace(self, columns=columns, flags=flags, scopes=scopes)

    def by(self, column: str) -> dict[str, ResultTable]:
        """The rows of each value of a column, in the order in which the values first occur."""
        values = self[column]
        return {value: self.where(values == value) for value in dict.fromkeys(values.tolist())}

    def asked(self) -> ResultTable:
        """The rows of the first method: one for each example."""
        return self.where(self["method"] == next(iter(self.methods), ""))

    def rows(self) -> Iterator[tuple[Example, Any, bool]]:
        """Example, prediction and whether it is right, of each row."""
        for method, place, right in zip(self["method"], self["place"].tolist(), self["right"].tolist(), strict=True):
            yield self.examples[place], self.methods[method].answers[place], right

    def interval(self, column: str, groups: str = "") -> dict[str, float] | None:
        """Share of the rows that are true in a column, and its confidence interval; None without rows.

        With the name of a column of `groups`, the mean over these of the share in each.
        """
        hits, rng = self[column], np.random.default_rng(self.seed)  # bool [R]
        if not len(hits):
            return None
        if hits.all() or not hits.any():  # every resample is the same, and the bootstrap's interval a point
            return asdict(wilson_interval(int(hits.sum()), len(hits)))
        if not groups:
            return asdict(bootstrap_interval(hits, rng, resamples=self.resamples))
        numbers = np.unique(self[groups], return_inverse=True)[1]  # i64 [R]
        return asdict(group_mean_interval(hits, numbers, rng, resamples=self.resamples))

    def score(self, column: str = "right") -> dict[str, Any]:
        """Share of rows that are true: over examples, over groups, and whether any of the phrases is right."""
        has_groups, has_among = self.task.macro != "none", column == "right" and "among" in self.columns
        return {
            "count": len(self),
            "micro": self.interval(column),
            "macro": self.interval(column, self.task.macro) if has_groups else None,
            "among": self.interval("among") if has_among else None,
        }

    def shares_right(self, column: str) -> dict[str, dict[str, Any]]:
        """Rows and share of right ones of each value of a column."""
        return {
            value: {"count": len(own), "exact_match": float(own["right"].mean())}
            for value, own in self.by(column).items()
        }


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
) -> ResultTable:
    """Run every method on every example, and mark the label, or the best phrase, as right or wrong.

    Open tasks need an `encoder`, which measures answers in tokens, and with `index` report their coverage by the
    documents that `fill` admits. Intervals of all methods are drawn with the same `seed`, so that they can be compared.
    """
    found: dict[str, Predictions] = {}
    for method in methods:

        def method_progress(stage: str, done: float, _: float | None, before: int = len(found)) -> None:
            progress(stage, before * len(examples) + done, len(examples) * len(methods))

        found[method.name] = method.predict(task, examples, method_progress)
        method_progress(f"task {task.name}", len(examples), None)
    columns = {
        "method": np.repeat(np.array([*found], dtype=object), len(examples)),
        "place": np.tile(np.arange(len(examples)), len(found)),
        "group": np.array([example.group for example in examples] * len(found), dtype=object),
    }
    flags: dict[str, np.ndarray] = {}  # bool [n] each
    scopes = {"all": np.ones(len(examples), dtype=bool)}  # bool [n] each
    if task.suite == "closed":
        rows = (pair for each in found.values() for pair in zip(each.answers, examples, strict=True))
        columns["right"] = np.array([answer.label == example.label for answer, example in rows], dtype=bool)
        overlap = None if index is None else overlapping_examples(examples, index)
        flags |= {} if overlap is None else {"standing_in_corpus": overlap}
    else:
        assert encoder is not None, "answers are measured in its tokens"
        lengths = answer_groups(encoder, [example.answers for example in examples]).tolist()  # n of them
        names = [f"{length}{'+' * (length == MAX_ANSWER_TOKENS)}" for length in lengths]
        columns |= _open_columns(found, examples)
        columns["answer_tokens"] = np.array(names * len(methods), dtype=object)
        flags |= {} if index is None else coverage_of(examples, index, encoder, fill or FillSettings())
        scopes |= {"covered": flags["subject_named"]} if "subject_named" in flags else {}
        for name in task.subsets:
            inside = np.array([name in example.subsets for example in examples], dtype=bool)  # [n]
            scopes |= {name: inside} if inside.any() else {}
    flags, scopes = ({name: np.tile(own, len(methods)) for name, own in each.items()} for each in (flags, scopes))
    return ResultTable(task, examples, found, columns, flags, scopes, seed, resamples)


def _open_columns(found: Mapping[str, Predictions], examples: Sequence[Example]) -> dict[str, np.ndarray]:
    """Right answers and shares of the rows of an open task, [R] each."""
    rows = []
    for each in found.values():
        for answer, example in zip(each.answers, examples, strict=True):
            hits = [exact_match(phrase.phrase, example.answers) for phrase in answer.phrases]
            stale = [exact_match(phrase.phrase, example.old_answers) for phrase in answer.phrases[:1]]
            score = answer.phrases[0].score if answer.phrases else 0.0
            share = score if each.are_shares else np.nan
            rows.append((any(hits[:1]), any(stale), any(hits), bool(example.old_answers), share))
    kinds = {"right": bool, "stale": bool, "among": bool, "has_old": bool, "share": float}
    columns = np.array(rows, dtype=list(kinds.items()))  # [R]
    return {name: columns[name] for name in kinds}


def task_metrics(table: ResultTable) -> dict[str, Any]:
    """The task's part of metrics.json."""
    task, asked = table.task, table.asked()
    gold = [[each.id, each.text, each.label, list(each.answers), each.group] for each in table.examples]
    is_closed = task.suite == "closed"
    measure = _closed_metrics if is_closed else _open_metrics
    notes = {name: {} if each.notes is None else {"notes": [*each.notes]} for name, each in table.methods.items()}
    facts = {name: {**each.facts, **notes[name]} for name, each in table.methods.items()}
    found: dict[str, Any] = {
        "suite": task.suite,
        "count": len(table.examples),
        "cut_count": sum(example.cut for example in table.examples),
        "examples_sha256": sha256_of_bytes(json.dumps(gold, ensure_ascii=False).encode()),
        "task_sha256": task.digest,
        "methods": {name: measure(own) | {"facts": facts[name]} for name, own in table.by("method").items()},
    }
    if is_closed:
        overlap = asked.flags.get("standing_in_corpus")
        labels = [label.name for label in task.labels]
        return found | {"labels": labels, "standing_in_corpus": None if overlap is None else int(overlap.sum())}
    found["macro_over"] = task.macro
    if table.flags:
        found["coverage"] = {scope: _coverage(asked.where(rows)) for scope, rows in asked.scopes.items()}
    return found


def _closed_metrics(own: ResultTable) -> dict[str, Any]:
    """Accuracy of one method, and its confusion of labels."""
    count = len(own.task.labels)
    confusion = np.zeros((count, count), dtype=np.int64)  # [C, C], by gold label (row) and predicted label (column)
    for example, prediction, _ in own.rows():
        confusion[example.label, prediction.label] += 1
    return {
        "accuracy": own.interval("right"),
        "macro_f1": macro_f1(confusion),
        "confusion": confusion.tolist(),
        "predicted_counts": confusion.sum(0).tolist(),
    }


def _open_metrics(own: ResultTable) -> dict[str, Any]:
    """Exact match of one method over the rows of each scope, and by groups."""
    found: dict[str, Any] = {scope: own.where(rows).score() for scope, rows in own.scopes.items()}
    if own["has_old"].any():
        found["old_answers"] = own.where(own["has_old"]).score("stale")
    found["by_answer_tokens"] = own.shares_right("answer_tokens")
    if not np.isnan(own["share"]).any():
        found["reliability"] = reliability(own["share"], own["right"])
    return found | {"by_group": own.shares_right("group") if own["group"].any() else {}}


def _coverage(asked: ResultTable) -> dict[str, Any]:
    """Examples whose subject, or whose answer, the corpus has."""
    kept = dict(asked.flags)  # bool [examples] each
    if "subject_named" in kept:
        kept["answer_held_if_named"] = kept["answer_held"][kept["subject_named"]]
    return {
        name: {"count": int(own.sum()), "share": float(own.mean()) if len(own) else None} for name, own in kept.items()
    }


def task_notes(table: ResultTable) -> Iterator[str]:
    """Remarks for a reader of the tables."""
    name, count, flags = table.task.name, len(table.examples), table.asked().flags
    if cut := sum(example.cut for example in table.examples):
        yield f"{name}: {cut} of {count} texts were cut to the longest prompt allowed."
    if blank := sum(example.blank for example in table.examples):
        yield f"{name}: {blank} of {count} examples have nothing in their fields."
    if "standing_in_corpus" in flags and (held := flags["standing_in_corpus"].sum()):
        elsewhere = table.where(~table.flags["standing_in_corpus"])
        rights = {each: elsewhere["right"][elsewhere["method"] == each] for each in table.methods}  # bool [rows] each
        shares = (f"{each} {100 * own.mean() if len(own) else float('nan'):.1f}" for each, own in rights.items())
        yield f"{name}: {held} of {count} examples occur in the corpus; accuracy without them: {', '.join(shares)}."
    if "answer_held" in flags:
        subjects = f"names the subject of {flags['subject_named'].sum()} and " if "subject_named" in flags else ""
        yield f"{name}: of {count} examples the corpus {subjects}holds an answer of {flags['answer_held'].sum()}."
    for method, own in table.by("method").items():
        predictions = [prediction for _, prediction, _ in own.rows()]
        if table.task.suite == "open":
            notes = [() if answer.phrases else answer.notes or ("",) for answer in predictions]
            if empty := sum(map(bool, notes)):
                outside = sum(NO_DOCUMENT in each for each in notes)
                without = f", for {outside} of them no document may answer" if outside else ""
                yield f"{name}: {method} found no phrase for {empty} of {count} examples{without}."
            if not np.isnan(own["share"]).any():
                yield reliability_note(f"{name}, {method}", own["share"], own["right"])
        elif len({each.label for each in predictions}) == 1 and method != "majority":
            yield f"{name}: {method} answers {table.task.labels[predictions[0].label].name!r} to every example."
        yield from (f"{name}, {method}: {note}" for note in table.methods[method].notes or ())


def task_records(table: ResultTable) -> Iterator[dict[str, Any]]:
    """The task's lines of predictions.jsonl, one for each row."""
    names = [label.name for label in table.task.labels]
    flags = {name: column.tolist() for name, column in table.flags.items()}
    has_subsets = bool(table.scopes.keys() & table.task.subsets.keys())
    for number, (example, prediction, right) in enumerate(table.rows()):
        common = {"task": table.task.name, "method": table["method"][number], "id": example.id, "text": example.text}
        common["correct"] = right
        if table.task.suite == "closed":
            evidence = [asdict(each) for each in prediction.evidence]
            own = {"gold": names[example.label], "prediction": names[prediction.label]}
            yield {**common, **own, "scores": list(prediction.scores), "evidence": evidence}
            continue
        best = prediction.phrases[0] if prediction.phrases else None
        found = {
            "gold": list(example.answers),
            "group": example.group,
            "prediction": best and best.phrase,
            "phrases": [
                {"phrase": each.phrase, "score": each.score, "occurrence_count": each.occurrence_count}
                for each in prediction.phrases
            ],
            "evidence": [asdict(each) for each in best.occurrences] if best else [],
        }
        found |= {"subsets": list(example.subsets)} if has_subsets else {}
        optional = {"old_answers": list(example.old_answers), "where": list(example.where)}
        found |= {name: values for name, values in optional.items() if values}
        yield {**common, **found, **{name: column[number] for name, column in flags.items()}}


def coverage_of(
    examples: Sequence[Example], index: PhraseIndex, encoder: Encoder, fill: FillSettings
) -> dict[str, np.ndarray]:
    """Masks bool [n]: `answer_held`, one of the answers occurs in the corpus; `subject_named`, the subject does.

    The latter only if there are subjects. All are looked up in the blocks of `index` in one pass over its tokens.

    Only in documents that the settings admit; examples with their own conditions take a pass for each set of
    conditions. Raises EncoderError if the tokens of the index are not those of the encoder, and as `admissible_parts`.
    """
    check_tokenizer(encoder, index.store)
    named = np.zeros(len(examples), dtype=bool)  # [n]
    answered = np.zeros(len(examples), dtype=bool)  # [n]
    for admissible, numbers in admissible_parts(index, examples, fill):
        if admissible is None:
            continue
        own = [examples[number] for number in numbers]
        names = list(dict.fromkeys(name for each in own for name in (each.subject, *each.answers) if name.strip()))
        found = name_blocks(admissible, encoder, names)
        held = {name for name, blocks in zip(names, found, strict=True) if len(blocks)}
        named[numbers] = [each.subject in held for each in own]
        answered[numbers] = [not held.isdisjoint(each.answers) for each in own]
    return {"answer_held": answered} | ({"subject_named": named} if any(each.subject for each in examples) else {})


def overlapping_examples(examples: Sequence[Example], index: PhraseIndex) -> np.ndarray:
    """Mask bool [n] of the examples that occur in a document of the corpus.

    An example's longest field is looked for in the documents of the blocks that BM25 ranks first for it, by letters and
    digits alone; fields of less than `MIN_WORDS` words are not, because they occur anywhere.
    """
    overlap = np.zeros(len(examples), dtype=bool)  # [n]
    long = [number for number, example in enumerate(examples) if len(example.passage.split()) >= MIN_WORDS]
    for number in long:
        blocks, _ = index.lexicon.best_blocks(examples[number].passage, BLOCKS_LOOKED_IN)
        documents = np.unique(index.store.block_documents[blocks])  # i64 [documents]
        passage = _letters(examples[number].passage)
        overlap[number] = any(passage in _letters(visible(index.store.document(int(each)).text)) for each in documents)
    return overlap


def _letters(text: str) -> str:
    """Its letters and digits; of those only ASCII's if they are many, because copies differ in how others are encoded.

    >>> _letters("It's  a café, No. 4")
    'itsacaféno4'
    """
    plain = text.casefold()
    ascii_only = re.sub(r"[^a-z0-9]", "", plain)
    return ascii_only if len(ascii_only) >= MIN_ASCII_LETTERS else "".join(filter(str.isalnum, plain))
