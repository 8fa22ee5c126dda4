"""Occurrences that an answer counts: those with an end among the candidates, of the token sequences that are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from npm.core.types import Block, TokenFlag
from npm.corpus.store import write_block_store
from npm.indexing.settings import PruningRule
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import QueryVectors
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.helpers.random_indexes import WORDS, index_of

WORD = TokenFlag.WORD_START | TokenFlag.WORD_END
SETTINGS = FillSettings(
    k=10,
    overlaps=Overlaps.keep,
    retrieval=Retrieval.dense,
    max_phrase_tokens=1,
    scoring=ScoringSettings(exclude_query_phrases=False, length_exponent=0.0),
)


def filler_of(folder: Path, words: str, vectors: list[list[float]]) -> PhraseFiller:
    """One block of `words`, a vector of two dimensions for each: its products with the start and the end query."""
    ids = np.array([WORDS.index(word) for word in words.split()], dtype=np.int32)  # i32 [T]
    store = write_block_store(
        folder,
        [(None, [Block(ids, np.full(len(ids), WORD.value, dtype=np.uint8))])],
        settings={},
        tokenizer_fingerprint="t",
        vocabulary_size=len(WORDS),
        special_tokens_in_blocks=True,
    )
    return index_of(store, np.array(vectors, dtype=np.float32), rule=PruningRule.all, settings=SETTINGS)[0]


def counts(filler: PhraseFiller, settings: FillSettings) -> dict[str, int]:
    """Occurrences of each phrase for a start query (1, 0) and an end query (0, 1)."""
    start, end = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)  # f32 [1, 2] each
    queries = QueryVectors(start=start, end=end, cut=np.zeros(1, dtype=bool))
    answer = filler.fill_encoded([""], queries, settings=settings)[0]
    return {phrase.phrase: phrase.occurrence_count for phrase in answer.phrases}


def test_an_occurrence_counts_when_one_of_its_ends_is_among_the_best_rows_of_its_query(tmp_path: Path) -> None:
    vectors = [[3.0, 3.0], [9.0, 0.0], [0.0, -9.0], [2.0, 2.0], [-1.0, 9.0], [1.0, 1.0]]
    filler = filler_of(tmp_path, "a b c a d a", vectors)
    best = {rows: counts(filler, replace(SETTINGS, candidates_per_side=rows)) for rows in (1, 2, 3, 6)}
    assert best[1] == {"b": 1, "d": 1}
    assert best[2] == {"b": 1, "d": 1, "a": 1}
    assert best[3] == {"b": 1, "d": 1, "a": 2}
    assert best[6] == {"b": 1, "d": 1, "a": 3, "c": 1}
    # The end of `b c` has the lowest score and the start of `a d` is not the best one: one end is enough.
    longer = replace(SETTINGS, candidates_per_side=1, max_phrase_tokens=2)
    assert counts(filler, longer) == {"b": 1, "b c": 1, "d": 1, "a d": 1}


def test_a_spelling_counts_when_its_tokens_are_among_the_sequences_that_are_read(tmp_path: Path) -> None:
    filler = filler_of(tmp_path, "a b A a", [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    assert counts(filler, replace(SETTINGS, k=2, merged_groups=3)) == {"a": 3, "b": 1}
    assert counts(filler, replace(SETTINGS, k=2, merged_groups=2)) == {"a": 2, "b": 1}
