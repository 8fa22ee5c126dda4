"""`npmlm tune`: measure ways to search an index against exact search, choose one, and write it into the index.

Recall, agreement of the first phrase, and latency, of questions made from documents that the quantizer has not seen.

Shapes: q questions, r ranks of `RECALL_AT`, d dimensions; hits are [2 q, k], all start queries, then all end queries.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.exact import exact_top, scan_rows
from index.ivf import SEARCH_KIND, Quantizer
from index.partitioned import parts_of
from index.search import FaissSearcher
from index.types import Hits
from npm.core.artifact import read_manifest
from npm.core.errors import SettingError
from npm.core.files import check_writable, json_bytes, replace_file
from npm.core.locks import folder_lock
from npm.core.types import Progress, silent
from npm.corpus.text import normalized_text
from npm.indexing.changes import commit
from npm.indexing.generation import Generation, Searching
from npm.indexing.inspect import Footprint, footprint
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.drawn_questions import draw_questions, held_out_documents
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.settings import TuneSettings

if TYPE_CHECKING:
    from npm.core.types import Phrase
    from npm.models.encoder import Encoder


JSON_NAME = "tune.json"
DENSE = FillSettings(retrieval=Retrieval.dense)
"""Search settings of all questions."""
RECALL_AT = (1, 10, 100)
RECORDED = ("queries", "seed", "probed_lists", "reranked_rows", "candidates_per_side", "recall_goal", "agreement_goal")
"""Settings that tune.json repeats."""
TIE = 2e-6
"""Scores that differ by less than this fraction are equal: sums over other batches round otherwise."""


@dataclass(frozen=True, slots=True)
class SearchChoice:
    """One way to search an index. The exact tier probes and reranks nothing."""

    probed_lists: int | None
    rerank_factor: int | None  # rows scored exactly, for each one grown into phrases
    candidates_per_side: int  # rows grown into phrases

    @property
    def reranked_rows(self) -> int | None:
        """Rows scored exactly for a query."""
        return None if self.rerank_factor is None else self.rerank_factor * self.candidates_per_side


def search_choices(settings: TuneSettings, *, row_count: int, list_count: int | None) -> list[SearchChoice]:
    """Search settings to measure on an index of `row_count` rows in `list_count` lists, None: searched exactly.

    Raises SettingError for numbers that the index cannot serve.
    """

    def fitting(name: str, most: int, automatic: Sequence[int]) -> list[int]:
        given = list(getattr(settings, name))
        if given and max(given) > most:
            raise SettingError(f"{name} must be at most {most}, as many as the index has, got {max(given)}")
        return given or [value for value in automatic if value <= most] or [most]

    candidates = fitting("candidates_per_side", row_count, (256, 512, 1024, 2048))
    if list_count is None:
        for name in ("probed_lists", "reranked_rows"):
            if given := getattr(settings, name):
                raise SettingError(f"{name} must be empty, got {given}: this index searches exactly")
        return [SearchChoice(None, None, count) for count in candidates]
    probed = fitting("probed_lists", list_count, (32, 64, 128, 256, 512))
    reranked = settings.reranked_rows or (512, 1024, 2048, 4096, 8192)
    choices = [
        SearchChoice(lists, rows // count, count)
        for count in candidates
        for rows in reranked
        if rows % count == 0
        for lists in probed
    ]
    if not choices:
        raise SettingError(
            f"reranked_rows must be multiples of candidates_per_side={candidates}, got {list(settings.reranked_rows)}"
        )
    return choices


def widest_first(choice: SearchChoice) -> tuple[int, int, int]:
    """Sort key: choices of equal probed lists together, the most work first."""
    return -(choice.probed_lists or 0), -(choice.reranked_rows or 0), -choice.candidates_per_side


@dataclass(frozen=True, slots=True)
class ExactAnswers:
    """Results of exact search for q questions, to which others are compared."""

    worst_scores: np.ndarray  # f32 [2, q, r], of the best 1, 10, 100 rows of the start and the end query
    found_counts: np.ndarray  # i64 [2, q, r], rows among these: fewer where the index has fewer
    best_phrases: Mapping[int, list[str | None]]  # by rows grown into phrases; of each question


@dataclass(frozen=True, slots=True)
class Measured:
    """Measures of one way to search; recall and agreement are fractions, latencies those of single questions."""

    choice: SearchChoice
    recall: Mapping[int, float]  # at 1, 10, 100: of the best rows by exact search, over both queries of a question
    agreement: float  # the best phrase is that of exact search with as many candidates
    p50_ms: float
    p95_ms: float


def exact_answers(
    filler: PhraseFiller,
    texts: Sequence[str],
    vectors: QueryVectors,
    widths: Collection[int],
    progress: Progress,
) -> ExactAnswers:
    """Score all stored vectors, read once, for `texts`, and grow the best `widths` rows of each side into phrases."""
    index = filler.index
    assert index.vectors is not None, "an index that was opened from its folder knows its vectors"
    queries = np.concatenate([vectors.start, vectors.end])  # f32 [2 q, d]
    depth = min(max(*widths, *RECALL_AT), len(index.rows))
    hits = exact_top(index.vectors, queries, depth, index.live_rows, progress)
    counts = np.stack([hits.found[:, :rank].sum(axis=1) for rank in RECALL_AT], axis=1)  # i64 [2 q, r]
    worst = np.take_along_axis(hits.scores, np.maximum(counts, 1) - 1, axis=1)  # f32 [2 q, r]
    # All hits are known: nothing is scanned, and the scores of further rows are read from the stored vectors.
    scan = scan_rows(index.vectors, queries, np.zeros(0, dtype=np.int64))
    best_phrases: dict[int, list[str | None]] = {width: [] for width in widths}
    for place, text in enumerate(texts):
        pair = (place, len(texts) + place)
        for width in widths:
            best = Hits(hits.rows[:, :width], hits.scores[:, :width], hits.found[:, :width])  # [2 q, width] each
            best_phrases[width].append(_best_of(filler.phrases_of_hits(text, scan, best, queries=pair, settings=DENSE)))
        progress("exact answers", place + 1, len(texts))
    shape = (2, len(texts), len(RECALL_AT))
    return ExactAnswers(worst.reshape(shape), counts.reshape(shape), best_phrases)


def measured_choices(
    filler: PhraseFiller,
    texts: Sequence[str],
    vectors: QueryVectors,
    choices: Sequence[SearchChoice],
    exact: ExactAnswers,
    progress: Progress,
) -> list[Measured]:
    """Ask every question with every one of `choices`, one question after the other, on one thread.

    Choices of equal probed lists are together, the widest first: at another number of lists all questions are asked
    once without being timed, so that what they read is in memory.
    """
    from threadpoolctl import threadpool_limits

    measured: list[Measured] = []
    with threadpool_limits(limits=1):
        for choice in choices:
            for part in parts_of(filler.index.searcher):
                if isinstance(part, FaissSearcher) and choice.rerank_factor is not None:
                    part.probed_lists = choice.probed_lists or part.probed_lists
                    part.rerank_factor = choice.rerank_factor
            if not measured or measured[-1].choice.probed_lists != choice.probed_lists:
                _measured(filler, texts, vectors, choice, exact)
            measured.append(_measured(filler, texts, vectors, choice, exact))
            progress("settings", len(measured), len(choices))
    return measured


def _measured(
    filler: PhraseFiller, texts: Sequence[str], vectors: QueryVectors, choice: SearchChoice, exact: ExactAnswers
) -> Measured:
    index, seconds = filler.index, []
    agreed, found = 0, np.zeros(len(RECALL_AT), dtype=np.int64)  # [r]
    for number, text in enumerate(texts):
        queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
        before = time.perf_counter()
        scan = index.searcher.scan(queries, index.live_rows)
        hits = scan.top(min(choice.candidates_per_side, len(index.rows)))
        best = _best_of(filler.phrases_of_hits(text, scan, hits, queries=(0, 1), settings=DENSE))
        seconds.append(time.perf_counter() - before)
        agreed += best == exact.best_phrases[choice.candidates_per_side][number]
        found += found_rows(hits, exact.worst_scores[:, number], exact.found_counts[:, number])
    recall = found / np.maximum(exact.found_counts.sum(axis=(0, 1)), 1)  # f64 [r]
    p50, p95 = (np.percentile(seconds, [50, 95]) * 1000).tolist()
    return Measured(choice, dict(zip(RECALL_AT, recall.tolist(), strict=True)), agreed / len(texts), p50, p95)


def found_rows(hits: Hits, worst_scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Number i64 [r] of the best 1, 10, 100 rows of one question's two queries among its `hits` [2, k].

    A row is one of the best if its score is at least the worst of theirs, f32 [2, r], so that rows of equal score can
    stand for each other; `counts` i64 [2, r] says how many of them there are.
    """
    found = np.zeros(len(RECALL_AT), dtype=np.int64)  # [r]
    for place, rank in enumerate(RECALL_AT):
        least = worst_scores[:, place] - TIE * np.abs(worst_scores[:, place])  # f32 [2]
        good = hits.found[:, :rank] & (hits.scores[:, :rank] >= least[:, None])  # bool [2, <= rank]
        found[place] = np.minimum(good.sum(axis=1), counts[:, place]).sum()
    return found


