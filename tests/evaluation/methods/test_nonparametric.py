from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.core.types import silent
from npm.evaluation.methods import nonparametric
from npm.evaluation.methods.nonparametric import NonparametricLabels, corpus_prompts
from npm.evaluation.methods.occurrences import find_occurrences
from npm.evaluation.tasks import (
    ClosedRetrieval,
    ClosedScoring,
    Example,
    Label,
    LabelPrediction,
    Task,
    TaskData,
    resolved_scoring,
)
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_masks
from npm.retrieval.settings import Combination
from tests.evaluation.methods.word_indexes import index_of_texts
from tests.helpers.stores import token_places
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

TASK = Task(
    name="places",
    suite="closed",
    data=TaskData(file="places.csv"),
    template="{{ text }} It is a <mask>.",
    labels=(
        Label(value=0, name="city", words=("city", "capital", "metropolis")),
        Label(value=1, name="river", words=("river", "North Sea")),
    ),
)
EXAMPLES = [
    Example(id=str(number), text=f"{text} It is a <mask>.")
    for number, text in enumerate(("Paris lies on the Seine.", "The Rhine", "In Poland, and in 1605:", "Oslo"))
]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("roberta")


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    return index_of_texts(tmp_path_factory.mktemp("labels") / "index", SENTENCES * 2, encoder)


def method(index: PhraseIndex, encoder: Encoder, one_mask: bool = False, **scoring: Any) -> NonparametricLabels:
    """Plain means over occurrences unless said otherwise."""
    chosen = {"label_mean": "occurrences", "calibration": "none", **scoring}
    return NonparametricLabels(index, encoder, one_mask, ClosedScoring(**chosen))


def shares_of(predictions: Sequence[LabelPrediction]) -> np.ndarray:
    return np.array([prediction.scores for prediction in predictions])


def plain_shares(
    index: PhraseIndex, encoder: Encoder, one_mask: bool, combination: Combination, temperature: float
) -> list[list[float]]:
    """Mean over all places of all words of a label, found in the documents' own text."""
    assert index.vectors is not None
    factor = encoder.similarity_scale / temperature
    table = []
    for example in EXAMPLES:
        asked = encode_masks(encoder, [example.text], masks_per_text=1 if one_mask else 2).vectors[0]
        evidence = []
        for label in TASK.labels:
            weights = []
            for first_row, last_row in plain_places(index, label.words):
                first, last = (
                    index.vectors.take(np.array([row]))[0].astype(np.float64) for row in (first_row, last_row)
                )
                s, t = factor * float(asked[0] @ first), factor * float(asked[-1] @ last)
                if one_mask:
                    weights.append(math.exp(s))
                else:
                    weights.append(math.exp(s) + math.exp(t) if combination is Combination.sum else math.exp(s + t))
            evidence.append(sum(weights) / len(weights))
        table.append([each / sum(evidence) for each in evidence])
    return table


def plain_places(index: PhraseIndex, words: Sequence[str]) -> list[tuple[int, int]]:
    """The rows of the first and the last token of each place of each word, found by its characters."""
    store = index.store
    starts, ends = token_places(store)
    documents = store.block_documents[store.block_of(np.arange(store.token_count))]
    rows = {position: row for row, position in enumerate(index.rows.positions(np.arange(len(index.rows))).tolist())}
    found = []
    for number in range(store.document_count):
        text = store.document(number).text
        for word in words:
            at = text.find(word)
            while at >= 0:
                (first,) = np.flatnonzero((documents == number) & (starts == at))
                (last,) = np.flatnonzero((documents == number) & (ends == at + len(word)))
                found.append((rows[first], rows[last]))
                at = text.find(word, at + 1)
    return found


@pytest.mark.parametrize("one_mask", [False, True])
@pytest.mark.parametrize("combination", list(Combination))
def test_shares_are_means_over_all_occurrences_in_the_text(
    one_mask: bool, combination: Combination, index: PhraseIndex, encoder: Encoder
) -> None:
    labels = method(index, encoder, one_mask, combination=combination, temperature=2.0)
    shares = shares_of(labels.predict(TASK, EXAMPLES, silent).answers)
    assert np.allclose(shares, plain_shares(index, encoder, one_mask, combination, 2.0), atol=2e-4)
    assert shares.std(axis=0).min() > 1e-3


