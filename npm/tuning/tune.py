"""`npmlm tune`: measure ways to search an index against exact search, choose one, and write it into the index.

Where a quantiser was trained, only documents that it has not seen are asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.ivf import SEARCH_KIND, Quantiser
from index.partitioned import parts_of
from index.search import FaissSearcher
from npm.core.artifact import folder_lock, read_manifest, refuse_changed
from npm.core.errors import ArtifactError, QueryError, SettingError
from npm.core.files import check_writable, digest_of, json_bytes, read_object, replace_file
from npm.core.types import MASK_TEXT, Progress, silent
from npm.corpus.markup import visible
from npm.corpus.text import sentence_bounds
from npm.indexing.changes import commit
from npm.indexing.generation import Generation, IndexManifest, Searching
from npm.indexing.inspect import Footprint, footprint
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.stages import HELD_OUT_EVERY, unseen_documents
from npm.retrieval.queries import check_query
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.spans import CandidateSpans, SpanFinder
from npm.tuning.measures import (
    EncodedQuestions,
    Measured,
    SearchChoice,
    exact_answers,
    measured_choices,
    search_choices,
    widest_first,
)
from npm.tuning.settings import TuneSettings

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 60, 300
MAX_MASKED_TOKENS = 4
JSON_NAME = "tune.json"


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All that was measured, and what was chosen."""

    generation: int
    index_digest: str  # of the root manifest that was measured
    request: dict[str, Any]  # what a report in the same folder must be of
    tier: str
    factory: str | None
    settings: TuneSettings
    question_count: int
    document_count: int  # different documents that questions were made from
    held_out: bool  # the quantiser's training had not seen these documents
    measured: tuple[Measured, ...]
    present: SearchChoice  # how the index was searched so far; one of those measured
    chosen: Measured
    goals_met: bool
    footprint: Footprint
    written_generation: int | None  # the generation that has the chosen setting; None: it was not asked for
    notes: tuple[str, ...]

    @property
    def front(self) -> tuple[Measured, ...]:
        """Those that no other one beats in both p50 latency and agreement, fastest first."""
        best: list[Measured] = []
        for each in sorted(self.measured, key=lambda each: (each.p50_ms, -each.agreement)):
            if not best or each.agreement > best[-1].agreement:
                best.append(each)
        return tuple(best)


def tune_index(settings: TuneSettings, encoder: Encoder | None = None, progress: Progress = silent) -> TuneResult:
    """Measure, choose, write the choice into the index with `settings.write`, and the report to `settings.out`.

    `encoder` None loads the one that the settings name or that belongs to the index. Raises ArtifactError if the
    index or the encoder does not serve, or the index is changed meanwhile; SettingError for search settings that it
    cannot have.
    """
    index = PhraseIndex.open(Path(settings.index))
    generation = _unchanged(index.folder, index.manifest)
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    choices, present = _choices(settings, index, generation)
    encoder = index.load_encoder(
        encoder or settings.encoder or None, device=settings.device, dtype=settings.precision, for_reading=True
    )
    if settings.out:
        check_out(settings, index)
    drawn = draw_questions(index, settings.queries, seed=settings.seed, words_only=encoder.query_masks == 1)
    progress("questions", len(drawn), len(drawn))
    questions = EncodedQuestions.encode(encoder, [question.text for question in drawn])
    widths = sorted({choice.candidates_per_side for choice in choices})
    exact = exact_answers(index, encoder, questions, widths, progress)
    measured = measured_choices(index, encoder, questions, choices, exact, progress)
    chosen, goals_met = choose(measured, recall_goal=settings.recall_goal, agreement_goal=settings.agreement_goal)
    held_out = held_out_documents(index)
    notes = []
    if held_out is None:
        notes.append(
            "the quantiser was kept by a compact, so it may have seen the documents asked about: "
            "npmlm compact retrain=true trains another one"
        )
    if len(drawn) < settings.queries:
        notes.append(f"{len(drawn)} questions instead of {settings.queries}: the documents hold no more sentences")
    result = TuneResult(
        generation=generation.manifest.generation,
        index_digest=generation.manifest.digest,
        request=request_of(settings, index),
        tier=str(search["tier"]),
        factory=search.get("factory"),
        settings=settings,
        question_count=len(drawn),
        document_count=len({question.document for question in drawn}),
        held_out=held_out is not None and generation.quantiser is not None,
        measured=tuple(measured),
        present=present,
        chosen=chosen,
        goals_met=goals_met,
        footprint=footprint(generation),
        written_generation=write_searching(generation, chosen.choice) if settings.write else None,
        notes=tuple(notes),
    )
    if settings.out:
        write_report(result, settings.out)
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
        present = _unchanged(generation.folder, generation.manifest)
        return commit(present, replace(present.manifest, searching=Searching(**asdict(choice)))).generation


