"""Two runs side by side, by hand and against plain references; their folders, replaced complete or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.artifact import check_folder, manifest_bytes, read_manifest
from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.compare import (
    Comparison,
    average_of,
    compare_results,
    comparison_table,
    mcnemar_p_value,
    read_answers,
)
from npm.evaluation.metrics import Interval
from npm.evaluation.results import EVALUATION_KIND, Result
from tests.helpers.command_line import all_bytes

Lines = Iterable[Mapping[str, Any]]


def lines(
    rights: Iterable[int],
    *,
    task: str = "sst2",
    method: str = "npm",
    first: int = 0,
    gold: object = "great",
    prompt: str = "It was <mask>.",
) -> list[dict[str, Any]]:
    """Predictions with ids from `first` on."""
    return [
        {"task": task, "method": method, "id": example, "text": f"{example} {prompt}", "gold": gold, "correct": right}
        for example, right in ((str(first + number), bool(right)) for number, right in enumerate(rights))
    ]


def results(folder: Path, predictions: Lines) -> Path:
    Result({}, list(predictions), {}, []).write(folder)
    return folder


def test_differences_of_five_pairs_are_those_counted_by_hand(tmp_path: Path) -> None:
    a = results(tmp_path / "a", lines([1, 1, 0, 0, 0]))
    b = results(tmp_path / "b", lines([1, 0, 1, 1, 1]))
    (found,) = compare_results(a, b).comparisons
    assert (found.task, found.methods, found.count) == ("sst2", "npm", 5)
    assert (found.share_a, found.share_b, found.difference.mean) == pytest.approx((0.4, 0.8, -0.4))
    assert (found.only_a, found.only_b) == (1, 3)
    assert found.p_value == pytest.approx(2 * (comb(4, 0) + comb(4, 1)) / 2**4)


def test_the_mcnemar_test_equals_the_sum_of_the_binomial_tails() -> None:
    for only_a in range(9):
        for only_b in range(9):
            total = only_a + only_b
            far = abs(only_a - total / 2)
            tails = [comb(total, x) / 2**total for x in range(total + 1) if abs(x - total / 2) >= far]
            assert mcnemar_p_value(only_a, only_b) == pytest.approx(sum(tails))


def test_the_interval_of_a_difference_is_that_of_drawing_pairs_of_examples(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rights_a, rights_b = rng.random(37) < 0.5, rng.random(37) < 0.7
    a, b = results(tmp_path / "a", lines(rights_a)), results(tmp_path / "b", lines(rights_b))
    (found,) = compare_results(a, b, seed=2, resamples=400).comparisons
    draws = np.random.default_rng(2).integers(0, 37, size=(400, 37))
    differences = [float(np.mean(rights_a[draw]) - np.mean(rights_b[draw])) for draw in draws]
    assert (found.difference.low, found.difference.high) == pytest.approx(
        tuple(np.quantile(differences, [0.025, 0.975]))
    )


def comparison(task: str, count: int, only_a: int, only_b: int) -> Comparison:
    difference = (only_a - only_b) / count
    return Comparison(task, "npm", count, 0.5, 0.5 - difference, Interval(difference, 0, 0), only_a, only_b)


def test_the_interval_of_an_average_is_that_of_drawing_within_each_task() -> None:
    tasks = [comparison("sst2", 80, 20, 30), comparison("agn", 200, 10, 50)]
    found = average_of(tasks, np.random.default_rng(0), resamples=20_000).difference
    rng = np.random.default_rng(1)
    means = np.zeros(5_000)
    for each in tasks:
        differences = np.repeat([1, -1, 0], [each.only_a, each.only_b, each.count - each.only_a - each.only_b])
        means += rng.choice(differences, size=(5_000, each.count)).mean(1) / 2
    assert found.mean == pytest.approx(-(10 / 80 + 40 / 200) / 2)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.006)


def test_pairs_are_found_by_id_whatever_their_order_and_the_rest_is_noted(tmp_path: Path) -> None:
    a = results(tmp_path / "a", lines([1, 0, 1, 0]))
    b = results(tmp_path / "b", reversed(lines([1, 1, 1], first=2)))
    found = compare_results(a, b)
    assert [(each.count, each.share_a, each.share_b) for each in found.comparisons] == [(2, 0.5, 1.0)]
    assert found.notes == ("sst2: 2 examples are in both, of 4 in A and 3 in B.",)
    subset = results(tmp_path / "c", lines([1, 0]))
    for one, other in ((subset, a), (a, subset)):
        assert len(compare_results(one, other).notes) == 1


def test_examples_that_were_asked_with_other_prompts_are_noted_once_for_all_methods(tmp_path: Path) -> None:
    other = lines([1, 1], first=2, prompt="All in all it was <mask>.")
    a = results(tmp_path / "a", [*lines([1, 0, 1, 0]), *lines([0] * 4, method="mlm"), *lines([1], task="agn")])
    b = results(tmp_path / "b", [*lines([1, 1]), *other, *lines([1], task="agn")])
    assert compare_results(a, b).notes == ("sst2: A and B asked with different prompts in 2 of 4 examples.",)
    both = [*lines([1, 1]), *other, *({**line, "method": "mlm"} for line in [*lines([1, 1]), *other])]
    assert compare_results(a, results(tmp_path / "c", both)).notes == compare_results(a, b).notes
    assert compare_results(a, a).notes == ()


def test_all_shared_tasks_and_methods_are_compared_and_averaged_by_method(tmp_path: Path) -> None:
    a = results(
        tmp_path / "a",
        [
            *lines([1, 0]),
            *lines([1, 1], method="mlm"),
            *lines([0, 0, 0, 0], task="agn"),
            *lines([1], task="rte", method="only-here"),
        ],
    )
    b = results(tmp_path / "b", [*lines([1, 1, 1, 0], task="agn"), *lines([1, 1]), *lines([0, 1], method="mlm")])
    found = compare_results(a, b)
    assert [(each.task, each.methods) for each in found.comparisons] == [
        ("sst2", "npm"), ("agn", "npm"), ("sst2", "mlm"), ("average of 2", "npm")
    ]  # fmt: skip
    average = found.comparisons[-1]
    assert (average.share_a, average.share_b, average.difference.mean) == pytest.approx((0.25, 0.875, -0.625))


def test_the_table_shows_points_with_their_sign(tmp_path: Path) -> None:
    a = results(tmp_path / "a", [*lines([1, 1]), *lines([1, 1], task="agn")])
    b = results(tmp_path / "b", [*lines([0, 0]), *lines([1, 1], task="agn")])
    table = comparison_table(compare_results(a, b))
    header, rows = table.header, table.rows
    assert header[5] == "A − B [95 %]"
    assert rows[0] == ["sst2", "npm", "2", "100.0", "0.0", "+100.0 [+100.0, +100.0]", "2", "0", "0.5"]
    assert rows[2][:2] == ["average of 2", "npm"] and rows[2][5].startswith("+50.0 [")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (lines([1], task="agn"), "no task and method in common"),
        ([*lines([1], method="mlm"), *lines([1], method="random")], "no task and method in common"),
        (lines([1], first=9), "no example of sst2"),
        (lines([1], gold="terrible"), "of different data"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path, other: Lines, problem: str) -> None:
    a, b = results(tmp_path / "a", lines([1, 0])), results(tmp_path / "b", other)
    with pytest.raises(SettingError, match=problem):
        compare_results(a, b)


def test_a_folder_without_results_and_a_changed_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        read_answers(tmp_path / "nothing")
    run = results(tmp_path / "a", lines([1, 0]))
    file = run / "predictions.jsonl"
    file.write_text(file.read_text().replace("true", "null"))
    with pytest.raises(ArtifactError):
        read_answers(run)
    without_gold = [{key: value for key, value in line.items() if key != "gold"} for line in lines([1])]
    with pytest.raises(ArtifactError, match="without task"):
        read_answers(results(tmp_path / "b", without_gold))


def test_masked_tokens_are_paired_by_document_and_whole_documents_drawn(tmp_path: Path) -> None:
    def of_documents(name: str, counts: Iterable[tuple[int, int]]) -> Path:
        """(right answers, predictions) of each document."""
        own = [
            {"task": "masked_tokens", "method": name, "id": str(number), "text": "d", "gold": "g", "predictions": count}
            | {"correct": right}
            for number, (right, count) in enumerate(counts)
        ]
        return results(tmp_path / name, own)

    a, b = of_documents("a", [(1, 10), (2, 4), (0, 6)]), of_documents("b", [(3, 10), (2, 4), (1, 6)])
    compared = compare_results(a, b, resamples=500)
    (found,) = compared.comparisons
    assert (found.count, found.share_a, found.share_b) == (20, 3 / 20, 6 / 20)
    rng, gains, counts = np.random.default_rng(0), [-2, 0, -1], [10, 4, 6]
    drawn = rng.integers(0, 3, size=(500, 3)).tolist()
    means = [sum(gains[each] for each in row) / sum(counts[each] for each in row) for row in drawn]
    assert found.difference.mean == pytest.approx(-3 / 20)
    assert found.difference.low == pytest.approx(float(np.quantile(means, 0.025)))
    assert found.difference.high == pytest.approx(float(np.quantile(means, 0.975)))
    (row,) = comparison_table(compared).rows
    assert row[:3] == ["masked_tokens", "a / b", "20"] and row[-3:] == ["", "", ""]
    json.dumps(asdict(compared), allow_nan=False)


def write_number(folder: Path, number: float) -> None:
    Result({}, [{"number": number}], {"number": number}, []).write(folder)


def test_results_replace_those_of_an_earlier_evaluation_and_nothing_else(tmp_path: Path) -> None:
    write_number(tmp_path / "out", 1)
    write_number(tmp_path / "out", 2)
    with pytest.raises(ValueError, match="Out of range float"):
        write_number(tmp_path / "out", float("nan"))
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes()) == {"number": 2}
    (tmp_path / "notes").mkdir()
    write_number(tmp_path / "notes", 1)  # an empty folder may be filled
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="not a folder for results"):
        write_number(tmp_path / "texts", 1)
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["mine.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out", "texts"]


def test_results_that_were_half_replaced_are_known_as_damaged_and_replaced_whole(tmp_path: Path) -> None:
    write_number(tmp_path / "out", 1)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == "metrics.json":
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        write_number(tmp_path / "out", 2)
    with pytest.raises(ArtifactError, match="is damaged"):
        check_folder(tmp_path / "out", kind=EVALUATION_KIND)
    write_number(tmp_path / "out", 2)
    write_number(tmp_path / "fresh", 2)
    (tmp_path / "fresh" / "notes.txt").write_text("mine")
    assert all_bytes(tmp_path / "out") == all_bytes(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["metrics.json", "results.md"])
def test_a_file_of_that_name_that_no_evaluation_wrote_is_never_replaced(tmp_path: Path, name: str) -> None:
    Result({}, [], {}, []).write(tmp_path / "out")
    if name == "metrics.json":
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).mkdir()
    else:
        (tmp_path / "out" / name).write_text("mine")
        Result({}, [], {}, []).write(tmp_path / "out")  # has no results.md
    before = all_bytes(tmp_path)
    with pytest.raises(ArtifactError, match="not a folder for results"):
        Result({}, [], {}, [], report="a table").write(tmp_path / "out")
    assert all_bytes(tmp_path) == before


def test_a_forged_manifest_of_results_names_nothing_that_is_removed(tmp_path: Path) -> None:
    Result({}, [], {}, [], report="a table").write(tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    held = read_manifest(tmp_path / "out", kind="evaluation")
    files = {name: asdict(record) for name, record in held.files.items()}
    files["mine.txt"] = files["results.md"]
    (tmp_path / "out" / "manifest.json").write_bytes(manifest_bytes("evaluation", {}, files, {}))
    Result({}, [], {}, []).write(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "metrics.json",
        "mine.txt",
        "predictions.jsonl",
    ]


def test_two_methods_of_one_run_can_be_compared(tmp_path: Path) -> None:
    run = results(tmp_path / "a", [*lines([1, 1, 0], method="npm"), *lines([0, 0, 0], method="mlm")])
    (found,) = compare_results(run, run, methods=("mlm", "npm")).comparisons
    assert (found.methods, found.only_a, found.only_b) == ("mlm / npm", 0, 2)
