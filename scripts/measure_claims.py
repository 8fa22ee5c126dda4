"""Claims that a passage supports among exchanged ones: python scripts/measure_claims.py ROWS OUT [MODEL [COUNT [SEED]]]

ROWS are made by `python -m scripts.make_questions facts`. A claim is a question of ROWS with its answer filled in; in
every other claim the answer is exchanged for an answer of another row, which its passages lack, or, in the second
table row, for another phrase of the passage that is of the answer's kind. COUNT (300) rows are drawn by SEED (0). Each
claim is scored by `score_claim` over the row's passage, its other passages and the wrong one, as FActScore's
nonparametric gate does with passages found by BM25 (Min et al. 2023, arXiv 2305.14251, §4.1), whose threshold is 0.3.
Printed are the area under the curve, and at that threshold and at the one that is best on the first half of the rows,
the accuracy on the second half. OUT gets a line of JSON per claim.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from npm import PhraseFiller
from npm.core.display import markdown_table
from npm.core.types import MASK_TEXT
from npm.corpus.text import normalized_text
from npm.evaluation.metrics import percent, wilson_interval
from npm.models.encoder import Encoder

GATE = 0.3
"""Least mean probability of a supported claim in FActScore."""
HEADER = ("exchanged for", "n", "area, %", "accuracy at 0.3, %", "best threshold", "accuracy at it, %")


def passages_of(row: dict) -> list[str]:
    """The passage of the row, up to two others of its article, and the best wrong one."""
    return [row["context"], *row["negatives"][:2], *([row["wrong_context"]] if row.get("wrong_context") else [])]


def exchanged(rows: list[dict], row: dict, where: str, draw: random.Random) -> str | None:
    """Another phrase of the answer's kind: of the passage, or of another row and in none of the passages."""
    answers = {normalized_text(each) for each in row["answers"]}
    given = normalized_text(" ".join([row["question"], *passages_of(row)]))
    if where == "of the passage":
        asked = normalized_text(row["question"])
        own = [
            each
            for each in row["rivals"]
            if normalized_text(each) not in answers and normalized_text(each) not in asked
        ]
        return draw.choice(own) if own else None
    others = [each["answers"][0] for each in draw.sample(rows, min(50, len(rows))) if each["kind"] == row["kind"]]
    return next((each for each in others if normalized_text(each) not in given), None)


def area(scores: np.ndarray, right: np.ndarray) -> float:
    """Area under the curve of true against false positives, by ranks."""
    ranks, positives = rankdata(scores), int(right.sum())
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * (len(scores) - positives)))


def table_row(where: str, lines: list[dict]) -> list[str]:
    """The area, and the accuracies of the second half, with intervals."""
    scores = np.array([line["score"] for line in lines])  # f64 [n]
    right = np.array([not line["exchanged"] for line in lines])  # bool [n]
    half = len(lines) // 2
    thresholds = np.unique(scores[:half])  # f64 [m]
    best = max(thresholds, key=lambda least: float(((scores[:half] >= least) == right[:half]).mean()))
    hits = [int(((scores[half:] >= least) == right[half:]).sum()) for least in (GATE, best)]
    at_gate, at_best = (percent(wilson_interval(each, len(lines) - half)) for each in hits)
    return [where, str(len(lines)), f"{100 * area(scores, right):.1f}", at_gate, f"{best:.3f}", at_best]


def main(rows_file: str, out: str, encoder: str = "encoder-mini", count: str = "300", seed: str = "0") -> None:
    """Score the claims, and print a table by what the answers are exchanged for."""
    rows = [json.loads(line) for line in Path(rows_file).read_text("utf-8").splitlines()]
    loaded, table = Encoder.load(encoder), []
    with Path(out).open("w", encoding="utf-8") as file:
        for where in ("of another row", "of the passage"):
            draw, lines = random.Random(int(seed)), []
            for row in draw.sample(rows, len(rows)):
                other = exchanged(rows, row, where, draw)
                if other is None or len(lines) == int(count):
                    continue
                given = other if len(lines) % 2 else row["answers"][0]
                claim = row["question"].replace(MASK_TEXT, given)
                score = PhraseFiller.over(passages_of(row), encoder=loaded).score_claim(claim)
                lines.append({"claim": claim, "exchanged": bool(len(lines) % 2), "score": score, "for": where})
                file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
            table.append(table_row(where, lines))
    sys.stdout.write(markdown_table(HEADER, table) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
