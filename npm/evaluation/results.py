"""The folder of an evaluation's results: predictions.jsonl, metrics.json and tables.

New ones are written completely, or not at all; where they replace others, a kill in between leaves a folder that is
known as damaged, and that the same command replaces.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.artifact import MANIFEST_NAME, read_manifest, refuse_changed, write_folder
from npm.core.display import Table, report_text
from npm.core.errors import ArtifactError, named
from npm.core.files import check_writable, digest_of, json_bytes, replace_file
from npm.core.settings import as_json
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.stored import StoredModel
    from npm.retrieval.filler import PhraseFiller


EVALUATION_KIND = "evaluation"
PREDICTIONS, METRICS, REPORT = "predictions.jsonl", "metrics.json", "results.md"
FRESH = ".results.new"  # folder below `out` of results that replace others


@dataclass(frozen=True, slots=True)
class Result:
    """Measurements of a task."""

    record: Mapping[str, Any]  # settings and fingerprints that the numbers depend on, as in the manifest
    lines: Sequence[Mapping[str, Any]]  # lines of predictions.jsonl
    means: Mapping[str, Any]  # content of metrics.json in addition to the record
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    report: str = ""  # text of results.md, if any
    samples: Sequence[RenderableType] = ()  # shown after the tables

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {**self.record, **self.means}

    def write(self, out: str | Path) -> None:
        """Write the results to the folder `out`, replacing those of an earlier evaluation; other files stay.

        Raises ArtifactError as `check_out` does; `out` is then as it was.
        """
        out = check_out(out, report=bool(self.report))
        fresh = out / FRESH if out.exists() else out
        with write_folder(fresh, kind=EVALUATION_KIND, settings=self.record) as writer:
            lines = writer.open_binary(PREDICTIONS)
            for prediction in self.lines:
                line = json.dumps(prediction, ensure_ascii=False, sort_keys=True, allow_nan=False)
                lines.write(line.encode() + b"\n")
            writer.open_binary(METRICS).write(json_bytes(self.metrics()))
            if self.report:
                writer.open_binary(REPORT).write(self.report.encode())
        if fresh == out:
            return
        # The manifest comes first: until all files are there, their hashes differ.
        files = read_manifest(fresh, kind=EVALUATION_KIND).files
        before = read_manifest(out, kind=EVALUATION_KIND).files if (out / MANIFEST_NAME).is_file() else {}
        if REPORT in before.keys() - files.keys():  # only names of our own, not all that the manifest lists
            (out / REPORT).unlink(missing_ok=True)
        replace_file(out / MANIFEST_NAME, (fresh / MANIFEST_NAME).read_bytes())
        for name in files:
            (fresh / name).replace(out / name)
        (fresh / MANIFEST_NAME).unlink()  # last: by it the folder of a killed evaluation is known
        fresh.rmdir()

    def text(self) -> str:
        """Tables, notes and samples for stdout."""
        return report_text([*self.tables, *(f"note: {note}" for note in self.notes), *self.samples], min_columns=60)


def check_out(out: str | Path, *, report: bool = True) -> Path:
    """The folder that results for `out` are written to: itself, or the one that a link leads to.

    Ask before the work begins. Raises ArtifactError for anything but an empty path, an empty folder, or the folder of
    an earlier evaluation where the new files, results.md among them with `report`, replace no others.
    """
    out = Path(out)
    if out.is_symlink() and not (out / MANIFEST_NAME).is_file():
        raise ArtifactError(f"{out} is not a folder for results, but a link to something else")
    out = Path(os.path.realpath(out)) if out.is_symlink() else out  # next to the target, not next to the link
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is not a folder for results, but a file")
    shutil.rmtree(out / FRESH, ignore_errors=True)  # of an evaluation that was killed
    found = {path.name for path in out.iterdir() if not path.name.startswith(f".{FRESH}")} if out.is_dir() else set()
    others = sorted(found)
    if MANIFEST_NAME in found:
        own = read_manifest(out, kind=EVALUATION_KIND).files
        names = (PREDICTIONS, METRICS, REPORT) if report else (PREDICTIONS, METRICS)
        others = [name for name in names if name in found and (name not in own or (out / name).is_dir())]
    if others:
        raise ArtifactError(
            f"{out} is not a folder for results: it has other files ({named(others)}); choose another with out=DIR"
        )
    check_writable(out)
    return out


def refuse_other_results(out: Path | None, record: Mapping[str, Any]) -> None:
    """Raise ArtifactError, naming the differences, if `out` holds results of another task or of other settings.

    Ask before the work begins; None may be replaced.
    """
    if out is not None and (out / MANIFEST_NAME).is_file():
        refuse_changed(
            record,
            read_manifest(out, kind=EVALUATION_KIND).settings,
            where=out,
            problem=f"{out} holds results of something else, or of other settings",
            fix="choose another folder with out=DIR, or give overwrite=true to replace them",
        )


def model_facts(model: StoredModel) -> dict[str, Any]:
    """Weights that a result is of."""
    return {"name": model.name, "fingerprint": model.fingerprint}


def filler_facts(filler: PhraseFiller, settings: FillSettings | None = None) -> dict[str, Any]:
    """Settings and fingerprints that the answers of `filler` depend on, without paths: JSON values only."""
    given = asdict(settings if settings is not None else filler.settings)
    # Without how much is shown, which the task decides, and the settings that a command adds, such as paths.
    names = sorted({item.name for item in fields(FillSettings)} & given.keys() - {"k", "occurrences"})
    reader = filler.reader(settings or filler.settings)
    return {
        "filling": as_json({name: given[name] for name in names}),
        "encoder": model_facts(filler.encoder),
        "reader": None if reader is None else [reader.name, reader.fingerprint],
        "index": index_facts(filler.index),
    }


def index_facts(index: PhraseIndex) -> dict[str, Any]:
    """Index that a result is of."""
    return {"settings_digest": digest_of(index.manifest.settings), "corpus_digest": index.store.digest}
