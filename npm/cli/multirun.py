"""`-m` and `--cfg job`, as programs on hydra have them: several runs of one command, and its settings as YAML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from npm.cli.base import say
from npm.cli.registry import Verb
from npm.cli.settings import compose_settings
from npm.core.errors import SettingError, missing
from npm.core.settings import as_json

FOLDERS = {"train": "run", "evaluate": "out", "finetune": "out", "generate": "out", "edit": "out"}
"""Verbs that make a folder for each run, and the setting that names it."""
BRACKETS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'")


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
    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(OmegaConf.create(as_json(asdict(settings)))))
