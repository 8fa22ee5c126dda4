"""Closed tasks answered as the reference answers them (`scoring=reference`), against plain loops over rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.cli.settings import compose_settings
from npm.core.types import silent
from npm.evaluation.methods.nonparametric import NonparametricLabels
from npm.evaluation.methods.registry import Resources
from npm.evaluation.tasks import ClosedScoring, Example, Label, LabelPrediction, Task, TaskData
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_masks
from tests.evaluation.methods.word_indexes import index_of_texts
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

TASK = Task(
    name="places",
    suite="closed",
    data=TaskData(file="places.csv"),
    template="{{ text }} It is a <mask>.",
    labels=(Label(value=0, name="first", words=("capital", "Faxaflói")), Label(value=1, name="second", words=("Pa",))),
)
EXAMPLES = [
    Example(id=str(number), text=f"{text} It is a <mask>.")
    for number, text in enumerate(("Paris lies on the Seine.", "The Rhine", "In Poland, and in 1605:", "Oslo"))
]
REFERENCE: ClosedScoring = compose_settings("evaluate", ["out=o", "scoring=reference"]).zero_shot.closed
K = 40


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("roberta")


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    return index_of_texts(tmp_path_factory.mktemp("labels") / "index", SENTENCES * 2, encoder)


def predictions(index: PhraseIndex, encoder: Encoder, one_mask: bool, scoring: ClosedScoring) -> list[LabelPrediction]:
    method = NonparametricLabels(index, encoder, one_mask, replace(scoring, k=K))
    return method.predict(TASK, EXAMPLES, silent).answers


def plain_scores(index: PhraseIndex, encoder: Encoder, text: str, masks: int) -> list[float]:
    """Shares of the labels: the best K rows of each query in one softmax, summed by the token that stands there."""
    assert index.vectors is not None
    positions = index.rows.positions(np.arange(len(index.rows))).tolist()
    tokens = [int(index.store.token_ids.slice(at, at + 1)[0]) for at in positions]
    vectors = index.vectors.take(np.arange(len(positions))).astype(np.float64)
    temperature = 25 if masks == 2 else 5
    found: list[tuple[float, int]] = []
    for query in encode_masks(encoder, [text], masks_per_text=masks).vectors[0].astype(np.float64):
        products = vectors @ query
        best = sorted(range(len(positions)), key=lambda row: -products[row])[:K]
        found += [(encoder.similarity_scale * float(products[row]) / temperature, tokens[row]) for row in best]
    total = sum(math.exp(logit) for logit, _ in found)
    ids = {word: encoder.tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in ("capital", "Pa")}
    assert all(len(each) == 1 for each in ids.values())
    shares = [sum(math.exp(logit) for logit, token in found if token == ids[word][0]) / total for word in ids]
    return [share / sum(shares) for share in shares] if sum(shares) else [0.5, 0.5]


@pytest.mark.parametrize("one_mask", [False, True])
def test_labels_have_the_shares_of_their_single_tokens_among_the_best_rows(
    one_mask: bool, index: PhraseIndex, encoder: Encoder
) -> None:
    expected = [plain_scores(index, encoder, example.text, 1 if one_mask else 2) for example in EXAMPLES]
    found = [list(each.scores) for each in predictions(index, encoder, one_mask, REFERENCE)]
    assert np.allclose(found, expected, atol=1e-3)
    assert np.std(expected, axis=0).min() > 1e-3


def test_a_token_within_a_word_counts_and_a_word_of_several_tokens_does_not(
    index: PhraseIndex, encoder: Encoder
) -> None:
    method = NonparametricLabels(index, encoder, scoring=REFERENCE)
    found = method.predict(TASK, EXAMPLES, silent)
    counts = found.facts["words"]
    assert counts["first"] == {"capital": 6, "Faxaflói": 0}
    (token,) = encoder.tokenizer(" Pa", add_special_tokens=False)["input_ids"]
    positions = index.rows.positions(np.arange(len(index.rows)))
    assert counts["second"] == {"Pa": int((index.store.token_ids.take(positions) == token).sum())}
    assert any("words of the label 'first' have no vector in the corpus" in note for note in found.notes or ())


def test_of_a_long_prompt_the_last_tokens_are_read(encoder: Encoder) -> None:
    text = f"{SENTENCES[0]} {SENTENCES[1]} It is a <mask>."
    halves = text.replace(" <mask>", "<mask>").split("<mask>")
    before, after = encoder.tokenizer(halves, add_special_tokens=False)["input_ids"]
    ids = [*encoder.prefix_ids, *before, encoder.mask_id, encoder.mask_id, *after, *encoder.suffix_ids][-20:]
    assert len(before) > 40
    with torch.no_grad():
        states = encoder.token_vectors(torch.tensor([ids]), torch.ones(1, 20, dtype=torch.long))[0].numpy()
    found = encode_masks(encoder, [text, "Oslo is a <mask>."], masks_per_text=2, last_tokens=20)
    slot = ids.index(encoder.mask_id)
    np.testing.assert_allclose(found.vectors[0], states[slot : slot + 2], atol=1e-5)
    assert found.cut.tolist() == [True, False]
    whole = encode_masks(encoder, ["Oslo is a <mask>."], masks_per_text=2)
    np.testing.assert_allclose(found.vectors[1], whole.vectors[0], atol=1e-5)
    early = encode_masks(encoder, [f"<mask> {SENTENCES[0]} {SENTENCES[1]}"], masks_per_text=1, last_tokens=8)
    assert early.vectors.shape == (1, 1, encoder.dimensions)


def test_a_task_of_long_answers_is_filled_with_longer_phrases_unless_the_user_says_otherwise(
    encoder: Encoder, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    index_of_texts(folder, SENTENCES, encoder)
    encoder.save(tmp_path / "encoder")
    task = Task(name="t", suite="open", data=TaskData(file="t.jsonl"), template="{{ a }} <mask>")
    task = replace(task, fill={"max_phrase_tokens": 20, "scoring": {"temperature": 2}})
    for given, expected in (([], 20), (["fill.max_phrase_tokens=4"], 4), (["fill.max_phrase_tokens=10"], 10)):
        places = [f"index={folder}", f"encoder={tmp_path / 'encoder'}", f"out={tmp_path / 'out'}", "device=cpu"]
        settings = compose_settings("evaluate", [*places, *given])
        filling = Resources(settings).fill_settings(task)
        assert (filling.max_phrase_tokens, filling.scoring.temperature) == (expected, 2.0)
