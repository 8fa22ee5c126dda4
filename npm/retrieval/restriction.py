"""The blocks that a text is answered from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens of the corpus in the place of the mask; one side is open where the question has no words."""

    block: int
    start: int | None  # position of the first token
    stop: int | None  # position after the last token
    share: float


@dataclass(frozen=True, slots=True)
class Restriction:
    """The blocks that one text is answered from, and what each one adds to the similarities found in it."""

    blocks: np.ndarray  # i64 [blocks], ascending
    bonuses: np.ndarray  # f64 [blocks]
    queries: np.ndarray | None = None  # f32 [blocks, 2, d], start and end query for each block; None: the same for all
    joint: tuple[np.ndarray, ...] | None = None  # f64 [2, T] for each block, of the joint pass; None: it does not count
    gaps: tuple[Gap, ...] = ()  # places in the blocks where the words around the mask occur
