"""Task `reading`: measures against plain loops over the answers of a filler, and abstention by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.evaluation.metrics import exact_match
from npm.evaluation.reading import Asked, abstention, check_passages, evaluate_reading, word_f1
from npm.evaluation.settings import EvaluationSettings
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

ASKED = [
    Asked("What is the capital of Iceland?", ("Reykjavík", "Reykjavik"), "iceland", ("1 to 3 words", "what")),
    Asked("Where does the Rhine rise?", ("in Switzerland",), "rhine", ("1 to 3 words", "where")),
    Asked("Who wrote Don Quixote?", ("the writer Miguel de Cervantes",), "quixote", ("4 to 6 words", "who")),
]


def test_measures_are_those_of_plain_loops_and_the_record_has_no_path(index_folder: Path, encoder: Encoder) -> None:
    settings = FillSettings(retrieval=Retrieval.bm25, bm25_blocks=1, reader="none")
    filler = PhraseFiller(PhraseIndex.open(index_folder), encoder, settings)
    result = evaluate_reading(filler, ASKED, EvaluationSettings(resamples=50, out="/some/folder"))
    assert "/some/folder" not in json.dumps(result.metrics())
    sums = dict.fromkeys(("given_exact_match", "given_f1_5", "corpus_exact_match_5", "corpus_f1"), 0.0)
    of_corpus = filler.fill([asked.question for asked in ASKED], k=5)
    for line, asked, answer in zip(result.lines, ASKED, of_corpus, strict=True):
        given = [phrase.phrase for phrase in filler.fill(asked.question, k=5, documents=[asked.passage]).phrases]
        corpus = [phrase.phrase for phrase in answer.phrases]
        assert (line["given"], line["corpus"], line["absent_probability"]) == (given, corpus, None)
        assert given and corpus
        sums["given_exact_match"] += exact_match(given[0], asked.answers)
        sums["given_f1_5"] += max(word_f1(phrase, answer) for phrase in given for answer in asked.answers)
        sums["corpus_exact_match_5"] += any(exact_match(phrase, asked.answers) for phrase in corpus)
        sums["corpus_f1"] += max(word_f1(corpus[0], answer) for answer in asked.answers)
    for name, total in sums.items():
        assert result.means[name]["mean"] == pytest.approx(total / 3)
    groups = result.means["groups"]
    assert {name: own["questions"] for name, own in groups.items()} == {
        "1 to 3 words": 2,
        "4 to 6 words": 1,
        "who": 1,
        "what": 1,
        "where": 1,
    }
    assert groups["1 to 3 words"]["given_f1"] == np.mean([line["given_f1"] for line in result.lines[:2]])


def test_an_index_over_other_passages_is_refused(index_folder: Path, encoder: Encoder) -> None:
    index = PhraseIndex.open(index_folder)
    documents = [index.document(each.passage) for each in ASKED]
    check_passages(index, ASKED, [each for each in documents if each])
    others = [replace(each, text="Another passage.") for each in documents if each]
    with pytest.raises(CorpusError, match="another index="):
        check_passages(index, ASKED, others)
    with pytest.raises(CorpusError, match="another index="):
        check_passages(index, [replace(ASKED[0], passage="passage-9")], [Document("passage-9", "", "Text.")])


def test_abstention_by_hand() -> None:
    found = abstention(np.array([0.9, 0.8, 0.1]), np.array([True, False, True]), np.array([0.2, 0.85]))
    assert (found["curve"][0], found["curve"][-1]) == ([0.1, 1.0], [1.0, pytest.approx(2 / 3)])
    assert found["auroc"] == 0.5  # of the right ones, .9 is above .8 and .1 is not
    assert found["auroc_absent"] == 0.5  # .9 is above both absent ones, .1 above none
    assert found["threshold"] == pytest.approx(0.785)  # 0.2 + 0.9 · 0.65
    assert found["right_kept"] == 0.5
