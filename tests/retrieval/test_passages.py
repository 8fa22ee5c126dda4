"""Answers, words and claims scored in passages that are handed over, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from npm import PhraseFiller
from npm.core.errors import CorpusError, QueryError, SettingError
from npm.core.types import Document
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings, VectorDtype, VectorSettings
from npm.models.encoder import Encoder
from npm.reading.mask_reader import MaskReader
from npm.retrieval import scores as scores_module
from npm.retrieval.queries import QueryVectors
from npm.retrieval.scores import masked_claims
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.command_line import write_corpus
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.retrieval.handed_passages import WORDS, ChosenVectors, chosen_filler, plain_score, token_encoder

QUESTION = "It is <mask>."
PLAIN = ScoringSettings(length_exponent=0.0, exclude_query_phrases=False)
DENSE = FillSettings(overlaps=Overlaps.keep, retrieval=Retrieval.dense)


def ask_with(monkeypatch: pytest.MonkeyPatch, queries: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Let each text have the start and end query given for it."""

    def chosen(encoder: Encoder, texts: list[str], **_: object) -> QueryVectors:
        pairs = np.array([queries[text] for text in texts], dtype=np.float32)  # f32 [q, 2, d]
        return QueryVectors(start=pairs[:, 0], end=pairs[:, 1], cut=np.zeros(len(texts), dtype=bool))

    monkeypatch.setattr(scores_module, "encode_queries", chosen)
    monkeypatch.setattr("npm.retrieval.filler.encode_queries", chosen)


def counted_words(monkeypatch: pytest.MonkeyPatch, passages: list[str], scoring: ScoringSettings) -> PhraseFiller:
    """e^s and e^t of Rome are 2 and 1, of fell 1 and 3, of all else 5 and 7."""
    known = {"Rome": (2, 1), "fell": (1, 3)}
    ask_with(monkeypatch, {QUESTION: (np.array([1, 0]), np.array([0, 1]))})
    cache = ChosenVectors(lambda token: np.log(known.get(token, (5, 7))))
    return chosen_filler(passages, token_encoder(similarity_scale=1.0), replace(DENSE, scoring=scoring), cache)


def test_given_words_have_their_share_of_all_candidate_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = counted_words(monkeypatch, ["Rome fell"], PLAIN)
    # Rome 2·1, fell 1·3, Rome fell 2·3
    given = {"Rome": 2 / 11, "fell": 3 / 11, "rome \n FELL": 6 / 11, "Oslo": 0, "fell Rome": 0, "ell": 0}
    assert filler.score(QUESTION, [*given]) == pytest.approx([*given.values()])
    assert filler.score([QUESTION] * 6, [*given]) == [filler.score(QUESTION, words) for words in given]


def test_words_that_no_answer_may_begin_with_or_across_a_clause_score_too(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = counted_words(monkeypatch, ["the Rome fell"], PLAIN)
    assert [phrase.phrase for phrase in filler.fill(QUESTION).phrases] == ["Rome fell", "fell", "Rome"]
    assert filler.score(QUESTION, "Rome") == pytest.approx(2 / 11)
    # the Rome 5·1, beside the candidates
    assert filler.score(QUESTION, "the Rome") == pytest.approx(5 / 16)
    filler = counted_words(monkeypatch, ["Rome. Oslo fell"], PLAIN)
    # Rome 2·1, Oslo 5·7, fell 1·3, Oslo fell 5·3; Rome. Oslo 2·7
    assert filler.score(QUESTION, "Rome. Oslo") == pytest.approx(14 / 69)


def test_only_the_documents_that_the_settings_name_count(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = counted_words(monkeypatch, ["Rome fell", "Rome"], PLAIN)
    filler = chosen_filler(
        [Document("a", "", "Rome fell", {"year": 476}), Document("b", "", "Rome", {"year": None})],
        filler.encoder,
        replace(filler.settings, where=["year<500"]),
        ChosenVectors(lambda token: np.log({"Rome": (2, 1), "fell": (1, 3)}[token])),
    )
    assert filler.score(QUESTION, "Rome") == pytest.approx(2 / 11)
    assert filler.fill(QUESTION, documents=["a"], where=[]).phrases == filler.fill(QUESTION).phrases
    assert filler.fill(QUESTION, documents=["b"], where=[]).phrases[0].score == pytest.approx(1.0)


SCORINGS = {
    "ours": ScoringSettings(exclude_query_phrases=False),
    "cut, longer is better": replace(PLAIN, temperature=1.7, cut_expressions=True, length_exponent=1.5),
    "reference": FillSettings.reference().scoring,
    "reference, shorter is better": replace(FillSettings.reference().scoring, length_exponent=-1.0),
}


@pytest.mark.parametrize("name", SCORINGS)
def test_scores_equal_those_of_plain_loops(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 40)).tolist()).replace(" .", ".") for _ in range(5)]
    vectors = {word: rng.standard_normal(4) for word in WORDS}
    settings = replace(DENSE, scoring=SCORINGS[name], max_phrase_tokens=4)
    cache = ChosenVectors(lambda token: vectors.get(token, np.ones(4)))
    filler = chosen_filler(texts, token_encoder(), settings, cache)
    pair = rng.standard_normal((3, 2, 4)).astype(np.float32)  # f32 [texts, 2, d]
    questions = {f"{number} <mask>.": (pair[number, 0], pair[number, 1]) for number in range(3)}
    ask_with(monkeypatch, questions)
    pieces = [text.split() for text in texts]
    spans = ["the Rome", "Oslo", "york", "Rome. Oslo", "Paris", "of", "-"]
    for own in pieces:
        first = int(rng.integers(len(own)))
        spans.append(" ".join(own[first : first + int(rng.integers(1, 7))]))
    pairs = [(text, span) for text in questions for span in spans]
    scores = filler.score([text for text, _ in pairs], [span for _, span in pairs])
    expected = [plain_score(filler, span, *questions[text], settings) for text, span in pairs]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert 0 < sum(score > 0 for score in scores) < len(scores)


