"""`npmlm calibrate`: how likely a reader's answers are right, learned from questions with their passages."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, field, replace
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.base import EncoderCommand, OutputCommand, say, write_report
from npm.cli.registry import verb
from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import SettingError, missing
from npm.core.settings import PathText
from npm.models.names import CONFIG
from npm.retrieval.settings import FillSettings


class CalibrateCommand(OutputCommand, EncoderCommand):
    """Fit the confidence of a reader to questions that people wrote, every other one without its passage."""

    questions: list[PathText] = field(default_factory=list)
    """Files of rows {question, answers, context, title}, or SQuAD's own JSON; all their passages are the corpus."""
    index: PathText = ""
    """Folder of an index over the passages, as `evaluate task=reading` leaves it; built if missing; empty: a temporary
    index."""
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
    "questions index write limit seed output encoder device",
    required=None,
    groups={"fill": "reader joint_share bm25_blocks"},
)
def run_calibrate(settings: CalibrateCommand) -> int:
    """Ask, fit, report, and with write=true save the function."""
    from npm.cli.progress import StageProgress
    from npm.core.display import report_text
    from npm.evaluation.reading import build_passages, calibrate, read_passages
    from npm.evaluation.settings import SampleSettings, ZeroShotEvaluation

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
            build_passages(documents, folder, model, progress)
        with replace(settings, index=str(folder)).open_filler(settings.fill) as filler:
            found = calibrate(filler, asked, progress=progress)
    write_report(settings.output, asdict(found), report_text([found.table()]))
    if settings.write:
        found.confidence.save(Path(settings.fill.reader))
    return 0
