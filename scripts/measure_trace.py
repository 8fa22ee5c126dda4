"""Right and exchanged names, numbers and dates among traced ones.

    python -m scripts.measure_trace ROWS INDEX OUT [COUNT [SEED]]

ROWS are made by `python -m scripts.make_questions entities`; INDEX is built over the corpus that `make_questions task`
makes of them. A sentence is a question of ROWS with its answer filled in, with another phrase of its kind from the same
passage, and with the answer of another row of its kind. Style `asked` is the question, which is in another article or
elsewhere in its own, not in the corpus; `copy` is the sentence of the passage itself. COUNT (300) rows, drawn by SEED
(0), are traced in each style, the span in question alone. OUT gets a line of JSON per sentence. Printed are the shares
that are reported, and a support fitted anew to style `asked`, by five-fold cross-validation over rows and in full.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from npm.core.display import markdown_table
from npm.core.types import MASK_TEXT
from npm.corpus.text import normalized_text, sentence_bounds
from npm.evaluation.metrics import percent, wilson_interval
from npm.reading.confidence import fit, probabilities
from npm.retrieval.filler import PhraseFiller
from npm.tracing.settings import KINDS
from npm.tracing.spans import Span
from npm.tracing.trace import LEAST_SCORE, Tracer, matches

SENTENCE_CHARS = 40
KINDS_OF_SENTENCES = ("right", "same passage", "elsewhere")
HEADER = ("sentences", "n", *(f"{name}, reported, %" for name in KINDS_OF_SENTENCES), "other is the right one, %")


def rivals_of(row: dict) -> list[str]:
    """The phrases of the passage that are of the answer's kind, and neither it nor in the question."""
    inside, answer = normalized_text(row["question"]), normalized_text(row["answers"][0])
    return [each for each in row["rivals"] if normalized_text(each) != answer and normalized_text(each) not in inside]


def masked_sentences(row: dict) -> Iterator[tuple[str, str]]:
    """Style and sentence with a mask: the question, and the sentence of the passage that has the answer."""
    yield "asked", row["question"]
    block, answer = row["context"], row["answers"][0]
    start = block.find(answer)
    stop = start + len(answer)
    for first, last in sentence_bounds(block).tolist():
        if 0 <= first <= start and stop <= last and last - first >= SENTENCE_CHARS:
            yield "copy", f"{block[first:start]}{MASK_TEXT}{block[stop:last]}"


def traced(tracer: Tracer, row: dict, masked: str, given: str) -> dict:
    """The verdict on a phrase in place of the mask, with the features of its support."""
    before, _, after = masked.partition(MASK_TEXT)
    text, stop = f"{before}{given}{after}", len(before) + len(given)
    seen: list[np.ndarray] = []
    tracer.features = lambda *parts: seen.append(Tracer.features(tracer, *parts)) or seen[0]
    found = tracer.verdicts(text, [Span(row["kind"], len(before), stop, 0, len(text))])[0]
    features = seen[0].tolist() if seen else [0.0, 0.0, float(np.log(LEAST_SCORE))]
    answer = row["answers"][0]
    return {"text": text, "answer": answer, "verdict": found.verdict, "other": found.other, "features": features}


def main(rows_file: str, index: str, out: str, count: str = "300", seed: str = "0") -> None:
    """Trace the sentences, and print the tables."""
    draw = random.Random(int(seed))
    read = [json.loads(line) for line in Path(rows_file).read_text("utf-8").splitlines()]
    rows = [row for row in read if row["kind"] in KINDS and rivals_of(row)]
    answers = {kind: [row["answers"][0] for row in rows if row["kind"] == kind] for kind in KINDS}
    tracer, lines = Tracer(PhraseFiller.open(index)), []
    with Path(out).open("w", encoding="utf-8") as file:
        for number, row in enumerate(draw.sample(rows, min(int(count), len(rows)))):
            right = row["answers"][0]
            given = {
                "right": right,
                "same passage": draw.choice(rivals_of(row)),
                "elsewhere": draw.choice(answers[row["kind"]]),
            }
            for style, masked in masked_sentences(row):
                for how, phrase in given.items():
                    if how != "right" and phrase == right:
                        continue
                    facts = {"row": number, "style": style, "how": how, "kind": row["kind"]}
                    lines.append({**facts, **traced(tracer, row, masked, phrase)})
                    file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
                    file.flush()
    groups = {style: [line for line in lines if line["style"] == style] for style in ("asked", "copy")}
    sys.stdout.write(markdown_table(HEADER, [table_row(name, own) for name, own in groups.items() if own]) + "\n")
    print_fit(groups["asked"])


def table_row(name: str, lines: list[dict]) -> list[str]:
    """The share of each kind of sentence whose span is reported, with its interval."""
    passed = ("found", "supported")
    flagged = [[line["verdict"] not in passed for line in lines if line["how"] == how] for how in KINDS_OF_SENTENCES]
    others = [line for line in lines if line["how"] == "same passage" and line["other"]]
    named = [matches(line["answer"], line["other"]) for line in others]
    shares = [percent(wilson_interval(sum(own), len(own))) if own else "" for own in (*flagged, named)]
    return [name, str(len(flagged[0])), *shares]


def print_fit(lines: list[dict]) -> None:
    """A support fitted to these sentences: what it reports at several shares of right spans that pass."""
    features = np.array([line["features"] for line in lines])  # f64 [n, 3]
    how, row = (np.array([line[name] for line in lines]) for name in ("how", "row"))
    right = how == "right"  # bool [n]
    support = np.zeros(len(lines))  # f64 [n]
    for fold in range(5):
        own = row % 5 == fold
        weights, bias = fit(features[~own], right[~own])
        support[own] = probabilities(features[own] @ weights + bias)
    sys.stdout.write(
        "\n".join(
            f"{passed:.0%} of right spans pass {least:.3f}: reported "
            + ", ".join(f"{(support[how == name] < least).mean():.0%} {name}" for name in KINDS_OF_SENTENCES[1:])
            for passed in (0.5, 0.8, 0.9, 0.95, 0.99)
            for least in [np.quantile(support[right], 1 - passed)]
        )
    )
    weights, bias = fit(features, right)
    quantiles = np.quantile(probabilities(features[right] @ weights + bias), [0.5, 0.2, 0.1, 0.05, 0.01])
    sys.stdout.write(f"\nin full: weights {weights.round(3)}, bias {bias:.3f}, right ones pass {quantiles.round(3)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
