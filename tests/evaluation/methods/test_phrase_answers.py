"""Methods `npm` and `oracle-blocks` for open tasks: what they ask, against plain loops, and what answers depend on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Answer, silent
from npm.evaluation.methods.baselines import NO_BLOCK, blocks_with_answer, oracle_blocks
from npm.evaluation.methods.nonparametric import TEXTS_PER_CALL, phrase_answers
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.methods.registry import ONLY_IF_NAMED, Resources, load_method, method_names
from npm.evaluation.results import filler_facts
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import Example, Task, TaskData
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from tests.evaluation.methods.word_indexes import index_of_texts, random_words, word_index

NAMES = ("npm", "npm-dense", "npm-bm25", "npm-hybrid")
TASK = Task(name="capitals", suite="open", data=TaskData(file="capitals.jsonl"), template="{{ question }} <mask>.")
TEXTS = [
    "The capital of Iceland is <mask>.",
    "<mask> is the capital of France.",
    "Norway's capital is <mask>.",
    "Who wrote Don Quixote? <mask>.",
    "xylophone <mask>",
]
EXAMPLES = [Example(str(number), text, answers=("Oslo",)) for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def filler(index_folder: Path, encoder: Encoder) -> PhraseFiller:
    settings = FillSettings(retrieval=Retrieval.bm25, bm25_blocks=1, occurrences=0, k=3)
    return PhraseFiller.open(index_folder, encoder, settings=settings)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_the_filler_with_the_retrieval_that_the_name_says(filler: PhraseFiller, name: str) -> None:
    retrieval = Retrieval.bm25 if name == "npm" else Retrieval(name.removeprefix("npm-"))
    expected = PhraseFiller(
        filler.index, filler.encoder, replace(filler.settings, retrieval=retrieval, occurrences=1)
    ).fill(TEXTS)
    method = phrase_answers(filler, name)
    assert method.name == name
    found = method.predict(TASK, EXAMPLES, silent)
    assert found.answers == expected
    assert found.facts["filling"]["retrieval"] == retrieval.value


def test_more_texts_than_one_call_takes_are_answered_in_order_and_counted(filler: PhraseFiller) -> None:
    few = phrase_answers(filler).predict(TASK, EXAMPLES, silent).answers
    many = [EXAMPLES[number % len(EXAMPLES)] for number in range(TEXTS_PER_CALL + 7)]
    seen: list[tuple[int, int]] = []
    answers = phrase_answers(filler).predict(TASK, many, lambda _, done, total: seen.append((done, total))).answers
    assert seen == [(TEXTS_PER_CALL, len(many)), (len(many), len(many))]
    for number, answer in enumerate(answers):
        expected = few[number % len(EXAMPLES)]
        assert answer.text == expected.text
        assert [phrase.phrase for phrase in answer.phrases] == [phrase.phrase for phrase in expected.phrases]
        assert [phrase.score for phrase in answer.phrases] == pytest.approx(
            [phrase.score for phrase in expected.phrases], rel=1e-4
        )


def test_facts_hold_settings_and_fingerprints_but_no_path_and_nothing_that_is_only_shown(filler: PhraseFiller) -> None:
    facts = phrase_answers(filler, "npm-dense").predict(TASK, EXAMPLES, silent).facts
    assert json.loads(json.dumps(facts)) == facts
    assert str(filler.index.folder) not in json.dumps(facts)
    assert facts["encoder"] == {"name": "tiny-bert", "fingerprint": filler.encoder.fingerprint}
    assert facts["index"]["corpus_digest"] == filler.index.store.digest
    assert facts["filling"]["scoring"]["length_exponent"] == -1.0
    assert not {"k", "occurrences"} & set(facts["filling"])
    assert filler_facts(filler)["filling"]["retrieval"] == "bm25"


FACTS = Task(name="facts", suite="open", data=TaskData(file="facts.jsonl"), template="{{ question }} <mask>.")
FACT_TEXTS = [
    "Paris is the capital of France.",
    "The Seine flows through Paris.",
    "Oslo is the capital of Norway.",
    "Paris in the spring.",
    "Hydrogen is light.",
]


@pytest.fixture(scope="module")
def oracle_filler(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    index = index_of_texts(tmp_path_factory.mktemp("oracle") / "index", FACT_TEXTS, encoder)
    return PhraseFiller(index, encoder, FillSettings(bm25_blocks=2, retrieval=Retrieval.bm25))


def blocks_of(oracle_filler: PhraseFiller, examples: Sequence[Example]) -> list[list[int]]:
    return [blocks.tolist() for blocks in blocks_with_answer(oracle_filler, oracle_filler.index, examples)]


def test_of_the_blocks_with_an_answer_those_are_told_that_bm25_ranks_best(oracle_filler: PhraseFiller) -> None:
    asked = [
        Example("0", "The river that flows is the Seine in <mask>.", answers=("Paris",)),
        Example("1", "The capital of Norway is <mask>.", answers=("Oslo", "Paris")),
        Example("2", "<mask> xylophone", answers=("Paris",)),  # no word is shared: the first of the corpus
        Example("3", "The capital is <mask>.", answers=("Rome",)),
        Example("4", "The capital is <mask>.", answers=("aris",)),  # no whole word
    ]
    assert blocks_of(oracle_filler, asked) == [[0, 1], [0, 2], [0, 1], [], []]


def test_phrases_come_from_these_blocks_and_what_stands_nowhere_is_unanswered(oracle_filler: PhraseFiller) -> None:
    asked = [
        Example("0", "The capital of France is <mask>.", answers=("Oslo",)),
        Example("1", "The capital is <mask>.", answers=("Rome",)),
    ]
    method = oracle_blocks(oracle_filler)
    found = method.predict(FACTS, asked, silent)
    told, nothing = found.answers
    assert {place.document for phrase in told.phrases for place in phrase.occurrences} == {"d2"} and told.phrases
    assert nothing == Answer(asked[1].text, (), notes=(NO_BLOCK,))
    assert found.facts["counts"] == {"without_block": 1}


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


def test_it_is_asked_only_if_it_is_named(oracle_filler: PhraseFiller, tmp_path: Path) -> None:
    oracle_filler.encoder.save(tmp_path / "encoder")
    places = {"index": str(oracle_filler.index.folder), "encoder": str(tmp_path / "encoder"), "device": "cpu"}
    assert "oracle-blocks" in ONLY_IF_NAMED
    assert "oracle-blocks" not in method_names(ZeroShotEvaluation(**places), FACTS)
    named = ZeroShotEvaluation(method=["oracle-blocks"], **places)
    assert method_names(named, FACTS) == ["oracle-blocks"]
    assert load_method("oracle-blocks", FACTS, Resources(named)).name == "oracle-blocks"
