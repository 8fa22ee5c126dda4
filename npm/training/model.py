"""What is trained: the model that a run starts from, its objective, and both as one module."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from npm.core.errors import SettingError
from npm.core.memory import keep_few_kernels, keep_freed_memory
from npm.core.types import Term, TrainingBatch
from npm.corpus.documents import read_corpus
from npm.corpus.labelled import LabelLevel
from npm.masking.masker import MaskingUnit
from npm.masking.rendering import DENOISING, LABELLED, MASKS_PER_SPAN, PHRASES, SENTENCES, VIEW_NUMBERS, reads_blocks
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.encoder import Encoder, use_plain_attention
from npm.models.fresh import fresh_encoder
from npm.models.loading import HALVES
from npm.models.masked_lm import VisibleOnly, attach_masked_head
from npm.models.names import locate_encoder
from npm.models.settings import PoolerKind, Precision
from npm.objectives.block_teacher import BlockTeacher
from npm.objectives.combine import WeightedSum
from npm.objectives.denoising import Denoising
from npm.objectives.encoded import Passes, encode_views
from npm.objectives.labelled import LabelledContrast, LabelledText
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.reading import JointReading
from npm.objectives.sentence import SentenceContrast
from npm.objectives.settings import BlockTeacherSettings, OtherObjective
from npm.objectives.span_supervision import SpanSupervision
from npm.objectives.token_contrast import TokenContrast
from npm.training.optimizer import freeze
from npm.training.settings import Attention, TrainingSettings

TrainableModel = Encoder | Denoiser


class SavedModel(Protocol):
    """A model that training changes and a run folder keeps, such as `npm.models.encoder.Encoder`."""

    @property
    def model(self) -> nn.Module:
        """The network."""

    def save(self, folder: Path) -> None:
        """Write it so that it loads without this project's trainer."""

    def weights_changed(self) -> None:
        """Forget what was computed from the weights."""


def load_start(settings: TrainingSettings) -> TrainableModel:
    """An encoder, or an encoder-decoder for denoising: float32, with the scale, dropouts and attention of training."""
    keep_few_kernels()  # before a model is loaded: that asks oneDNN already, which then knows how many it keeps
    model: TrainableModel = _load_denoiser(settings) if settings.objective.denoising_weight else _load_encoder(settings)
    freeze(model.model, settings.start.frozen)
    if settings.objective.labelled_weight and settings.labelled.layer is not None:
        layers = int(model.model.config.num_hidden_layers)
        if settings.labelled.layer not in range(layers + 1):
            raise SettingError(
                f"labelled.layer (finetune: layer) must be from 0 to {layers}, got {settings.labelled.layer}"
            )
        weights = settings.objective.weights()
        if others := [name for name, weight in weights.items() if weight and name != "labelled_weight"]:
            raise SettingError(f"labelled.layer trains a head alone: set objective.{others[0]}=0, or leave it out")
        model.model.requires_grad_(False)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model


def _corpus_texts(settings: TrainingSettings) -> Iterator[str]:
    """The texts that a vocabulary is cut by; a corpus that nobody asks for, as beside labelled text, may be absent."""
    for document in read_corpus(settings.corpus):
        yield document.text


def _load_denoiser(settings: TrainingSettings) -> Denoiser:
    start, modes = settings.start, settings.denoising.modes()
    if not start.fresh.layers:
        return Denoiser.load(settings.encoder, mode_tokens=modes, device=settings.device, dropout=start.hidden_dropout)
    return fresh_denoiser(
        locate_encoder(settings.encoder),
        start.fresh,
        texts=_corpus_texts(settings),
        mode_tokens=modes,
        dropout=start.hidden_dropout,
        seed=settings.trainer.seed,
        device=settings.device,
    )


def _load_encoder(settings: TrainingSettings) -> Encoder:
    start, scale = settings.start, settings.objective.nonparametric.similarity_scale
    if start.fresh.layers:
        encoder = fresh_encoder(
            locate_encoder(settings.encoder),
            start.fresh,
            texts=_corpus_texts(settings),
            hidden_dropout=start.hidden_dropout,
            attention_dropout=start.attention_dropout,
            similarity_scale=scale,
            seed=settings.trainer.seed,
            device=settings.device,
        )
    else:
        encoder = Encoder.load(
            settings.encoder,
            device=settings.device,
            dtype=Precision.float32,
            similarity_scale=scale,
            hidden_dropout=start.hidden_dropout,
            attention_dropout=start.attention_dropout,
            half_input_tokens=start.encoder_half_tokens if start.encoder_half else None,
        )
    if encoder.model.config.model_type in HALVES:
        return encoder  # its attention adds a bias for relative positions, which `transformers` computes itself
    if start.attention is Attention.plain or (start.attention is Attention.auto and encoder.device.type == "cpu"):
        use_plain_attention(encoder.model)
    return encoder


