"""All settings of all verbs: one root dataclass a verb, composed by hydra, converted and checked at once.

Values of path settings never pass through hydra's grammar or OmegaConf's interpolation, so a path may hold any
character. Everything else does, against the root dataclass as schema, and unknown keys are refused, also with `+`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, cast, get_type_hints

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from npm.cli.help import Setting, declared_settings, similar_settings
from npm.cli.progress import say
from npm.cli.verbs import VERBS, config_folder
from npm.core.errors import SettingError, UserError, missing, put_under
from npm.core.settings import parse_list
from npm.core.types import SURROGATE
from npm.evaluation.settings import OLD_SPELLINGS as SPELLINGS_OF_EVALUATION

MOST_YAML_BYTES, MOST_YAML_ALIASES = 1 << 18, 16
"""Of an experiment's file."""
STARTS_WITHOUT = ("fill",)
"""Verbs that look themselves whether what they require was given: some texts are answered from a demo corpus."""
FLAGS = ("true", "false", "yes", "no", "on", "off", "1", "0")
OLD_SPELLINGS: dict[str, dict[str, str]] = {
    "build": (_of_encoder := {"encoder.name": "encoder", "encoder.device": "device", "encoder.dtype": "precision"}),
    "estimate": _of_encoder,
    "fill": (_of_index := {"dtype": "precision"}),
    "add": _of_index,
    "tune": _of_index,
    "evaluate": _of_index | SPELLINGS_OF_EVALUATION,
    "train": {"trainer.device": "device", "trainer.precision": "precision"},
}
"""Settings that were called otherwise before, verb by verb: old key, new key. The old ones work in this version."""


def compose_settings(name: str, overrides: list[str]) -> Any:
    """The settings of the verb `name` with `overrides` applied and every value checked. Raises SettingError."""
    verb = VERBS[name]
    declared = declared_settings(verb.root)
    moved = moved_settings(name, declared)
    overrides = [_respelt(override, moved) for override in overrides]
    _refuse_unknown_and_repeated(name, declared, overrides)
    for override in overrides:
        _refuse_what_hydra_reads_otherwise(override, declared)
    uncomposed, others = _split_paths(name, declared, overrides, moved)
    typed = _compose(name, declared, others)
    for key, value in uncomposed.items():
        # Without documents= all answer; an empty list, such as one that a script filled, must not mean the same.
        is_blank = value in ("", []) or (isinstance(value, list) and "" in value)
        if is_blank and (declared[key].is_path or declared[key].kind == list[str] | None):
            raise SettingError(f"{key} is empty: give a value, or leave it out")
        if declared[key].is_path:
            value = (
                usable_path(value, key) if isinstance(value, str) else [usable_path(path, key) for path in value or ()]
            )
        group, _, own_name = key.rpartition(".")
        setattr(attrgetter(group)(typed) if group else typed, own_name, value)
    if verb.required and not getattr(typed, verb.required) and name not in STARTS_WITHOUT:
        raise missing_setting(name)
    if hasattr(typed, "given"):
        typed.given = frozenset(override.lstrip("+").partition("=")[0] for override in overrides)
    return typed


def missing_setting(name: str) -> SettingError:
    """What to say where the setting without which the verb `name` cannot begin is not given."""
    required = str(VERBS[name].required)
    example = "FILE.png" if name == "plot" else "s3://…" if required == "address" else "DIR"
    demo = Path("runs/demo/index")
    if required == "index" and name != "build" and (demo / "manifest.json").is_file():
        example = str(demo)
    elif name in STARTS_WITHOUT:
        example += "; texts on the command line and at the prompt are answered from a demo corpus without it"
    return missing(required, f"{required}={example}")


