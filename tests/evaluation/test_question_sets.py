"""Question sets by style and kind: the three domains, those made of articles, and the table over their evaluation."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from npm.cli.main import main
from npm.core.errors import CorpusError
from npm.core.types import MASK_TEXT, Document
from npm.evaluation.data import read_task
from npm.evaluation.tasks import load_task
from scripts.make_article_questions import PHRASES, content_words, make_task, passages_of
from scripts.make_article_questions import main as make_article_questions
from scripts.make_synthetic_time import DATES, KINDS
from scripts.make_synthetic_time import main as make_synthetic_time
from scripts.make_unseen_words import SCRIPTS, invented_names, names_in
from scripts.make_unseen_words import main as make_unseen_words
from scripts.question_table import main as question_table

DOMAINS = Path(__file__).parents[1] / "domains"
FIRST = "Vienna is the capital of Austria and lies on the river Danube near the Alps."
SECOND = "The city of Vienna was besieged for 45 days by a large army of the Ottoman Empire from September 27, 1529."
THIRD = "A second siege of the city of Vienna by an army lasted 45 days too and began on September 27, 1529."
ARTICLE = Document("vienna", "Vienna", f"{FIRST}\nHistory.\n{SECOND}\nLater years.\n{THIRD}")


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def read_page(file: Path) -> str:
    """The words of a page as a reader sees them, one space between them."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"(?s)<(script|style|nav).*?</\1>", " ", text)))
    elif file.suffix == ".md":
        text = re.sub(r"[*`\[\]]", "", re.sub(r"\]\([^)]*\)|\]\[[^\]]*\]", "", text))
    return " ".join(text.split())


@pytest.mark.parametrize("domain", ["handbook", "statutes", "textbook"])
def test_a_copy_is_a_sentence_of_its_page_and_a_paraphrase_is_not(domain: str) -> None:
    rows = rows_of(DOMAINS / domain / "questions.jsonl")
    kinds = ("number", "date", "name", "term", "phrase")
    assert Counter((row["style"], row["kind"]) for row in rows) == dict.fromkeys(
        product(("copy", "paraphrase"), kinds), 4
    )
    for row in rows:
        page = read_page(DOMAINS / domain / "pages" / row["document"])
        assert all(answer in page for answer in row["answers"]), row["id"]
        filled = [row["text"].replace(MASK_TEXT, answer) in page for answer in row["answers"]]
        assert any(filled) == (row["style"] == "copy"), row["id"]


@pytest.mark.parametrize(
    ("kind", "sentence", "phrases"),
    [
        (
            "number",
            "It took 45 days, cost $15,000 and grew by 12.5% to 3.2 million tonnes.",
            ["45 days", "$15,000", "12.5%", "3.2 million tonnes"],
        ),
        ("number", "In 1529 the 2nd of 300 men, 45-day leave, 3–5 km and version 2.0 of it.", ["300 men"]),
        (
            "date",
            "From January 2, 2031 to 3 March 2031, in May 2032 and on June 5 again.",
            ["January 2, 2031", "3 March 2031", "May 2032", "June 5"],
        ),
        ("date", "In 1529, in March, and from 12–14 May 2010.", []),
        (
            "phrase",
            "It was the calibration committee of Vienna, a post-war building.",
            ["calibration committee", "post-war building"],
        ),
        ("phrase", "Seen by a Viennese town clerk in spring, 1529.", ["spring"]),
    ],
)
def test_a_quantity_or_date_is_complete(kind: str, sentence: str, phrases: list[str]) -> None:
    assert [match[1] for match in PHRASES[kind].finditer(sentence)] == phrases


def test_a_passage_has_full_sentences_and_ends_at_a_heading() -> None:
    assert passages_of(ARTICLE.text) == [[FIRST], [SECOND], [THIRD]]
    sentence = "one two three four five six seven eight nine ten."
    assert [len(each) for each in passages_of(f"{sentence[:1].upper()}{sentence[1:]} " * 10)] == [9, 1]
    assert content_words("The cities of Vienna") == {"city", "vienna"}


def test_a_copy_keeps_its_sentence_in_the_corpus_and_a_paraphrase_does_not() -> None:
    documents = [
        Document(f"town-{letter}", f"Town{letter}", ARTICLE.text.replace("Vienna", f"Town{letter}"))
        for letter in "abcd"
    ]
    questions, corpus = make_task(documents, count=8, seed=0)
    texts = {passage.id: passage.text for passage in corpus}
    assert {f"{document.id}#0" for document in documents} <= set(texts)
    assert {(question.kind, question.style) for question in questions} >= set(
        product(("number", "date"), ("copy", "paraphrase"))
    )
    for question in questions:
        (answer,) = question.answers
        sentence = question.text.replace(MASK_TEXT, answer)
        assert answer in texts[question.document]
        assert (sentence in texts[question.document]) == (question.style == "copy")
        assert question.removed not in texts
    assert make_task(documents, count=8, seed=0) == (questions, corpus)


