"""What masking does to a masked language model, at equal steps: rates, units, and corruption against prediction.

    python scripts/masking_study.py out=runs/masking "files=[enwiki-00.jsonl.zst]" "held_out=[enwiki-07.jsonl.zst]"

Trains every cell with seeds 0, 1, 2 (experiment=masking_study) and evaluates it at 15 % on the held-out files, with
single tokens and with whole words masked; what is finished is skipped. Further arguments are settings of every training
run; seeds=[0] and articles=100 are ours.
"""

import sys

from npm.cli.main import main as npmlm
from npm.cli.settings import compose_settings
from npm.errors import UserError
from npm.evaluation.study import MaskingStudy, run_study


def main(arguments: list[str]) -> int:
    """Run what is missing and print the table."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    try:
        asked = MaskingStudy.of(arguments)
        status = run_study(
            asked.study,
            asked.out,
            seeds=asked.seeds,
            command=npmlm,
            check=lambda command: compose_settings(command[0], command[1:]),
        )
    except UserError as error:
        sys.stderr.write(f"masking_study: error: {error}\n")
        return 2
    table = asked.out / "table.md"
    sys.stdout.write(table.read_text(encoding="utf-8") if table.is_file() else "")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
