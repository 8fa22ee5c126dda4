"""All settings of all verbs: one root dataclass a verb, composed by hydra, converted and checked at once.

Values of path settings never pass through hydra's grammar or OmegaConf's interpolation, so a path may hold any
character. Everything else does, against the root dataclass as schema, and unknown keys are refused, also with `+`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import typing
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from npm.cli.progress import say
from npm.errors import SettingError, UserError
from npm.types import MASK_TEXT

SETTING = re.compile(r"^(\+{0,2}|~)[A-Za-z_][\w.]*=")
LIST_ENTRY = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,\s'"](?:\[[^\[\]]*\]|[^,])*?|))\s*(?:,|$)"""
)
DEBUG = re.compile(r"^\+{0,2}debug=(true|yes|on|1)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stood on the command line: settings, and texts."""

    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def before_texts(arguments: list[str]) -> list[str]:
    """The arguments up to `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def split_arguments(arguments: list[str]) -> Arguments:
    """Settings are `key=value` without a mask in it; all else, and everything after `--`, is text.

    >>> split_arguments(["k=3", "a=<mask>", "The capital", "--", "k=4"])
    Arguments(settings=['k=3'], texts=['a=<mask>', 'The capital', 'k=4'])
    """
    found = Arguments()
    first = before_texts(arguments)
    for argument in first:
        is_setting = SETTING.match(argument) is not None and MASK_TEXT not in argument
        (found.settings if is_setting else found.texts).append(argument)
    found.texts.extend(arguments[len(first) + 1 :])
    return found


def wants_debug(arguments: list[str]) -> bool:
    """Whether tracebacks are asked for; known before settings are, so that it covers mistakes in settings too."""
    return any(DEBUG.match(argument) for argument in before_texts(arguments))


def parse_list(value: str, key: str) -> list[str]:
    """One entry, or a list of them in brackets; an entry that holds a comma, quote or space at its ends is quoted.

    >>> parse_list("a, b.jsonl", "files"), parse_list("[a.jsonl, 'b, c.jsonl']", "files"), parse_list("[]", "files")
    (['a, b.jsonl'], ['a.jsonl', 'b, c.jsonl'], [])
    >>> parse_list("[topic in [a, b], year>=1990]", "where")
    ['topic in [a, b]', 'year>=1990']
    """
    if not (value.startswith("[") and value.endswith("]")):
        return [value]
    inside = value[1:-1].strip()
    entries: list[str] = []
    place = 0
    while place < len(inside):
        match = LIST_ENTRY.match(inside, place)
        if match is None:
            raise SettingError(
                f"the list in {key}= cannot be read",
                expected="[a,b], with quotes around entries that hold commas",
                got=value,
                where=key,
                fix="close the quotes, or give one entry without brackets",
            )
        single, double, plain = match.groups()
        quoted = single if single is not None else double
        entries.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        place = match.end()
    return entries


def quoted(value: str) -> str:
    """A string in hydra's grammar; `null`, nothing at all and what is in quotes already stay as they are."""
    if value in ("", "null") or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    return "'" + value.replace("'", "\\'") + "'"


def usable_path(path: str, key: str) -> str:
    """The path with `~` at its beginning as the shell would read it, which leaves `key=~/…` alone.

    Raises SettingError for what the system takes for no path at all, whether something is there or not.
    """
    path = os.path.expanduser(path)  # noqa: PTH111 - Path would change the path in other ways, and raise for ~nobody
    try:
        os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise SettingError(
                f"{key} holds a path that cannot be",
                expected="a path that the file system knows",
                got=error.strerror or str(error),
                where=key,
                fix="give a shorter path, or mend the links in it",
            ) from error
    return path


PATH_SETTINGS = (
    "run",
    "ids_file",
    "index",
    "encoder",
    "texts",
    "out",
    "questions",
    "data_dir",
    "mlm.encoder",
    "mlm.index",
    "before.encoder",
    "sts_dir",
    "corruption.collocations.vocabulary",
)
TEXT_SETTINGS = (
    "shard",
    "search.factory",
    "corpus.id_field",
    "corpus.title_field",
    "corpus.text_field",
    "sentences.anchor_column",
    "sentences.positive_column",
    "sentences.negative_column",
    "sentences.label_column",
    "sentences.score_column",
    "evaluation.best",
    "trainer.wandb_project",
)
"""Plain strings that may hold what hydra's grammar has a meaning for, such as the comma of IVF64,SQ8."""
LIST_SETTINGS = (
    "corpus.files",
    "sentences.files",
    "evaluation.files",
    "documents",
    "where",
    "ids",
    "fill.documents",
    "fill.where",
    "task",
    "method",
    "methods",
    "terms",
)
"""Lists that hydra does not read either: of paths, ids and conditions."""
OLD_SPELLINGS: dict[str, dict[str, str]] = {
    "build": (_of_encoder := {"encoder.name": "encoder", "encoder.device": "device", "encoder.dtype": "precision"}),
    "estimate": _of_encoder,
    "fill": (_of_index := {"dtype": "precision"}),
    "add": _of_index,
    "tune": _of_index,
    "evaluate": _of_index,
    "train": {"trainer.device": "device", "trainer.precision": "precision"},
}
"""Settings that were called otherwise before, verb by verb: old key, new key. The old ones work in this version."""
REQUIRED = {"train": ("run",), "evaluate": ("out",), "estimate": (), "compare": (), "plot": ("out",)}
"""Settings without which a verb cannot begin; for all others, the index."""


def config_folder() -> Path:
    """The folder of the YAML files: in the package when installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def group_choices(verb: str) -> dict[str, list[str]]:
    """The groups of YAML files that a verb can choose from, by name."""
    chosen = {"train": "experiment", "fill": "scoring", "evaluate": "scoring"}
    if verb not in chosen:
        return {}
    return {chosen[verb]: sorted(file.stem for file in (config_folder() / chosen[verb]).glob("*.yaml"))}


def compose_settings(verb: str, overrides: list[str]) -> Any:
    """The root dataclass of `verb` with `overrides` applied and every value checked. Raises SettingError."""
    from npm.cli.commands import COMMANDS  # they come with every package; which argument is a setting does not

    root = COMMANDS[verb]
    moved = moved_settings(verb, root)
    overrides = [_respelt(override, moved) for override in overrides]
    _refuse_unknown_and_repeated(verb, root, overrides)
    paths, others = _split_paths(verb, overrides, moved)
    typed = _compose(verb, root, others)
    for key, value in paths.items():
        _assign(typed, key, value)
    for key in REQUIRED.get(verb, ("index",)):
        if not getattr(typed, key):
            raise SettingError(
                f"{verb} needs {key}=",
                expected=f"{key}={'FILE.png' if verb == 'plot' else 'DIR'}",
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


def moved_settings(verb: str, root: type) -> dict[str, str]:
    """Old and new keys of the settings of `verb` that moved, as far as its class `root` has the new ones alone."""
    from npm.evaluation.settings import OLD_SPELLINGS as IN_EVALUATIONS

    declared = declared_settings(root)
    known = OLD_SPELLINGS.get(verb, {}) | (IN_EVALUATIONS if verb == "evaluate" else {})
    return {old: new for old, new in known.items() if new in declared and old not in declared}


def _respelt(override: str, moved: dict[str, str]) -> str:
    """An override with the key that is in use now."""
    marked, equals, value = override.partition("=")
    old = marked.lstrip("+")
    if old not in moved:
        return override
    _note_old_spelling(old, moved[old])
    return marked.removesuffix(old) + moved[old] + equals + value


def _note_old_spelling(old: str, new: str) -> None:
    say(f"note: {old}= is now {new}=; the old spelling works in this version")


def _refuse_unknown_and_repeated(verb: str, root: type, overrides: list[str]) -> None:
    """Hydra would take the last of several values, and settings of its own such as hydra.run.dir."""
    declared = set(declared_settings(root))
    nodes = {".".join(name.split(".")[:depth]) for name in declared for depth in range(1, name.count(".") + 2)}
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key not in nodes and key not in group_choices(verb) and not _in_free_group(key, root):
            raise _unknown(verb, [key], declared)
        if values.setdefault(key, value) != value:
            raise SettingError(
                f"{key} is given twice",
                expected="one value",
                got=f"{values[key]} and {value}",
                where=key,
                fix="leave one of them out",
            )


def _split_paths(
    verb: str, overrides: list[str], moved: dict[str, str]
) -> tuple[dict[str, str | list[str]], list[str]]:
    """Path settings by their full key, and the overrides that are left for hydra."""
    paths: dict[str, str | list[str]] = {}
    others: list[str] = []
    for override in overrides:
        marked_key, _, value = override.partition("=")
        key = marked_key.removeprefix("++")  # "set it, whether it is there or not", to hydra
        if key in LIST_SETTINGS:
            paths[key] = parse_list(value, key)
        elif key in PATH_SETTINGS:
            paths[key] = value
        elif key.lstrip("+~") in (*PATH_SETTINGS, *LIST_SETTINGS):
            raise SettingError(
                f"{key.lstrip('+~')} can only be set",
                expected=f"{key.lstrip('+~')}=…",
                got=override,
                where=key.lstrip("+~"),
                fix=f"leave {override[0]} out",
            )
        elif key == "experiment" and value.endswith(".yaml"):
            others.append(f"experiment={_stored_experiment(Path(usable_path(value, key)), moved)}")
        elif verb == "evaluate" and key == "scoring":
            others.append(f"scoring@fill={value}")
        elif key.lstrip("+~") in TEXT_SETTINGS:
            others.append(f"{marked_key}={quoted(value)}")
        else:
            others.append(override)
    return paths, others


def _stored_experiment(file: Path, moved: dict[str, str]) -> str:
    """Make a user's own file of settings one of the choices of `experiment`; returns the name it has there.

    Settings that have moved since the file was written are moved in what is read of it; the file stays as it is.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, OmegaConf

    try:
        found: Any = OmegaConf.load(file)
    except Exception as error:  # a YAML parser of any kind may refuse it
        found, reason = None, (str(error).strip() or type(error).__name__).splitlines()[0]
    else:
        reason = f"a {type(found).__name__}"
    if not isinstance(found, DictConfig):
        raise SettingError(
            "the experiment file cannot be read",
            expected="a YAML file of settings, as in configs/experiment",
            got=reason,
            where=str(file),
            fix="check the path and the file, or name one of the experiments that npmlm train --help lists",
        )
    for old, new in moved.items():
        group, _, name = old.rpartition(".")
        holder = OmegaConf.select(found, group) if group else found
        if isinstance(holder, DictConfig) and name in holder:
            OmegaConf.update(found, new, holder.pop(name), force_add=True)
            _note_old_spelling(old, new)
    name = f"own_{file.stem}"
    ConfigStore.instance().store(group="experiment", name=name, node=found, package="_global_")
    return name


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
        container = typing.cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError) as error:
        # hydra tells some mistakes in overrides with plain ValueErrors, such as a number for a group
        raise _refused(verb, overrides, error) from error
    declared = set(declared_settings(root))
    found = {name for name in setting_names(container) if not _in_free_group(name, root)}
    if unknown := sorted(found - declared):  # with + and ++ hydra lets in what nobody declared
        raise _unknown(verb, unknown, declared)
    try:
        return _checked(composed, root)
    except OmegaConfBaseException as error:
        raise _refused(verb, overrides, error) from error


