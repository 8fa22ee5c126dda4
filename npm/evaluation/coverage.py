"""Admissible documents of each example, and the coverage of subjects, answers and examples by the corpus.

Shapes: n examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from npm.core.types import Answer, Progress
from npm.corpus.markup import visible
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.tasks import Example, Task
from npm.indexing.embed import check_tokenizer
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex, select
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings

Part = TypeVar("Part")
NO_DOCUMENT = "no document of the index meets the conditions of this example"
MIN_WORDS, BLOCKS_LOOKED_IN, MIN_ASCII_LETTERS = 8, 3, 24


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


def coverage_of(
    examples: Sequence[Example], index: PhraseIndex, encoder: Encoder, fill: FillSettings
) -> dict[str, np.ndarray]:
    """Masks bool [n]: `answer_held`, one of the answers occurs in the corpus; `subject_named`, the subject does.

    The latter only if there are subjects. All are looked up in the blocks of `index` in one pass over its tokens.

    Only in documents that the settings admit; examples with their own conditions take a pass for each set of
    conditions. Raises EncoderError if the tokens of the index are not those of the encoder, and as `admissible_parts`.
    """
    check_tokenizer(encoder, index.store)
    named = np.zeros(len(examples), dtype=bool)  # [n]
    answered = np.zeros(len(examples), dtype=bool)  # [n]
    for admissible, numbers in admissible_parts(index, examples, fill):
        if admissible is None:
            continue
        own = [examples[number] for number in numbers]
        names = list(dict.fromkeys(name for each in own for name in (each.subject, *each.answers) if name.strip()))
        found = name_blocks(admissible, encoder, names)
        held = {name for name, blocks in zip(names, found, strict=True) if len(blocks)}
        named[numbers] = [each.subject in held for each in own]
        answered[numbers] = [not held.isdisjoint(each.answers) for each in own]
    return {"answer_held": answered} | ({"subject_named": named} if any(each.subject for each in examples) else {})


def overlapping_examples(examples: Sequence[Example], index: PhraseIndex) -> np.ndarray | None:
    """Mask bool [n] of the examples that occur in a document of the corpus; None for a corpus without text.

    An example's longest field is looked for in the documents of the blocks that BM25 ranks first for it, by letters and
    digits alone; fields of less than `MIN_WORDS` words are not, because they occur anywhere.
    """
    if index.lexicon is None:
        return None
    overlap = np.zeros(len(examples), dtype=bool)  # [n]
    long = [number for number, example in enumerate(examples) if len(example.passage.split()) >= MIN_WORDS]
    for number in long:
        blocks, _ = index.lexicon.best_blocks(examples[number].passage, BLOCKS_LOOKED_IN)
        documents = np.unique(index.store.block_documents[blocks])  # i64 [documents]
        passage = _letters(examples[number].passage)
        overlap[number] = any(passage in _letters(visible(index.store.document(int(each)).text)) for each in documents)
    return overlap


def _letters(text: str) -> str:
    """Its letters and digits; of those only ASCII's if they are many, because copies differ in how others are encoded.

    >>> _letters("It's  a café, No. 4")
    'itsacaféno4'
    """
    plain = text.casefold()
    ascii_only = re.sub(r"[^a-z0-9]", "", plain)
    return ascii_only if len(ascii_only) >= MIN_ASCII_LETTERS else "".join(filter(str.isalnum, plain))
