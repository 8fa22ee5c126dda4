"""A study: cells of commands that build on one another, each with several seeds, and one table.

    python scripts/study.py masking out=runs/masking "files=[enwiki-00.jsonl.zst]" "held_out=[enwiki-07.jsonl.zst]"
    python scripts/study.py ablations out=runs/ablations "files=[enwiki-00.jsonl.zst]" "held_out=[enwiki-07.jsonl.zst]"
    python scripts/study.py interventions out=runs/interventions encoder=runs/mlm-mini/encoder data_dir=GLUE
    python scripts/study.py retrievers out=runs/retrievers "held_out=[enwiki-07.jsonl.zst]"
    python scripts/study.py tokenizers "files=[enwiki-00.jsonl.zst]" "held_out=[enwiki-07.jsonl.zst]"

`masking` (experiment=masking_study): what masking does to a masked language model: rates, units, and corruption against
prediction; evaluated at 15 %, with single tokens and with whole words masked. `ablations` (experiment=ablations): what
the phrase loss is made of; top-1 among the keys of a held-out group. `interventions`: a masked language model edited
(npmlm edit) and fine-tuned on STS-B, SST-2 and CoLA. `retrievers`: the same edits of a phrase encoder, not trained.
`tokenizers`: fresh encoders over bytes, byte pairs and WordPieces, trained for equal time. `transfer`: what artificial
text brings to another language, prepared by scripts/transfer_study.py.

Every cell is run with seeds 0, 1, 2; what is finished is skipped. out=, seeds=[0], cells=[rate-15,rate-40],
articles=100 and, of interventions, tasks=[stsb] are ours; further arguments are settings of every training run,
fine-tuning or, of retrievers, evaluation.
"""

import sys

from npm.cli.main import main as npmlm
from npm.cli.settings import compose_settings
from npm.core.errors import UserError
from npm.evaluation.study import run_study
from npm.evaluation.study_plans import ChosenStudy


def main(arguments: list[str]) -> int:
    """Run what is missing and print the table."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    try:
        asked = ChosenStudy.of(arguments)
        status = run_study(
            asked.study,
            asked.out,
            seeds=asked.seeds,
            cells=asked.cells,
            command=npmlm,
            check=lambda command: compose_settings(command[0], command[1:]),
        )
    except UserError as error:
        sys.stderr.write(f"study: error: {error}\n")
        return 2
    table = asked.out / "table.md"
    sys.stdout.write(table.read_text(encoding="utf-8") if table.is_file() else "")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
