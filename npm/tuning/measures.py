"""Ways to search an index, and what is measured of each: recall, agreement with exact search, latency.

Shapes: q questions, r ranks of `RECALL_AT`, d dimensions; hits are [2 q, k], all start queries, then all end queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from index.exact import exact_top, scan_rows
from index.partitioned import parts_of
from index.search import FaissSearcher
from index.types import Hits
from npm.core.errors import SettingError
from npm.corpus.text import normalised_text
from npm.indexing.generation import Generation
from npm.indexing.partitions import open_parts
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.settings import TuneSettings

if TYPE_CHECKING:
    from npm.core.types import Phrase, Progress
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


AUTOMATIC_PROBED_LISTS = (32, 64, 128, 256, 512)
AUTOMATIC_RERANKED_ROWS = (512, 1024, 2048, 4096, 8192)
AUTOMATIC_CANDIDATES_PER_SIDE = (256, 512, 1024, 2048)


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
                f"{name} must be empty, got {list(values)}: this index "
                + ("has no inverted lists" if reranks else "searches exactly")
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
            f"reranked_rows must be multiples of candidates_per_side={candidates}, got {list(settings.reranked_rows)}"
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
        raise SettingError(f"{name} must be at most {most}, as many as the index has, got {max(given)}")
    return list(given)


def _rerank_factors(reranked_rows: Sequence[int], candidates: int) -> list[int | None]:
    """The factors by which `candidates` are multiplied to make one of the numbers of reranked rows."""
    return [
        rows // candidates
        for rows in reranked_rows or AUTOMATIC_RERANKED_ROWS
        if rows >= candidates and rows % candidates == 0
    ]


DENSE = FillSettings(retrieval=Retrieval.dense)
"""How all questions are answered."""
RECALL_AT = (1, 10, 100)
QUESTIONS_PER_PASS = 512
"""Questions for which all stored vectors are read once; their scores with one chunk of vectors take 256 MiB."""
TIE = 2e-6
"""Scores nearer to each other than this share of them are equal: sums over other batches round otherwise."""


@dataclass(frozen=True, slots=True)
class EncodedQuestions:
    """Texts with their query vectors."""

    texts: tuple[str, ...]
    vectors: QueryVectors  # f32 [q, d] each

    def __len__(self) -> int:
        return len(self.texts)

    def slice(self, first: int, stop: int) -> EncodedQuestions:
        """The questions [first, stop)."""
        return EncodedQuestions(self.texts[first:stop], self.vectors.part(first, stop))

    @classmethod
    def encode(cls, encoder: Encoder, texts: Sequence[str]) -> EncodedQuestions:
        """Every text encoded once."""
        return cls(tuple(texts), encode_queries(encoder, texts))


@dataclass(frozen=True, slots=True)
class ExactAnswers:
    """What exact search finds, as much of it as others are compared with."""

    worst_scores: np.ndarray  # f32 [2, q, r], of the best 1, 10, 100 rows of the start and the end query
    found_counts: np.ndarray  # i64 [2, q, r], how many these are: fewer where the index has fewer rows
    best_phrases: Mapping[int, tuple[str | None, ...]]  # by rows grown into phrases; of each question


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to search, measured; recall and agreement are shares, latencies those of single questions."""

    choice: SearchChoice
    recall: Mapping[int, float]  # at 1, 10, 100: of the best rows by exact search, over both queries of a question
    agreement: float  # the best phrase is that of exact search with as many candidates
    agreement_with_widest: float  # the best phrase is that of exact search with the most candidates tried
    p50_ms: float
    p95_ms: float


