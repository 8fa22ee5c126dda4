"""Settings of search: the tier, its parameters, and those that the bytes on disk depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from pydantic import ByteSize, Field, PositiveInt

from npm.core.errors import SettingError, exclusive
from npm.core.settings import INNER, Settings

EXACT_ROWS, SQ8_ROWS = 1_000_000, 5_000_000
"""Most rows for which the automatic tier is exact; ivf_sq8."""
SHORT_DIMENSIONS = 192
"""Vectors of up to this many dimensions have codes of two bits per dimension, longer ones of one (docs/results)."""
TRAIN_ROWS_PER_LIST = 39
"""Rows sampled to train a list, held in memory as float32; FAISS warns of poor centroids below this many."""
MAX_TRAIN_BYTES = 2 << 30
"""Most bytes of these rows, so that the memory of training does not grow with the corpus."""
CODEC_TRAIN_ROWS = 1 << 16
"""Rows that a codec is trained on; ranges of values and centroids of codes of 4 bits need no more."""
CODE_CENTROIDS = 16
"""Values of a code of 4 bits, each the mean of a row at least."""

ThreadCount = Annotated[int, Field(ge=1, le=1024)]


class SearchTier(Enum):
    """Method of searching rows."""

    auto = "auto"
    exact = "exact"
    ivf_sq8 = "ivf_sq8"
    ivf_pq = "ivf_pq"


class SearchSettings(Settings):
    """Settings of building the search index, and defaults for searching it."""

    tier: SearchTier = SearchTier.auto
    """auto: `exact` up to a million rows, `ivf_sq8` (a byte per dimension) up to five million, `ivf_pq` (a bit per
    dimension, two for vectors with at most 192 dimensions) above."""
    memory_bytes: Annotated[PositiveInt | None, INNER] = None
    """Most bytes that a search over all vectors may read; where the automatic tier reads more, the next smaller one is
    made. Unset: no limit."""
    list_count: PositiveInt | None = None
    """Number of inverted lists, with 384 dimensions at most 35,848; unset: about 4 times the square root of the rows,
    a power of two."""
    probed_lists: PositiveInt | None = None
    """Number of inverted lists searched for one query; unset: a 32nd of the lists, at least 256; all if there are
    fewer."""
    rerank_factor: PositiveInt | None = None
    """Candidates scored exactly per requested hit; unset: 4 with codes of one or two bits per dimension, else 2."""
    train_iterations: PositiveInt = 10
    """Iterations of k-means."""
    seed: Annotated[int, Field(ge=0, lt=2**31), INNER] = 0
    """Seed of the training sample and of k-means."""
    thread_count: ThreadCount = 2
    """Number of threads of training and coding; the bytes of the index may depend on it."""

    def check(self) -> None:
        """Raise SettingError for lists in the exact tier, and for a tier next to a limit that chooses one."""
        if self.memory_bytes is not None and self.tier is not SearchTier.auto:
            raise exclusive("memory", "search.tier")
        if self.tier is SearchTier.exact and self.list_count is not None:
            raise exclusive("search.tier=exact", "search.list_count")


def max_list_count(dimensions: int) -> int:
    """The most lists that can be trained.

    >>> [max_list_count(dimensions) for dimensions in (128, 384)]
    [107546, 35848]
    """
    return MAX_TRAIN_BYTES // (4 * dimensions * TRAIN_ROWS_PER_LIST)


def automatic_list_count(row_count: int, dimensions: int) -> int:
    """The power of two nearest to 4·√rows, by exponent, with enough rows to train all lists.

    >>> [automatic_list_count(rows, 384) for rows in (10, 20_000, 1_000_000, 42_753_168)]
    [1, 512, 4096, 32768]
    """
    wanted = round(math.log2(4 * math.sqrt(max(row_count, 1))))
    most = max(1, min(row_count // TRAIN_ROWS_PER_LIST, max_list_count(dimensions)))
    return 1 << min(wanted, int(math.log2(most)))


def chosen_tier(settings: SearchSettings, row_count: int) -> SearchTier:
    """The tier that `settings` mean for a number of rows; never `auto`.

    >>> [chosen_tier(SearchSettings(), n).value for n in (1_000_000, 1_000_001, 5_000_000, 5_000_001)]
    ['exact', 'ivf_sq8', 'ivf_sq8', 'ivf_pq']
    """
    if settings.tier is not SearchTier.auto:
        return settings.tier
    if row_count <= EXACT_ROWS and settings.list_count is None:  # requested lists are made even for few rows
        return SearchTier.exact
    return SearchTier.ivf_sq8 if row_count <= SQ8_ROWS else SearchTier.ivf_pq


def resolved_settings(settings: SearchSettings, row_count: int, dimensions: int) -> dict[str, Any]:
    """Every choice made that the bytes of quantizer, codes and lists depend on; manifests record it."""
    choices = _choices(settings, row_count, dimensions)
    found, limit = next(choices), settings.memory_bytes
    while limit is not None and search_shape(found).searched_bytes(row_count) > limit:
        smaller = next(choices, None)
        if smaller is None:  # an index that grew beyond the limit is searched nevertheless: see `fitting_settings`
            break
        found = smaller
    return found


def _choices(settings: SearchSettings, row_count: int, dimensions: int) -> Iterator[dict[str, Any]]:
    """The settings of the tier for a number of rows, then those of smaller ones, in decreasing size."""
    if dimensions == 0:  # rows without vectors
        yield {"tier": SearchTier.exact.value, "dimensions": 0}
        return
    tiers = [SearchTier.exact, SearchTier.ivf_sq8, SearchTier.ivf_pq]
    code_dimensions = 2 if dimensions <= SHORT_DIMENSIONS else 4
    for tier in tiers[tiers.index(chosen_tier(settings, row_count)) :]:
        yield _resolved(settings, tier, code_dimensions, row_count, dimensions)
    if code_dimensions == 2:
        yield _resolved(settings, SearchTier.ivf_pq, 4, row_count, dimensions)


def _resolved(
    settings: SearchSettings, tier: SearchTier, code_dimensions: int, row_count: int, dimensions: int
) -> dict[str, Any]:
    """The settings of `tier`; in `ivf_pq` every `code_dimensions` dimensions have a code of 4 bits."""
    resolved: dict[str, Any] = {"tier": tier.value, "dimensions": dimensions}
    if tier is SearchTier.exact:
        return resolved
    list_count = settings.list_count or automatic_list_count(row_count, dimensions)
    from index.faiss_library import import_faiss

    # Lists are compared one by one: a graph over centroids by inner product never reaches some of them.
    lists, code_count = f"IVF{list_count}", -(-dimensions // code_dimensions)
    # The rotation gives all dimensions values of similar size, and adds those that the last code lacks.
    factory = f"RR{code_count * code_dimensions},{lists},PQ{code_count}x4fsr"
    return resolved | {
        "factory": f"{lists},SQ8" if tier is SearchTier.ivf_sq8 else factory,
        "list_count": list_count,
        "train_rows": max(CODEC_TRAIN_ROWS, TRAIN_ROWS_PER_LIST * list_count),
        "train_iterations": settings.train_iterations,
        "seed": settings.seed,
        "thread_count": settings.thread_count,
        "faiss_version": import_faiss().__version__,
    }


@dataclass(frozen=True, slots=True)
class SearchShape:
    """Sizes of a search over rows; without lists it is exact."""

    dimensions: int
    list_count: int
    code_bytes: int
    block_rows: int
    quantizer_bytes: int
    """Bytes of the centroids of lists and codes and of the rotation; with fast scan, the sizes of empty lists too."""

    def list_bytes(self, rows: float) -> float:
        """Codes and row ids of inverted lists; each is padded to a multiple of `block_rows`, by half a block."""
        padded = rows + self.list_count * (self.block_rows - 1) / 2
        return padded * self.code_bytes + rows * 8 + self.list_count * 8 if self.list_count else 0.0

    def searched_bytes(self, rows: float) -> float:
        """Bytes that a search over `rows` reads: their float32 vectors, or all lists and the quantizer."""
        return self.list_bytes(rows) + self.quantizer_bytes if self.list_count else 4.0 * self.dimensions * rows


def search_shape(resolved: Mapping[str, Any]) -> SearchShape:
    """Sizes of a search with `resolved_settings`."""
    dimensions = int(resolved["dimensions"])
    if resolved["tier"] == SearchTier.exact.value:
        return SearchShape(dimensions, 0, 0, 0, 0)
    from index.faiss_library import block_rows, new_faiss_index, split

    index = new_faiss_index(resolved["factory"], dimensions)
    rotation, lists = split(index)
    numbers = lists.nlist * lists.d + (0 if rotation is None else dimensions * lists.d)
    quantizer_bytes = 4 * numbers
    if hasattr(lists, "pq"):
        quantizer_bytes += 4 * lists.pq.centroids.size() + 16 * lists.nlist
    return SearchShape(dimensions, lists.nlist, lists.code_size, block_rows(lists), quantizer_bytes)


def tier_reason(settings: SearchSettings, row_count: int, tier: str) -> str:
    """Reason for the tier of an index, in a few words."""
    if settings.tier is not SearchTier.auto:
        return "as search.tier asks"
    usual = chosen_tier(settings, row_count).value
    if settings.memory_bytes is None:
        return "by the number of vectors"
    limit = f"memory={ByteSize(settings.memory_bytes).human_readable(decimal=True)}"
    return f"within {limit}" if tier == usual else f"{usual} exceeds {limit}"


def fitting_settings(settings: SearchSettings, row_count: int, dimensions: int) -> dict[str, Any]:
    """`resolved_settings`; raises SettingError as `check_trainable` does, or if every tier reads too much."""
    resolved = resolved_settings(settings, row_count, dimensions)
    check_trainable(resolved, row_count)
    found = search_shape(resolved).searched_bytes(row_count)
    if settings.memory_bytes is not None and found > settings.memory_bytes:
        needed = ByteSize(found).human_readable(decimal=True)
        raise SettingError(
            f"memory={ByteSize(settings.memory_bytes).human_readable(decimal=True)} is too little for {row_count:,} "
            f"vectors of {dimensions} dimensions, of which the smallest index reads {needed}: give more, or set "
            "fewer dimensions= with rotation=pca"
        )
    return resolved


def check_trainable(resolved: Mapping[str, Any], row_count: int) -> None:
    """Raise SettingError if `row_count` rows are too few to train on, or the lists too many for the sample."""
    if resolved["tier"] == SearchTier.exact.value:
        return
    most, dimensions = max_list_count(resolved["dimensions"]), resolved["dimensions"]
    if resolved["list_count"] > min(row_count, most):
        limit = f"{row_count}, the rows to train on" if row_count < most else f"{most} with {dimensions} dimensions"
        raise SettingError(
            f"search.list_count must be at most {limit}, got {resolved['list_count']}; set a smaller one or none"
        )
    if resolved["tier"] == SearchTier.ivf_pq.value and row_count < CODE_CENTROIDS:
        raise SettingError(
            f"search.tier=ivf_pq needs at least {CODE_CENTROIDS} rows to train on, got {row_count}; set no search.tier"
        )


def default_probed_lists(list_count: int) -> int:
    """Default number of inverted lists searched for one query.

    >>> [default_probed_lists(lists) for lists in (64, 4096, 32768)]
    [64, 256, 1024]
    """
    return min(list_count, max(256, list_count // 32))
