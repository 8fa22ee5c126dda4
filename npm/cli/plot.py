"""`npmlm plot`: which picture is meant by the folders that are named, and what of it goes to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from npm.cli.commands import Output
from npm.cli.progress import say
from npm.cli.tables import number_tables
from npm.cli.training_commands import PictureKind, PlotCommand
from npm.core.artifact import read_manifest
from npm.core.errors import ArtifactError, SettingError
from npm.core.figures import Picture, check_picture, folder_names, save_figure
from npm.core.files import read_object
from npm.core.settings import changed_settings
from npm.evaluation.analyses.panels import KEY as PANELS
from npm.evaluation.analyses.panels import panels_picture
from npm.evaluation.analyses.senses import senses_picture
from npm.evaluation.models.embeddings import TASK as EMBEDDINGS
from npm.evaluation.models.embeddings import embeddings_picture
from npm.evaluation.models.parameters import TASK as PARAMETERS
from npm.evaluation.models.parameters import parameters_picture
from npm.evaluation.pictures import confusion_picture, read_answers, reliability_picture
from npm.evaluation.results import EVALUATION_KIND, METRICS, PREDICTIONS
from npm.evaluation.sts.evaluate import TASK as STS
from npm.evaluation.sts.plane import geometry_picture
from npm.evaluation.tasks.task import Suite
from npm.training.plotting import curves_picture
from npm.tuning.pareto import JSON_NAME, tune_picture

RUN_METRICS = "metrics.jsonl"
READ_BY: dict[PictureKind, tuple[str, ...]] = {
    PictureKind.curves: ("terms", "x", "smoothed_points"),
    PictureKind.tune: (),
    PictureKind.reliability: ("tasks", "methods", "bins"),
    PictureKind.confusion: ("tasks", "methods"),
    PictureKind.geometry: ("arrows",),
    PictureKind.panels: (),
    PictureKind.senses: ("index", "word", "colour_by"),
    PictureKind.parameters: (),
    PictureKind.embeddings: (),
}
"""The settings of each picture; if others were set, they are refused."""


def plot(settings: PlotCommand, folders: Sequence[Path]) -> None:
    """Draw the picture of `folders`, write it, and print its numbers.

    Raises SettingError for folders of different kinds or settings that do not fit, ArtifactError for a folder that
    holds nothing to draw or is damaged, StorageError if the system refuses the picture.
    """
    out = Path(settings.out)
    check_picture(out)
    kind = settings.picture
    if list(folders) == [Path(PictureKind.senses.value)] and not folders[0].exists():
        kind, folders = PictureKind.senses, []  # as in npmlm plot senses index=DIR word=WORD
    if kind is PictureKind.auto:
        kind = meant_picture(folders)
    _refuse_unused(settings, kind)
    picture = draw(kind, settings, folders)
    save_figure(picture.figure, out)
    for note in picture.notes:
        say(f"note: {note}")
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(picture.record, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(number_tables(picture.tables))
    say(f"the picture is in {out}")


def draw(kind: PictureKind, settings: PlotCommand, folders: Sequence[Path]) -> Picture:
    """The picture of this kind; raises as `plot` does."""
    if kind is PictureKind.curves:
        return curves_picture(folders, settings)
    if kind is PictureKind.tune:
        return tune_picture(folders)
    if kind is PictureKind.geometry:
        return geometry_picture(folders, arrows=settings.arrows)
    if kind is PictureKind.panels:
        return panels_picture(folders)
    if kind is PictureKind.senses:
        return senses_picture(settings.index, settings.word, settings.colour_by)
    if kind is PictureKind.parameters:
        return parameters_picture(folders)
    if kind is PictureKind.embeddings:
        return embeddings_picture(folders)
    answers = read_answers(folders, settings.tasks, settings.methods)
    return confusion_picture(answers) if kind is PictureKind.confusion else reliability_picture(answers, settings.bins)


def meant_picture(folders: Sequence[Path]) -> PictureKind:
    """The picture that all `folders` hold something for; of several the first, with a note that names the others.

    Raises SettingError without folders or for folders of different kinds, ArtifactError for one with nothing to draw.
    """
    kinds = {name: drawable(folder) for name, folder in zip(folder_names(folders), folders, strict=True)}
    first, *others = kinds.values()
    shared = [kind for kind in first if all(kind in each for each in others)]
    if not shared:
        each = "; ".join(f"{name}: {', '.join(kind.value for kind in own)}" for name, own in kinds.items())
        raise SettingError(f"these folders have no picture in common ({each}): plot each in a command of its own")
    if len(shared) > 1:
        named = " or ".join(f"picture={kind.value}" for kind in shared[1:])
        say(f"note: this is picture={shared[0].value}; {named} can be drawn of the same results")
    return shared[0]


def drawable(folder: Path) -> list[PictureKind]:
    """The pictures that can be drawn of a folder, the one that is likeliest meant first.

    Raises ArtifactError if there is none.
    """
    kinds = [PictureKind.curves] if (folder / RUN_METRICS).is_file() else []
    kinds += [PictureKind.tune] if (folder / JSON_NAME).is_file() else []
    if (folder / PREDICTIONS).is_file() or (folder / METRICS).is_file():
        kinds += _drawable_results(folder)
    if not kinds:
        raise ArtifactError(f"{folder} must be a folder that npmlm train, npmlm tune out= or npmlm evaluate wrote")
    return kinds


def _drawable_results(folder: Path) -> list[PictureKind]:
    """Of results of `npmlm evaluate`. Raises ArtifactError if they are damaged, or of a task without a picture."""
    task = read_manifest(folder, kind=EVALUATION_KIND).settings.get("task")
    content = read_object(folder / METRICS, fix="evaluate again")
    panels = [PictureKind.panels] if content.get(PANELS) else []
    if task in (PARAMETERS, EMBEDDINGS):
        return [PictureKind(task)]
    if task == STS:
        return [PictureKind.geometry]
    if task == "demo":
        return [PictureKind.reliability]
    tasks = content.get("tasks")
    suites = {each.get("suite") for each in tasks.values() if isinstance(each, dict)} if isinstance(tasks, dict) else ()
    if Suite.closed.value in suites:
        return [*panels, PictureKind.confusion, PictureKind.reliability]
    if Suite.open.value in suites:
        return [*panels, PictureKind.reliability]
    if panels:
        return panels
    raise ArtifactError(f"{folder}: no picture for results of task={task}; their numbers are in {METRICS}")


def _refuse_unused(settings: PlotCommand, kind: PictureKind) -> None:
    """What was set for another picture would be passed over without a word."""
    others = {name for names in READ_BY.values() for name in names} - {*READ_BY[kind]}
    if changed := changed_settings(settings, PlotCommand(), sorted(others)):
        raise SettingError(f"picture={kind.value} has no use for {', '.join(changed)}")
