"""Methods by name with the settings that each needs, and the examples, indexes and models that settings name.

A method's file is imported when the method is used. Examples are asked in parts, those of equal conditions together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import SettingError, unknown
from npm.core.settings import changed_settings, has_studies, merged, read_settings
from npm.core.types import Answer, Progress
from npm.evaluation.data import read_task
from npm.evaluation.prompts import is_templated
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, ResolvedScoring, Split, Suite, Task, task_scoring
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex, select
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.models.masked_lm import MaskedHead


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
GENERATORS: tuple[str, ...] = ("causal", "t5")  # groups of `zero_shot` that name a model that writes
if not has_studies():
    METHODS = {
        suite: {name: each for name, each in own.items() if each[0] != GENERATIVE} for suite, own in METHODS.items()
    }
    GENERATORS = ()
Part = TypeVar("Part")
NO_DOCUMENT = "no document of the index meets the conditions of this example"
ONLY_IF_NAMED = ("npm", "mlm-n", "oracle-blocks")
"""Open methods: `npm` is one of the three retrievals; the others are told more than the rest."""


class Resources:
    """Indexes and models that the settings of an evaluation name, each opened once."""

    def __init__(self, settings: ZeroShotEvaluation) -> None:
        self.settings = settings
        self.shared: dict[str, Any] = {}
        """Resources that several methods use, such as the word logs of the masked language model."""
        self._indexes: dict[Path, tuple[PhraseIndex, Encoder]] = {}

    def scoring(self, task: Task) -> ResolvedScoring:
        """Scoring of the labels of a closed task."""
        return task_scoring(task, self.settings.zero_shot.closed)

    def fill_settings(self, task: Task) -> FillSettings:
        """Settings of filling: the task's, except those of the command; without conditions that examples fill."""
        given, own, default = self.settings.fill, read_settings(FillSettings, task.fill), FillSettings()
        keys = changed_settings(own, default, [item.name for item in fields(FillSettings)])
        said = {*changed_settings(given, default, keys), *(key.removeprefix("fill.") for key in self.settings.given)}
        values = {key: attrgetter(key)(own) for key in keys if key not in said}
        where = [each for each in values.get("where", given.where) if not is_templated(each)]
        return read_settings(FillSettings, merged(asdict(given), values | {"where": where}))

    def index(self, task: Task, *, parametric: bool = False) -> tuple[PhraseIndex, Encoder]:
        """The index over the reference corpus of `task` and the encoder that made it.

        `parametric`: that of the masked language model. Raises SettingError if there is none, ArtifactError if it is
        damaged or was made with another encoder.
        """
        settings, setting = self.settings, "zero_shot.mlm.index" if parametric else "index"
        place = index_folder(attrgetter(setting)(settings), task, setting=setting)
        if place not in self._indexes:
            opened = PhraseIndex.open(place)
            if parametric:
                encoder = opened.check_encoder(self.language_model[0])
            else:
                given = settings.encoder or None
                encoder = opened.load_encoder(given, device=settings.device, dtype=settings.precision, for_reading=True)
            self._indexes[place] = opened, encoder
        return self._indexes[place]

    @cached_property
    def language_model(self) -> tuple[Encoder, MaskedHead]:
        """The masked language model. Raises EncoderError if it has no trained head."""
        from npm.models.masked_lm import load_masked_lm

        name, device, dtype = self.settings.zero_shot.mlm.encoder, self.settings.device, self.settings.precision
        return load_masked_lm(name, device=device, dtype=dtype)

    def examples(self, task: Task, split: Split, limit: int | None = None) -> list[Example]:
        """The examples of a split, at most `limit` of them. Raises CorpusError for data that does not fit the task."""
        settings, is_open = self.settings, task.suite == "open"
        return read_task(
            task,
            Path(settings.data_dir) if settings.data_dir else None,
            split=split,
            limit=limit,
            seed=settings.seed,
            encoder=self.encoder(task),
            cut=is_open or self.scoring(task).last_tokens is None,
            conditions=list(filter(is_templated, settings.fill.where)) if is_open else (),
        )

    def encoder(self, task: Task) -> Encoder | None:
        """The encoder whose tokens prompts are measured in: the index's, else the language model; None without."""
        if self.settings.index:
            return self.index(task)[1]
        return self.language_model[0] if self.settings.zero_shot.mlm.encoder else None


