"""Method `oracle-blocks`: which blocks it is told, against plain loops over their text, and what it finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Answer, silent
from npm.evaluation.methods.baselines import NO_BLOCK, OracleBlocks
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.methods.registry import ONLY_IF_NAMED, load_method, method_names
from npm.evaluation.methods.resources import Resources
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, Suite, Task, TaskData
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from tests.evaluation.methods.word_indexes import index_of_texts, random_words, word_index

TASK = Task(name="facts", suite=Suite.open, data=TaskData(file="facts.jsonl"), template="{{ question }} <mask>.")
TEXTS = [
    "Paris is the capital of France.",
    "The Seine flows through Paris.",
    "Oslo is the capital of Norway.",
    "Paris in the spring.",
    "Hydrogen is light.",
]


@pytest.fixture(scope="module")
def filler(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    index = index_of_texts(tmp_path_factory.mktemp("oracle") / "index", TEXTS, encoder)
    return PhraseFiller(index, encoder, FillSettings(bm25_blocks=2, retrieval=Retrieval.bm25))


def blocks_of(filler: PhraseFiller, examples: Sequence[Example]) -> list[list[int]]:
    return [blocks.tolist() for blocks in OracleBlocks(filler).blocks(examples)]


def test_of_the_blocks_with_an_answer_those_are_told_that_bm25_ranks_best(filler: PhraseFiller) -> None:
    asked = [
        Example("0", "The river that flows is the Seine in <mask>.", answers=("Paris",)),
        Example("1", "The capital of Norway is <mask>.", answers=("Oslo", "Paris")),
        Example("2", "<mask> xylophone", answers=("Paris",)),  # no word is shared: the first of the corpus
        Example("3", "The capital is <mask>.", answers=("Rome",)),
        Example("4", "The capital is <mask>.", answers=("aris",)),  # no whole word
    ]
    assert blocks_of(filler, asked) == [[0, 1], [0, 2], [0, 1], [], []]


def test_phrases_come_from_these_blocks_and_what_stands_nowhere_is_unanswered(filler: PhraseFiller) -> None:
    asked = [
        Example("0", "The capital of France is <mask>.", answers=("Oslo",)),
        Example("1", "The capital is <mask>.", answers=("Rome",)),
    ]
    method = OracleBlocks(filler)
    told, nothing = method.predict(TASK, asked, silent)
    assert {place.document for phrase in told.phrases for place in phrase.occurrences} == {"d2"} and told.phrases
    assert nothing == Answer(asked[1].text, (), notes=(NO_BLOCK,))
    assert method.facts["counts"] == {"without_block": 1}


def test_blocks_with_a_name_are_those_that_plain_loops_find(tmp_path: Path) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        made = word_index(tmp_path / str(seed), rng)
        words = random_words(rng, 12)
        found = name_blocks(made.index, made.encoder, words)
        expected: list[set[int]] = [set() for _ in words]
        for word, start, _ in made.plain_places(words, with_rows=False):
            expected[word].add(made.corpus.block_of(start))
        assert [blocks.tolist() for blocks in found] == [sorted(own) for own in expected]
        assert any(expected)


def test_it_is_asked_only_if_it_is_named(filler: PhraseFiller, tmp_path: Path) -> None:
    filler.encoder.save(tmp_path / "encoder")
    places = {"index": str(filler.index.folder), "encoder": str(tmp_path / "encoder"), "device": "cpu"}
    assert "oracle-blocks" in ONLY_IF_NAMED
    assert "oracle-blocks" not in method_names(ZeroShotEvaluation(**places), TASK)
    named = ZeroShotEvaluation(method=["oracle-blocks"], **places)
    assert method_names(named, TASK) == ["oracle-blocks"]
    assert isinstance(load_method("oracle-blocks", TASK, Resources(named), list), OracleBlocks)
