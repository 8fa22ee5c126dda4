"""The example of docs/extend.md: its files are what the page says, and it works as the page says."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from npm.evaluation.tasks import ClosedScoring, Label, Split, Task, TaskData, load_task
from tests.evaluation.task_samples import read_examples

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "example-task"
NO_TASKS = Path("no-folder")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def test_the_ten_lines_of_the_page_are_the_file_of_the_example() -> None:
    written = (EXAMPLE / "messages.yaml").read_text(encoding="utf-8").splitlines()
    assert blocks("yaml")[0].splitlines() == [line for line in written if not line.startswith("#")]
    assert len(blocks("yaml")[0].splitlines()) == 10


def test_the_open_task_of_the_page_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "capitals.yaml").write_text(blocks("yaml")[1], encoding="utf-8")
    row = {"country": "Iceland", "capitals": ["Reykjavík", "Reykjavik"]}
    (tmp_path / "capitals.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    task = load_task(tmp_path / "capitals.yaml", folder=NO_TASKS)
    (example,) = read_examples(task)
    assert task.suite == "open"
    assert (example.text, example.answers) == ("The capital of Iceland is <mask>.", ("Reykjavík", "Reykjavik"))


@pytest.mark.parametrize("kind", [Task, TaskData, Label, ClosedScoring])
def test_the_page_names_every_key_of_a_tasks_file(kind: type) -> None:
    missing = [
        item.name
        for item in fields(kind)
        if f"`{item.name}`" not in PAGE and item.name not in ("data", "digest", "folder")
    ]
    assert not missing


def test_each_half_of_the_example_holds_every_label_equally_often() -> None:
    task = load_task(EXAMPLE / "messages.yaml", folder=NO_TASKS)
    halves = [read_examples(task, split=split) for split in ("dev", "test")]
    for half in halves:
        assert [sum(example.label == label for example in half) for label in range(3)] == [5, 5, 5]
    assert not {example.id for example in halves[0]} & {example.id for example in halves[1]}
    assert halves[1][0].text.endswith(" This message is about <mask>.")


def test_the_reference_corpus_holds_none_of_the_messages() -> None:
    task = load_task(EXAMPLE / "messages.yaml", folder=NO_TASKS)
    corpus = (EXAMPLE / "help-pages.jsonl").read_text(encoding="utf-8").casefold()
    messages = [example.text for split in get_args(Split) for example in read_examples(task, split=split)]
    assert len(messages) == 30
    assert not [text for text in messages if text.removesuffix(" This message is about <mask>.").casefold() in corpus]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `runs` after all commands of the page have run, in their order."""
    from npm.cli.main import main

    folder = tmp_path_factory.mktemp("own-task")
    for words in commands():
        placed = [re.sub(r"(?<!\S)(?=runs/)|(?<==)(?=runs/)", f"{folder}/", word) for word in words]
        assert main([word.replace("docs/", f"{ROOT}/docs/") for word in placed[1:]]) == 0
    return folder / "runs"


def test_the_example_answers_better_than_chance_with_evidence_from_the_help_pages(run_folder: Path) -> None:
    methods = json.loads((run_folder / "messages" / "metrics.json").read_text())["tasks"]["messages"]["methods"]
    assert set(methods) == {"npm", "npm-single", "majority", "random"}
    assert methods["npm"]["accuracy"]["mean"] > methods["majority"]["accuracy"]["mean"] == pytest.approx(1 / 3)
    lines = (run_folder / "messages" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0])
    assert (first["task"], first["method"]) == ("messages", "npm")
    for evidence in first["evidence"]:
        place = evidence["occurrence"]
        start = place["start_char"] - place["context_start_char"]
        assert place["document"].startswith("help-")
        assert place["context"][start:].casefold().startswith(evidence["word"])
