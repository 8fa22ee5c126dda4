"""Readers of `transformers` with a head for spans: two families with tokenizers of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from npm.reading.reader import Passage
from npm.reading.span_head import SpanHeadReader
from tests.helpers.tiny_models import SENTENCES, tiny_span_head

QUESTION = "What is the capital of Iceland?"
PASSAGE = Passage(SENTENCES[0])


@pytest.fixture(params=["bert", "roberta"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> SpanHeadReader:
    return SpanHeadReader.load(tiny_span_head(request.param, tmp_path), device="cpu", dtype="float32")


def plain_logits(reader: SpanHeadReader, question: str, text: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Logits f64 [2, 1 + T] of the first token and the passage's, as one pass gives them, and the passage's bounds."""
    tokenizer = reader.tokenizer
    found = tokenizer(question, text, return_offsets_mapping=True, return_tensors="pt")
    places = [at for at, part in enumerate(found.sequence_ids(0)) if part == 1]
    given = {name: found[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in found}
    with torch.no_grad():
        output = reader.model(**given)
    logits = torch.cat([output.start_logits, output.end_logits]).double().numpy()
    return logits[:, [0, *places]], [tuple(found["offset_mapping"][0][at].tolist()) for at in places]


def test_scores_are_those_of_one_pass(reader: SpanHeadReader) -> None:
    ((scores,),) = reader.read([(f"{QUESTION} <mask>.", PASSAGE)])
    logits, bounds = plain_logits(reader, QUESTION, PASSAGE.text)
    expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    assert scores.bounds.tolist() == [list(each) for each in bounds]
    np.testing.assert_allclose(scores.scores, expected[:, 1:], atol=1e-5)
    np.testing.assert_allclose(scores.not_here, expected[:, 0], atol=1e-5)


def test_a_statement_is_asked_with_what_in_the_place_of_each_mask(reader: SpanHeadReader) -> None:
    (found,) = reader.read([("<mask> lies in <mask>.", PASSAGE)])
    for scores, question in zip(found, ["what lies in something?", "something lies in what?"], strict=True):
        logits, _ = plain_logits(reader, question, PASSAGE.text)
        expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        np.testing.assert_allclose(scores.scores, expected[:, 1:], atol=1e-5)


def test_a_title_is_read_and_answers_nothing(reader: SpanHeadReader) -> None:
    ((scores,),) = reader.read([(f"{QUESTION} <mask>.", Passage(PASSAGE.text, "Iceland"))])
    assert scores.bounds[0, 0] == 0 and scores.bounds[-1, 1] == len(PASSAGE.text)
    ((untitled,),) = reader.read([(f"{QUESTION} <mask>.", PASSAGE)])
    assert np.abs(scores.scores - untitled.scores).max() > 1e-4


def test_a_passage_longer_than_the_model_takes_is_read_in_windows(reader: SpanHeadReader) -> None:
    text = " ".join(SENTENCES * 3)
    ((scores,),) = reader.read([(f"{QUESTION} <mask>.", Passage(text))])
    assert scores.bounds[0, 0] == 0 and scores.bounds[-1, 1] == len(text)
    assert np.isfinite(scores.scores).all()
    np.testing.assert_allclose(np.exp(scores.scores).sum(1) + np.exp(scores.not_here), 1)
