"""Task `unseen_words`: names found and invented, questions worked by hand, and one tiny evaluation of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.corpus.text import folded_words
from npm.evaluation.analyses.invented_names import LEAST_LETTERS, SCRIPTS, NameModel
from npm.evaluation.analyses.unseen_words import (
    VARIANTS,
    Found,
    NameQuestion,
    UnseenWordsResult,
    make_questions,
    names_in,
    variant_passages,
)
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.settings import SampleSettings, UnseenWordsSettings
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.language_models import random_language_model
from tests.helpers.tiny_models import tiny_encoder

FOUNDER = "The large bank in the old city was founded by Amadeo Giannini a hundred years ago."
LIFE = "Later the banker Amadeo Giannini lived in the old city and founded a bank there."
DOCUMENTS = [
    Document("bank", "Bank", FOUNDER),
    Document("life", "Giannini's life", LIFE),
    Document(
        "river", "Rhine", "The river rises in high mountains of Switzerland and flows to a cold sea in the north."
    ),
    Document("moon", "Moon", "A moon of the planet was seen by an old astronomer from Switzerland in a winter night."),
    Document("empty", "Heading", "No sentence."),
]


def test_names_are_all_short_runs_of_capitalised_words_without_genitives() -> None:
    assert names_in("the Bank of America's heir Amadeo Peter Giannini Smith, Rome") == {
        *("Bank", "America", "Amadeo", "Peter", "Giannini", "Smith", "Rome"),
        *("Amadeo Peter", "Peter Giannini", "Giannini Smith", "Amadeo Peter Giannini", "Peter Giannini Smith"),
    }


def test_a_sentence_asks_for_a_whole_name_of_few_documents_that_another_passage_knows() -> None:
    questions, others = make_questions(DOCUMENTS, UnseenWordsSettings(), np.random.default_rng(0))
    # Switzerland stands in two documents too, whose sentences share no other word; Amadeo alone is no whole name.
    assert [(each.phrase, [one.id for one in each.passages]) for each in questions] == [
        ("Amadeo Giannini", ["bank", "life"])
    ]
    # Both sentences share bank, old, city and founded; the first of equals is asked.
    assert questions[0].asked == 0 and questions[0].text == FOUNDER.replace("Amadeo Giannini", "<mask>")
    assert sorted(other.id for other in others) == ["moon", "river"]
    assert make_questions(DOCUMENTS[:1], UnseenWordsSettings(), np.random.default_rng(0)) == ([], [])


def test_no_two_questions_share_a_document() -> None:
    text = "In the old city by the river {} and {} met a tall man."
    documents = [Document(str(n), "", text.format(*pair)) for n, pair in enumerate([("Ann", "Bob"), ("Ann", "Bob")])]
    questions, _ = make_questions(documents, UnseenWordsSettings(), np.random.default_rng(0))
    assert len(questions) == 1


def test_a_name_is_replaced_everywhere_in_its_passages_and_nowhere_else() -> None:
    question = NameQuestion(
        "…", "Rome", (Document("a", "Rome", "Rome, Romeo and Rome's."), Document("b", "", "In Rome.")), 0
    )
    rows = list(variant_passages([question], [{"latin": r"Or\1ak"}], [Document("c", "Rome", "Rome.")]))
    assert [(row["variant"], row["source"], row["title"], row["text"]) for row in rows] == [
        ("other", "other", "Rome", "Rome."),
        ("latin", "0-0", r"Or\1ak", r"Or\1ak, Romeo and Or\1ak's."),
        ("latin", "0-1", "", r"In Or\1ak."),
    ]


def test_invented_names_are_not_known_and_not_twice() -> None:
    letters = [
        "Reykjavik",
        "Copenhagen",
        "Giannini",
        "Amadeo",
        "Cervantes",
        "Canada",
        "Varennes",
        "Panama",
        "Madagascar",
    ]
    letters += ["Oslo", "Antananarivo", "Kinshasa", "Caracas", "Ontario", "Lisbon", "Sarajevo", "Montenegro", "Łódź"]
    model = NameModel(letters)
    free = model.invent(np.random.default_rng(0), [2] * 20, known=())
    known = {word for name in free[:10] for spelling in name.values() for word in folded_words(spelling)}
    invented = model.invent(np.random.default_rng(0), [2] * 20, known=known)
    words = [word for name in invented for spelling in name.values() for word in spelling.lower().split()]
    assert not known & set(words)
    latin = [word for name in invented for word in name["latin"].split()]
    assert len(latin) == len(set(latin)) == 40 and all(len(word) >= LEAST_LETTERS for word in latin)
    assert model.invent(np.random.default_rng(0), [2] * 20, known=known) == invented
    assert all(set(name) == set(SCRIPTS) and len(name["hebrew"]) == len(name["latin"]) for name in invented)
    pairs = {(a, b) for name in letters[:-1] for a, b in zip(f"^{name.lower()}", name.lower(), strict=False)}
    assert all(pair in pairs for word in latin for pair in zip(f"^{word.lower()}", word.lower(), strict=False))


def test_letters_that_make_no_new_name_are_refused() -> None:
    with pytest.raises(CorpusError, match="no new name"):
        NameModel(["Reykjavik"]).invent(np.random.default_rng(0), [1], known={"reykjavik"})
    with pytest.raises(CorpusError, match=r"corpus\.files"):
        NameModel(["Łódź"])


def test_losses_are_told_apart_and_differences_are_paired() -> None:
    question = NameQuestion("…", "Rome", (Document("a", "", ""), Document("b", "", "")), 0)
    ranks = {"original": [1, 2, 3, 0], "greek": [1, 0, 0, 4]}
    found = tuple(Found("dense", variant, np.array(own)) for variant, own in ranks.items())
    result = UnseenWordsResult(
        questions=(question,) * 4,
        names=({"original": "Rome", "greek": "Ομε"},) * 4,
        pieces={"original": np.array([1, 1, 1, 2]), "greek": np.array([3, 5, 7, 2])},
        writable={"original": np.ones(4, dtype=bool), "greek": np.array([True, True, False, True])},
        found=found,
        k=5,
        sample=SampleSettings(resamples=10),
        record={},
        passage_count=8,
    )
    (row,) = result.losses()
    expected = {"found_before": 3, "lost": 2, "lost_by_tokenizer": 1, "gained": 1, "unwritable": 1}
    assert row == {"method": "dense", "variant": "greek", **expected}
    first, best, against, pieces = result.panels()
    assert [point.share.mean for point in first.lines[0].points] == [0.25, 0.25]
    assert [point.share.mean for point in best.lines[0].points] == [0.75, 0.5]
    assert [(point.name, point.share.mean) for point in against.lines[0].points] == [("greek", -0.25)]
    by_pieces = {point.name: (point.count, point.share.mean) for point in pieces.lines[0].points}
    assert by_pieces == {"1": (3, 1.0), "2": (2, 0.5), "3": (1, 1.0), "5–6": (1, 0.0), "7+": (1, 0.0)}
    assert pieces.lines[0].points[1].share == wilson_interval(0.5, 1)  # both names of one sentence


def test_names_are_asked_of_the_other_documents_of_their_variant(npmlm: CommandLine, tmp_path: Path) -> None:
    encoder, folder, model = tiny_encoder("bert"), tmp_path / "encoder", tmp_path / "model"
    encoder.save(folder)
    random_language_model("bert", model)
    rows = [{"id": each.id, "title": each.title, "text": each.text} for each in DOCUMENTS]
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows)
    trained = write_corpus(tmp_path / "trained.jsonl", [{"id": "1", "text": "Nothing."}])
    ask = ["evaluate", "task=unseen_words", f"corpus.files=[{corpus}]", f"encoder={folder}", f"out={tmp_path / 'out'}"]
    ask += ["resamples=10", f"zero_shot.mlm.encoder={model}", f"unseen_words.trained_on=[{trained}]", "fill.k=10000"]
    outcome = npmlm(*ask)
    assert outcome.status == 0, outcome.err
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * len(VARIANTS)
    ranks = {line["method"]: line["rank"] for line in lines}
    # With room for every phrase of the other document each name is there, and no masked language model writes one.
    assert all(ranks[f"dense, {variant}"] for variant in VARIANTS)
    assert not any(ranks[f"mlm, {variant}"] for variant in VARIANTS)
    hybrid = [line for line in lines if line["method"] == "hybrid, latin"]
    assert hybrid[0]["gold"] not in LIFE and hybrid[0]["tokens"] > 1
    assert npmlm("plot", tmp_path / "out", f"out={tmp_path / 'x.png'}").status == 0
    npmlm(*ask[:2], ask[3], ask[4]).refused("corpus.files is required")
    npmlm(*[part.replace("corpus.jsonl", "trained.jsonl") for part in ask], "overwrite=true").refused(
        "no capitalized phrase"
    )
