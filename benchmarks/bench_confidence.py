"""Confidence, share of the evidence, and bm25s with the reader: right answers, and questions without their passage.

    python -m benchmarks.bench_confidence QUESTIONS OUT [COUNT [SEED]]

QUESTIONS are rows as `npmlm evaluate task=reading` reads them; COUNT (600) of them, drawn by SEED (0), are asked of an
index over all their passages, with the shipped reader and its saved confidence. bm25s chooses one passage for the
reader, whose probability of its best span is the number. Written to the folder OUT: a line of JSON per question,
reliability.png (share of right answers by number) and answered.png (by share of the questions answered, surest first).
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np

from npm.core.display import markdown_table
from npm.core.types import Document
from npm.evaluation.calibrate import BINS, Measures, Observed, measures, observed
from npm.evaluation.reading import Asked, build_passages, read_passages
from npm.evaluation.settings import SampleSettings, ZeroShotEvaluation
from npm.reading.confidence import FEATURES
from npm.retrieval.filler import PhraseFiller

Curve = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
SHARE, SPAN = FEATURES.index("share"), FEATURES.index("span")
HEADER = ("number", "AUROC", "calibration error", "right in the surer half, %", "withheld, %", "right kept, %")


def by_bm25s(asked: list[Asked], documents: list[Document]) -> list[str]:
    """The id of the best passage for each question: of the best other than its own, for every second question."""
    tokens = bm25s.tokenize([f"{each.title} {each.text}" for each in documents], show_progress=False)
    retriever = bm25s.BM25()
    retriever.index(tokens, show_progress=False)
    names = [each.id for each in documents]
    found, _ = retriever.retrieve(
        bm25s.tokenize([each.question for each in asked], show_progress=False), corpus=names, k=2, show_progress=False
    )
    return [
        str(next(name for name in row if name != each.passage)) if number % 2 else str(row[0])
        for number, (each, row) in enumerate(zip(asked, found, strict=True))
    ]


def withheld_below(numbers: np.ndarray, seen: Observed) -> float:
    """The threshold that keeps seven in eight right answers, given numbers f64 [n]."""
    return float(np.quantile(numbers[seen.right & ~seen.without], 0.125))


def row_of(way: str, found: Measures) -> list[str]:
    """A row of the table."""
    shares = [f"{100 * share:.1f}" for share in (found.surer_half, found.withheld, found.kept)]
    return [way, f"{found.auroc:.3f}", f"{found.calibration_error:.3f}", *shares]


def reliability(numbers: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean number and share of right answers f64 [BINS] each, in bins of equally many answers."""
    bins = np.array_split(np.argsort(numbers, kind="stable"), BINS)
    return np.array([numbers[own].mean() for own in bins]), np.array([right[own].mean() for own in bins])


def precision_by_answered(numbers: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of the questions answered, surest first, and share of right answers among them, f64 [n] each."""
    counts = np.arange(1, len(numbers) + 1)  # i64 [n]
    surest_first = np.argsort(numbers, kind="stable")[::-1]  # i64 [n]
    return counts / len(numbers), right[surest_first].cumsum() / counts


def plot(ways: dict[str, tuple[np.ndarray, Observed]], file: Path, curve: Curve, label: str) -> None:
    """A figure with a line for each way, of points by `curve`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
    for way, (numbers, answers) in ways.items():
        axes.plot(*curve(numbers, answers.right), marker="." if curve is reliability else "", label=way)
    axes.set(xlabel=label, ylabel="share right", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    figure.savefig(file, dpi=110)


def main(questions: str, folder: str, count: str = "600", seed: str = "0") -> None:
    """Ask, print the table, and write the figures."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    asked, documents, _ = read_passages([questions], SampleSettings(limit=int(count), seed=int(seed)))
    firsts = by_bm25s(asked, documents)
    with tempfile.TemporaryDirectory() as place:
        build_passages(documents, Path(place) / "index", ZeroShotEvaluation())
        with PhraseFiller.open(Path(place) / "index") as filler:
            reader = filler.reader(filler.settings)
            assert reader is not None and reader.confidence is not None, "the shipped reader has a confidence"
            seen = observed(filler, asked)
            from_first = observed(filler, asked, passages=firsts)
            known = reader.confidence
    numbers = {
        "confidence": (known.of(seen.features), seen),
        "share of the evidence": (np.exp(seen.features[:, SHARE]), seen),
        "bm25s, reader": (np.exp(from_first.features[:, SPAN]), from_first),
    }
    rows = []
    for way, (each, answers) in numbers.items():
        threshold = known.withheld_below if way == "confidence" else withheld_below(each, answers)
        rows.append(row_of(way, measures(each, answers, threshold)))
    lines = [
        {"way": way, "number": float(number), "right": bool(right), "without": bool(without)}
        for way, (each, answers) in numbers.items()
        for number, right, without in zip(each, answers.right, answers.without, strict=True)
    ]
    (out / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plot(numbers, out / "reliability.png", reliability, "number")
    plot(numbers, out / "answered.png", precision_by_answered, "share of questions answered")
    print(f"{len(seen.right)} questions, {int(seen.right.sum())} right first\n")
    print(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
