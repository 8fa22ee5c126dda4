"""Task `article_questions`: which sentences become questions, worked by hand, and one tiny evaluation of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Document
from npm.corpus.documents import CorpusSettings
from npm.evaluation.analyses.panels import read_panels
from npm.evaluation.analyses.unseen_words import evaluate_unseen_words
from npm.evaluation.compare import compare_results
from npm.evaluation.held_out.article_questions import (
    ArticlePassages,
    ArticleQuestion,
    candidate_questions,
    compatible,
    evaluate_article_questions,
    make_questions,
    phrases_of,
)
from npm.evaluation.settings import ArticleQuestionSettings, SampleSettings, UnseenWordsSettings
from npm.models.settings import PoolerKind
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.language_models import deaf_head
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

FIRST = "Vienna is the capital of Austria and lies on the river Danube near the Alps."
SECOND = "The city of Vienna was besieged by a large army of the Ottoman Empire in the autumn of 1529."
THIRD = "A second siege of Vienna by an army of the Ottoman Empire was broken by King Sobieski of Poland."
ARTICLE = Document("vienna", "Vienna", f"{FIRST}\nHistory.\n{SECOND}\nLater years.\n{THIRD}")
SETTINGS = ArticleQuestionSettings(passage_words=20)


def candidates(document: Document = ARTICLE, *, common: frozenset[str] = frozenset()) -> list[ArticleQuestion]:
    return list(candidate_questions(ArticlePassages(document, SETTINGS.passage_words), common))


def test_a_passage_holds_whole_sentences_and_ends_at_a_heading() -> None:
    passages = ArticlePassages(ARTICLE, passage_words=1000)
    assert [passages.text(number) for number in range(3)] == [FIRST, SECOND, THIRD]
    assert passages.holding("Ottoman Empire") == {1, 2}
    assert passages.holding("Otto") == set()  # whole words only
    long = ArticlePassages(replace(ARTICLE, text=f"{FIRST} {SECOND} {THIRD}"), passage_words=40)
    assert [long.text(number) for number in range(2)] == [f"{FIRST} {SECOND}", THIRD]


def test_a_phrase_that_stands_in_another_passage_with_the_words_around_it_is_asked_for() -> None:
    # Around "Ottoman Empire" the second and the third sentence share Vienna and army; four words are needed.
    assert candidates() == []
    # Now city and besieged too: 4 of city, Vienna, besieged, large, army, autumn, 1529.
    text = ARTICLE.text.replace("A second siege", "The city was besieged again: a second siege")
    found = candidates(replace(ARTICLE, text=text))
    assert [(each.kind, each.answer, each.taken_from, each.stands_in) for each in found] == [
        ("name", "Ottoman Empire", 1, 2),
        ("term", "besieged", 1, 2),
        ("name", "Ottoman Empire", 2, 1),
        ("term", "besieged", 2, 1),
    ]
    assert found[0].text == SECOND.replace("Ottoman Empire", "<mask>")


def test_a_sentence_that_is_said_again_is_no_question() -> None:
    assert candidates(replace(ARTICLE, text=f"{FIRST}\nHistory.\n{SECOND}\nLater years.\n{SECOND}")) == []


def test_what_begins_a_sentence_or_belongs_to_the_title_or_is_a_month_or_common_is_not_masked() -> None:
    sentence = "Sobieski came to Vienna in September 1683 with Hungarian horsemen from Poland."
    words = frozenset({"vienna"})
    found = [phrase for _, (phrase, _) in phrases_of(sentence, words, frozenset({"horsemen"}))]
    assert found == ["Hungarian", "Poland", "1683"]


def test_no_question_is_taken_from_a_passage_that_another_stands_in() -> None:
    first = ArticleQuestion("name", "a <mask>", "A", taken_from=1, stands_in=2)
    others = [
        replace(first, answer="B", taken_from=2, stands_in=3),
        replace(first, answer="B", taken_from=3, stands_in=1),
        replace(first, answer="B", taken_from=1, stands_in=3),
        replace(first, taken_from=3, stands_in=2),
        replace(first, answer="B", taken_from=3, stands_in=2),
    ]
    assert compatible([first, *others], most=9) == [first, others[-1]]
    assert compatible([first, *others], most=1) == [first]


def articles(count: int) -> list[Document]:
    """Articles about towns, each with one question at least."""
    made: list[Document] = []
    for number in range(count):
        town, king = f"Town{chr(65 + number)}ville", f"King{chr(65 + number)}bert"
        made.append(
            Document(
                town,
                town,
                f"{town} is an old town of the northern province beside a wide river.\nHistory.\n"
                f"The old walls of {town} were built of grey stone by order of {king} in a long war.\nTrade.\n"
                f"In {town} a wide market was opened beside the grey stone walls that {king} had built in the war.",
            )
        )
    return made


def test_the_passages_asked_are_the_first_and_the_right_ones_and_never_those_of_questions() -> None:
    questions, passages = make_questions(articles(4), SETTINGS)
    assert questions
    ids = {passage.id for passage in passages}
    for article, question in questions:
        assert {f"{article.id}#0", f"{article.id}#{question.stands_in}"} <= ids
        assert f"{article.id}#{question.taken_from}" not in ids
        assert question.text.replace("<mask>", question.answer) in article.text
    assert make_questions(articles(4), SETTINGS) == (questions, passages)
    assert len(make_questions(articles(4), replace(SETTINGS, question_count=2))[0]) == 2


def test_blocks_are_ranked_by_vectors_too_where_the_encoder_has_a_pooler_and_only_the_first_questions_filled(
    tmp_path: Path,
) -> None:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg
    corpus = tmp_path / "articles.jsonl"
    lines = [json.dumps({"id": each.id, "title": each.title, "text": each.text}) for each in articles(4)]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = replace(SETTINGS, retrievals=[Retrieval.blocks], filled_questions=2)
    by_share = {
        share: evaluate_article_questions(
            encoder,
            CorpusSettings(files=[str(corpus)]),
            settings,
            SampleSettings(resamples=20),
            FillSettings(k=3, vector_share=share),
        )
        for share in (None, 0.0, 1.0)
    }
    result = by_share[None]
    ranked = [f"blocks by {name}, {place}" for name in ("BM25", "vectors", "both") for place in ("first", "among 3")]
    assert list(result.shares) == [*ranked, "blocks, hit@1", "blocks, hit@3"]
    counts = Counter(line["method"] for line in result.lines)
    assert result.question_count > 2 == result.filled_count
    assert counts == {name: 2 if "hit" in name else result.question_count for name in result.shares}
    for share, same in ((0.0, "BM25"), (1.0, "vectors")):
        for place in ("first", "among 3"):
            shares = by_share[share].shares
            assert shares[f"blocks by both, {place}"] == shares[f"blocks by {same}, {place}"]


def test_a_tiny_evaluation_is_written_and_compares_with_itself(tmp_path: Path) -> None:
    corpus = tmp_path / "articles.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        for article in articles(4):
            file.write(json.dumps({"id": article.id, "title": article.title, "text": article.text}) + "\n")
    result = evaluate_article_questions(
        tiny_encoder("bert"),
        CorpusSettings(files=[str(corpus)]),
        replace(SETTINGS, retrievals=[Retrieval.bm25]),
        SampleSettings(resamples=20),
        FillSettings(k=3),
    )
    assert list(result.shares) == [
        "blocks by BM25, first",
        "blocks by BM25, among 3",
        "bm25, hit@1",
        "bm25, hit@3",
    ]
    assert result.shares["blocks by BM25, among 3"].mean == 1.0
    result.write(tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    right = [line["correct"] for line in lines if line["method"] == "bm25, hit@3"]
    assert result.shares["bm25, hit@3"].mean == pytest.approx(sum(right) / len(right))
    assert len(right) == result.question_count
    compared = compare_results(tmp_path / "out", tmp_path / "out", resamples=20)
    assert {each.difference.mean for each in compared.comparisons} == {0.0}


def test_a_masked_language_model_answers_the_same_questions_and_all_are_shown_by_tokens_of_the_answer(
    tmp_path: Path,
) -> None:
    corpus = tmp_path / "articles.jsonl"
    corpus.write_text("\n".join(json.dumps({"id": a.id, "title": a.title, "text": a.text}) for a in articles(4)))
    # two of the four kings are one token each, and the model knows one of them
    encoder = tiny_encoder("bert", sentences=(*SENTENCES, *["kingabert kingcbert"] * 50))
    result = evaluate_article_questions(
        encoder,
        CorpusSettings(files=[str(corpus)]),
        replace(SETTINGS, retrievals=[Retrieval.bm25]),
        SampleSettings(resamples=20),
        FillSettings(k=3),
        language_model=(encoder, deaf_head(encoder, {"kingcbert": 0.9})),
    )
    assert {line["gold"] for line in result.lines} == {f"King{letter}bert" for letter in "ABCD"}
    assert list(result.shares)[-4:] == ["bm25, hit@3", "mlm, hit@1", "mlm, hit@3", "mlm-n, hit@1"]
    assert result.shares["mlm, hit@1"].mean == result.shares["mlm-n, hit@1"].mean == 0.25
    points = {line.name: [(at.name, at.count, at.share.mean) for at in line.points] for line in result.by_tokens.lines}
    assert list(points) == ["bm25", "mlm", "mlm-n"]
    assert points["mlm"] == points["mlm-n"] == [("1", 2, 0.5), ("3", 2, 0.0)]
    result.write(tmp_path / "out")
    assert list(read_panels(tmp_path / "out")) == [result.by_tokens]
    assert "head" in json.loads((tmp_path / "out" / "metrics.json").read_text())["language_model"]


@pytest.mark.parametrize("retrievals", [[], [Retrieval.hybrid, Retrieval.blocks]])
def test_retrievals_that_the_index_would_not_have_are_refused_before_it_is_built(
    retrievals: list[Retrieval], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, retrievals=retrievals)
    missing = CorpusSettings(files=[str(tmp_path / "is not read.jsonl")])
    with pytest.raises(SettingError, match=r"article_questions\.retrievals"):
        evaluate_article_questions(tiny_encoder("bert"), missing, settings, SampleSettings(), FillSettings())
    names = UnseenWordsSettings(retrievals=retrievals)
    with pytest.raises(SettingError, match=r"unseen_words\.retrievals"):
        evaluate_unseen_words(tiny_encoder("bert"), missing, names, SampleSettings(), FillSettings())


def test_articles_without_questions_are_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "articles.jsonl"
    corpus.write_text(json.dumps({"id": "a", "title": "Oslo", "text": "Oslo lies in Norway."}) + "\n")
    with pytest.raises(CorpusError, match=r"corpus\.files"):
        evaluate_article_questions(
            tiny_encoder("bert"), CorpusSettings(files=[str(corpus)]), SETTINGS, SampleSettings(), FillSettings()
        )