def check_input_length(settings: TrainingSettings, encoder: TrainableModel, views: set[str]) -> None:
    """Raise SettingError if a block, its masked copy, or a sentence may be longer than the encoder takes."""
    sentence_tokens = settings.sentences.max_sentence_tokens if SENTENCES in views else 0
    if sentence_tokens > encoder.max_input_tokens:
        raise SettingError(
            f"sentences.max_sentence_tokens must be at most {encoder.max_input_tokens}, which the encoder takes,"
            f" got {sentence_tokens}"
        )
    if LABELLED in views and settings.labelled.max_tokens > encoder.max_input_tokens:
        raise SettingError(
            f"labelled.max_tokens must be at most {encoder.max_input_tokens}, which the encoder takes,"
            f" got {settings.labelled.max_tokens}"
        )
    if not reads_blocks(views):
        return
    block_tokens = settings.blocks.max_block_tokens
    # a span of one token becomes two masks
    pairs = PHRASES in views and settings.masking.unit.has_pairs
    added_tokens = min(settings.masking.max_spans_per_sequence, block_tokens) if pairs else 0
    if block_tokens + added_tokens > encoder.max_input_tokens:
        raise SettingError(
            f"the encoder takes {encoder.max_input_tokens} tokens, but a block has {block_tokens} and masks add up to"
            f" {added_tokens}: reduce blocks.max_block_tokens or masking.max_spans_per_sequence"
        )


def make_objective(settings: TrainingSettings, trained: TrainableModel) -> WeightedSum:
    """The weighted sum of all objectives with a weight above 0; their heads start from torch's default generator.

    What an encoder was trained for before is forgotten. Raises SettingError for an objective that the model cannot
    serve.
    """
    chosen = settings.objective
    # the order in which modules are made is that in which they draw from the generator
    others = {name: _other_objective(name, other, trained) for name, other in chosen.others.items()}
    parts: dict[str, nn.Module] = {}
    if isinstance(trained, Denoiser):
        parts["denoising"] = Denoising(families=settings.denoising.families())
    else:
        # before the pooler of the start, which may be the teacher, is forgotten
        needs_teacher = chosen.block_teacher_weight or chosen.span_supervision_weight
        teacher = _block_teacher(chosen.block_teacher, trained) if needs_teacher else None
        _say_how_it_asks(trained, settings)
        if chosen.nonparametric_weight:
            phrases = NonparametricMasked(
                chosen.nonparametric,
                similarity_scale=trained.similarity_scale,
                dimensions=trained.dimensions,
                spans_recur=settings.masking.unit is not MaskingUnit.span,
            )
            parts["nonparametric"] = phrases
        if chosen.masked_weight:
            parts["masked"] = _masked_tokens(settings, trained)
        if chosen.sentence_weight:
            sentence = SentenceContrast(chosen.sentence, dimensions=trained.dimensions)
            parts["sentence"] = sentence
            _check_poolers(sentence.pooler.kind_after_training, teacher)
        if chosen.labelled_weight:
            labelled = settings.labelled
            of_words = labelled.level is LabelLevel.token
            outputs = labelled.output_count
            parts["labelled"] = LabelledText(trained.dimensions, outputs, of_words=of_words, layer=labelled.layer)
        if chosen.labelled_contrast_weight:
            parts["labelled_contrast"] = LabelledContrast(chosen.labelled_contrast.temperature)
        learned = phrases if chosen.nonparametric_weight else None
        fixed = trained.similarity_scale

        def scale() -> torch.Tensor | float:
            return fixed if learned is None else learned.scale

        if chosen.reading_weight:
            parts["reading"] = JointReading(scale)
        if teacher is not None and chosen.block_teacher_weight:
            parts["block_teacher"] = teacher
        if teacher is not None and chosen.span_supervision_weight:
            parts["span_supervision"] = SpanSupervision(chosen.span_supervision, scale, teacher)
        if chosen.token_contrast_weight:
            parts["token_contrast"] = TokenContrast(chosen.token_contrast, teacher=trained)
    known_weights = chosen.weights()
    weights = {name: known_weights[f"{name}_weight"] for name in parts}
    return WeightedSum(parts | others, weights | {name: other.weight for name, other in chosen.others.items()})


