"""Settings of encoders, and what is known of them before one is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from npm.core.errors import SettingError, check_range
from npm.core.settings import Bounds, CheckedSettings

MINILM = "minilm"
"""Name of the encoder in the extra `pretrained`: sentence-transformers/all-MiniLM-L6-v2, 6×384, no MLM head."""


class Precision(Enum):
    """Number format of a forward pass; in training, weights and optimiser state stay float32 all the same."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"  # for GPUs without bfloat16; training scales its gradients


class PoolerKind(Enum):
    """How token vectors become the vector of a sentence."""

    cls = "cls"  # the first token of the last layer, through a linear map and tanh
    cls_before_pooler = "cls_before_pooler"  # the first token of the last layer
    avg = "avg"  # the mean over the tokens of the last layer
    avg_top2 = "avg_top2"  # the mean over the tokens of the last two layers
    avg_first_last = "avg_first_last"  # the mean over the tokens of the first and the last layer


LAST_LAYER_POOLERS = (PoolerKind.avg, PoolerKind.cls_before_pooler)
"""Poolers that need no more than the token vectors."""


@dataclass(kw_only=True, slots=True)
class FreshSettings(CheckedSettings):
    """A start from random weights; only the tokenizer comes from `encoder=`."""

    layers: Annotated[int, Bounds(0)] = 0
    """Layers of a new encoder with random weights; 0 starts from the weights of `encoder=`."""
    dimensions: Annotated[int, Bounds(1)] = 128
    """Length of its token vectors."""
    attention_heads: Annotated[int, Bounds(1)] = 2
    """Attention heads of a layer; dimensions must be a multiple of them."""
    max_input_tokens: Annotated[int, Bounds(4)] = 512
    """Longest input in tokens, special tokens included."""
    window_tokens: Annotated[int, Bounds(0)] = 0
    """Neighbours that a token reads in each layer, half of them on either side; 0 reads the whole input.

    A small encoder learns from its neighbours within 100 steps; to find them among all tokens takes it thousands.
    """
    vocabulary_size: Annotated[int, Bounds(0)] = 0
    """Cut a WordPiece vocabulary to this many of its pieces, those most frequent in the text; 0 keeps all of it."""
    vocabulary_documents: Annotated[int, Bounds(1)] = 10_000
    """Documents, from the beginning of the corpus, whose pieces are counted for that."""

    def check(self) -> None:
        """Raise SettingError for sizes that do not fit together."""
        check_range(self.window_tokens % 2 == 0, "window_tokens", expected="an even number", got=self.window_tokens)
        check_range(
            self.window_tokens == 0 or self.dimensions // self.attention_heads % 2 == 0,
            "dimensions",
            expected="an even number for each attention head, because positions turn pairs of numbers",
            got=f"dimensions={self.dimensions}, attention_heads={self.attention_heads}",
            fix="change one of the two, or leave window_tokens out",
        )
        check_range(
            self.dimensions % self.attention_heads == 0,
            "dimensions",
            expected=f"a multiple of attention_heads={self.attention_heads}",
            got=self.dimensions,
            fix="change one of the two",
        )


def check_leading_dimensions(dimensions: Sequence[int], *, where: str, most: int | None = None) -> None:
    """Raise SettingError unless all of `dimensions` differ and are positive and at most `most`, if that is known."""
    wrong = [each for each in dimensions if each < 1 or (most is not None and each > most)]
    if wrong or len(set(dimensions)) < len(dimensions):
        raise SettingError(
            f"the encoder's vectors cannot be cut to {where}={', '.join(map(str, dimensions))}",
            expected=f"numbers from 1 to {most}, each once" if most is not None else "numbers from 1, each once",
            got=", ".join(map(str, dimensions)),
            where=where,
            fix="choose some of 64, 128 and 256, or leave it out for whole vectors",
        )
