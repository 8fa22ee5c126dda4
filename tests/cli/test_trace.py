"""`npmlm find` and `npmlm trace` on the demo corpus and on a tiny one: forms of output, exit statuses, mistakes."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import pytest

import npm
from tests.helpers.command_line import CommandLine

TEXT = "The Mona Lisa was begun by Michelangelo around 1503.\nIt is in the museum of Zyzzyva."


def test_find_prints_counts_and_places(npmlm: CommandLine, built_index: Path) -> None:
    outcome = npmlm("find", f"index={built_index}", "capital  OF", "show=2").done()
    assert "2 places in 2 documents" in outcome.out.splitlines()[0]
    assert "Reykjavík is the «capital of» Iceland." in outcome.out and "(france)" in outcome.out
    both = npmlm("find", f"index={built_index}", "output=json", "Paris", "Kraków")
    assert [(each["phrase"], each["count"]) for each in both.answers()] == [("Paris", 2), ("Kraków", 1)]
    place = both.answers()[0]["occurrences"][1]
    assert (place["document"], place["start_char"]) == ("france", 60)
    nowhere = npmlm("find", f"index={built_index}", "match_case=true", "paris", "output=json")
    assert (nowhere.status, nowhere.answers()[0]["count"]) == (1, 0)


def test_trace_tells_what_the_corpus_has_where(npmlm: CommandLine, demo_index: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft.txt"
    draft.write_text(TEXT, encoding="utf-8")
    outcome = npmlm("trace", f"index={demo_index}", draft, "output=json", "fail_on=[other]")
    assert outcome.status == 1
    (found,) = outcome.answers()
    assert (found["file"], found["text"]) == (str(draft), TEXT)
    spans = {span["text"]: span for span in found["spans"]}
    for span in found["spans"]:
        assert TEXT[span["start_char"] : span["end_char"]] == span["text"]
    assert list(spans) == ["Mona Lisa", "Michelangelo", "1503", "Zyzzyva"]
    assert spans["Mona Lisa"]["verdict"] == spans["1503"]["verdict"] == "found"
    assert spans["1503"]["place"]["document"] == "painting-mona-lisa"
    wrong = spans["Michelangelo"]
    assert (wrong["verdict"], wrong["other"]) == ("other", "Leonardo da Vinci")
    assert (
        wrong["other_place"]["document"] == "painting-mona-lisa" and wrong["place"]["document"] != "painting-mona-lisa"
    )
    assert spans["Zyzzyva"]["verdict"] != "found" and spans["Zyzzyva"]["place"] is None
    again = npm.trace(TEXT, demo_index, kinds=["date"])
    assert [(span.text, span.verdict, span.support) for span in again.spans] == [
        ("1503", "found", spans["1503"]["support"])
    ]


def test_a_draft_sends_nothing_to_the_terminal(npmlm: CommandLine, demo_index: Path) -> None:
    outcome = npmlm(
        "trace", f"index={demo_index}", 'He said "the evil \x1b]0;x\x07 text of \x1b[31m Paris" in Paris.'
    ).done()
    assert "evil" in outcome.out and "\x1b]0" not in outcome.out and "\x07" not in outcome.out


def test_trace_marks_spans_or_writes_rows(npmlm: CommandLine, demo_index: Path) -> None:
    marks = npmlm("trace", f"index={demo_index}", "kinds=[name]", TEXT.splitlines()[0]).done()
    assert marks.out.startswith("The Mona Lisa[1] was begun by Michelangelo[2] around 1503.")
    assert (
        "Michelangelo → Leonardo da Vinci" in marks.out
        and "2 spans: 1 found, 0 supported, 1 other, 0 not found" in marks.out
    )
    assert max(map(len, marks.out.splitlines())) <= 80
    piped = npmlm("trace", f"index={demo_index}", "output=csv", stdin=b"Nothing here.\nThe Mona Lisa, 1503")
    rows = list(csv.DictReader(io.StringIO(piped.out)))
    assert [(row["text"], row["start_char"], row["place"]) for row in rows] == [
        ("Mona Lisa", "18", "painting-mona-lisa"),
        ("1503", "29", "painting-mona-lisa"),
    ]


def test_the_page_of_a_trace_links_spans_to_sentences(npmlm: CommandLine, demo_index: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    text = "The Mona Lisa was begun by Michelangelo & <script>friends</script>."
    outcome = npmlm("trace", f"index={demo_index}", f"out={report}", text, "fail_on=[other]")
    assert (outcome.status, "Michelangelo" in outcome.out) == (1, True)
    page = report.read_text(encoding="utf-8")
    assert "<script" not in page and not re.findall(r"(?:src|href)=\"(?!#)", page)
    shown = re.search(r'<p class="text">(.*?)</p>', page, re.DOTALL)
    assert shown is not None and unescape(re.sub(r"<[^>]*>", "", shown[1])) == text
    links = re.findall(r'<a class="(\w+)[\w ]*" href="#([\w-]+)">([^<]*)</a>', page)
    assert [(verdict, span) for verdict, _, span in links] == [("found", "Mona Lisa"), ("other", "Michelangelo")]
    assert re.findall(r'<li id="([\w-]+)"', page) == [anchor for _, anchor, _ in links]
    assert "<b>Leonardo da Vinci</b>" in page and "by <mark>Leonardo da Vinci</mark>" in page


def test_trace_reads_files_without_an_index(
    npmlm: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "depots.md").write_text("The depot in Porto opened in 1998.\n")
    outcome = npmlm("trace", f"files={folder}", "output=json", "The depot in Porto opened in 1998. So did Graz.")
    spans = {span["text"]: span for span in json.loads(outcome.out)["spans"]}
    assert spans["1998"]["verdict"] == "found" and spans["1998"]["place"]["document"] == f"{folder}/depots.md"
    assert spans["Graz"]["verdict"] == "not_found"
    monkeypatch.setattr("sys.stdin", None)
    npmlm("trace", "Paris").refused("index=DIR or files=FOLDER")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["find", "of the"], ["function words", "of the"]),
        (["find"], ["required"]),
        (["find", "Paris", "documents=[nowhere]"], ["nowhere"]),
        (["trace"], ["required"]),
        (["trace", "Paris", "files=docs"], ["index=DIR", "files", "one"]),
        (["trace", "Paris", "kinds=[names]"], ["kinds", "names", "'name'"]),
        (["trace", "Paris", "fail_on=[wrong]"], ["fail_on", "wrong"]),
        (["trace", " "], ["empty"]),
        (["trace", "Paris", "out=report.pdf"], ["out", "report.pdf", ".html"]),
    ],
)
def test_mistakes_are_one_sentence(
    npmlm: CommandLine, built_index: Path, arguments: list[str], parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    npmlm(arguments[0], f"index={built_index}", *arguments[1:]).refused(*parts)


def test_a_file_that_is_not_there_or_not_utf8_is_refused(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    npmlm("trace", f"index={built_index}", "draft.txt").refused("draft.txt")
    npmlm("trace", f"index={built_index}", "my missing draft.txt").refused("my missing draft.txt")
    npmlm("trace", f"index={built_index}", "caf\udce9.txt").refused("not valid Unicode")
    (tmp_path / "draft.html").write_text("Paris")
    npmlm("trace", f"index={built_index}", tmp_path / "draft.html", f"out={tmp_path / 'draft.html'}").refused("out=")
    (tmp_path / "draft.txt").write_bytes(b"Paris \xff")
    npmlm("trace", f"index={built_index}", tmp_path / "draft.txt").refused("draft.txt", "0xff", "6")
    assert json.loads(npmlm("trace", f"index={built_index}", "so it is", "output=json").out)["spans"] == []
