"""The trained module: the model that a run starts from, together with its objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from npm.core.errors import SettingError
from npm.core.types import MASKS_PER_SPAN
from npm.corpus.documents import read_corpus
from npm.corpus.labeled import LabelLevel
from npm.masking.batches import TrainingBatch
from npm.masking.masker import MaskingUnit
from npm.masking.rendering import DENOISING, LABELED, PHRASES, SENTENCES, reads_blocks
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.encoder import Encoder, use_plain_attention
from npm.models.fresh import fresh_encoder
from npm.models.loading import HALVES
from npm.models.memory import keep_few_kernels, keep_freed_memory
from npm.models.names import locate_encoder
from npm.models.sentences import SentenceEncoder
from npm.models.settings import PoolerKind, Precision
from npm.objectives.block_teacher import BlockTeacher
from npm.objectives.combine import Term, WeightedSum
from npm.objectives.encoded import Passes, encode_views
from npm.objectives.registry import OBJECTIVES, Objective, chosen_objectives
from npm.objectives.settings import BlockTeacherSettings
from npm.training.optimizer import freeze
from npm.training.settings import TrainingSettings

TrainableModel = Encoder | Denoiser
SavedModel = TrainableModel | SentenceEncoder
"""Model that training changes and a run folder keeps."""
MakeObjectives = Callable[[TrainableModel], Mapping[str, tuple[nn.Module, float]]]
"""Makes objectives of the caller's own, each with its weight, by name (docs/extend.md)."""


def load_start(settings: TrainingSettings) -> TrainableModel:
    """An encoder, or an encoder-decoder for denoising: float32, with the scale, dropouts and attention of training."""
    keep_few_kernels()  # before a model is loaded: that asks oneDNN already, which then knows how many it keeps
    model = _loaded(settings)
    freeze(model.model, settings.start.frozen)
    chosen, labeled = settings.objective, settings.labeled
    if chosen.labeled_weight and labeled.layer is not None:
        layers = int(model.model.config.num_hidden_layers)
        if labeled.layer not in range(layers + 1):
            raise SettingError(f"labeled.layer (finetune: layer) must be from 0 to {layers}, got {labeled.layer}")
        if others := [name for name, weight in chosen.weights().items() if weight and name != "labeled_weight"]:
            raise SettingError(f"labeled.layer trains a head alone: set objective.{others[0]}=0, or leave it out")
        model.model.requires_grad_(False)
    reads_first = not labeled.mean_pooled and labeled.level is not LabelLevel.token
    if reads_first and chosen.labeled_weight + chosen.labeled_contrast_weight > 0:
        fix = "labeled.mean_pooled=true (finetune: mean_pooled=true)"
        _check_first_token(model, labeled.layer, labeled.max_tokens, fix)
    if chosen.sentence_weight > 0 and chosen.sentence.pooler is not PoolerKind.avg:
        fix = "objective.sentence.pooler=avg and objective.sentence.mlp_only_train=false"
        _check_first_token(model, None, settings.sentences.max_sentence_tokens, fix)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model


