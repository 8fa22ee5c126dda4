"""Settings of `npmlm finetune`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from npm.core.errors import SettingError
from npm.core.settings import PathText
from npm.corpus.labeled import LEAST_MAX_TOKENS
from npm.models.settings import EncoderChoice
from npm.training.settings import StartSettings, TrainerSettings


class FinetuneSettings(EncoderChoice):
    """Fine-tune an encoder on labeled tasks at several rates and seeds; the same command resumes."""

    task: list[str] = field(default_factory=list)
    """Tasks by name: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli; of words: conll, wikiann, upos. Required."""
    data_dir: PathText = ""
    """Folder with TASK-train.jsonl and TASK-dev.jsonl, or with Parquet (cola/train-*.parquet); or hub:nyu-mll/glue.
    Required."""
    out: PathText = ""
    """Folder for the runs, OUT/TASK/lr-RATE/seed-N, and for metrics.json. Required."""
    seeds: list[NonNegativeInt] = field(default_factory=lambda: [0, 1, 2])
    """A run each: of the new head, the order of the examples and dropout."""
    learning_rates: list[Annotated[float, Field(gt=0, le=1)]] = field(default_factory=lambda: [2e-5, 5e-5])
    """Peak learning rates, a run of each seed with each; one is chosen by the development data, which is said."""
    epochs: PositiveInt | None = None
    """Passes over the training data; null: 10 for cola, mrpc, rte, stsb and wnli, 3 for the others."""
    max_tokens: Annotated[int, Field(ge=LEAST_MAX_TOKENS)] = 128
    """Tokens of an input, special tokens included; of a pair the longer text is cut first."""
    examples_per_device_batch: PositiveInt = 32
    """Examples that one device works on at once."""
    limit: PositiveInt | None = None
    """Examples of each file used at most, from its beginning; null uses all."""
    layer: NonNegativeInt | None = None
    """Probing: the head reads the states behind this layer (0: the embeddings) of an encoder that is not trained."""
    mean_pooled: bool = False
    """The head of a text reads the mean of its tokens instead of the first one, as it must for an encoder whose tokens
    read neighbors only (`start.fresh.window_tokens`)."""
    warmup_fraction: Annotated[float, Field(ge=0, le=0.999)] = 0.1
    """Share of a run in which the learning rate rises from zero; it then falls to zero."""
    contrast_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share λ of supervised contrast in the loss, (1 − λ) · cross entropy + λ · contrast; for texts with labels."""
    keep_encoders: bool = False
    """Keep the encoder of every finished run in its folder; false keeps the measurements alone."""
    trainer: TrainerSettings = field(
        default_factory=lambda: TrainerSettings(max_gradient_norm=1.0, adam_beta2=0.999, adam_epsilon=1e-8)
    )
    """The loop: batches, optimizer, and how often to log and save."""
    start: StartSettings = field(default_factory=lambda: StartSettings(hidden_dropout=0.1, attention_dropout=0.1))
    """Setup of the encoder for training."""

    def check(self) -> None:
        """Raise SettingError for lists that are empty or repeat, and for another start than `encoder`."""
        for name in ("seeds", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise SettingError(f"{name} must be one or more, each once, got {values}")
        if self.start.from_run:
            raise SettingError("start.from_run is not for fine-tuning: set encoder= to the encoder of that run")