def test_texts_in_many_small_scans_score_the_same(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    filler = PhraseFiller.over(SENTENCES, encoder)
    texts, spans = [f"Question {number}: <mask>." for number in range(7)], ["Paris"] * 7
    expected = filler.score(texts, spans)
    monkeypatch.setattr(scores_module, "SCORE_BYTES", 1)
    np.testing.assert_allclose(
        filler.score(texts, spans), expected, rtol=1e-5
    )  # float32 products of one row and of several
    assert len(set(expected)) == 7


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_a_phrase_has_the_score_that_fill_gives_it(family: str) -> None:
    filler = PhraseFiller.over(SENTENCES, tiny_encoder(family), settings=DENSE)
    texts = ["The capital of Iceland is <mask>.", "<mask> rises in Switzerland."]
    for text, answer in zip(texts, filler.fill(texts, k=10_000), strict=True):
        assert len(answer.phrases) > 60
        scores = filler.score([text] * len(answer.phrases), [phrase.phrase for phrase in answer.phrases])
        np.testing.assert_allclose(scores, [phrase.score for phrase in answer.phrases], rtol=1e-5)


TITLED = [Document(f"d{number}", f"Title {number}", text * 9) for number, text in enumerate(SENTENCES)]


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    """An index over the titled documents, with the vectors' numbers in full."""
    folder = tmp_path_factory.mktemp("passages")
    documents = [{"id": each.id, "title": each.title, "text": each.text} for each in TITLED]
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(write_corpus(folder / "corpus.jsonl", documents))]),
        blocks=BlockSettings(max_block_tokens=encoder.max_input_tokens),
        vectors=VectorSettings(dtype=VectorDtype.float32),
    )
    build_index(folder / "index", settings, encoder)
    return PhraseIndex.open(folder / "index")


def test_passages_are_answered_like_an_index_over_the_same_documents(encoder: Encoder, index: PhraseIndex) -> None:
    everything = replace(DENSE, candidates_per_side=100_000, k=50, occurrences=4)
    texts = ["The capital of Iceland is <mask>.", "<mask> flows to the North Sea."]
    indexed = PhraseFiller(index, encoder, everything).fill(texts)
    handed = PhraseFiller.over(TITLED, encoder, settings=everything).fill(texts)
    for ours, theirs in zip(handed, indexed, strict=True):
        assert [phrase.phrase for phrase in ours.phrases] == [phrase.phrase for phrase in theirs.phrases]
        assert [phrase.occurrence_count for phrase in ours.phrases] == [p.occurrence_count for p in theirs.phrases]
        assert [phrase.occurrences for phrase in ours.phrases] == [phrase.occurrences for phrase in theirs.phrases]
        np.testing.assert_allclose(
            [phrase.score for phrase in ours.phrases], [phrase.score for phrase in theirs.phrases], rtol=1e-4
        )


def test_an_answer_says_in_which_passage_it_stands(encoder: Encoder) -> None:
    passages: list[str | Document] = [
        "Paris lies on the Seine.",
        Document("no", "Norway", "Oslo is the capital of Norway."),
        "Rome. Oslo?",
    ]
    filler = PhraseFiller.over(passages, encoder)
    phrases = {phrase.phrase: phrase for phrase in filler.fill("It is <mask>.", k=100).phrases}
    assert phrases["Seine"].occurrences[0].document == "0"
    places = {(place.document, place.title, place.start_char) for place in phrases["Oslo"].occurrences}
    assert places == {("no", "Norway", 0), ("2", "", 6)}
    assert phrases["Oslo"].occurrence_count == 2
    assert not filler.refresh()


