"""Methods by name, made from the settings; encoders and indexes are opened once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import EncoderError, SettingError, unknown
from npm.core.settings import changed_settings, read_settings
from npm.core.types import MASK_TEXT
from npm.evaluation.results import index_facts, model_facts
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks.document_conditions import is_templated
from npm.evaluation.tasks.prompts import empty_prompt
from npm.evaluation.tasks.task import (
    LABEL_WORDS,
    Calibration,
    ClosedMethod,
    OpenMethod,
    Suite,
    Task,
    resolved_scoring,
)
from npm.evaluation.zero_shot.baselines import FrequentAnswer, MajorityLabel, RandomLabel, RandomSpanOfBestBlock
from npm.evaluation.zero_shot.calibration import corpus_prompts
from npm.evaluation.zero_shot.closed_set import check_distinct
from npm.evaluation.zero_shot.generative import (
    EXAMPLES_PER_PASS,
    DecoderWriter,
    NeighbourLogs,
    PhraseWriter,
    SentinelWriter,
    WriterLogs,
)
from npm.evaluation.zero_shot.nonparametric import RETRIEVAL_OF, Masks, NonparametricLabels, PhraseAnswers
from npm.evaluation.zero_shot.oracle_blocks import ORACLE_BLOCKS, OracleBlocks
from npm.evaluation.zero_shot.parametric import (
    GoldLengthPhrases,
    ParametricLabels,
    ParametricPhrases,
    PromptedLabels,
    WordLogs,
    remembered,
)
from npm.evaluation.zero_shot.verbalizers import EXPANDED, Verbalizer, load_verbalizer
from npm.indexing.phrase_index import PhraseIndex
from npm.models.decoder import Decoder
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, attach_masked_head
from npm.models.names import locate_encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Example


PARAMETRIC = {
    "mlm": Calibration.none,
    "mlm-pmi": Calibration.prompt,
    "mlm-fuzzy": Calibration.none,
    "mlm-fuzzy-pmi": Calibration.prompt,
    "mlm-fuzzy-corpus": Calibration.corpus,
}
"""The parametric methods, by what calibrates them; `fuzzy` ones take the task's list of words."""
CAUSAL = ("causal", "causal-pmi", "causal-knn", "causal-bm25")
"""Methods that zero_shot.causal.model is for."""
CLOSED_METHODS = ("npm", "npm-single", *PARAMETRIC, "mlm-knn", *CAUSAL[:3], "t5", "majority", "random")
OPEN_METHODS = (
    *("npm", "npm-dense", "npm-bm25", "npm-hybrid", ORACLE_BLOCKS),
    *("mlm", "mlm-n", "causal", "causal-bm25", "t5", "majority", "random"),
)
ONLY_IF_NAMED = ("npm", "mlm-n", ORACLE_BLOCKS)
"""Of the open ones: `npm` is one of the three retrievals; the others are told more than the rest."""

READS_LANGUAGE_MODEL = (*PARAMETRIC, "mlm-n", "mlm-knn")
"""Methods that zero_shot.mlm.encoder is for."""


@contextmanager
def loading(setting: str) -> Iterator[None]:
    """Name this `setting` instead of encoder= in what cannot be loaded within."""
    try:
        yield
    except EncoderError as error:
        message = re.sub(r"(?<![\w.])encoder=", f"{setting}=", str(error))
        raise EncoderError(f"{setting}: {message}") from error


