"""A masked language model on closed and open tasks: by hand, against `transformers`, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import SettingError
from npm.core.types import Answer, silent
from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS
from npm.evaluation.methods import parametric
from npm.evaluation.methods.parametric import (
    TOO_LONG,
    GoldLengthPhrases,
    ParametricPhrases,
    language_model_facts,
    prompted_labels,
    word_log_probabilities,
)
from npm.evaluation.methods.registry import Method
from npm.evaluation.table import evaluate_task, task_notes
from npm.evaluation.tasks import Example, Label, Task, TaskData, Verbalizer
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.helpers.language_models import deaf_head, examples_of, plain_log_probabilities, published
from tests.helpers.tiny_models import tiny_encoder

WORDS = ("Paris", "paris", "capital", "the capital", "Bank of America", "o", "Reykjavík", "Switzerland", "sea")
TEXTS = (
    "Paris is the <mask> of France.",
    "<mask> lies on the coast.",
    "It was (<mask>), as in Madrid.",
    "The river Rhine rises in Switzerland and flows to the North Sea in the Netherlands. It is<mask>!",
    "Its symbol is H;\n<mask>",
    "Norway \u2009 <mask> Oslo",
)
LABELS = (Label(value=0, name="bad", words=("city",)), Label(value=1, name="good", words=("river", "sea")))
TASK = Task(
    name="places",
    suite="closed",
    data=TaskData(file="places.csv"),
    template="{{ text }} It was <mask>.",
    labels=LABELS,
)


def plain_word_score(model: Any, encoder: Encoder, text: str, word: str) -> float:
    """log P(word | text), its tokens those that stand behind the text before the mask."""
    mask_takes_space = encoder.name != "tiny-bert"
    before = text.split("<mask>")[0]
    surface = f" {word}" if mask_takes_space and before and before[-1].isspace() else word
    ids = encoder.tokenizer.encode(surface, add_special_tokens=False)
    at_masks = plain_log_probabilities(model, encoder, text, len(ids))
    return sum(at_masks[place, token].item() for place, token in enumerate(ids))


def label_scores(logs: np.ndarray, labels: Sequence[Sequence[str]]) -> np.ndarray:
    """log of the mean probability of each label's words."""
    edges = np.cumsum([0, *map(len, labels)])
    return np.stack([np.log(np.exp(logs[:, a:b]).mean(1)) for a, b in pairwise(edges)], axis=1)


def labels_by(name: str, encoder: Encoder, head: MaskedHead, *words: Sequence[str], **more: Any) -> Method:
    return prompted_labels(
        name,
        partial(word_log_probabilities, encoder, head),
        facts=language_model_facts(encoder, head),
        verbalizer=Verbalizer("mine", tuple(tuple(own) for own in words)),
        **more,
    )


def test_a_word_is_as_likely_as_all_its_tokens_and_a_label_as_its_words_on_average(bert: Encoder) -> None:
    first, *others = bert.tokenizer.tokenize("seacity")
    assert first == "sea" and len(others) > 0
    head = deaf_head(bert, {"city": 0.4, "paris": 0.2, "sea": 0.1, **dict.fromkeys(others, 0.05)})
    labels = (("city",), ("paris", "sea"), ("seacity", "city"))
    logs, cut = word_log_probabilities(
        bert, head, ["It is <mask>.", "<mask>"], [word for own in labels for word in own]
    )
    scores = label_scores(logs, labels)
    row = [0.4, (0.2 + 0.1) / 2, (0.1 * 0.05 ** len(others) + 0.4) / 2]
    np.testing.assert_allclose(np.exp(scores), [row, row], rtol=1e-5)
    assert cut.tolist() == [False, False]


