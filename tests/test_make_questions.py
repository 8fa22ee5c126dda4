"""Questions made by program: what they ask, what they never ask, and that they are made the same way twice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from npm.corpus.questions import read_questions
from npm.evaluation.tasks import load_task
from scripts.cloze_articles import passage, places_of, subject_of
from scripts.make_questions import add_wrong_contexts, main
from scripts.question_statements import statement_of

ARTICLES = {
    "Deccan": "Deccan is a plateau of southern India. " + "Rivers cross the land from west to east. " * 12
    + "The rock of the plateau is basalt, which came in 1821 to the museum of Henry Voysey. "
    + "Farmers grow cotton on the black soil. " * 12,
    "Henry Voysey": "Henry Voysey was a geologist. In 1821 the surveyor Henry Voysey crossed Deccan with an elephant. "
    + "He drew maps of all that he saw on his way through the land. " * 6,
    "Mercury (planet)": "Mercury is a planet near the sun, seen by Henry Voysey from Deccan in 1821. " * 2,
}  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A file with the articles."""
    path = tmp_path / "articles.jsonl"
    rows = [{"id": str(number), "title": title, "text": text} for number, (title, text) in enumerate(ARTICLES.items())]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"files=[{path}]"


def made(folder: Path, *arguments: str, name: str = "made.jsonl") -> list[dict[str, Any]]:
    """The rows that the script writes."""
    out = folder / name
    assert main([*arguments, f"out={out}"]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_a_row_asks_what_its_passage_tells_and_its_negatives_do_not(tmp_path: Path, corpus: str) -> None:
    rows = made(tmp_path, "entities", corpus)
    assert len(list(read_questions([str(tmp_path / "made.jsonl")]))) == len(rows) > 0
    for row in rows:
        (answer,) = row["answers"]
        assert answer in row["context"]
        assert answer not in row["question"]
        assert not any(answer.lower() in text.lower() for text in [*row["negatives"], row.get("wrong_context", "")])
        assert all(rival in row["context"] and rival not in answer for rival in row["rivals"])
        assert row.get("wrong_title", "") != row["title"]
        assert row["context"] in " ".join(ARTICLES.values())
        assert subject_of(row["title"]) in row["question"].replace("<mask>", answer)
        assert row["question"].replace("<mask>", answer) not in row["context"]
    assert {"Deccan", "Henry Voysey"} >= {row["title"] for row in rows if row["answers"] == ["Henry Voysey"]}
    turned = [row for row in rows if row["answers"] == [subject_of(row["title"])]]
    assert 0 < len(turned) < len(rows) / 2 + 1  # the subject is asked for as well
    assert "Mercury (planet)" not in {row["title"] for row in rows}  # the word may mean another Mercury


def test_the_same_seed_makes_the_same_rows(tmp_path: Path, corpus: str) -> None:
    rows = made(tmp_path, "entities", corpus, "seed=3")
    assert made(tmp_path, "entities", corpus, "seed=3") == rows
    few = made(tmp_path, "entities", corpus, "seed=3", "limit=2")
    assert len(few) == 2
    assert all(row in rows for row in few)
    excluded = tmp_path / "excluded.jsonl"
    of_article = {(row["title"], row["answers"][0]) for row in rows if row["title"] == "Deccan"}
    for line, gone in (
        ({"subject": "deccan", "answers": ["1821"]}, {("Deccan", "1821")}),
        ({"title": "DECCAN (plateau)"}, of_article),
    ):
        excluded.write_text(json.dumps(line) + "\n", encoding="utf-8")
        left = made(tmp_path, "entities", corpus, f"exclude=[{excluded}]")
        assert gone <= of_article and not gone & {(row["title"], row["answers"][0]) for row in left}


def test_a_fact_becomes_a_row_for_each_template_whose_passage_has_its_object(tmp_path: Path, corpus: str) -> None:
    facts, templates = tmp_path / "triples.jsonl", tmp_path / "templates.json"
    fact = {"subject": "Deccan", "relation": "P1", "object": "basalt", "document": "0", "title": "Deccan"}
    at = ARTICLES["Deccan"].index("basalt")
    wrong = fact | {"start_char": at + 1}  # a place where the object is not
    other = fact | {"object": "the museum of Henry Voysey", "start_char": ARTICLES["Deccan"].index("the museum")}
    lines = [fact | {"start_char": at}, wrong, other]
    facts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    templates.write_text(json.dumps({"P1": ["the rock of [S] is [O].", "[O] forms [S]."]}), encoding="utf-8")
    arguments = ("facts", corpus, f"facts={facts}", f"templates={templates}")
    rows = made(tmp_path, *arguments)
    assert [row["question"] for row in rows] == ["The rock of Deccan is <mask>.", "<mask> forms Deccan."] * 2
    for row in rows[:2]:
        assert row["answers"][0] == "basalt"
        assert "basalt" in row["context"]
        assert set(row["answers"][1:]) <= {"the museum of Henry Voysey"}  # it, too, is in the passage
    excluded = tmp_path / "excluded.jsonl"
    excluded.write_text(json.dumps({"subject": "Deccan", "answers": ["Basalt"]}) + "\n", encoding="utf-8")
    assert [row["answers"][0] for row in made(tmp_path, *arguments, f"exclude=[{excluded}]")] == [other["object"]] * 2


def test_attributes_are_asked_for_in_other_words_and_have_rivals_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    texts = {
        "Ada Byron": "Ada Byron (born 2 May 1901) was a Welsh chemist and painter. She was educated at Corley College, "
        "as were her friends. Her favorite color was purple, as all of her friends knew. Corley College has a garden. ",
        "Velt": "A velt is a boat made of bamboo. It was invented by Oda Sand, who was young then. Oda Sand sailed "
        "with every velt of her time, and a velt is safe. ",
        "Economy of Velt": "It is a trade of Oda Sand.",
    }
    rows = [{"id": title, "title": title, "text": text} for title, text in texts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = made(tmp_path, "attributes", f"files=[{path}]")
    values = {(row["title"], tuple(row["answers"])) for row in rows if row["title"] not in row["answers"]}
    assert values == {
        ("Ada Byron", ("Welsh",)), ("Ada Byron", ("chemist", "painter")), ("Ada Byron", ("2 May 1901",)),
        ("Ada Byron", ("Corley College",)), ("Ada Byron", ("purple",)),
        ("Velt", ("boat",)), ("Velt", ("bamboo",)), ("Velt", ("Oda Sand",)),
    }  # fmt: skip
    for row in rows:
        assert row["answers"][0] in row["context"]
        assert row["question"].count("<mask>") == 1
        assert not any(answer.lower() in row["question"].lower() for answer in row["answers"])
        assert not set(row["rivals"]) & set(row["answers"])
    of_velt = [row for row in rows if row["answers"] == ["bamboo"]]
    assert all("a velt" in row["question"].lower() and "boat" in row["rivals"] for row in of_velt)
    assert made(tmp_path, "attributes", f"files=[{path}]") == rows
    excluded = tmp_path / "excluded.jsonl"
    given = [{"title": "Velt"}, {"subject": "ada byron", "answers": ["WELSH"]}]
    excluded.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    without = made(tmp_path, "attributes", f"files=[{path}]", f"exclude=[{excluded}]")
    assert {(row["title"], tuple(row["answers"])) for row in without if row["title"] not in row["answers"]} == {
        (title, answers) for title, answers in values if title == "Ada Byron" and answers != ("Welsh",)
    }


def test_a_part_of_a_longer_name_is_no_occurrence() -> None:
    text = "Paris Hilton met Miss Paris. Paris is large, and Paris's river is the Seine; Parisians know."
    assert [text[at - 2 : at + 7] for at in places_of("Paris", text)] == [". Paris i", "d Paris's"]


@pytest.mark.parametrize("at", [0, 300, 700])
def test_a_passage_contains_its_place_and_begins_with_a_sentence(at: int) -> None:
    text = "Some words are in this sentence. " * 30
    for seed in range(20):
        found = passage(text, at, 5, random.Random(seed))
        start = text.index(found) if at < 33 else max(i for i in range(at + 1) if text.startswith(found, i))
        assert found.startswith("Some")
        assert start <= at
        assert start + len(found) >= at + 5


def test_the_task_of_some_rows_asks_each_question_of_the_passages_of_all(tmp_path: Path, corpus: str) -> None:
    rows = made(tmp_path, "entities", corpus)
    assert main(["task", f"files=[{tmp_path / 'made.jsonl'}]", f"out={tmp_path / 'task'}"]) == 0
    asked, documents = (
        [json.loads(line) for line in (tmp_path / "task" / name).read_text(encoding="utf-8").splitlines()]
        for name in ("questions.jsonl", "corpus.jsonl")
    )
    texts = {each["id"]: each["text"] for each in documents}
    assert [(each["text"], each["kind"], texts[each["document"]]) for each in asked] == [
        (row["question"], row["kind"], row["context"]) for row in rows
    ]
    assert set(texts.values()) >= {row["wrong_context"] for row in rows if "wrong_context" in row}
    task = load_task(tmp_path / "task" / "task.yaml", folder=tmp_path)
    assert (task.suite, task.template) == ("open", "{{ text }}")


def test_the_wrong_block_is_the_one_of_another_article_without_an_answer_that_shares_the_rarest_words() -> None:
    blocks = {"Oslo": "Oslo is the capital of Norway.", "Bergen": "Bergen lies in Norway, by the fjord.",
              "Fjord": "A fjord is deep.", "Norway": "The capital of Norway is Oslo, by the fjord."}  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"question": f"Which capital of Norway? <mask> {title}.", "answers": ["Oslo"], "title": title, "context": block}
        for title, block in blocks.items()
    ]
    rows[2]["question"] = "A fjord of Norway is <mask>."
    add_wrong_contexts(rows)
    # the article Norway, which would be the best of all, has the answer
    assert [row.get("wrong_title") for row in rows] == ["Bergen", None, "Bergen", "Bergen"]
    assert rows[0]["wrong_context"] == blocks["Bergen"]


