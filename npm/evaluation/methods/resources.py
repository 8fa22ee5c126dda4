"""Indexes and models that the settings of an evaluation name."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import SettingError
from npm.core.settings import changed_settings, merged, read_settings
from npm.evaluation.conditions import is_templated
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import ResolvedScoring, Task, task_scoring
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.models.masked_lm import MaskedHead


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
