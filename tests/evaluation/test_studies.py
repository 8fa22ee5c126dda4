"""Studies as they are asked for: their cells are settings that training takes, and slips are told at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from npm.cli.settings import compose_settings
from npm.core.errors import SettingError
from npm.evaluation.study import Stage, Study
from npm.evaluation.study_plans import BLOCK_TOKENS, ChosenStudy

FILES = ["files=[a.jsonl]", "held_out=[b.jsonl]"]


def composed_stages(study: Study, cell: str) -> dict[str, Any]:
    """The settings of every stage of a cell, as its verb takes them."""
    stages = {name: Stage.of(study, cell, name, out=Path("o"), seed=0) for name in study.cells[cell]}
    return {name: compose_settings(stage.command[0], stage.command[1:]) for name, stage in stages.items()}


def test_every_cell_differs_from_the_others_and_is_what_its_name_says() -> None:
    study = ChosenStudy.of(["masking", *FILES]).study
    corruptions = {}
    for name in study.cells:
        composed = composed_stages(study, name)["run"]
        corruptions[name] = composed.corruption
        assert composed.corpus.files == ["a.jsonl"] and composed.schedule.max_steps == 1000
    assert len({repr(each) for each in corruptions.values()}) == 19
    assert [corruptions[f"rate-{rate}"].masked_fraction for rate in (15, 40, 80)] == [0.15, 0.4, 0.8]
    assert [corruptions[f"unit-{unit}"].unit.value for unit in ("word", "span", "collocation")] == [
        "word",
        "word",
        "collocation",
    ]
    assert all(corruptions[f"rate-{rate}"].masked_fraction == rate / 100 for rate in range(20, 80, 10))
    assert corruptions["unit-word-40"].masked_fraction == 0.4 and corruptions["unit-word-40"].unit.value == "word"
    for masked, predicted, copies in ((40, 20, 1), (20, 20, 1), (20, 40, 2), (10, 40, 4), (5, 40, 8)):
        cell = corruptions[f"corrupt-{masked}-predict-{predicted}"]
        assert (cell.masked_fraction, cell.predicted_fraction) == (masked / 100, predicted / 100)
        assert cell.copy_count == copies


def test_every_model_is_evaluated_on_tokens_and_on_words() -> None:
    study = ChosenStudy.of(["masking", *FILES, "articles=7"]).study
    for cell in ("rate-15", "rate-80"):
        asked = {name: each for name, each in composed_stages(study, cell).items() if name != "run"}
        units = {name: each.masked_tokens.unit.value for name, each in asked.items()}
        assert units == {"tokens": "token", "words": "word"}
        assert all((each.limit, each.corpus.files) == (7, ["b.jsonl"]) for each in asked.values())
    assert next(iter(study.columns)) == "tokens: masked accuracy" and len(study.columns) == 6


def test_every_ablation_changes_one_thing_of_the_phrase_loss() -> None:
    asked = ChosenStudy.of(["ablations", *FILES])
    cells = {name: composed_stages(asked.study, name)["run"] for name in asked.study.cells}
    assert len({repr((each.masking, each.groups, each.objective)) for each in cells.values()}) == len(cells) == 8
    assert cells["masks: any spans"].masking.unit.value == "span"
    assert asked.out == Path("runs/ablations")
    assert composed_stages(asked.study, "as it is")["in batch"].task == ["in_batch"]


def test_every_intervention_edits_the_same_encoder_and_is_tuned_alike() -> None:
    study = ChosenStudy.of(["interventions", "data_dir=glue", "encoder=runs/mlm", "device=cpu"]).study
    edits = {}
    for cell in study.cells:
        stages = composed_stages(study, cell)
        edit = stages.pop("edit", None)
        edits[cell] = edit and edit.edits
        assert edit is None or (edit.encoder, edit.seed) == ("runs/mlm", 0)
        assert {name: each.task for name, each in stages.items()} == {name: [name] for name in ("stsb", "sst2", "cola")}
        read = {each.encoder for each in stages.values()}
        assert read == {f"o/{cell}/seed-0/edit" if edit else "runs/mlm"}
        assert all((each.seeds, each.data_dir, each.device) == ([0], "glue", "cpu") for each in stages.values())
    assert edits["base"] is None and edits["clean"] == edits["clean, tuned"] and len(edits) == 11
    clean, tuned = (composed_stages(study, name)["sst2"] for name in ("clean", "clean, tuned"))
    assert (clean.learning_rates, clean.epochs, tuned.learning_rates, tuned.epochs) == ([5e-5], 2, [1e-4, 3e-4], 4)


def test_interventions_may_be_tuned_on_some_of_the_tasks() -> None:
    given = ["interventions", "data_dir=glue", "encoder=runs/mlm"]
    study = ChosenStudy.of([*given, "tasks=[stsb, cola]"]).study
    assert {*study.cells["clean"]} == {"edit", "stsb", "cola"}
    assert {each.stage for each in study.columns.values()} == {"stsb", "cola"}
    with pytest.raises(SettingError, match="rte"):
        ChosenStudy.of([*given, "tasks=[stsb,rte]"])


def test_retrievers_are_edited_phrase_encoders_that_are_not_trained() -> None:
    study = ChosenStudy.of(["retrievers", "held_out=[b.jsonl]"]).study
    assert composed_stages(study, "layers 1 to 4")["edit"].edits == [{"name": "keep_layers", "layers": [0, 1, 2, 3]}]
    for cell in study.cells:
        measured = composed_stages(study, cell)["in batch"]
        assert measured.task == ["in_batch"] and measured.corpus.files == ["b.jsonl"] and measured.limit == 100
        assert measured.encoder == ("encoder-mini" if cell == "base" else f"o/{cell}/seed-0/edit")


def test_encoders_over_bytes_and_pieces_read_as_much_text_and_are_asked_the_same() -> None:
    study = ChosenStudy.of(["tokenizers", *FILES, "schedule.max_minutes=1"]).study
    assert {name: command[3:] for name, command in study.shared.items()} == {
        name: [f"kind={name}", "size=8192"] for name in ("byte_bpe", "wordpiece")
    }
    for cell, tokens in BLOCK_TOKENS.items():
        stages = composed_stages(study, cell)
        run, index, noisy, asked = (stages[name] for name in ("run", "index", "noisy", "in batch"))
        assert run.encoder == ("bytes" if cell == "bytes" else f"o/shared/{cell}")
        assert (run.masking.unit.value, run.schedule.max_minutes, run.schedule.max_steps) == ("phrase_words", 1, None)
        assert run.start.fresh.max_input_tokens >= tokens + 2
        assert {run.blocks.max_block_tokens, index.blocks.max_block_tokens, asked.in_batch.max_block_tokens} == {tokens}
        assert (asked.in_batch.whole_words, asked.limit, asked.corpus.files) == (True, 200, ["b.jsonl"])
        assert (stages["demo"].demo.letter_noise, noisy.demo.letter_noise) == (0, 0.1)
        assert stages["demo"].index == noisy.index == index.index
        assert {each.encoder for each in (index, noisy, asked)} == {f"o/{cell}/seed-0/run/encoder"}


@pytest.mark.parametrize("given", [[], ["nothing"], FILES])
def test_a_study_that_is_not_there_is_told_with_those_that_are(given: list[str]) -> None:
    with pytest.raises(SettingError, match="masking, ablations"):
        ChosenStudy.of(given)


def test_what_is_not_of_the_study_itself_goes_to_training() -> None:
    asked = ChosenStudy.of(["masking", *FILES, "seeds=[3, 5]", "out=here", "schedule.max_steps=2", "cells=[rate-40]"])
    assert (asked.seeds, asked.out, asked.cells) == ((3, 5), Path("here"), ("rate-40",))
    common = ["experiment=masking_study", "corpus.files=[a.jsonl]", "schedule.max_steps=2"]
    for stages in asked.study.cells.values():
        assert stages["run"][:6] == ["train", "run={out}", "trainer.seed={seed}", *common]


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
        ([*FILES, "cells=[rate-15,rate-16]"], "rate-16"),
    ],
)
def test_slips_are_told(given: list[str], got: str) -> None:
    with pytest.raises(SettingError, match=re.escape(got)):
        ChosenStudy.of(["masking", *given])


TRANSFER = [
    "treebank=[t.conllu]",
    "files=[a.jsonl]",
    "source_held_out=[b.jsonl]",
    "target=c.jsonl",
    "target_held_out=d.jsonl",
]


def test_sources_of_transfer_are_made_once_and_keep_all_but_their_vocabulary() -> None:
    study = ChosenStudy.of(["transfer", *TRANSFER, "schedule.max_steps=7"]).study
    lexicons = {
        name: [each for each in command if each.startswith("lexicon")] for name, command in study.shared.items()
    }
    assert {name: lexicon for name, lexicon in lexicons.items() if lexicon} == {
        "text-zipf": ["lexicon.kind=zipf"],
        "text-loglinear": ["lexicon.kind=loglinear"],
        "text-loglinear-as-zipf": ["lexicon.kind=loglinear", "lexicon.temperature=null"],
        "text-nesting": ["lexicon.kind=nesting"],
    }
    for cell, stages in study.cells.items():
        target, edit = " ".join(stages["target"]), " ".join(stages.get("edit", []))
        assert ("start.fresh.layers=4" in target) == ("scratch" in cell) == ("new_vocabulary" not in edit)
        assert ("start.frozen.layers=4" in target) == cell.endswith("-layers-frozen")
        assert ("position_embeddings" in edit) == cell.endswith("-positions-reset")
        assert target.endswith(" schedule.max_steps=7")
    for cell in ("scratch", "zipf-positions-reset"):
        assert set(composed_stages(study, cell)) == set(study.cells[cell])
    assert not any(
        "window" in each for command in (*study.shared.values(), study.cells["scratch"]["target"]) for each in command
    )
    near = ChosenStudy.of(["transfer", *TRANSFER, "window_tokens=16"]).study
    assert set(study.cells) - set(near.cells) == {"english-positions-reset", "zipf-positions-reset"}
    for cell, stages in near.cells.items():
        assert ("start.fresh.window_tokens=16" in stages["target"]) == ("scratch" in cell)
    assert all("start.fresh.window_tokens=16" in near.shared[f"source-{name}"] for name in ("zipf", "english"))
    text = Stage.of(study, "zipf", "source-zipf", out=Path("o"), seed=0).before[0]
    assert compose_settings("generate", text.command[1:]).target == "o/shared/tokenizer"
    first, second = (
        Stage.of(study, cell, "target", out=Path("o"), seed=1).before[0].before
        for cell in ("zipf", "zipf-positions-reset")
    )
    assert [each.folder for each in first] == [each.folder for each in second]
