"""Examples of a task: columns, gold, development and test, samples, lengths, and what data is refused."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.errors import CorpusError, QueryError, SettingError
from npm.evaluation import table_rows
from npm.evaluation.examples import Example
from npm.evaluation.questions import Split
from npm.evaluation.table_rows import TaskDataError
from npm.evaluation.task import Development, Label, Macro, Suite, Task, TaskData, TooLong
from npm.evaluation.task_data import answer_groups, data_sha256, find_data, read_examples
from npm.evaluation.task_file import load_task
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_masks
from tests.tiny_models import tiny_encoder

SHIPPED = Path(__file__).parents[2] / "configs" / "task"
LABELS = (Label(0, "bad", ("bad",)), Label(1, "good", ("good",)))
REVIEWS = [{"text": "dull .", "label": 0}, {"text": "it 's great !", "label": 1}, {"text": "fine", "label": 1}]


def written(folder: Path, rows: Sequence[dict[str, Any]], name: str = "data.jsonl") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def closed(**data: Any) -> Task:
    return Task("reviews", Suite.closed, TaskData(**{"file": "data.jsonl", **data}), "{text} It was <mask>.", LABELS)


def opened(**more: Any) -> Task:
    columns = {"group": "relation", "subject": "subject"}
    return Task("facts", Suite.open, TaskData("data.jsonl", columns=columns), "{subject} is <mask>.", **more)


def facts(count: int, groups: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"relation": f"P{rng.integers(groups)}", "subject": f"s{number}", "answers": ["the " * int(rng.integers(1, 7))]}
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert", max_positions=24)


def test_rows_become_prompts_with_gold_in_the_order_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    assert read_examples(closed(detokenise=True), tmp_path) == [
        Example("0", "dull. It was <mask>.", label=0),
        Example("1", "it's great! It was <mask>.", label=1),
        Example("2", "fine It was <mask>.", label=1),
    ]
    assert read_examples(closed(), tmp_path)[1].text == "it 's great ! It was <mask>."


def test_labels_of_a_table_are_text_and_columns_have_the_names_that_the_task_gives(tmp_path: Path) -> None:
    with (tmp_path / "data.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["review", "stars", "who"], ["Dull", "0", "a"], ['"Great", fun', "1", "b"]])
    task = closed(file="data.csv", columns={"text": "review", "label": "stars", "group": "who"})
    found = read_examples(task, tmp_path)
    assert [(each.text, each.label, each.group) for each in found] == [
        ("Dull It was <mask>.", 0, "a"),
        ('"Great", fun It was <mask>.', 1, "b"),
    ]


def test_answers_come_from_one_or_several_columns_inside_others_and_from_cells(tmp_path: Path) -> None:
    row = {"q": "who", "answer": {"value": "Ann", "aliases": ["Anna ", "Ann"]}, "names": [{"name": "A"}, {"name": "B"}]}
    written(tmp_path, [row])
    (tmp_path / "data.csv").write_text("q,answers\nwho,Ann| Anna\n", encoding="utf-8")

    def answers(column: str, file: str = "data.jsonl") -> tuple[str, ...]:
        task = Task("t", Suite.open, TaskData(file, columns={"answers": column}), "{q|question} <mask>.")
        return read_examples(task, tmp_path)[0].answers

    assert answers("answer.value") == ("Ann",)
    assert answers("answer.value + answer.aliases") == ("Ann", "Anna")
    assert answers("answers | answer.aliases") == ("Anna", "Ann")
    assert answers("names.name") == ("A", "B")
    assert answers("answers", "data.csv") == ("Ann", "Anna")


def test_each_open_set_reads_its_public_format(tmp_path: Path) -> None:
    """A line of every data set that is not at hand, as it is published."""
    rows: dict[str, dict[str, Any]] = {
        "google_re": {
            "pred": "place_of_birth",
            "sub_label": "Ann",
            "obj_label": "Rome",
            "template": "[X] was born in [Y] .",
        },
        "kamel": {
            "relation": "P54",
            "question": "What teams was [S] a member of?",
            "sub_label": "Ann",
            "obj_label": ["A.", "B"],
        },
        "trivia_qa": {"question": "Who?", "answer": {"value": "A", "aliases": ["B"], "normalized_aliases": ["b"]}},
        "templama": {
            "query": "Ann plays for _X_.",
            "answer": [{"wikidata_id": "Q1", "name": "Ajax"}],
            "relation": "P54",
        },
        "entity_translation": {"language": "Greek", "title": "Rome", "answers": ["Ρώμη"]},
    }
    expected = {
        "google_re": ("Ann was born in <mask>.", ("Rome",), "place_of_birth"),
        "kamel": ("What teams was Ann a member of? Answer: <mask>", ("A.", "B"), "P54"),
        "trivia_qa": ("Who? The answer is: <mask>.", ("A", "B", "b"), ""),
        "templama": ("Ann plays for <mask>.", ("Ajax",), "P54"),
        "entity_translation": ("The Greek translation of Rome is: <mask>.", ("Ρώμη",), "Greek"),
    }
    for name, row in rows.items():
        task = load_task(name, folder=SHIPPED)
        written(tmp_path, [row], task.data.file)
        (found,) = read_examples(task, tmp_path, encoder=tiny_encoder("bert"))
        assert (found.text, found.answers, found.group) == expected[name]


def test_each_closed_set_reads_its_public_format(tmp_path: Path) -> None:
    text = {"text": "it 's fine", "label": 1}
    rows: dict[str, dict[str, Any]] = {
        "yahoo": {"topic": 1, "question_title": "T", "question_content": "C", "best_answer": "A"},
        "amazon": {"title": "T", "content": "C.", "label": 1},
        "rt": text,
        "cr": text,
        "rte": {"sentence1": "A dog barks.", "sentence2": "Dogs bark.", "label": 1},
    }
    expected = {
        "yahoo": "title: T content: C answer: A The text topic is about <mask>.",
        "amazon": "T. C. It was <mask>.",
        "rt": "it's fine It was <mask>.",
        "cr": "it's fine It was <mask>.",
        "rte": "A dog barks, right? <mask>, dogs bark.",
    }
    for name, row in rows.items():
        task = load_task(name, folder=SHIPPED)
        gold = task.data.columns.get("label", "label")
        written(tmp_path, [row, {**row, gold: 0}], task.data.file)
        assert [(each.text, each.label) for each in read_examples(task, tmp_path)] == [
            (expected[name], 1),
            (expected[name], 0),
        ]


def test_the_first_half_of_each_group_is_for_development_and_the_rest_is_reported(tmp_path: Path) -> None:
    rows = facts(101)
    written(tmp_path, rows)
    task = opened()
    task = replace(task, data=replace(task.data, development=Development.first_half))
    halves = {split: [int(each.id) for each in read_examples(task, tmp_path, split=split)] for split in Split}
    slow: dict[Split, list[int]] = {Split.dev: [], Split.test: []}
    seen: Counter[str] = Counter()
    sizes = Counter(row["relation"] for row in rows)
    for number, row in enumerate(rows):
        seen[row["relation"]] += 1
        slow[Split.dev if seen[row["relation"]] <= sizes[row["relation"]] // 2 else Split.test].append(number)
    assert halves == slow and any(size % 2 for size in sizes.values())


def test_without_groups_the_halves_are_those_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, [*REVIEWS, *REVIEWS[:2]])
    task = closed(development=Development.first_half)
    assert [each.id for each in read_examples(task, tmp_path, split=Split.dev)] == ["0", "1"]
    assert [each.id for each in read_examples(task, tmp_path)] == ["2", "3", "4"]


def test_a_development_file_of_its_own_leaves_all_of_the_other_for_testing(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    written(tmp_path, REVIEWS[:2], "dev.jsonl")
    task = closed(development_file="dev.jsonl")
    assert len(read_examples(task, tmp_path)) == 3
    assert len(read_examples(task, tmp_path, split=Split.dev)) == 2


def test_a_sample_is_the_beginning_of_the_published_permutation_in_the_order_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, [{"text": str(number), "label": number % 2} for number in range(50)])
    found = [int(each.id) for each in read_examples(closed(), tmp_path, limit=7, seed=3)]
    assert found == sorted(np.random.RandomState(3).permutation(50)[:7])
    assert found != [int(each.id) for each in read_examples(closed(), tmp_path, limit=7, seed=4)]
    assert len(read_examples(closed(), tmp_path, limit=50)) == len(read_examples(closed(), tmp_path, limit=99)) == 50


@pytest.mark.parametrize("macro", [Macro.group, Macro.answer_tokens])
@pytest.mark.parametrize("limit", [None, 11])
def test_a_bound_on_groups_takes_a_sample_of_each(
    tmp_path: Path, encoder: Encoder, macro: Macro, limit: int | None
) -> None:
    rows = facts(90)
    written(tmp_path, rows)
    found = read_examples(opened(macro=macro, examples_per_group=9), tmp_path, limit=limit, seed=5, encoder=encoder)
    words = [min(4, row["answers"][0].count("the") * per_word(encoder)) for row in rows]
    keys: list[Any] = [row["relation"] for row in rows] if macro is Macro.group else words
    slow: list[int] = []
    for key in set(keys):
        own = np.array([number for number, each in enumerate(keys) if each == key])
        slow += own[np.random.RandomState(5).permutation(len(own))[:9]].tolist()
    slow = sorted(slow)
    if limit is not None:
        slow = sorted(np.array(slow)[np.random.RandomState(5).permutation(len(slow))[:limit]].tolist())
    assert [int(each.id) for each in found] == slow


def per_word(encoder: Encoder) -> int:
    return len(encoder.tokenizer(" the", add_special_tokens=False)["input_ids"])


def test_answers_are_grouped_by_the_tokens_of_the_shortest(encoder: Encoder) -> None:
    assert per_word(encoder) == 1
    answers = [["the the the", "the"], ["the the"], ["the " * 4], ["the " * 9, "the " * 3]]
    assert answer_groups(encoder, answers).tolist() == [1, 2, 4, 3]


def test_a_long_example_is_refused_or_its_longest_field_cut(tmp_path: Path, encoder: Encoder) -> None:
    written(tmp_path, [*REVIEWS, {"text": "the river " * 20 + "flows", "label": 0}])
    with pytest.raises(TaskDataError, match="too long") as raised:
        read_examples(closed(), tmp_path, encoder=encoder)
    assert raised.value.where.endswith("data.jsonl:4") and "at most 24 tokens" in raised.value.expected
    assert len(read_examples(closed(), tmp_path)) == 4  # whole, for methods without an encoder
    for too_long, kept in ((TooLong.keep_start, "the river the"), (TooLong.keep_end, "flows It was <mask>.")):
        task = replace(closed(), too_long=too_long)
        *short, long = read_examples(task, tmp_path, encoder=encoder)
        assert long.cut and not any(each.cut for each in short)
        assert kept in long.text and long.text.endswith(" It was <mask>.")
        assert not encode_masks(encoder, [long.text], masks_per_text=2).cut[0]
        tighter = read_examples(replace(task, max_prompt_tokens=17), tmp_path, encoder=encoder)[-1]
        assert len(tighter.text) < len(long.text)


def test_the_same_data_gives_the_same_examples_and_the_hash_of_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, REVIEWS)
    assert read_examples(closed(), tmp_path, limit=2) == read_examples(closed(), tmp_path, limit=2)
    assert data_sha256(closed(), tmp_path, split=Split.test) == sha256(file.read_bytes()).hexdigest()


def refused(folder: Path, task: Task, rows: Sequence[dict[str, Any]] = REVIEWS, **more: Any) -> TaskDataError:
    written(folder, rows)
    with pytest.raises(TaskDataError) as raised:
        read_examples(task, folder, **more)
    told = raised.value
    assert all((told.problem, told.expected, told.got, told.where, told.fix))
    return told


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    told = refused(tmp_path, closed(columns={"text": "txt"}))
    assert "no column 'txt'" in told.problem and told.got == "the columns text, label"
    assert "such as text" in told.fix and told.where.endswith("data.jsonl:1")
    assert "no column 'a.b'" in refused(tmp_path, closed(columns={"text": "a.b"})).problem
    assert "no column 'gold'" in refused(tmp_path, closed(columns={"label": "gold"})).problem
    assert "no column 'answers'" in refused(tmp_path, opened(), [{"relation": "r", "subject": "s"}]).problem


def test_a_label_that_no_label_names_is_refused_with_its_line(tmp_path: Path) -> None:
    told = refused(tmp_path, closed(), [*REVIEWS, {"text": "so so", "label": 2}], limit=1)
    assert "has the value 2" in told.problem and told.expected.startswith("one of 0, 1")
    assert told.where.endswith("data.jsonl:4")


@pytest.mark.parametrize("value", [None, ["a"], True, {"a": 1}])
def test_a_field_that_is_no_text_is_refused(tmp_path: Path, value: object) -> None:
    assert "'text' has the wrong content" in refused(tmp_path, closed(), [{"text": value, "label": 0}]).problem


@pytest.mark.parametrize("answers", [[], "", [" "], [1], None, 5])
def test_an_example_without_answers_is_refused(tmp_path: Path, answers: object) -> None:
    row = {"relation": "r", "subject": "s", "answers": answers}
    assert "'answers' has the wrong content" in refused(tmp_path, opened(), [row]).problem


def test_a_prompt_with_a_mask_of_its_own_or_none_is_refused(tmp_path: Path) -> None:
    told = refused(tmp_path, closed(), [*REVIEWS, {"text": "what a <mask>", "label": 0}])
    assert "several <mask>" in told.problem and told.where.endswith(":4")
    cloze = replace(opened(), template="{cloze}", template_column="cloze")
    row = {"relation": "r", "subject": "s", "answers": ["a"]}
    assert "no <mask>" in refused(tmp_path, cloze, [{**row, "cloze": "[X] is here ."}]).problem
    assert "'subject'" in refused(tmp_path, cloze, [{**row, "subject": "", "cloze": "[X] is [Y] ."}]).problem


def test_text_that_is_not_valid_unicode_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [*REVIEWS, {"text": "half \ud800", "label": 0}])
    with pytest.raises(QueryError, match="not valid Unicode") as raised:
        read_examples(closed(), tmp_path)
    assert raised.value.where.endswith("data.jsonl:4")


def test_an_empty_set_and_one_class_alone_are_refused(tmp_path: Path) -> None:
    assert "the test set of reviews is empty" in refused(tmp_path, closed(), []).problem
    halves = closed(development=Development.first_half)
    assert "the dev set of reviews is empty" in refused(tmp_path, halves, REVIEWS[:1], split=Split.dev).problem
    told = refused(tmp_path, closed(), REVIEWS[1:])
    assert "one label" in told.problem and told.got == "2 examples with the label 1 (good)"
    written(tmp_path, REVIEWS)
    assert len(read_examples(closed(), tmp_path, limit=1)) == 1  # a glance at a whole set is no one-class set


def test_a_task_without_development_data_is_refused_for_dev(tmp_path: Path) -> None:
    told = refused(tmp_path, closed(), split=Split.dev)
    assert "no development data" in told.problem and "first_half" in told.expected


def test_groups_by_answer_length_need_an_encoder(tmp_path: Path) -> None:
    told = refused(tmp_path, opened(macro=Macro.answer_tokens, examples_per_group=2), facts(5))
    assert told.where == "encoder"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path: Path, limit: int) -> None:
    written(tmp_path, REVIEWS)
    with pytest.raises(SettingError, match="limit is out of range"):
        read_examples(closed(), tmp_path, limit=limit)


def test_data_that_is_not_there_is_told_with_the_file_looked_for(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match="is not there") as raised:
        read_examples(closed(), tmp_path)
    assert str(tmp_path / "data.jsonl") in raised.value.got
    with pytest.raises(TaskDataError, match="is not there") as raised:
        read_examples(closed())
    assert raised.value.got == "no data_dir=" and "data.jsonl" in raised.value.expected


def test_a_file_at_hand_is_read_and_else_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def hub(source: table_rows.Source) -> Iterator[tuple[int, dict[str, Any]]]:
        asked.append(source.path)
        yield from enumerate(REVIEWS, start=1)

    monkeypatch.setattr(table_rows, "read_hub", hub)
    task = closed(hub="owner/reviews", config="small", split="validation")
    assert find_data(task, tmp_path, split=Split.test) is None and data_sha256(task, tmp_path, split=Split.test) == ""
    assert [each.label for each in read_examples(task, tmp_path)] == [0, 1, 1]
    assert set(asked) == {"hub:owner/reviews@small/validation"}
    asked.clear()
    written(tmp_path, REVIEWS)
    assert len(read_examples(task, tmp_path)) == 3 and not asked


def test_a_hub_that_does_not_answer_is_told_with_the_file_that_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(source: table_rows.Source) -> Iterator[tuple[int, dict[str, Any]]]:
        raise CorpusError("no", expected="a data set", got="ConnectionError", where=source.path, fix="connect")

    monkeypatch.setattr(table_rows, "read_hub", hub)
    with pytest.raises(TaskDataError, match="neither at hand nor on the hub") as raised:
        read_examples(closed(hub="owner/reviews"), tmp_path)
    assert raised.value.got == "ConnectionError" and "data.jsonl" in raised.value.fix


def test_a_users_own_task_needs_only_its_two_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "suite: closed\n"
        "data: {file: my-reviews.csv, columns: {text: review, label: stars}}\n"
        'template: "{text} It was <mask>."\n'
        "labels:\n  - {value: 0, words: [terrible, bad]}\n  - {value: 1, words: [great]}\n",
        encoding="utf-8",
    )
    (tmp_path / "my-reviews.csv").write_text("review,stars\nFun.,1\nDull.,0\n", encoding="utf-8")
    found = read_examples(load_task(tmp_path / "mine.yaml", folder=SHIPPED))
    assert found == [Example("0", "Fun. It was <mask>.", label=1), Example("1", "Dull. It was <mask>.", label=0)]
