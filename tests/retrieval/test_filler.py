"""A filler as an object of Python: what it takes, how it is shown, closed and copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import QueryError, SettingError, UserError
from npm.core.types import Answer, Phrase
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.command_line import QUESTION


@pytest.fixture(scope="module")
def filler(built_index: Path) -> Iterator[PhraseFiller]:
    with PhraseFiller.open(built_index) as opened:
        yield opened


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (None, "got NoneType"),
        ({"text": QUESTION}, "got dict"),
        ([QUESTION, None], "text 2 of 2"),
        ([QUESTION, "\ud800 <mask>"], "not valid Unicode"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, told: str, filler: PhraseFiller) -> None:
    with pytest.raises(QueryError) as caught:
        filler.fill(texts)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("k", 1.5), ("retrieval", "zz"), ("documents", [1]), ("documents", "bank"), ("documents", {"a": 1})),
        *(("where", [3]), ("blocks", ["a"]), ("blocks", "01"), ("blocks", [[0]]), ("blocks", np.array([0.5]))),
        ("blocks", [10**30]),
    ],
)
def test_an_option_of_another_kind_is_refused_by_its_name(name: str, value: Any, filler: PhraseFiller) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(SettingError, match=name):
        filler.fill(QUESTION, **options)


def test_options_are_taken_from_any_collection(filler: PhraseFiller) -> None:
    documents = filler.fill(QUESTION, documents=["iceland", "norway"])
    assert filler.fill(QUESTION, documents={"norway": 1, "iceland": 2}.keys()) == documents  # type: ignore[arg-type]
    blocks = filler.fill(QUESTION, blocks=[0, 1])
    assert filler.fill(QUESTION, blocks=range(2)) == filler.fill(QUESTION, blocks=np.array([1, 0])) == blocks
    assert filler.fill(QUESTION, k=np.int64(2)) == filler.fill(QUESTION, k=2)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("folder", None), ("encoder", 3), ("dtype", "float99"), ("device", 0)),
        *(("settings", {"k": 3}), ("settings", "k=3"), ("settings", Retrieval.dense)),
    ],
)
def test_an_argument_of_another_kind_is_refused_before_anything_is_opened(
    name: str, value: Any, built_index: Path, tiny_encoder_folder: Path
) -> None:
    arguments: dict[str, Any] = {"folder": built_index, name: value}
    with pytest.raises(SettingError, match=name):
        PhraseFiller.open(**arguments)
    if name != "folder":
        with pytest.raises(SettingError, match=name):
            PhraseFiller.over(["Oslo is in Norway."], **{"encoder": tiny_encoder_folder, name: value})


def test_a_closed_filler_refuses_and_says_so(built_index: Path) -> None:
    with PhraseFiller.open(built_index, settings=FillSettings(k=1)) as filler:
        assert len(filler.fill(QUESTION).phrases) == 1
    assert filler.settings.k == 1
    filler.close()
    for ask in (lambda: filler.fill(QUESTION), filler.refresh):
        with pytest.raises(UserError, match="closed"):
            ask()
    with PhraseFiller.over(["Oslo is in Norway."], next(built_index.glob("encoder-*"))) as passages:
        assert passages.score(QUESTION, "Oslo") > 0
    for ask in (lambda: passages.score(QUESTION, "Oslo"), lambda: passages.score_claim("Oslo"), passages.refresh):
        with pytest.raises(UserError, match="closed"):
            ask()


def test_fillers_say_what_they_answer_from(built_index: Path) -> None:
    filler = PhraseFiller.open(built_index)
    assert repr(filler).startswith(f"PhraseFiller({str(built_index)!r}, 6 documents, ")
    filler.close()
    assert repr(filler) == "PhraseFiller(closed)"
    shown = repr(PhraseFiller.over(["Oslo.", "Paris."], next(built_index.glob("encoder-*"))))
    assert shown.startswith("PhraseFiller(2 passages, 4 tokens, ")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_filler_is_not_copied_into_another_process(copied: Any, filler: PhraseFiller) -> None:
    with pytest.raises(TypeError, match="a PhraseFiller cannot be pickled or copied: open another one"):
        copied(filler)


def test_an_answer_is_shown_in_a_line() -> None:
    phrases = tuple(Phrase(f"phrase {number}", 0.5 / (number + 1), 2, ()) for number in range(9))
    shown = repr(Answer("It is <mask>.", phrases))
    assert shown == "Answer('It is <mask>.': 'phrase 0' 0.500, 'phrase 1' 0.250, 'phrase 2' 0.167 and 6 more)"
    assert repr(Answer("It is <mask>.", ())) == "Answer('It is <mask>.': no phrase)"
    assert len(repr(Answer("x" * 10_000 + "<mask>", ()))) < 200
