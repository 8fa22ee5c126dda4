"""Labels for texts without gold, by the occurrences of label words in an index, with the places that support them.

The score of a label is its share of the evidence for all labels, so that one label wins. With `multi_label` it is the
fraction of sentences of the corpus, in the same template, that fit the label less well than the text: labels do not
compete, and any number of them may reach the threshold.

Confidence, the probability that a label is right, is a logistic function fitted to rows whose labels are known, as of
the answers of a reader (`npm.reading.confidence`).

Shapes: q texts, L labels, l labels that are kept of a text.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.errors import CorpusError, SettingError, missing
from npm.core.settings import checked, config_folder, read_yaml
from npm.core.types import MASK_TEXT, Occurrence, Progress, silent
from npm.evaluation.data import RowReader
from npm.evaluation.methods.nonparametric import NonparametricLabels, corpus_prompts, label_shares
from npm.evaluation.prompts import STOP, cut_values, prompt_tokens
from npm.evaluation.tasks import ClosedScoring, Example, Label, Task, TaskData, load_task
from npm.models.batches import masked_inputs
from npm.models.encoder import Encoder
from npm.reading.confidence import LEAST, fit, probabilities
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import COLUMN, check_query, check_template, check_unmasked

TEMPLATE = "{text} The text topic is about <mask>."  # the template of AG News, which was chosen on its development half
OWN_MASK = "{text}"
"""The template of texts with a `<mask>` of their own, whose evidence is not calibrated: no sentence surrounds them."""
MULTI_LABEL_SCORE = 0.9  # minimum score of a label with multi_label; docs/label.md has precision and recall
TEXTS_AT_ONCE, LABELS_SHOWN = 256, 5
FEWEST_KNOWN = 20  # rows that a confidence is fitted to


@dataclass(frozen=True, slots=True)
class ScoredLabel:
    """A label, its score, the word of it that fits the text best, and where that word fits best in the corpus."""

    label: str
    score: float
    word: str | None
    occurrence: Occurrence | None


@dataclass(frozen=True, slots=True)
class LabeledText:
    """The labels of a text that reach the threshold, best first, and the best ones whether they do or not."""

    labels: tuple[ScoredLabel, ...]
    ranked: tuple[ScoredLabel, ...]
    cut: bool  # the text was longer than the encoder takes


def label_task(labels: object, template: str = "", column: str = "") -> Task:
    """The closed task of `labels`: words by label, labels that are their own words, a task, or the file or YAML of one.

    `template` has columns in braces, such as `{text}`, and one `<mask>`, or is OWN_MASK; `column` is that of `{text}`.
    Raises SettingError for anything else, or labels that share words.
    """
    if not labels:
        raise missing("labels", "labels={world: [politics, war], sports: [sport]}")
    content = _read(labels) if isinstance(labels, str | Path) else labels
    if template and template != OWN_MASK:
        check_query(template, where="template")
        check_template(template)
    renamed, own = _jinja_template(template or TEMPLATE)
    changes: dict[str, Any] = {"template": own} if template else {}
    columns = renamed | ({"text": column} if column else {})
    if isinstance(content, Task):
        if content.suite != "closed":
            raise SettingError(f"labels: {content.name} is an open task, without labels; give a closed one, or words")
        return replace(content, data=replace(content.data, columns=content.data.columns | columns), **changes)
    named = checked(content, dict[str, list[str]] | list[str], "labels")
    words = named if isinstance(named, dict) else {name: [name] for name in named}
    return Task(
        name="label",
        suite="closed",
        data=TaskData(file="texts", columns=columns),
        template=own,
        labels=[Label(value=name, words=of_label) for name, of_label in words.items()],
        too_long="keep_start",
    )


def _jinja_template(template: str) -> tuple[dict[str, str], str]:
    """The template of a user in jinja2, and the columns of variables that had to be named differently.

    >>> _jinja_template("{text} by {pen name}: <mask>")
    ({'_column_2': 'pen name'}, '{{ text }} by {{ _column_2 }}: <mask>')
    """
    names = list(dict.fromkeys(COLUMN.findall(template)))
    reserved = {STOP, *keyword.kwlist, *map(str.lower, keyword.kwlist)}
    variables = {
        name: name if name.isidentifier() and name not in reserved else f"_column_{number}"
        for number, name in enumerate(names, start=1)
    }
    own = COLUMN.sub(lambda column: f"{{{{ {variables[column[1]]} }}}}", template)
    return {variable: name for name, variable in variables.items() if variable != name}, own


def _read(labels: str | Path) -> Any:
    """The labels that a text of YAML, a file or the name of a task holds."""
    path, inline = Path(labels), str(labels).lstrip()[:1] in ("{", "[")
    try:
        is_file = not inline and path.suffix in (".yaml", ".yml", ".json")
        # Labels such as yes, no and 2024 are words.
        content = read_yaml(path.read_text(encoding="utf-8") if is_file else str(labels), words_only=True)
    except (OSError, ValueError) as error:
        raise SettingError(f"labels: cannot read {str(labels)[:80]}: {' '.join(str(error).split())}") from error
    is_task = isinstance(content, str) or (isinstance(content, dict) and "suite" in content)
    return load_task(labels, folder=config_folder() / "task") if is_task else content


def read_examples(task: Task, rows: Iterable[tuple[str, Mapping[str, Any]]], encoder: Encoder) -> list[Example]:
    """The prompt of each row (with its place for messages), truncated to the input length of the encoder.

    Raises CorpusError for a row without the columns of the template, QueryError for a mask that is not the only one.
    """
    reader, render = RowReader(task, is_table=True, remedy="set column or template"), task.prompt.render
    placed = list(rows)
    values = [{name: reader.text(name, row, where) for name in task.prompt.fields} for where, row in placed]
    if MASK_TEXT in task.template:
        for (where, _), own in zip(placed, values, strict=True):
            for name, text in own.items():
                check_unmasked(text, task.data.columns.get(name, name), where)
    texts = list(map(render, values))
    for (where, _), text in zip(placed, texts, strict=True):
        check_query(text, where=where)
    if MASK_TEXT not in task.template:
        cuts = masked_inputs(encoder, texts, encoder.query_masks).cut.tolist()
        return [Example("", text, cut=cut) for text, cut in zip(texts, cuts, strict=True)]
    most = min(task.max_prompt_tokens or encoder.max_input_tokens, encoder.max_input_tokens)
    examples = []
    for text, own, count in zip(texts, values, prompt_tokens(encoder, texts), strict=True):
        keep_start = task.too_long != "keep_end"
        fitting = count > most and cut_values(encoder, own, render, max_tokens=most, keep_start=keep_start)
        examples.append(Example("", render(fitting) if fitting else text, cut=count > most))
    return examples


def label_rows(
    filler: PhraseFiller,
    task: Task,
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    multi_label: bool = False,
    min_score: float | None = None,
    shown: int = LABELS_SHOWN,
    progress: Progress = silent,
    notice: Callable[[str], None] = lambda _: None,
) -> Iterator[LabeledText]:
    """Label each row, which comes with its place; all are checked first, and each is encoded once for all labels.

    A text gets no label where none reaches `min_score`, by default 0, with `multi_label` 0.9; the best `shown` are
    ranked in any case. `notice` is called with words that do not occur. Raises SettingError for a label without
    occurrences, else as `read_examples` does.
    """
    has_template = MASK_TEXT in task.template
    if multi_label and not has_template:
        raise SettingError("multi_label needs a template with <mask> for sentences of the corpus, got template={text}")
    examples = read_examples(task, rows, filler.encoder)
    scoring = None if has_template else ClosedScoring(calibration="none")
    method = NonparametricLabels(filler.index, filler.encoder, scoring=scoring, settings_key="scoring")
    prepared = method.prepare(task)
    for note in prepared.labels.notes:
        notice(note)
    least = (MULTI_LABEL_SCORE if multi_label else 0.0) if min_score is None else min_score
    names = [label.name for label in task.labels]

    def labeled() -> Iterator[LabeledText]:
        reference = np.zeros((0, len(names)))  # f64 [prompts, L]
        if multi_label:
            sentences = [Example("", text) for text in prepared.prompts or corpus_prompts(task, filler.index, "")]
            ((_, reference),) = method.batches(task, prepared, sentences, silent, at_once=len(sentences))
        remaining = iter(examples)
        for scores, logs in method.batches(task, prepared, examples, progress, at_once=TEXTS_AT_ONCE):
            shares = _fractions_below(logs, reference) if multi_label else label_shares(logs)  # f64 [q, L]
            order = np.lexsort((-logs, -shares), axis=1)  # i64 [q, L]
            counts = (shares >= least).sum(axis=1).clip(max=len(names) if multi_label else 1)  # i64 [q]
            kept = order[:, : max(shown, int(counts.max()))]  # i64 [q, l]
            evidence = method.evidence(prepared, scores, kept)
            for row, count, own, places in zip(kept.tolist(), counts.tolist(), shares.tolist(), evidence, strict=True):
                found = {each.label: (each.word, each.occurrence) for each in places}
                ranked = tuple(ScoredLabel(names[label], own[label], *found.get(label, (None, None))) for label in row)
                yield LabeledText(ranked[:count], ranked[: max(shown, count)], next(remaining).cut)

    return labeled()


def _fractions_below(logs: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The fraction of the column of `reference` f64 [n, L] that is below each number of `logs` f64 [q, L].

    >>> _fractions_below(np.array([[2.0, 0.0]]), np.array([[1.0, 5.0], [3.0, 6.0]])).tolist()
    [[0.5, 0.0]]
    """
    below = [np.searchsorted(np.sort(own), column) for own, column in zip(reference.T, logs.T, strict=True)]
    return np.stack(below, axis=1) / len(reference)  # f64 [q, L]