def _unchanged(folder: Path, measured: IndexManifest) -> Generation:
    """The generation in `folder`, whose manifest must be the one `measured`. Raises ArtifactError."""
    present = Generation.read(folder)
    if present.manifest.digest != measured.digest:
        raise ArtifactError(
            f"{folder} was changed while it was measured, from generation {measured.generation} to "
            f"{present.manifest.generation}; run npmlm tune again"
        )
    return present


def _choices(
    settings: TuneSettings, index: PhraseIndex, generation: Generation
) -> tuple[list[SearchChoice], SearchChoice]:
    """All that is tried, and the present setting, which is among it so that the gain of a change is seen."""
    list_count = None if generation.quantiser is None else Quantiser.open(generation.quantiser).list_count
    candidates = min(index.candidates_per_side, len(index.rows))
    searcher = parts_of(index.searcher)[0]  # all are searched alike
    if isinstance(searcher, FaissSearcher):
        present = SearchChoice(searcher.probed_lists, searcher.rerank_factor, candidates)
    else:
        present = SearchChoice(None, None, candidates)
    reranks = present.rerank_factor is not None
    choices = search_choices(settings, row_count=len(index.rows), list_count=list_count, reranks=reranks)
    return sorted({*choices, present}, key=widest_first), present


@dataclass(frozen=True, slots=True)
class TuneQuestion:
    """A sentence with a phrase masked."""

    text: str
    phrase: str  # what was masked
    document: int  # number of the document in the index
    start_char: int  # of the phrase, in the document's text


def held_out_documents(index: PhraseIndex) -> np.ndarray | None:
    """Which documents the quantiser's training has not seen, bool [documents]; None if that is not known."""
    generation = Generation(index.folder, index.manifest)
    if generation.quantiser is None:
        return np.ones(index.store.document_count, dtype=bool)
    return unseen_documents(generation.quantiser, generation.segments, index.store.segment_documents)


def asked_documents(index: PhraseIndex) -> np.ndarray:
    """Numbers i64 [n] of the documents that may be asked about: live, and not seen by the quantiser's training.

    Where what it saw is not known, after a compact that kept it, any document may be asked about.
    """
    documents = np.arange(index.store.document_count)  # i64 [documents]
    if (held_out := held_out_documents(index)) is not None:
        documents = documents[held_out]
    return documents if index.live_documents is None else documents[index.live_documents[documents]]


def draw_questions(index: PhraseIndex, count: int, *, seed: int, words_only: bool = False) -> list[TuneQuestion]:
    """At most `count` questions, as many from each document as it takes, no sentence twice.

    Fewer if the documents hold no more sentences of 60 to 300 characters with a phrase of up to 4 tokens, or with a
    word where `words_only` says so. Raises ArtifactError if there is none.
    """
    documents = asked_documents(index) if index.store.start_chars is not None else np.zeros(0, dtype=np.int64)
    drawer = _Drawer(index, np.random.default_rng(seed), words_only=words_only)
    questions: list[TuneQuestion] = []
    while len(questions) < count:
        before = len(questions)
        for document in drawer.rng.permutation(documents).tolist():
            if (question := drawer.draw(document)) is not None:
                questions.append(question)
                if len(questions) == count:
                    break
        if len(questions) == before:
            break
    if not questions:
        left_out = f", one of {HELD_OUT_EVERY}, that its quantiser has not seen" if index.manifest.quantiser else ""
        lengths = f"{MIN_SENTENCE_CHARS} to {MAX_SENTENCE_CHARS} characters"
        raise ArtifactError(
            f"{index.folder}: no question from {len(documents)} documents{left_out}, expected sentences of {lengths}; "
            "add documents, or build the index with search.tier=exact"
        )
    return questions


