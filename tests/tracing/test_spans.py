"""Spans of a text by hand, and names against plain loops over words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.tracing.spans import spans_of


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
