"""What `npmlm tune` leaves in a folder: tune.json, and tune.png where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.files import json_bytes, storage_errors
from npm.errors import SettingError
from npm.retrieval.pareto import can_plot, draw_pareto

if TYPE_CHECKING:
    from npm.retrieval.tune import TuneResult
    from npm.retrieval.tune_measures import Measured
    from npm.retrieval.tune_settings import SearchChoice

JSON_NAME, PLOT_NAME = "tune.json", "tune.png"
NO_PLOT = f"no {PLOT_NAME}: matplotlib is not installed (pip install 'npmlm[plots]')"


def make_out(out: str | Path, index: Path) -> None:
    """Make the folder for the report, before the work begins.

    Raises SettingError if it lies in the folder of the index, StorageError if the system refuses.
    """
    if index.resolve() in (Path(out).resolve(), *Path(out).resolve().parents):
        raise SettingError(
            "out lies in the index",
            expected="a folder outside of the index, which holds nothing but its own parts",
            got=f"out={out}",
            where="out",
            fix="choose a folder beside the index",
        )
    with storage_errors(Path(out)):
        Path(out).mkdir(parents=True, exist_ok=True)


def write_report(result: TuneResult, out: str | Path) -> str | None:
    """Write the report to the folder `out`, over an earlier one; returns what the user should know.

    Raises StorageError if the system refuses.
    """
    folder = Path(out)
    _replace(folder / JSON_NAME, lambda path: path.write_bytes(json_bytes(tune_record(result))))
    if not can_plot():
        return NO_PLOT
    _replace(folder / PLOT_NAME, lambda path: draw_pareto(result, path))
    return None


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file that then takes the place of `path`, so that a report is whole or the one before."""
    temporary = path.parent / f".{path.name}.tmp"
    with storage_errors(path, temporary):
        try:
            write(temporary)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)


def tune_record(result: TuneResult) -> dict[str, Any]:
    """The whole result as JSON values; no path of this machine."""
    settings = result.settings
    return {
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
        "front": [_choice_record(each.choice) for each in result.front],
        "before": _choice_record(result.present),
        "chosen": _choice_record(result.chosen.choice),
        "written_generation": result.written_generation,
        "notes": list(result.notes),
    }


def _choice_record(choice: SearchChoice) -> dict[str, int | None]:
    return {
        "probed_lists": choice.probed_lists,
        "rerank_factor": choice.rerank_factor,
        "candidates_per_side": choice.candidates_per_side,
    }


def _measured_record(measured: Measured) -> dict[str, Any]:
    return {
        **_choice_record(measured.choice),
        "reranked_rows": measured.choice.reranked_rows,
        "recall": {str(rank): share for rank, share in measured.recall.items()},
        "agreement": measured.agreement,
        "agreement_with_widest": measured.agreement_with_widest,
        "p50_ms": measured.p50_ms,
        "p95_ms": measured.p95_ms,
    }
