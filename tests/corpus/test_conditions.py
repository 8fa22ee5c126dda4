"""Conditions on kept fields: as told by hand, and against a plain loop over the documents."""

from __future__ import annotations

import json
import operator
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import SettingError
from npm.corpus.conditions import COMPARISONS, Condition, matching_documents, parse_conditions
from npm.corpus.store import BlockStore
from tests.helpers.stores import stored_documents

FIELDS: list[dict[str, Any]] = [
    {"lang": "en", "year": 1985, "topic": ["arts", "crafts"], "stub": True},
    {"lang": "de", "year": 1990},
    {"lang": "en", "year": 1990.5, "topic": ["history, modern"]},
    {},
    {"lang": "fr", "year": "unknown", "topic": []},
    {"lang": None, "year": 2001, "topic": ["arts", None, 7], "stub": False},
    {"lang": "", "year": [1800, 2000], "topic": "arts"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    return stored_documents(tmp_path_factory.mktemp("conditions") / "store", FIELDS, documents_per_shard=2)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        (["lang=en"], [0, 2]),
        (["lang!=en"], [1, 4, 6]),
        (["lang == en"], [0, 2]),
        (['lang=""'], [6]),
        (["lang in [de, fr]"], [1, 4]),
        (["lang=en", "year>=1990"], [2]),
        (["year>=1990"], [1, 2, 5, 6]),  # "unknown" is no number
        (["year>1990"], [2, 5, 6]),
        (['year>="1990"'], [1, 2, 4, 5, 6]),  # in quotes all are text
        (["year<1990"], [0, 6]),
        (["year<=1990"], [0, 1, 6]),
        (["year=1990.0"], [1]),
        (["year=199e1"], [1]),
        (["year in [1985,2000,unknown]"], [0, 4, 6]),
        (["topic=arts"], [0, 5, 6]),
        (["topic!=arts"], [0, 2, 5]),  # one element is enough
        (['topic in ["history, modern", 7]'], [2, 5]),
        (["stub=true"], [0]),
        (["stub=1"], []),
        (["lang<e"], [1, 6]),
        (["lang=e"], []),
    ],
)
def test_conditions_choose_the_documents_that_a_reader_would_expect(
    store: BlockStore, where: list[str], expected: list[int]
) -> None:
    matching = matching_documents(store, parse_conditions(where))
    assert matching.dtype == bool and np.flatnonzero(matching).tolist() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lang=en", Condition("lang", "=", (("en", None),))),
        ("  published in  >= -1.5 ", Condition("published in", ">=", (("-1.5", -1.5),))),
        ("title=born in [1990]", Condition("title", "=", (("born in [1990]", None),))),
        ("url!=https://e.org/?a=b", Condition("url", "!=", (("https://e.org/?a=b", None),))),
        ('n="7"', Condition("n", "=", (("7", None),))),
        ("n<007", Condition("n", "<", (("007", None),))),
        ("n=9007199254740993", Condition("n", "=", (("9007199254740993", 9007199254740993),))),
        ("n=inf", Condition("n", "=", (("inf", None),))),
        (
            't in ["a\\"]b" , c d,7]',
            Condition("t", "in", (('a"]b', None), ("c d", None), ("7", 7))),
        ),
    ],
)
def test_a_condition_is_read_as_field_operator_and_values(text: str, expected: Condition) -> None:
    [condition] = parse_conditions([text])
    assert condition == expected
    assert [type(number) for _, number in condition.operands] == [type(number) for _, number in expected.operands]


NO_CONDITIONS = """|lang|=en|lang=|lang in en|lang in []|lang in [a|lang in [a,,b]|lang="en|year=>1990|year<>1990
|year>==1990|lang in [a, ,b]|lang="a" b|lang in [[a]]""".replace("\n", "").split("|")


@pytest.mark.parametrize("text", NO_CONDITIONS)
def test_what_is_no_condition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match=re.escape(repr(text))):
        parse_conditions(["lang=en", text])


def test_an_operator_that_is_none_is_refused_with_those_there_are() -> None:
    for text in ("year>>2", "year=>2"):
        with pytest.raises(SettingError, match=re.escape(", ".join(COMPARISONS))):
            parse_conditions([text])