def test_a_made_task_is_asked_and_told_by_style_and_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    articles = tmp_path / "articles.jsonl"
    rows = [
        {"id": f"town-{letter}", "title": f"Town{letter}", "text": ARTICLE.text.replace("Vienna", f"Town{letter}")}
        for letter in "abcd"
    ]
    articles.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task, index, out = tmp_path / "task", tmp_path / "index", tmp_path / "out"
    make_article_questions(str(task), str(articles), "8")
    assert main(["build", f"corpus.files=[{task / 'corpus.jsonl'}]", f"index={index}"]) == 0
    given = [f"task={task / 'task.yaml'}", f"index={index}", f"out={out}", "method=[npm-bm25]", "resamples=20"]
    assert main(["evaluate", *given]) == 0
    capsys.readouterr()
    question_table([str(task / "questions.jsonl"), str(out)])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    counts = {name.partition(": ")[2]: int(count) for name, count, *_ in cells}
    asked = rows_of(task / "questions.jsonl")
    assert counts["all"] == counts["copy"] + counts["paraphrase"] == len(asked)
    assert counts["date, copy"] == sum(row["kind"] == "date" and row["style"] == "copy" for row in asked)
    assert main(["evaluate", *given, "limit=3", "overwrite=true"]) == 0
    capsys.readouterr()
    question_table([str(task / "questions.jsonl"), str(out)])
    assert "| npm-bm25: all | 3 |" in capsys.readouterr().out
    (tmp_path / "others.jsonl").write_text(json.dumps({"answers": ["another"]}), encoding="utf-8")
    with pytest.raises(SystemExit, match="no evaluation of"):
        question_table([str(tmp_path / "others.jsonl"), str(out)])


def test_invented_names_are_new_in_every_spelling() -> None:
    assert sorted(names_in("in New York City")) == ["City", "New", "New York", "New York City", "York", "York City"]
    rng = np.random.default_rng(0)
    known = {"anna", *(word.translate(SCRIPTS["greek"]) for word in ("annar", "annan"))}
    words = invented_names(["Anna", "Annabel", "Annarosa", "Hanna", "Susanna"], known, rng)
    found = [next(words) for _ in range(5)]
    assert len(set(found)) == 5 and not {"anna", "annar", "annan"} & {*found}
    assert all(5 <= len(word) <= 10 and {*word} <= {*"annabelhrosu"} for word in found)
    with pytest.raises(CorpusError, match="no new name"):
        next(invented_names(["Abc"], set(), rng))


def test_a_name_is_replaced_wherever_its_documents_have_it(tmp_path: Path) -> None:
    mill = "The old mill of the {} valley was built by Marlowe near a river."
    rows = [{"id": n, "title": f"Town {n}", "text": mill.format(n)} for n in ("north", "south")]
    sea = {"title": "Susanna", "text": "Ships of Marianne, Annabella and Gustavson sail over Atlantic waters."}
    rows += [sea | {"id": str(number)} for number in range(9)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    make_unseen_words(str(tmp_path / "out"), str(corpus), "5")
    asked = {v: rows_of(tmp_path / f"out/{v}-questions.jsonl") for v in ("original", "latin", "cyrillic")}
    assert asked["original"][0]["answers"] == ["Marlowe"]
    for variant, (question, *_) in asked.items():
        (name,) = question["answers"]
        passages = rows_of(tmp_path / f"out/{variant}.jsonl")[:2]
        assert question["text"] == asked["original"][0]["text"] and MASK_TEXT in question["text"]
        assert all(name in row["text"] for row in passages)
        assert question["source"] in {row["source"] for row in passages}
        assert ("Marlowe" in passages[0]["text"]) == (variant == "original")
    assert rows_of(tmp_path / "out/other.jsonl")[0]["source"] == "other"
    assert load_task(str(tmp_path / "out/latin.yaml"), folder=tmp_path).where == ["source!={source}"]


def test_half_of_the_synthetic_facts_change_and_the_task_asks_them(tmp_path: Path) -> None:
    make_synthetic_time(str(tmp_path), "24")
    before, after = (rows_of(tmp_path / f"{date}.jsonl") for date in DATES)
    changed = [a["text"] != b["text"] for a, b in zip(before, after, strict=True)]
    assert [row["id"] for row in before] == [row["id"] for row in after] and sum(changed) == 12
    assert all(sum(changed[kind :: len(KINDS)]) == 3 for kind in range(len(KINDS)))
    assert len(rows_of(tmp_path / "both.jsonl")) == 48 and rows_of(tmp_path / "both.jsonl")[0]["id"] == "fact-0@2019"
    for date in DATES:
        found = read_task(load_task(str(tmp_path / f"task-{date}.yaml"), folder=tmp_path))
        assert len(found) == 24 and sum("changed" in each.subsets for each in found) == 12
        assert all(bool(each.old_answers) == ("changed" in each.subsets) for each in found)
    with pytest.raises(ValueError, match="multiple of 8"):
        make_synthetic_time(str(tmp_path), "12")
