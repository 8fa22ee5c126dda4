"""Methods that do not read: counted by hand, and drawn from the lists they may draw from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Answer, silent
from npm.evaluation.methods.baselines import frequent_answer, majority_label, random_label, random_span
from npm.evaluation.tasks import Example, Label, Task, TaskData
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller

LABELS = tuple(Label(value=number, name=name, words=(name,)) for number, name in enumerate(("bad", "good", "mixed")))
CLOSED = Task(
    name="films",
    suite="closed",
    data=TaskData(file="films.csv"),
    template="{{ text }} It was <mask>.",
    labels=LABELS,
)
OPEN = Task(name="facts", suite="open", data=TaskData(file="facts.jsonl"), template="{{ text }}")


@pytest.fixture(scope="module")
def filler(index_folder: Path, encoder: Encoder) -> PhraseFiller:
    return PhraseFiller.open(index_folder, encoder)


def labeled(labels: Sequence[int]) -> list[Example]:
    return [Example(str(number), "It was <mask>.", label=label) for number, label in enumerate(labels)]


def fact(number: int, group: str, *answers: str) -> Example:
    return Example(str(number), f"Fact {number} is <mask>.", answers=answers, group=group)


def first_phrases(answers: Sequence[Answer]) -> list[str | None]:
    return [answer.phrases[0].phrase if answer.phrases else None for answer in answers]


def test_the_majority_is_the_largest_class_of_what_is_asked_and_its_accuracy_that_classes_share() -> None:
    method, examples = majority_label(), labeled([2, 1, 2, 0, 2])
    found = method.predict(CLOSED, examples, silent)
    assert [prediction.scores for prediction in found.answers] == [(0.2, 0.2, 0.6)] * 5
    assert sum(p.label == e.label for p, e in zip(found.answers, examples, strict=True)) == 3
    assert found.facts == {"chosen_on": "the examples that are reported", "label_counts": [1, 1, 3]}


def test_random_labels_are_about_equally_frequent_and_belong_to_seed_and_example() -> None:
    examples = labeled([0] * 3000)
    labels = [prediction.label for prediction in random_label(seed=1).predict(CLOSED, examples, silent).answers]
    assert np.abs(np.bincount(labels) - 1000).max() < 4 * np.sqrt(3000 * 2 / 9)
    some = random_label(seed=1).predict(CLOSED, examples[100:200], silent)
    assert [prediction.label for prediction in some.answers] == labels[100:200]
    other = [prediction.label for prediction in random_label(seed=2).predict(CLOSED, examples, silent).answers]
    assert 0.28 < np.mean(np.array(other) == labels) < 0.39
    assert some.facts == {"seed": 1}
    assert sum(some.answers[0].scores) == 1


def test_the_most_frequent_answer_of_each_group_is_given_and_of_all_where_a_group_is_new() -> None:
    development = [
        fact(0, "capital", "Oslo"),
        fact(1, "capital", "Paris"),
        fact(2, "capital", "the Paris!", "Paris"),  # one example counts once, however it may be written
        fact(3, "river", "Rhine", "Rhein"),
        fact(4, "river", "Rhein"),
        fact(5, "author", "Cervantes"),
        fact(6, "moon", "Rhein"),
    ]
    method = frequent_answer(development)
    asked = [fact(number, group) for number, group in enumerate(("river", "capital", "author", "painter"))]
    found = method.predict(OPEN, asked, silent)
    answers = found.answers
    assert first_phrases(answers) == ["Rhein", "Paris", "Cervantes", "Rhein"]
    assert [answer.phrases[0].score for answer in answers] == pytest.approx([1, 2 / 3, 1, 3 / 7])
    assert [answer.text for answer in answers] == [example.text for example in asked]
    assert found.facts["development_examples"] == 7


def drawn(filler: PhraseFiller, text: str, *, draws: int) -> Counter[str | None]:
    examples = [Example(str(number), text) for number in range(draws)]
    return Counter(first_phrases(random_span(filler, seed=0).predict(OPEN, examples, silent).answers))


def test_spans_are_drawn_from_the_best_block_alone_each_place_as_often(filler: PhraseFiller) -> None:
    counts = drawn(filler, "Norway's capital is <mask>.", draws=400)
    assert counts.keys() == {"Oslo", "lies", "end", "end of the Oslofjord", "Oslofjord"}  # "at" links no names
    assert max(abs(count - 80) for count in counts.values()) < 4 * np.sqrt(400 * 0.2 * 0.8)


def test_a_phrase_that_stands_in_two_places_is_drawn_twice_as_often(filler: PhraseFiller) -> None:
    counts = drawn(filler, "France: the capital is <mask>.", draws=400)
    # Paris, Seine, Seine flows, flows, Paris: "capital" and "France" say nothing new
    assert counts.keys() == {"Paris", "Seine", "flows", "Seine flows"}
    assert abs(counts["Paris"] - 160) < 4 * np.sqrt(400 * 0.24)


def test_a_drawn_span_says_where_it_stands_and_how_likely_it_was(filler: PhraseFiller) -> None:
    (answer,) = random_span(filler, seed=3).predict(OPEN, [Example("7", "Norway's capital is <mask>.")], silent).answers
    (phrase,) = answer.phrases
    (occurrence,) = phrase.occurrences
    assert (occurrence.document, phrase.score, phrase.occurrence_count) == ("norway", 0.2, 1)
    text = "Norway's capital, Oslo, lies at the end of the Oslofjord."
    assert text[occurrence.start_char : occurrence.end_char] == phrase.phrase


def test_what_is_drawn_belongs_to_seed_and_example(filler: PhraseFiller) -> None:
    examples = [Example(str(number), "Norway's capital is <mask>.") for number in range(40)]
    first = first_phrases(random_span(filler, seed=1).predict(OPEN, examples, silent).answers)
    assert first_phrases(random_span(filler, seed=1).predict(OPEN, examples[20:], silent).answers) == first[20:]
    assert first_phrases(random_span(filler, seed=2).predict(OPEN, examples, silent).answers) != first
    facts = random_span(filler, seed=1).predict(OPEN, examples[:1], silent).facts
    assert (facts["seed"], facts["index"]["corpus_digest"]) == (1, filler.index.store.digest)


def test_a_text_that_shares_no_word_with_the_corpus_has_no_answer(filler: PhraseFiller) -> None:
    assert drawn(filler, "Zebra <mask>", draws=1) == {None: 1}