def _best_of(phrases: Sequence[Phrase]) -> str | None:
    """The first of the phrases, its case and spaces normalized; None if there is none."""
    return normalized_text(phrases[0].phrase) if phrases else None


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All measures, and the choice."""

    settings: TuneSettings
    generation: Generation  # that was measured
    factory: str | None
    question_count: int
    document_count: int  # different documents that questions were made from
    measured: tuple[Measured, ...]
    present: SearchChoice  # how the index was searched so far; one of those measured
    chosen: Measured
    goals_met: bool
    footprint: Footprint
    written_generation: int | None  # the generation with the chosen setting; None: it was not asked for
    notes: tuple[str, ...]

    @property
    def front(self) -> tuple[Measured, ...]:
        """Those that no other one beats in both p50 latency and agreement, fastest first."""
        best: list[Measured] = []
        for each in sorted(self.measured, key=lambda each: (each.p50_ms, -each.agreement)):
            if not best or each.agreement > best[-1].agreement:
                best.append(each)
        return tuple(best)

    def record(self) -> dict[str, Any]:
        """Settings, index, and every measure as JSON values, without a path of this machine."""
        manifest, measured = self.generation.manifest, []
        for each in self.measured:
            values = asdict(each)
            measured.append(values.pop("choice") | {"reranked_rows": each.choice.reranked_rows} | values)
        return {
            "settings": {name: getattr(self.settings, name) for name in RECORDED},
            "index": {
                "generation": manifest.generation,
                "digest": manifest.digest,
                "factory": self.factory,
                **self.footprint.record(),
            },
            "questions": {"asked": self.question_count, "documents": self.document_count},
            "goals_met": self.goals_met,
            "measured": measured,
            "before": asdict(self.present),
            "chosen": asdict(self.chosen.choice),
            "written_generation": self.written_generation,
            "notes": list(self.notes),
        }


def tune_index(settings: TuneSettings, encoder: Encoder | None = None, progress: Progress = silent) -> TuneResult:
    """Measure, choose, write the choice into the index with `settings.write`, and the report to `settings.out`.

    `encoder` None loads the one that the settings name or that belongs to the index. Raises ArtifactError if the
    index or the encoder does not serve, or the index is changed meanwhile; SettingError for search settings that it
    cannot have.
    """
    index = PhraseIndex.open(Path(settings.index))
    generation = Generation.read(index.folder).unchanged_since(index.manifest, verb="tune")
    list_count = None if generation.quantizer is None else Quantizer.open(generation.quantizer).list_count
    present = SearchChoice(None, None, min(index.candidates_per_side, len(index.rows)))
    if isinstance(part := parts_of(index.searcher)[0], FaissSearcher):  # all are searched alike
        present = replace(present, probed_lists=part.probed_lists, rerank_factor=part.rerank_factor)
    choices = search_choices(settings, row_count=len(index.rows), list_count=list_count)
    choices = sorted({*choices, present}, key=widest_first)  # so that the gain of a change is seen
    encoder = index.load_encoder(
        encoder or settings.encoder or None, device=settings.device, dtype=settings.precision, for_reading=True
    )
    if settings.out:
        out = Path(settings.out).resolve()
        if index.folder.resolve() in (out, *out.parents):
            raise SettingError(f"out must be outside of the index, got {settings.out}")
        check_writable(out)
    drawn = draw_questions(index, settings.queries, seed=settings.seed, words_only=encoder.query_masks == 1)
    texts = [question.text for question in drawn]
    vectors, filler = encode_queries(encoder, texts), PhraseFiller(index, encoder)
    exact = exact_answers(filler, texts, vectors, {each.candidates_per_side for each in choices}, progress)
    measured = measured_choices(filler, texts, vectors, choices, exact, progress)
    chosen, goals_met = choose(measured, recall_goal=settings.recall_goal, agreement_goal=settings.agreement_goal)
    notes = []
    if held_out_documents(index) is None:
        notes.append(
            "the quantizer was kept by a compact, so it may have seen the documents asked about: "
            "npmlm compact retrain=true trains another one"
        )
    if len(drawn) < settings.queries:
        notes.append(f"{len(drawn)} questions instead of {settings.queries}: the documents hold no more sentences")
    result = TuneResult(
        settings=settings,
        generation=generation,
        factory=read_manifest(generation.search, kind=SEARCH_KIND).settings.get("factory"),
        question_count=len(drawn),
        document_count=len({question.document for question in drawn}),
        measured=tuple(measured),
        present=present,
        chosen=chosen,
        goals_met=goals_met,
        footprint=footprint(generation),
        written_generation=write_searching(generation, chosen.choice) if settings.write else None,
        notes=tuple(notes),
    )
    if settings.out:
        replace_file(Path(settings.out) / JSON_NAME, json_bytes(result.record()))
    return result


def choose(measured: Sequence[Measured], *, recall_goal: float, agreement_goal: float) -> tuple[Measured, bool]:
    """The fastest that reaches both goals, by p50, and True; if none does, the one that agrees most, and False."""
    reaching = [each for each in measured if each.recall[100] >= recall_goal and each.agreement >= agreement_goal]
    if reaching:
        return min(reaching, key=lambda each: (each.p50_ms, each.p95_ms)), True
    return max(measured, key=lambda each: (each.agreement, each.recall[100], -each.p50_ms)), False


def write_searching(generation: Generation, choice: SearchChoice) -> int:
    """Make `choice` how the index of `generation` is searched unless said otherwise; returns the new generation.

    Only the root manifest changes. Raises ArtifactError if the index is no longer this generation, or is being
    changed.
    """
    with folder_lock(generation.folder):
        present = Generation.read(generation.folder).unchanged_since(generation.manifest, verb="tune")
        return commit(present, replace(present.manifest, searching=Searching(**asdict(choice)))).generation
