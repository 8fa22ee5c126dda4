"""Spans of a text, shares and best places by hand and against a search of every sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.core.types import MASK_TEXT
from npm.corpus.blocks import BlockSettings
from npm.corpus.text import sentence_bounds
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.tracing.evidence import CorpusEvidence
from npm.tracing.find import SoughtPhrase
from npm.tracing.spans import spans_of
from tests.helpers.live_indexes import build_settings, record, write_records

TEXTS = (
    "The red river rises in Oslo. The blue lake is in Rome.",
    "The red lake is in Rome. A river of Rome rises.",
    "Oslo has a blue river. Rivers rise.",
    "Paris is large.",
)


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    records = [record(number, text=text) for number, text in enumerate(TEXTS)]
    folder = tmp_path_factory.mktemp("evidence")
    settings = build_settings(Path(write_records(folder / "records.jsonl", records)))
    build_index(folder / "index", replace(settings, blocks=BlockSettings(max_block_tokens=64)), encoder)
    return PhraseIndex.open(folder / "index")


def evidence_in(index: PhraseIndex, blocks: np.ndarray | None = None) -> CorpusEvidence:
    return CorpusEvidence(index, index.lexicon, blocks)


def test_the_share_of_a_sentence_by_hand(index: PhraseIndex) -> None:
    assert index.store.block_count == 4
    evidence = evidence_in(index)
    # in blocks of 4: river 3, rise (its singular form differs) 2, red 2, pari, as it is counted, 1
    river, red, paris = (math.log(1 + (4 - count + 0.5) / (count + 0.5)) for count in (3, 2, 1))
    context = evidence.words("the red rivers of Paris")
    assert context == {"red", "river", "pari"}
    assert evidence.share(context, "A river of Rome.", "") == pytest.approx(river / (river + red + paris))
    assert evidence.share(context, "A river of Rome.", "Paris") == pytest.approx(1 - red / (river + red + paris))
    assert evidence.share(frozenset(), "A river of Rome.", "") == 1


def test_the_best_place_is_that_of_a_search_of_every_sentence(index: PhraseIndex, rng: np.random.Generator) -> None:
    evidence, words = evidence_in(index), sorted({word.strip(".") for text in TEXTS for word in text.split()})
    for _ in range(40):
        span = str(rng.choice(["Oslo", "Rome", "river", "blue", "Paris", "red lake", "Berlin", "Title 2"]))
        sentence = " ".join([*rng.choice(words, 3), MASK_TEXT, *rng.choice(words, 2)])
        context = evidence.words(sentence.replace(MASK_TEXT, " "))
        shares = [
            evidence.share(context, text[first:stop], f"Title {number}")
            for number, text in enumerate(TEXTS)
            for first, stop in sentence_bounds(text).tolist()
            if any(SoughtPhrase(span).places(text, first, stop)) or span == f"Title {number}"
        ]
        best = evidence.best_place(span, sentence)
        assert (best.share if best else None) == (max(shares) if shares else None)
        if best and not span.startswith("Title"):
            assert best.occurrence.parts[1].lower() == span.lower()


def test_of_equal_places_the_one_in_the_best_block_by_its_words_is_shown(index: PhraseIndex) -> None:
    """Both sentences have the lake; the second block is the shorter one."""
    best = evidence_in(index).best_place("Rome", f"The lake of {MASK_TEXT}")
    assert best is not None and (best.share, best.occurrence.document) == (1, "d1")


def test_only_allowed_blocks_are_looked_in(index: PhraseIndex) -> None:
    allowed = np.array([False, True, True, True])
    everywhere, elsewhere = (
        evidence_in(index, each).best_place("Oslo", f"red {MASK_TEXT} rises") for each in (None, allowed)
    )
    assert everywhere is not None and everywhere.occurrence.document == "d0"
    assert elsewhere is not None and elsewhere.occurrence.document == "d2"


def test_spellings_of_the_corpus_say_whether_a_word_begins_a_name(index: PhraseIndex) -> None:
    begins_name = evidence_in(index).begins_name
    assert begins_name("Oslo") and begins_name("Berlin")
    assert not begins_name("River") and not begins_name("Lake")


def found_in(text: str, *ordinary: str) -> list[str]:
    """The spans as `kind: text`; runs that begin with an `ordinary` word begin no name."""
    spans = list(spans_of(text, lambda run: run.split()[0] not in ordinary))
    assert all(span.first <= span.start < span.stop <= span.last for span in spans)
    assert all(one.stop <= other.start for one, other in pairwise(spans))
    return [f"{span.kind}: {text[span.start : span.stop]}" for span in spans]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("The Mona Lisa was painted in 1503.", ["name: Mona Lisa", "date: 1503"]),
        ("She met Leonardo da Vinci in The Hague.", ["name: Leonardo da Vinci", "name: The Hague"]),
        ("He knew J. R. R. Tolkien of St. Louis.", ["name: J. R. R. Tolkien of St. Louis"]),
        ("In Paris, Łódź and São Paulo", ["name: Paris", "name: Łódź", "name: São Paulo"]),
        ("Iceland's Parliament met", ["name: Iceland", "name: Parliament"]),
        ("It cost $15,000 or 12.5 million euros.", ["number: $15,000", "number: 12.5 million euros"]),
        ("It took two years and 45 days, −3 °C.", ["number: two years", "number: 45 days", "number: −3 °C"]),
        ("On 5 May 2031 and May 1998", ["date: 5 May 2031", "date: May 1998"]),
        ("in the 1990s and the 19th century", ["date: 1990s", "number: 19th"]),
        ("the F-16 and COVID-19", ["name: F-16", "name: COVID-19"]),
        ("from 2020–21 on", ["number: 2020–21"]),
        ("He said “to be or not to be,” to Ann.", ["quotation: to be or not to be", "name: Ann"]),
        ('It is called "The Ark of 1503".', ["quotation: The Ark of 1503"]),
        ("It is what I think of one of them.", []),
        ("It is vitamin C.", ["name: C"]),
    ],
)
def test_spans_are_found_by_hand(text: str, spans: list[str]) -> None:
    assert found_in(text) == spans


def test_a_word_that_begins_a_sentence_is_a_name_unless_it_is_ordinary() -> None:
    assert found_in("Oslo lies there. Rivers flow there.", "Rivers") == ["name: Oslo"]
    assert found_in("Painter Leonardo of Vinci came.", "Painter") == ["name: Leonardo of Vinci"]
    assert found_in("(Rivers flow there.) – Rivers flow.", "Rivers") == []
    assert found_in("The New York of then.") == ["name: New York"]
    assert found_in("“Rivers flow.” Rivers", "Rivers") == ["quotation: Rivers flow"]


WORDS = ("ran", "red", "Oslo", "Rome", "Ann", "the", "The", "of")


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
def test_names_are_runs_of_capitalized_words(words: list[str]) -> None:
    """With a lower-case word before, so that none begins the sentence."""
    runs: list[list[str]] = []
    open_run, linking = False, list[str]()
    for word in words:
        if word[0].isupper():
            if open_run:
                runs[-1] += [*linking, word]
            else:
                runs.append([word])
            open_run, linking = True, []
        elif open_run and word in ("the", "of") and len(linking) < 2:
            linking.append(word)
        else:
            open_run = False
    expected = [" ".join(run) for run in runs if {"The", "of", "the"}.issuperset(run) is False]
    assert found_in(f"so {' '.join(words)}") == [f"name: {name}" for name in expected]
