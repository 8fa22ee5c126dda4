"""The verbs that measure, with their settings."""

from __future__ import annotations

import sys
from dataclasses import asdict, field
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from npm.cli.base import OutputCommand, say, write_report
from npm.cli.progress import StageProgress
from npm.cli.registry import verb
from npm.core.errors import SettingError
from npm.core.settings import config_folder
from npm.evaluation.settings import EvaluationSettings


@verb(
    EvaluationSettings,
    "npmlm evaluate task=demo index=DIR out=runs/evaluation",
    "out task suite method index encoder data_dir corpus.files split limit seed show device",
    required="out",
    presets="scoring",
    groups={
        "corpus": "files split text_field max_documents",
        "fill": "k retrieval bm25_blocks vector_share lexical_weight reader joint_share literal_weight "
        "where max_phrase_tokens",
        "fill.scoring": "length_exponent temperature",
        "zero_shot.causal": "model knn_share knn_temperature knn_k",
    },
)
def run_evaluate(settings: EvaluationSettings) -> int:
    """Evaluate, and print the tables."""
    from npm.evaluation.evaluate import run_evaluation

    with StageProgress() as progress:
        report = run_evaluation(settings, task_folder=config_folder() / "task", progress=progress, notice=progress.say)
        sys.stdout.write(report)
    return 0


class CompareCommand(OutputCommand):
    """Compare two evaluations: npmlm compare A B, folders that evaluate wrote, or one of them and methods=."""

    methods: list[str] = field(default_factory=list)
    """Two methods, of the first and of the second folder; empty: those of equal names."""
    seed: NonNegativeInt = 0
    """Seed of the bootstrap."""
    resamples: PositiveInt = 10_000
    """Of the paired bootstrap, for 95 % confidence intervals."""


@verb(
    CompareCommand,
    "npmlm compare runs/first runs/second",
    "methods seed resamples output",
    required=None,
    takes_texts=True,
)
def run_compare(settings: CompareCommand, folders: list[str]) -> int:
    """Compare two folders of results, or two methods in one."""
    from npm.core.display import report_text
    from npm.evaluation.compare import compare_results, comparison_table

    methods = tuple(settings.methods)
    if len(folders) not in (1, 2) or len(methods) not in (0, 2) or (len(folders) == 1 and not methods):
        raise SettingError(
            "npmlm compare takes two folders of results, or one and methods=[A,B], "
            f"got {len(folders)} folders and {len(methods)} methods"
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
    write_report(settings.output, asdict(comparison), report_text([comparison_table(comparison)], min_columns=100))
    return 0
