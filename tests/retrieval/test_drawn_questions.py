from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import MASK_TEXT
from npm.corpus.text import sentence_bounds
from npm.indexing.changes import delete_documents
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval.drawn_questions import asked_documents, draw_questions
from tests.helpers.tiny_models import FAMILIES, tiny_encoder
from tests.helpers.tuned_indexes import DOCUMENTS, LISTS, build_measured

HELD_OUT = [49, 99, 149]


@pytest.fixture(scope="module", params=FAMILIES)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    folder = tmp_path_factory.mktemp("questions") / "index"
    return PhraseIndex.open(build_measured(folder, tiny_encoder(request.param), f"ivf_sq8 {LISTS}"))


def test_questions_come_only_from_documents_that_the_quantizer_has_not_seen(index: PhraseIndex) -> None:
    assert asked_documents(index).tolist() == HELD_OUT
    questions = draw_questions(index, 6, seed=0)
    assert sorted(question.document for question in questions) == [49, 49, 99, 99, 149, 149]


def test_a_question_is_a_whole_sentence_with_its_phrase_masked(index: PhraseIndex) -> None:
    for question in draw_questions(index, 6, seed=1):
        text = index.store.document(question.document).text
        assert text[question.start_char :].startswith(question.phrase)
        whole = question.text.replace(MASK_TEXT, question.phrase)
        bounds = sentence_bounds(text).tolist()
        assert whole in [text[start:stop] for start, stop in bounds]
        assert 60 <= len(whole) <= 300
        assert question.text.count(MASK_TEXT) == 1


def test_no_sentence_is_asked_about_twice_and_fewer_questions_come_where_there_are_no_more(index: PhraseIndex) -> None:
    questions = draw_questions(index, 100, seed=0)
    wholes = [question.text.replace(MASK_TEXT, question.phrase) for question in questions]
    assert len(wholes) == len(set(wholes)) == 2 * len(HELD_OUT)


def test_a_masked_phrase_has_up_to_four_tokens_whose_ends_have_vectors(index: PhraseIndex) -> None:
    store = index.store
    assert store.start_chars is not None and store.end_chars is not None
    positions = np.arange(store.token_count)
    documents = store.block_documents[store.block_of(positions)]
    starts, ends = store.start_chars.take(positions), store.end_chars.take(positions)
    _, has_row = index.rows.rows_at(positions)
    lengths = set()
    for seed in range(12):
        for question in draw_questions(index, 6, seed=seed):
            here = (documents == question.document) & has_row
            first = np.flatnonzero(here & (starts == question.start_char))
            last = np.flatnonzero(here & (ends == question.start_char + len(question.phrase)))
            assert len(first) and len(last), question
            lengths.add(int(last[0] - first[-1]) + 1)
    assert min(lengths) >= 1 and max(lengths) <= 4 and len(lengths) > 1


def test_the_same_seed_draws_the_same_questions_and_another_one_others(index: PhraseIndex) -> None:
    assert draw_questions(index, 6, seed=3) == draw_questions(index, 6, seed=3)
    assert draw_questions(index, 6, seed=3) != draw_questions(index, 6, seed=4)


def test_where_nothing_was_trained_any_document_may_be_asked_about(encoder: Encoder, tmp_path: Path) -> None:
    index = PhraseIndex.open(build_measured(tmp_path / "index", encoder, None))
    questions = draw_questions(index, 200, seed=0)
    assert {question.document for question in questions} == set(range(DOCUMENTS))


def test_deleted_documents_are_not_asked_about(encoder: Encoder, tmp_path: Path) -> None:
    folder = build_measured(tmp_path / "index", encoder, f"ivf_sq8 {LISTS}")
    delete_documents(folder, DeleteSettings(ids=["d99", "d100"]))
    index = PhraseIndex.open(folder)
    assert asked_documents(index).tolist() == [49, 149]
    assert {question.document for question in draw_questions(index, 10, seed=0)} == {49, 149}


def test_an_index_of_which_training_left_nothing_out_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    index = PhraseIndex.open(build_measured(tmp_path / "index", encoder, "ivf_sq8 2", documents=40))
    with pytest.raises(ArtifactError, match="no question from"):
        draw_questions(index, 5, seed=0)