def test_more_spans_than_an_index_would_look_at_are_all_candidates(encoder: Encoder) -> None:
    settings = replace(DENSE, candidates_per_side=1)
    few, all_ = (
        PhraseFiller.over(SENTENCES, encoder, settings=settings),
        PhraseFiller.over(SENTENCES, encoder, settings=DENSE),
    )
    assert few.fill(QUESTION, k=500) == all_.fill(QUESTION, k=500)


def test_passages_of_stop_words_alone_have_no_phrase_but_score(encoder: Encoder) -> None:
    filler = PhraseFiller.over(["of the"], encoder)
    answer = filler.fill(QUESTION)
    assert answer.phrases == ()
    assert answer.notes == ("what was looked in holds nothing but stop-words, punctuation and words of the text",)
    assert filler.score(QUESTION, "the") == 1.0
    assert filler.score(QUESTION, "Oslo") == 0.0


def test_nothing_asked_is_nothing_answered(encoder: Encoder) -> None:
    filler = PhraseFiller.over(SENTENCES, encoder)
    assert filler.score([], []) == [] == filler.score(QUESTION, [])
    assert filler.score_claim([]) == [] and filler.fill([]) == []


def test_an_empty_list_of_documents_lets_no_passage_answer_or_score(encoder: Encoder) -> None:
    filler = PhraseFiller.over(SENTENCES, encoder)
    answer = filler.fill(QUESTION, documents=[])
    assert answer.phrases == () and "list of documents to answer from is empty" in answer.notes[0]
    nothing = PhraseFiller.over(["Oslo is in Norway."], encoder, settings=replace(DENSE, documents=[]))
    assert nothing.score(QUESTION, "Oslo") == 0.0 == nothing.score_claim("Oslo")
    assert PhraseFiller.over(["Oslo is in Norway."], encoder, settings=DENSE).score(QUESTION, "Oslo") > 0


@pytest.mark.parametrize(
    ("passages", "told"),
    [
        ("Paris is a city.", "str"),
        ([], "empty"),
        ({"0": "Paris"}, "dict"),
        (["Paris", None], "NoneType"),
        (["Paris", "  \n"], r"passages\[1\]"),
        ([Document("a", "\ud800", "Rome")], "Unicode"),
        ([Document("a", 5, "Rome")], "int"),  # type: ignore[arg-type]
        (["Paris", Document("0", "", "Rome")], r"passages\[0\] and passages\[1\] .* '0'"),
        (["\u200b", "\x00"], "2 passages"),  # without a token
    ],
)
def test_what_is_no_passage_is_refused(passages: Any, told: str, encoder: Encoder) -> None:
    with pytest.raises(CorpusError, match=told):
        PhraseFiller.over(passages, encoder)


def test_passages_are_read_as_an_index_of_them_is(encoder: Encoder, index: PhraseIndex) -> None:
    settings, reader = FillSettings(vector_share=0.0), MaskReader(encoder)
    over = PhraseFiller.over(TITLED, encoder, settings=settings, reader=reader)
    indexed = PhraseFiller(index, encoder, settings, reader=reader)
    for text in (QUESTION, "Which river flows through Paris?"):
        answers = over.fill(text), indexed.fill(text)
        phrases = [[(each.phrase, each.score) for each in answer.phrases] for answer in answers]
        assert [each for each, _ in phrases[0]] == [each for each, _ in phrases[1]] != []
        assert [score for _, score in phrases[0]] == pytest.approx([score for _, score in phrases[1]], rel=1e-2)


def test_a_few_passages_are_all_read_even_without_a_word_of_the_question(encoder: Encoder) -> None:
    over = PhraseFiller.over(SENTENCES[:2], encoder, settings=FillSettings(), reader=MaskReader(encoder))
    assert {each.occurrences[0].document for each in over.fill("Xyzzy?", k=50).phrases} == {"0", "1"}


