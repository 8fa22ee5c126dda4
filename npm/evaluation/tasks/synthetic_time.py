"""Facts that change between two dates, with invented names: passages of 2019 and of 2022, and questions about them.

Half of the facts change. The questions are phrased in other words than the passages, and lie in a folder of the form
that TempLAMA is published in. All is a function of the seed and the number of facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.files import replace_file

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
TASK = """# Facts with invented names that change between two dates; made by npm.evaluation.tasks.synthetic_time.
suite: open
data:
  file: templama
  reader: templama
  dates: [2019, 2022]
  columns: {answers: answers, old_answers: old_answers, group: relation}
template_column: query
subsets: {unchanged: unchanged, changed: changed}
"""


@dataclass(frozen=True, slots=True)
class SyntheticTime:
    """Where everything lies."""

    task: Path  # YAML; its data lies beside it
    corpora: dict[str, Path]  # date → .jsonl of documents with that date


def synthetic_files(folder: Path) -> SyntheticTime:
    """Where the set lies in `folder`."""
    return SyntheticTime(folder / "synthetic_time.yaml", {date: folder / f"{date}.jsonl" for date in DATES})


def write_synthetic_time(folder: Path, *, facts: int = 200, seed: int = 0) -> SyntheticTime:
    """Write corpora, questions and task to `folder`; `facts` is a multiple of 8, so that half of each kind change."""
    if facts < LEAST_FACTS or facts % LEAST_FACTS:
        raise ValueError(f"facts must be a multiple of {LEAST_FACTS}, not {facts}")
    names = _invented_names(np.random.default_rng(seed))

    def named(pattern: str) -> str:
        return pattern.format(*islice(names, pattern.count("{}")))

    documents: dict[str, list[dict[str, Any]]] = {date: [] for date in DATES}
    questions: list[dict[str, Any]] = []
    for number in range(facts):
        kind, changes = KINDS[number % len(KINDS)], number // len(KINDS) % 2 == 0
        subject, before, after = named(kind.subject), named(kind.answer), named(kind.answer)
        for date, answer in zip(DATES, (before, after if changes else before), strict=True):
            text = kind.passage.format(subject=subject, answer=answer)
            documents[date].append({"id": f"fact-{number}", "title": subject, "text": text, "date": int(date)})
            questions.append(
                {
                    "query": kind.question.format(subject=subject),
                    "answer": [{"wikidata_id": answer, "name": answer}],
                    "date": date,
                    "id": f"S{number}_{kind.relation}_{date}",
                    "relation": kind.relation,
                }
            )
    made = synthetic_files(folder)
    (folder / "templama").mkdir(parents=True, exist_ok=True)
    replace_file(folder / "templama" / "test.json", json_lines(questions))
    for date, own in documents.items():
        replace_file(made.corpora[date], json_lines(own))
    replace_file(made.task, TASK.encode())
    return made


def _invented_names(rng: np.random.Generator) -> Iterator[str]:
    """Different words of three syllables; there are 343,000."""
    seen: set[str] = set()
    while True:
        name = "".join(rng.choice(SYLLABLES, 3)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes of a file with an object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
