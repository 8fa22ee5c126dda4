"""What is trained, as one module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import nn

from npm.objectives.combine import WeightedSum
from npm.objectives.encoded import Passes, encode_views
from npm.types import Term, TrainingBatch


class Trained(Protocol):
    """A model that training changes and a run folder keeps, such as `npm.models.encoder.Encoder`."""

    @property
    def model(self) -> nn.Module:
        """The network."""

    def save(self, folder: Path) -> None:
        """Write it so that it loads without this project's trainer."""

    def weights_changed(self) -> None:
        """Forget what was computed from the weights."""


class TrainedModel(nn.Module):
    """Network and objective as one module, so that one wrapper (DDP, FSDP) sees every parameter."""

    def __init__(self, trained: Trained, objective: WeightedSum, *, rows_per_pass: int | None = None) -> None:
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
