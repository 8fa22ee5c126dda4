"""A task read from a YAML file and checked before any data is.

The keys of the file are the fields of `Task`, `TaskData`, `Label` and `ClosedScoring`; no others are known.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from npm.core.errors import SettingError, UserError, near
from npm.core.files import sha256_of_bytes
from npm.core.settings import read_settings
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


class TaskFileError(UserError):
    """A task's file is missing, cannot be read, or does not describe a task."""


def check_task(task: Task, where: str) -> None:
    """Refuse what contradicts itself: raises TemplateError for the template, TaskFileError for the rest."""
    template = parse_template(task.template, where=f"{where}: template")
    masks = template.mask_count
    if masks > 1 or (masks == 0 and not task.template_column):
        raise TemplateError(f"{where}: template must have one {MASK_TEXT}, got {masks}: {task.template!r}")
    if not template.fields:
        raise TemplateError(f"{where}: template has no field of an example, such as {{text}}: {task.template!r}")
    gold = "label" if task.suite is Suite.closed else ANSWERS
    named = sorted({*template.fields, gold, "group", "subject", *((OLD_ANSWERS,) if gold == ANSWERS else ())})
    for name in task.data.columns:
        if name not in named:
            raise TaskFileError(f"{where}: unknown data.columns.{name}: {near(name, named)}")
    _check_leaks(task, template, gold, where)
    problem = (_label_problem(task) if task.suite is Suite.closed else _open_problem(task)) or _problem(task)
    if problem:
        raise TaskFileError(f"{where}: {problem}")
    try:
        read_settings(FillSettings, task.fill)
    except SettingError as error:
        raise SettingError(f"{where}: fill: {error}") from error
    for key, conditions in {"where": task.where, "fill.where": task.fill.get("where", [])}.items():
        check_conditions(conditions, where=f"{where}: {key}")
    if filled := [each for each in task.fill.get("where", []) if is_templated(each)]:
        raise TaskFileError(f"{where}: move {filled[0]!r} from fill.where to where, which is filled from the rows")


def _check_leaks(task: Task, template: Template, gold: str, where: str) -> None:
    """Refuse a prompt that shows what is right: a field whose column is that of the label or of the answers."""
    columns = task.data.columns
    right = columns_of(columns.get(gold, gold))
    shown = [*template.fields, *(["subject"] if task.template_column and "subject" in columns else [])]
    for field in shown:
        for column in columns_of(columns.get(field, field)):
            if column in right:
                raise TemplateError(
                    f"{where}: template shows the {gold}: take out {{{field}}}, which is the column {column!r}"
                )


def _label_problem(task: Task) -> str:
    """What is wrong with the labels of a closed task; "" for nothing."""
    problem = ""
    values = [str(label.value) for label in task.labels]  # in a CSV file 0 and "0" are the same
    names = [label.name for label in task.labels]
    words = [word for label in task.labels for word in label.words]
    if len(task.labels) < 2:
        problem = f"labels must be at least two, got {len(task.labels)}"
    elif wordless := [label for label in task.labels if not label.words]:
        problem = f"add words: […] to the label {wordless[0].value!r}"
    elif repeated := _repeated(values):
        problem = f"two labels have the value {repeated}"
    elif repeated := _repeated(names):
        problem = f"two labels have the name {repeated!r}"
    elif repeated := next(filter(None, (_repeated(_folded(label.words)) for label in task.labels)), ""):
        problem = f"a label has the word {repeated!r} twice"
    elif repeated := _repeated(_folded(words)):
        problem = f"two labels have the word {repeated!r}"
    elif unclean := [word for word in words if not word or word != " ".join(word.split())]:
        problem = f"a word of a label is empty or has extra spaces: {unclean[0]!r}"
    elif task.template_column:
        problem = "template_column is for open tasks only"
    return problem


