"""Breakdowns of open tasks: bins counted by hand on eight examples, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.analyses.breakdown import breakdown_panels, check_breakdown, text_counts
from npm.evaluation.analyses.panels import Panel
from npm.evaluation.metrics import wilson_interval
from npm.evaluation.settings import Breakdown, ZeroShotEvaluation
from npm.evaluation.tasks.task import Example, Suite, Task, TaskData
from npm.evaluation.zero_shot.open_set import ExactMatch, OpenMethodResult, OpenTaskResult
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from tests.helpers.command_line import write_corpus

TASK = Task("capitals", Suite.open, TaskData("x.jsonl", columns={"subject": "s", "popularity": "p"}), "{q} <mask>")
ANSWERS = ["Paris", "Oslo", "Rome", "the Rhine", "Madrid", "France", "Don Quixote", "Norway"]
SUBJECTS = ["France", "Norway", "Italy", "Netherlands", "Madrid", "Paris", "Cervantes", "Oslo"]
TOKENS = ["1", "2", "2", "3", "4+", "1", "2", "2"]
RIGHT = [True, True, False, False, True, False, False, False]


def result() -> OpenTaskResult:
    examples = tuple(
        Example(str(n), "<mask>", answers=(answer, answer.upper()), subject=subject, popularity=float(n))
        for n, (answer, subject) in enumerate(zip(ANSWERS, SUBJECTS, strict=True))
    )
    method = OpenMethodResult("npm", (), np.array(RIGHT), ExactMatch(8, None, None), None, {})
    return OpenTaskResult(TASK, examples, tuple(TOKENS), None, (method,))


def panel(kind: Breakdown, index: PhraseIndex | None, encoder: Encoder, **given: list[str]) -> Panel:
    settings = ZeroShotEvaluation(breakdown=[kind], **given)  # type: ignore[arg-type]
    (found,) = breakdown_panels(result(), settings, index, encoder)
    return found


def bins(found: Panel) -> dict[str, tuple[int, float]]:
    (line,) = found.lines
    assert line.name == "npm"
    return {point.name: (point.count, point.share.mean) for point in line.points}


def test_bins_of_tokens_and_of_popularity(encoder: Encoder) -> None:
    found = panel(Breakdown.answer_tokens, None, encoder)
    assert bins(found) == {"1": (2, 0.5), "2": (4, 0.25), "3": (1, 0.0), "4+": (1, 1.0)}
    assert found.lines[0].points[1].share == wilson_interval(1, 4)
    quarters = bins(panel(Breakdown.popularity, None, encoder))
    assert quarters == {"0–1": (2, 1.0), "2–3": (2, 0.0), "4–5": (2, 0.5), "6–7": (2, 0.0)}


def test_bins_of_counts_in_the_corpus(encoder: Encoder, index_folder: Path) -> None:
    index = PhraseIndex.open(index_folder)
    # Rome and "the Rhine" do not stand there, Paris does twice.
    answers = bins(panel(Breakdown.answer_count, index, encoder))
    assert answers == {"0": (2, 0.0), "1": (5, pytest.approx(2 / 5)), "2–4": (1, 1.0)}
    # Italy does not; Paris stands there twice.
    subjects = bins(panel(Breakdown.subject_count, index, encoder))
    assert subjects == {"0": (1, 0.0), "1": (6, 0.5), "2–4": (1, 0.0)}


def test_bins_of_counts_in_the_training_text(encoder: Encoder, tmp_path: Path) -> None:
    texts = ["Oslo, oslo: OSLO! The Rhine's the  Rhine. Parisian.", "Don Quixote Don. Norway" + " Madrid" * 100]
    file = write_corpus(tmp_path / "trained.jsonl", [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    counts = text_counts((str(file),), ("Oslo", "the rhine", "Paris", "Don Quixote", "Madrid", "!"))
    assert counts.tolist() == [3, 2, 0, 1, 100, 0]
    found = bins(panel(Breakdown.trained_count, None, encoder, trained_on=[str(file)]))
    assert found == {"0": (3, pytest.approx(1 / 3)), "1": (2, 0.0), "2–4": (2, 0.5), "100+": (1, 1.0)}


def test_a_task_without_what_is_counted_has_no_panel(encoder: Encoder) -> None:
    plain = OpenTaskResult(TASK, (Example("0", "<mask>", answers=("Oslo",)),), ("2",), None, ())
    settings = ZeroShotEvaluation(breakdown=[Breakdown.popularity, Breakdown.subject_count])
    assert list(breakdown_panels(plain, settings, None, encoder)) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"breakdown": [Breakdown.answer_count]}, "answer_count needs index=DIR"),
        ({"breakdown": [Breakdown.trained_count]}, "trained_count needs trained_on"),
        ({"trained_on": ["x.jsonl"]}, "trained_on needs"),
    ],
)
def test_a_breakdown_without_what_it_needs_is_refused(given: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        check_breakdown(ZeroShotEvaluation(**given), [TASK])  # type: ignore[arg-type]


def test_training_text_that_is_not_there_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    settings = ZeroShotEvaluation(breakdown=[Breakdown.trained_count], trained_on=[str(tmp_path / "absent.jsonl")])
    with pytest.raises(CorpusError, match="does not exist"):
        check_breakdown(settings, [TASK])


def test_a_breakdown_of_closed_tasks_or_of_tasks_without_the_column_is_refused() -> None:
    closed = Task("closed", Suite.closed, TaskData("x.jsonl"), "{text} <mask>")
    with pytest.raises(SettingError, match="open suite"):
        check_breakdown(ZeroShotEvaluation(breakdown=[Breakdown.answer_tokens]), [closed])
    plain = Task("plain", Suite.open, TaskData("x.jsonl"), "{q} <mask>")
    with pytest.raises(SettingError, match="popularity needs"):
        check_breakdown(ZeroShotEvaluation(breakdown=[Breakdown.popularity]), [plain])
    check_breakdown(ZeroShotEvaluation(breakdown=[Breakdown.popularity]), [TASK])