class _Drawer:
    """Draws questions, and remembers the sentences that it has asked about."""

    def __init__(self, index: PhraseIndex, rng: np.random.Generator, *, words_only: bool) -> None:
        self._store = index.store
        self._rows = index.rows
        self._finder = SpanFinder(
            index.store,
            index.rows,
            max_phrase_tokens=MAX_MASKED_TOKENS,
            scoring=ScoringSettings(),
            words_only=words_only,
        )
        self._asked: set[tuple[int, int]] = set()
        self.rng = rng

    def draw(self, document: int) -> TuneQuestion | None:
        """A question from a sentence of `document` that was not asked about; None if there is none left."""
        text = self._store.document(document).text
        bounds = sentence_bounds(text)  # i64 [sentences, 2]
        lengths = bounds[:, 1] - bounds[:, 0]  # i64 [sentences]
        bounds = bounds[(lengths >= MIN_SENTENCE_CHARS) & (lengths <= MAX_SENTENCE_CHARS)]
        for start, stop in self.rng.permutation(bounds).tolist():
            if (document, start) in self._asked:
                continue
            self._asked.add((document, start))
            found = self._phrases(document, start, stop)
            if len(found) == 0:
                continue
            first_char, last_char = self._chars(found, int(self.rng.integers(len(found))))
            question = visible(f"{text[start:first_char]}{MASK_TEXT}{text[last_char:stop]}")
            try:
                check_query(question)
            except QueryError:  # the sentence holds a mask of its own, or is broken
                continue
            return TuneQuestion(question, text[first_char:last_char], document, first_char)
        return None

    def _phrases(self, document: int, start_char: int, end_char: int) -> CandidateSpans:
        """All phrases that could be an answer and lie in these characters of `document`."""
        store = self._store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text is not asked about"
        blocks = np.flatnonzero(store.block_documents == document)  # i64 [blocks of the document], in a row
        if len(blocks) == 0:
            return self._finder.find(np.zeros(0, dtype=np.int64), None)
        first, stop = int(store.block_offsets[blocks[0]]), int(store.block_offsets[blocks[-1] + 1])
        begin = first + int(np.searchsorted(store.start_chars.slice(first, stop), start_char))
        end = first + int(np.searchsorted(store.end_chars.slice(first, stop), end_char, side="right"))
        rows = self._rows.rows_within(np.array([begin]), np.array([max(begin, end)]))  # i64 [n]
        found = self._finder.find(rows, None)
        return found.where(found.starts + found.lengths <= end)

    def _chars(self, found: CandidateSpans, number: int) -> tuple[int, int]:
        """Where candidate `number` begins and ends in its document, in characters."""
        store = self._store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text is not asked about"
        first, last = int(found.starts[number]), int(found.starts[number] + found.lengths[number] - 1)
        return int(store.start_chars.slice(first, first + 1)[0]), int(store.end_chars.slice(last, last + 1)[0])


def request_of(settings: TuneSettings, index: PhraseIndex) -> dict[str, Any]:
    """What measurements depend on beside the documents, which may be added and deleted: JSON values."""
    names = ("queries", "seed", "probed_lists", "reranked_rows", "candidates_per_side", "recall_goal", "agreement_goal")
    asked = {name: getattr(settings, name) for name in names}
    return {"index_settings_digest": digest_of(index.manifest.settings), "settings": asked}


def check_out(settings: TuneSettings, index: PhraseIndex) -> None:
    """Refuse a folder for the report, before the work begins.

    Raises SettingError if it lies in the folder of the index, ArtifactError if files of the report's names are there
    that are of something else (which overwrite=true allows).
    """
    folder, place = Path(settings.out), index.folder.resolve()
    if place in (folder.resolve(), *folder.resolve().parents):
        raise SettingError(f"out must be outside of the index, got {settings.out}")
    fix = "choose another folder with out=DIR, or give overwrite=true to replace them"
    if (folder / JSON_NAME).exists() and not settings.overwrite:
        before = read_object(folder / JSON_NAME, fix=fix).get("request")
        problem = f"{folder} holds measurements of something else, or with other settings"
        recorded = before if isinstance(before, dict) else {}
        refuse_changed(request_of(settings, index), recorded, where=folder, problem=problem, fix=fix)
    check_writable(folder)


def write_report(result: TuneResult, out: str | Path) -> None:
    """Write the report to the folder `out`, over an earlier one."""
    file = Path(out) / JSON_NAME
    replace_file(file, json_bytes(tune_record(result)))


def tune_record(result: TuneResult) -> dict[str, Any]:
    """The whole result as JSON values; no path of this machine."""
    settings = result.settings
    return {
        "request": result.request,
        "index": {
            "generation": result.generation,
            "digest": result.index_digest,
            "tier": result.tier,
            "factory": result.factory,
            **result.footprint.record(),
        },
        "questions": {
            "asked": result.question_count,
            "documents": result.document_count,
            "held_out_of_training": result.held_out,
            "seed": settings.seed,
        },
        "goals": {"recall_at_100": settings.recall_goal, "agreement": settings.agreement_goal},
        "goals_met": result.goals_met,
        "measured": [_measured_record(each) for each in result.measured],
        "front": [asdict(each.choice) for each in result.front],
        "before": asdict(result.present),
        "chosen": asdict(result.chosen.choice),
        "written_generation": result.written_generation,
        "notes": list(result.notes),
    }


def _measured_record(measured: Measured) -> dict[str, Any]:
    values = asdict(measured)
    recall = {str(rank): share for rank, share in measured.recall.items()}
    return {**values.pop("choice"), "reranked_rows": measured.choice.reranked_rows, **values, "recall": recall}
