"""The folder that an evaluation leaves behind: predictions.jsonl, metrics.json and tables, whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.files import digest_of, json_bytes, storage_errors
from index.store import MANIFEST_NAME, read_manifest, write_folder
from npm.errors import ArtefactError
from npm.retrieval.settings import FillSettings
from npm.settings import enum_value

if TYPE_CHECKING:
    from npm.models.encoder import StoredModel
    from npm.retrieval.fill import PhraseFiller


EVALUATION_KIND = "evaluation"


def check_out(out: str | Path) -> None:
    """Refuse, with ArtefactError, anything but the folder of an earlier evaluation. Ask before the work begins."""
    out = Path(out)
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST_NAME).is_file()):
        raise ArtefactError(
            f"{out} is not a folder for results",
            expected="a path where nothing is yet, or the results of an earlier evaluation",
            got="a folder with other files" if out.is_dir() else "a file",
            where=str(out),
            fix="choose another folder with out=DIR",
        )
    if any(out.iterdir()):
        read_manifest(out, kind=EVALUATION_KIND)


def write_results(
    out: str | Path,
    *,
    record: Mapping[str, Any],
    predictions: Iterable[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    report: str = "",
) -> None:
    """Write the results to the folder `out`, in place of those of an earlier evaluation.

    `record` says what they depend on and goes into the manifest; `report` is the text of results.md, if any. Raises
    ArtefactError as `check_out` does, and StorageError if the disk refuses; `out` is then as it was.
    """
    out = Path(out)
    check_out(out)
    fresh = out.parent / f".{out.name}.new"
    with storage_errors(out, fresh):
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            with write_folder(fresh, kind=EVALUATION_KIND, settings=record) as writer:
                lines = writer.open_binary("predictions.jsonl")
                for prediction in predictions:
                    line = json.dumps(prediction, ensure_ascii=False, sort_keys=True, allow_nan=False)
                    lines.write(line.encode() + b"\n")
                writer.open_binary("metrics.json").write(json_bytes(metrics))
                if report:
                    writer.open_binary("results.md").write(report.encode())
            if out.exists():
                shutil.rmtree(out)
            fresh.rename(out)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def model_facts(model: StoredModel) -> dict[str, Any]:
    """Which weights a result is of."""
    return {"name": model.name, "fingerprint": model.fingerprint}


def filler_facts(filler: PhraseFiller, settings: FillSettings | None = None) -> dict[str, Any]:
    """What the answers of `filler` depend on, without where anything lies: JSON values only."""
    given = asdict(settings if settings is not None else filler.settings)
    # Without how much is shown, which the task decides, and the settings that a command adds, such as paths.
    names = sorted({item.name for item in fields(FillSettings)} - {"k", "occurrences"})
    filling: dict[str, Any] = json.loads(json.dumps({name: given[name] for name in names}, default=enum_value))
    return {
        "filling": filling,
        "encoder": model_facts(filler.encoder),
        "index": {
            "settings_digest": digest_of(filler.index.manifest.settings),
            "corpus_digest": filler.index.store.digest,
        },
    }
