"""Conditions that each example fills for itself: which documents may answer it, and what cannot be filled in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError
from npm.core.types import silent
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.evaluation.methods.baselines import oracle_blocks, random_span
from npm.evaluation.methods.nonparametric import phrase_answers
from npm.evaluation.methods.registry import NO_DOCUMENT
from npm.evaluation.prompts import filled_conditions
from npm.evaluation.table import ResultTable, evaluate_task, task_metrics, task_notes, task_records
from npm.evaluation.tasks import Example, Task, TaskData, load_task
from npm.indexing.build import build_index
from npm.indexing.phrase_index import NoDocumentError, PhraseIndex
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings
from studies.decoder import Decoder
from studies.generative import DecoderWriter, PhraseWriter
from tests.evaluation.task_samples import OPEN_SMALL, SHIPPED, file_refused, read_examples, task_written, written
from tests.evaluation.test_evaluate import told
from tests.helpers.language_models import tiny_decoder

TEXTS = {2019: "The coach of the club is Paris.", 2022: "The coach of the club is Oslo."}
ROWS: list[dict[str, Any]] = [
    {"question": "The coach is", "answers": ["Paris"], "date": 2019, "changed": True, "then": ["Oslo"]},
    {"question": "The coach is", "answers": ["Oslo"], "date": "2022", "changed": False, "then": []},
    {"question": "The coach is", "answers": ["Rome"], "date": "1950-02-01", "changed": False, "then": []},
]
CONTENT = {
    **OPEN_SMALL,
    "data": {"file": "q.jsonl", "columns": {"old_answers": "then"}},
    "template": "{{ question }} <mask>.",
    "where": "date={date}",
    "subsets": {"changed": "changed"},
}
ANSWERED = ["Paris", "Oslo", "Oslo", "Paris"]


@pytest.fixture(scope="module")
def dated(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    folder = tmp_path_factory.mktemp("dated")
    rows = [{"id": str(date), "title": "Club", "text": text, "date": date} for date, text in TEXTS.items()]
    corpus = CorpusSettings(files=[str(written(folder, rows))], kept_fields=["date"])
    build_index(folder / "index", IndexBuildSettings(corpus=corpus, blocks=BlockSettings(max_block_tokens=64)), encoder)
    return PhraseFiller(PhraseIndex.open(folder / "index"), encoder, FillSettings(max_phrase_tokens=40))


@pytest.fixture
def result(dated: PhraseFiller, tmp_path: Path) -> ResultTable:
    written(tmp_path, ROWS, "q.jsonl")
    task = load_task(task_written(tmp_path, CONTENT), folder=SHIPPED)
    examples = read_examples(task, tmp_path)
    methods = [*(phrase_answers(dated, f"npm-{kind}") for kind in ("dense", "bm25", "hybrid"))]
    methods = [*methods, random_span(dated, seed=0)]
    return evaluate_task(task, examples, methods, encoder=dated.encoder, index=dated.index, resamples=20)


def test_each_example_is_answered_from_the_documents_that_meet_its_own_condition(result: ResultTable) -> None:
    assert [example.where for example in result.examples] == [("date=2019",), ("date=2022",), ("date=1950-02-01",)]
    for own in result.by("method").values():
        for (_, answer, _), date in zip(own.rows(), ("2019", "2022", None), strict=True):
            documents = {place.document for phrase in answer.phrases for place in phrase.occurrences}
            assert documents == ({date} if date else set())
    assert result.asked().flags["answer_held"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("where", "documents"),
    [(["date<=2019"], None), ([], ["2022"]), (["date>=2019"], ["2022", "2019"]), (["date<=2019"], ["2022"])],
)
def test_coverage_counts_in_the_documents_that_the_conditions_of_filling_leave(
    dated: PhraseFiller, encoder: Encoder, where: list[str], documents: list[str] | None
) -> None:
    conditions = [("date=2019",), ("date=2022",)] * 2
    examples = tuple(
        Example(str(n), "<mask>", answers=(answer,), subject="is", where=own)
        for n, (answer, own) in enumerate(zip(ANSWERED, conditions, strict=True))
    )
    left = [
        " ".join(
            text
            for date, text in TEXTS.items()
            if f"date={date}" in example.where
            and (documents is None or str(date) in documents)
            and all(date <= 2019 if "<=" in condition else date >= 2019 for condition in where)
        )
        for example in examples
    ]
    held, named = ([name in text for name, text in zip(names, left, strict=True)] for names in (ANSWERED, ["is"] * 4))
    task = Task(
        name="t", suite="open", data=TaskData(file="t.jsonl", columns={"subject": "s"}), template="{{ a }} <mask>"
    )
    fill, right = FillSettings(where=where, documents=documents), told("told", [*ANSWERED])
    result = evaluate_task(task, examples, [right], encoder=encoder, index=dated.index, fill=fill, resamples=5)
    assert [record["answer_held"] for record in task_records(result)] == held
    assert [record["subject_named"] for record in task_records(result)] == named


def test_an_example_that_no_document_may_answer_counts_as_unanswered_and_is_told_once(result: ResultTable) -> None:
    notes = [note for note in task_notes(result) if "no document may answer" in note]
    assert notes[0] == "mine: npm-dense found no phrase for 1 of 3 examples, for 1 of them no document may answer."
    assert result.methods["npm-dense"].facts["counts"]["inadmissible"] == 1
    assert not result["right"][2]
    assert [record["where"] for record in task_records(result)][:2] == [["date=2019"], ["date=2022"]]


def test_subsets_and_what_was_right_before_are_counted_beside_the_rest(result: ResultTable) -> None:
    metrics = task_metrics(result)
    for name, own in result.by("method").items():
        every, old = (metrics["methods"][name][scope] for scope in ("changed", "old_answers"))
        assert (every["count"], every["micro"]["mean"]) == (1, float(own["right"][0]))
        phrases = next(own.rows())[1].phrases
        assert old["count"] == 1
        assert old["micro"]["mean"] == float(bool(phrases) and phrases[0].phrase == "Oslo")
    assert json.loads(json.dumps(metrics)) == metrics
    assert metrics["coverage"]["changed"]["answer_held"] == {"count": 1, "share": 1.0}
    method = metrics["methods"]["npm-dense"]
    assert method["changed"]["count"] == method["old_answers"]["count"] == 1


def test_what_was_right_before_is_found_stale(encoder: Encoder) -> None:
    asked = [Example(str(number), "<mask>", answers=("New",), old_answers=old) for number, old in enumerate(OLD)]
    task = Task(name="t", suite="open", data=TaskData(file="t.jsonl"), template="{{ a }} <mask>")
    method = told("told", ["the Old!", "New", "Old", None])
    result = evaluate_task(task, asked, [method], encoder=encoder, resamples=5)
    old = task_metrics(result)["methods"]["told"]["old_answers"]  # the third has none
    assert (old["count"], old["micro"]["mean"]) == (3, pytest.approx(1 / 3))


OLD: list[tuple[str, ...]] = [("Old",), ("Old",), (), ("Old",)]


def test_conditions_are_filled_with_numbers_dates_and_quoted_text() -> None:
    row: dict[str, Any] = {"n": 3, "d": "2019-05", "t": 'a, "b" or c=d'}
    assert filled_conditions(["year<={n}", "date>{d}", "kind={t}", "lang=en"], row.get, where="x") == (
        "year<=3",
        "date>2019-05",
        'kind="a, \\"b\\" or c=d"',
        "lang=en",
    )


def test_a_condition_that_cannot_be_filled_is_refused(tmp_path: Path) -> None:
    wrong: tuple[object, ...] = ("soon", "2019-13", None, True, float("nan"), [2019], "")
    dates = (("date<={date}", value, r"q.jsonl:2: 'date' must be") for value in wrong)
    for where, value, message in (("date<={year}", 2019, "no column 'year'"), *dates):
        written(tmp_path, [ROWS[0], {**ROWS[0], "date": value}], "q.jsonl")
        task = load_task(task_written(tmp_path, {**CONTENT, "where": [where]}), folder=SHIPPED)
        with pytest.raises(CorpusError, match=message):
            read_examples(task, tmp_path)
    for where in ("date<={}", "date<={my date}", "date<={date", "kind={a}}"):
        assert f"braces in {where!r}" in file_refused(tmp_path, {**CONTENT, "where": where})
    assert "'{date}'" in file_refused(tmp_path, {**CONTENT, "where": ["{date}"]})


def test_every_method_that_reads_an_index_says_which_examples_no_document_may_answer(
    dated: PhraseFiller, tmp_path: Path
) -> None:
    examples = [
        Example("0", "The club plays in <mask>.", answers=("Bergen",), where=("date=2022",)),
        Example("1", "The club plays in <mask>.", answers=("Bergen",), where=("date=1950",)),
    ]
    nothing = PhraseFiller(dated.index, dated.encoder, FillSettings(where=["date=1"]))
    tiny_decoder(tmp_path)
    writer = DecoderWriter(Decoder.load(str(tmp_path), device="cpu"))
    task = Task(name="t", suite="open", data=TaskData(file="t.jsonl"), template="{{ a }} <mask>")
    kinds: list[Callable[[PhraseFiller], Any]] = [
        lambda filler: random_span(filler, seed=0),
        oracle_blocks,
        lambda filler: PhraseWriter(writer, filler.index, filler.settings),
        lambda filler: phrase_answers(filler, "npm-bm25"),
    ]
    for make in kinds:
        method = make(dated)
        answers = method.predict(task, examples, silent).answers
        assert [NO_DOCUMENT in answer.notes for answer in answers] == [False, True]
        assert not answers[1].phrases
    for make in kinds[:3]:  # a user's filter that leaves nothing is no condition of an example
        with pytest.raises(NoDocumentError):
            make(nothing).predict(task, [Example("0", "<mask> is it.", answers=("a",))], silent)
