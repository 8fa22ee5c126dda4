"""All settings of all verbs: one root dataclass a verb, composed by hydra, converted and checked at once.

Values of path settings never pass through hydra's grammar or OmegaConf's interpolation, so a path may hold any
character. Everything else does, against the root dataclass as schema, and unknown keys are refused, also with `+`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from npm.errors import SettingError
from npm.evaluation.settings import EvaluationSettings
from npm.models.encoder import ComputeDtype
from npm.retrieval.build import IndexBuildSettings
from npm.retrieval.fill import FillSettings
from npm.training.run import TrainingSettings


class Output(Enum):
    """Form of the answers on stdout."""

    table = "table"
    json = "json"


@dataclass(kw_only=True, slots=True)
class TrainCommand(TrainingSettings):
    """Train an encoder; a run that was stopped goes on with the same command."""

    run: str = ""
    """Folder of the run: settings, metrics, checkpoints, and the finished encoder in RUN/encoder. Required."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class BuildCommand(IndexBuildSettings):
    """Build a phrase index over a corpus; a build that was stopped goes on with the same command."""

    index: str = ""
    """Folder of the index. Required."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class FillCommand(FillSettings):
    """Answer texts that hold one <mask> each with phrases of the corpus."""

    index: str = ""
    """Folder of the index. Required."""
    encoder: str = ""
    """Folder or name of the encoder; empty: the shipped one if it made the index, else the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    dtype: ComputeDtype = ComputeDtype.auto
    """Number format of the encoder's forward pass."""
    texts: str = ""
    """File with one text a line; all lines are checked before the first is answered."""
    output: Output = Output.table
    """`table` for people, `json` for programs: one object a line."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class VerifyCommand:
    """Read and check every byte of an index."""

    index: str = ""
    """Folder of the index. Required."""
    debug: bool = False
    """Show the full traceback of an error."""


@dataclass(kw_only=True, slots=True)
class EvaluateCommand(EvaluationSettings):
    """Measure an encoder or an index on a task; writes predictions.jsonl and metrics.json."""

    debug: bool = False
    """Show the full traceback of an error."""


COMMANDS: dict[str, type] = {
    "train": TrainCommand,
    "build": BuildCommand,
    "fill": FillCommand,
    "verify": VerifyCommand,
    "evaluate": EvaluateCommand,
}
PATH_SETTINGS = ("run", "index", "encoder", "encoder.name", "texts", "out", "corpus.files", "questions", "data_dir")
REQUIRED = {"train": ("run",), "build": ("index",), "fill": ("index",), "verify": ("index",), "evaluate": ("out",)}
SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stood on the command line: settings, and texts."""

    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def split_arguments(arguments: list[str], *, mask_text: str = "<mask>") -> Arguments:
    """Settings are `key=value` without a mask in it; all else, and everything after `--`, is text.

    >>> split_arguments(["k=3", "a=<mask>", "The capital", "--", "k=4"])
    Arguments(settings=['k=3'], texts=['a=<mask>', 'The capital', 'k=4'])
    """
    found = Arguments()
    for place, argument in enumerate(arguments):
        if argument == "--":
            found.texts.extend(arguments[place + 1 :])
            break
        is_setting = SETTING.match(argument) is not None and mask_text not in argument
        (found.settings if is_setting else found.texts).append(argument)
    return found


def config_folder() -> Path:
    """The folder of the YAML files: in the package when installed, beside it in a checkout."""
    installed = Path(__file__).parent / "configs"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "configs"


def compose_settings(verb: str, overrides: list[str]) -> Any:
    """The root dataclass of `verb` with `overrides` applied and every value checked. Raises SettingError."""
    root = COMMANDS[verb]
    paths, others = _split_paths(verb, overrides)
    typed = _compose(verb, root, others)
    for key, value in paths.items():
        _assign(typed, key, value)
    for key in REQUIRED[verb]:
        if not _lookup(typed, key):
            raise SettingError(
                f"{verb} needs {key}=",
                expected=f"{key}=DIR",
                got="nothing",
                where=key,
                fix=f"npmlm {verb} --help lists all settings",
            )
    return typed


