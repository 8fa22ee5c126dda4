"""The project's reader against one plain pass of its encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npm.core.types import MASK_TEXT
from npm.models.encoder import Encoder
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage, PassageTokens
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder

TEXT = "The capital of Iceland is <mask>."
PAIRS = [(TEXT, Passage(SENTENCES[0])), ("<mask> and Kraków are cities in Poland", Passage(SENTENCES[4], "Poland"))]


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    made = tiny_encoder(request.param)
    made.title_tokens = 3
    return made


def ids_of(encoder: Encoder, text: str) -> list[int]:
    ids: list[int] = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def plain_scores(encoder: Encoder, text: str, passage: Passage, window: slice = slice(None)) -> np.ndarray:
    """Logits f64 [2, 1 + T] of the first token and of the passage's, by one pass without padding."""
    before, after = text.split(MASK_TEXT)
    before = before.rstrip() if type(encoder.model).__name__.startswith(("Roberta", "ModernBert")) else before
    first = len(encoder.prefix_ids) + len(ids_of(encoder, before))
    masks = [encoder.mask_id, encoder.mask_id]
    asked = [*encoder.prefix_ids, *ids_of(encoder, before), *masks, *ids_of(encoder, after), *encoder.suffix_ids]
    title = [*ids_of(encoder, passage.title)[:3], *ids_of(encoder, ".")] if passage.title else []
    read = ids_of(encoder, passage.text)[window]
    ids = torch.tensor([[*asked, *title, *read, *encoder.suffix_ids]])
    with torch.no_grad():
        states = encoder.token_vectors(ids, torch.ones_like(ids))[0].double()  # f64 [L, d]
    logits = states[[first, first + 1]] @ states.T * encoder.similarity_scale  # f64 [2, L]
    start = len(asked) + len(title)
    return logits[:, [0, *range(start, start + len(read))]].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def test_scores_are_those_of_one_pass_with_the_first_token_as_not_here(encoder: Encoder) -> None:
    for (text, passage), (scores,) in zip(PAIRS, MaskReader(encoder).read(PAIRS), strict=True):
        expected = log_softmax(plain_scores(encoder, text, passage))
        np.testing.assert_allclose(scores.scores, expected[:, 1:], atol=1e-4)
        np.testing.assert_allclose(scores.not_here, expected[:, 0], atol=1e-4)
        words = [passage.text[first:stop].strip() for first, stop in scores.bounds.tolist()]
        assert words[0] in passage.text.split()[0] and scores.bounds[-1, 1] == len(passage.text)


def test_each_mask_of_a_text_has_its_own_scores(encoder: Encoder) -> None:
    text = "<mask> is the capital of <mask>."
    ((first, second),) = MaskReader(encoder).read([(text, PAIRS[0][1])])
    assert np.abs(first.scores - second.scores).max() > 1e-6
    np.testing.assert_allclose(np.exp(first.scores).sum(1) + np.exp(first.not_here), 1)


@pytest.mark.parametrize("title", ["", "Poland"])
def test_a_long_passage_is_read_in_windows_each_half_over_the_last(title: str) -> None:
    encoder = tiny_encoder("bert", max_positions=40)
    encoder.title_tokens = 3
    passage = Passage(" ".join(SENTENCES), title)
    ((scores,),) = MaskReader(encoder).read([(TEXT, passage)])
    count = len(ids_of(encoder, passage.text))
    asked = len(ids_of(encoder, TEXT.replace(MASK_TEXT, ""))) + 2 + 2  # two masks, two special tokens
    beside = len(ids_of(encoder, title)[:3]) + len(ids_of(encoder, ".")) if title else 0
    room = 40 - asked - beside - 1
    best, none = np.full((2, count), -np.inf), np.full(2, np.inf)
    for start in range(0, count - room + room // 2, room // 2):
        window = slice(start, min(count, start + room))
        logits = plain_scores(encoder, TEXT, passage, window)
        best[:, window] = np.maximum(best[:, window], logits[:, 1:])
        none = np.minimum(none, logits[:, 0])
    expected = log_softmax(np.concatenate([none[:, None], best], axis=1))
    np.testing.assert_allclose(scores.scores, expected[:, 1:], atol=1e-4)
    np.testing.assert_allclose(scores.not_here, expected[:, 0], atol=1e-4)
    assert len(scores.bounds) == count > 2 * room


def test_tokens_that_an_index_has_cut_are_read_as_they_are(encoder: Encoder) -> None:
    passage = PAIRS[1][1]
    title = [*ids_of(encoder, passage.title)[:3], *ids_of(encoder, ".")]
    found = encoder.tokenizer(passage.text, add_special_tokens=False, return_offsets_mapping=True)
    ids, bounds = np.array([*title, *found["input_ids"]]), np.array(found["offset_mapping"])
    known = Passage(passage.text, passage.title, PassageTokens(encoder.tokenizer_fingerprint, ids, bounds))
    foreign = Passage(passage.text, passage.title, PassageTokens("another", ids[:2], bounds[:1]))
    ((cut,),), ((kept,),), ((others,),) = (
        MaskReader(encoder).read([(TEXT, each)]) for each in (passage, known, foreign)
    )
    for each in (kept, others):
        np.testing.assert_allclose(each.scores, cut.scores, atol=1e-5)
        np.testing.assert_array_equal(each.bounds, cut.bounds)


def test_a_question_of_any_length_leaves_room_for_the_passage() -> None:
    encoder = tiny_encoder("bert", max_positions=64)
    ((scores,),) = MaskReader(encoder).read([("Iceland " * 200 + MASK_TEXT, PAIRS[0][1])])
    assert np.isfinite(scores.scores).all()
