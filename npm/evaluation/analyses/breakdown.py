"""Exact match of open tasks by how long and how rare the answer and the subject are.

Shapes: n examples, W names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.sources import find_sources
from npm.corpus.text import folded_words
from npm.evaluation.analyses.panels import Line, Panel, Point
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.pictures import equal_mass_bins
from npm.evaluation.settings import Breakdown, ZeroShotEvaluation
from npm.evaluation.tasks.document_conditions import admissible_parts
from npm.evaluation.tasks.task import Suite
from npm.evaluation.zero_shot.occurrences import name_counts

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Task
    from npm.evaluation.zero_shot.open_set import OpenTaskResult
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


COUNT_BINS = {0: "0", 1: "1", 2: "2–4", 5: "5–19", 20: "20–99", 100: "100+"}
"""Bins of counts, by the smallest."""
QUARTERS = 4
AXES = {
    Breakdown.answer_tokens: "tokens of the shortest answer",
    Breakdown.answer_count: "how often an answer stands in the corpus",
    Breakdown.subject_count: "how often the subject stands in the corpus",
    Breakdown.popularity: "popularity of the subject",
    Breakdown.trained_count: "how often an answer stands in the training text",
}


def check_breakdown(settings: ZeroShotEvaluation, tasks: Sequence[Task]) -> None:
    """Raise SettingError for a breakdown without what it needs, and for training text that none reads."""
    chosen, opened = settings.breakdown, [task for task in tasks if task.suite is Suite.open]
    needs = {
        Breakdown.answer_count: ("index=DIR", bool(settings.index)),
        Breakdown.subject_count: (
            "index=DIR and data.columns.subject in the task's file",
            bool(settings.index) and any("subject" in task.data.columns for task in opened),
        ),
        Breakdown.popularity: (
            "data.columns.popularity in the task's file",
            any("popularity" in task.data.columns for task in opened),
        ),
        Breakdown.trained_count: ("trained_on=[FILES]", bool(settings.trained_on)),
    }
    if chosen and not opened:
        raise SettingError("breakdown needs a task of the open suite")
    for each in chosen:
        needed, is_there = needs.get(each, ("", True))
        if not is_there:
            raise SettingError(f"breakdown={each.value} needs {needed}")
    if settings.trained_on and Breakdown.trained_count not in chosen:
        raise SettingError("trained_on needs breakdown=[trained_count]")
    if settings.trained_on:
        find_sources(settings.trained_on)  # refuses what is not there


def breakdown_panels(
    result: OpenTaskResult,
    settings: ZeroShotEvaluation,
    index: PhraseIndex | None,
    encoder: Encoder,
    *,
    where: Sequence[str] = (),
    documents: Sequence[str] | None = None,
) -> Iterator[Panel]:
    """A panel for each of `settings.breakdown` that `result` has the columns for.

    Answers and subjects are counted in the live blocks of `index` that may answer: those that meet `where` and the
    example's own conditions and are among `documents`.
    """

    def stand(names: Sequence[Sequence[str]]) -> np.ndarray:
        """How often any of the names of each of n examples stands, i64 [n]."""
        assert index is not None, "checked before the work"
        counts = np.zeros(len(names), dtype=np.int64)  # [n]
        for part, places in admissible_parts(index, result.examples, where=where, documents=documents):
            own = [names[place] for place in places]
            if part is not None:
                counts[places] = summed_counts(own, partial(name_counts, part, encoder))
        return counts

    for kind in settings.breakdown:
        bins = _bins(kind, result, settings, stand)
        if bins is not None:
            numbers, labels = bins
            lines = tuple(Line(method.name, binned_points(method.right, numbers, labels)) for method in result.methods)
            yield Panel(f"{result.task.name} by {kind.value}", AXES[kind], "exact match", lines)


def binned_points(right: np.ndarray, numbers: np.ndarray, labels: Sequence[str]) -> tuple[Point, ...]:
    """The share of `right` bool [n] in each bin that an example has, by its number i64 [n]."""
    counts = np.bincount(numbers, minlength=len(labels))  # i64 [bins]
    hits = np.bincount(numbers[right], minlength=len(labels))  # i64 [bins]
    cells = zip(labels, counts.tolist(), hits.tolist(), strict=True)
    return tuple(Point(name, count, wilson_interval(own, count)) for name, count, own in cells if count)


def _bins(
    kind: Breakdown,
    result: OpenTaskResult,
    settings: ZeroShotEvaluation,
    stand: Callable[[Sequence[Sequence[str]]], np.ndarray],
) -> tuple[np.ndarray, list[str]] | None:
    """The bin of each example, i64 [n], and the names of all bins; None for a task without what is counted.

    `stand` counts how often any of the names of each example stands in the corpus, i64 [n].
    """
    examples = result.examples
    if kind is Breakdown.answer_tokens:
        labels = sorted(set(result.answer_tokens))
        return np.array([labels.index(each) for each in result.answer_tokens]), labels
    if kind is Breakdown.popularity:
        values = [example.popularity for example in examples]
        known = np.array([value for value in values if value is not None], dtype=np.float64)  # [n], or none
        return quarters(known) if len(known) == len(examples) else None
    names: list[tuple[str, ...]] = [example.answers for example in examples]
    if kind is Breakdown.subject_count:
        names = [(example.subject,) if example.subject else () for example in examples]
        if not any(names):
            return None
    if kind is Breakdown.trained_count:
        counts = summed_counts(names, lambda distinct: text_counts(tuple(settings.trained_on), distinct))  # i64 [n]
    else:
        counts = stand(names)  # i64 [n]
    return count_bins(counts), [*COUNT_BINS.values()]


def summed_counts(names: Sequence[Sequence[str]], count: Callable[[tuple[str, ...]], np.ndarray]) -> np.ndarray:
    """How often any of the names of each of n examples stands, i64 [n]; names of the same words count once.

    `count` says of distinct names how often each stands, i64 [W].

    >>> summed_counts([["Rome", "rome", "Roma"], []], lambda names: np.array([len(name) for name in names])).tolist()
    [8, 0]
    """
    distinct = tuple(dict.fromkeys(name for own in names for name in own))
    counts = dict(zip(distinct, count(distinct).tolist(), strict=True))
    return np.array([sum({name.casefold(): counts[name] for name in own}.values()) for own in names], dtype=np.int64)


def count_bins(counts: np.ndarray) -> np.ndarray:
    """The number of the bin of `COUNT_BINS` of each count i64 [n], i64 [n].

    >>> count_bins(np.array([0, 1, 2, 4, 5, 99, 100])).tolist()
    [0, 1, 2, 2, 3, 4, 5]
    """
    return np.searchsorted(np.array([*COUNT_BINS]), counts, side="right") - 1  # i64 [n]


def quarters(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The quarter of each of `values` f64 [n], i64 [n], equal ones in one, and the name of each quarter that has any.

    >>> quarters(np.array([1.0, 8.0, 3.0, 2.0, 5.0]))
    (array([0, 3, 1, 0, 2]), ['1–2', '3–3', '5–5', '8–8'])
    """
    present, numbers = np.unique(equal_mass_bins(values, QUARTERS), return_inverse=True)  # i64 [at most 4], i64 [n]
    own = [values[numbers == each] for each in range(len(present))]
    return numbers, [f"{each.min():g}–{each.max():g}" for each in own]


@lru_cache(1)
def text_counts(files: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """How often each name stands in the texts of `files`, in whatever case, by whole words: i64 [W].

    The files are read once for all methods. Raises CorpusError as `read_corpus` does.
    """
    by_first: defaultdict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    for number, name in enumerate(names):
        words = folded_words(name)
        if words:
            by_first[words[0]].append((number, words))
    counts = np.zeros(len(names), dtype=np.int64)  # [W]
    for document in read_corpus(CorpusSettings(files=list(files))):
        words = folded_words(document.text)
        for at, word in enumerate(words):
            if word in by_first:  # most words begin no name
                for number, own in by_first[word]:
                    counts[number] += words[at : at + len(own)] == own
    return counts
