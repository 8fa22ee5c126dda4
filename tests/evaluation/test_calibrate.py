"""Confidence fitted to questions of which every other one has lost its passage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npm.cli.main import main
from npm.core.errors import CorpusError
from npm.evaluation.calibrate import BINS, Observed, calibration_error, corpora_of, fitted, measures
from npm.evaluation.reading import read_passages
from npm.evaluation.settings import SampleSettings
from npm.reading.confidence import FEATURES, read_confidence
from npm.retrieval.filler import PhraseFiller
from tests.helpers.tiny_models import tiny_encoder

SMALL = ["blocks.max_block_tokens=64"]


def drawn(count: int = 2000, seed: int = 0, shift: float = 3) -> Observed:
    """Features, of which the first two decide, right answers, and questions without their passage."""
    rng = np.random.default_rng(seed)
    without = np.arange(count) % 2 == 1
    features = rng.normal(size=(count, len(FEATURES)))
    features[without, 0] -= shift
    right = rng.random(count) < 1 / (1 + np.exp(-(2 * features[:, 0] + features[:, 1] - 0.5)))
    return Observed(features, right & ~without, without)


def test_the_function_is_calibrated_and_withholds_what_was_agreed() -> None:
    found = fitted(drawn())
    assert found.fitted.auroc is not None and found.fitted.auroc > 0.85
    assert found.fitted.calibration_error < 0.05
    assert found.fitted.kept >= 0.875 - 1 / found.right
    assert found.fitted.withheld == pytest.approx(0.9, abs=0.01) or found.fitted.kept == pytest.approx(0.875, abs=0.01)
    others = drawn(seed=1)
    known = measures(found.confidence.of(others.features), others, found.confidence.withheld_below)
    assert known.kept > 0.84
    assert known.withheld > 0.8
    assert known.calibration_error < 0.05


def test_few_right_answers_are_lost_however_many_questions_have_no_answer() -> None:
    easy, hard = (fitted(drawn(shift=shift)).fitted for shift in (9, 0))
    assert easy.withheld == pytest.approx(0.9, abs=0.01) and easy.kept > 0.95
    assert hard.kept == pytest.approx(0.875, abs=0.01) and hard.withheld < 0.6


def test_measures_by_hand() -> None:
    numbers = np.array([0.9, 0.8, 0.7, 0.3, 0.2, 0.1, 0.05])
    right = np.array([True, False, True, False, True, False, True])
    without = np.array([False, True, False, False, False, True, True])  # the last one right all the same
    found = measures(numbers, Observed(np.zeros((7, len(FEATURES))), right, without), 0.25)
    assert found.auroc == pytest.approx(6 / 12)  # of four right and three wrong ones
    assert found.surer_half == 1.0  # .9 and .7 of the four with their passage
    assert found.withheld == 0.5  # .1, but not .8
    assert found.kept == pytest.approx(2 / 3)  # .9 and .7 of the three right ones with their passage
    assert found.calibration_error == pytest.approx(np.abs(numbers - right).mean())  # a bin for each


def test_calibration_error_by_hand() -> None:
    confidence = np.repeat([0.1, 0.6], 5 * BINS)
    right = np.array([True] * 10 + [False] * 40 + [True] * 20 + [False] * 30)
    by_bin = [abs(0.1 - 1.0)] * 1 + [0.1] * 4 + [abs(0.6 - 1.0)] * 2 + [0.6] * 3
    assert calibration_error(confidence, right) == pytest.approx(np.mean(by_bin))


@pytest.mark.parametrize("right", [np.zeros(60, dtype=bool), np.ones(60, dtype=bool), np.arange(20) % 2 == 0])
def test_too_little_to_learn_from_is_refused(right: np.ndarray) -> None:
    with pytest.raises(CorpusError):
        fitted(Observed(np.zeros((len(right), len(FEATURES))), right, np.zeros(len(right), dtype=bool)))


def test_the_command_writes_the_function_of_a_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty", "knoll"]
    pairs = [(one, other) for one in words for other in words if one < other]
    rows = [
        {"question": f"What is near {one}?", "answers": [other], "context": f"The {one} is near the {other}."}
        for one, other in pairs
    ]
    questions, corpus, index = tmp_path / "rows.jsonl", tmp_path / "corpus.jsonl", tmp_path / "index"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, documents, _ = read_passages([str(questions)], SampleSettings())
    corpus.write_text("".join(json.dumps({"id": each.id, "text": each.text}) + "\n" for each in documents))
    encoder = tiny_encoder("bert")
    encoder.reads_jointly = True
    encoder.save(tmp_path / "encoder")
    assert main(["build", f"corpus.files=[{corpus}]", f"index={index}", f"encoder={tmp_path / 'encoder'}", *SMALL]) == 0
    given = [f"index={index}", f"encoder={tmp_path / 'encoder'}", f"fill.reader={tmp_path / 'encoder'}"]
    capsys.readouterr()
    status = main(["calibrate", f"questions=[{questions}]", *given, "write=true", "output=json"])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert read_confidence(tmp_path / "encoder") is not None
    assert json.loads(shown.out)["questions"] > 50
    assert main(["calibrate", f"questions=[{questions}]", *given, f"others=[{corpus}]"]) == 2
    assert "others=" in capsys.readouterr().err
    questions.write_text("".join(json.dumps(row | {"context": f"Here {row['context']}"}) + "\n" for row in rows))
    for command in (
        ["calibrate", f"questions=[{questions}]"],
        ["evaluate", "task=reading", f"reading.questions=[{questions}]", f"out={tmp_path / 'out'}"],
    ):
        assert main([*command, *given]) == 2
        assert "another index=" in capsys.readouterr().err


def test_half_of_the_questions_are_asked_among_other_documents(tmp_path: Path) -> None:
    questions, corpus, others = (tmp_path / name for name in ("rows.jsonl", "corpus.jsonl", "others.jsonl"))
    rows = [{"question": f"What is near {n}?", "answers": ["amber"], "context": f"{n} amber"} for n in range(5)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked, documents, _ = read_passages([str(questions)], SampleSettings())
    corpus.write_text("".join(json.dumps({"id": each.id, "text": each.text}) + "\n" for each in documents))
    others.write_text("".join(json.dumps({"text": f"other {n}"}) + "\n" for n in range(9)))
    tiny_encoder("bert").save(tmp_path / "encoder")
    alone = [each.id for each in documents]
    for files, expected in ((f"{corpus}", [5]), (f"{corpus},{others}", [14, 5])):
        index = tmp_path / f"index-{len(expected)}"
        given = [f"corpus.files=[{files}]", f"index={index}", f"encoder={tmp_path / 'encoder'}", *SMALL]
        assert main(["build", *given]) == 0
        with PhraseFiller.open(index, str(tmp_path / "encoder")) as filler:
            found = corpora_of(filler.index, asked)
        assert [len(ids) for ids in found] == expected
        assert found[-1] == alone
