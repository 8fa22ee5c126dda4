"""The settings of a verb: YAML files composed by hydra, the values of the command line over them, validated at once.

A value of the command line is a text until the class of the setting reads it, so a path may hold any character.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, cast

from npm.cli.declared import Setting, similar_settings
from npm.cli.registry import Verb, find_verb
from npm.core.errors import SettingError, missing, unknown
from npm.core.settings import PathText, checked, config_folder, merged, parse_list, read_settings, read_yaml
from npm.core.types import SURROGATE


def compose_settings(name: str, overrides: list[str]) -> Any:
    """The settings of the verb `name` with `overrides` applied and every value checked. Raises SettingError."""
    verb = find_verb(name)
    declared = verb.settings
    given: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if SURROGATE.search(value) or "\0" in value:
            raise SettingError(f"{key} must be valid UTF-8 without null characters, got {value[:80]!a}")
        if given.setdefault(key, value) != value:
            raise SettingError(f"{key} is given twice: {given[key]} and {value}")
    values: dict[str, Any] = {}
    for folder in verb.presets:
        if folder in given:
            values = merged(values, _preset(verb, folder, given.pop(folder)))
    values = merged(values, {key: _read(name, key, given[key], declared) for key in given})
    typed: Any = read_settings(verb.root, values)
    if verb.required and not getattr(typed, verb.required):
        raise missing(verb.required, verb.example)
    if hasattr(typed, "given"):
        object.__setattr__(typed, "given", frozenset(given))
    return typed


def _read(verb: str, key: str, text: str, declared: Mapping[str, Setting]) -> Any:
    """The value of one setting of the command line, as far as its text has its own form."""
    if key not in declared:
        if any(key.startswith(f"{group}.") for group, setting in declared.items() if setting.is_free_group):
            return text
        similar = similar_settings(key, declared)
        hint = f"did you mean {similar[0]}=?" if similar else f"npmlm {verb} --help all lists all settings"
        raise SettingError(f"unknown setting {key}: {hint}")
    setting = declared[key]
    if text == "null" and setting.is_optional:
        return None
    # Without documents= all answer; an empty list, such as one that a script filled, must not mean the same.
    value = parse_list(text, key) if setting.is_list else text
    if (not value or (setting.is_list and "" in value)) and (setting.is_path or setting.kind == list[str] | None):
        raise SettingError(f"{key} is empty: give a value, or leave it out")
    if setting.is_list or setting.is_text:
        return value
    if (digits := text.lstrip("+-0")).isdecimal() and int(digits[:20]) >= 2**63:
        raise SettingError(f"{key} must be below 2**63, got {text[:80]}")
    if text[:1] not in ("[", "{"):
        return text
    try:
        return read_yaml(text)
    except ValueError as error:
        raise SettingError(f"{key} must be a YAML list or mapping, got {text[:80]}") from error


def _preset(verb: Verb, group: str, name: str) -> dict[str, Any]:
    """The settings in a file of presets, such as `experiment=NAME`, or in a file of the user."""
    if group == "experiment" and name.endswith(".yaml"):
        try:
            found = read_yaml(Path(checked(name, PathText, group)).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingError(f"{group}: cannot read {name}: {reason}") from error
        if not isinstance(found, dict):
            raise SettingError(f"{group}: {name} must be a YAML file of settings")
        bases = found.pop("defaults", ["_self_"])
        if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
            raise SettingError(f"{group}: defaults of {name} must be a list of shipped experiments, got {bases!r:.80}")
        parts = [found if base == "_self_" else _shipped_preset(verb, group, base) for base in bases]
        return reduce(merged, parts if "_self_" in bases else [*parts, found])
    return _shipped_preset(verb, group, name)


def _shipped_preset(verb: Verb, group: str, name: str) -> dict[str, Any]:
    """The settings in a file of configs/, composed by hydra."""
    if name not in verb.choices[group]:
        raise unknown(group, name, verb.choices[group])
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    files = [f"+{group}={name}"]
    if verb.name == "evaluate":
        files = [f"+scoring@fill={name}", f"+scoring/closed@zero_shot.closed={name}"]
    with initialize_config_dir(str(config_folder().resolve()), version_base="1.3"):
        return cast(dict[str, Any], OmegaConf.to_container(compose(overrides=files)))
