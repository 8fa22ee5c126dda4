"""What a corpus can answer at all: the examples whose subject it names, and those of which it holds an answer.

Shapes: n examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.evaluation.examples import Example
from npm.evaluation.held_out.articles import check_tokenizer
from npm.evaluation.task import Macro
from npm.evaluation.task_data import LONGEST_ANSWER_GROUP, answer_groups
from npm.retrieval.occurrences import name_counts

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.retrieval.phrase_index import PhraseIndex


LEAST_WORDS_LOOKED_FOR, BLOCKS_LOOKED_IN, LEAST_ASCII_LETTERS = 8, 3, 24


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the corpus holds of each example."""

    subject_named: np.ndarray | None  # bool [n], whether the subject's name stands in the corpus; None without subjects
    answer_held: np.ndarray  # bool [n], whether one of the answers stands in the corpus


def coverage_of(examples: Sequence[Example], index: PhraseIndex, encoder: Encoder) -> Coverage:
    """Look up the names of all subjects and all answers in the blocks of `index`, in one pass over its tokens.

    Raises ArtefactError if the tokens of the index are not those of the encoder.
    """
    check_tokenizer(encoder, index.store)
    names = list(
        dict.fromkeys(name for example in examples for name in (example.subject, *example.answers) if name.strip())
    )
    counts = name_counts(index, encoder, names)  # i64 [names]
    stands = {name: bool(count) for name, count in zip(names, counts.tolist(), strict=True)}

    def held(candidates: Iterable[str]) -> bool:
        return any(stands.get(name, False) for name in candidates)

    named = np.array([held([example.subject]) for example in examples], dtype=bool)  # bool [n]
    answered = np.array([held(example.answers) for example in examples], dtype=bool)  # bool [n]
    has_subjects = any(example.subject for example in examples)
    return Coverage(subject_named=named if has_subjects else None, answer_held=answered)


def standing_examples(examples: Sequence[Example], index: PhraseIndex) -> np.ndarray | None:
    """Which of n examples stand in a document of the corpus, bool [n]; None for a corpus without text.

    An example's longest field is looked for in the documents of the blocks that BM25 ranks first for it, by letters and
    digits alone; fields of less than `LEAST_WORDS_LOOKED_FOR` words are not, because they stand anywhere.
    """
    if index.lexicon is None:
        return None
    standing = np.zeros(len(examples), dtype=bool)  # [n]
    long = [number for number, example in enumerate(examples) if len(example.passage.split()) >= LEAST_WORDS_LOOKED_FOR]
    hits = index.lexicon.best_blocks([examples[number].passage for number in long], BLOCKS_LOOKED_IN)
    for number, blocks, found in zip(long, hits.blocks, hits.found, strict=True):
        documents = np.unique(index.store.block_documents[blocks[found]])  # i64 [documents]
        passage = _letters(examples[number].passage)
        standing[number] = any(passage in _letters(index.store.document(int(each)).text) for each in documents)
    return standing


def _letters(text: str) -> str:
    """Its letters and digits; of those only ASCII's if they are many, because copies differ in how others are encoded.

    >>> _letters("It's  a café, No. 4")
    'itsacaféno4'
    """
    plain = text.casefold()
    ascii_only = re.sub(r"[^a-z0-9]", "", plain)
    return ascii_only if len(ascii_only) >= LEAST_ASCII_LETTERS else "".join(filter(str.isalnum, plain))


def answer_token_groups(examples: Sequence[Example], encoder: Encoder) -> list[str]:
    """How many tokens the shortest answer of each of n examples has: 1, 2, 3 or 4+. All must have answers."""
    lengths = answer_groups(encoder, [example.answers for example in examples])  # i64 [n]
    return [str(length) if length < LONGEST_ANSWER_GROUP else f"{length}+" for length in lengths.tolist()]


def macro_groups(macro: Macro, examples: Sequence[Example], encoder: Encoder) -> list[str] | None:
    """The group of each of n examples that an average over groups goes over; None where there is no such average."""
    if macro is Macro.answer_tokens:
        return answer_token_groups(examples, encoder)
    return [example.group for example in examples] if macro is Macro.group else None
