"""Exchanged names, numbers and dates among traced ones: python scripts/measure_trace.py ROWS INDEX OUT [COUNT [SEED]]

ROWS are made by `python -m scripts.make_questions entities`; INDEX is built over the corpus that `make_questions task`
makes of them. A sentence is a question of ROWS with its answer filled in. In every other sentence the answer is
exchanged for another phrase of its kind from the same passage. Style `asked` is the question, which is in another
article or elsewhere in its own, not in the corpus; `copy` is the sentence of the passage itself. COUNT (300) rows of
every second one, drawn by SEED (0), are traced in each style, the span in question alone: the other rows are those that
the support was fitted to. OUT gets a line of JSON per sentence.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from npm.core.types import MASK_TEXT
from npm.corpus.text import normalized_text, sentence_bounds
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.report import markdown_table, percent
from npm.retrieval.fill import PhraseFiller
from npm.tracing.settings import KINDS
from npm.tracing.spans import Span
from npm.tracing.trace import Tracer, matches

SENTENCE_CHARS = 40
HEADER = ("sentences", "n", "precision, %", "recall, %", "right ones found, %", "other is the right one, %")


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


def traced(tracer: Tracer, row: dict, style: str, masked: str, given: str) -> dict:
    """The verdict on a phrase in place of the mask, as a line of OUT."""
    before, _, after = masked.partition(MASK_TEXT)
    text, stop = f"{before}{given}{after}", len(before) + len(given)
    found = tracer.verdicts(text, [Span(row["kind"], len(before), stop, 0, len(text))])[0]
    judged = {"verdict": found.verdict, "support": found.support, "other": found.other}
    answer = row["answers"][0]
    return {"style": style, "text": text, "given": given, "answer": answer, "exchanged": given != answer, **judged}


def table_row(name: str, lines: list[dict]) -> list[str]:
    """Precision and recall of the exchanged among those that are not found, and so on, each with its interval."""
    flagged = [line for line in lines if line["verdict"] != "found"]
    exchanged = [line for line in lines if line["exchanged"]]
    right = [line for line in lines if not line["exchanged"]]
    others = [line for line in flagged if line["exchanged"] and line["other"]]
    parts = [
        (sum(line["exchanged"] for line in flagged), flagged),
        (sum(line["verdict"] != "found" for line in exchanged), exchanged),
        (sum(line["verdict"] == "found" for line in right), right),
        (sum(matches(line["answer"], line["other"]) for line in others), others),
    ]
    return [name, str(len(lines)), *(percent(wilson_interval(hits, len(own))) if own else "" for hits, own in parts)]


def main(rows_file: str, index: str, out: str, count: str = "300", seed: str = "0") -> None:
    """Trace the sentences, and print a table by style and kind."""
    draw = random.Random(int(seed))
    read = [json.loads(line) for line in Path(rows_file).read_text("utf-8").splitlines()]
    rows = [row for row in read if row["kind"] in KINDS and rivals_of(row)][1::2]
    tracer, lines = Tracer(PhraseFiller.open(index)), []
    with Path(out).open("w", encoding="utf-8") as file:
        for number, row in enumerate(draw.sample(rows, min(int(count), len(rows)))):
            rival = draw.choice(rivals_of(row))
            for style, masked in masked_sentences(row):
                given = rival if number % 2 else row["answers"][0]
                lines.append({**traced(tracer, row, style, masked, given), "kind": row["kind"]})
                file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
                file.flush()
    groups = {style: [line for line in lines if line["style"] == style] for style in ("asked", "copy")}
    groups |= {f"asked, {kind}": [line for line in groups["asked"] if line["kind"] == kind] for kind in KINDS[:3]}
    sys.stdout.write(markdown_table(HEADER, [table_row(name, own) for name, own in groups.items() if own]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
