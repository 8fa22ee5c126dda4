"""Methods by name, with the settings that each needs; a method's file is imported when the method is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import EncoderError, SettingError, unknown
from npm.core.settings import changed_settings, merged, read_settings
from npm.core.types import Answer, Progress
from npm.evaluation.conditions import is_templated
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, LabelPrediction, ResolvedScoring, Suite, Task, task_scoring
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.evaluation.methods.generative import Writer
    from npm.evaluation.methods.parametric import WordLogs
    from npm.models.masked_lm import MaskedHead


INDEX, MLM, CAUSAL, T5 = "index", "zero_shot.mlm.encoder", "zero_shot.causal.model", "zero_shot.t5.model"
METHODS: dict[Suite, dict[str, tuple[str, ...]]] = {
    Suite.closed: {
        "npm": ("nonparametric", INDEX),
        "npm-single": ("nonparametric", INDEX),
        "mlm": ("parametric", MLM),
        "mlm-pmi": ("parametric", MLM),
        "mlm-fuzzy": ("parametric", MLM),
        "mlm-fuzzy-pmi": ("parametric", MLM),
        "mlm-fuzzy-corpus": ("parametric", MLM, INDEX),
        "mlm-knn": ("nonparametric", MLM, "zero_shot.mlm.index"),
        "causal": ("generative", CAUSAL),
        "causal-pmi": ("generative", CAUSAL),
        "causal-knn": ("generative", CAUSAL, INDEX),
        "t5": ("generative", T5),
        "majority": ("baselines",),
        "random": ("baselines",),
    },
    Suite.open: {
        "npm": ("nonparametric", INDEX),
        "npm-dense": ("nonparametric", INDEX),
        "npm-bm25": ("nonparametric", INDEX),
        "npm-hybrid": ("nonparametric", INDEX),
        "oracle-blocks": ("baselines", INDEX),
        "mlm": ("parametric", MLM),
        "mlm-n": ("parametric", MLM),
        "causal": ("generative", CAUSAL),
        "causal-bm25": ("generative", CAUSAL, INDEX),
        "t5": ("generative", T5),
        "majority": ("baselines",),
        "random": ("baselines", INDEX),
    },
}
"""The file of each method in this folder, and the settings that it needs."""
MODULES = {
    "baselines": lambda: import_module("npm.evaluation.methods.baselines"),
    "generative": lambda: import_module("npm.evaluation.methods.generative"),
    "nonparametric": lambda: import_module("npm.evaluation.methods.nonparametric"),
    "parametric": lambda: import_module("npm.evaluation.methods.parametric"),
}
ONLY_IF_NAMED = ("npm", "mlm-n", "oracle-blocks")
"""Open methods: `npm` is one of the three retrievals; the others are told more than the rest."""


class ClosedMethod(Protocol):
    """Chooses among the labels of a closed task."""

    name: str
    facts: dict[str, Any]
    """Settings, fingerprints and counts that the predictions of the last call depend on, for metrics.json."""

    def prepare(self, task: Task) -> None:
        """Raise UserError for whatever would stop `predict`, so that it is known before any task is asked."""

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One prediction per example."""


class OpenMethod(Protocol):
    """Fills the mask of an open task with phrases, best first."""

    name: str
    facts: dict[str, Any]

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer per example."""


@contextmanager
def loading(setting: str) -> Iterator[None]:
    """Name the `setting` in an error of a model that cannot be loaded."""
    try:
        yield
    except EncoderError as error:
        raise EncoderError(f"{setting}: {error}".replace(" encoder=", f" {setting}=")) from error


class Resources:
    """Indexes and models that the settings of an evaluation name, each opened once."""

    def __init__(self, settings: ZeroShotEvaluation) -> None:
        self.settings = settings
        self.word_logs: WordLogs | None = None
        """Of the masked language model, shared by its methods."""
        self._indexes: dict[Path, tuple[PhraseIndex, Encoder]] = {}
        self._language_model: tuple[Encoder, MaskedHead] | None = None
        self._writers: dict[str, Writer] = {}

    def lacking(self, name: str, task: Task) -> str:
        """The settings that a method needs and that are not set; empty if it has all."""
        needs = METHODS[task.suite][name][1:]
        found = [f"{need}=" for need in needs if not attrgetter(need)(self.settings)]
        if name == "majority" and task.suite is Suite.open and not task.has_development:
            found.append("a task with development examples")
        return " and ".join(found)

    def method_names(self, task: Task) -> list[str]:
        """The methods for `task`: those asked for, or all that the settings serve. Raises SettingError."""
        known, named = METHODS[task.suite], self.settings.method
        everywhere = dict.fromkeys(name for methods in METHODS.values() for name in methods)
        if len(set(named)) < len(named):
            raise SettingError(f"method must have each name once, got [{', '.join(named)}]")
        for name in named:
            if name not in everywhere:
                raise unknown("method", name, everywhere)
            if name in known and (lacking := self.lacking(name, task)):
                raise SettingError(f"method {name} needs {lacking} for task {task.name}")
        usual = [name for name in known if task.suite is Suite.closed or name not in ONLY_IF_NAMED]
        found = [name for name in named or usual if name in known and not self.lacking(name, task)]
        if not found:
            raise SettingError(f"task {task.name} has no method: set index, or choose from method=[{','.join(known)}]")
        return found

    def method(self, name: str, task: Task, development: Callable[[], Sequence[Example]]) -> Any:
        """The method `name` for `task`, which is checked; `development` reads its examples to choose settings on."""
        module = MODULES[METHODS[task.suite][name][0]]()
        if task.suite is Suite.open:
            return module.open_method(name, task, self, development)
        method: ClosedMethod = module.closed_method(name, task, self)
        method.prepare(task)
        return method

    def scoring(self, task: Task) -> ResolvedScoring:
        """Scoring of the labels of a closed task."""
        return task_scoring(task, self.settings.zero_shot.closed)

    def fill_settings(self, task: Task) -> FillSettings:
        """Settings of filling: the task's, but for those of the command; without conditions that examples fill."""
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
                encoder = opened.check_encoder(self.language_model()[0])
            else:
                given = settings.encoder or None
                encoder = opened.load_encoder(given, device=settings.device, dtype=settings.precision)
            self._indexes[place] = opened, encoder
        return self._indexes[place]

    def language_model(self) -> tuple[Encoder, MaskedHead]:
        """The masked language model. Raises EncoderError if it has no trained head."""
        from npm.models.masked_lm import attach_masked_head
        from npm.models.names import locate_encoder

        if self._language_model is None:
            name = self.settings.zero_shot.mlm.encoder
            with loading(MLM):
                encoder = Encoder.load(name, device=self.settings.device, dtype=self.settings.precision)
                self._language_model = encoder, attach_masked_head(encoder, locate_encoder(name), trained=True)
        return self._language_model

    def writer(self, kind: str) -> Writer:
        """The model that `causal` or `t5` methods write with. Raises EncoderError if it cannot serve."""
        from npm.evaluation.methods.generative import load_writer

        if kind not in self._writers:
            name = getattr(self.settings.zero_shot, kind).model
            with loading(f"zero_shot.{kind}.model"):
                self._writers[kind] = load_writer(kind, name, self.settings.device, self.settings.precision)
        return self._writers[kind]

    def encoder(self, task: Task) -> Encoder | None:
        """The encoder whose tokens prompts are measured in: the index's, else the language model; None without."""
        if self.settings.index:
            return self.index(task)[1]
        return self.language_model()[0] if self.settings.zero_shot.mlm.encoder else None


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