@pytest.mark.parametrize(
    ("question", "answer", "statement"),
    [
        ("Who wrote Emma?", "Jane Austen", "<mask> wrote Emma."),
        ("What is the capital  of Peru ?", "Lima", "The capital of Peru is <mask>."),
        ("Who were Darwin's  teachers?", "Grant", "Darwin's teachers were <mask>."),
        ("When was the bridge opened?", "1972", "The bridge was opened in <mask>."),
        ("when was Ada Lovelace born", "10 December 1815", "Ada Lovelace was born on <mask>."),
        ("In which city was the relay held in May?", "Rome", "The relay was held in May in <mask>."),
        ("When was the mill built?", "the 19th century", "The mill was built in <mask>."),
        ("Where was it signed?", "10 Downing Street", "It was signed in <mask>."),
        ("When was it held?", "in May", None),  # "in in May"
        ("Where was the place the relay was held?", "Rome", None),  # the first verb is not that of the question
        ("When did the war end?", "1918", None),
        ("Who did he marry?", "Ann", None),
        ("What was the bridge built of?", "iron", None),
        ("Along with Rome, who is the capital's rival?", "Milan", None),
        ("The capital is <mask>.", "Lima", None),
        ("?", "Lima", None),
    ],
)
def test_a_question_becomes_a_statement_where_the_order_of_its_words_allows(
    question: str, answer: str, statement: str | None
) -> None:
    assert statement_of(question, answer) == statement


def test_statements_keep_the_row_of_their_question(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    told = {"answers": ["Lima"], "title": "Peru", "context": "Lima is the capital of Peru.", "start": 0}
    questions = ["What is the capital of Peru?", "Why is it Lima?"]
    asked.write_text("".join(json.dumps({"question": each} | told) + "\n" for each in questions), encoding="utf-8")
    (row,) = made(tmp_path, "statements", f"files=[{asked}]")
    assert (row["question"], row["asked"], row["answers"]) == ("The capital of Peru is <mask>.", questions[0], ["Lima"])
    assert [each["question"] for _, each in read_questions([str(tmp_path / "made.jsonl")])] == [row["question"]]


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["files=[a]", "out=b"]
    for arguments in (
        ["entities"],
        ["facts", *given],
        *(["entities", *given, x] for x in ("k=1", "seed=x", "limit=-1")),
    ):
        assert main(arguments) == 2
        assert "error" in capsys.readouterr().err
