from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.errors import ArtifactError, EncoderError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import normalized_text
from npm.indexing.build import build_index
from npm.indexing.embed import open_vectors
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings, PruningRule, Stage, VectorDtype, VectorSettings
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.live_indexes import all_bytes, part_of
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder


def write_corpus(folder: Path) -> Path:
    """Each sentence pair as a document, with text that takes one, two and four bytes a letter in UTF-8."""
    file = folder / "corpus.jsonl"
    records = [
        {"id": f"d{number}", "title": f"Title {number}", "text": f"🜨 Ärger! {text}\n\n{text}"}
        for number, text in enumerate(SENTENCES)
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def settings_for(corpus: Path, **vectors: object) -> IndexBuildSettings:
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(**{"tokens_per_shard": 200, **vectors}),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    encoder = tiny_encoder(request.param)
    encoder.sentence_pooler = PoolerKind.avg  # so that blocks have vectors
    return encoder


@pytest.fixture(scope="module")
def bert() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def plain(bert: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the encoder without block vectors."""
    folder = tmp_path_factory.mktemp("plain")
    build_index(folder / "index", settings_for(write_corpus(folder)), bert)
    return folder / "index"


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end-to-end")
    build_index(folder / "index", settings_for(write_corpus(folder)), encoder)
    return folder / "index"


@pytest.mark.parametrize("retrieval", Retrieval)
def test_every_occurrence_is_the_phrase_at_its_offsets_in_the_document(
    retrieval: Retrieval, encoder: Encoder, index: Path
) -> None:
    filler = PhraseFiller.open(index, encoder)
    documents = {document.id: document for document in map(filler.index.store.document, range(len(SENTENCES)))}
    texts = ["The capital of Iceland is <mask>.", "<mask> and Kraków are cities in Poland", "Is Oslo <mask>?"]
    answers = filler.fill(texts, k=20, occurrences=5, retrieval=retrieval)
    assert [answer.text for answer in answers] == texts
    for answer in answers:
        assert answer.phrases
        assert 0 < sum(phrase.score for phrase in answer.phrases) <= 1 + 1e-9
        for phrase in answer.phrases:
            assert 1 <= len(phrase.occurrences) <= min(5, phrase.occurrence_count)
            for place in phrase.occurrences:
                text = documents[place.document].text
                found = text[place.start_char : place.end_char]
                assert normalized_text(found) == normalized_text(phrase.phrase)
                assert place.title == documents[place.document].title
                begin = place.context_start_char
                assert text[begin : begin + len(place.context)] == place.context
                assert found in place.context


def test_an_uncased_encoder_answers_in_the_spelling_of_the_corpus(bert: Encoder, plain: Path) -> None:
    filler = PhraseFiller.open(plain, bert, settings=FillSettings(overlaps=Overlaps.keep))
    answer = filler.fill("<mask> is there", k=1000, retrieval="dense")
    phrases = {phrase.phrase for phrase in answer.phrases}
    assert {"Reykjavík", "Łódź", "São Paulo", "Bank of America"} <= phrases
    assert "reykjavik" not in phrases


def test_texts_filled_together_get_the_answers_they_get_alone(encoder: Encoder, index: Path) -> None:
    filler = PhraseFiller.open(index, encoder)
    texts = ["Paris lies on the <mask>.", "<mask>", "A text that goes on much longer about the river <mask> in Europe"]
    for text, together in zip(texts, filler.fill(texts), strict=True):
        alone = filler.fill(text)
        assert [phrase.phrase for phrase in alone.phrases] == [phrase.phrase for phrase in together.phrases]


def test_pruning_and_dtype_decide_what_is_stored(bert: Encoder, tmp_path: Path) -> None:
    rows = {}
    for rule in PruningRule:
        folder = tmp_path / rule.value
        settings = settings_for(write_corpus(tmp_path), pruning=rule, dtype=VectorDtype.float32)
        build_index(folder, settings, bert)
        opened = PhraseIndex.open(folder)
        rows[rule] = len(opened.rows)
        assert open_vectors([part_of(folder, "vectors")])[0].dtype == np.float32
    assert rows[PruningRule.all] > rows[PruningRule.word_boundaries] > rows[PruningRule.without_punctuation]
    assert rows[PruningRule.without_punctuation] > rows[PruningRule.without_stopwords] > 0


def test_blocks_longer_than_the_encoder_takes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    short = tiny_encoder("bert", max_positions=16)
    settings = settings_for(write_corpus(tmp_path))
    index = tmp_path / "index"
    index.mkdir()
    with pytest.raises(EncoderError, match=r"max_block_tokens must be at most 16.*24"):
        build_index(index, settings, short, stage=Stage.encode)
    assert list(index.iterdir()) == []
    build_index(index, replace(settings, blocks=BlockSettings(max_block_tokens=16)), short)
    assert PhraseIndex.open(index).store.max_block_tokens == 14


def test_an_unfinished_build_is_replaced_by_one_with_other_settings_which_keeps_what_it_can_use(
    bert: Encoder, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path)
    other = replace(settings_for(corpus), search=SearchSettings(tier=SearchTier.ivf_sq8, list_count=4))
    build_index(tmp_path / "index", settings_for(corpus, pruning=PruningRule.all), bert, stage=Stage.encode)
    build_index(tmp_path / "index", settings_for(corpus), bert, stage=Stage.encode)
    with pytest.raises(ArtifactError, match="stage=encode"):
        build_index(
            tmp_path / "index", replace(other, blocks=BlockSettings(max_block_tokens=20)), bert, stage=Stage.merge
        )
    vectors = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("vectors-*/*/vectors.npy")}
    build_index(tmp_path / "index", other, bert)
    build_index(tmp_path / "whole", other, bert)
    assert all_bytes(tmp_path / "index") == all_bytes(tmp_path / "whole")
    kept = list((tmp_path / "index").glob("vectors-*/*/vectors.npy"))
    assert kept and {path: path.stat().st_mtime_ns for path in kept}.items() <= vectors.items()


def test_phrases_of_the_question_are_left_out_unless_wanted(bert: Encoder, plain: Path) -> None:
    text = "Reykjavík is the capital of <mask>."
    for excluded in (True, False):
        scoring = ScoringSettings(exclude_query_phrases=excluded)
        settings = FillSettings(k=1000, retrieval=Retrieval.dense, scoring=scoring)
        answer = PhraseFiller.open(plain, bert, settings=settings).fill(text)
        assert ("Reykjavík" not in {phrase.phrase for phrase in answer.phrases}) == excluded
    with pytest.raises(ArtifactError, match="encoder=tiny-bert"):
        PhraseFiller.open(plain)  # the encoder is not inside
