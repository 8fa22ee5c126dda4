"""Settings of `npmlm tune`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from npm.core.errors import SettingError
from npm.core.settings import Fraction, PathText, Settings
from npm.models.settings import Precision


class TuneSettings(Settings):
    """Measure search settings of an index against exact search, with questions made from its own documents."""

    index: PathText = ""
    """Folder of the index. Required."""
    encoder: PathText = ""
    """Folder or name of the encoder; empty: the shipped one if it made the index, else the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one, for the encoder."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass."""
    queries: Annotated[int, Field(ge=1, le=1000)] = 500
    """Questions asked, each a sentence of a document that the quantizer was not trained on, with a phrase masked."""
    seed: NonNegativeInt = 0
    """Seed of the questions."""
    probed_lists: list[PositiveInt] = field(default_factory=list)
    """Numbers of inverted lists looked into for a query; empty: 32 to 512, doubling, as far as there are lists."""
    reranked_rows: list[PositiveInt] = field(default_factory=list)
    """Numbers of rows scored exactly for a query, multiples of `candidates_per_side`; empty: 512 to 8192, doubling."""
    candidates_per_side: list[PositiveInt] = field(default_factory=list)
    """Numbers of best rows grown into phrases for a query; empty: 256 to 2048, doubling."""
    recall_goal: Fraction = 0.97
    """Least share of the 100 best rows that the chosen setting must find."""
    agreement_goal: Fraction = 0.95
    """Least share of questions whose best phrase must be that of exact search."""
    write: bool = False
    """Write the chosen setting into the index, as its next generation."""
    out: PathText = ""
    """Folder for tune.json, which is replaced, outside of the index; empty: nothing is written there."""

    def check(self) -> None:
        """Raises SettingError for a number that occurs twice in a list."""
        for name in ("probed_lists", "reranked_rows", "candidates_per_side"):
            values = list(getattr(self, name))
            if len(set(values)) < len(values):
                raise SettingError(f"{name} must be different numbers, got {values}")
