"""Cells of a study: entries of its table, and commands of one that is tried in minutes."""

import json
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean, stdev

SMALL = {"train": {"schedule.max_steps": 50}, "finetune": {"epochs": 1, "limit": 200}, "evaluate": {"limit": 10}}
"""Largest values of a small study, by verb and setting."""
SMALL_CELLS = 3
UNSET = {"train": ("schedule.max_epochs", "schedule.max_minutes")}
"""Other limits on the length of a run, unset in a small study."""


def smaller(command: Sequence[str]) -> list[str]:
    """A command with the values of SMALL where its own are larger; an evaluation gets none that it does not have.

    >>> smaller(["finetune", "epochs=5", "task=[cola]"])
    ['finetune', 'task=[cola]', 'epochs=1', 'limit=200']
    """
    verb, *arguments = command
    most = SMALL.get(verb, {})
    given = {key: value for key, _, value in (each.partition("=") for each in arguments) if key in most}
    unset = UNSET.get(verb, ())
    kept = [each for each in arguments if each.partition("=")[0] not in {*most, *unset}]
    lowered = {key: min(int(given.get(key, large)), large) for key, large in most.items()}
    lowest = [f"{key}={lowered[key]}" for key in lowered if key in given or verb != "evaluate"]
    return [verb, *kept, *lowest, *(f"{key}=null" for key in unset)]


def entry(files: Sequence[Path], keys: Sequence[str]) -> str:
    """Mean ± standard deviation of the number at `keys` of some metrics.json, or the maximum, in four digits."""
    is_max = keys[-1] == "max"
    values = [float(reduce(getitem, keys[: -is_max or None], json.loads(file.read_text("utf-8")))) for file in files]
    if is_max or len(values) < 2:
        return f"{max(values):.4g}" if values else ""
    return f"{fmean(values):.4g} ± {stdev(values):.2g}"
