"""What masking does to a masked language model, at equal steps: rates, units, and corruption against prediction.

    python scripts/masking_study.py out=runs/masking "files=[enwiki-00.jsonl.zst]" "held_out=[enwiki-07.jsonl.zst]"

Trains every cell with seeds 0, 1, 2 (experiment=masking_study) and evaluates it at 15 % on the held-out files, with
single tokens and with whole words masked; what is finished is skipped. Further arguments are settings of every training
run; seeds=[0] and articles=100 are ours.
"""

import json
import sys
from pathlib import Path

from npm.cli import main as npmlm
from npm.errors import UserError
from npm.evaluation.study import Study, run_study

RATES = {f"rate-{percent}": [f"corruption.masked_fraction={percent / 100:g}"] for percent in (15, 40, 80)}
UNITS = {
    "unit-word": ["corruption.unit=word"],
    "unit-span": ["corruption.unit=word", "corruption.sampler=geometric"],
    "unit-collocation": ["corruption.unit=collocation"],
}  # at 15 %; rate-15 is the unit token
CORRUPTION_AND_PREDICTION = {
    f"corrupt-{corrupted}-predict-{predicted}": [
        f"corruption.masked_fraction={corrupted / 100:g}",
        f"corruption.predicted_fraction={predicted / 100:g}",
        f"corruption.copies={str(predicted > corrupted).lower()}",
    ]
    for corrupted, predicted in ((40, 20), (20, 20), (20, 40), (10, 40))
}  # rate-40 is 40/40
METRICS = {"accuracy": "masked accuracy", "perplexity": "perplexity", "loss": "NLL"}


def main(arguments: list[str]) -> int:
    """Run what is missing and print the table."""
    ours = {"out": "runs/masking-study", "files": "[]", "held_out": "[]", "seeds": "[0,1,2]", "articles": "100"}
    given = dict(argument.split("=", 1) for argument in arguments)
    ours |= {key: given.pop(key) for key in ours if key in given}
    evaluate = ["task=masked_tokens", f"corpus.files={ours['held_out']}", f"limit={ours['articles']}"]
    study = Study(
        cells=RATES | UNITS | CORRUPTION_AND_PREDICTION,
        train=["experiment=masking_study", f"corpus.files={ours['files']}", *(f"{k}={v}" for k, v in given.items())],
        evaluations={f"{unit}s": [*evaluate, f"masked_unit={unit}"] for unit in ("token", "word")},
        metrics=METRICS,
    )
    try:
        status = run_study(study, Path(ours["out"]), seeds=json.loads(ours["seeds"]), command=npmlm)
    except UserError as error:
        sys.stderr.write(f"masking_study: error: {error}\n")
        return 2
    table = Path(ours["out"]) / "table.md"
    sys.stdout.write(table.read_text(encoding="utf-8") if table.is_file() else "")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