def _say_how_it_asks(encoder: Encoder, settings: TrainingSettings) -> None:
    """Write into the encoder's config what it is trained for by `settings`, and nothing of what it was before."""
    chosen = settings.objective
    encoder.trained_dimensions = chosen.nonparametric.dimensions if chosen.nonparametric_weight else ()
    encoder.query_masks = 1 if settings.masking.unit is MaskingUnit.token else MASKS_PER_SPAN
    encoder.reads_jointly = chosen.reading_weight + chosen.span_supervision_weight > 0
    encoder.title_tokens = title_tokens(settings, encoder)
    encoder.sentence_pooler = None


def title_tokens(settings: TrainingSettings, trained: TrainableModel) -> int:
    """Tokens of titles before every block: those of the settings, else those that the start was trained with."""
    if settings.blocks.title_tokens is None:
        return trained.title_tokens if isinstance(trained, Encoder) else 0
    return settings.blocks.title_tokens


def _block_teacher(settings: BlockTeacherSettings, encoder: Encoder) -> BlockTeacher:
    name = settings.encoder
    teacher = Encoder.load(name, device=str(encoder.device), dtype=Precision.float32) if name else encoder
    if teacher is not encoder and encoder.device.type == "cpu":
        use_plain_attention(teacher.model)
    return BlockTeacher(encoder, teacher)


def _check_poolers(kind: PoolerKind, teacher: BlockTeacher | None) -> None:
    """Raise SettingError if sentences would have other vectors than blocks, for which one pooler is saved."""
    if teacher is not None and teacher.pooler is not kind:
        raise SettingError(
            f"objective.sentence.pooler must be {teacher.pooler.name}, that of objective.block_teacher, got {kind.name}"
        )


def _masked_tokens(settings: TrainingSettings, encoder: Encoder) -> MaskedTokens:
    place = None if settings.start.fresh.layers else locate_encoder(settings.encoder)
    chosen = settings.objective.masked
    head = attach_masked_head(encoder, place, trained=False, untied=chosen.untied)
    if not chosen.visible_only:
        return MaskedTokens(head)
    encoder.language_model = None  # the head reads the decoder's vectors, so that without it the head is not saved
    return MaskedTokens(head, visible=VisibleOnly(encoder, decoder_layers=chosen.decoder_layers))


def _other_objective(name: str, other: OtherObjective, trained: TrainableModel) -> nn.Module:
    """An objective from a file of its own, made by its class."""
    module, _, attribute = other.target.rpartition(".")
    try:
        chosen = getattr(importlib.import_module(module), attribute)
        # looked at before it is called: any function that can be imported would be called with these settings
        if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
            raise TypeError(f"{other.target} is not a class of torch modules")
        made: nn.Module = chosen(trained, **other.settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise SettingError(f"objective.others.{name}: cannot make {other.target} from its settings: {error}") from error
    view = getattr(made, "view", None)
    if view not in VIEW_NUMBERS or not callable(getattr(made, "counts", None)):
        raise SettingError(
            f"objective.others.{name} must be a torch module with counts(view) and a view out of"
            f" {', '.join(VIEW_NUMBERS)}, got {type(made).__name__} with view {view!r}; see docs/own-objective.md"
        )
    if (view == DENOISING) != isinstance(trained, Denoiser):
        raise SettingError(
            f"objective.others.{name} with view {view} does not fit {trained.name}: only encoder-decoders"
            " (objective.denoising_weight above 0) have the view denoising, and no other"
        )
    return made


class TrainedModel(nn.Module):
    """Network and objective as one module, so that one wrapper (DDP, FSDP) sees every parameter."""

    def __init__(self, trained: SavedModel, objective: WeightedSum, *, rows_per_pass: int | None = None) -> None:
        super().__init__()
        self.encoder_model = trained.model
        self.objective = objective
        self.rows_per_pass = rows_per_pass

    def forward(self, batch: TrainingBatch) -> dict[str, Term]:
        """The terms of one micro-batch of this rank."""
        passes = Passes(self.encoder_model, rows_per_pass=self.rows_per_pass)
        encoded = encode_views(batch.views, passes, with_clean_copies=self.objective.views_with_clean_copies)
        terms: dict[str, Term] = self.objective(encoded)
        # FSDP hangs its hooks on what is returned, and a sum may be a view of something else
        return {name: replace(term, sum=term.sum.clone()) for name, term in terms.items()}
