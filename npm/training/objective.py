"""The loss that the settings of a run describe."""

from __future__ import annotations

import importlib

from torch import nn

from npm.errors import SettingError
from npm.masking.rendering import DENOISING, VIEW_NUMBERS
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.models.loading import locate_encoder
from npm.models.masked_lm import VisibleOnly, attach_masked_head
from npm.models.sentences import forget_pooler
from npm.objectives.combine import OtherObjective, WeightedSum
from npm.objectives.denoising import Denoising
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.sentence import SentenceContrast
from npm.objectives.token_contrast import TokenContrast
from npm.training.settings import TrainingSettings
from npm.training.start import Trained


def make_objective(settings: TrainingSettings, trained: Trained) -> WeightedSum:
    """The weighted sum of all objectives with a weight above 0; their heads start from torch's default generator.

    Raises SettingError for an objective that the model cannot serve.
    """
    chosen = settings.objective
    others = {name: (_other_objective(name, other, trained), other.weight) for name, other in chosen.others.items()}
    if isinstance(trained, Denoiser):
        denoising = Denoising(families=settings.denoising.families())
        return _weighted({"denoising": (denoising, chosen.denoising_weight), **others})
    return _weighted({**_known_objectives(settings, trained), **others})


def _known_objectives(settings: TrainingSettings, trained: Encoder) -> dict[str, tuple[nn.Module, float]]:
    """The objectives of an encoder with their weights; what the encoder was trained for before is forgotten."""
    chosen = settings.objective
    parts: dict[str, tuple[nn.Module, float]] = {}
    trained.trained_dimensions = chosen.nonparametric.dimensions if chosen.nonparametric_weight else ()
    forget_pooler(trained)
    if chosen.nonparametric_weight:
        phrase_loss = NonparametricMasked(
            chosen.nonparametric, similarity_scale=trained.similarity_scale, dimensions=trained.dimensions
        )
        parts["nonparametric"] = (phrase_loss, chosen.nonparametric_weight)
    if chosen.masked_weight:
        parts["masked"] = (_masked_tokens(settings, trained), chosen.masked_weight)
    if chosen.sentence_weight:
        parts["sentence"] = (SentenceContrast(chosen.sentence, dimensions=trained.dimensions), chosen.sentence_weight)
    if chosen.token_contrast_weight:
        teacher_loss = TokenContrast(chosen.token_contrast, teacher=trained)
        parts["token_contrast"] = (teacher_loss, chosen.token_contrast_weight)
    return parts


def _weighted(parts: dict[str, tuple[nn.Module, float]]) -> WeightedSum:
    modules = {name: module for name, (module, _) in parts.items()}
    return WeightedSum(modules, {name: weight for name, (_, weight) in parts.items()})


def _masked_tokens(settings: TrainingSettings, encoder: Encoder) -> MaskedTokens:
    place = None if settings.start.fresh.layers else locate_encoder(settings.encoder)
    head = attach_masked_head(encoder, place, trained=False)
    chosen = settings.objective.masked
    if not chosen.visible_only:
        return MaskedTokens(head)
    encoder.language_model = None  # the head reads the decoder's vectors, so that without it the head is not saved
    return MaskedTokens(head, visible=VisibleOnly(encoder, decoder_layers=chosen.decoder_layers))


def _other_objective(name: str, other: OtherObjective, trained: Trained) -> nn.Module:
    """An objective that stands in a file of its own, made by its class."""
    module, _, attribute = other.target.rpartition(".")
    where = f"objective.others.{name}"
    try:
        made = getattr(importlib.import_module(module), attribute)(trained, **other.settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise SettingError(
            f"the objective {name} cannot be made",
            expected="target=module.Class, called with the encoder and the settings",
            got=str(error),
            where=where,
            fix="check the name of the class and of its settings; a module outside the package must be on PYTHONPATH",
        ) from error
    view = getattr(made, "view", None)
    if not isinstance(made, nn.Module) or view not in VIEW_NUMBERS or not callable(getattr(made, "counts", None)):
        raise SettingError(
            f"{other.target} is no objective",
            expected=f"a torch module with counts(view) and a view out of {', '.join(VIEW_NUMBERS)}",
            got=f"{type(made).__name__} with view {view!r}",
            where=where,
            fix="docs/own-objective.md shows what an objective has",
        )
    if (view == DENOISING) != isinstance(trained, Denoiser):
        raise SettingError(
            f"the model has nothing that the objective {name} reads",
            expected="denoising_weight above 0, which loads an encoder-decoder, and only then the view denoising",
            got=f"view {view} of {type(trained).__name__.lower()} {trained.name}",
            where=where,
            fix="set objective.denoising_weight, or choose an objective for encoders",
        )
    return made
