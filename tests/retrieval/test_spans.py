"""Which spans of a text may be phrases, and the shares of their scores, by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import kept_tokens
from npm.indexing.rows import RowMap
from npm.indexing.settings import PruningRule
from npm.models.encoder import Encoder
from npm.retrieval.queries import MaskNeighbors
from npm.retrieval.search import occurrence_shares, reference_weights
from npm.retrieval.settings import FillSettings, ScoringSettings
from npm.retrieval.spans import NO_NEIGHBORS, SpanFinder, digit_tokens
from tests.helpers.stores import token_places
from tests.helpers.tiny_models import wordpiece_tokenizer

TEXT = "Noah's Ark of Peace was in San Francisco"
NAMES = {"Noah", "Ark", "Peace", "San", "Francisco", "San Francisco"}
LINKED = {"Noah's Ark", "Noah's Ark of Peace", "Ark of Peace"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    return store_of(TEXT, tmp_path_factory.mktemp("spans") / "store")


def tokenizer_of(text: str) -> PreTrainedTokenizerFast:
    return wordpiece_tokenizer([text] * 9)


def store_of(text: str, folder: Path) -> BlockStore:
    packer = BlockPacker(tokenizer_of(text), BlockSettings())
    return build_block_store(folder, [Document("d", "", text)], packer, settings={})


def phrases_in(
    store: BlockStore,
    text: str,
    scoring: ScoringSettings,
    *,
    from_ends: bool,
    most_words: int | None = None,
    neighbors: MaskNeighbors = NO_NEIGHBORS,
) -> set[str]:
    rows = RowMap.of_mask(kept_tokens(store.flags.slice(0, store.token_count), PruningRule.without_stopwords))
    finder = SpanFinder(store, rows, (50, most_words), scoring, digit_tokens=digit_tokens(tokenizer_of(text)))
    every, none = np.arange(len(rows)), np.zeros(0, dtype=np.int64)
    found = finder.find(none, every, neighbors) if from_ends else finder.find(every, None, neighbors)
    starts, ends = token_places(store)
    spans = zip(starts[found.starts].tolist(), ends[found.starts + found.lengths - 1].tolist(), strict=True)
    return {text[start:end] for start, end in spans}


@pytest.mark.parametrize(("reference", "expected"), [(True, NAMES), (False, NAMES | LINKED)])
@pytest.mark.parametrize("from_ends", [True, False])
def test_stop_words_inside_are_those_of_names_and_none_in_the_reference(
    reference: bool, expected: set[str], from_ends: bool, store: BlockStore
) -> None:
    assert phrases_in(store, TEXT, ScoringSettings(reference=reference), from_ends=from_ends) == expected


@pytest.mark.parametrize("from_ends", [True, False])
def test_a_clause_ends_at_a_point_unless_the_next_token_touches_it(from_ends: bool, tmp_path: Path) -> None:
    text = "Bonn: 3.5 miles. Rhine"
    found = phrases_in(
        store_of(text, tmp_path / "store"), text, ScoringSettings(cut_expressions=True), from_ends=from_ends
    )
    assert found == {"Bonn", "3", "5", "3.5", "miles", "3.5 miles", "5 miles", "Rhine"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bonn: 3.5 miles. Rhine", {"Bonn", "3.5 miles", "Rhine"}),
        ("Fines of $15,000 rise", {"Fines", "Fines of $15,000", "$15,000", "$15,000 rise", "rise"}),
        ("Signed January 2, 2031 Bonn", {"January 2, 2031", "Signed", "Bonn"}),
        ("within thirty (30) days", {"thirty (30) days"}),
        ("one year", {"one year"}),
        ("Dr. Low saw mother-in-law O'Hara", {"Dr. Low", "Low", "saw", "mother-in-law O'Hara"}),
        ("b) Oslo (Norway; Bonn", {"Oslo", "Norway", "Bonn"}),
        ('§ 12 called "Heroes', {"§ 12", "called", "Heroes", "§ 12 called"}),
    ],
)
@pytest.mark.parametrize("from_ends", [True, False])
def test_phrases_cut_no_expression_and_leave_no_bracket_open(
    text: str, expected: set[str], from_ends: bool, tmp_path: Path
) -> None:
    store = store_of(text, tmp_path / "store")
    found = phrases_in(store, text, ScoringSettings(), from_ends=from_ends)
    assert expected <= found
    pieces = {"15,000", "000", "2, 2031", "2031", "January 2", "days", "30", "year", "one", "law", "mother", "Hara"}
    assert not found & (
        pieces | {"b", "b) Oslo", "Norway; Bonn", "Oslo (Norway", "$15", "3.5", "miles", "Dr", "Signed January 2"}
    )


def test_the_part_of_an_expression_that_the_question_has_is_not_asked_for(tmp_path: Path) -> None:
    text = "paid within 45 days"
    store = store_of(text, tmp_path / "store")
    days = int(store.token_ids.take(np.array([store.token_count - 1]))[0])
    for right, expected in ((days, {"45"}), (-1, {"45 days"})):
        found = phrases_in(store, text, ScoringSettings(), from_ends=False, neighbors=MaskNeighbors(right=right))
        assert {phrase for phrase in found if "45" in phrase or "days" in phrase} == expected


def test_the_year_of_a_date_may_stand_alone_where_a_year_is_asked_for(tmp_path: Path) -> None:
    text = "Signed 2 January 2031 for $15,000"
    store = store_of(text, tmp_path / "store")
    asked = MaskNeighbors(asks_for_year=True)
    found = phrases_in(store, text, ScoringSettings(), from_ends=False, neighbors=asked)
    assert {"2031", "2 January 2031", "$15,000"} <= found
    assert not found & {"2 January", "January 2031", "000", "15,000"}


@pytest.mark.parametrize("most_words", [1, 2, 3, 5])
@pytest.mark.parametrize("from_ends", [True, False])
def test_a_phrase_has_at_most_as_many_words_as_are_allowed(most_words: int, from_ends: bool, store: BlockStore) -> None:
    # the apostrophe and the s behind it are words too
    expected = {phrase for phrase in NAMES | LINKED if len(phrase.replace("'s", " ' s").split()) <= most_words}
    assert phrases_in(store, TEXT, ScoringSettings(), from_ends=from_ends, most_words=most_words) == expected


def test_words_limit_phrases_where_they_are_asked_for_or_tokens_are_bytes() -> None:
    words, spells = (cast(Encoder, SimpleNamespace(spells_bytes=each, query_masks=2)) for each in (False, True))
    usual = FillSettings()
    assert usual.phrase_limits(words) == (10, None)
    assert usual.phrase_limits(spells) == (128, 10)
    assert FillSettings(max_phrase_words=3).phrase_limits(words) == (128, 3)
    assert FillSettings(max_phrase_words=3, max_phrase_tokens=20).phrase_limits(spells) == (20, 3)
    one_mask = cast(Encoder, SimpleNamespace(spells_bytes=False, query_masks=1))
    assert usual.phrase_limits(one_mask) == (10, 1)


def test_shares_worked_by_hand() -> None:
    # Three spans: e^s = 1, 2, 1 and e^t = 1, 4, 3; products 1, 8, 3 of 12.
    s, t, lengths = np.log([1.0, 2.0, 1.0]), np.log([1.0, 4.0, 3.0]), np.array([1, 2, 4])
    np.testing.assert_allclose(occurrence_shares(s, t, lengths, 0.0), [1 / 12, 8 / 12, 3 / 12])
    # Lengths 1, 2, 4 to the power 1: 1, 16, 12 of 29.
    np.testing.assert_allclose(occurrence_shares(s, t, lengths, 1.0), [1 / 29, 16 / 29, 12 / 29])
    assert len(occurrence_shares(*np.zeros((3, 0)), 0.0)) == 0


def test_reference_weights_worked_by_hand() -> None:
    # Z_s = 1 + 2 + 5 = 8, Z_e = 1 + 3 = 4: the span weighs 2/8 + 3/4 = 1.
    sides = np.log([1.0, 2.0, 5.0]), np.log([1.0, 3.0])
    s, t, lengths = np.log([2.0]), np.log([3.0]), np.array([2])
    np.testing.assert_allclose(reference_weights(s, t, lengths, 0.0, sides), [1.0])
    np.testing.assert_allclose(reference_weights(s, t, lengths, 0.5, sides), [math.sqrt(2)])


def test_similarities_of_any_size_give_finite_weights() -> None:
    large, mixed, small = np.array([1e4, 1e4, -1e4]), np.array([1e4, -1e4, -1e4]), np.full(3, -1e4)
    for s, t in itertools.permutations((large, mixed, small), 2):
        shares = occurrence_shares(s, t, np.ones(3), 0.0)
        assert np.isfinite(shares).all() and shares.sum() == pytest.approx(1.0)
    s, t = np.array([1e4, 1e4 - 1]), np.array([-1e4, -1e4])
    weights = reference_weights(s, t, np.ones(2), 0.0, (s, t))
    np.testing.assert_allclose(weights, np.array([1.0, np.exp(-1.0)]) / (1 + np.exp(-1.0)) + 0.5)
