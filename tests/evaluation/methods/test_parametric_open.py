"""Masks filled by a masked language model: by hand, and against `transformers` one token at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npm.core.types import Answer, silent
from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS
from npm.evaluation.evaluate import evaluate_task
from npm.evaluation.methods.parametric import TOO_LONG, GoldLengthPhrases, ParametricPhrases
from npm.evaluation.tasks import Example, Suite, Task, TaskData
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.helpers.language_models import deaf_head, plain_log_probabilities, published
from tests.helpers.tiny_models import tiny_encoder

TASK = Task(name="places", suite=Suite.open, data=TaskData(file="places.jsonl"), template="{{ text }}")
TEXTS = (
    "Paris is the <mask> of France.",
    "<mask> lies on the coast.",
    "It was (<mask>), as in Madrid.",
    "The river Rhine rises in Switzerland and flows to the North Sea in the Netherlands. It is<mask>!",
)


def told(answer: Answer) -> list[tuple[str, float]]:
    return [(phrase.phrase, phrase.score) for phrase in answer.phrases]


def plain_answers(encoder: Encoder, row: torch.Tensor, text: str, *, count: int) -> list[tuple[str, float]]:
    """The best tokens by log probabilities f32 [V], tried one after the other."""
    tokenizer = encoder.tokenizer
    before = text.split("<mask>")[0]
    space = " " if encoder.name != "tiny-bert" and before and before[-1].isspace() else ""
    asked = set("".join(char if char.isalnum() else " " for char in text.replace("<mask>", " ")).casefold().split())
    found: list[tuple[str, float]] = []
    for token in row.argsort(descending=True, stable=True).tolist():
        word = tokenizer.backend_tokenizer.decode([token]).strip()
        alone = tokenizer.encode(space + word, add_special_tokens=False) == [token]
        if not alone or token in tokenizer.all_special_ids or not any(char.isalnum() for char in word):
            continue
        if word.casefold() in STOP_WORDS | CONTRACTION_TAILS | asked:
            continue
        found.append((word, row[token].exp().item()))
        if len(found) == count:
            break
    return found


def test_answers_are_the_best_tokens_that_are_words_of_their_own_with_their_probabilities(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, folder = model
    known = published(folder)
    answers = ParametricPhrases(encoder, head, phrase_count=12).fill(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        row = plain_log_probabilities(known, encoder, text, 1)[0]  # f32 [V]
        expected = dict(plain_answers(encoder, row, text, count=16))
        assert len(answer.phrases) == 12
        # Not the phrases in order, because two of them may be nearly as likely.
        assert [score for _, score in told(answer)] == pytest.approx(list(expected.values())[:12], rel=1e-3)
        assert dict(told(answer)) == pytest.approx({phrase: expected[phrase] for phrase, _ in told(answer)}, rel=1e-3)
        assert answer.text == text
    assert len({tuple(told(answer)) for answer in answers}) == len(TEXTS)  # they depend on the text


def test_parts_of_words_stop_words_punctuation_and_words_of_the_question_are_no_answers(bert: Encoder) -> None:
    barred = {"##s": 0.2, "the": 0.15, ".": 0.12, "[MASK]": 0.1, "paris": 0.08, "1": 0.05}
    head = deaf_head(bert, {**barred, "city": 0.06, "sea": 0.04})
    method = ParametricPhrases(bert, head, phrase_count=2)
    assert told(method.fill(["Paris is a <mask>."])[0]) == [("city", pytest.approx(0.06)), ("1", pytest.approx(0.05))]
    assert told(method.fill(["1 city is <mask>."])[0]) == [("paris", pytest.approx(0.08)), ("sea", pytest.approx(0.04))]


def test_a_gold_answer_longer_than_the_model_takes_leaves_its_example_without_an_answer_and_is_told_once() -> None:
    encoder = tiny_encoder("bert", max_positions=16)
    method = GoldLengthPhrases(encoder, deaf_head(encoder, {"city": 0.5}))
    room = 16 - 2  # [CLS] and [SEP]
    golds = [("word " * 400,), ("a " * (room + 1),), ("a " * room,), ("word " * 400, "a city")]
    examples = [Example(str(number), "It is <mask>.", answers=gold) for number, gold in enumerate(golds)]
    answers = method.predict(TASK, examples, silent)
    assert [len(answer.phrases) for answer in answers] == [0, 0, 1, 1]
    assert [TOO_LONG in answer.notes for answer in answers] == [True, True, False, False]
    assert answers[2].phrases[0].phrase == " ".join(["city"] * room)
    scored = evaluate_task(TASK, examples, [method], encoder=encoder, resamples=50)
    assert [note for note in scored.notes() if "no phrase" in note] == [
        "places: mlm-n found no phrase for 2 of 4 examples."
    ]