def test_words_have_the_probabilities_that_transformers_gives_them_one_at_a_time(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, folder = model
    known = published(folder)
    expected = [[plain_word_score(known, encoder, text, word) for word in WORDS] for text in TEXTS]
    found, cut = word_log_probabilities(encoder, head, TEXTS, WORDS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert np.ptp(expected, axis=0).min() > 0.1  # the text counts, so that the comparison says something
    assert not cut.any()


def test_predictions_do_not_depend_on_how_much_is_computed_at_once(
    model: tuple[Encoder, MaskedHead, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, head, _ = model
    method = labels_by("mlm", encoder, head, ["sea", "river"], ["city"], examples_per_call=4)
    expected = [prediction.scores for prediction in method.predict(TASK, examples_of(TEXTS), silent).answers]
    monkeypatch.setattr(parametric, "LOGITS_AT_ONCE", 1)
    calls: list[tuple[int, int]] = []
    found = method.predict(TASK, examples_of(TEXTS), lambda _, done, total: calls.append((done, total))).answers
    np.testing.assert_allclose([prediction.scores for prediction in found], expected, rtol=0, atol=1e-5)
    assert calls == [(4, 6), (6, 6)]


def test_calibration_takes_off_what_the_prompt_says_without_the_example(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, _ = model
    labels = (("city", "Paris"), ("sea",))
    texts = [f"{text} It was <mask>." for text in ("A river.", "The capital of France is Paris.", "Oslo")]
    calibrated = labels_by("mlm-pmi", encoder, head, *labels, calibration="prompt")
    found = np.array([p.scores for p in calibrated.predict(TASK, examples_of(texts), silent).answers])  # f64 [3, 2]
    words = [word for own in labels for word in own]
    scores = label_scores(word_log_probabilities(encoder, head, texts, words)[0], labels)  # f64 [3, 2]
    prior = label_scores(word_log_probabilities(encoder, head, ["It was <mask>."], words)[0], labels)  # f64 [1, 2]
    np.testing.assert_allclose(np.log(found[:, 0] / found[:, 1]), (scores - prior) @ [1, -1], rtol=0, atol=1e-4)
    assert abs(prior @ [1, -1]) > 0.05


def test_calibration_by_the_corpus_takes_each_words_mean_over_its_prompts_off(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, _ = model
    texts, prompts = ["the sea. It was <mask>.", "It was <mask>!"], ["a city. It was <mask>.", "It was <mask> then."]
    labels = (("sea", "river"), ("city",))
    words = [word for own in labels for word in own]
    method = labels_by("mlm-fuzzy-corpus", encoder, head, *labels, calibration="corpus", prompts=prompts)
    found = np.array([p.scores for p in method.predict(TASK, examples_of(texts), silent).answers])  # f64 [2, 2]
    logs = word_log_probabilities(encoder, head, [*texts, *prompts], words)[0]  # f64 [4, 3]
    relative = np.exp(logs[:2] - logs[2:].mean(0))  # f64 [2, 3]
    expected = np.log(relative[:, :2].mean(1) / relative[:, 2])  # f64 [2]
    np.testing.assert_allclose(np.log(found[:, 0] / found[:, 1]), expected, rtol=0, atol=1e-3)


def test_a_model_that_does_not_read_has_no_calibrated_preference(bert: Encoder) -> None:
    head = deaf_head(bert, {"city": 0.7, "river": 0.01})
    plain = labels_by("mlm", bert, head, ["city"], ["river"])
    calibrated = labels_by("mlm-pmi", bert, head, ["city"], ["river"], calibration="prompt")
    texts = examples_of(["Oslo. It was <mask>."])
    assert plain.predict(TASK, texts, silent).answers[0].scores == pytest.approx((0.7 / 0.71, 0.01 / 0.71), rel=1e-4)
    assert calibrated.predict(TASK, texts, silent).answers[0].scores == pytest.approx((0.5, 0.5))


def test_a_word_that_the_tokenizer_cannot_write_is_refused_by_name(bert: Encoder) -> None:
    head = deaf_head(bert, {})
    method = labels_by("mlm", bert, head, ["sea"], ["東京"])
    with pytest.raises(SettingError, match="東京"):
        method.predict(TASK, examples_of(["It is <mask>."]), silent)


OPEN_TASK = Task(name="places", suite="open", data=TaskData(file="places.jsonl"), template="{{ text }}")
OPEN_TEXTS = (
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
    answers = ParametricPhrases(encoder, head, phrase_count=12).fill(OPEN_TEXTS)
    for text, answer in zip(OPEN_TEXTS, answers, strict=True):
        row = plain_log_probabilities(known, encoder, text, 1)[0]  # f32 [V]
        expected = dict(plain_answers(encoder, row, text, count=16))
        assert len(answer.phrases) == 12
        # Not the phrases in order, because two of them may be nearly as likely.
        assert [score for _, score in told(answer)] == pytest.approx(list(expected.values())[:12], rel=1e-3)
        assert dict(told(answer)) == pytest.approx({phrase: expected[phrase] for phrase, _ in told(answer)}, rel=1e-3)
        assert answer.text == text
    assert len({tuple(told(answer)) for answer in answers}) == len(OPEN_TEXTS)  # they depend on the text


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
    answers = method.predict(OPEN_TASK, examples, silent).answers
    assert [len(answer.phrases) for answer in answers] == [0, 0, 1, 1]
    assert [TOO_LONG in answer.notes for answer in answers] == [True, True, False, False]
    assert answers[2].phrases[0].phrase == " ".join(["city"] * room)
    scored = evaluate_task(OPEN_TASK, examples, [Method("mlm-n", method.predict)], encoder=encoder, resamples=50)
    assert [note for note in task_notes(scored) if "no phrase" in note] == [
        "places: mlm-n found no phrase for 2 of 4 examples."
    ]
