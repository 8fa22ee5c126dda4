"""A task checked for what contradicts itself, before any of its data is read."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from npm.errors import UserError
from npm.evaluation.prompts import ANSWERS, Template, TemplateError, parse_template
from npm.evaluation.task import LABEL_WORDS, ClosedScoring, Development, Macro, Suite, Task
from npm.evaluation.task_rows import columns_of
from npm.types import MASK_TEXT

LEAST_PROMPT_TOKENS = 8
"""The mask pair, an encoder's special tokens and a few words: a prompt of fewer says nothing of the example."""


class TaskFileError(UserError):
    """A task's file is missing, cannot be read, or does not describe a task."""


def check_task(task: Task, where: str) -> None:
    """Refuse what contradicts itself: raises TemplateError for the template, TaskFileError for the rest."""
    template = parse_template(task.template, where=f"{where}: template")
    masks = template.mask_count
    if masks > 1 or (masks == 0 and not task.template_column):
        raise TemplateError(
            f"the template has {'several' if masks else 'no'} {MASK_TEXT}",
            expected=f"exactly one {MASK_TEXT}, where a label's word or an answer is to stand",
            got=task.template,
            where=f"{where}: template",
            fix=f"such as: {{text}} It was {MASK_TEXT}.",
        )
    if not template.fields:
        raise TemplateError(
            "the template takes nothing from an example",
            expected="at least one {field}",
            got=task.template,
            where=f"{where}: template",
            fix="name the field that holds the text, such as {text}",
        )
    gold = "label" if task.suite is Suite.closed else ANSWERS
    _check_columns(task, {*template.fields, gold, "group", "subject"}, where)
    _check_leaks(task, template, gold, where)
    if task.suite is Suite.closed:
        _check_labels(task, where)
    _check_rest(task, where)


def _check_columns(task: Task, named: set[str], where: str) -> None:
    for name in task.data.columns:
        if name not in named:
            near = get_close_matches(name, sorted(named), n=1)
            raise TaskFileError(
                f"data.columns names {name}, which nothing asks for",
                expected=f"the template's fields, or one of {', '.join(sorted(named))}",
                got=name,
                where=where,
                fix=f"write {near[0]}" if near else "take it out, or use it in the template",
            )


def _check_leaks(task: Task, template: Template, gold: str, where: str) -> None:
    """Refuse a prompt that shows what is right: a field whose column is that of the label or of the answers."""
    columns = task.data.columns
    right = columns_of(columns.get(gold, gold))
    shown = [*template.fields, *(["subject"] if task.template_column and "subject" in columns else [])]
    for field in shown:
        for column in columns_of(columns.get(field, field)):
            if column in right:
                raise TemplateError(
                    f"the template shows the {gold} of an example",
                    expected=f"fields from other columns than {', '.join(right)}",
                    got=f"the field {field}, from the column {column}",
                    where=f"{where}: template",
                    fix=f"take {field} out of the template, or name another column for it in data.columns",
                )


def _check_labels(task: Task, where: str) -> None:
    problem = None
    values = [str(label.value) for label in task.labels]  # in a CSV file 0 and "0" are the same
    names = [label.name for label in task.labels]
    words = [word for label in task.labels for word in label.words]
    wordless = [label for label in task.labels if not label.words]
    if len(task.labels) < 2:
        problem = ("has too few labels", "at least two labels", f"{len(task.labels)}", "list all labels of the data")
    elif wordless:
        got = f"no words for the label {wordless[0].value!r}"
        problem = ("has a label without words", "at least one word a label", got, "add words: [...] to that label")
    elif repeated := _repeated(values):
        problem = ("has two labels with one value", "a value of its own for each", repeated, "mend one of them")
    elif repeated := _repeated(names):
        problem = ("has two labels with one name", "a name of its own for each", repeated, "give one another name")
    elif repeated := next(filter(None, (_repeated(_folded(label.words)) for label in task.labels)), ""):
        problem = ("lists a word twice for one label", "each word once", repeated, "take it out once")
    elif repeated := _repeated(_folded(words)):
        problem = ("has a word that names two labels", "each word once", repeated, "take it out of one of them")
    elif unclean := [word for word in words if not word or word != " ".join(word.split())]:
        problem = ("has a word with stray spaces", "words without space around them", repr(unclean[0]), "trim it")
    elif task.template_column:
        problem = ("is closed and has template_column", "one template for all", task.template_column, "take it out")
    if problem is not None:
        what, expected, got, fix = problem
        raise TaskFileError(f"{task.name} {what}", expected=expected, got=got, where=where, fix=fix)


def _check_rest(task: Task, where: str) -> None:
    data, problem = task.data, None
    if task.suite is Suite.open and task.labels:
        problem = ("is open and has labels", "labels in closed tasks only", "labels", "take them out, or suite: closed")
    elif task.suite is Suite.open and task.scoring != ClosedScoring():
        problem = ("is open and has scoring", "scoring in closed tasks only", "scoring", "take it out: fill.scoring.…=")
    elif task.suite is Suite.open and task.verbalizer != LABEL_WORDS:
        problem = ("is open and has a verbalizer", "one in closed tasks only", task.verbalizer, "take it out")
    elif task.macro is Macro.answer_tokens and task.suite is Suite.closed:
        problem = ("has no answers to count", "macro: answer_tokens in open tasks only", "closed", "take macro out")
    elif task.macro is Macro.group and "group" not in data.columns:
        problem = ("has no groups", "data.columns.group with macro: group", "no such column", "name the column")
    elif task.examples_per_group is not None and (task.macro is Macro.none or task.examples_per_group < 1):
        got = f"examples_per_group: {task.examples_per_group} with macro: {task.macro.value}"
        problem = ("samples groups that it does not have", "at least 1, and macro", got, "add macro, or take it out")
    elif data.development is not Development.none and data.development_file:
        got = f"development: {data.development.value} and development_file: {data.development_file}"
        problem = ("has development data twice", "one of the two", got, "take one of them out")
    elif not data.file and not data.hub:
        problem = ("names no data", "data.file, data.hub or both", "neither", "add data.file")
    elif task.max_prompt_tokens is not None and task.max_prompt_tokens < LEAST_PROMPT_TOKENS:
        got = f"max_prompt_tokens: {task.max_prompt_tokens}"
        problem = (
            "has no room for a prompt",
            f"at least {LEAST_PROMPT_TOKENS} tokens",
            got,
            "choose more, or take it out",
        )
    if problem is not None:
        what, expected, got, fix = problem
        raise TaskFileError(f"{task.name} {what}", expected=expected, got=got, where=where, fix=fix)


def _folded(words: Sequence[str]) -> list[str]:
    return [word.casefold() for word in words]


def _repeated(values: Sequence[str]) -> str:
    return next((value for number, value in enumerate(values) if value in values[:number]), "")
