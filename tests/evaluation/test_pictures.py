"""Reliability and confusion: the numbers by hand and against plain references, and what cannot be drawn."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.pictures import (
    Answered,
    MethodAnswers,
    calibration_error,
    confusion,
    confusion_picture,
    equal_mass_bins,
    read_answers,
    reliability,
    reliability_picture,
)
from npm.evaluation.results import write_results

pytest.importorskip("matplotlib")
LABELS = ("world", "sports", "business")


def closed_line(number: int, gold: str, prediction: str, scores: list[float], **changes: Any) -> dict[str, Any]:
    line = {"task": "agn", "method": "npm", "id": str(number), "text": "<mask>", "gold": gold, "prediction": prediction}
    return {**line, "correct": gold == prediction, "scores": scores, "evidence": [], **changes}


def open_line(number: int, correct: bool, *scores: float, **changes: Any) -> dict[str, Any]:
    phrases = [{"phrase": "Oslo", "score": score, "occurrence_count": 1} for score in scores]
    line = {"task": "trex", "method": "npm", "id": str(number), "text": "<mask>", "gold": ["Oslo"], "correct": correct}
    return {**line, "prediction": "Oslo" if scores else None, "phrases": phrases, **changes}


def results(folder: Path, *lines: dict[str, Any]) -> Path:
    tasks = {"agn": {"suite": "closed", "labels": list(LABELS)}, "trex": {"suite": "open"}}
    write_results(folder, record={"task": "zero_shot"}, predictions=lines, metrics={"tasks": tasks})
    return folder


def answers(scores: list[float | None], right: list[bool]) -> MethodAnswers:
    found = [Answered(hit, score, None) for score, hit in zip(scores, right, strict=True)]
    return MethodAnswers("run: demo, npm", (), found)


def plain_bins(scores: list[float], most: int) -> list[int]:
    ranks = [
        Fraction(2 * sum(other < score for other in scores) + scores.count(score) - 1, 2)  # the middle of equal ones
        for score in scores
    ]
    return [int(rank * most / len(scores)) for rank in ranks]


def plain_ece(scores: list[float], right: list[bool], bins: list[int]) -> float:
    total = 0.0
    for number in set(bins):
        own = [place for place, each in enumerate(bins) if each == number]
        share = sum(right[place] for place in own) / len(own)
        mean = sum(scores[place] for place in own) / len(own)
        total += len(own) / len(scores) * abs(share - mean)
    return total


def test_calibration_error_by_hand() -> None:
    found = reliability(answers([0.1, 0.2, 0.3, 0.4], [False, True, False, True]), 2)
    assert [(each.lowest, each.highest, each.count) for each in found.bins] == [(0.1, 0.2, 2), (0.3, 0.4, 2)]
    assert [each.right.mean for each in found.bins] == [0.5, 0.5]
    assert [each.mean_score for each in found.bins] == pytest.approx([0.15, 0.35])
    assert found.ece == pytest.approx((0.35 + 0.15) / 2)
    assert (found.overall.count, found.overall.right) == (4, wilson_interval(2, 4))
    assert found.overall.mean_score == pytest.approx(0.25)
    assert found.histogram == ((0, 0), (0, 1), (1, 0), (0, 1), (1, 0), *[(0, 0)] * 5)


@pytest.mark.parametrize("distinct", [2, 5, 1000], ids="{} values".format)
@pytest.mark.parametrize("count", [1, 3, 10, 11, 97])
def test_bins_and_error_equal_plain_references_whatever_is_tied(
    distinct: int, count: int, rng: np.random.Generator
) -> None:
    scores = rng.integers(0, distinct, size=count) / distinct
    right = rng.random(count) < scores
    bins = equal_mass_bins(scores, 10)
    assert bins.tolist() == plain_bins(scores.tolist(), 10)
    expected = plain_ece(scores.tolist(), right.tolist(), bins.tolist())
    assert calibration_error(scores, right, bins) == pytest.approx(expected, abs=1e-12)
    order = rng.permutation(count)
    assert equal_mass_bins(scores[order], 10).tolist() == bins[order].tolist()
    found = reliability(answers(scores.tolist(), right.tolist()))
    assert found.ece == pytest.approx(expected, abs=1e-12)
    assert found.overall.count == count and sum(map(sum, found.histogram)) == count


def test_different_scores_fill_bins_of_equal_mass(rng: np.random.Generator) -> None:
    for count in (10, 57, 1000):
        sizes = np.bincount(equal_mass_bins(rng.random(count), 10), minlength=10)
        assert sizes.max() - sizes.min() <= 1


def test_fewer_answers_than_bins_have_a_bin_each() -> None:
    found = reliability(answers([0.9, 0.1, 0.5], [True, False, True]))
    assert [(each.count, each.mean_score) for each in found.bins] == [(1, 0.1), (1, 0.5), (1, 0.9)]
    assert found.ece == pytest.approx((0.1 + 0.5 + 0.1) / 3)


def test_all_right_all_wrong_and_one_score() -> None:
    scores: list[float | None] = [0.2, 0.4, 0.6, 0.8]
    assert reliability(answers(scores, [True] * 4)).ece == pytest.approx(0.5)
    assert reliability(answers(scores, [False] * 4)).ece == pytest.approx(0.5)
    certain = reliability(answers([1.0] * 4, [True] * 4))
    assert (certain.ece, certain.calibrated_ece, len(certain.bins)) == (0, 0, 1)
    assert certain.histogram[-1] == (4, 0)
    assert certain.bins[0].right.low < 1 == certain.bins[0].right.high


def test_the_error_of_a_calibrated_score_is_what_chance_does() -> None:
    """One bin of n answers with score ½: the mean of |X/n − ½|, X ~ Binomial(n, ½), which is 3/16 for n = 4."""
    found = reliability(answers([0.5] * 4, [True] * 4))
    assert found.calibrated_ece == pytest.approx(3 / 16, abs=0.02)
    assert found.calibrated_ece == reliability(answers([0.5] * 4, [False] * 4)).calibrated_ece


def test_wilson_bounds_solve_their_equation() -> None:
    """(share − p)² = z² p (1 − p) / n at both ends."""
    for count in (1, 2, 7, 40):
        for hits in range(count + 1):
            found = wilson_interval(hits, count)
            assert 0 <= found.low <= found.mean <= found.high <= 1
            for bound in (found.low, found.high):
                left, right = (hits / count - bound) ** 2, 1.959963984540054**2 * bound * (1 - bound) / count
                assert left == pytest.approx(right, abs=1e-12)
    assert wilson_interval(0, 5).low == 0 and wilson_interval(5, 5).high == 1
    assert wilson_interval(0, 5).high == pytest.approx(0.4345, abs=1e-4)


def test_reliability_is_of_the_best_phrase_and_of_the_chosen_label(tmp_path: Path) -> None:
    folder = results(
        tmp_path / "run",
        closed_line(0, "world", "sports", [0.1, 0.6, 0.3]),
        closed_line(1, "sports", "sports", [0.1, 0.9, 0.0], method="mlm"),
        open_line(0, True, 0.5, 0.25),
        open_line(1, False),
    )
    found = read_answers([folder])
    assert [(each.name, each.labels) for each in found] == [
        ("run: agn, npm", LABELS),
        ("run: agn, mlm", LABELS),
        ("run: trex, npm", ()),
    ]
    assert [each.answers for each in found] == [
        [Answered(False, 0.6, ("world", "sports"))],
        [Answered(True, 0.9, ("sports", "sports"))],
        [Answered(True, 0.5, None), Answered(False, None, None)],
    ]
    assert [each.name for each in read_answers([folder], tasks=["agn"], methods=["npm"])] == ["run: agn, npm"]
    picture = reliability_picture(found)
    assert picture.notes == ("run: trex, npm: 1 of 2 examples have no phrase",)
    assert picture.tables[0].title.startswith("run: agn, npm: ECE 60.0 % (")
    assert picture.tables[0].rows == (
        ("0.600 – 0.600", "1", "60.0", "0.0 [0.0, 79.3]"),
        ("all", "1", "60.0", "0.0 [0.0, 79.3]"),
    )
    json.dumps(picture.record, allow_nan=False)


def test_task_demo_is_right_where_its_first_phrase_is(tmp_path: Path) -> None:
    lines = [{"id": str(rank), "hit_rank": rank, "phrases": [{"phrase": "a", "score": 0.5}]} for rank in (1, 2, None)]
    write_results(tmp_path / "demo", record={"task": "demo"}, predictions=lines, metrics={})
    (found,) = read_answers([tmp_path / "demo"])
    assert found.name == "demo: demo, npm"
    assert [each.right for each in found.answers] == [True, False, False]


def test_confusion_by_hand(tmp_path: Path) -> None:
    pairs = [("world", "world"), ("world", "sports"), ("world", "sports"), ("sports", "sports"), ("world", "world")]
    lines = (closed_line(number, *pair, [0.5, 0.5, 0.0]) for number, pair in enumerate(pairs))
    (own,) = read_answers([results(tmp_path / "run", *lines)])
    found = confusion(own)
    assert found.counts.tolist() == [[2, 2, 0], [0, 1, 0], [0, 0, 0]]
    assert found.accuracies == (wilson_interval(2, 4), wilson_interval(1, 1), None)
    assert found.accuracy == wilson_interval(3, 5)
    picture = confusion_picture([own])
    assert picture.tables[0].rows == (
        ("world", "4", "2", "50.0 [15.0, 85.0]", "sports (2)"),
        ("sports", "1", "3", "100.0 [20.7, 100.0]", "–"),
        ("business", "0", "0", "–", "–"),
        ("all", "5", "5", "60.0 [23.1, 88.2]", ""),
    )
    assert json.loads(json.dumps(picture.record))["matrices"][0]["counts"] == found.counts.tolist()


def test_confusion_equals_a_plain_count(rng: np.random.Generator) -> None:
    names = tuple("abcdefg")
    drawn = rng.integers(0, len(names), size=(200, 2)).tolist()
    own = [Answered(gold == chosen, 0.5, (names[gold], names[chosen])) for gold, chosen in drawn]
    found = confusion(MethodAnswers("x", names, own))
    assert found.counts.tolist() == [
        [drawn.count([gold, chosen]) for chosen in range(len(names))] for gold in range(len(names))
    ]


def test_a_single_label_has_a_matrix_too() -> None:
    own = [Answered(True, 1.0, ("only", "only"))] * 3
    found = confusion(MethodAnswers("x", ("only",), own))
    assert found.counts.tolist() == [[3]]
    assert confusion_picture([MethodAnswers("x", ("only",), own)]).tables[0].rows[0][-1] == "–"


def test_what_has_no_labels_has_no_confusion(tmp_path: Path) -> None:
    folder = results(tmp_path / "run", open_line(0, True, 0.5))
    with pytest.raises(ArtifactError, match="run: trex, npm"):
        confusion_picture(read_answers([folder]))
    other = results(tmp_path / "other", closed_line(0, "world", "politics", [1.0, 0.0, 0.0]))
    with pytest.raises(ArtifactError, match="politics"):
        confusion_picture(read_answers([other]))


@pytest.mark.parametrize(
    ("line", "problem", "got"),
    [
        (open_line(1, True, 3.5), "no share of one", "3.5 by npm"),
        (open_line(1, True, -0.1), "no share of one", "-0.1 by npm"),
        (closed_line(1, "world", "world", []), "no share of one", "-1 by npm"),
        ({"task": "article_questions", "method": "dense, hit@1", "correct": True, "gold": "Oslo"}, "hold no", "scores"),
        ({"set": "STS-B", "cosine": 0.5}, "hold no answers with scores", "without right or wrong"),
        (open_line(1, True, 0.5, phrases=[{"phrase": "Oslo"}]), "must be", "nothing"),
        ({**open_line(1, True, 0.5), "correct": "yes"}, "must be", "'yes'"),
    ],
    ids=["too large", "negative", "no scores of labels", "article questions", "sts", "phrase", "correct"],
)
def test_lines_that_cannot_be_drawn_are_named(line: dict[str, Any], problem: str, got: str, tmp_path: Path) -> None:
    folder = results(tmp_path / "run", open_line(0, True, 0.5), line)
    with pytest.raises(ArtifactError, match=problem) as refusal:
        read_answers([folder])
    assert "predictions.jsonl, line 2" in str(refusal.value) and got in str(refusal.value)


def test_damaged_and_empty_results_and_unknown_names_are_refused(tmp_path: Path) -> None:
    folder = results(tmp_path / "run", open_line(0, False))
    with pytest.raises(SettingError, match=r"agm(.|\n)*trex(.|\n)*tasks"):
        read_answers([folder], tasks=["agm"])
    with pytest.raises(SettingError, match="no folder holds answers of mlm"):
        read_answers([folder], methods=["mlm"])
    with pytest.raises(ArtifactError, match="no answer of run: trex, npm has a score"):
        reliability_picture(read_answers([folder]))
    with pytest.raises(ArtifactError, match="hold no answer"):
        read_answers([results(tmp_path / "empty")])
    (folder / "predictions.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match="is damaged"):
        read_answers([folder])
    with pytest.raises(ArtifactError):
        read_answers([tmp_path / "nowhere"])
