"""How much corpus a task needs: the same examples asked of nested parts of one index.

A document belongs to share p if its hash, as a fraction of the largest, is below p: what a smaller share holds, a
larger one of the same seed holds too. All that counts documents, such as BM25, counts those of the part alone.

Shapes: n examples, s seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import QueryError, SettingError
from npm.evaluation.analyses.panels import Line, Panel, Point
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.settings import SampleSettings
from npm.evaluation.zero_shot.closed_set import ClosedTaskResult
from npm.indexing.phrase_index import select, with_documents

if TYPE_CHECKING:
    from npm.evaluation.zero_shot.open_set import OpenTaskResult
    from npm.indexing.phrase_index import PhraseIndex
    from npm.retrieval.settings import FillSettings

    TaskResult = ClosedTaskResult | OpenTaskResult


SEEDS = 3
"""Draws of the documents of each share; of share 1 there is one."""
CLOSE = 0.01
"""A corpus is large enough that loses less accuracy than this."""
HELD = "answer in the corpus"


def check_shares(shares: Sequence[float], *, reads_index: bool) -> None:
    """Raise SettingError for shares that are none or repeat, and without a method that `reads_index`."""
    if shares and not reads_index:
        raise SettingError("corpus_shares needs index=DIR and methods that all read it")
    if not all(0 < share <= 1 for share in shares) or len(set(shares)) < len(shares):
        got = ", ".join(f"{share:g}" for share in shares)
        raise SettingError(f"corpus_shares must be different numbers above 0, at most 1, got [{got}]")


def check_parts(shares: Sequence[float], seed: int, asked: Iterable[tuple[PhraseIndex, FillSettings]]) -> None:
    """Raise UserError, before anything is asked, for a share of which some draw leaves nothing to answer from.

    `asked` are indexes with the filters that answers come through.
    """
    distinct = {str((index.folder, fill.documents, fill.where)): (index, fill) for index, fill in asked}
    for index, fill in distinct.values():
        select(index, fill.documents, fill.where)
        for draw in range(seed, seed + SEEDS):
            part = part_of(index, min(shares), draw)
            try:
                select(part, fill.documents, fill.where)
            except QueryError as error:
                raise SettingError(f"corpus_shares: no document left at share {min(shares):g}: {error}") from error


def document_places(ids: Sequence[str], seed: int) -> np.ndarray:
    """Where each of n documents stands between 0 and 1, f64 [n]: it is part of all larger shares."""
    digests = [hashlib.blake2b(f"{seed}\0{each}".encode(), digest_size=8).digest() for each in ids]
    return np.array([int.from_bytes(each, "big") / 2**64 for each in digests])  # f64 [n]


def part_of(index: PhraseIndex, share: float, seed: int) -> PhraseIndex:
    """`index` over that share of its documents; itself for share 1. Raises SettingError if no document is left."""
    if share == 1:
        return index
    chosen = document_places(index.store.document_ids(range(index.store.document_count)), seed) < share  # bool [docs]
    part = with_documents(index, chosen)
    if part.live_documents is not None and not part.live_documents.any():
        raise SettingError(f"corpus_shares: no document left at share {share:g} of {len(chosen)}; give a larger one")
    return part


def token_count(index: PhraseIndex) -> int:
    """Tokens of the live blocks."""
    lengths = np.diff(index.store.block_offsets)  # i64 [blocks]
    return int(lengths.sum() if index.live_blocks is None else lengths[index.live_blocks].sum())


@dataclass(frozen=True, slots=True)
class ShareResult:
    """One task, asked of one part of its index."""

    share: float
    seed: int
    tokens: int
    result: TaskResult

    @property
    def held(self) -> np.ndarray | None:
        """Whether the part holds an answer of each example, bool [n]; None for closed tasks."""
        coverage = None if isinstance(self.result, ClosedTaskResult) else self.result.coverage
        return None if coverage is None else coverage.answer_held

    def hits(self, method: str) -> np.ndarray:
        """Which examples a method of this part was right about, bool [n]."""
        return hits_of(self.result)[method]

    def record(self) -> dict[str, Any]:
        """As in metrics.json."""
        shares = {name: float(hits.mean()) for name, hits in hits_of(self.result).items()}
        held = None if self.held is None else float(self.held.mean())
        given = {"task": self.result.task.name, "share": self.share, "seed": self.seed, "tokens": self.tokens}
        return {**given, "answer_held": held, "methods": shares}


def hits_of(result: TaskResult) -> dict[str, np.ndarray]:
    """Which examples each method was right about, bool [n]."""
    if not isinstance(result, ClosedTaskResult):
        return {method.name: method.right for method in result.methods}
    labels = np.array([example.label for example in result.examples])  # i64 [n]
    return {
        method.name: np.array([prediction.label for prediction in method.predictions]) == labels
        for method in result.methods
    }


def evaluate_shares(
    shares: Sequence[float],
    sample: SampleSettings,
    whole: Sequence[TaskResult],
    indexes: Sequence[PhraseIndex],
    ask: Callable[[Callable[[PhraseIndex], PhraseIndex]], Sequence[TaskResult]],
) -> list[ShareResult]:
    """The tasks asked of each share, the smallest first.

    `whole` are the results over the whole `indexes`, a task each; `ask` evaluates the tasks over what its argument
    makes of an index.
    """
    found: list[ShareResult] = []
    for share in sorted(shares):
        for seed in range(sample.seed, sample.seed + (1 if share == 1 else SEEDS)):
            part = partial(part_of, share=share, seed=seed)
            results = whole if share == 1 else ask(part)
            found += [
                ShareResult(share, seed, token_count(part(index)), result)
                for index, result in zip(indexes, results, strict=True)
            ]
    return found


def share_panels(found: Sequence[ShareResult], sample: SampleSettings) -> list[Panel]:
    """Of each task how much is right over tokens; of open ones also among the examples whose answer the part holds."""
    panels: list[Panel] = []
    for task in dict.fromkeys(each.result.task.name for each in found):
        own = [each for each in found if each.result.task.name == task]
        methods = list(dict.fromkeys(name for each in own for name in hits_of(each.result)))
        is_open = own[0].held is not None
        lines = [Line(name, _points(own, sample, name)) for name in methods]
        if is_open:
            lines.append(Line(HELD, _points(own, sample)))
        y = "exact match" if is_open else "accuracy"
        panels.append(Panel(task, "share of the corpus, tokens", y, tuple(lines), is_log=True))
        if is_open:
            among = tuple(Line(name, _points(own, sample, name, among_held=True)) for name in methods)
            title = f"{task}, {HELD}"
            panels.append(Panel(title, "share of the corpus, tokens", y, among, is_log=True))
    return panels


def _points(
    found: Sequence[ShareResult], sample: SampleSettings, method: str | None = None, *, among_held: bool = False
) -> tuple[Point, ...]:
    """A point for each share: the hits of `method`, None for the answers held, over all its seeds."""
    points: list[Point] = []
    for share in dict.fromkeys(each.share for each in found):
        parts = [each for each in found if each.share == share]
        if method is not None and any(method not in hits_of(each.result) for each in parts):
            continue  # asked of the whole corpus alone, because it reads none
        hits = np.stack([_held(each) if method is None else each.hits(method) for each in parts])  # bool [s, n]
        counted = np.stack([_held(each) for each in parts]) if among_held else np.ones_like(hits)  # bool [s, n]
        tokens = round(sum(each.tokens for each in parts) / len(parts))
        if counted.any():
            interval = mean_over_draws(hits, counted, sample)
            points.append(Point(f"{share:g}, {tokens:,}", int(counted.any(axis=0).sum()), interval, float(tokens)))
    return tuple(points)


def _held(part: ShareResult) -> np.ndarray:
    """Whether the part holds an answer of each example, bool [n]."""
    held = part.held
    assert held is not None, "of open tasks only"
    return held


def mean_over_draws(hits: np.ndarray, counted: np.ndarray, sample: SampleSettings) -> Interval:
    """The share of `hits` among the `counted` of s draws, bool [s, n] each; whole examples are drawn anew."""
    sums, counts = (hits & counted).sum(axis=0), counted.sum(axis=0)  # i64 [n] each
    rng = np.random.default_rng(sample.seed)
    return bootstrap_interval(sums, rng, counts=counts, resamples=sample.resamples)


def share_notes(panels: Sequence[Panel]) -> list[str]:
    """For each method the smallest corpus that is almost as good as the largest."""
    notes: list[str] = []
    for panel in panels:
        for line in panel.lines:
            if panel.y == "accuracy" and len(line.points) > 1:
                last = line.points[-1].share.mean
                enough = next(point for point in line.points if point.share.mean > last - CLOSE)
                notes.append(
                    f"{panel.title}, {line.name}: less than a point is lost from share {enough.name} tokens on."
                )
    return notes
