"""Temporal adaptation: exact match on changed and unchanged facts × old corpus, new corpus, both.

    python scripts/temporal.py out=runs/temporal
    python scripts/temporal.py out=runs/temporal task=templama data_dir=data old=wiki-2019.jsonl new=wiki-2022.jsonl

The first asks 200 facts with invented names, made for the purpose; the second two dumps of one corpus with the same
ids, such as wiki-2019.jsonl and wiki-2022.jsonl, and a task with `data.dates`. Builds an index over each, changes a
copy of the first by `add replace=true`, builds one over both with dates kept, evaluates all and writes OUT/table.md;
what is finished is skipped. Further arguments are settings of evaluate, and build.KEY=VALUE of build.
"""

import sys

from npm.cli.main import main as npmlm
from npm.cli.settings import compose_settings
from npm.cli.verbs import config_folder
from npm.core.errors import UserError
from npm.evaluation.analyses.temporal import TemporalStudy, run_temporal
from npm.evaluation.run import check_evaluation


def main(arguments: list[str]) -> int:
    """Run what is missing and print the table."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    try:
        tasks = config_folder() / "task"
        study = TemporalStudy.of(arguments, task_folder=tasks)
        for verb, *settings in (*study.builds.values(), *study.evaluations.values()):
            compose_settings(verb, settings)  # refuses what is no setting before anything is written
        status = run_temporal(
            study,
            npmlm,
            check=lambda evaluation: check_evaluation(compose_settings("evaluate", evaluation[1:]), task_folder=tasks),
        )
    except UserError as error:
        sys.stderr.write(f"temporal: error: {error}\n")
        return 2
    if status == 0:
        sys.stdout.write((study.out / "table.md").read_text(encoding="utf-8"))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
