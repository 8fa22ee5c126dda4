"""The verbs that learn from questions with known answers: `adapt` for an index, `calibrate` for a reader."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, field, replace
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.base import EncoderCommand, OutputCommand, say, write_report
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.core.artifact import MANIFEST_NAME
from npm.core.display import Table, report_text
from npm.core.errors import SettingError, exclusive, missing
from npm.core.settings import PathText
from npm.models.names import CONFIG
from npm.retrieval.settings import FillSettings, Retrieval


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
    from npm.evaluation.metrics import percent, wilson_interval
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
    rows = []
    for name, measures in (("before", found.before), ("after", found.after)):
        intervals = (wilson_interval(count, found.held_out) for count in (measures.first, measures.among_five))
        rows.append((name, *map(percent, intervals), f"{measures.loss:.3f}"))
    header = (f"{found.held_out} held-out questions", "right first, %", "right among five, %", "loss")
    others = f"the {found.questions - found.held_out} other questions for retrieval={found.retrieval}"
    end = f"written as generation {found.generation} of the index; remove=true removes it"
    if found.generation is None:
        end = "the held-out questions are not answered better, so nothing was written"
    text = f"{report_text([Table('', header, rows)])}\nlearned from {found.learned} of {others}; {end}\n"
    write_report(settings.output, asdict(found), text)
    return 0


class CalibrateCommand(OutputCommand, EncoderCommand):
    """Fit the confidence of a reader to questions that people wrote, every other one without its passage."""

    questions: list[PathText] = field(default_factory=list)
    """Files of rows {question, answers, context, title}, or SQuAD's own JSON; all their passages are the corpus."""
    others: list[PathText] = field(default_factory=list)
    """Files of other documents, among which half of the questions are asked: with them the confidence learns what the
    size of a corpus does to it."""
    index: PathText = ""
    """Folder of an index over the passages, as `evaluate task=reading` leaves it; built if missing, with others= of
    words alone; empty: a temporary index."""
    write: bool = False
    """Write confidence.json into the folder of fill.reader."""
    limit: PositiveInt | None = None
    """Maximum number of questions; unset: all."""
    seed: NonNegativeInt = 0
    """Seed of their choice and order."""
    fill: FillSettings = field(default_factory=FillSettings)
    """Settings of the answers, mainly fill.reader."""


@verb(
    CalibrateCommand,
    "npmlm calibrate questions=[dev.jsonl] fill.reader=runs/reader/encoder write=true",
    "questions others index write limit seed output encoder device",
    required=None,
    groups={"fill": "reader joint_share bm25_blocks"},
)
def run_calibrate(settings: CalibrateCommand) -> int:
    """Ask, fit, report, and with write=true save the function."""
    from npm.evaluation.calibrate import calibrate, corpora_of
    from npm.evaluation.reading import build_passages, check_passages, read_passages
    from npm.evaluation.settings import SampleSettings, ZeroShotEvaluation
    from npm.indexing.settings import VectorSettings

    if not settings.questions:
        raise missing("questions", "questions=[dev.jsonl]")
    sample = SampleSettings(limit=settings.limit, seed=settings.seed)
    if settings.write and not Path(settings.fill.reader or ".").joinpath(CONFIG).is_file():
        raise SettingError(f"write=true needs the folder of a reader, got fill.reader={settings.fill.reader!r}")
    asked, documents, skipped = read_passages(settings.questions, sample)
    for reason, count in skipped.items():
        say(f"note: {count:,} rows skipped {reason}")
    with tempfile.TemporaryDirectory() as place, StageProgress() as progress:
        folder = Path(settings.index or Path(place) / "index")
        if not (folder / MANIFEST_NAME).exists():
            model = ZeroShotEvaluation(encoder=settings.encoder, device=settings.device, precision=settings.precision)
            vectors = VectorSettings(tokens=False, blocks=False) if settings.others else VectorSettings()
            build_passages(documents, folder, model, progress, others=settings.others, vectors=vectors)
        with replace(settings, index=str(folder)).open_filler(settings.fill) as filler:
            check_passages(filler.index, asked, documents)
            if settings.others and len(corpora_of(filler.index, asked)) == 1:
                raise SettingError(f"others= is not in index={folder}, which is there already: give another index=")
            found = calibrate(filler, asked, progress=progress)
    write_report(settings.output, asdict(found), report_text([found.table()]))
    if settings.write:
        found.confidence.save(Path(settings.fill.reader))
    return 0