def index_folder(given: str, task: Task, *, setting: str) -> Path:
    """The index that `given` names for `task`: itself, or the one in it that has the name of the task's corpus.

    Raises SettingError if `given` is no index and holds none of that name.
    """
    folder = Path(given)
    if (folder / MANIFEST_NAME).is_file() or not folder.is_dir():
        return folder
    if task.corpus and (folder / task.corpus).is_dir():
        return folder / task.corpus
    held = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))) or "none"
    expected = task.corpus or "the one that corpus: of the task's file names"
    raise SettingError(f"{setting}={given} has no index for task {task.name}: it has {held}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of one method for the examples of a task."""

    answers: list[Any]  # a LabelPrediction or Answer of each example
    facts: Mapping[str, Any]  # settings, fingerprints and counts that they depend on, for metrics.json
    notes: Sequence[str] | None = None  # for a reader of the tables; None for a method that never has any
    are_shares: bool = False  # the scores of phrases are shares of all evidence


@dataclass(frozen=True, slots=True)
class Method:
    """Chooses among the labels of a closed task, or fills the mask of an open one with phrases, best first."""

    name: str
    predict: Callable[[Task, Sequence[Example], Progress], Predictions]


def admissible_parts(
    index: PhraseIndex, examples: Sequence[Example], fill: FillSettings
) -> Iterator[tuple[PhraseIndex | None, list[int]]]:
    """`index` with only those documents live that may answer, and the indices of the examples that these are for.

    Those that meet the conditions of `fill` and the examples' own, None if there is none. The lexicon and block vectors
    stay as they are. Raises as `select` does, NoDocumentError where examples have no conditions themselves.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(example.where, []).append(number)
    for conditions, numbers in groups.items():
        part: PhraseIndex | None = index
        if fill.where or conditions or fill.documents is not None:
            try:
                allowed = select(index, fill.documents, [*fill.where, *conditions])
                part = replace(index, live_blocks=allowed.blocks, live_rows=allowed.rows)
            except NoDocumentError:
                if not conditions:
                    raise
                part = None
        yield part, numbers


def answered(
    task: Task,
    examples: Sequence[Example],
    parts: Iterable[tuple[Part | None, list[int]]],
    answer: Callable[[Part, list[Example]], Iterable[Answer]],
    progress: Progress,
    *,
    at_once: int = 1,
) -> list[Answer]:
    """The answers to all examples in their order; without phrases to those that no document may answer.

    `parts` are those of `admissible_parts`, or made of them, and `answer` answers some examples from a part.
    """
    found: dict[int, Answer] = {}
    for part, numbers in parts:
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            own = [examples[number] for number in batch]
            none = (Answer(example.text, (), notes=(NO_DOCUMENT,)) for example in own)
            found |= zip(batch, none if part is None else answer(part, own), strict=True)
            progress(f"task {task.name}", len(found), len(examples))
    return [found[number] for number in range(len(examples))]


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


def load_method(name: str, task: Task, resources: Resources) -> Method:
    """The method `name` for `task`. Raises UserError for anything that would stop its `predict`."""
    module = import_module(METHODS[task.suite][name][0])
    method: Method = getattr(module, f"{task.suite}_method")(name, task, resources)
    return method


def load_generator(kind: str, resources: Resources) -> Any:
    """The model of one of GENERATORS, loaded once. Raises EncoderError if there is none of that kind."""
    return import_module("studies.generative").load_generator(kind, resources)
