from __future__ import annotations

from typing import Any

import pytest

from npm.core.errors import SettingError
from npm.tuning.settings import TuneSettings
from npm.tuning.tune import SearchChoice, search_choices, widest_first


def triples(choices: list[SearchChoice]) -> list[tuple[int | None, int | None, int]]:
    return [(choice.probed_lists, choice.reranked_rows, choice.candidates_per_side) for choice in choices]


def test_every_number_of_lists_is_tried_with_every_multiple_of_the_candidates_widest_first() -> None:
    settings = TuneSettings(probed_lists=(2, 8), reranked_rows=(30, 60), candidates_per_side=(20, 30))
    choices = sorted(search_choices(settings, row_count=100, list_count=8), key=widest_first)
    expected = [(8, 60, 30), (8, 60, 20), (8, 30, 30), (2, 60, 30), (2, 60, 20), (2, 30, 30)]
    assert triples(choices) == expected
    assert {choice.rerank_factor for choice in choices} == {1, 2, 3}


def test_exact_search_varies_in_candidates_only() -> None:
    choices = search_choices(TuneSettings(), row_count=1000, list_count=None)
    assert triples(choices) == [(None, None, 256), (None, None, 512)]


def test_automatic_numbers_go_as_far_as_the_index_does() -> None:
    choices = search_choices(TuneSettings(), row_count=600, list_count=100)
    assert {choice.probed_lists for choice in choices} == {32, 64}
    assert {choice.candidates_per_side for choice in choices} == {256, 512}
    tiny = search_choices(TuneSettings(), row_count=128, list_count=4)
    assert {choice.probed_lists for choice in tiny} == {4}
    assert {choice.candidates_per_side for choice in tiny} == {128}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"probed_lists": (9,)}, "probed_lists"),
        ({"candidates_per_side": (101,), "reranked_rows": (101,)}, "candidates_per_side"),
        ({"candidates_per_side": (40,), "reranked_rows": (50,)}, "reranked_rows"),
    ],
)
def test_numbers_that_the_index_cannot_serve_are_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingError, match=name):
        search_choices(TuneSettings(**values), row_count=100, list_count=8)


@pytest.mark.parametrize("name", ["probed_lists", "reranked_rows"])
def test_exact_search_takes_no_numbers_of_approximate_search(name: str) -> None:
    settings = TuneSettings(**{name: (8,)})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=name):
        search_choices(settings, row_count=100, list_count=None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": 5001},
        {"recall_goal": 1.1},
        {"probed_lists": (0,)},
        {"reranked_rows": (8, 8)},
        {"candidates_per_side": (4, -1)},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        TuneSettings(**wrong)
