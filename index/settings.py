"""Settings of search: the tier, its parameters, and those that the bytes on disk depend on."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from index.faiss_library import import_faiss
from npm.core.errors import SettingError, exclusive
from npm.core.settings import Settings

EXACT_ROWS, SQ8_ROWS = 1_000_000, 5_000_000
"""Most rows for which the automatic tier is exact; ivf_sq8."""
SHORT_DIMENSIONS = 192
"""Vectors of up to this many dimensions have codes of two bits per dimension, longer ones of one (docs/results)."""
TRAIN_ROWS_PER_LIST = 39
"""FAISS warns of poor centroids below this many training rows per list."""


ThreadCount = Annotated[int, Field(ge=1, le=1024)]


class SearchTier(Enum):
    """Method of searching rows."""

    auto = "auto"
    exact = "exact"
    ivf_sq8 = "ivf_sq8"
    ivf_rabitq = "ivf_rabitq"


class SearchSettings(Settings):
    """Settings of building the search index, and defaults for searching it."""

    tier: SearchTier = SearchTier.auto
    """auto: `exact` up to a million rows, `ivf_sq8` (a byte per dimension) up to five million, `ivf_rabitq` (a bit per
    dimension, two for vectors with at most 192 dimensions) above."""
    list_count: PositiveInt | None = None
    """Number of inverted lists; unset: about 4 times the square root of the rows, a power of two."""
    probed_lists: PositiveInt | None = None
    """Number of inverted lists searched for one query; unset: 256, or all lists where there are fewer."""
    rerank_factor: PositiveInt | None = None
    """Candidates scored exactly per requested hit; unset: 4 with codes of one or two bits per dimension, else 2."""
    train_rows: PositiveInt = 1 << 19
    """Number of rows sampled to train the quantizer; they are held in memory as float32."""
    train_iterations: PositiveInt = 10
    """Iterations of k-means."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the training sample and of k-means."""
    thread_count: ThreadCount = 2
    """Number of threads of training and coding; the bytes of the index may depend on it."""

    def check(self) -> None:
        """Raise SettingError for lists in the exact tier."""
        if self.tier is SearchTier.exact and self.list_count is not None:
            raise exclusive("search.tier=exact", "search.list_count")


def automatic_tier(row_count: int) -> SearchTier:
    """The automatic tier for a number of rows.

    >>> [automatic_tier(n).value for n in (1_000_000, 1_000_001, 5_000_001)]
    ['exact', 'ivf_sq8', 'ivf_rabitq']
    """
    if row_count <= EXACT_ROWS:
        return SearchTier.exact
    return SearchTier.ivf_sq8 if row_count <= SQ8_ROWS else SearchTier.ivf_rabitq


def automatic_list_count(row_count: int, train_rows: int) -> int:
    """The power of two nearest to 4·√rows, by exponent, with at least 39 training rows per list.

    >>> automatic_list_count(1_000_000, 1 << 18)
    4096
    """
    wanted = round(math.log2(4 * math.sqrt(max(row_count, 1))))
    most = int(math.log2(max(1, min(train_rows, row_count) // TRAIN_ROWS_PER_LIST)))
    return 1 << min(wanted, most)


def chosen_tier(settings: SearchSettings, row_count: int) -> SearchTier:
    """The tier that `settings` mean for a number of rows; never `auto`."""
    if settings.tier is not SearchTier.auto:
        return settings.tier
    tier = automatic_tier(row_count)
    # Requested lists are made even if there are few rows.
    return SearchTier.ivf_sq8 if tier is SearchTier.exact and settings.list_count is not None else tier


def resolved_settings(settings: SearchSettings, row_count: int, dimensions: int) -> dict[str, Any]:
    """Every choice made that the bytes of quantizer, codes and lists depend on; manifests record it."""
    tier = chosen_tier(settings, row_count)
    resolved: dict[str, Any] = {"tier": tier.value, "dimensions": dimensions}
    if tier is SearchTier.exact:
        return resolved
    list_count = settings.list_count or automatic_list_count(row_count, settings.train_rows)
    # Lists are compared one by one: a graph over centroids by inner product never reaches some of them.
    lists = f"IVF{list_count}"
    # Codes of a bit or two per dimension want values of similar size in all of them: a random rotation ensures that.
    bits = "2" if dimensions <= SHORT_DIMENSIONS else ""
    factory = f"{lists},SQ8" if tier is SearchTier.ivf_sq8 else f"RR{dimensions},{lists},RaBitQ{bits}"
    return resolved | {
        "factory": factory,
        "list_count": list_count,
        "train_rows": settings.train_rows,
        "train_iterations": settings.train_iterations,
        "seed": settings.seed,
        "thread_count": settings.thread_count,
        "faiss_version": import_faiss().__version__,
    }


def check_search(settings: SearchSettings, *, row_count: int | None = None) -> None:
    """Raise SettingError for more lists than rows to train them on, before hours of encoding vectors.

    `row_count` None: the rows are not counted yet.
    """
    most = settings.train_rows if row_count is None else min(settings.train_rows, row_count)
    if settings.list_count is not None and settings.list_count > most:
        raise SettingError(
            f"search.list_count must be at most {most}, the rows to train on, got {settings.list_count}; leave it unset"
        )


def default_probed_lists(list_count: int) -> int:
    """Default number of inverted lists searched for one query."""
    return max(1, min(256, list_count))
