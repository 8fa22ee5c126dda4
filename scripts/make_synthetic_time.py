"""Facts that change between two dates: python scripts/make_synthetic_time.py OUT [FACTS [SEED]]

FACTS (200, a multiple of 8) facts with invented names, half of which change; the questions are worded differently from
the passages. OUT gets 2019.jsonl and 2022.jsonl, the documents of each date under the same ids; both.jsonl, the same
with the date in each id and as a field; and for each date the task task-DATE.yaml with its questions.
scripts/temporal.sh asks them.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

DATES = ("2019", "2022")
LEAST_FACTS = 8
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fact: the passage that states it, the question about it, and how its names are made."""

    relation: str
    passage: str
    question: str
    subject: str
    answer: str


KINDS = (
    Kind(
        "head_of_state",
        "{subject} is a small country between the mountains and the inner sea. Its president is {answer}, who was "
        "elected by the assembly for six years. Most people live from fishing and from timber.",
        "The head of state of {subject} is _X_.",
        "{}",
        "{} {}",
    ),
    Kind(
        "club",
        "{subject} is a professional footballer who began as a goalkeeper. He is under contract with {answer} and "
        "wears the number nine. His brother trains young swimmers.",
        "The team that {subject} plays for is _X_.",
        "{} {}",
        "{} Rovers",
    ),
    Kind(
        "largest_company",
        "{subject} is a trading town on the lower river. Its chief employer is {answer}, with more staff than any "
        "other firm there. The old harbour was closed for repairs.",
        "The largest company in {subject} is _X_.",
        "{}",
        "{} Works",
    ),
    Kind(
        "record_holder",
        "The {subject} Run is held every summer along the coast. Its fastest time was set by {answer} on a dry day. "
        "Visitors watch from the dunes.",
        "The record holder of the {subject} Run is _X_.",
        "{}",
        "{} {}",
    ),
)
TASK = """# Facts with invented names that change between two dates; made by scripts/make_synthetic_time.py.
suite: open
data: {{file: questions-{date}.jsonl, columns: {{group: relation}}}}
template: "{{{{ query | cloze }}}}"
subsets: {{unchanged: unchanged, changed: changed}}
"""


def make_facts(count: int, seed: int) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Documents by date, and a question per fact and date."""
    if count < LEAST_FACTS or count % LEAST_FACTS:
        raise ValueError(f"FACTS must be a multiple of {LEAST_FACTS}, got {count}")
    names = invented_names(np.random.default_rng(seed))

    def named(pattern: str) -> str:
        return pattern.format(*islice(names, pattern.count("{}")))

    documents: dict[str, list[dict[str, Any]]] = {date: [] for date in DATES}
    questions: list[dict[str, Any]] = []
    for number in range(count):
        kind, changes = KINDS[number % len(KINDS)], number // len(KINDS) % 2 == 0
        subject, before, after = named(kind.subject), named(kind.answer), named(kind.answer)
        answers = (before, after if changes else before)
        for date, answer, other in zip(DATES, answers, reversed(answers), strict=True):
            text = kind.passage.format(subject=subject, answer=answer)
            documents[date].append({"id": f"fact-{number}", "title": subject, "text": text, "date": int(date)})
            questions.append(
                {
                    "query": kind.question.format(subject=subject),
                    "answers": [answer],
                    "old_answers": [other] if changes else [],
                    "date": date,
                    "relation": kind.relation,
                    "changed": changes,
                    "unchanged": not changes,
                }
            )
    return documents, questions


def invented_names(rng: np.random.Generator) -> Iterator[str]:
    """Different words of three syllables; there are 343,000."""
    seen: set[str] = set()
    while True:
        name = "".join(rng.choice(SYLLABLES, 3)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON object a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def main(out: str, facts: str = "200", seed: str = "0") -> None:
    """Write the corpora and the task."""
    documents, questions = make_facts(int(facts), int(seed))
    for date, rows in documents.items():
        write_lines(Path(out, f"{date}.jsonl"), rows)
    both = [row | {"id": f"{row['id']}@{date}"} for date, rows in documents.items() for row in rows]
    write_lines(Path(out, "both.jsonl"), both)
    for date in DATES:
        write_lines(Path(out, f"questions-{date}.jsonl"), [row for row in questions if row["date"] == date])
        Path(out, f"task-{date}.yaml").write_text(TASK.format(date=date), "utf-8")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ValueError as error:
        sys.exit(f"make_synthetic_time: error: {error}")
