"""The examples of a task: where its data is, development and test, samples, lengths, and which sets are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from npm.core.errors import CorpusError
from npm.corpus import readers
from npm.corpus.sources import Source
from npm.evaluation.data import answer_groups, find_data
from npm.evaluation.tasks import Macro, Split, Task
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_masks
from tests.evaluation.task_samples import REVIEWS, closed, facts, opened, read_examples, refused, written
from tests.helpers.tiny_models import tiny_encoder


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert", max_positions=24)


def test_the_first_half_of_each_group_is_for_development_and_the_rest_is_reported(tmp_path: Path) -> None:
    rows = facts(101)
    written(tmp_path, rows)
    task = opened()
    task = replace(task, data=replace(task.data, development="first_half"))
    halves = {split: [int(each.id) for each in read_examples(task, tmp_path, split=split)] for split in get_args(Split)}
    slow: dict[Split, list[int]] = {"dev": [], "test": []}
    seen: Counter[str] = Counter()
    sizes = Counter(row["relation"] for row in rows)
    for number, row in enumerate(rows):
        seen[row["relation"]] += 1
        slow["dev" if seen[row["relation"]] <= sizes[row["relation"]] // 2 else "test"].append(number)
    assert halves == slow and any(size % 2 for size in sizes.values())


def test_without_groups_the_halves_are_those_of_the_file_unless_development_has_its_own(tmp_path: Path) -> None:
    written(tmp_path, [*REVIEWS, *REVIEWS[:2]])
    task = closed(development="first_half")
    assert [each.id for each in read_examples(task, tmp_path, split="dev")] == ["0", "1"]
    assert [each.id for each in read_examples(task, tmp_path)] == ["2", "3", "4"]
    written(tmp_path, REVIEWS[:2], "dev.jsonl")
    task = closed(development_file="dev.jsonl")
    assert len(read_examples(task, tmp_path)) == 5
    assert len(read_examples(task, tmp_path, split="dev")) == 2


def test_a_sample_is_the_beginning_of_the_published_permutation_in_the_order_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, [{"text": str(number), "label": number % 2} for number in range(50)])
    found = [int(each.id) for each in read_examples(closed(), tmp_path, limit=7, seed=3)]
    assert found == sorted(np.random.RandomState(3).permutation(50)[:7])
    assert found != [int(each.id) for each in read_examples(closed(), tmp_path, limit=7, seed=4)]
    assert len(read_examples(closed(), tmp_path, limit=50)) == len(read_examples(closed(), tmp_path, limit=99)) == 50


@pytest.mark.parametrize("macro", ["group", "answer_tokens"])
@pytest.mark.parametrize("limit", [None, 11])
def test_a_bound_on_groups_takes_a_sample_of_each(
    tmp_path: Path, encoder: Encoder, macro: Macro, limit: int | None
) -> None:
    rows = facts(90)
    written(tmp_path, rows)
    found = read_examples(opened(macro=macro, examples_per_group=9), tmp_path, limit=limit, seed=5, encoder=encoder)
    words = [min(4, row["answers"][0].count("the") * per_word(encoder)) for row in rows]
    keys: list[Any] = [row["relation"] for row in rows] if macro == "group" else words
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
    with pytest.raises(CorpusError, match=r"data\.jsonl:4: .*at most 24"):
        read_examples(closed(), tmp_path, encoder=encoder)
    assert len(read_examples(closed(), tmp_path)) == 4  # whole, for methods without an encoder
    for too_long, kept in (("keep_start", "the river the"), ("keep_end", "flows It was <mask>.")):
        task = replace(closed(), too_long=too_long)
        *short, long = read_examples(task, tmp_path, encoder=encoder)
        assert long.cut and not any(each.cut for each in short)
        assert kept in long.text and long.text.endswith(" It was <mask>.")
        assert not encode_masks(encoder, [long.text], masks_per_text=2).cut[0]
        tighter = read_examples(replace(task, max_prompt_tokens=17), tmp_path, encoder=encoder)[-1]
        assert len(tighter.text) < len(long.text)


def test_sets_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    halves, by_length = closed(development="first_half"), opened(macro="answer_tokens", examples_per_group=2)
    cases: list[tuple[Task, list[dict[str, Any]], dict[str, Any], str]] = [
        (closed(), [], {}, "is empty"),
        (halves, REVIEWS[:1], {"split": "dev"}, "the dev set of reviews is empty"),
        (closed(), REVIEWS, {"split": "dev"}, "no development data"),
        (closed(), REVIEWS[1:], {}, "have the label 'good'"),
        (by_length, facts(5), {}, "set encoder"),
        (closed(file="absent.jsonl"), REVIEWS, {}, "absent.jsonl; set data_dir"),
    ]
    for task, rows, more, part in cases:
        assert part in refused(tmp_path, task, rows, **more)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_sample_of_one_class_is_refused_with_what_to_change(tmp_path: Path, limit: int) -> None:
    rows = [{"text": str(number), "label": int(number == 0)} for number in range(50)]
    told = refused(tmp_path, closed(), rows, limit=limit)
    assert "the sample of " in told and "raise limit" in told
    assert len(read_examples(closed(), tmp_path, limit=50)) == 50  # the whole is no sample
    written(tmp_path, facts(5))
    assert len(read_examples(opened(), tmp_path, limit=limit)) == limit  # answers are no classes


OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the hub could be asked; no test asks it."""
    for name in OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_file_at_hand_is_read_and_else_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def hub(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
        asked.append(source.path)
        yield from enumerate(REVIEWS, start=1)

    monkeypatch.setattr(readers, "_hub_rows", hub)
    task = closed(hub="owner/reviews@small/validation")
    assert [each.label for each in read_examples(task, tmp_path)] == [0, 1, 1]
    assert set(asked) == {"hub:owner/reviews@small/validation"}
    with pytest.raises(CorpusError, match="cannot compute"):
        read_examples(closed(hub="owner/reviews", hub_columns={"label": "label - 'one'"}), tmp_path)
    turned = closed(hub="owner/reviews", hub_columns={"label": "1 - label"})
    assert [each.label for each in read_examples(turned, tmp_path)] == [1, 0, 0]
    asked.clear()
    written(tmp_path, REVIEWS)
    assert [each.label for each in read_examples(turned, tmp_path)] == [0, 1, 1]
    assert len(read_examples(task, tmp_path)) == 3 and not asked


@pytest.mark.parametrize("value", ["0", "1", "true", ""])
@pytest.mark.parametrize("variable", OFFLINE_VARIABLES)
def test_data_is_missing_without_a_file_and_a_hub_that_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    written(tmp_path, REVIEWS)
    here = closed(hub="owner/reviews")
    nowhere, on_hub = closed(file="absent.csv"), closed(file="absent.csv", hub="owner/reviews")
    only_hub = closed(file="", hub="owner/reviews")
    offline = [on_hub, only_hub] if value in ("1", "true") else []

    def missing(task: Task, folder: Path | None) -> bool:
        return find_data(task, folder, "test") is None

    for task in (here, on_hub, nowhere, only_hub):
        assert missing(task, tmp_path) == (task in [nowhere, *offline])
    assert missing(here, None) == bool(offline)


def test_the_development_file_is_what_is_missing_for_dev(tmp_path: Path) -> None:
    written(tmp_path, REVIEWS)
    own_file, halves = (
        closed(hub="owner/reviews", development_file="dev.jsonl"),
        closed(development="first_half"),
    )
    assert find_data(own_file, tmp_path, "dev") is None  # for which no hub data set stands in
    assert find_data(own_file, tmp_path, "test") == find_data(halves, tmp_path, "dev") is not None
    with pytest.raises(CorpusError, match="no development data"):
        find_data(closed(), tmp_path, "dev")