def test_method_npm_asks_an_encoder_of_one_mask_a_query_with_one_mask(index: PhraseIndex, encoder: Encoder) -> None:
    single = copy.copy(encoder)
    single.model = copy.deepcopy(encoder.model)
    single.query_masks = 1
    asked = {}
    for name, one_mask, each in (("npm", None, single), ("single", True, encoder), ("pair", None, encoder)):
        labels = NonparametricLabels(index, each, one_mask)
        found = labels.predict(TASK, EXAMPLES, silent)
        asked[name] = shares_of(found.answers)
        assert found.facts["masks"] == ("pair" if name == "pair" else "single")
    assert np.array_equal(asked["npm"], asked["single"])
    assert not np.allclose(asked["npm"], asked["pair"])


def test_evidence_is_the_best_occurrence_of_each_label_where_it_stands(index: PhraseIndex, encoder: Encoder) -> None:
    for prediction in method(index, encoder).predict(TASK, EXAMPLES, silent).answers:
        assert [each.label for each in prediction.evidence] == [0, 1]
        for each in prediction.evidence:
            place = each.occurrence
            assert place.context[place.start_char - place.context_start_char :].startswith(each.word)


def test_the_evidence_of_a_mean_over_words_names_the_word_with_the_best_mean_not_the_largest_sum(
    index: PhraseIndex, encoder: Encoder
) -> None:
    words = ("capital", "Seine")  # six occurrences and two
    alone = replace(
        TASK, labels=tuple(Label(value=number, name=word, words=(word,)) for number, word in enumerate(words))
    )
    both = replace(
        TASK, labels=(Label(value=0, name="place", words=words), Label(value=1, name="city", words=("city",)))
    )
    best = {}
    for mean, of_one_word in (("words", "occurrences"), ("sum", "sum")):
        shares = shares_of(method(index, encoder, label_mean=of_one_word).predict(alone, EXAMPLES, silent).answers)
        best[mean] = [words[int(number)] for number in shares.argmax(axis=1)]
        predictions = method(index, encoder, label_mean=mean).predict(both, EXAMPLES, silent).answers
        assert [prediction.evidence[0].word for prediction in predictions] == best[mean]
    assert best["words"] != best["sum"]


def test_calibration_divides_by_the_scores_of_the_template_alone(index: PhraseIndex, encoder: Encoder) -> None:
    plain = shares_of(
        method(index, encoder).predict(TASK, [*EXAMPLES, Example("e", "It is a <mask>.")], silent).answers
    )
    calibrated = shares_of(method(index, encoder, calibration="prompt").predict(TASK, EXAMPLES, silent).answers)
    ratios = plain[:-1] / plain[-1]
    assert np.allclose(calibrated, ratios / ratios.sum(axis=1, keepdims=True), atol=1e-5)


def test_calibration_by_the_corpus_divides_each_word_by_its_geometric_mean_over_sentences_of_the_corpus(
    index: PhraseIndex, encoder: Encoder
) -> None:
    prompts = corpus_prompts(TASK, index)
    assert len(set(prompts)) > 3
    assert all(prompt.endswith(" It is a <mask>.") for prompt in prompts)
    alone = [
        replace(
            TASK, labels=tuple(Label(value=n, name=w, words=(w,)) for n, w in enumerate(("city", "capital", "river")))
        )
    ] * 2
    asked = [*EXAMPLES, *(Example(f"p{number}", prompt) for number, prompt in enumerate(prompts))]
    shares = shares_of(method(index, encoder).predict(alone[0], asked, silent).answers)  # f64 [q + prompts, 3]
    relative = np.log(shares[: len(EXAMPLES)]) - np.log(shares[len(EXAMPLES) :]).mean(0)  # up to one term a row
    evidence = np.exp(relative)
    found = shares_of(method(index, encoder, calibration="corpus").predict(alone[1], EXAMPLES, silent).answers)
    assert np.allclose(found, evidence / evidence.sum(axis=1, keepdims=True), atol=1e-4)
    assert np.abs(found - shares[: len(EXAMPLES)]).max() > 0.01


