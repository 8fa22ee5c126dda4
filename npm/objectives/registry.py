"""Objectives by name: the view of each, its construction, and the others that it may be summed with.

A new objective is a file with its loss, its weight and settings in `npm/objectives/settings.py`, and a row here, which
says what it needs. Only files of objectives with a weight are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from npm.core.errors import SettingError, exclusive
from npm.corpus.labeled import LabelLevel
from npm.masking.masker import MaskingUnit
from npm.masking.rendering import DENOISING, LABELED, PASSAGES, PHRASES, QUESTIONS, SENTENCES, TOKENS
from npm.objectives.settings import ObjectiveSettings

Make = Callable[[Any, Any, Any], Any]
"""Makes a loss from the settings of a training run, its model, and the teacher of block vectors, if there is one."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Facts about an objective before its file is imported."""

    view: str
    make: Make
    beside: Collection[str] | None = None
    """Objectives that it can be summed with; None: all."""
    has_teacher: bool = False
    """It needs the frozen teacher of block vectors."""
    reads_jointly: bool = False
    """It teaches the encoder to read a question and a block together."""
    check: Callable[[Any], None] = lambda _: None
    """Raises SettingError for settings of a run that it cannot be trained with."""


def _losses(name: str) -> Any:
    return import_module(f"npm.objectives.{name}")


def _nonparametric(settings: Any, encoder: Any, _: Any) -> Any:
    unit = settings.masking.unit
    return _losses("nonparametric").NonparametricMasked(
        settings.objective.nonparametric,
        similarity_scale=encoder.similarity_scale,
        dimensions=encoder.dimensions,
        end_queries=unit.has_pairs,  # single tokens have one mask
        spans_recur=unit is not MaskingUnit.span,
    )


def _masked(settings: Any, encoder: Any, _: Any) -> Any:
    place = None if settings.start.fresh.layers else settings.encoder
    return _losses("masked").masked_tokens(settings.objective.masked, encoder, place)


def _sentence(settings: Any, encoder: Any, _: Any) -> Any:
    return _losses("sentence").SentenceContrast(settings.objective.sentence, dimensions=encoder.dimensions)


def _labeled(settings: Any, encoder: Any, _: Any) -> Any:
    chosen = settings.labeled
    return _losses("labeled").LabeledText(
        encoder.dimensions,
        len(chosen.labels) or 1,
        of_words=chosen.level is LabelLevel.token,
        mean_pooled=chosen.mean_pooled,
        layer=chosen.layer,
    )


def _labeled_contrast(settings: Any, _: Any, __: Any) -> Any:
    return _losses("labeled").LabeledContrast(mean_pooled=settings.labeled.mean_pooled)


def _check_labels(settings: Any) -> None:
    if not (settings.labeled.labels and settings.labeled.level is LabelLevel.sequence):
        raise SettingError(
            "objective.labeled_contrast_weight requires texts with labels: set labeled.labels and "
            "labeled.level=sequence"
        )


def _check_copies(settings: Any) -> None:
    if not (settings.masking.unit is MaskingUnit.phrase and settings.masking.context_fraction):
        raise SettingError("objective.reading_weight requires masking.context_fraction above 0 and masking.unit=phrase")


def _span_supervision(settings: Any, encoder: Any, teacher: Any) -> Any:
    chosen = settings.objective.span_supervision
    reader = _losses("span_supervision").load_reader_teacher(chosen.reader, encoder)
    return _losses("span_supervision").SpanSupervision(chosen, encoder.similarity_scale, teacher, reader)


OBJECTIVES = {
    "nonparametric": Objective(PHRASES, _nonparametric),
    "masked": Objective(TOKENS, _masked),
    "sentence": Objective(SENTENCES, _sentence),
    "labeled": Objective(LABELED, _labeled),
    "labeled_contrast": Objective(LABELED, _labeled_contrast, check=_check_labels),
    "reading": Objective(
        PHRASES,
        lambda _, encoder, __: _losses("reading").JointReading(encoder.similarity_scale),
        reads_jointly=True,
        check=_check_copies,
    ),
    "block_teacher": Objective(PHRASES, lambda _, __, teacher: teacher, has_teacher=True),
    "span_supervision": Objective(
        QUESTIONS,
        _span_supervision,
        beside=("nonparametric", "reading", "block_teacher"),
        has_teacher=True,
        reads_jointly=True,
    ),
    "reader": Objective(
        PASSAGES,
        lambda _, encoder, __: _losses("reading").ReaderLoss(encoder.similarity_scale),
        beside=(),
        reads_jointly=True,
    ),
    "token_contrast": Objective(TOKENS, lambda _, encoder, __: _losses("token_contrast").TokenContrast(encoder.model)),
    "denoising": Objective(
        DENOISING, lambda settings, _, __: _losses("denoising").Denoising(settings.denoising.families()), beside=()
    ),
}
"""In the order in which they are made, since they draw from one generator."""


def chosen_objectives(settings: ObjectiveSettings) -> dict[str, Objective]:
    """The objectives with a weight above 0. Raises SettingError for two that cannot be summed."""
    weights = settings.weights()
    chosen = {name: each for name, each in OBJECTIVES.items() if weights[f"{name}_weight"]}
    for name, each in chosen.items():
        if each.beside is not None and (others := sorted(chosen.keys() - {*each.beside, name})):
            shown = " and ".join(f"objective.{other}_weight" for other in others)
            raise exclusive(f"objective.{name}_weight", shown)
    return chosen