@pytest.mark.parametrize(
    ("texts", "spans", "told"),
    [
        ([QUESTION], "Paris", "1 texts and one string"),
        ("<mask> <mask>", [], "exactly one <mask>"),
        (QUESTION, ["Paris", " "], "span 2 of 2"),
        ([QUESTION, QUESTION], ["Paris"], "2 texts and 1 spans"),
        ([QUESTION, ""], ["Paris", "Paris"], "text 2 of 2"),
        (QUESTION, None, "spans must be"),
        (None, "Paris", "texts must be"),
        (QUESTION, "\ud800 Paris", r"'\\ud800' at character 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(texts: Any, spans: Any, told: str, encoder: Encoder) -> None:
    with pytest.raises(QueryError, match=told):
        PhraseFiller.over(SENTENCES, encoder).score(texts, spans)


def test_what_passages_cannot_answer_is_refused(encoder: Encoder) -> None:
    filler = PhraseFiller.over(SENTENCES, encoder)
    with pytest.raises(SettingError, match="block vectors"):
        filler.fill(QUESTION, retrieval="blocks")
    claims: list[tuple[Any, str]] = [
        (["Oslo.", "It is of the."], "claim 2 of 2"),
        ([" "], "empty"),
        (["a <mask> b"], "claim must not have <mask>"),
        (["Oslo " * 200], "must have at most"),
        ("\ud800 Paris", "not valid Unicode"),
        (["Paris", None], "claim 2 of 2"),
    ]
    for claim, told in claims:
        with pytest.raises(QueryError, match=told):
            filler.score_claim(claim)


CLAIMS = ["Reykjavík is the capital of Iceland.", "Madrid", "The Bank of America, founded in Poland!"]


def tokens(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.tokenizer(text, add_special_tokens=False)["input_ids"])


def states(encoder: Encoder, ids: list[int]) -> torch.Tensor:
    """f32 [L, d] of one sequence without its special tokens."""
    framed = [*encoder.prefix_ids, *ids, *encoder.suffix_ids]
    with torch.inference_mode():
        found = encoder.token_vectors(torch.tensor([framed]), torch.ones(1, len(framed), dtype=torch.long))[0]
    return found[len(encoder.prefix_ids) : len(framed) - len(encoder.suffix_ids)]


def plain_claim_score(filler: PhraseFiller, claim: list[int], content: list[bool], texts: list[str]) -> float:
    """One masked token after the other, one passage token after the other."""
    encoder, scoring = filler.encoder, filler.settings.scoring
    passage_tokens = [
        (token, vector.double())
        for text in texts
        for token, vector in zip(tokens(encoder, text), states(encoder, tokens(encoder, text)), strict=True)
    ]
    factor = encoder.similarity_scale / scoring.temperature
    shares = []
    for place, token in enumerate(claim):
        if not content[place]:
            continue
        masks = [encoder.mask_id] * encoder.query_masks
        masked = states(encoder, [*claim[:place], *masks, *claim[place + 1 :]]).double()
        matching = total = 0.0
        for other, vector in passage_tokens:
            s, t = (factor * float(vector @ masked[place + side]) for side in (0, len(masks) - 1))
            weight = np.exp((s + t) * len(masks) / 2)
            matching += weight if other == token else 0.0
            total += weight
        shares.append(matching / total)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("masks", [1, 2])
def test_a_claim_scores_the_mean_share_of_its_content_tokens(family: str, masks: int) -> None:
    encoder = tiny_encoder(family)
    encoder.query_masks = masks
    settings = FillSettings(retrieval=Retrieval.dense, scoring=ScoringSettings(temperature=0.5))
    texts = list(SENTENCES[:4])
    filler = PhraseFiller.over(texts, encoder, settings=settings)
    for claim, score in zip(CLAIMS, filler.score_claim(CLAIMS), strict=True):
        ids = tokens(encoder, claim)
        offsets = encoder.tokenizer(claim, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        surfaces = [claim[start:end].strip().lower() for start, end in offsets]
        # In these claims no content word has a function word as a piece.
        content = [surface not in ("is", "the", "of", "in", ".", ",", "!") for surface in surfaces]
        assert score == pytest.approx(plain_claim_score(filler, ids, content, texts), rel=1e-4)


def test_only_content_tokens_are_masked() -> None:
    encoder = tiny_encoder("bert")
    claims = ["The Seine flows through Paris, in France.", "Oslo"]
    inputs, slots, token_ids, counts = masked_claims(claims, encoder)
    masked = [str(encoder.tokenizer.convert_ids_to_tokens(token)) for token in token_ids]
    assert "".join(masked).replace("##", "") == "seineflowsparisfranceoslo"
    assert len(counts) == 2 and sum(counts) == len(masked)
    for sequence, pair in zip(inputs, slots, strict=True):
        assert np.flatnonzero(sequence == encoder.mask_id).tolist() == pair.tolist()


def test_a_claim_that_none_of_the_passages_in_question_names_scores_nothing() -> None:
    passages, encoder = ["Oslo is a city.", "Paris is a city."], tiny_encoder("bert")
    filler = PhraseFiller.over(passages, encoder)
    assert filler.score_claim("Rhine") == 0.0
    assert 0.0 < filler.score_claim("Oslo") <= 1.0
    named = replace(filler.settings, documents=["1"])
    assert PhraseFiller.over(passages, encoder, settings=named).score_claim("Oslo") == 0
