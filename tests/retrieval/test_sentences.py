"""The best sentences for a text: against plain loops, filtered, and as the command line shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import QueryError, SettingError
from npm.core.types import MASK_TEXT, Sentence
from npm.corpus.text import lexical_query, sentence_bounds
from npm.indexing.changes import delete_documents
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.blocks import rank_blocks
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.sentences import SENTENCE_BLOCKS, SENTENCE_PHRASES
from npm.retrieval.settings import FillSettings
from tests.helpers.command_line import QUESTION, CommandLine
from tests.helpers.live_indexes import built, record
from tests.helpers.tiny_models import tiny_encoder

TEXTS = [QUESTION, "<mask> and Kraków are cities in Poland", "a river <mask> the sea"]
LANGUAGES = ("en", "de", "fr")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg
    return encoder


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [record(number, language=LANGUAGES[number % 3]) for number in range(12)]
    return built(tmp_path_factory.mktemp("sentences") / "index", records, encoder)


@pytest.fixture(scope="module")
def filler(folder: Path, encoder: Encoder) -> PhraseFiller:
    return PhraseFiller.open(folder, encoder)


def plain_sentences(
    filler: PhraseFiller, text: str, share: float
) -> list[tuple[float, str, int, int, tuple[str, ...]]]:
    """Score, document, characters and phrases of all sentences of the best blocks, best first."""
    index, encoder = filler.index, filler.encoder
    lexicon, store = index.lexicon, index.store
    assert lexicon is not None and store.start_chars is not None and store.end_chars is not None
    vectors = encode_queries(encoder, [text], pooler=PoolerKind.avg)
    settings = replace(filler.settings, bm25_blocks=SENTENCE_BLOCKS)
    (ranked,) = rank_blocks(index, [text], vectors.sentences, settings)
    places: list[tuple[str, int, int, float]] = []
    texts: list[str] = []
    for block, score in zip(ranked.blocks.tolist(), ranked.scores.tolist(), strict=True):
        document = store.document(int(store.block_documents[block]))
        first, stop = store.block_offsets[block : block + 2].tolist()
        begin = int(store.start_chars.take(np.array([first]))[0])
        end = int(store.end_chars.take(np.array([stop - 1]))[0])
        for start, last in sentence_bounds(document.text[begin:end]).tolist():
            places.append((document.id, begin + start, begin + last, score / ranked.scores[0]))
            texts.append(document.text[begin + start : begin + last])
    counted = [Counter(lexicon.counted_words(each)) for each in texts]
    mean = sum(map(Counter.total, counted)) / len(counted)
    words, k1, b = lexicon.counted_words(lexical_query(text)), lexicon.settings.k1, lexicon.settings.b
    lexical = [
        sum(
            lexicon.form_weight(word) * own[word] / (own[word] + k1 * (1 - b + b * own.total() / mean))
            for word in words
        )
        for own in counted
    ]
    # a text is encoded without its mask
    encoded = encode_queries(encoder, [f"{each}{MASK_TEXT}" for each in texts], pooler=PoolerKind.avg).sentences
    assert vectors.sentences is not None and encoded is not None
    cosines = [max(0.0, float(each @ vectors.sentences[0])) for each in encoded]
    phrases = filler.fill(text, SENTENCE_PHRASES).phrases
    found = []
    for number, (document_id, start, last, of_block) in enumerate(places):
        inside = [
            phrase
            for phrase in phrases
            if phrase.occurrences[0].document == document_id
            and start <= phrase.occurrences[0].start_char
            and phrase.occurrences[0].end_char <= last
        ]
        score = (1 - share) * lexical[number] / (max(lexical) or 1) + share * cosines[number] / (max(cosines) or 1)
        score += of_block + sum(phrase.score for phrase in inside)
        found.append((score, document_id, start, last, tuple(phrase.phrase for phrase in inside)))
    return sorted(found, key=lambda each: -each[0])


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_sentences_score_as_in_plain_loops(filler: PhraseFiller, share: float) -> None:
    with_share = PhraseFiller(filler.index, filler.encoder, replace(filler.settings, vector_share=share))
    phrases = 0
    for text, found in zip(TEXTS, with_share.sentences(TEXTS, 100), strict=True):
        expected = plain_sentences(with_share, text, share)
        assert [each.score for each in found] == pytest.approx([each[0] for each in expected], rel=1e-4)
        scores = {(document, start): (score, last, inside) for score, document, start, last, inside in expected}
        for each in found:  # equal scores in any order
            score, last, inside = scores[each.document, each.start_char]
            assert (each.score, each.end_char, each.phrases) == (pytest.approx(score, rel=1e-4), last, inside)
            phrases += len(inside)
    assert phrases


def assert_in_documents(found: Sequence[Sentence]) -> None:
    texts = {own["id"]: own["text"] for own in map(record, range(12))}
    for sentence in found:
        assert texts[sentence.document][sentence.start_char : sentence.end_char] == sentence.context
        assert all(phrase.lower() in sentence.context.lower() for phrase in sentence.phrases)


def test_the_first_sentences_are_the_same_however_many_and_whatever_else_is_shown(filler: PhraseFiller) -> None:
    many = filler.sentences(TEXTS, 12)
    for text, found, few in zip(TEXTS, many, filler.sentences(TEXTS, 2), strict=True):
        assert_in_documents(found)
        assert len(found) > 2
        assert found[:2] == few
        assert [filler.sentences([text], 2)[0][place].start_char for place in range(2)] == [s.start_char for s in few]
    bare = PhraseFiller(filler.index, filler.encoder, FillSettings(k=12, occurrences=0))
    assert bare.sentences(TEXTS) == many
    assert any(sentence.phrases for sentence in many[0])


def test_a_copied_sentence_comes_first_with_its_phrase(filler: PhraseFiller) -> None:
    first = filler.sentences(["<mask> and Kraków are cities in Poland."], 1)[0][0]
    assert first.context == "Łódź and Kraków are cities in Poland." and first.phrases[0] == "Łódź"


def test_only_documents_that_may_answer_have_sentences(encoder: Encoder, tmp_path: Path) -> None:
    folder = built(tmp_path / "index", [record(n, language=LANGUAGES[n % 3]) for n in range(12)], encoder)

    def documents(**changes: object) -> set[str]:
        filler = PhraseFiller.open(folder, encoder, settings=replace(FillSettings(), **changes))  # type: ignore[arg-type]
        return {each.document for own in filler.sentences(TEXTS, 100) for each in own}

    everything = documents()
    assert documents(where=["lang=de"]) == {"d1", "d4", "d7", "d10"} & everything != set()
    assert documents(documents=["d0", "d3"]) == {"d0", "d3"} & everything != set()
    assert documents(documents=[]) == set()
    delete_documents(folder, DeleteSettings(ids=sorted(everything)[:2]))
    assert not documents() & set(sorted(everything)[:2])


def test_a_text_without_known_words_and_dense_retrieval_have_sentences_by_what_there_is(filler: PhraseFiller) -> None:
    by_words = PhraseFiller(replace(filler.index, block_vectors=None), filler.encoder)
    assert by_words.sentences(["zebra <mask> quagga"]) == [()]
    assert filler.sentences([]) == []
    dense = PhraseFiller(filler.index, filler.encoder, FillSettings(retrieval="dense"))  # type: ignore[arg-type]
    assert_in_documents(dense.sentences(TEXTS)[0])


def test_mistakes_are_one_message(filler: PhraseFiller) -> None:
    with pytest.raises(QueryError, match="exactly one <mask>"):
        filler.sentences(["<mask> is in <mask>."])
    with pytest.raises(SettingError, match="k"):
        filler.sentences(TEXTS, 0)
    without = PhraseFiller(replace(filler.index, lexicon=None), filler.encoder)
    with pytest.raises(SettingError, match="output=sentences"):
        without.sentences(TEXTS)


def test_the_command_shows_sentences_for_texts_of_all_kinds(
    npmlm: CommandLine, built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    texts = [QUESTION, "Don Quixote was written by <mask> in Madrid."]
    asked = ("fill", f"index={built_index}", "output=sentences", "k=2")
    given = npmlm(*asked, *texts)
    assert given.status == 0 and given.err == ""
    for text in (*texts, "Don Quixote was written by Miguel de", "Don Quixote (book)"):
        assert text in " ".join(given.out.split()), text
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    assert npmlm(*asked, f"texts={tmp_path / 'texts.txt'}").out == given.out
    assert npmlm(*asked, stdin="\n".join(texts).encode()).out == given.out
    unknown = npmlm(*asked, "documents=[bank]", "zebra <mask> quagga")
    assert unknown.status == 0 and "no sentence found" in unknown.out
    several = "<mask> is in <mask>."
    npmlm(*asked, several).refused("exactly one <mask>")
    refused = npmlm(*asked, stdin=f"{texts[0]}\n{several}\n".encode())
    assert refused.status == 2 and refused.err.count("npmlm: error: ") == 1 and "line 2" in refused.err