def _checked(composed: Any, root: type, prefix: str = "") -> Any:
    """The dataclass of one node. Its groups come first, so that a refusal can be given the full key of its setting."""
    from omegaconf import OmegaConf

    hints = typing.get_type_hints(root)
    for item in dataclasses.fields(root):
        if dataclasses.is_dataclass(hints[item.name]):
            _checked(composed[item.name], typing.cast(type, hints[item.name]), f"{prefix}{item.name}.")
    try:
        return OmegaConf.to_object(composed)
    except UserError as error:
        error.where = _full_keys(error, list(hints), prefix) or error.where
        raise


def _full_keys(error: UserError, names: list[str], prefix: str) -> str:
    """The settings that a refusal speaks of, by their full keys; the dataclass that refuses does not know its place."""
    pattern = rf"(?<!\w)(?:{'|'.join(names)})(?:\.\w+)*(?!\w)"
    for text in (error.where, error.problem, " ".join(re.findall(r"\w+(?==)", error.got))):
        if named := re.findall(pattern, text.replace(prefix, "") if prefix else text):
            return ", ".join(prefix + name for name in dict.fromkeys(named))
    return prefix.rstrip(".")


def _refused(verb: str, overrides: list[str], error: Exception) -> SettingError:
    """A hydra or OmegaConf error as one clear message."""
    text = str(error.__cause__ or error)
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


def _in_free_group(name: str, root: type) -> bool:
    """Whether a setting stands in a group whose keys its user chooses, such as objective.others."""
    groups = [key for key, item in declared_settings(root).items() if str(item.type).startswith("dict[")]
    return any(name.startswith(f"{group}.") for group in groups)


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


def _assign(settings: Any, key: str, value: str | list[str]) -> None:
    if value in ("", []):
        raise SettingError(
            f"{key}= is empty", expected="a value", got="nothing", where=key, fix=f"give {key}=… or leave it out"
        )
    if isinstance(value, str):
        value = usable_path(value, key)
    elif key.endswith(".files"):
        value = [usable_path(path, key) for path in value]
    group, _, name = key.rpartition(".")
    setattr(attrgetter(group)(settings) if group else settings, name, value)
