"""`npmlm adapt`: an index learns from corrected answers."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from pydantic import NonNegativeInt

from npm.cli.base import EncoderCommand, OutputCommand, say, write_report
from npm.cli.registry import verb
from npm.core.display import Table
from npm.core.errors import exclusive, missing
from npm.core.settings import PathText
from npm.retrieval.settings import Retrieval

if TYPE_CHECKING:
    from npm.tuning.adapt import Adaptation, Measures


class AdaptCommand(OutputCommand, EncoderCommand):
    """Learn a correction of query vectors from corrected answers; vectors of the corpus do not change."""

    questions: list[PathText] = field(default_factory=list)
    """Files of corrected answers, rows such as {"question": "Iceland is governed from <mask>.", "answers":
    ["Reykjavík"]}; at least 50, better some hundreds. A fifth is held out to measure."""
    retrieval: Retrieval = Retrieval.hybrid
    """The `retrieval` of fill that learns; the others answer as before."""
    seed: NonNegativeInt = 0
    """Seed of the choice of the held-out fifth."""
    remove: bool = False
    """Remove what was learned."""


@verb(
    AdaptCommand,
    "npmlm adapt index=DIR questions=[corrected.jsonl]",
    "index questions retrieval seed remove output encoder device",
)
def run_adapt(settings: AdaptCommand) -> int:
    """Learn, measure on held-out questions, and write what helps."""
    from npm.cli.progress import StageProgress
    from npm.tuning.adapt import adapt_index, read_corrections, remove_adaptation

    if settings.remove and settings.questions:
        raise exclusive("remove", "questions")
    if not (settings.remove or settings.questions):
        raise missing("questions", "questions=[corrected.jsonl]")
    if settings.remove:
        removed = remove_adaptation(settings.index)
        say("removed what the index had learned" if removed else "nothing to remove: the index has not learned")
        return 0
    questions = read_corrections(settings.questions)
    filler = settings.open_filler()
    with StageProgress() as progress:
        found = adapt_index(filler, questions, retrieval=settings.retrieval, seed=settings.seed, progress=progress)
    write_report(settings.output, found.record(), adaptation_text(found))
    return 0


def adaptation_text(found: Adaptation) -> str:
    """The report of `npmlm adapt`: the held-out questions before and after, and what was written."""
    from npm.core.display import report_text
    from npm.evaluation.metrics import percent, wilson_interval

    def row(name: str, measures: Measures) -> tuple[str, ...]:
        intervals = (wilson_interval(count, found.held_out) for count in (measures.first, measures.among_five))
        return name, *map(percent, intervals), f"{measures.loss:.3f}"

    header = (f"{found.held_out} held-out questions", "right first, %", "right among five, %", "loss")
    table = report_text([Table("", header, [row("before", found.before), row("after", found.after)])])
    written = f"written as generation {found.generation} of the index; remove=true removes it"
    nothing = "the held-out questions are not answered better, so nothing was written"
    others = f"the {found.questions - found.held_out} other questions for retrieval={found.retrieval}"
    learned = f"learned from {found.learned} of {others}"
    return f"{table}\n{learned}; {nothing if found.generation is None else written}\n"
