"""Only these documents, or only those whose fields match, in every way of retrieval, with deletions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import QueryError, SettingError
from npm.core.types import Answer
from npm.indexing.changes import delete_documents
from npm.indexing.phrase_index import select
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import Retrieval
from tests.helpers.live_indexes import QUESTIONS, TIERS, built, record
from tests.helpers.tiny_models import tiny_encoder

LANGUAGES = ("en", "de", "fr")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg  # so that blocks have vectors
    return encoder


@pytest.fixture(scope="module", params=TIERS, ids=str)
def filler(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    records = [record(number, language=LANGUAGES[number % 3]) for number in range(9)]
    folder = built(tmp_path_factory.mktemp("filters") / "index", records, encoder, request.param)
    return PhraseFiller.open(folder, encoder)


def documents_of(answers: list[Answer]) -> set[str]:
    return {each.document for answer in answers for phrase in answer.phrases for each in phrase.occurrences}


@pytest.mark.parametrize("retrieval", Retrieval)
def test_answers_come_from_the_documents_chosen_and_from_nowhere_else(
    retrieval: Retrieval, filler: PhraseFiller
) -> None:
    for chosen in (["d4"], ["d1", "d7", "d8"]):
        answers = filler.fill(list(QUESTIONS), k=50, occurrences=50, retrieval=retrieval, documents=chosen)
        assert documents_of(answers) <= set(chosen)
        assert any(answer.phrases for answer in answers)
    german = filler.fill(list(QUESTIONS), k=50, occurrences=50, retrieval=retrieval, where="lang=de")
    assert documents_of(german) <= {"d1", "d4", "d7"}
    both = filler.fill(list(QUESTIONS), k=50, occurrences=50, documents=["d1", "d2"], where=["lang in [de, en]"])
    assert documents_of(both) == {"d1"}


def test_a_filter_gives_the_dense_answer_of_all_blocks_of_those_documents(filler: PhraseFiller) -> None:
    store = filler.index.store
    numbers = store.find_documents(["d2", "d5"])
    blocks = np.flatnonzero(np.isin(store.block_documents, numbers))
    for question in QUESTIONS:
        filtered = filler.fill(question, k=20, retrieval="dense", documents=["d2", "d5"])
        restricted = filler.fill(question, k=20, retrieval="dense", blocks=blocks)
        assert [phrase.phrase for phrase in filtered.phrases] == [phrase.phrase for phrase in restricted.phrases]
        ours, theirs = ([phrase.score for phrase in answer.phrases] for answer in (filtered, restricted))
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("retrieval", Retrieval)
def test_an_empty_list_of_documents_is_answered_from_nothing_and_says_so(
    retrieval: Retrieval, filler: PhraseFiller
) -> None:
    (note,) = filler.fill(QUESTIONS[0], documents=[], retrieval=retrieval).notes
    assert "list of documents to answer from is empty" in note
    answers = filler.fill(list(QUESTIONS), documents=[], where="lang=de", retrieval=retrieval)
    answers += filler.fill(list(QUESTIONS), documents=[], blocks=[0], retrieval=retrieval)
    assert [answer.phrases for answer in answers] == [()] * 2 * len(QUESTIONS)
    assert {answer.notes for answer in answers} == {(note,)}
    settings = replace(filler.settings, documents=[], retrieval=retrieval)
    assert PhraseFiller(filler.index, filler.encoder, settings).fill(QUESTIONS[0]).notes == (note,)
    with pytest.raises(SettingError, match=r"corpus\.kept_fields"):
        filler.fill(QUESTIONS[0], documents=[], where="year>=1990", retrieval=retrieval)
    everything = filler.fill(list(QUESTIONS), documents=None, retrieval=retrieval)
    assert any(answer.phrases for answer in everything)


def test_an_answer_without_blocks_to_look_in_says_which_are_missing(filler: PhraseFiller) -> None:
    notes = {
        name: filler.fill(text, **options).notes  # type: ignore[call-overload]
        for name, text, options in (
            ("list of blocks to look in is empty", QUESTIONS[0], {"blocks": []}),
            ("no block given is of a document", QUESTIONS[0], {"blocks": [0], "documents": ["d8"]}),
            ("no block of the corpus shares a word", "zzz <mask>", {"retrieval": "bm25"}),
        )
    }
    for part, (note,) in notes.items():
        assert part in note


def test_a_list_shorter_than_k_says_that_few_blocks_were_looked_in(filler: PhraseFiller) -> None:
    answer = filler.fill(QUESTIONS[0], k=1000, retrieval="bm25")
    assert answer.notes == (
        f"{len(answer.phrases)} of 1000 phrases: the 3 blocks that share most words with the text were looked in "
        "(bm25_blocks)",
    )
    assert filler.fill(QUESTIONS[0], k=1).notes == ()
    assert filler.fill(QUESTIONS[0], k=1000, retrieval="dense").notes == ()
    everywhere = PhraseFiller(filler.index, filler.encoder, replace(filler.settings, bm25_blocks=1000))
    assert everywhere.fill(QUESTIONS[0], k=1000, retrieval="bm25").notes == ()


def test_a_filter_does_not_change_how_bm25_weighs_words(filler: PhraseFiller) -> None:
    lexicon, store = filler.index.lexicon, filler.index.store
    allowed = select(filler.index, ["d3", "d6"], []).blocks
    assert allowed is not None
    everywhere = lexicon.scores(QUESTIONS[0])
    found, scores = lexicon.best_blocks(QUESTIONS[0], store.block_count, allowed=allowed)
    np.testing.assert_array_equal(scores, everywhere[found])
    assert allowed[found].all()
    assert set(found.tolist()) == set(np.flatnonzero(allowed & (everywhere > 0)).tolist())


def test_an_unknown_document_a_field_not_kept_and_a_filter_that_leaves_nothing_are_refused(
    filler: PhraseFiller,
) -> None:
    with pytest.raises(QueryError, match="'x9', 'x10'"):
        filler.fill(QUESTIONS[0], documents=["d1", "x9", "x10"])
    with pytest.raises(SettingError) as refused:
        filler.fill(QUESTIONS[0], where="year>=1990")
    assert "lang" in str(refused.value)
    with pytest.raises(QueryError, match="lang=xx"):
        filler.fill(QUESTIONS[0], where="lang=xx")
    with pytest.raises(SettingError):
        filler.fill(QUESTIONS[0], where="lang")


def test_a_deleted_document_is_unknown_and_never_matches(encoder: Encoder, tmp_path: Path) -> None:
    records = [record(number, language=LANGUAGES[number % 3]) for number in range(6)]
    folder = built(tmp_path / "index", records, encoder)
    before = PhraseFiller.open(folder, encoder)
    delete_documents(folder, DeleteSettings(ids=["d1"]))
    assert documents_of(before.fill(list(QUESTIONS), k=50, occurrences=50, where="lang=de")) == {"d1", "d4"}
    assert before.refresh()
    assert not before.refresh()
    assert documents_of(before.fill(list(QUESTIONS), k=50, occurrences=50, where="lang=de")) == {"d4"}
    with pytest.raises(QueryError, match="'d1'"):
        before.fill(QUESTIONS[0], documents=["d1"])
    everything = before.fill(list(QUESTIONS), k=50, occurrences=50, blocks=range(before.index.store.block_count))
    assert "d1" not in documents_of(everything)
