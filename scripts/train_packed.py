"""A part of a training run on blocks that another run has packed; `scripts/train_on_gpu.sh` calls it.

    python scripts/train_packed.py PACKED RUN OUT MINUTES [key=value …]
PACKED: settings.json, corpus/, encoder/ and perhaps held-out/. Exit status 3: not at the end yet, call it again.
"""

import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from npm.core.errors import UserError
from npm.core.settings import read_settings
from npm.training.checkpoints import METRICS, RunFolder
from npm.training.record import read_metrics, settings_of_record
from npm.training.run import run_training
from npm.training.settings import HELD_OUT_LOSS, TrainingSettings
from npm.training.trainer import StepReport
from studies.plotting import CurveSettings, can_draw, draw_runs, save_figure

say = partial(print, file=sys.stderr, flush=True)


def value_of(text: str) -> object:
    """A number, a list, true, false or null as JSON has it; anything else is text."""
    with suppress(ValueError):
        return json.loads(text)
    return text


def report(done: StepReport) -> None:
    """A line every hundred steps."""
    if done.step % 100 == 0:
        say(f"step {done.step}, {done.tokens:,} tokens, {done.progress:.1%}")


def main(packed: Path, run: Path, out: Path, minutes: float, changes: list[str]) -> int:
    """Train for some minutes, and write what is known of the run by then."""
    given = {key: value_of(value) for key, _, value in (change.partition("=") for change in changes)}
    try:
        record = json.loads((packed / "settings.json").read_text())
        given |= {"packed": str(packed), "encoder": str(packed / "encoder")}
        settings = read_settings(TrainingSettings, settings_of_record(record, given))
        run_training(run, settings, announce=say, report_step=report, most_minutes=minutes)
    except UserError as error:
        say(error)
        return 2
    records = [record for _, record in read_metrics(run / METRICS)] if (run / METRICS).is_file() else []
    if measured := [record for record in records if HELD_OUT_LOSS in record]:
        (out / "evaluation.json").write_text(json.dumps(measured[-1], indent=1) + "\n")
    if can_draw() and len(records) > 1:
        save_figure(draw_runs([run], CurveSettings()).figure, out / "curves.png")
    return 0 if RunFolder(run).is_finished else 3


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4]), float(sys.argv[4]), sys.argv[5:]))
