"""The smallest share of a clear answer, and names that the corpus lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npm.core.errors import SettingError
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings

TEXTS = [
    "The capital of Iceland is <mask>.",
    "<mask> and Kraków are in <mask>.",
    "<mask> wrote about Zorkville in iGnusto.",
]


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


@pytest.mark.parametrize("min_share", [0.05, 0.3, 0.6, 0.9, 1.0])
def test_the_status_compares_the_best_share_and_nothing_else_changes(filler: PhraseFiller, min_share: float) -> None:
    for before, after in zip(filler.fill(TEXTS), filler.fill(TEXTS, min_share=min_share), strict=True):
        best = getattr(before, "fillings", None) or before.phrases
        low = not best or best[0].score < min_share or "Zorkville" in before.text
        assert (before.status, after.status) == ("ok", "low_evidence" if low else "ok")
        assert replace(after, status="ok", notes=after.notes[: len(after.notes) - low]) == before
        assert low == any("no clear answer" in note for note in after.notes)


def test_an_answer_without_phrases_is_unclear_and_sums_have_no_threshold(
    built_index: Path, filler: PhraseFiller
) -> None:
    assert filler.fill(TEXTS[0], documents=[], min_share=0.1).status == "low_evidence"
    reference = replace(FillSettings.reference(), min_share=1.0)
    assert PhraseFiller.open(built_index, settings=reference).fill(TEXTS[0]).status == "ok"
    with pytest.raises(SettingError, match="min_share"):
        filler.fill(TEXTS[0], min_share=2)


def test_capitalized_words_that_occur_nowhere_are_named(filler: PhraseFiller) -> None:
    known, _, unknown = (" ".join(answer.notes) for answer in filler.fill(["Strolling <mask>.", *TEXTS[1:]]))
    assert "not in the corpus" not in known
    assert "not in the corpus: Zorkville, iGnusto" in unknown
