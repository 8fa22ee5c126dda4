"""The model that training starts from, set up for training."""

from __future__ import annotations

from npm.corpus.documents import read_corpus
from npm.errors import SettingError
from npm.masking.masker import MaskingUnit
from npm.masking.rendering import PHRASES, SENTENCES, reads_blocks
from npm.memory import keep_freed_memory
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.encoder import ComputeDtype, Encoder, use_plain_attention
from npm.models.fresh import fresh_encoder
from npm.models.loading import locate_encoder
from npm.training.parameter_groups import freeze
from npm.training.settings import Attention, TrainingSettings

Trained = Encoder | Denoiser


def load_start(settings: TrainingSettings) -> Trained:
    """An encoder, or an encoder-decoder for denoising: float32, with the scale, dropouts and attention of training."""
    model: Trained = _load_denoiser(settings) if settings.objective.denoising_weight else _load_encoder(settings)
    freeze(model.model, settings.start.frozen)
    if model.device.type == "cpu":
        keep_freed_memory()
    return model


def _load_denoiser(settings: TrainingSettings) -> Denoiser:
    start, modes = settings.start, settings.denoising.modes()
    if start.fresh.layers:
        return fresh_denoiser(
            locate_encoder(settings.encoder),
            start.fresh,
            texts=(document.text for document in read_corpus(settings.corpus)),
            mode_tokens=modes,
            dropout=start.hidden_dropout,
            seed=settings.trainer.seed,
            device=settings.trainer.device,
        )
    return Denoiser.load(
        settings.encoder, mode_tokens=modes, device=settings.trainer.device, dropout=start.hidden_dropout
    )


def _load_encoder(settings: TrainingSettings) -> Encoder:
    start, scale = settings.start, settings.objective.nonparametric.similarity_scale
    if start.fresh.layers:
        encoder = fresh_encoder(
            locate_encoder(settings.encoder),
            start.fresh,
            texts=(document.text for document in read_corpus(settings.corpus)),
            hidden_dropout=start.hidden_dropout,
            attention_dropout=start.attention_dropout,
            similarity_scale=scale,
            seed=settings.trainer.seed,
            device=settings.trainer.device,
        )
    else:
        encoder = Encoder.load(
            settings.encoder,
            device=settings.trainer.device,
            dtype=ComputeDtype.float32,
            similarity_scale=scale,
            hidden_dropout=start.hidden_dropout,
            attention_dropout=start.attention_dropout,
        )
    if start.attention is Attention.plain or (start.attention is Attention.auto and encoder.device.type == "cpu"):
        use_plain_attention(encoder.model)
    return encoder


def check_input_length(settings: TrainingSettings, encoder: Trained, views: set[str]) -> None:
    """Raise SettingError if a block, its masked copy, or a sentence may be longer than the encoder takes."""
    sentence_tokens = settings.sentences.max_sentence_tokens if SENTENCES in views else 0
    if sentence_tokens > encoder.max_input_tokens:
        raise SettingError(
            "sentences may be longer than the encoder takes",
            expected=f"at most {encoder.max_input_tokens} tokens, special tokens included",
            got=str(sentence_tokens),
            where="sentences.max_sentence_tokens",
            fix="make it smaller",
        )
    if not reads_blocks(views):
        return
    block_tokens = settings.blocks.max_block_tokens
    # a span of one token becomes two masks
    pairs = PHRASES in views and settings.masking.unit is MaskingUnit.phrase
    added_tokens = min(settings.masking.max_spans_per_sequence, block_tokens) if pairs else 0
    if block_tokens + added_tokens > encoder.max_input_tokens:
        raise SettingError(
            "masked blocks may be longer than the encoder takes",
            expected=f"at most {encoder.max_input_tokens} tokens, special tokens and masks included",
            got=f"{block_tokens} tokens of a block and up to {added_tokens} that its masks add",
            where="blocks.max_block_tokens, masking.max_spans_per_sequence",
            fix="make one of the two smaller",
        )