def test_scaled_calibration_divides_the_logarithm_by_its_spread_over_the_prompts(
    index: PhraseIndex, encoder: Encoder
) -> None:
    task = replace(
        TASK, labels=(Label(value=0, name="city", words=("city",)), Label(value=1, name="river", words=("river",)))
    )
    asked = [*EXAMPLES, *(Example(f"p{number}", prompt) for number, prompt in enumerate(corpus_prompts(task, index)))]
    labels = method(index, encoder)
    labels.predict(task, asked, silent)
    scoring = resolved_scoring(ClosedScoring())
    found_words = find_occurrences(index, encoder, ("city", "river"))
    logs = labels.word_scores(found_words, scoring, [each.text for each in asked]).log_sums  # f64 [q + prompts, 2]
    at_prompts = logs[len(EXAMPLES) :]
    scores = (logs[: len(EXAMPLES)] - at_prompts.mean(0)) / at_prompts.std(0)  # f64 [q, 2]
    found = shares_of(
        method(index, encoder, calibration="corpus_scaled", temperature=2.0).predict(task, EXAMPLES, silent).answers
    )
    assert np.allclose(np.log(found[:, 0] / found[:, 1]), scores @ [1, -1], atol=1e-4)


def test_calibration_by_the_corpus_and_the_best_rows_do_not_go_together(index: PhraseIndex, encoder: Encoder) -> None:
    labels = method(index, encoder, calibration="corpus", retrieval="top_k")
    with pytest.raises(SettingError, match="retrieval=exact"):
        labels.predict(TASK, EXAMPLES, silent)


@pytest.mark.parametrize("retrieval", get_args(ClosedRetrieval))
def test_answers_do_not_depend_on_how_examples_are_batched(
    retrieval: ClosedRetrieval, index: PhraseIndex, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = shares_of(method(index, encoder, retrieval=retrieval, k=30).predict(TASK, EXAMPLES, silent).answers)
    monkeypatch.setattr(nonparametric, "EXAMPLES_SCORED_TOGETHER", 3)
    monkeypatch.setattr(nonparametric, "EXAMPLES_ENCODED_TOGETHER", 2)
    reported = []
    apart = (
        method(index, encoder, retrieval=retrieval, k=30)
        .predict(TASK, EXAMPLES, lambda _, done, total: reported.append((done, total)))
        .answers
    )
    assert np.allclose(shares_of(apart), together, atol=1e-5)
    assert reported == [(3, 4), (4, 4)]


def test_top_k_with_all_rows_and_e_to_the_s_agrees_with_exact_sums(index: PhraseIndex, encoder: Encoder) -> None:
    exact = method(index, encoder, True, label_mean="sum").predict(TASK, EXAMPLES, silent).answers
    top_k = (
        method(index, encoder, True, label_mean="sum", retrieval="top_k", k=10_000)
        .predict(TASK, EXAMPLES, silent)
        .answers
    )
    assert np.allclose(shares_of(top_k), shares_of(exact), atol=2e-4)


def test_without_evidence_among_the_best_rows_the_first_label_wins_and_is_counted(
    index: PhraseIndex, encoder: Encoder
) -> None:
    task = replace(
        TASK, labels=(Label(value=0, name="a", words=("Giannini",)), Label(value=1, name="b", words=("Cervantes",)))
    )
    labels = method(index, encoder, retrieval="top_k", k=1)
    found = labels.predict(task, EXAMPLES, silent)
    without = [prediction for prediction in found.answers if prediction.scores == (0.5, 0.5)]
    assert found.facts["without_evidence"] == len(without) > 0
    assert {prediction.label for prediction in without} == {0}
    assert all(prediction.evidence == () for prediction in without)
    calibrated = method(index, encoder, retrieval="top_k", k=1, calibration="prompt")
    with pytest.raises(SettingError, match="no evidence for"):
        calibrated.predict(task, EXAMPLES, silent)
