"""Documents that may answer each example of an open task, and answers from the part of an index that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from npm.core.types import Answer, Progress
from npm.evaluation.tasks import Example, Task
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex, select
from npm.retrieval.settings import FillSettings

Part = TypeVar("Part")
NO_DOCUMENT = "no document of the index meets the conditions of this example"


def admissible_parts(
    index: PhraseIndex, examples: Sequence[Example], fill: FillSettings
) -> Iterator[tuple[PhraseIndex | None, list[int]]]:
    """`index` with only those documents live that may answer, and the indices of the examples that these are for.

    Those that meet the conditions of `fill` and the examples' own, None if there is none. The lexicon and block vectors
    stay as they are. Raises as `select` does, NoDocumentError where examples have no conditions themselves.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(example.where, []).append(number)
    for conditions, numbers in groups.items():
        part: PhraseIndex | None = index
        if fill.where or conditions or fill.documents is not None:
            try:
                allowed = select(index, fill.documents, [*fill.where, *conditions])
                part = replace(index, live_blocks=allowed.blocks, live_rows=allowed.rows)
            except NoDocumentError:
                if not conditions:
                    raise
                part = None
        yield part, numbers


def answered(
    task: Task,
    examples: Sequence[Example],
    parts: Iterable[tuple[Part | None, list[int]]],
    answer: Callable[[Part, list[Example]], Iterable[Answer]],
    progress: Progress,
    *,
    at_once: int = 1,
) -> list[Answer]:
    """The answers to all examples in their order; without phrases to those that no document may answer.

    `parts` are those of `admissible_parts`, or made of them, and `answer` answers some examples from a part.
    """
    found: dict[int, Answer] = {}
    for part, numbers in parts:
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            own = [examples[number] for number in batch]
            none = (Answer(example.text, (), notes=(NO_DOCUMENT,)) for example in own)
            found |= zip(batch, none if part is None else answer(part, own), strict=True)
            progress(f"task {task.name}", len(found), len(examples))
    return [found[number] for number in range(len(examples))]
