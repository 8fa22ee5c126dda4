"""All settings of all verbs: YAML composed by hydra, the values of the command line over it, validated at once.

What stands on the command line is a text until the class of the setting reads it, so a path may hold any character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from npm.cli.help import Setting, declared_settings, similar_settings
from npm.cli.verbs import VERBS, config_folder
from npm.core.errors import SettingError, missing, unknown
from npm.core.settings import PathText, ShellText, checked, is_optional, merged, parse_list, read_settings
from npm.core.types import SURROGATE

STARTS_WITHOUT = ("fill",)
"""Verbs that look themselves whether what they require was given: some texts are answered from a demo corpus."""


class _Yaml(yaml.SafeLoader):
    """The safe loader, for which 1e-4 is a number, as in the files of the package, and not a text as in YAML 1.1."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def compose_settings(name: str, overrides: list[str]) -> Any:
    """The settings of the verb `name` with `overrides` applied and every value checked. Raises SettingError."""
    verb = VERBS[name]
    declared = declared_settings(verb.root)
    given: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if SURROGATE.search(value) or "\0" in value:
            raise SettingError(f"{key} must be valid UTF-8 without null characters, got {value[:80]!a}")
        if given.setdefault(key, value) != value:
            raise SettingError(f"{key} is given twice: {given[key]} and {value}")
    values: dict[str, Any] = {}
    for group in given.keys() & verb.choices:
        values = merged(values, _group_values(name, group, given.pop(group)))
    values = merged(values, {key: _read(name, key, given[key], declared) for key in given})
    typed: Any = read_settings(verb.root, values)
    if verb.required and not getattr(typed, verb.required) and name not in STARTS_WITHOUT:
        raise missing_setting(name)
    if hasattr(typed, "given"):
        object.__setattr__(typed, "given", frozenset(given))
    return typed


def missing_setting(name: str) -> SettingError:
    """Error for a verb without the setting that it cannot begin without."""
    required = str(VERBS[name].required)
    example = "FILE.png" if name == "plot" else "s3://…" if required == "address" else "DIR"
    demo = Path("runs/demo/index")
    if required == "index" and name != "build" and (demo / "manifest.json").is_file():
        example = str(demo)
    elif name in STARTS_WITHOUT:
        example += "; texts on the command line and at the prompt are answered from a demo corpus without it"
    return missing(required, f"{required}={example}")


def _read(verb: str, key: str, text: str, declared: Mapping[str, Setting]) -> Any:
    """The value of one setting of the command line, as far as its text has a form of its own."""
    if key not in declared:
        if any(key.startswith(f"{group}.") for group, setting in declared.items() if setting.is_free_group):
            return ShellText(text)
        similar = similar_settings(key, declared)
        hint = f"did you mean {similar[0]}=?" if similar else f"npmlm {verb} --help all lists all settings"
        raise SettingError(f"unknown setting {key}: {hint}")
    setting = declared[key]
    if text == "null" and is_optional(setting.hint):
        return None
    # Without documents= all answer; an empty list, such as one that a script filled, must not mean the same.
    value = parse_list(text, key) if setting.is_list else text
    if (not value or (setting.is_list and "" in value)) and (setting.is_path or setting.kind == list[str] | None):
        raise SettingError(f"{key} is empty: give a value, or leave it out")
    if setting.is_list:
        return value
    if setting.is_text or setting.is_path:
        return text
    if (digits := text.lstrip("+-0")).isdecimal() and int(digits[:20]) >= 2**63:
        raise SettingError(f"{key} must be below 2**63, got {text[:80]}")
    if text[:1] not in ("[", "{"):
        return ShellText(text)
    try:
        return yaml.load(text, Loader=_Yaml)
    except (ValueError, yaml.YAMLError) as error:
        raise SettingError(f"{key} must be {setting.expected}, got {text[:80]}") from error


def _group_values(verb: str, group: str, name: str) -> dict[str, Any]:
    """The settings that a file of a group of files sets, such as `experiment=NAME`, or a file of the user's own."""
    if group in ("experiment", "edit") and name.endswith(".yaml"):
        try:
            found = yaml.load(Path(checked(name, PathText, group)).read_text(encoding="utf-8"), Loader=_Yaml)
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingError(f"{group}: cannot read {name}: {reason}") from error
        if not isinstance(found, dict):
            raise SettingError(f"{group}: {name} must be a YAML file of settings")
        return found
    if name not in VERBS[verb].choices[group]:
        raise unknown(group, name, VERBS[verb].choices[group])
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    files = [f"+{group}={name}"]
    if verb == "evaluate":
        files = [f"+scoring@fill={name}", f"+scoring/closed@zero_shot.closed={name}"]
    with initialize_config_dir(str(config_folder().resolve()), version_base="1.3"):
        return cast(dict[str, Any], OmegaConf.to_container(compose(overrides=files)))