@dataclass(frozen=True, slots=True)
class LabelConfidence:
    """A fitted function of the scores of a text's labels."""

    weights: tuple[float, ...]
    bias: float
    rows: int  # that it is fitted to
    right: int  # of them, whose first label is right

    def of(self, found: LabeledText) -> float:
        """The probability that the first label of a text is right."""
        return float(probabilities(label_features(found) @ np.array(self.weights) + self.bias))


def label_features(found: LabeledText) -> np.ndarray:
    """Log of the first label's score, and of its ratio to the second's, f64 [2]."""
    first, second = (max(LEAST, each.score) for each in found.ranked[:2])
    return np.log([first, first / second])


def fit_label_confidence(task: Task, labeled: Sequence[LabeledText], known: Sequence[str]) -> LabelConfidence:
    """The function of texts labeled without a threshold, whose right labels, by value or name, are `known`.

    Raises SettingError for a label that the task has not, CorpusError for too few rows, or if all or none are right.
    """
    # a value comes before the name of another label
    names = {label.name: label.name for label in task.labels} | {str(label.value): label.name for label in task.labels}
    if unknown := next((label for label in known if label not in names), None):
        raise SettingError(
            f"known: {unknown!r} is not one of the labels {', '.join(names)}; correct it, or set known_column"
        )
    first = [found.ranked[0].label for found in labeled]
    right = np.array([names[label] == chosen for label, chosen in zip(known, first, strict=True)], dtype=bool)  # [n]
    if len(right) < FEWEST_KNOWN or right.all() or not right.any():
        given = f"{len(right)} with {int(right.sum())} right"
        raise CorpusError(
            f"known needs at least {FEWEST_KNOWN} rows, some with a wrong label, got {given}: give more rows"
        )
    weights, bias = fit(np.stack(list(map(label_features, labeled))), right)
    return LabelConfidence(tuple(weights.tolist()), bias, len(right), int(right.sum()))
