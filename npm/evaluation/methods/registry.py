"""Methods by name, with the settings that each needs; a method's file is imported when the method is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol

from npm.core.errors import SettingError, unknown
from npm.core.settings import has_studies
from npm.core.types import Progress
from npm.evaluation.methods.resources import Resources
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, Suite, Task

FOLDER, GENERATIVE = "npm.evaluation.methods", "studies.generative"
NONPARAMETRIC, PARAMETRIC, BASELINES = f"{FOLDER}.nonparametric", f"{FOLDER}.parametric", f"{FOLDER}.baselines"
INDEX, MLM, CAUSAL, T5 = "index", "zero_shot.mlm.encoder", "zero_shot.causal.model", "zero_shot.t5.model"
METHODS: dict[Suite, dict[str, tuple[str, ...]]] = {
    "closed": {
        "npm": (NONPARAMETRIC, INDEX),
        "npm-single": (NONPARAMETRIC, INDEX),
        "mlm": (PARAMETRIC, MLM),
        "mlm-pmi": (PARAMETRIC, MLM),
        "mlm-fuzzy": (PARAMETRIC, MLM),
        "mlm-fuzzy-pmi": (PARAMETRIC, MLM),
        "mlm-fuzzy-corpus": (PARAMETRIC, MLM, INDEX),
        "mlm-knn": (NONPARAMETRIC, MLM, "zero_shot.mlm.index"),
        "causal": (GENERATIVE, CAUSAL),
        "causal-pmi": (GENERATIVE, CAUSAL),
        "causal-knn": (GENERATIVE, CAUSAL, INDEX),
        "t5": (GENERATIVE, T5),
        "majority": (BASELINES,),
        "random": (BASELINES,),
    },
    "open": {
        "npm": (NONPARAMETRIC, INDEX),
        "npm-dense": (NONPARAMETRIC, INDEX),
        "npm-bm25": (NONPARAMETRIC, INDEX),
        "npm-hybrid": (NONPARAMETRIC, INDEX),
        "oracle-blocks": (BASELINES, INDEX),
        "mlm": (PARAMETRIC, MLM),
        "mlm-n": (PARAMETRIC, MLM),
        "causal": (GENERATIVE, CAUSAL),
        "causal-bm25": (GENERATIVE, CAUSAL, INDEX),
        "t5": (GENERATIVE, T5),
        "majority": (BASELINES,),
        "random": (BASELINES, INDEX),
    },
}
"""The module of each method, and the settings that it needs."""
GENERATORS: tuple[str, ...] = ("causal", "t5")
"""Groups of `zero_shot` that name a model that writes."""
if not has_studies():
    METHODS = {
        suite: {name: each for name, each in own.items() if each[0] != GENERATIVE} for suite, own in METHODS.items()
    }
    GENERATORS = ()
ONLY_IF_NAMED = ("npm", "mlm-n", "oracle-blocks")
"""Open methods: `npm` is one of the three retrievals; the others are told more than the rest."""


class Method(Protocol):
    """Chooses among the labels of a closed task, or fills the mask of an open one with phrases, best first."""

    name: str
    facts: dict[str, Any]
    """Settings, fingerprints and counts that the predictions of the last call depend on, for metrics.json."""

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> Sequence[Any]:
        """One LabelPrediction, or one Answer, per example."""


def absent_settings(settings: ZeroShotEvaluation, name: str, task: Task) -> str:
    """The settings that a method needs and that are not set; empty if it has all."""
    found = [f"{need}=" for need in METHODS[task.suite][name][1:] if not attrgetter(need)(settings)]
    if name == "majority" and task.suite == "open" and not task.has_development:
        found.append("a task with development examples")
    return " and ".join(found)


def method_names(settings: ZeroShotEvaluation, task: Task) -> list[str]:
    """The methods for `task`: those requested, or all that the settings serve. Raises SettingError."""
    known, named = METHODS[task.suite], settings.method or task.methods
    everywhere = dict.fromkeys(name for methods in METHODS.values() for name in methods)
    if len(set(named)) < len(named):
        raise SettingError(f"method must have each name once, got [{', '.join(named)}]")
    for name in named:
        if name not in everywhere:
            raise unknown("method", name, everywhere)
        if name in known and (absent := absent_settings(settings, name, task)):
            raise SettingError(f"method {name} needs {absent} for task {task.name}")
    usual = [name for name in known if task.suite == "closed" or name not in ONLY_IF_NAMED]
    found = [name for name in named or usual if name in known and not absent_settings(settings, name, task)]
    if not found:
        raise SettingError(f"task {task.name} has no method: set index, or choose from method=[{','.join(known)}]")
    return found


def load_method(name: str, task: Task, resources: Resources, development: Callable[[], Sequence[Example]]) -> Method:
    """The method `name` for `task`; `development` reads its examples to choose settings on.

    Raises UserError for anything that would stop its `predict`, before any task is run.
    """
    module = import_module(METHODS[task.suite][name][0])
    method: Method = getattr(module, f"{task.suite}_method")(name, task, resources, development)
    return method


def load_generator(kind: str, resources: Resources) -> Any:
    """The model of one of GENERATORS, loaded once. Raises EncoderError if there is none of that kind."""
    return import_module("studies.generative").load_generator(kind, resources)
