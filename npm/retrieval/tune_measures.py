"""What is measured of each way to search: recall, agreement of the best phrase with exact search, latency.

Shapes: q questions, r ranks of `RECALL_AT`, d dimensions; hits are [2 q, k], all start queries, then all end queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from index.exact import exact_top
from index.search import open_search
from npm.corpus.text import normalised_text
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.known_hits import HitRecorder, KnownHitsSearcher
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.tune_settings import SearchChoice

if TYPE_CHECKING:
    from index.types import Hits, Searcher
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder

RECALL_AT = (1, 10, 100)
QUESTIONS_PER_PASS = 512
"""All stored vectors are read once for so many questions; their scores with one chunk of vectors take 256 MiB."""
TIE = 2e-6
"""Scores nearer to each other than this share of them are equal: sums over other batches round otherwise."""
Report = Callable[[str, int, int | None], None]
"""Called with a stage (vectors scored, exact answers, settings), how much is done, and its total."""


@dataclass(frozen=True, slots=True)
class EncodedQuestions:
    """Texts with their query vectors."""

    texts: tuple[str, ...]
    vectors: QueryVectors  # f32 [q, d] each

    def __len__(self) -> int:
        return len(self.texts)

    def slice(self, first: int, stop: int) -> EncodedQuestions:
        """The questions [first, stop)."""
        vectors = self.vectors
        cut = QueryVectors(vectors.start[first:stop], vectors.end[first:stop], vectors.cut[first:stop])
        return EncodedQuestions(self.texts[first:stop], cut)

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
    report: Report,
) -> ExactAnswers:
    """Score all stored vectors for `questions`, and grow the best `widths` rows of each side into phrases.

    Reads all vectors once for every `QUESTIONS_PER_PASS` questions; memory does not grow with either.
    """
    assert index.vectors is not None, "an index that was opened from its folder knows its vectors"
    depth = min(max(*widths, *RECALL_AT), len(index.rows))
    worst_scores = np.empty((2, len(questions), len(RECALL_AT)), dtype=np.float32)  # [2, q, r]
    found_counts = np.empty(worst_scores.shape, dtype=np.int64)  # [2, q, r]
    best_phrases: dict[int, list[str | None]] = {width: [] for width in widths}
    passes = -(-len(questions) // QUESTIONS_PER_PASS)
    for number in range(passes):
        first = number * QUESTIONS_PER_PASS
        asked = questions.slice(first, first + QUESTIONS_PER_PASS)
        queries = np.concatenate([asked.vectors.start, asked.vectors.end])  # f32 [2 q, d]

        def scored(rows: int, row_count: int, before: int = number) -> None:
            report("exact scores", before * row_count + rows, passes * row_count)

        hits = exact_top(index.vectors, queries, depth, index.live_rows, scored)
        for place, rank in enumerate(RECALL_AT):
            counts = hits.found[:, :rank].sum(axis=1)  # i64 [2 q]
            worst = hits.scores[np.arange(len(queries)), np.maximum(counts, 1) - 1]  # f32 [2 q]
            found_counts[:, first : first + len(asked), place] = counts.reshape(2, -1)
            worst_scores[:, first : first + len(asked), place] = worst.reshape(2, -1)
        known = KnownHitsSearcher(index.vectors, queries, hits, allowed=index.live_rows)
        filler = PhraseFiller(replace(index, searcher=known), encoder)
        for done, width in enumerate(widths, start=1):
            best_phrases[width] += [best for best, _ in _answered(filler, asked, width)]
            report("exact answers", first * len(widths) + done * len(asked), len(questions) * len(widths))
    return ExactAnswers(worst_scores, found_counts, {width: tuple(best) for width, best in best_phrases.items()})


def measured_choices(
    index: PhraseIndex,
    encoder: Encoder,
    questions: EncodedQuestions,
    choices: Sequence[SearchChoice],
    exact: ExactAnswers,
    report: Report,
) -> list[Measured]:
    """Ask every question with every one of `choices`, one question after the other, on one thread.

    Choices of equal probed lists should stand together, the widest first: for another number of lists the index is
    opened again, and all questions are asked once without being timed, so that what they read is in memory.
    """
    measured: list[Measured] = []
    for probed_lists, group in groupby(choices, key=lambda choice: choice.probed_lists):
        searcher = index.searcher if probed_lists is None else _reopened(index, probed_lists)
        for number, choice in enumerate(group):
            if choice.rerank_factor is not None:
                searcher.rerank_factor = choice.rerank_factor  # type: ignore[attr-defined]
            recorder = HitRecorder(searcher)
            filler = PhraseFiller(replace(index, searcher=recorder), encoder)
            with one_thread():
                if number == 0:
                    for _ in _answered(filler, questions, choice.candidates_per_side):
                        pass
                measured.append(_measured(filler, recorder, questions, choice, exact))
            report("settings", len(measured), len(choices))
    return measured


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, FAISS and the BLAS of numpy compute with one thread each."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


def _measured(
    filler: PhraseFiller, recorder: HitRecorder, questions: EncodedQuestions, choice: SearchChoice, exact: ExactAnswers
) -> Measured:
    best_phrases: list[str | None] = []
    seconds: list[float] = []
    found = np.zeros(len(RECALL_AT), dtype=np.int64)  # [r]
    for number, (best, took) in enumerate(_answered(filler, questions, choice.candidates_per_side)):
        best_phrases.append(best)
        seconds.append(took)
        assert recorder.hits is not None, "dense search asks for hits"
        found += found_rows(recorder.hits, exact.worst_scores[:, number], exact.found_counts[:, number])
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
) -> Iterator[tuple[str | None, float]]:
    """The best phrase of each question, without regard to case and spaces, and the seconds that it took."""
    settings = FillSettings(retrieval=Retrieval.dense, candidates_per_side=candidates_per_side)
    for number, text in enumerate(questions.texts):
        vectors = questions.slice(number, number + 1).vectors
        before = time.perf_counter()
        answer = filler.fill_encoded([text], vectors, settings=settings)[0]
        took = time.perf_counter() - before
        yield normalised_text(answer.phrases[0].phrase) if answer.phrases else None, took


def _share_equal(ours: Sequence[str | None], theirs: Sequence[str | None]) -> float:
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)


def _reopened(index: PhraseIndex, probed_lists: int) -> Searcher:
    """The index's approximate searcher, with another number of probed lists."""
    assert index.vectors is not None, "an index that was opened from its folder knows its vectors"
    folder, settings = index.folder, index.settings
    return open_search(
        folder / settings["search_folder"],
        index.vectors,
        quantiser=folder / settings["quantiser"],
        probed_lists=probed_lists,
    )
