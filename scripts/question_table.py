"""Open questions by style and kind: python scripts/question_table.py QUESTIONS EVALUATION [QUESTIONS EVALUATION …]

QUESTIONS is a questions.jsonl with `style`, `kind` and `document`, or some of them, EVALUATION the result of
`npmlm evaluate` on all, a `limit` or one `split` of it. A hit equals an answer but for case, space and a leading "the":
`15,000` is not `$15,000` and `40` is not `40%`, which `npmlm evaluate` takes as equal.
The right document is first if the first phrase's best occurrence is in it; ids are compared by their stems.
"""

import json
import sys
from pathlib import Path, PurePath

from npm.core.display import markdown_table
from npm.corpus.text import normalized_text
from npm.evaluation.metrics import percent, wilson_interval

FIRST, FIVE, DOCUMENT = "hit@1, %", "hit@5, %", "right document first, %"
HEADER = ("questions", "n", f"{FIRST} [95 %]", f"{FIVE} [95 %]", DOCUMENT, "hit@1 where it is, %")


def judged_rows(questions: Path, evaluation: Path) -> list[dict]:
    """Questions, once per method, with whether each measure of `FIRST`, `FIVE` and `DOCUMENT` is met."""
    asked, predictions = (
        [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
        for file in (questions, evaluation / "predictions.jsonl")
    )
    rows = {str(number): row for number, row in enumerate(asked)}
    judged: list[dict] = []
    for method in dict.fromkeys(found["method"] for found in predictions):
        for found in (each for each in predictions if each["method"] == method):
            row = rows.get(found["id"], {})
            if row.get("answers") != found["gold"]:
                sys.exit(f"question_table: error: {evaluation} is no evaluation of {questions}: evaluate it again")
            answers = {compared(answer) for answer in row["answers"]}
            hits = [compared(each["phrase"]) in answers for each in found["phrases"]]
            documents = [stem(each["document"]) for each in found["evidence"][:1]]
            is_first = stem(row.get("document", "")) in documents
            judged.append(row | {"method": method, FIRST: any(hits[:1]), FIVE: any(hits[:5]), DOCUMENT: is_first})
    return judged


def compared(phrase: str) -> str:
    """A phrase without what does not count.

    >>> compared("The Danube"), compared("$15,000")
    ('danube', '$15,000')
    """
    return normalized_text(phrase).removeprefix("the ")


def stem(document: str) -> str:
    """The file name of a document's id, without folders, extension and line.

    >>> stem("handbook/leave/sick-leave.md:1"), stem("812#4")
    ('sick-leave', '812#4')
    """
    return PurePath(document.partition(":")[0]).stem


def table_row(name: str, rows: list[dict]) -> list[str]:
    """One row of the table."""
    shares = {
        measure: wilson_interval(sum(row[measure] for row in rows), len(rows)) for measure in (FIRST, FIVE, DOCUMENT)
    }
    right = [row[FIRST] for row in rows if row[DOCUMENT]]
    there = f"{100 * sum(right) / len(right):.1f}" if right else "–"
    return [
        name,
        str(len(rows)),
        percent(shares[FIRST]),
        percent(shares[FIVE]),
        f"{100 * shares[DOCUMENT].mean:.1f}",
        there,
    ]


def main(arguments: list[str]) -> None:
    """Print the table: all, each set, and each style, kind and pair of both."""
    pairs = [(Path(questions), Path(out)) for questions, out in zip(arguments[::2], arguments[1::2], strict=True)]
    rows = [{"set": questions.parent.name} | row for questions, out in pairs for row in judged_rows(questions, out)]
    groups: dict[str, list[dict]] = {}
    for keys in ((), ("set",), ("set", "style"), ("style",), ("kind",), ("kind", "style")):
        for row in (row for row in rows if row.keys() >= {*keys}):
            groups.setdefault(": ".join([row["method"], ", ".join(row[key] for key in keys) or "all"]), []).append(row)
    sys.stdout.write(markdown_table(HEADER, [table_row(name, group) for name, group in groups.items()]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
