"""How fast steps are, and how much of them passes in waiting for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepMeter:
    """Sums up the steps since it was last read; evaluation and saving are no part of them."""

    def __init__(self) -> None:
        self.tokens = 0
        self._step_seconds, self._waited_seconds = 0.0, 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a whole step."""
        start = time.perf_counter()
        yield
        self._step_seconds += time.perf_counter() - start

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the part of a step in which there is nothing to compute with yet."""
        start = time.perf_counter()
        yield
        self._waited_seconds += time.perf_counter() - start

    def rates(self) -> dict[str, float]:
        """Tokens of all ranks per second and the share of time spent waiting; begins anew."""
        seconds = max(1e-9, self._step_seconds)
        rates = {
            "tokens_per_second": round(self.tokens / seconds, 1),
            "data_fraction": round(self._waited_seconds / seconds, 4),
        }
        self.tokens, self._step_seconds, self._waited_seconds = 0, 0.0, 0.0
        return rates
