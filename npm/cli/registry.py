"""The verbs of `npmlm`: their names and summaries; the rest is declared in modules imported when a verb is named.

Their settings are those that a class declares, by dotted name, with types and docstrings. Help is as wide as the
terminal.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from npm.core.settings import INNER, PATH, config_folder, field_texts, has_studies

OVERVIEW = {
    "Ask": {
        "npm.cli.answer": {"fill": "answer texts with <mask>, or a table of subjects"},
        "npm.cli.label": {"label": "label texts by the words of the labels"},
        "npm.cli.trace": {
            "find": "count and show the places of a phrase, word for word",
            "trace": "trace the names, numbers and quotations of a text to the corpus",
        },
        "npm.cli.serve": {
            "serve": "answer over HTTP and on a web page",
            "mcp": "answer agents over the Model Context Protocol",
        },
    },
    "Index": {
        "npm.cli.index": {
            "build": "build a phrase index over a corpus",
            "add": "add documents to an index",
            "sync": "follow files: add, replace and delete what changed",
            "delete": "delete documents of an index",
            "compact": "rewrite an index without deleted documents",
            "partition": "cut an index into parts that are searched separately",
            "inspect": "show the contents of an index and the size of each part",
            "verify": "check every byte of an index and re-encode a sample",
            "estimate": "estimate disk, memory and encoding time of a build",
        },
        "npm.cli.questions": {"adapt": "let an index learn from corrected answers"},
    },
    "Train": {"npm.cli.train": {"train": "train an encoder", "tokenizer": "learn a tokenizer from a corpus"}},
    "Measure": {
        "npm.cli.evaluate": {
            "evaluate": "measure an encoder or an index on tasks",
            "compare": "compare two evaluations example by example",
        },
        "npm.cli.questions": {"calibrate": "fit how likely a reader's answers are right"},
    },
}
"""Groups of verbs; in each the modules that declare them, with a summary per verb."""
if has_studies():
    OVERVIEW["Study"] = {
        "studies.verbs": {
            "finetune": "fine-tune an encoder on labeled tasks",
            "generate": "generate artificial text from the grammar of a treebank",
            "edit": "change a checkpoint without training it",
            "geometry": "measure the vectors of sentences and of their tokens",
            "plot": "draw the curves of training runs",
        }
    }
MODULES = {name: module for group in OVERVIEW.values() for module, verbs in group.items() for name in verbs}
"""The module of each verb."""

MOST_COLUMNS = 100
"""Of a help text."""

REQUIRED = "Required."
"""Last word in the docstring of a setting without which its verb cannot begin."""
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

Run = TypeVar("Run", bound=Callable[..., int])


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a verb: the class that declares it, its field there, its type with bounds, and its default."""

    owner: type
    field: dataclasses.Field[Any]
    hint: Any
    default: Any

    @property
    def kind(self) -> Any:
        """Type without bounds."""
        return get_type_hints(self.owner)[self.field.name]

    @property
    def is_path(self) -> bool:
        """Return True if it names files, folders or encoders."""
        return PATH in marks(self.hint)

    @property
    def is_list(self) -> bool:
        """Return True if it is a list of texts, or of names."""
        if get_origin(self.kind) is list and get_origin(get_args(self.kind)[0]) is Literal:
            return True
        return self.kind in (list[str], list[str] | None)

    @property
    def is_text(self) -> bool:
        """Return True if it is taken as it is written."""
        return self.is_path or self.kind in (str, str | None)

    @property
    def text(self) -> str:
        """Docstring, in one line."""
        return self._docstring.removesuffix(REQUIRED).strip()

    @property
    def is_required(self) -> bool:
        """Return True if its verb cannot begin without it."""
        return self._docstring.endswith(REQUIRED)

    @property
    def _docstring(self) -> str:
        return field_texts(self.owner).get(self.field.name, "")

    @property
    def shown(self) -> str:
        """Default and possible values."""
        if self.is_required:
            return "(required)"
        value = self.default
        if isinstance(value, Enum):
            return f"{value.name}  ({' | '.join(member.name for member in type(value))})"
        if get_origin(self.kind) is Literal:
            return f"{value}  ({' | '.join(get_args(self.kind))})"
        if value is None or isinstance(value, bool):
            shown = {None: "null", True: "true", False: "false"}[value]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"{shown}  ({limits(self.hint)})" if limits(self.hint) else shown