def setting_names(tree: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of the leaves of a nested dict.

    >>> sorted(setting_names({"a": 1, "b": {"c": 2}}))
    ['a', 'b.c']
    """
    return {name for name, _ in _leaves(tree, prefix)}


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def moved_settings(verb: str, declared: Mapping[str, Setting]) -> dict[str, str]:
    """Old and new keys of the settings of `verb` that moved, as far as the new ones alone are declared."""
    return {old: new for old, new in OLD_SPELLINGS.get(verb, {}).items() if new in declared and old not in declared}


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


def _refuse_unknown_and_repeated(verb: str, declared: Mapping[str, Setting], overrides: list[str]) -> None:
    """Hydra would take the last of several values, and settings of its own such as hydra.run.dir."""
    nodes = {".".join(name.split(".")[:depth]) for name in declared for depth in range(1, name.count(".") + 2)}
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key not in nodes and key not in VERBS[verb].choices and not _in_free_group(key, declared):
            raise _unknown(verb, [key], declared)
        if values.setdefault(key, value) != value:
            raise _given_twice(key, values[key], value)


def _refuse_what_hydra_reads_otherwise(override: str, declared: Mapping[str, Setting]) -> None:
    """It would delete settings, look values up in the environment, and take any number for true."""
    marked_key, _, value = override.partition("=")
    key = marked_key.lstrip("+~")
    setting = declared.get(key)
    marks = marked_key.removesuffix(key)
    if "~" in marks or (setting is not None and marks == "+"):  # "++": set it, whether it is there or not
        raise SettingError(f"{key} can only be set, as {key}=…, got {override}")
    if "\0" in value or SURROGATE.search(value):
        raise SettingError(f"{key} must be valid UTF-8 without null characters, got {value[:80]!a}")
    if setting is None or not (setting.is_path or setting.is_list):
        _refuse_computed(key, value)
    if setting is not None and setting.is_flag and value.lower() not in FLAGS:
        raise _no_flag(key, value)


def _refuse_computed(key: str, value: object) -> None:
    if "${" in str(value):
        raise SettingError(f"{key} must be the value itself, since ${{…}} is not looked up, got {str(value)[:80]}")


def _no_flag(key: str, value: object) -> SettingError:
    return SettingError(f"{key} must be true or false, got {str(value)[:80]}")


def _given_twice(key: str, first: object, second: object) -> SettingError:
    return SettingError(f"{key} is given twice: {first} and {second}")


def _split_paths(
    verb: str, declared: Mapping[str, Setting], overrides: list[str], moved: dict[str, str]
) -> tuple[dict[str, str | list[str] | None], list[str]]:
    """Paths and lists of texts by their full key, and the overrides that are left for hydra."""
    uncomposed: dict[str, str | list[str] | None] = {}
    others: list[str] = []
    for override in overrides:
        marked_key, _, value = override.partition("=")
        key = marked_key.lstrip("+")
        setting = declared.get(key)
        if setting and (setting.is_path or setting.is_list):
            is_unset = value == "null" and setting.kind == list[str] | None
            uncomposed[key] = None if is_unset else parse_list(value, key) if setting.is_list else value
        elif marked_key in ("experiment", "edit") and value.endswith(".yaml"):
            name = _stored_experiment(Path(usable_path(value, key)), moved, declared, group=marked_key)
            others.append(f"{marked_key}={name}")
        elif verb == "evaluate" and marked_key == "scoring":
            others.append(f"scoring@fill={value}")
            if value == "reference":
                others.append(f"scoring/closed@zero_shot.closed={value}")
        elif setting and setting.is_text:
            others.append(f"{marked_key}={quoted(value)}")
        else:
            others.append(override)
    return uncomposed, others


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
            raise SettingError(f"{key}: invalid path: {error.strerror}") from error
    return path


def _too_much_yaml(file: Path) -> str:
    """What of a YAML file, before it is built, is more than settings can be: a few aliases can stand for billions."""
    if (size := file.stat().st_size) > MOST_YAML_BYTES:
        return f"{size} bytes, more than {MOST_YAML_BYTES}"
    tokens = yaml.scan(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    aliases = sum(isinstance(token, yaml.AliasToken) for token in tokens)
    return f"{aliases} aliases, more than {MOST_YAML_ALIASES}" if aliases > MOST_YAML_ALIASES else ""


def _stored_experiment(file: Path, moved: dict[str, str], declared: Mapping[str, Setting], *, group: str) -> str:
    """Make a user's own file of settings one of the choices of `group`; returns the name it has there.

    Settings that have moved since the file was written are moved in what is read of it; the file stays as it is.
    """
    found: Any = None
    try:
        reason = _too_much_yaml(file)
        if not reason:
            found = OmegaConf.load(file)
            reason = "nothing" if found == {} else f"a {type(found).__name__}"
    except Exception as error:  # a YAML parser of any kind may refuse it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(found, DictConfig) or not found:
        raise SettingError(f"{group}: {file} must be a YAML file of settings, got {reason}")
    for old, new in moved.items():
        parent, _, name = old.rpartition(".")
        holder = OmegaConf.select(found, parent) if parent else found
        if isinstance(holder, DictConfig) and name in holder:
            value, given = holder.pop(name), OmegaConf.select(found, new)
            _note_old_spelling(old, new)
            if given not in (None, value):
                raise _given_twice(new, value, given)
            OmegaConf.update(found, new, value, force_add=True)
    for key, given in _leaves(cast(dict[Any, Any], OmegaConf.to_container(found, resolve=False))):
        _refuse_computed(f"{file}: {key}", given)
        if key in declared and declared[key].is_flag and not isinstance(given, bool):
            raise _no_flag(f"{file}: {key}", given)
    name = f"own_{file.stem}"
    ConfigStore.instance().store(group=group, name=name, node=found, package="_global_")
    return name


def _compose(verb: str, declared: Mapping[str, Setting], overrides: list[str]) -> Any:
    root, folder, schema = VERBS[verb].root, config_folder(), _stored_schema(verb)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder.resolve()), version_base="1.3"):
            # a verb has a file of its own where it has groups of files; for all others the class says everything
            composed = compose(verb if (folder / f"{verb}.yaml").is_file() else schema, overrides=overrides)
        container = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError) as error:
        # hydra reports some mistakes in overrides with plain ValueErrors, such as a number for a group
        raise _refused(verb, declared, overrides, error) from error
    undeclared = set(setting_names(container)) - set(declared)  # with + and ++ hydra lets them in
    if unknown := sorted(name for name in undeclared if not _in_free_group(name, declared)):
        raise _unknown(verb, unknown, declared)
    try:
        return _checked(composed, root)
    except OmegaConfBaseException as error:
        raise _refused(verb, declared, overrides, error) from error


@cache
def _stored_schema(verb: str) -> str:
    """The name under which hydra finds the settings of a verb."""
    name = f"{verb}_schema"
    ConfigStore.instance().store(name=name, node=VERBS[verb].root)
    return name


def _checked(composed: Any, root: type, prefix: str = "") -> Any:
    """The dataclass of one node. Its groups come first, so that a refusal can be given the full key of its setting."""
    hints = get_type_hints(root)
    for item in dataclasses.fields(root):
        if dataclasses.is_dataclass(hints[item.name]):
            _checked(composed[item.name], cast(type, hints[item.name]), f"{prefix}{item.name}.")
    try:
        return OmegaConf.to_object(composed)
    except UserError as error:  # not SettingError alone: index/ does not know it
        put_under(error, prefix, hints)
        raise


def _refused(verb: str, declared: Mapping[str, Setting], overrides: list[str], error: Exception) -> SettingError:
    """A hydra or OmegaConf error as one clear message."""
    text = str(error.__cause__ or error)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    given = {
        key.lstrip("+").partition("@")[0]: value
        for key, _, value in (override.partition("=") for override in overrides)
    }
    full_key = re.search(r"full_key: (\S+)", text)
    # what hydra's grammar or its groups refuse has no full key, but is repeated
    key = (
        full_key[1] if full_key else next((k for k, v in given.items() if f"{k}={v}" in text or f"{k}/{v}" in text), "")
    )
    choices = VERBS[verb].choices.get(key) or (declared[key].choices if key in declared else [])
    expected = declared[key].expected if key in declared else ", ".join(choices)
    if not expected or key not in given:
        return SettingError(f"{key or ' '.join(overrides) or verb}: {first.strip()}")
    match = get_close_matches(given[key].lower(), choices, n=1)
    hint = f"; did you mean {match[0]}?" if match else ""
    return SettingError(f"{key} must be {expected}, got {given[key][:80] or 'nothing'}{hint}")


def _unknown(verb: str, names: list[str], declared: Collection[str]) -> SettingError:
    similar = list(dict.fromkeys(match for name in names for match in similar_settings(name, declared)))
    return SettingError(
        f"unknown setting{'s' if len(names) > 1 else ''} {', '.join(names)}: "
        + (f"did you mean {similar[0]}=?" if similar else f"npmlm {verb} --help all lists all settings")
    )


def _in_free_group(name: str, declared: Mapping[str, Setting]) -> bool:
    return any(name.startswith(f"{group}.") for group, setting in declared.items() if setting.is_free_group)