class Methods:
    """The methods that the settings of an evaluation serve."""

    def __init__(self, settings: ZeroShotEvaluation) -> None:
        self._settings = settings
        self._indexes: dict[Path, tuple[PhraseIndex, Encoder]] = {}
        self._language_model: tuple[Encoder, MaskedHead] | None = None
        self._word_logs: WordLogs | None = None
        self._writers: dict[str, DecoderWriter | SentinelWriter] = {}
        self._verbalizers: dict[tuple[str, str, bool], Verbalizer] = {}

    def names(self, task: Task) -> list[str]:
        """The methods for `task`: those asked for, or all that the settings serve.

        Raises SettingError for one that does not answer such tasks, or that lacks a setting.
        """
        known = CLOSED_METHODS if task.suite is Suite.closed else OPEN_METHODS
        if self._settings.method:
            check_distinct(self._settings.method)
        for name in self._settings.method:
            if name not in (*CLOSED_METHODS, *OPEN_METHODS):
                raise unknown("method", name, dict.fromkeys((*CLOSED_METHODS, *OPEN_METHODS)))
            if name in known and (lacking := self._lacking(name, task)):
                raise SettingError(f"method {name} needs {lacking} for task {task.name}")
        unnamed = known if task.suite is Suite.closed else [name for name in known if name not in ONLY_IF_NAMED]
        asked = self._settings.method or unnamed
        return [name for name in asked if name in known and not self._lacking(name, task)]

    def closed(self, name: str, task: Task) -> ClosedMethod:
        """The closed method `name` for `task`."""
        if name == "majority":
            return MajorityLabel()
        if name == "random":
            return RandomLabel(seed=self._settings.seed)
        if name in PARAMETRIC:
            encoder, head = self.language_model()
            calibration = PARAMETRIC[name]
            # calibrated by the corpus, it is scaled where the retrieval methods are
            if calibration is Calibration.corpus:
                chosen = resolved_scoring(task.scoring, self._settings.zero_shot.closed).calibration
                calibration = chosen if chosen is Calibration.corpus_scaled else calibration
            self._word_logs = self._word_logs or remembered(encoder, head)
            return ParametricLabels(
                name,
                encoder,
                head,
                verbalizer=partial(self._list, "fuzzy" in name),
                calibration=calibration,
                prompts=lambda task: corpus_prompts(task, self.index(task)[0]),
                word_logs=self._word_logs,
            )
        if name in (*CAUSAL, "t5"):
            return self._written_labels(name, task)
        index, encoder = self.index(task, parametric=name == "mlm-knn")
        return NonparametricLabels(
            name,
            index,
            encoder,
            load_verbalizer=partial(self._words, parametric=name == "mlm-knn"),
            masks=None if name == "npm" else Masks.single,
            scoring=self._settings.zero_shot.closed,
        )

    def open(self, name: str, task: Task, development: Callable[[], Sequence[Example]]) -> OpenMethod:
        """The open method `name` for `task`; `development` reads the examples that `majority` counts answers in."""
        if name == "majority":
            return FrequentAnswer(development())
        if name in ("mlm", "mlm-n"):
            encoder, head = self.language_model()
            return ParametricPhrases(name, encoder, head) if name == "mlm" else GoldLengthPhrases(encoder, head)
        if name in (*CAUSAL, "t5"):
            index = self.index(task)[0] if name == "causal-bm25" else None
            return PhraseWriter(name, self.writer(name), index, self.fill_settings(task))
        filler = PhraseFiller(*self.index(task), self.fill_settings(task))
        if name == ORACLE_BLOCKS:
            return OracleBlocks(filler)
        return (
            RandomSpanOfBestBlock(filler, seed=self._settings.seed) if name == "random" else PhraseAnswers(filler, name)
        )

    def fill_settings(self, task: Task) -> FillSettings:
        """How a task is filled: as it asks, but for what the command gave; without conditions that examples fill."""
        given, own, default = self._settings.fill, read_settings(FillSettings, task.fill), FillSettings()
        said = {key for key in self._settings.given if key.startswith("fill.")}
        keys = changed_settings(own, default, [item.name for item in fields(FillSettings)])
        unset = [key for key in keys if f"fill.{key}" not in said and _value(given, key) == _value(default, key)]
        values = {key: _value(own, key) for key in unset}
        scoring = {key.removeprefix("scoring."): value for key, value in values.items() if "." in key}
        plain = {key: value for key, value in values.items() if "." not in key}
        filled = replace(given, **plain, scoring=replace(given.scoring, **scoring))
        return replace(filled, where=[each for each in filled.where if not is_templated(each)])

    def index(self, task: Task, *, parametric: bool = False) -> tuple[PhraseIndex, Encoder]:
        """The index over the reference corpus of `task` and the encoder that made it.

        `parametric`: that of the masked language model. Raises SettingError if there is none, ArtifactError if it is
        damaged or was made with another encoder.
        """
        setting = "zero_shot.mlm.index" if parametric else "index"
        place = index_folder(attrgetter(setting)(self._settings), task, setting=setting)
        if place not in self._indexes:
            opened = PhraseIndex.open(place)
            if parametric:
                encoder = opened.check_encoder(self.language_model()[0])
            else:
                given, device, dtype = self._settings.encoder, self._settings.device, self._settings.precision
                encoder = opened.load_encoder(given or None, device=device, dtype=dtype)
            self._indexes[place] = opened, encoder
        return self._indexes[place]

    def language_model(self) -> tuple[Encoder, MaskedHead]:
        """The masked language model, loaded once. Raises EncoderError if it has no trained head."""
        if self._language_model is None:
            name = self._settings.zero_shot.mlm.encoder
            with loading("zero_shot.mlm.encoder"):
                encoder = Encoder.load(name, device=self._settings.device, dtype=self._settings.precision)
                self._language_model = encoder, attach_masked_head(encoder, locate_encoder(name), trained=True)
        return self._language_model

    def writer(self, name: str) -> DecoderWriter | SentinelWriter:
        """The model that the method `name` writes with, loaded once. Raises EncoderError if it cannot serve."""
        kind = "t5" if name == "t5" else "causal"
        if kind not in self._writers:
            given: dict[str, Any] = {"device": self._settings.device, "dtype": self._settings.precision}
            chosen = self._settings.zero_shot
            if kind == "t5":
                with loading("zero_shot.t5.model"):
                    self._writers[kind] = SentinelWriter(Denoiser.load(chosen.t5.model, **given))
            else:
                with loading("zero_shot.causal.model"):
                    self._writers[kind] = DecoderWriter(Decoder.load(chosen.causal.model, **given))
        return self._writers[kind]

    def _written_labels(self, name: str, task: Task) -> PromptedLabels:
        """Labels by a model that writes their words."""
        writer, causal = self.writer(name), self._settings.zero_shot.causal
        facts: dict[str, Any] = {
            "model": {**model_facts(writer.model), "dtype": writer.model.dtype_name},
            "reads": writer.reads,
        }
        word_logs: WordLogs = WriterLogs(writer)
        if name == "causal-pmi" or task.template.lstrip().startswith(MASK_TEXT):
            writer.prompts([empty_prompt(task)], room=1)  # refuses a decoder that cannot begin a text, before the work
        if name == "causal-knn":
            assert isinstance(writer, DecoderWriter), "the other writer has no prefixes"
            index = self.index(task)[0]
            chosen = {"share": causal.knn_share, "temperature": causal.knn_temperature, "k": causal.knn_k}
            word_logs = NeighbourLogs(writer, index, **chosen)  # type: ignore[arg-type]
            facts |= {"neighbours": chosen, "index": index_facts(index)}
        return PromptedLabels(
            name,
            word_logs,
            check_words=writer.check_words,
            model_facts=lambda: facts,
            verbalizer=partial(self._list, False),
            calibration=Calibration.prompt if name == "causal-pmi" else Calibration.none,
            examples_per_call=EXAMPLES_PER_PASS,
        )

    def encoder(self, task: Task) -> Encoder | None:
        """Whose tokens prompts are measured in: the index's encoder, else the masked language model; None without."""
        if self._settings.index:
            return self.index(task)[1]
        return self.language_model()[0] if self._settings.zero_shot.mlm.encoder else None

    def _list(self, fuzzy: bool, task: Task) -> Verbalizer:
        """The words that the masked language model is asked for: those of the prompt, or the list of the task."""
        chosen = self._settings.zero_shot.closed.verbalizer or task.scoring.verbalizer or task.verbalizer
        return self._words(task, chosen if fuzzy else LABEL_WORDS)

    def _words(self, task: Task, choice: str, *, parametric: bool = False) -> Verbalizer:
        """The words of a choice, found once: to expand them takes a pass over vectors of the index."""
        key = task.name, choice, parametric
        if key not in self._verbalizers:
            opened = choice == EXPANDED and (self._settings.zero_shot.mlm if parametric else self._settings).index
            index, encoder = self.index(task, parametric=parametric) if opened else (None, None)
            cut = resolved_scoring(task.scoring, self._settings.zero_shot.closed).single_tokens
            self._verbalizers[key] = load_verbalizer(task, choice, index=index, encoder=encoder, cut_lists=cut)
        return self._verbalizers[key]

    def without_index(self, task: Task) -> list[str]:
        """The methods that would answer `task` if index= were given."""
        known = CLOSED_METHODS if task.suite is Suite.closed else OPEN_METHODS
        return [name for name in known if self._lacking(name, task) == "index="]

    def _needs(self, name: str, task: Task) -> list[str]:
        """The settings that a method cannot do without."""
        needs: list[str] = []
        if name in READS_LANGUAGE_MODEL:
            needs.append("zero_shot.mlm.encoder")
        if name == "mlm-knn":
            needs.append("zero_shot.mlm.index")
        if name in CAUSAL:
            needs.append("zero_shot.causal.model")
        if name == "t5":
            needs.append("zero_shot.t5.model")
        if name in (*RETRIEVAL_OF, ORACLE_BLOCKS, "npm-single", "mlm-fuzzy-corpus", "causal-knn", "causal-bm25") or (
            name == "random" and task.suite is Suite.open
        ):
            needs.append("index")
        return needs

    def _lacking(self, name: str, task: Task) -> str:
        """The setting that a method needs and does not have; empty if it has all."""
        needs = self._needs(name, task)
        lacking = [f"{setting}=" for setting in needs if not attrgetter(setting)(self._settings)]
        if name == "majority" and task.suite is Suite.open and not task.has_development:
            lacking.append("a task with development examples")
        return " and ".join(lacking)


def _value(settings: FillSettings, key: str) -> Any:
    """The value of a dotted key."""
    return attrgetter(key)(settings)


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