def exact_answers(
    index: PhraseIndex,
    encoder: Encoder,
    questions: EncodedQuestions,
    widths: Sequence[int],
    progress: Progress,
) -> ExactAnswers:
    """Score all stored vectors for `questions`, and grow the best `widths` rows of each side into phrases.

    Reads all vectors once for every `QUESTIONS_PER_PASS` questions; memory does not grow with either.
    """
    assert index.vectors is not None, "an index that was opened from its folder knows its vectors"
    depth = min(max(*widths, *RECALL_AT), len(index.rows))
    worst_scores = np.empty((2, len(questions), len(RECALL_AT)), dtype=np.float32)  # [2, q, r]
    found_counts = np.empty(worst_scores.shape, dtype=np.int64)  # [2, q, r]
    best_phrases: dict[int, list[str | None]] = {width: [] for width in widths}
    filler = PhraseFiller(index, encoder)
    passes = -(-len(questions) // QUESTIONS_PER_PASS)
    for number in range(passes):
        first = number * QUESTIONS_PER_PASS
        asked = questions.slice(first, first + QUESTIONS_PER_PASS)
        queries = np.concatenate([asked.vectors.start, asked.vectors.end])  # f32 [2 q, d]

        def scored(rows: int, row_count: int, before: int = number) -> None:
            progress("exact scores", before * row_count + rows, passes * row_count)

        hits = exact_top(index.vectors, queries, depth, index.live_rows, scored)
        for place, rank in enumerate(RECALL_AT):
            counts = hits.found[:, :rank].sum(axis=1)  # i64 [2 q]
            worst = hits.scores[np.arange(len(queries)), np.maximum(counts, 1) - 1]  # f32 [2 q]
            found_counts[:, first : first + len(asked), place] = counts.reshape(2, -1)
            worst_scores[:, first : first + len(asked), place] = worst.reshape(2, -1)
        # All hits are known: nothing is scanned, and the scores of further rows are read from the stored vectors.
        scan = scan_rows(index.vectors, queries, np.zeros(0, dtype=np.int64))
        for done, width in enumerate(widths, start=1):
            best = Hits(hits.rows[:, :width], hits.scores[:, :width], hits.found[:, :width])  # [2 q, width] each
            for place, text in enumerate(asked.texts):
                pair = (place, len(asked) + place)
                phrases = filler.phrases_of_hits(text, scan, best, queries=pair, settings=DENSE)
                best_phrases[width].append(_best_of(phrases))
            progress("exact answers", first * len(widths) + done * len(asked), len(questions) * len(widths))
    return ExactAnswers(worst_scores, found_counts, {width: tuple(best) for width, best in best_phrases.items()})


def measured_choices(
    index: PhraseIndex,
    encoder: Encoder,
    questions: EncodedQuestions,
    choices: Sequence[SearchChoice],
    exact: ExactAnswers,
    progress: Progress,
) -> list[Measured]:
    """Ask every question with every one of `choices`, one question after the other, on one thread.

    Choices of equal probed lists should stand together, the widest first: for another number of lists the index is
    opened again, and all questions are asked once without being timed, so that what they read is in memory.
    """
    measured: list[Measured] = []
    for probed_lists, group in groupby(choices, key=lambda choice: choice.probed_lists):
        searcher = index.searcher
        if probed_lists is not None:
            assert index.vectors is not None, "an index that was opened from its folder knows its vectors"
            stored = Generation(index.folder, index.manifest)
            searcher = open_parts(stored, index.vectors, probed_lists=probed_lists)
        filler = PhraseFiller(replace(index, searcher=searcher), encoder)
        for number, choice in enumerate(group):
            for part in parts_of(searcher):
                if isinstance(part, FaissSearcher) and choice.rerank_factor is not None:
                    part.rerank_factor = choice.rerank_factor
            with one_thread():
                if number == 0:
                    for _ in _answered(filler, questions, choice.candidates_per_side):
                        pass
                measured.append(_measured(filler, questions, choice, exact))
            progress("settings", len(measured), len(choices))
    return measured


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, FAISS and the BLAS of numpy compute with one thread each."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


def _measured(filler: PhraseFiller, questions: EncodedQuestions, choice: SearchChoice, exact: ExactAnswers) -> Measured:
    best_phrases: list[str | None] = []
    seconds: list[float] = []
    found = np.zeros(len(RECALL_AT), dtype=np.int64)  # [r]
    for number, (best, hits, took) in enumerate(_answered(filler, questions, choice.candidates_per_side)):
        best_phrases.append(best)
        seconds.append(took)
        found += found_rows(hits, exact.worst_scores[:, number], exact.found_counts[:, number])
    wanted = exact.found_counts.sum(axis=(0, 1))  # i64 [r]
    p50, p95 = np.percentile(seconds, [50, 95]) * 1000
    widest = exact.best_phrases[max(exact.best_phrases)]
    return Measured(
        choice=choice,
        recall={rank: float(share) for rank, share in zip(RECALL_AT, found / np.maximum(wanted, 1), strict=True)},
        agreement=_share_equal(best_phrases, exact.best_phrases[choice.candidates_per_side]),
        agreement_with_widest=_share_equal(best_phrases, widest),
        p50_ms=float(p50),
        p95_ms=float(p95),
    )


def found_rows(hits: Hits, worst_scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How many of the best 1, 10, 100 rows of one question's two queries, i64 [r], are among its `hits` [2, k].

    A row is one of the best if its score is at least the worst of theirs, f32 [2, r], so that rows of equal score can
    stand for each other; `counts` i64 [2, r] says how many of them there are.
    """
    found = np.zeros(len(RECALL_AT), dtype=np.int64)  # [r]
    for place, rank in enumerate(RECALL_AT):
        least = worst_scores[:, place] - TIE * np.abs(worst_scores[:, place])  # f32 [2]
        good = hits.found[:, :rank] & (hits.scores[:, :rank] >= least[:, None])  # bool [2, <= rank]
        found[place] = np.minimum(good.sum(axis=1), counts[:, place]).sum()
    return found


def _answered(
    filler: PhraseFiller, questions: EncodedQuestions, candidates_per_side: int
) -> Iterator[tuple[str | None, Hits, float]]:
    """Each question alone: its best phrase, the hits [2, k] of its two queries, and the seconds that it took."""
    index, vectors = filler.index, questions.vectors
    for number, text in enumerate(questions.texts):
        queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
        before = time.perf_counter()
        scan = index.searcher.scan(queries, index.live_rows)
        hits = scan.top(min(candidates_per_side, len(index.rows)))
        phrases = filler.phrases_of_hits(text, scan, hits, queries=(0, 1), settings=DENSE)
        yield _best_of(phrases), hits, time.perf_counter() - before


def _best_of(phrases: Sequence[Phrase]) -> str | None:
    """The first of the phrases, without regard to case and spaces; None if there is none."""
    return normalised_text(phrases[0].phrase) if phrases else None


def _share_equal(ours: Sequence[str | None], theirs: Sequence[str | None]) -> float:
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
