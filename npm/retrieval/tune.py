"""`npmlm tune`: measure ways to search an index against exact search, choose one, and write it into the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from index.faiss_library import inverted_file
from index.lists import SEARCH_KIND
from index.locking import folder_lock
from index.quantiser import Quantiser
from index.search import FaissSearcher
from index.store import read_manifest
from npm.errors import ArtefactError
from npm.indexing.changes import OF_ONE_GENERATION
from npm.indexing.generation import Generation, write_generation
from npm.indexing.inspection import Footprint, footprint
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.stages import silent
from npm.retrieval.tune_measures import EncodedQuestions, Measured, Report, exact_answers, measured_choices
from npm.retrieval.tune_questions import draw_questions, held_out_documents
from npm.retrieval.tune_report import make_out, write_report
from npm.retrieval.tune_settings import SearchChoice, TuneSettings, search_choices, widest_first

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All that was measured, and what was chosen."""

    generation: int
    index_digest: str  # of the root manifest that was measured
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
        for each in sorted(self.measured, key=lambda one: (one.p50_ms, -one.agreement)):
            if not best or each.agreement > best[-1].agreement:
                best.append(each)
        return tuple(best)


def run_tune(settings: TuneSettings, encoder: Encoder | None = None, progress: Report = silent) -> TuneResult:
    """Measure, choose, write the choice into the index with `settings.write`, and the report to `settings.out`.

    `encoder` None loads the one that the settings name or that belongs to the index. Raises ArtefactError if the
    index or the encoder does not serve, or the index is changed meanwhile; SettingError for search settings that it
    cannot have; StorageError if the disk refuses.
    """
    index = PhraseIndex.open(Path(settings.index))
    generation = _opened_generation(index)
    search = read_manifest(generation.search, kind=SEARCH_KIND).settings
    choices, present = _choices(settings, index, _list_count(generation))
    encoder = index.load_encoder(encoder or settings.encoder or None, device=settings.device, dtype=settings.dtype)
    if settings.out:
        make_out(settings.out, index.folder)
    drawn = draw_questions(index, settings.queries, seed=settings.seed)
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
        generation=generation.number,
        index_digest=generation.manifest.digest,
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
    note = write_report(result, settings.out) if settings.out else None
    return result if note is None else replace(result, notes=(*result.notes, note))


def choose(measured: Sequence[Measured], *, recall_goal: float, agreement_goal: float) -> tuple[Measured, bool]:
    """The fastest that reaches both goals, by p50, and True; if none does, the one that agrees most, and False."""
    reaching = [each for each in measured if each.recall[100] >= recall_goal and each.agreement >= agreement_goal]
    if reaching:
        return min(reaching, key=lambda each: (each.p50_ms, each.p95_ms)), True
    return max(measured, key=lambda each: (each.agreement, each.recall[100], -each.p50_ms)), False


def write_searching(generation: Generation, choice: SearchChoice) -> int:
    """Make `choice` how the index of `generation` is searched unless said otherwise; returns the new generation.

    Only the root manifest changes. Raises ArtefactError if the index is no longer this generation, or is being
    changed.
    """
    with folder_lock(generation.folder):
        present = Generation.read(generation.folder)
        if present.manifest.digest != generation.manifest.digest:
            raise _changed_meanwhile(generation, present)
        settings = present.settings
        write_generation(
            present.folder,
            number=present.number + 1,
            made={name: value for name, value in settings.items() if name not in OF_ONE_GENERATION},
            segments=settings["segments"],
            quantiser=settings["quantiser"],
            search=settings["search_folder"],
            searching={
                "probed_lists": choice.probed_lists,
                "rerank_factor": choice.rerank_factor,
                "candidates_per_side": choice.candidates_per_side,
            },
            deleted=settings["deleted"],
            deleted_count=settings["counts"]["deleted_documents"],
        )
    return present.number + 1


def _opened_generation(index: PhraseIndex) -> Generation:
    generation = Generation.read(index.folder)
    if generation.manifest.digest != index.digest:
        raise _changed_meanwhile(generation, Generation.read(index.folder))
    return generation


def _choices(
    settings: TuneSettings, index: PhraseIndex, list_count: int | None
) -> tuple[list[SearchChoice], SearchChoice]:
    """All that is tried, and the present setting, which is among it so that everybody sees what a change brings."""
    present = _present_choice(index, has_lists=list_count is not None)
    reranks = present.rerank_factor is not None
    choices = search_choices(settings, row_count=len(index.rows), list_count=list_count, reranks=reranks)
    return sorted({*choices, present}, key=widest_first), present


def _list_count(generation: Generation) -> int | None:
    """The inverted lists of the index; None if it has none."""
    if generation.quantiser is None:
        return None
    lists = inverted_file(Quantiser.open(generation.quantiser).index)
    return None if lists is None else int(lists.nlist)


def _present_choice(index: PhraseIndex, *, has_lists: bool) -> SearchChoice:
    """How the index is searched so far."""
    candidates = min(index.candidates_per_side, len(index.rows))
    if not isinstance(index.searcher, FaissSearcher):
        return SearchChoice(None, None, candidates)
    return SearchChoice(index.searcher.probed_lists if has_lists else None, index.searcher.rerank_factor, candidates)


def _changed_meanwhile(measured: Generation, present: Generation) -> ArtefactError:
    return ArtefactError(
        f"{measured.folder} was changed while it was measured",
        expected=f"generation {measured.number}, manifest digest {measured.manifest.digest}",
        got=f"generation {present.number}, manifest digest {present.manifest.digest}",
        where=str(measured.folder),
        fix="run npmlm tune again: the numbers are those of an index that is no more",
    )