def setting_names(tree: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of the leaves of a nested dict.

    >>> sorted(setting_names({"a": 1, "b": {"c": 2}}))
    ['a', 'b.c']
    """
    names: set[str] = set()
    for key, value in tree.items():
        name = f"{prefix}{key}"
        names |= setting_names(value, f"{name}.") if isinstance(value, dict) else {name}
    return names


def parse_paths(value: str) -> list[str]:
    """A path, or a list of paths in brackets; an entry that holds a comma or bracket is quoted.

    >>> parse_paths("a, b.jsonl"), parse_paths("[a.jsonl, 'b, c.jsonl']"), parse_paths("[]")
    (['a, b.jsonl'], ['a.jsonl', 'b, c.jsonl'], [])
    """
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    inside = value[1:-1].strip()
    entry = r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)"""
    entries: list[str] = []
    place = 0
    while place < len(inside):
        match = re.compile(entry).match(inside, place)
        if match is None:
            raise SettingError(
                "this list of paths cannot be read",
                expected="[a.jsonl,b.jsonl], or quotes around entries that hold commas",
                got=value,
                where="corpus.files",
                fix="close the quotes, or give one path or glob without brackets",
            )
        single, double, plain = match.groups()
        quoted = single if single is not None else double
        entries.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        place = match.end()
    return entries


def _split_paths(verb: str, overrides: list[str]) -> tuple[dict[str, str | list[str]], list[str]]:
    """Path settings by their full key, and the overrides that are left for hydra."""
    paths: dict[str, str | list[str]] = {}
    others: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "encoder" and verb == "build":
            key = "encoder.name"
        if key in PATH_SETTINGS:
            paths[key] = parse_paths(value) if key == "corpus.files" else value
        else:
            others.append(override)
    return paths, others


def _compose(verb: str, root: type, overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name=f"{verb}_schema", node=root)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_folder().resolve()), version_base="1.3"):
            composed = compose(verb, overrides=overrides)
        container = OmegaConf.to_container(composed, resolve=True)
        typed = OmegaConf.to_object(composed)
    except SettingError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        if isinstance(error.__cause__, SettingError):
            raise error.__cause__ from None
        raise _refused(verb, root, overrides, error) from error
    assert isinstance(container, dict), "a root dataclass composes to a mapping"
    declared = setting_names(_as_dict(typed))
    if unknown := sorted(name for name in setting_names(container) - declared if not _within(name, declared)):
        raise _unknown(verb, unknown, declared)
    return typed


def _within(name: str, declared: set[str]) -> bool:
    """Whether `name` is an entry of a declared mapping or a declared empty group."""
    return any(name.startswith(f"{other}.") for other in declared)


def _refused(verb: str, root: type, overrides: list[str], error: Exception) -> SettingError:
    """A hydra or OmegaConf error as one clear message."""
    text = str(error.__cause__ or error)
    keys = {override.partition("=")[0].lstrip("+~") for override in overrides}
    declared = set(declared_settings(root))
    groups = {entry.name for entry in config_folder().iterdir() if entry.is_dir()}
    if unknown := sorted(key for key in keys - declared - groups if key):
        return _unknown(verb, unknown, declared)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    where = re.search(r"full_key: (\S+)", text)
    return SettingError(
        "a setting cannot be used",
        expected="key=value with a value of the right kind",
        got=first.strip(),
        where=where.group(1) if where else " ".join(overrides) or verb,
        fix=f"npmlm {verb} --help lists all settings with their defaults; quote values with special characters",
    )


def _unknown(verb: str, unknown: list[str], declared: set[str]) -> SettingError:
    import difflib

    near = {match for name in unknown for match in difflib.get_close_matches(name, declared, n=3, cutoff=0.5)}
    near |= {name for name in declared for other in unknown if name.rsplit(".", 1)[-1] == other.rsplit(".", 1)[-1]}
    return SettingError(
        f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}",
        expected=f"one of: {', '.join(sorted(near))}" if near else "a declared setting",
        got=", ".join(unknown),
        where=f"npmlm {verb}",
        fix=f"npmlm {verb} --help lists all settings",
    )


def declared_settings(root: type, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Every leaf field of a settings dataclass and of the dataclasses in it, by dotted name."""
    hints = typing.get_type_hints(root)
    found: dict[str, dataclasses.Field[Any]] = {}
    for item in dataclasses.fields(root):
        if dataclasses.is_dataclass(hints[item.name]):
            found |= declared_settings(typing.cast(type, hints[item.name]), f"{prefix}{item.name}.")
        else:
            found[f"{prefix}{item.name}"] = item
    return found


def _as_dict(settings: Any) -> dict[str, Any]:
    return dataclasses.asdict(settings)


def _owner(settings: Any, key: str) -> tuple[Any, str]:
    *parents, name = key.split(".")
    for parent in parents:
        settings = getattr(settings, parent, None)
    return settings, name


def _lookup(settings: Any, key: str) -> Any:
    owner, name = _owner(settings, key)
    return getattr(owner, name)


def _assign(settings: Any, key: str, value: str | list[str]) -> None:
    owner, name = _owner(settings, key)
    if owner is None or not hasattr(owner, name):
        declared = set(declared_settings(type(settings)))
        raise _unknown(next(verb for verb, root in COMMANDS.items() if root is type(settings)), [key], declared)
    if value in ("", []):
        raise SettingError(
            f"{key}= is empty", expected="a path", got="nothing", where=key, fix=f"give {key}=PATH or leave it out"
        )
    setattr(owner, name, value)
