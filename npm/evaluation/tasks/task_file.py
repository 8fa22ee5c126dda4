"""A task read from a YAML file and checked before any data is.

The keys of the file are the fields of `Task`, `TaskData`, `Label` and `ClosedScoring`; no others are known.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from index.files import sha256_of_bytes
from npm.core.errors import SettingError, UserError, near, put_under
from npm.core.settings import settings_given
from npm.core.types import MASK_TEXT, SURROGATE
from npm.evaluation.tasks.data import OLD_ANSWERS, columns_of
from npm.evaluation.tasks.document_conditions import check_conditions, is_templated
from npm.evaluation.tasks.prompts import ANSWERS, Template, TemplateError, parse_template
from npm.evaluation.tasks.readers import ALTERNATIVES
from npm.evaluation.tasks.task import (
    LABEL_WORDS,
    ClosedRetrieval,
    ClosedScoring,
    Development,
    Label,
    Macro,
    Reader,
    Suite,
    Task,
)
from npm.retrieval.settings import FillSettings

ONLY_OPEN = ("fill", "subsets", "where")
"""Keys of open tasks."""
LEAST_PROMPT_TOKENS = 8
"""The mask pair, an encoder's special tokens and a few words: a prompt of fewer says nothing of the example."""


Problem = tuple[str, str, str, str]
"""What is wrong with a task, what is expected, what was got, and the fix."""


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
    named = sorted(
        {*template.fields, gold, "group", "subject", "popularity", *((OLD_ANSWERS,) if gold == ANSWERS else ())}
    )
    for name in task.data.columns:
        if name not in named:
            raise TaskFileError(
                f"data.columns names {name}, which nothing asks for",
                expected=f"the template's fields, or one of {', '.join(named)}",
                got=name,
                where=where,
                fix=f"{near(name, named)}, or take it out",
            )
    _check_leaks(task, template, gold, where)
    problem = (_label_problem(task) if task.suite is Suite.closed else _open_problem(task)) or _problem(task)
    if problem is not None:
        what, expected, got, fix = problem
        raise TaskFileError(f"{task.name} {what}", expected=expected, got=got, where=where, fix=fix)
    try:
        settings_given(FillSettings, task.fill)
    except SettingError as error:
        put_under(error, "fill.", [item.name for item in fields(FillSettings)])
        error.where = f"{where}: {error.where}"
        raise
    for key, conditions in {"where": task.where, "fill.where": task.fill.get("where", [])}.items():
        check_conditions(conditions, where=f"{where}: {key}")
    if filled := [each for each in task.fill.get("where", []) if is_templated(each)]:
        raise TaskFileError(
            f"{task.name} fills a condition from its rows in the wrong place",
            expected="where: beside fill:, for conditions with {column}",
            got=f"fill.where: {filled[0]}",
            where=where,
            fix="move it there",
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


def _label_problem(task: Task) -> Problem | None:
    """What is wrong with the labels of a closed task."""
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
        problem = ("has two labels with one value", "a value of its own for each", repeated, "correct one of them")
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
    return problem


def _open_problem(task: Task) -> Problem | None:
    """What is wrong with an open task alone."""
    data, problem = task.data, None
    if task.labels:
        problem = ("is open and has labels", "labels in closed tasks only", "labels", "take them out, or suite: closed")
    elif task.scoring != ClosedScoring():
        problem = ("is open and has scoring", "scoring in closed tasks only", "scoring", "take it out: fill.scoring.…=")
    elif task.verbalizer != LABEL_WORDS:
        problem = ("is open and has a verbalizer", "one in closed tasks only", task.verbalizer, "take it out")
    elif (data.reader is Reader.templama) != bool(data.dates) or len(data.dates) not in (0, 2):
        got = f"reader: {data.reader.value if data.reader else 'none'} and {len(data.dates)} dates"
        problem = ("compares no two dates", "data.dates: [2019, 2022] with reader: templama", got, "correct data.dates")
    return problem


def _problem(task: Task) -> Problem | None:
    """What else contradicts itself."""
    data, problem = task.data, None
    if task.macro is Macro.answer_tokens and task.suite is Suite.closed:
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
    elif task.scoring.k is not None and task.scoring.retrieval is not ClosedRetrieval.top_k:
        got = f"scoring.k: {task.scoring.k} without it"
        problem = (
            "has scoring.k that nothing reads",
            "scoring.retrieval: top_k beside it",
            got,
            "add it, or take k out",
        )
    elif task.suite is Suite.closed and (only_open := [key for key in ONLY_OPEN if getattr(task, key)]):
        problem = ("is closed", "fill, subsets and where in open tasks only", ", ".join(only_open), "take them out")
    elif task.max_prompt_tokens is not None and task.max_prompt_tokens < LEAST_PROMPT_TOKENS:
        got = f"max_prompt_tokens: {task.max_prompt_tokens}"
        problem = (
            "has no room for a prompt",
            f"at least {LEAST_PROMPT_TOKENS} tokens",
            got,
            "choose more, or take it out",
        )
    return problem


def _folded(words: Sequence[str]) -> list[str]:
    return [word.casefold() for word in words]


def _repeated(values: Sequence[str]) -> str:
    return next((value for number, value in enumerate(values) if value in values[:number]), "")


EXTENSIONS = (".yaml", ".yml")
EXAMPLE = """
suite: closed
data: {file: my-reviews.csv, columns: {text: review, label: stars}}
template: "{text} It was <mask>."
labels:
  - {value: 0, words: [terrible, bad]}
  - {value: 1, words: [great]}
"""
"""The smallest whole task; the documentation shows it too."""
_NOT_IN_FILES = {"digest"}


class _HalfCharacter(yaml.constructor.ConstructorError):
    """A string with a surrogate, which an escape can write and neither a tokenizer nor a UTF-8 file takes."""


class _Loader(yaml.SafeLoader):
    """The safe loader, which would silently take the last of two equal keys, and half a character."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        value = super().construct_scalar(node)
        if SURROGATE.search(value):
            problem = f"{value!a}, whose escape \\ud800 to \\udfff is no character"
            raise _HalfCharacter(None, None, problem, node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if isinstance(key, str) and key in keys[:number]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} comes twice", node.value[number][0].start_mark
                )
        return super().construct_mapping(node, deep=deep)


def task_names(folder: Path) -> list[str]:
    """The names of the tasks in a folder of YAML files, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_task(name_or_path: str | Path, *, folder: Path, others: Sequence[str] = ()) -> Task:
    """The task of a name in `folder`, or of a file, which ends in .yaml or .yml or holds a slash.

    `others` are names of tasks that are no files, for the message.

    A data or verbalizer file that lies beside the task's own file becomes a path to it; else data is looked for under
    data_dir=, and a verbalizer in the working directory.
    Raises TaskFileError for what is not a task, TemplateError for its template, SettingError for its scoring.
    """
    given = str(name_or_path)
    if given.endswith(EXTENSIONS) or "/" in given or "\\" in given:
        path = Path(given)
    else:
        path = folder / f"{given}.yaml"
        if given not in (shipped := task_names(folder)):
            names = [*others, *shipped]
            raise TaskFileError(
                f"there is no task {given!r}",
                expected=f"one of {', '.join(names)}, or a file that ends in .yaml",
                got=given,
                where="task",
                fix=f"{near(given, names)}, or give the path of your own task's file",
            )
    content, digest = _read(path)
    filled = {"name": path.stem, **content}
    if isinstance(filled.get("where"), str):
        filled["where"] = [filled["where"]]
    if "max_phrase_tokens" in filled:  # a key of its own in earlier versions
        own = filled["fill"] if isinstance(filled.get("fill"), dict) else {}
        filled["fill"] = {"max_phrase_tokens": filled.pop("max_phrase_tokens"), **own}
    if "template_column" in filled and "template" not in filled:
        filled["template"] = "{" + str(filled["template_column"]) + "}"
    task = replace(_built(Task, filled, where=str(path), key=""), digest=digest)
    check_task(task, str(path))
    return _beside(task, path.parent.absolute())


def _beside(task: Task, folder: Path) -> Task:
    """`task` with the whole path of each data and verbalizer file of it that lies in `folder`."""

    def found(names: str) -> str:
        is_there = Path.exists if task.data.reader else Path.is_file
        places = [folder / name if name and is_there(folder / name) else name for name in names.split(ALTERNATIVES)]
        return ALTERNATIVES.join(map(str, places))

    def found_list(name: str) -> str:
        return found(name) if Path(name).suffix else name  # a shipped list has no extension, whatever lies here

    data = replace(task.data, file=found(task.data.file), development_file=found(task.data.development_file))
    own = task.scoring.verbalizer
    scoring = replace(task.scoring, verbalizer=found_list(own) if own is not None else None)
    return replace(task, data=data, verbalizer=found_list(task.verbalizer), scoring=scoring)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    expected = f"a YAML file such as:{EXAMPLE.rstrip()}"
    try:
        data = path.read_bytes()
        content = yaml.load(data.decode("utf-8"), Loader=_Loader)
        problem, got = "does not describe a task", f"a YAML {type(content).__name__}" if content else "an empty file"
    except OSError as error:
        content, problem, got = None, "cannot be read", error.strerror or str(error)
    except UnicodeDecodeError as error:
        content, problem, got = None, "is not UTF-8", f"byte 0x{error.object[error.start]:02x} at byte {error.start}"
    except yaml.YAMLError as error:
        problem = "holds half a character" if isinstance(error, _HalfCharacter) else "is not YAML"
        content, got = None, " ".join(str(error).split())
    if not isinstance(content, dict) or not content:
        raise TaskFileError(
            f"{path.name} {problem}", expected=expected, got=got, where=str(path), fix="correct the file"
        )
    return content, sha256_of_bytes(data)


def _built(kind: Any, content: object, *, where: str, key: str) -> Any:
    """An object of a dataclass from a mapping with its fields as keys."""
    if not isinstance(content, Mapping):
        raise _wrong(key, "a mapping of keys to values", content, where)
    if kind is Label:
        words, value = content.get("words"), content.get("value")
        named = words[0] if words and isinstance(words, list) and not isinstance(value, str) else value
        content = {"name": str(named), **content}
    known = {item.name: item for item in fields(kind) if item.name not in _NOT_IN_FILES}
    dotted = f"{key}." if key else ""
    for name in content:
        if name not in known:
            raise TaskFileError(
                f"unknown key {dotted}{name}",
                expected=f"one of {', '.join(known)}",
                got=str(name),
                where=where,
                fix=f"{near(str(name), known)}, or take it out",
            )
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in content:
            raise TaskFileError(
                f"the task lacks {dotted}{name}",
                expected=f"the keys {', '.join(known)}, of which {name} has no default",
                got=f"the keys {', '.join(map(str, content)) or 'none'}",
                where=where,
                fix=f"add {name}: … as in:{EXAMPLE.rstrip()}",
            )
    hints = get_type_hints(kind)
    values = {
        name: _converted(hints[name], value, where=where, key=f"{dotted}{name}") for name, value in content.items()
    }
    try:
        return kind(**values)
    except SettingError as error:
        put_under(error, f"{key}.", hints)
        error.where = f"{where}: {key}"
        raise


def _converted(hint: Any, value: object, *, where: str, key: str) -> Any:
    """`value` as the type that a field declares; nothing is guessed, so `yes` in place of a word is an error."""
    if hint is Any:
        return value
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind = kinds[0]
    if is_dataclass(kind):
        return _built(kind, value, where=where, key=key)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(key, "a list", value, where)
        inner = get_args(kind)[0]
        return tuple(_converted(inner, each, where=where, key=f"{key}[{place}]") for place, each in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise _wrong(key, "a mapping of names to values", value, where)
        inner = get_args(kind)[1]
        return {name: _converted(inner, each, where=where, key=f"{key}.{name}") for name, each in value.items()}
    if issubclass(kind, Enum):
        if not isinstance(value, str) or value not in kind.__members__:
            raise _wrong(key, f"one of {', '.join(kind.__members__)}", value, where)
        return kind[value]
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        raise _wrong(key, " or ".join(_TYPE_NAMES[each] for each in kinds), value, where)
    return value


_TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def _wrong(key: str, expected: str, value: object, where: str) -> TaskFileError:
    fix = f"correct {key or 'the file'}"
    if isinstance(value, bool):
        fix = "put the word in quotation marks: YAML reads a bare yes, no, on, off as true or false"
    return TaskFileError(
        f"{key or 'the task'} has the wrong form", expected=expected, got=repr(value), where=where, fix=fix
    )
