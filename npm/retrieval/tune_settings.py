"""What `npmlm tune` can be told, and which search settings it tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from npm.errors import SettingError, check_range
from npm.models.encoder import ComputeDtype

AUTOMATIC_PROBED_LISTS = (32, 64, 128, 256, 512)
AUTOMATIC_RERANKED_ROWS = (512, 1024, 2048, 4096, 8192)
AUTOMATIC_CANDIDATES_PER_SIDE = (256, 512, 1024, 2048)


@dataclass(kw_only=True, slots=True)
class TuneSettings:
    """Measure search settings of an index against exact search, with questions made from its own documents."""

    index: str = ""
    """Folder of the index. Required."""
    encoder: str = ""
    """Folder or name of the encoder; empty: the shipped one if it made the index, else the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one, for the encoder."""
    dtype: ComputeDtype = ComputeDtype.auto
    """Number format of the encoder's forward pass."""
    queries: int = 500
    """Questions asked, each a sentence of a document that the quantiser was not trained on, with a phrase masked."""
    seed: int = 0
    """Seed of the questions."""
    probed_lists: list[int] = field(default_factory=list)
    """Numbers of inverted lists looked into for a query; empty: 32 to 512, doubling, as far as there are lists."""
    reranked_rows: list[int] = field(default_factory=list)
    """Numbers of rows scored exactly for a query, multiples of `candidates_per_side`; empty: 512 to 8192, doubling."""
    candidates_per_side: list[int] = field(default_factory=list)
    """Numbers of best rows grown into phrases for a query; empty: 256 to 2048, doubling."""
    recall_goal: float = 0.97
    """Least share of the 100 best rows that the chosen setting must find."""
    agreement_goal: float = 0.95
    """Least share of questions whose best phrase must be that of exact search."""
    write: bool = False
    """Whether the chosen setting is written into the index, as its next generation."""
    out: str = ""
    """Folder for tune.json and tune.png, outside of the index; empty: nothing is written there."""

    def __post_init__(self) -> None:
        check_range(1 <= self.queries <= 5000, "queries", expected="a number in [1, 5000]", got=self.queries)
        check_range(self.seed >= 0, "seed", expected="at least 0", got=self.seed)
        for name in ("recall_goal", "agreement_goal"):
            value = getattr(self, name)
            check_range(0 <= value <= 1, name, expected="a share in [0, 1]", got=value)
        for name in ("probed_lists", "reranked_rows", "candidates_per_side"):
            values = getattr(self, name)
            right = all(value >= 1 for value in values) and len(set(values)) == len(values)
            check_range(right, name, expected="different numbers, each at least 1", got=list(values))


@dataclass(frozen=True, slots=True)
class SearchChoice:
    """One way to search an index. The exact tier probes and reranks nothing, an index without lists probes nothing."""

    probed_lists: int | None
    rerank_factor: int | None  # rows scored exactly, for each one grown into phrases
    candidates_per_side: int  # rows grown into phrases

    @property
    def reranked_rows(self) -> int | None:
        """Rows scored exactly for a query."""
        return None if self.rerank_factor is None else self.rerank_factor * self.candidates_per_side


def search_choices(
    settings: TuneSettings, *, row_count: int, list_count: int | None, reranks: bool
) -> list[SearchChoice]:
    """All that is tried on an index of `row_count` rows in `list_count` lists (None: without lists), widest first.

    `reranks` is False for exact search. Raises SettingError for numbers that the index cannot tell apart or serve.
    """
    for name, values, serves in (
        ("probed_lists", settings.probed_lists, list_count is not None),
        ("reranked_rows", settings.reranked_rows, reranks),
    ):
        if values and not serves:
            raise SettingError(
                f"this index has no use for {name}",
                expected=f"nothing for {name}: " + ("it has no inverted lists" if reranks else "it searches exactly"),
                got=f"{name}={list(values)}",
                where=name,
                fix=f"leave {name} out",
            )
    candidates = _fitting("candidates_per_side", settings.candidates_per_side, AUTOMATIC_CANDIDATES_PER_SIDE, row_count)
    probed: list[int | None] = [None]
    if list_count is not None:
        probed = [*_fitting("probed_lists", settings.probed_lists, AUTOMATIC_PROBED_LISTS, list_count)]
    choices = [
        SearchChoice(probed_lists=lists, rerank_factor=factor, candidates_per_side=count)
        for count in candidates
        for factor in (_rerank_factors(settings.reranked_rows, count) if reranks else [None])
        for lists in probed
    ]
    if not choices:
        raise SettingError(
            "no number of reranked rows is a multiple of a number of candidates",
            expected="reranked_rows that are multiples of candidates_per_side",
            got=f"reranked_rows={list(settings.reranked_rows)}, candidates_per_side={candidates}",
            where="reranked_rows, candidates_per_side",
            fix="give larger reranked_rows, such as twice candidates_per_side",
        )
    return sorted(choices, key=widest_first)


def widest_first(choice: SearchChoice) -> tuple[int, int, int]:
    """Sorts choices so that those of equal probed lists stand together, the most work first."""
    return -(choice.probed_lists or 0), -(choice.reranked_rows or 0), -choice.candidates_per_side


def _fitting(name: str, given: Sequence[int], automatic: Sequence[int], most: int) -> list[int]:
    """The numbers given, or the automatic ones up to `most`; `most` alone where all of these are larger."""
    if not given:
        return [value for value in automatic if value <= most] or [most]
    if max(given) > most:
        raise SettingError(
            f"{name} is out of range",
            expected=f"at most {most}, as many as the index has",
            got=f"{max(given)}",
            where=name,
            fix="choose smaller numbers",
        )
    return list(given)


def _rerank_factors(reranked_rows: Sequence[int], candidates: int) -> list[int | None]:
    """The factors by which `candidates` are multiplied to make one of the numbers of reranked rows."""
    return [rows // candidates for rows in reranked_rows or AUTOMATIC_RERANKED_ROWS if _is_multiple(rows, candidates)]


def _is_multiple(rows: int, candidates: int) -> bool:
    return rows >= candidates and rows % candidates == 0
