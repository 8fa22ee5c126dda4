"""The verbs of `npmlm`: their names and summaries; the rest is declared in modules imported when a verb is named.

The help texts are as wide as the terminal.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from npm.cli.declared import Setting, declared_settings, marks
from npm.core.settings import INNER, config_folder, has_studies

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

Run = TypeVar("Run", bound=Callable[..., int])


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
