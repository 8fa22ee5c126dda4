"""Method `npm` for open tasks: what it asks the filler, and what it says its answers depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from npm.core.types import silent
from npm.evaluation.methods.nonparametric import TEXTS_PER_CALL, PhraseAnswers
from npm.evaluation.results import filler_facts
from npm.evaluation.tasks import Example, Suite, Task, TaskData
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

NAMES = ("npm", "npm-dense", "npm-bm25", "npm-hybrid")
TASK = Task(name="capitals", suite=Suite.open, data=TaskData(file="capitals.jsonl"), template="{{ question }} <mask>.")
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
    method = PhraseAnswers(filler, name)
    assert method.name == name
    assert method.predict(TASK, EXAMPLES, silent) == expected
    assert method.facts["filling"]["retrieval"] == retrieval.value


def test_more_texts_than_one_call_takes_are_answered_in_order_and_counted(filler: PhraseFiller) -> None:
    few = PhraseAnswers(filler).predict(TASK, EXAMPLES, silent)
    many = [EXAMPLES[number % len(EXAMPLES)] for number in range(TEXTS_PER_CALL + 7)]
    seen: list[tuple[int, int]] = []
    answers = PhraseAnswers(filler).predict(TASK, many, lambda _, done, total: seen.append((done, total)))
    assert seen == [(TEXTS_PER_CALL, len(many)), (len(many), len(many))]
    for number, answer in enumerate(answers):
        expected = few[number % len(EXAMPLES)]
        assert answer.text == expected.text
        assert [phrase.phrase for phrase in answer.phrases] == [phrase.phrase for phrase in expected.phrases]
        assert [phrase.score for phrase in answer.phrases] == pytest.approx(
            [phrase.score for phrase in expected.phrases], rel=1e-4
        )


def test_facts_hold_settings_and_fingerprints_but_no_path_and_nothing_that_is_only_shown(filler: PhraseFiller) -> None:
    facts = PhraseAnswers(filler, "npm-dense").facts
    assert json.loads(json.dumps(facts)) == facts
    assert str(filler.index.folder) not in json.dumps(facts)
    assert facts["encoder"] == {"name": "tiny-bert", "fingerprint": filler.encoder.fingerprint}
    assert facts["index"]["corpus_digest"] == filler.index.store.digest
    assert facts["filling"]["scoring"]["length_exponent"] == -1.0
    assert not {"k", "occurrences"} & set(facts["filling"])
    assert filler_facts(filler)["filling"]["retrieval"] == "bm25"