def _open_problem(task: Task) -> str:
    """What is wrong with an open task alone."""
    data = task.data
    closed = {"labels": task.labels, "scoring": task.scoring != ClosedScoring()}
    closed["verbalizer"] = task.verbalizer != LABEL_WORDS
    if given := [key for key, is_given in closed.items() if is_given]:
        return f"{', '.join(given)}: for closed tasks only"
    if (data.reader is Reader.templama) != bool(data.dates) or len(data.dates) not in (0, 2):
        return f"reader: templama needs two data.dates, such as [2019, 2022], and no other reader any; got {data.dates}"
    return ""


def _problem(task: Task) -> str:
    """What else contradicts itself."""
    data, problem = task.data, ""
    if task.macro is Macro.answer_tokens and task.suite is Suite.closed:
        problem = "macro: answer_tokens is for open tasks only"
    elif task.macro is Macro.group and "group" not in data.columns:
        problem = "macro: group needs data.columns.group"
    elif task.examples_per_group is not None and (task.macro is Macro.none or task.examples_per_group < 1):
        problem = f"examples_per_group must be at least 1 and needs macro, got {task.examples_per_group}"
    elif data.development is not Development.none and data.development_file:
        problem = "data.development and data.development_file exclude each other"
    elif not data.file and not data.hub:
        problem = "data.file or data.hub is required"
    elif task.scoring.k is not None and task.scoring.retrieval is not ClosedRetrieval.top_k:
        problem = "scoring.k needs scoring.retrieval: top_k"
    elif task.suite is Suite.closed and (only_open := [key for key in ONLY_OPEN if getattr(task, key)]):
        problem = f"{', '.join(only_open)}: for open tasks only"
    elif task.max_prompt_tokens is not None and task.max_prompt_tokens < LEAST_PROMPT_TOKENS:
        problem = f"max_prompt_tokens must be at least {LEAST_PROMPT_TOKENS}, got {task.max_prompt_tokens}"
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
"""The smallest task; the documentation shows it too."""
_NOT_IN_FILES = {"digest"}


class _Loader(yaml.SafeLoader):
    """The safe loader, which would silently take the last of two equal keys, and half a character."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        value = super().construct_scalar(node)
        if SURROGATE.search(value):
            problem = f"{value!a}: an escape \\ud800 to \\udfff is half a character"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
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
            raise TaskFileError(f"unknown task {given!r}: {near(given, names)}, or give the path of a .yaml file")
    content, digest = _read(path)
    filled = {"name": path.stem, **content}
    if isinstance(filled.get("where"), str):
        filled["where"] = [filled["where"]]
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
    if path.exists() and not path.is_file():
        raise TaskFileError(f"cannot read the task {path}: not a file")
    try:
        data = path.read_bytes()
        content = yaml.load(data.decode("utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        detail = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise TaskFileError(f"cannot read the task {path}: {detail}") from error
    if not isinstance(content, dict) or not content:
        raise TaskFileError(f"{path} must be a YAML file such as:{EXAMPLE.rstrip()}")
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
            raise TaskFileError(f"{where}: unknown key {dotted}{name}: {near(str(name), known)}")
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in content:
            raise TaskFileError(f"{where}: {dotted}{name} is required, as in:{EXAMPLE.rstrip()}")
    hints = get_type_hints(kind)
    values = {
        name: _converted(hints[name], value, where=where, key=f"{dotted}{name}") for name, value in content.items()
    }
    try:
        return kind(**values)
    except SettingError as error:
        raise SettingError(f"{where}: {key}: {error}") from error


def _converted(hint: Any, value: object, *, where: str, key: str) -> Any:
    """`value` as the type that a field declares; nothing is guessed, so `yes` in place of a word is an error."""
    if hint is Any:
        return value
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
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
    hint = "; YAML reads a bare yes, no, on, off as true or false: quote it" if isinstance(value, bool) else ""
    return TaskFileError(f"{where}: {key or 'the task'} must be {expected}, got {value!r:.80}{hint}")