def _check_first_token(trained: TrainableModel, layer: int | None, max_tokens: int, fix: str) -> None:
    """Raise SettingError if the first token after `layer` layers, None: all, sees fewer than `max_tokens` tokens."""
    config = trained.model.config
    layers = config.num_hidden_layers if layer is None else layer
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "local_attention", None)
    if kinds and window and set(kinds[: max(1, layers)]) == {"sliding_attention"}:
        tokens = layers * (window // 2) + 1
        if tokens < max_tokens:
            raise SettingError(
                f"the first token of {trained.name} depends on {tokens} of {max_tokens} tokens only, as every layer "
                f"that it passes has a window: set {fix}"
            )


def _corpus_texts(settings: TrainingSettings) -> Iterator[str]:
    # of a vocabulary that is cut; an unused corpus, as with labeled text, may be missing
    for document in read_corpus(settings.corpus):
        yield document.text


def _loaded(settings: TrainingSettings) -> TrainableModel:
    start, name = settings.start, settings.encoder
    given: dict[str, Any] = {"device": settings.device}
    load: Any = partial(Denoiser.load, dtype=Precision.float32)
    fresh: Callable[..., TrainableModel] = fresh_denoiser
    if settings.objective.denoising_weight:
        given |= {"mode_tokens": settings.denoising.modes(), "dropout": start.hidden_dropout}
    else:
        given |= {"hidden_dropout": start.hidden_dropout, "attention_dropout": start.attention_dropout}
        given["similarity_scale"] = settings.objective.nonparametric.similarity_scale
        half_tokens = start.encoder_half_tokens if start.encoder_half else None
        load = partial(Encoder.load, dtype=Precision.float32, half_input_tokens=half_tokens)
        fresh = fresh_encoder
    model: TrainableModel
    if start.fresh.layers:
        texts, seed = _corpus_texts(settings), settings.trainer.seed
        model = fresh(locate_encoder(name), start.fresh, texts=texts, seed=seed, **given)
    else:
        model = load(name, **given)
    # only `transformers` computes the bias of relative positions; on a CPU fused attention is slower
    if isinstance(model, Encoder) and model.device.type == "cpu" and model.model.config.model_type not in HALVES:
        use_plain_attention(model.model)
    return model


def check_input_length(settings: TrainingSettings, encoder: TrainableModel, views: set[str]) -> None:
    """Raise SettingError if a block, its masked copy, or a sentence may be longer than the encoder takes."""
    most = encoder.max_input_tokens
    of_rows = {
        "sentences.max_sentence_tokens": settings.sentences.max_sentence_tokens if SENTENCES in views else 0,
        "labeled.max_tokens": settings.labeled.max_tokens if LABELED in views else 0,
    }
    for name, tokens in of_rows.items():
        if tokens > most:
            raise SettingError(f"{name} must be at most {most}, which the encoder takes, got {tokens}")
    block_tokens = settings.blocks.max_block_tokens if reads_blocks(views) else 0
    # a span of one token becomes two masks
    has_pairs = PHRASES in views and settings.masking.unit.has_pairs
    added_tokens = min(settings.masking.max_spans_per_sequence, block_tokens) if has_pairs else 0
    if block_tokens + added_tokens > most:
        raise SettingError(
            f"the encoder takes {most} tokens, but a block has {block_tokens} and masks add up to {added_tokens}:"
            " reduce blocks.max_block_tokens or masking.max_spans_per_sequence"
        )


def make_objective(
    settings: TrainingSettings, trained: TrainableModel, make_others: MakeObjectives = lambda _: {}
) -> WeightedSum:
    """The weighted sum of all objectives with a weight above 0; their heads start from torch's default generator.

    What an encoder was trained for before is forgotten. Raises SettingError for an objective that the model cannot
    serve, or if there is none.
    """
    # the order in which modules are made is that in which they draw from the generator
    others, chosen = make_others(trained), chosen_objectives(settings.objective)
    if not (chosen or others):
        raise SettingError(f"one of {', '.join(f'objective.{name}_weight' for name in OBJECTIVES)} must be above 0")
    # before the pooler of the start, which may be the teacher, is forgotten
    has_teacher = any(each.has_teacher for each in chosen.values())
    teacher = _block_teacher(settings.objective.block_teacher, trained) if has_teacher else None
    _record_purpose(trained, settings, chosen)
    parts: dict[str, nn.Module] = {name: each.make(settings, trained, teacher) for name, each in chosen.items()}
    sentence: Any = parts.get("sentence")
    kind: Any = None if sentence is None else sentence.pooler.kind_after_training
    if teacher is not None and kind not in (None, teacher.pooler):  # one pooler is saved
        raise SettingError(
            f"objective.sentence.pooler must be {teacher.pooler.name}, that of objective.block_teacher, got {kind.name}"
        )
    weights = {name: getattr(settings.objective, f"{name}_weight") for name in chosen}
    for name, (other, weight) in others.items():
        parts[name], weights[name] = other, weight
    return WeightedSum(parts, weights)


def _record_purpose(trained: Any, settings: TrainingSettings, chosen: Mapping[str, Objective]) -> None:
    """Record in the config of an encoder what it is now trained for, dropping what it was trained for before."""
    if DENOISING in {each.view for each in chosen.values()}:
        return  # an encoder-decoder records nothing
    trained.trained_dimensions = settings.objective.nonparametric.dimensions if "nonparametric" in chosen else ()
    trained.query_masks = 1 if settings.masking.unit is MaskingUnit.token else MASKS_PER_SPAN
    trained.reads_jointly = any(each.reads_jointly for each in chosen.values())
    trained.title_tokens = title_tokens(settings, trained)
    trained.sentence_pooler = None


def title_tokens(settings: TrainingSettings, trained: TrainableModel) -> int:
    """Tokens of titles before every block: those of the settings, else those that the start was trained with."""
    given = settings.blocks.title_tokens
    return trained.title_tokens if given is None else given


def _block_teacher(settings: BlockTeacherSettings, encoder: Any) -> BlockTeacher:
    name = settings.encoder
    teacher = Encoder.load(name, device=str(encoder.device), dtype=Precision.float32) if name else encoder
    if teacher is not encoder and encoder.device.type == "cpu":
        use_plain_attention(teacher.model)
    return BlockTeacher(encoder, teacher, token_weight=settings.token_weight)


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
        # FSDP hangs its hooks on the returned tensors, and a sum may be a view of another tensor
        return {name: replace(term, sum=term.sum.clone()) for name, term in terms.items()}
