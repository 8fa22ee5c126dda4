"""Folders of text, Markdown and HTML files: documents, front matter, ids, faults; answers that point into a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.corpus.documents import read_corpus
from npm.corpus.markup import visible
from npm.corpus.settings import CorpusSettings
from tests.helpers.command_line import CommandLine

FILES = {
    "handbook/leave/parental.md": "\ufeff---\r\ntitle: Parental leave\r\nsince: 2024-05-01\r\nteams: [a, b]\r\n"
    "unused: 1\r\n---\r\n\r\n# Leave\r\n\r\nParents **may\r\nleave** for [45 days](/x.html).\r\n",
    "handbook/history.txt": "The Office of\nCommunications was opened\nby Ana Duarte in 1999.\n",
    "handbook/travel.html": "<title>Travel</title><p>Flights &amp; trains are booked by\n<b>Priya</b> Raman.",
    "handbook/rules.md": "+++\ntitle = 7\nsince = 2020-01-02T03:04:05\n+++\nNo smoking.\n",
    "handbook/.git/notes.md": "hidden",
    "handbook/.draft.md": "hidden",
    "handbook/picture.png": "no text",
    "handbook/empty.md": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode())
    Path("elsewhere").mkdir()
    Path("elsewhere/linked.md").write_text("not below the folder", encoding="utf-8")
    Path("handbook/link").symlink_to(tmp_path / "elsewhere")
    return tmp_path


def read(*files: str, **options: object) -> list[Document]:
    return list(read_corpus(CorpusSettings(files=list(files), **options)))  # type: ignore[arg-type]


def test_a_folder_is_a_corpus_whose_ids_are_paths(folder: Path) -> None:
    documents = read("handbook/", kept_fields=["since", "teams"])
    assert [(document.id, document.title, document.fields) for document in documents] == [
        ("handbook/history.txt", "history", {}),
        ("handbook/leave/parental.md", "Parental leave", {"since": "2024-05-01", "teams": ["a", "b"]}),
        ("handbook/rules.md", "7", {"since": "2020-01-02T03:04:05"}),
        ("handbook/travel.html", "Travel", {}),
    ]
    assert [" ".join(visible(document.text).split()) for document in documents] == [
        "The Office of Communications was opened by Ana Duarte in 1999.",
        "Leave Parents may leave for 45 days.",
        "No smoking.",
        "Flights & trains are booked by Priya Raman.",
    ]
    assert [len(document.text) for document in documents] == [len(FILES[document.id]) for document in documents]
    assert read(str(folder / "handbook"))[0].id == f"{folder}/handbook/history.txt"


def test_text_between_two_rules_is_no_front_matter(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nOne line of text\n---\nMore", encoding="utf-8")
    [document] = read(str(tmp_path / "a.md"))
    assert visible(document.text).split() == ["One", "line", "of", "text", "More"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.md", b"---\ntitle: [1\n---\nText", "a.md:1: has broken front matter"),
        ("a.md", b"---\nday: 2024-13-45\n---\nText", "a.md:1: has broken front matter"),
        ("a.md", b"---\na: &a [x, x]\ntitle: [*a, *a]\n---\nText", "a.md:1: has broken front matter"),
        ("a.md", b"+++\ntitle = \n+++\nText", "a.md:1: has broken front matter"),
        ("a.md", b"---\ntitle: x\n---\n\n<!-- nothing -->\n", "a.md: has no text"),
        ("a.html", b"<html><script>x()</script><p> &nbsp; </p>", "a.html: has no text"),
        ("a.html", b"<p>\0\1\2", r"a\.html:1: .* not text"),
        ("a.html", b"<p>caf\xe9", r"a\.html:1: not UTF-8"),
        ("a.txt", b"one\n\x89PNG\xff", r"a\.txt:2: not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message_and_may_be_skipped(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text("Good.", encoding="utf-8")
    with pytest.raises(CorpusError, match=problem):
        read(str(tmp_path))
    assert [document.text for document in read(str(tmp_path), skip_bad=True)] == ["Good."]


def test_answers_from_a_folder_point_into_the_files_as_given(
    folder: Path, tiny_encoder_folder: Path, npmlm: CommandLine
) -> None:
    given = [f"encoder={tiny_encoder_folder}", "blocks.max_block_tokens=64", "copy_encoder=true"]
    for _ in range(2):  # the second time with an index in the folder
        outcome = npmlm("build", "corpus.files=[handbook/]", "index=handbook/index", *given)
        assert outcome.status == 0, outcome.err
    expected = {"leave/parental.md": "days", "history.txt": "duarte", "travel.html": "raman"}
    for name, found in expected.items():
        identifier = f"handbook/{name}"
        outcome = npmlm(
            "fill", "index=handbook/index", "k=40", f"documents=[{identifier}]", "output=json", "It is <mask>."
        )
        assert outcome.status == 0, outcome.err
        phrases = json.loads(outcome.out)["phrases"]
        read = set()
        for phrase in phrases:
            for place in phrase["occurrences"]:
                surface = FILES[identifier][place["start_char"] : place["end_char"]]
                words = re.findall(r"\w+", re.sub(r"amp;|</?b>|\]\(.*\)", "", surface.casefold()))
                assert words == re.findall(r"\w+", visible(phrase["phrase"].casefold()))
                read.update(words)
        assert found in read