def test_a_field_that_is_not_kept_is_refused_with_those_that_are(store: BlockStore, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"author, date.*kept_fields=\[lang,stub,topic,year,author,date\]"):
        matching_documents(store, parse_conditions(["date=1", "lang=en", "author!=x"]))
    without = stored_documents(tmp_path / "without", [{}, {}])
    with pytest.raises(SettingError, match="lang"):
        matching_documents(without, parse_conditions(["lang=en"]))
    assert matching_documents(without, []).tolist() == [True, True]


def random_value(rng: np.random.Generator) -> Any:
    """Any JSON value; small ranges, so that values meet."""
    kind = int(rng.integers(0, 7))
    number = int(rng.integers(-3, 4))
    if kind == 0:
        return [random_value(rng) for _ in range(int(rng.integers(0, 3)))]
    return [None, number, number / 2, bool(number > 0), str(number), "abcdefg"[number]][kind - 1]


def plain_accepts(value: Any, sign: str, wanted: list[str]) -> bool:
    """The rule as it is told, for one value."""
    if isinstance(value, list):
        return any(plain_element(element, sign, wanted) for element in value)
    return plain_element(value, sign, wanted)


def plain_element(value: Any, sign: str, wanted: list[str]) -> bool:
    if value is None:
        return False
    compare = {"=": "eq", "!=": "ne", ">=": "ge", "<=": "le", ">": "gt", "<": "lt", "in": "eq"}[sign]
    for text in wanted:
        pair: tuple[Any, Any] = (value if type(value) is str else json.dumps(value), text)
        if type(value) in (int, float):
            with suppress(ValueError):
                pair = (value, float(text))
        elif sign in ("<", "<=", ">", ">=") and is_number(text):
            if type(value) is not str or not is_number(value):
                continue
            pair = (float(value), float(text))
        if getattr(operator, compare)(*pair):
            return True
    return False


def is_number(text: str) -> bool:
    with suppress(ValueError):
        return bool(np.isfinite(float(text)))
    return False


@pytest.mark.parametrize("seed", range(5))
def test_matching_equals_a_plain_loop_over_random_fields(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fields = [{name: random_value(rng) for name in "ab" if rng.random() < 0.8} for _ in range(60)]
    halves = [stored_documents(tmp_path / f"{n}", fields[n : n + 30], documents_per_shard=7) for n in (0, 30)]
    store = BlockStore.open(*(half.folder for half in halves))
    seen = set[int]()
    for _ in range(40):
        asked = []
        for _ in range(int(rng.integers(1, 3))):
            sign = str(rng.choice(["=", "!=", ">=", "<=", ">", "<", "in"]))
            count = int(rng.integers(1, 4)) if sign == "in" else 1
            wanted = rng.choice(["-2", "0", "1", "1.0", "0.5", "true", "c", "d"], count).tolist()
            asked.append((str(rng.choice(["a", "b"])), sign, wanted))
        where = [f"{name} {sign} " + (f"[{', '.join(w)}]" if sign == "in" else w[0]) for name, sign, w in asked]
        expected = [all(plain_accepts(own.get(name), sign, w) for name, sign, w in asked) for own in fields]
        assert matching_documents(store, parse_conditions(where)).tolist() == expected, where
        seen.add(sum(expected))
    assert len(seen) > 5


@pytest.mark.parametrize("text", ["n>=5 and lang=en", "lang=en or n<3"])
def test_two_conditions_in_one_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"where=\["):
        parse_conditions([text])


@pytest.mark.parametrize("text", ["n>=.5", "n>=+5", "n>=5.", "n>=5e0"])
def test_numbers_in_any_spelling_compare_as_numbers(text: str) -> None:
    [condition] = parse_conditions([text])
    assert [condition.accepts(value) for value in (0, 40)] == [False, True]


def test_a_number_of_thousands_of_digits_compares_as_infinity() -> None:
    [condition] = parse_conditions([f"n<{'9' * 5000}"])
    assert condition.accepts(7) and not condition.accepts("many")
