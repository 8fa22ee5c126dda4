"""Studies as they are asked for: their cells are settings that training takes, and slips are told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from npm.cli.settings import compose_settings
from npm.errors import SettingError
from npm.evaluation.study import ChosenStudy

FILES = ["files=[a.jsonl]", "held_out=[b.jsonl]"]


def test_every_cell_differs_from_the_others_and_is_what_its_name_says() -> None:
    study = ChosenStudy.of(["masking", *FILES]).study
    corruptions = {}
    for name, settings in study.cells.items():
        composed = compose_settings("train", ["run=r", *study.train, *settings])
        corruptions[name] = composed.corruption
        assert composed.corpus.files == ["a.jsonl"] and composed.schedule.max_steps == 1000
    assert len({repr(each) for each in corruptions.values()}) == 10
    assert [corruptions[f"rate-{rate}"].masked_fraction for rate in (15, 40, 80)] == [0.15, 0.4, 0.8]
    assert [corruptions[f"unit-{unit}"].unit.value for unit in ("word", "span", "collocation")] == [
        "word",
        "word",
        "collocation",
    ]
    for masked, predicted, copies in ((40, 20, 1), (20, 20, 1), (20, 40, 2), (10, 40, 4)):
        cell = corruptions[f"corrupt-{masked}-predict-{predicted}"]
        assert (cell.masked_fraction, cell.predicted_fraction) == (masked / 100, predicted / 100)
        assert cell.copy_count == copies


def test_every_model_is_evaluated_on_tokens_and_on_words() -> None:
    study = ChosenStudy.of(["masking", *FILES, "articles=7"]).study
    asked = {
        name: compose_settings("evaluate", ["out=o", "encoder=e", *given]) for name, given in study.evaluations.items()
    }
    assert {name: each.masked_tokens.unit.value for name, each in asked.items()} == {"tokens": "token", "words": "word"}
    assert all((each.limit, each.corpus.files) == (7, ["b.jsonl"]) for each in asked.values())


def test_every_ablation_changes_one_thing_of_the_phrase_loss() -> None:
    asked = ChosenStudy.of(["ablations", *FILES])
    cells = {
        name: compose_settings("train", ["run=r", *asked.study.train, *settings])
        for name, settings in asked.study.cells.items()
    }
    assert len({repr((each.masking, each.groups, each.objective)) for each in cells.values()}) == len(cells) == 8
    assert cells["masks: any spans"].masking.unit.value == "span"
    assert asked.out == Path("runs/ablations")
    (measured,) = asked.study.evaluations.values()
    assert compose_settings("evaluate", ["out=o", "encoder=e", *measured]).task == ["in_batch"]


@pytest.mark.parametrize("given", [[], ["nothing"], FILES])
def test_a_study_that_is_not_there_is_told_with_those_that_are(given: list[str]) -> None:
    with pytest.raises(SettingError, match="no such study") as refusal:
        ChosenStudy.of(given)
    assert "masking, ablations" in refusal.value.expected


def test_what_is_not_of_the_study_itself_goes_to_training() -> None:
    asked = ChosenStudy.of(["masking", *FILES, "seeds=[3, 5]", "out=here", "schedule.max_steps=2"])
    assert (asked.seeds, asked.out) == ((3, 5), Path("here"))
    assert asked.study.train == ["experiment=masking_study", "corpus.files=[a.jsonl]", "schedule.max_steps=2"]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (["files=[a]"], "nothing for held_out"),
        ([], "nothing for files, held_out"),
        ([*FILES, "nonsense"], "nonsense"),
        ([*FILES, "files=[c]"], "more than one of files"),
        ([*FILES, "seeds=[a]"], "[a]"),
        ([*FILES, "seeds=[]"], "[]"),
        ([*FILES, "seeds=[-1]"], "[-1]"),
    ],
)
def test_slips_are_told(given: list[str], got: str) -> None:
    with pytest.raises(SettingError) as refusal:
        ChosenStudy.of(["masking", *given])
    assert refusal.value.got == got
