"""Tables as text: marks, widths, intervals; task `demo`, whose hits are counted by hand."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console, RenderableType

from npm.core.display import Table, markdown_table, report_text
from npm.core.types import Occurrence, silent
from npm.evaluation.data import read_task
from npm.evaluation.evaluate import evaluate_suite
from npm.evaluation.metrics import exact_match
from npm.evaluation.report import SampleRow, sample_card
from npm.evaluation.results import Result
from npm.evaluation.settings import ZeroShotEvaluation
from npm.evaluation.tasks import DEMO, Split, load_task
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval

SENTENCE = "Its largest city [bold] is Łódź, which lies :smile: in the middle of the country."
PLACE = Occurrence("poland", "Poland", 127, 131, SENTENCE, 100, 100 + len(SENTENCE), 27, 31)
ROWS: list[SampleRow] = [(True, 0.5, "Łódź", PLACE), (False, 0.25, "country", None)]
SAMPLE = sample_card("A city in Poland is <mask>.", "Łódź", ROWS)


def printed(renderable: RenderableType, *, columns: int = 80, **console: Any) -> str:
    file = StringIO()
    Console(file=file, width=columns, **console).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_sample_shows_text_scores_and_sentences_with_brackets_and_colons_as_they_are(columns: int) -> None:
    text = printed(SAMPLE, columns=columns)
    assert "A city in Poland is <mask>." in text
    assert "✓ 0.500  Łódź" in text
    assert "0.250  country" in text
    assert "[bold] is «Łódź»" in text and ":smile:" in text and "Poland (poland)" in text
    assert "(answer:" not in text and "\x1b" not in text  # no colors where there is no terminal
    assert max(len(line) for line in text.splitlines()) <= columns


def test_a_sample_without_a_right_phrase_says_what_would_be_right() -> None:
    text = printed(sample_card("text", "Kraków", ROWS[1:]))
    assert "(answer: Kraków)" in text and "✓" not in text
    assert "no phrase found" in printed(sample_card("text", "Kraków", []))


def test_a_terminal_gets_the_phrase_in_bold() -> None:
    shown = printed(SAMPLE, columns=100, force_terminal=True, color_system="standard")
    assert "\x1b[1m«Łódź»\x1b[0m" in shown


def test_numbers_are_the_same_in_markdown_and_in_the_terminal() -> None:
    header, rows = ["", "n", "hit@1, % [95 %]"], [["encoder-mini, hybrid", "161", "62.5 [55.0, 70.0]"]]
    assert markdown_table(header, rows).splitlines() == [
        "|  | n | hit@1, % [95 %] |",
        "|---|---:|---:|",
        "| encoder-mini, hybrid | 161 | 62.5 [55.0, 70.0] |",
    ]
    shown = report_text([Table("", header, rows)]).splitlines()
    assert any(line.split() == " ".join(rows[0]).split() for line in shown)


def evaluated(index: Path, encoder: Encoder, folder: Path, questions: Path, show: int = 0) -> Result:
    encoder.save(folder / "encoder")
    (folder / "demo.yaml").write_text((DEMO / "demo.yaml").read_text("utf-8"), "utf-8")
    (folder / "questions.json").write_bytes(questions.read_bytes())
    fill = FillSettings(retrieval=Retrieval.bm25, bm25_blocks=1, overlaps=Overlaps.keep, k=20)
    places = {"index": str(index), "encoder": str(folder / "encoder"), "device": "cpu"}
    settings = ZeroShotEvaluation(task=[str(folder / "demo.yaml")], fill=fill, resamples=50, **places)
    return evaluate_suite(settings, [load_task(folder / "demo.yaml", folder=DEMO)], show=show, progress=silent)


def test_rates_are_the_shares_of_questions_whose_first_phrases_are_right(
    index_folder: Path, encoder: Encoder, questions_file: Path, tmp_path: Path
) -> None:
    result = evaluated(index_folder, encoder, tmp_path, questions_file, show=3)
    first = among = 0
    for line in result.lines:
        hits = [exact_match(phrase["phrase"], line["gold"]) for phrase in line["phrases"]]
        first, among = first + (hits[:1] == [True]), among + any(hits)
        assert line["correct"] == (hits[:1] == [True])
    scores = result.metrics()["tasks"]["demo"]["methods"]["npm"]["all"]
    assert (scores["micro"]["mean"], scores["among"]["mean"]) == (first / 5, among / 5)
    assert among >= 3  # one block has few phrases, so even a random encoder names the right one among 20
    assert [line["group"] for line in result.lines] == ["capital", "capital", "river", "book", "moon"]
    assert len(result.samples) == 3
    assert json.loads(json.dumps(result.metrics())) == result.metrics()


@pytest.mark.parametrize("name", ["demo.yaml", "other-questions.yaml", "noisy.yaml"])
def test_the_shipped_questions_can_be_read(name: str) -> None:
    task = load_task(DEMO / name, folder=DEMO)
    counts = {"other-questions.yaml": 60}
    assert len(read_task(task, split="test")) == counts.get(name, 161)
    if name != "other-questions.yaml":
        assert len(read_task(task, split="dev")) == 161


def test_the_plain_questions_are_of_the_dev_half_and_rules_turn_all_of_them() -> None:
    plain, demo = (load_task(DEMO / name, folder=DEMO) for name in ("plain-questions.yaml", "demo.yaml"))
    answers = [each.answers for each in read_task(demo, split="dev")]
    read = read_task(plain, split="dev")
    assert len(read) == 60
    assert all(each.answers in answers and each.text.count("<mask>") == 1 for each in read)


def test_the_other_questions_repeat_none() -> None:
    demo, others = (load_task(DEMO / name, folder=DEMO) for name in ("demo.yaml", "other-questions.yaml"))
    shipped = [each for split in get_args(Split) for each in read_task(demo, split=split)]
    assert len({each.text for each in read_task(others)} - {each.text for each in shipped}) == 60
    assert {each.group for each in read_task(others)} <= {each.group for each in shipped}
