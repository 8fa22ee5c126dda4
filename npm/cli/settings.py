"""The settings of a verb: YAML files composed by hydra, the values of the command line over them, validated at once.

A value of the command line is a text until the class of the setting reads it, so a path may hold any character. `-m`
and `--cfg job` are as programs on hydra have them: several runs of one command, and its settings as YAML.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_origin

from npm.cli.base import say
from npm.cli.registry import Setting, Verb, find_verb, similar_settings
from npm.core.errors import SettingError, missing, unknown
from npm.core.settings import (
    PathText,
    as_json,
    checked,
    config_folder,
    merged,
    parse_list,
    read_settings,
    read_yaml,
    yaml_text,
)
from npm.core.types import SURROGATE

FOLDERS = {"train": "run", "evaluate": "out", "finetune": "out", "generate": "out", "edit": "out"}
"""Verbs that make a folder for each run, and the setting that names it."""
TEXT_NAMES = frozenset({"phrase", "q", "query", "question", "text"})
"""Names that a text is given by mistake."""
BRACKETS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'")


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
    for folder in verb.presets.split():
        if folder in given:
            values = merged(values, _preset(verb, folder, given.pop(folder)))
    named = [key for key in given if verb.takes_texts and key.lower() in TEXT_NAMES and key not in declared]
    if named:
        raise SettingError(f"unknown setting {named[0]}: a text is given alone, as in {verb.example}")
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
        if any(key.startswith(f"{group}.") for group, each in declared.items() if get_origin(each.kind) is dict):
            return text  # its user chooses the keys in it
        similar = similar_settings(key, declared)
        hint = f"did you mean {similar[0]}=?" if similar else f"npmlm {verb} --help all lists all settings"
        raise SettingError(f"unknown setting {key}: {hint}")
    setting = declared[key]
    if text == "null" and NoneType in get_args(setting.kind):
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


def multirun(verb: Verb, given: Sequence[str], texts: Sequence[str] = ()) -> int:
    """Run `verb` with each combination of values, in the order given, into numbered folders; stops where one fails.

    Raises SettingError before the first run if any of them has a mistake.
    """
    if texts:
        raise SettingError(f"npmlm {verb.name} -m takes settings as key=value, got {texts[0][:80]!r}")
    if verb.name not in FOLDERS:
        raise SettingError(f"npmlm {verb.name} has no -m, only {', '.join(FOLDERS)} have: run it once for each value")
    folder = FOLDERS[verb.name]
    parents = {each.partition("=")[2] for each in given if each.startswith(f"{folder}=")}
    if len(parents) > 1:
        raise SettingError(f"{folder} is given twice: {' and '.join(sorted(parents))}")
    parent = "".join(parents)
    if not parent:
        raise missing(folder, f"{folder}=runs/sweep; run N goes to {folder}=runs/sweep/N")
    rest = [each for each in given if not each.startswith(f"{folder}=")]
    jobs = list(combinations(rest))
    composed = [compose_settings(verb.name, [*job, f"{folder}={parent}/{number}"]) for number, job in enumerate(jobs)]
    for number, (job, settings) in enumerate(zip(jobs, composed, strict=True)):
        changed = [each for each in job if each not in rest]
        say(f"run {number + 1} of {len(jobs)}: {' '.join(changed)} {folder}={parent}/{number}")
        if status := verb.run(settings):
            return status
    return 0


def combinations(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Every combination of the values that `key=a,b` lists, the last key changing fastest.

    A list in brackets is one value; hydra's `range(1,4)` and `choice(a,b)` work too.

    >>> list(combinations(["k=1,2", "files=[a,b]"]))
    [['k=1', 'files=[a,b]'], ['k=2', 'files=[a,b]']]
    """
    return map(list, itertools.product(*map(_values, overrides)))


def _values(override: str) -> list[str]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
        if not parsed.is_sweep_override():
            return [override]
        return [f"{parsed.key_or_group}={value}" for value in parsed.sweep_string_iterator()]
    except HydraException as error:  # a path or a text with characters that hydra would need quoted
        if "," not in BRACKETS.sub("", override):
            return [override]
        raise SettingError(f"{override[:80]} cannot be split into values: {str(error).splitlines()[0]}") from error


def as_yaml(settings: Any) -> str:
    """Composed settings as YAML."""
    return yaml_text(as_json(asdict(settings)))
