"""Result tables: cells, averages and their intervals by hand, columns that fit a terminal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import terminal_table
from npm.evaluation.tasks.task import TaskScores
from npm.evaluation.zero_shot.report import (
    SuiteTable,
    average_interval,
    fitting_rows,
    published_rows,
    suite_markdown,
    suite_rows,
)

SST2 = TaskScores(
    "sst2", 1821, {"npm": Interval(0.631, 0.602, 0.66), "mlm": Interval(0.6, 0.57, 0.63)}, {"npm": 87.2, "mlm": 84.5}
)
AGN = TaskScores("agn", 3000, {"npm": Interval(0.5, 0.4, 0.62)}, {"npm": 74.5})


def test_a_cell_holds_per_cent_interval_and_number_of_examples() -> None:
    header, rows = suite_rows(SuiteTable("closed", (SST2,)))
    assert header == ["task", "npm", "mlm", "paper (354 M)"]
    assert rows == [
        ["sst2", "63.1\n[60.2, 66.0]\nn=1821", "60.0\n[57.0, 63.0]\nn=1821", "npm 87.2,\nmlm 84.5"]
    ]  # one task has no average


def test_the_average_goes_over_all_tasks_and_only_for_methods_that_answered_all() -> None:
    _, rows = suite_rows(SuiteTable("closed", (SST2, AGN)))
    # npm: mean (63.1 + 50) / 2; below √(2.9² + 10²) / 2 = 5.206, above √(2.9² + 12²) / 2 = 6.173
    assert rows[1] == ["agn", "50.0\n[40.0, 62.0]\nn=3000", "–", "npm 74.5"]
    assert rows[2] == ["average of 2", "56.5\n[51.3, 62.7]", "–", "npm 80.8"]


def test_further_published_numbers_stand_in_a_table_of_their_own() -> None:
    rte = replace(AGN, task="rte", paper={"npm": 61.7, "gpt-3": 56.0, "mlm-earlier": 51.3})
    table = SuiteTable("Accuracy", (replace(AGN, paper={"npm": 74.5, "gpt-3": 75.4}), rte))
    assert suite_rows(table)[1][1][-1] == "npm 61.7"
    assert published_rows(table) == (
        ["system", "agn", "rte", "average"],
        [
            ["NPM, 354 M", "74.5", "61.7", "68.1"],
            ["RoBERTa-large (Gao et al. 2021)", "–", "51.3", "–"],
            ["GPT-3, 500 times as large", "75.4", "56.0", "65.7"],
        ],
    )
    assert "| GPT-3, 500 times as large | 75.4 | 56.0 | 65.7 |" in suite_markdown([table])
    assert "as published" not in suite_markdown([SuiteTable("Accuracy", (SST2,))])


def test_tables_without_numbers_of_the_paper_have_no_column_for_them() -> None:
    own = TaskScores("mine", 40, {"npm": Interval(0.5, 0.4, 0.6)})
    assert suite_rows(SuiteTable("mine", (own,)))[0] == ["task", "npm"]
    assert suite_rows(SuiteTable("both", (own, SST2)))[1][0] == ["mine", "50.0\n[40.0, 60.0]\nn=40", "–", "–"]


def test_the_interval_of_an_average_is_near_the_bootstrap_of_independent_tasks() -> None:
    rng = np.random.default_rng(0)
    tasks = [(rng.random(size) < share).astype(float) for size, share in ((300, 0.6), (900, 0.8), (150, 0.5))]
    found = average_interval([bootstrap_interval(task, np.random.default_rng(1)) for task in tasks])
    means = np.mean([rng.binomial(len(task), task.mean(), size=20_000) / len(task) for task in tasks], axis=0)
    assert found.mean == pytest.approx(np.mean([task.mean() for task in tasks]))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.003)


def test_markdown_has_one_line_a_task_and_says_whose_numbers_stand_there() -> None:
    text = suite_markdown([SuiteTable("Accuracy", (SST2,))], ["npm answers 'great' to every example."])
    assert "| sst2 | 63.1 [60.2, 66.0] n=1821 | 60.0 [57.0, 63.0] n=1821 | npm 87.2, mlm 84.5 |" in text
    assert text.startswith("## Accuracy\n\n| task | npm | mlm | paper (354 M) |\n")
    assert "354 M parameters" in text and text.endswith("- npm answers 'great' to every example.\n")
    without = suite_markdown([SuiteTable("Accuracy", (TaskScores("mine", 4, {"npm": Interval(1, 1, 1)}),))])
    assert "354" not in without and "independent" not in without
    assert "independent" in suite_markdown([SuiteTable("Accuracy", (SST2, AGN))])


@pytest.mark.parametrize("width", [22, 40, 77, 80, 81, 82, 83, 84, 120, 200])
def test_columns_are_spread_over_tables_that_fit_and_none_is_lost_or_shortened(width: int) -> None:
    from rich.console import Console

    names = ["npm", "npm-single", "mlm", "mlm-pmi", "mlm-fuzzy", "mlm-fuzzy-pmi", "mlm-knn", "majority", "random"]
    interval = Interval(0.631, 0.602, 0.66)
    table = SuiteTable("closed", (TaskScores("sst2", 1821, dict.fromkeys(names, interval), {"npm": 87.2}),))
    groups = fitting_rows(table, width)
    assert [name for header, _ in groups for name in header[1:]] == [*names, "paper (354 M)"]
    assert {header[0] for header, _ in groups} == {"task"}
    assert len(groups) == 1 if width == 200 else len(groups) > 1
    console = Console(width=width)
    with console.capture() as printed:
        for header, rows in groups:
            console.print(terminal_table(header, rows))
    assert "…" not in printed.get()
    assert printed.get().count("[60.2, 66.0]") == len(names) and "paper (354 M)" in printed.get()


def test_a_terminal_that_is_too_narrow_for_any_column_still_gets_one_a_table() -> None:
    groups = fitting_rows(SuiteTable("closed", (SST2,)), 5)
    assert [list(header) for header, _ in groups] == [["task", "npm"], ["task", "mlm"], ["task", "paper (354 M)"]]
