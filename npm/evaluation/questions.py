"""Questions with known answers, read from a JSON file and checked before any is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from npm.errors import UserError
from npm.evaluation.metrics import normalise_answer
from npm.retrieval.queries import check_query
from npm.types import SURROGATE

EXAMPLE = '{"questions": [{"id": "q1", "kind": "river", "text": "… <mask>.", "answers": ["…"], "split": "dev"}]}'
_STRING_KEYS = ("id", "kind", "text", "split")


class QuestionFileError(UserError):
    """A file of questions is missing or not in its form."""


class Split(Enum):
    """What a question may be used for."""

    dev = "dev"  # to choose settings on
    test = "test"  # to report


@dataclass(frozen=True, slots=True)
class Question:
    """A text with one `<mask>` and everything that is right in its place."""

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    split: Split


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a file, in its order.

    Raises QuestionFileError if the file is not in the form of `EXAMPLE`, QueryError for a text without one `<mask>`.
    """
    path = Path(path)
    entries = _entries(path)
    questions: list[Question] = []
    first_places: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        question = _question(entry, where=f"{path}: question {number}")
        if question.id in first_places:
            raise QuestionFileError(
                f"the question id {question.id!r} comes twice",
                expected="every question has an id of its own",
                got=f"questions {first_places[question.id]} and {number}",
                where=str(path),
                fix="give one of them another id",
            )
        first_places[question.id] = number
        questions.append(question)
    return questions


def _entries(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_bytes())
        got = f"a JSON {type(content).__name__}"
    except OSError as error:
        content, got = None, error.strerror or str(error)
    except ValueError as error:  # not JSON, or not UTF-8
        content, got = None, str(error)
    entries = content.get("questions") if isinstance(content, dict) else None
    if isinstance(entries, list) and entries:
        return entries
    if isinstance(content, dict):
        got = "an empty list" if entries == [] else f"the keys {sorted(content)}"
    raise QuestionFileError(
        f"{path.name} is not a file of questions", expected=EXAMPLE, got=got, where=str(path), fix="mend the file"
    )


def _question(entry: object, *, where: str) -> Question:
    if not isinstance(entry, Mapping):
        raise _malformed("is not an object", f"an object as in {EXAMPLE}", repr(entry), where)
    for key in _STRING_KEYS:
        if not isinstance(entry.get(key), str) or not entry[key]:
            got = repr(entry[key]) if key in entry else f"the keys {sorted(entry)}"
            raise _malformed(f"lacks {key!r}", f"a string under {key!r}", got, where)
    answers = entry.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        got = repr(answers) if "answers" in entry else f"the keys {sorted(entry)}"
        raise _malformed("lacks 'answers'", "a list of at least one string under 'answers'", got, where)
    if empty := [answer for answer in answers if not normalise_answer(answer)]:
        raise _malformed(
            "has an answer that nothing can equal", "answers with letters or digits", repr(empty[0]), where
        )
    if halves := [text for text in (*answers, *(entry[key] for key in _STRING_KEYS)) if SURROGATE.search(text)]:
        raise _malformed("is not valid Unicode", "whole characters", ascii(halves[0]), where)
    if entry["split"] not in Split.__members__:
        raise _malformed("has an unknown split", " or ".join(Split.__members__), entry["split"], where)
    check_query(entry["text"], where=where)
    return Question(entry["id"], entry["kind"], entry["text"], tuple(answers), Split(entry["split"]))


def _malformed(what: str, expected: str, got: str, where: str) -> QuestionFileError:
    return QuestionFileError(
        f"a question {what}", expected=expected, got=got, where=where, fix="mend this question in the file"
    )
