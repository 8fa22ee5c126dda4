"""The verbs of `npmlm`: their names and summaries; the rest is declared in modules imported when a verb is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

from npm.cli.declared import Setting, declared_settings
from npm.core.settings import config_folder, has_studies

OVERVIEW = {
    "Ask": {
        "npm.cli.answer": {"fill": "answer texts with <mask>, or a table of subjects"},
        "npm.cli.label": {"label": "label texts by the words of the labels"},
        "npm.cli.trace": {
            "find": "count and show the places of a phrase, word for word",
            "trace": "trace the names, numbers and quotations of a text to the corpus",
        },
        "npm.cli.serve": {"serve": "answer over HTTP and on a web page"},
        "npm.cli.agents": {"mcp": "answer agents over the Model Context Protocol"},
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
        "npm.cli.adapt": {"adapt": "let an index learn from corrected answers"},
    },
    "Train": {
        "npm.cli.train": {
            "train": "train an encoder",
            "tokenizer": "learn a tokenizer from a corpus",
        }
    },
    "Measure": {
        "npm.cli.evaluate": {
            "evaluate": "measure an encoder or an index on tasks",
            "compare": "compare two evaluations example by example",
        },
        "npm.cli.calibrate": {"calibrate": "fit how likely a reader's answers are right"},
    },
}
"""Groups of verbs; in each the modules that declare them, with a summary per verb."""
STUDIES = {
    "studies.verbs": {
        "finetune": "fine-tune an encoder on labeled tasks",
        "generate": "generate artificial text from the grammar of a treebank",
        "edit": "change a checkpoint without training it",
        "geometry": "measure the vectors of sentences and of their tokens",
        "plot": "draw the curves of training runs",
    }
}
if has_studies():
    OVERVIEW["Study"] = STUDIES
MODULES = {name: module for group in OVERVIEW.values() for module, verbs in group.items() for name in verbs}
"""The module of each verb."""

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
    required: str | None
    """The setting without which it cannot begin."""
    takes_texts: bool
    """Return True if its command line may have texts or folders next to settings."""
    presets: tuple[str, ...]
    """Folders of YAML files, each of which sets several of its settings at once; later ones override earlier ones."""
    resumes: bool
    """Return True if the same command resumes what was interrupted."""
    groups: Mapping[str, str]
    """Groups of settings that it shares with other verbs and offers fewer of."""

    @property
    def settings(self) -> dict[str, Setting]:
        """Its settings by dotted name."""
        by_name = {key: (key.rpartition("."), setting) for key, setting in declared_settings(self.root).items()}
        return {
            key: setting
            for key, ((group, _, name), setting) in by_name.items()
            if not setting.is_inner and (group not in self.groups or name in self.groups[group].split())
        }

    @property
    def choices(self) -> dict[str, list[str]]:
        """Names of the files in each folder of presets."""
        return {name: sorted(file.stem for file in (config_folder() / name).glob("*.yaml")) for name in self.presets}


DECLARED: dict[str, Verb] = {}
"""The verbs whose modules have been imported."""


def verb(
    root: type,
    example: str,
    first: str,
    *,
    required: str | None = "index",
    takes_texts: bool = False,
    presets: str = "",
    resumes: bool = False,
    groups: Mapping[str, str] = {},
) -> Callable[[Run], Run]:
    """Declare `run_NAME` as the verb NAME."""

    def declare(run: Run) -> Run:
        name = run.__name__.removeprefix("run_")
        shown = tuple(first.split())
        folders = tuple(presets.split())
        DECLARED[name] = Verb(name, root, run, example, shown, required, takes_texts, folders, resumes, groups)
        return run

    return declare


def find_verb(name: str) -> Verb:
    """The verb `name`, which is one of MODULES."""
    import_module(MODULES[name])
    return DECLARED[name]
