"""The verbs that measure: evaluations and their comparison; settings in, tables out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npm.errors import SettingError
from npm.progress import StageProgress, say

if TYPE_CHECKING:
    from npm.commands import CompareCommand, EvaluateCommand


def run_evaluate(settings: EvaluateCommand) -> int:
    """`npmlm evaluate`."""
    from npm.config import config_folder
    from npm.evaluation.run import run_evaluation

    with StageProgress() as progress:
        report = run_evaluation(settings, task_folder=config_folder() / "task", progress=progress)
        sys.stdout.write(report + "\n")
    return 0


def run_compare(settings: CompareCommand, folders: list[str]) -> int:
    """`npmlm compare`: two folders of results, or two methods in one."""
    from npm.commands import Output
    from npm.evaluation.compare import compare_results, comparison_rows
    from npm.tables import plain_table

    methods = tuple(settings.methods)
    if len(folders) not in (1, 2) or len(methods) not in (0, 2) or (len(folders) == 1 and not methods):
        raise SettingError(
            "compare needs two things to compare",
            expected="two folders of results, or one and methods=[A,B]",
            got=f"{len(folders)} folders and {len(methods)} methods",
            where="npmlm compare",
            fix="npmlm compare A B, or npmlm compare A methods=[npm,mlm]",
        )
    comparison = compare_results(
        Path(folders[0]),
        Path(folders[-1]),
        methods=(methods[0], methods[1]) if methods else None,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    for note in comparison.notes:
        say(f"note: {note}")
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(comparison.record(), ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(plain_table(*comparison_rows(comparison)))
    return 0