def marks(hint: Any) -> list[Any]:
    """All that is said of a type, and of the types in it, by Annotated."""
    own = getattr(hint, "__metadata__", ())
    flat = [mark for each in own for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
    return flat + [mark for inner in get_args(hint) for mark in marks(inner) if not isinstance(inner, FieldInfo)]


def limits(hint: Any) -> str:
    """The range of a number, or of numbers in a list, in words.

    >>> from typing import Annotated
    >>> from pydantic import Field
    >>> limits(Annotated[int, Field(gt=0)]), limits(Annotated[float, Field(gt=0, le=1)] | None), limits(int)
    ('at least 1', 'above 0 and at most 1', '')
    """
    found = {name: getattr(mark, name) for mark in marks(hint) for name in LIMITS if hasattr(mark, name)}
    if found.get("gt") == 0 and "int" in str(hint):
        found["ge"] = found.pop("gt") + 1
    return " and ".join(f"{words} {found[name]}" for name, words in LIMITS.items() if name in found)


@cache
def declared_settings(root: type) -> dict[str, Setting]:
    """Every leaf of a settings class and of the classes in it, by dotted name; plain ones before groups."""
    return _settings_of(root())


def _settings_of(default: Any, prefix: str = "") -> dict[str, Setting]:
    root = type(default)
    hints = get_type_hints(root, include_extras=True)
    values = {item: getattr(default, item.name) for item in dataclasses.fields(root)}
    groups = {item.name: value for item, value in values.items() if dataclasses.is_dataclass(hints[item.name])}
    found = {
        f"{prefix}{item.name}": Setting(root, item, hints[item.name], value)
        for item, value in values.items()
        if item.name not in groups
    }
    for name, value in groups.items():
        found |= _settings_of(value, f"{prefix}{name}.")
    return found


def similar_settings(name: str, declared: Collection[str]) -> list[str]:
    """Declared names close to one that is not: those with the same last part, then those spelt alike.

    >>> similar_settings("files", ["index", "corpus.files", "k"]), similar_settings("K", ["index", "k"])
    (['corpus.files'], ['k'])
    """
    name = name.lower()
    last = name.rsplit(".", 1)[-1]
    same = [known for known in declared if known.rsplit(".", 1)[-1] == last]
    return list(dict.fromkeys([*same, *get_close_matches(name, declared, n=3, cutoff=0.5)]))


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line."""

    name: str
    root: type
    """Class of its settings."""
    run: Callable[..., int]
    """Called with the settings, and the texts where it takes some; returns the exit status."""
    example: str
    """A complete command."""
    first: tuple[str, ...]
    """Settings that `--help` shows; `--help all` shows the others too."""
    required: str | None = "index"
    """The setting without which it cannot begin."""
    takes_texts: bool = False
    """Return True if its command line may have texts or folders next to settings."""
    presets: str = ""
    """Folders of YAML files, each of which sets several of its settings at once; later ones override earlier ones."""
    resumes: bool = False
    """Return True if the same command resumes what was interrupted."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Groups of settings that it shares with other verbs and offers fewer of."""

    @property
    def settings(self) -> dict[str, Setting]:
        """Its settings by dotted name."""
        by_name = {key: (key.rpartition("."), setting) for key, setting in declared_settings(self.root).items()}
        return {
            key: setting
            for key, ((group, _, name), setting) in by_name.items()
            if INNER not in marks(setting.hint) and (group not in self.groups or name in self.groups[group].split())
        }

    @property
    def choices(self) -> dict[str, list[str]]:
        """Names of the files in each folder of presets."""
        return {
            name: sorted(file.stem for file in (config_folder() / name).glob("*.yaml")) for name in self.presets.split()
        }


DECLARED: dict[str, Verb] = {}
"""The verbs whose modules have been imported."""


def verb(root: type, example: str, first: str, **facts: Any) -> Callable[[Run], Run]:
    """Declare `run_NAME` as the verb NAME; `facts` are further fields of `Verb`."""

    def declare(run: Run) -> Run:
        name = run.__name__.removeprefix("run_")
        DECLARED[name] = Verb(name, root, run, example, tuple(first.split()), **facts)
        return run

    return declare


def find_verb(name: str) -> Verb:
    """The verb `name`, which is one of MODULES."""
    import_module(MODULES[name])
    return DECLARED[name]


def overview() -> str:
    """Purpose of the program, and its verbs by group."""
    lines = [
        _wrapped("npmlm fills <mask> with phrases of your corpus, and cites them."),
        "\nusage: npmlm VERB [key=value ...] [text ...]\n",
        '  npmlm build "corpus.files=[docs/*.jsonl]" index=DIR',
        '  npmlm fill index=DIR "The capital of Iceland is <mask>."',
    ]
    for group, modules in OVERVIEW.items():
        lines.append(f"\n{group}")
        verbs = [each for members in modules.values() for each in members.items()]
        lines += [_wrapped(summary, f"  {name:<11}", " " * 13) for name, summary in verbs]
    lines.append("")
    lines.append(
        _wrapped(
            "npmlm VERB --help shows the settings that people change, --help all shows every one; npmlm --version "
            "prints the version. npmlm VERB -m key=a,b runs each value into a numbered folder, --cfg job prints the "
            "composed settings. debug=true shows the full traceback of an error. Everything after -- is text, even if "
            "it looks like a setting."
        )
    )
    return "\n".join(lines)


def verb_help(verb: Verb, *, is_full: bool) -> str:
    """The settings of a verb: the usual ones with a sentence each, or all with their complete texts.

    Required ones come first.
    """
    settings = verb.settings
    lines = [_wrapped(f"npmlm {verb.name} – {summary_of(verb.root)}"), "", _wrapped(verb.example, "  ", "    "), ""]
    for preset, choices in verb.choices.items():
        lines.append(_wrapped(f"{preset}={' | '.join(choices)}  sets several at once", "  ", "    ") + "\n")
    lines.append("settings (name = default):")
    for key in sorted(settings if is_full else verb.first, key=lambda key: not settings[key].is_required):
        text = settings[key].text
        lines.append("\n" + _wrapped(f"{key} = {settings[key].shown}", "  ", "    "))
        lines.append(_wrapped(text if is_full else re.split(r"(?<=\.)\s", text)[0], "      ", "      "))
    if not is_full:
        lines.append("\n" + _wrapped(f"npmlm {verb.name} --help all shows all {len(settings)} settings."))
    return "\n".join(lines)


def summary_of(root: type) -> str:
    """The first line of the docstring of a settings class."""
    return (root.__doc__ or "").strip().splitlines()[0]


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    width = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    return textwrap.fill(
        text,
        max(width, 30),
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
