"""`npmlm calibrate`: how likely a reader's answers are right, learned from questions with their passages."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, field, replace
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.base import EncoderCommand, OutputCommand, write_report
from npm.cli.registry import verb
from npm.core.errors import missing
from npm.core.settings import PathText
from npm.retrieval.settings import FillSettings


class CalibrateCommand(OutputCommand, EncoderCommand):
    """Fit the confidence of a reader to questions that people wrote, every other one without its passage."""

    questions: list[PathText] = field(default_factory=list)
    """Files of rows {question, answers, context, title}, or SQuAD's own JSON; all their passages are the corpus."""
    index: PathText = ""
    """Folder of an index over the passages, as `evaluate task=reading` leaves it; built if it is new; empty: for this
    time only."""
    out: PathText = ""
    """Folder of the reader that gets confidence.json; empty: nothing is written."""
    limit: PositiveInt | None = None
    """Most questions; unset: all."""
    seed: NonNegativeInt = 0
    """Seed of their choice and order."""
    fill: FillSettings = field(default_factory=FillSettings)
    """Settings of the answers, above all fill.reader."""


@verb(
    CalibrateCommand,
    "npmlm calibrate questions=[dev.jsonl] fill.reader=runs/reader/encoder out=runs/reader/encoder",
    "questions index out limit seed output encoder device",
    required=None,
    groups={"fill": "reader joint_share bm25_blocks"},
)
def run_calibrate(settings: CalibrateCommand) -> int:
    """Ask, fit, and write the function into the reader's folder."""
    from npm.cli.progress import StageProgress
    from npm.core.display import report_text
    from npm.evaluation.calibration import calibrate
    from npm.evaluation.reading import build_passages, read_passages
    from npm.evaluation.settings import SampleSettings, ZeroShotEvaluation

    if not settings.questions:
        raise missing("questions", "questions=[dev.jsonl]")
    sample = SampleSettings(limit=settings.limit, seed=settings.seed)
    asked, documents, _ = read_passages(settings.questions, sample)
    with tempfile.TemporaryDirectory() as place, StageProgress() as progress:
        folder = Path(settings.index or Path(place) / "index")
        if not folder.exists():
            model = ZeroShotEvaluation(encoder=settings.encoder, device=settings.device, precision=settings.precision)
            build_passages(documents, folder, model, progress)
        with replace(settings, index=str(folder)).open_filler(settings.fill) as filler:
            found = calibrate(filler, asked, progress=progress)
    if settings.out:
        found.confidence.save(Path(settings.out))
    write_report(settings.output, asdict(found), report_text([found.table()]))
    return 0
