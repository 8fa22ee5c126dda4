"""Parts of PDF, Word, PowerPoint and EPUB files, and sections of pages: text, places, faults, changes by file."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.core.errors import CorpusError, SettingError
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.html_pages import page_text
from npm.corpus.markdown import markdown_text
from npm.corpus.markup import sections, visible
from npm.corpus.settings import CorpusSettings, DocumentSplit
from tests.helpers.command_line import CommandLine
from tests.helpers.office_files import write_docx, write_epub, write_pdf, write_pptx

Found = list[tuple[str, str, str, dict[str, object]]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*files: object, skipped: SkippedRecords | None = None, **options: object) -> Found:
    """Id, title, squeezed text and fields of each document."""
    settings = CorpusSettings(files=list(map(str, files)), **options)  # type: ignore[arg-type]
    return [
        (each.id, each.title, " ".join(visible(each.text).split()), each.fields)
        for each in read_corpus(settings, skipped=skipped)
    ]


def test_a_pdf_is_read_page_by_page_and_lines_are_joined() -> None:
    pytest.importorskip("pypdfium2")
    path = write_pdf(Path("leave.pdf"), ["Parents may take 45\ndays of paren-\ntal leave.", "", "Ask Ana."])
    assert read(path) == [
        ("leave.pdf, page 1", "leave", "Parents may take 45 days of parental leave.", {"file": "leave.pdf", "page": 1}),
        ("leave.pdf, page 3", "leave", "Ask Ana.", {"file": "leave.pdf", "page": 3}),
    ]
    assert [title for _, title, *_ in read(write_pdf(path, ["Ask Ana."], title="Leave rules"))] == ["Leave rules"]
    assert [text for *_, text, _ in read(write_pdf(path, ["Ask Ana.\n3", "0\n0\n_a_"]))] == ["Ask Ana. 3", "0 0 _a_"]


@given(
    st.lists(st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,7}( [A-Za-z0-9]{1,8}){0,5}", fullmatch=True), max_size=4))
)
def test_pages_of_a_pdf_have_the_words_that_were_written(pages: list[list[str]]) -> None:
    pytest.importorskip("pypdfium2")
    path = write_pdf(Path("any.pdf"), ["First.", *("\n".join(lines) for lines in pages)])
    expected = {number: " ".join(lines) for number, lines in enumerate(pages, start=2) if lines}
    found = {fields["page"]: text for _, _, text, fields in read(path, join_lines=False)}
    assert found == {1: "First.", **expected}


def test_a_word_file_is_cut_at_its_headings() -> None:
    pytest.importorskip("mammoth")
    paragraphs = [("Title", "Handbook"), ("Normal", "For all."), ("heading 1", "Leave"), ("heading 2", "Parental")]
    assert read(write_docx(Path("hand.docx"), [*paragraphs, ("Normal", "45 days &amp; more.")])) == [
        ("hand.docx, section 1", "Handbook", "Handbook For all.", {"file": "hand.docx", "heading": "Handbook"}),
        (
            *("hand.docx, section 2", "Handbook, Parental", "Leave Parental 45 days & more."),
            {"file": "hand.docx", "heading": "Parental"},
        ),
    ]


def test_slides_come_in_the_order_of_the_presentation_with_tables_and_notes() -> None:
    slides: list[tuple[str, list[str], list[list[str]]]]
    slides = [("Plan", ["We ship in May."], [["site", "head"], ["Oslo", "Ana"]]), ("", ["Thanks."], [])]
    assert read(write_pptx(Path("plan.pptx"), slides, notes="Say hello.")) == [
        (
            *("plan.pptx, slide 1", "plan, Plan", "Plan We ship in May. site | head Oslo | Ana Say hello."),
            {"file": "plan.pptx", "page": 1, "heading": "Plan"},
        ),
        ("plan.pptx, slide 2", "plan", "Thanks.", {"file": "plan.pptx", "page": 2}),
    ]


def test_chapters_of_a_book_come_in_reading_order() -> None:
    chapters = ["<h1>One</h1><p>It began.</p>", "<head><title>Two</title></head><p>It ended.</p>"]
    assert read(write_epub(Path("tale.epub"), "A tale", chapters)) == [
        ("tale.epub, section 1", "A tale, One", "One It began.", {"file": "tale.epub", "heading": "One"}),
        ("tale.epub, section 2", "A tale, Two", "It ended.", {"file": "tale.epub", "heading": "Two"}),
    ]


def test_pages_of_text_are_cut_at_headings_where_the_setting_says_so() -> None:
    front = "---\ntitle: Leave\nteam: x\n---\n"
    Path("a.md").write_text(f"{front}Intro.\n# One\nText.\n\nTwo\n---\nMore.\n", encoding="utf-8")
    Path("b.html").write_text("<title>Travel</title><h1>Trains</h1><h2>Night <i>trains</i></h2>Ask.", encoding="utf-8")
    Path("c.txt").write_text("# no mark\n\nhere", encoding="utf-8")
    assert read(".", split=DocumentSplit.heading, kept_fields=["team"]) == [
        ("a.md, section 1", "Leave", "Intro.", {"file": "a.md", "team": "x"}),
        ("a.md, section 2", "Leave, One", "One Text.", {"file": "a.md", "team": "x", "heading": "One"}),
        ("a.md, section 3", "Leave, Two", "Two More.", {"file": "a.md", "team": "x", "heading": "Two"}),
        (
            *("b.html, section 1", "Travel, Night trains", "Trains Night trains Ask."),
            {"file": "b.html", "heading": "Night trains"},
        ),
        ("c.txt", "c", "# no mark here", {}),
    ]


@given(st.lists(st.sampled_from(["# A\n", "## B c\n", "text\n", "\n", "# \n", "Under\n===\n", "- item\n"])))
def test_sections_are_the_text_between_headings_without_loss(lines: list[str]) -> None:
    for found in (
        markdown_text("".join(lines)),
        page_text("".join(lines).replace("# A\n", "<h1>A</h1>").replace("## B c", "<h3>B <b>c</b></h3>")),
    ):
        cut = [*sections(found)]
        assert "".join(text for _, text in cut).split() == found.text.split()
        assert all(" ".join(visible(text).split()) for _, text in cut)
        assert all(name in " ".join(visible(text).split()) for name, text in cut)


@pytest.mark.parametrize("name", ["broken.pdf", "broken.docx", "broken.pptx", "broken.epub"])
def test_a_file_that_cannot_be_converted_is_named_and_may_be_skipped(name: str) -> None:
    pytest.importorskip("pypdfium2")
    pytest.importorskip("mammoth")
    Path(name).write_bytes(b"no such file")
    Path("good.txt").write_text("Good.", encoding="utf-8")
    with pytest.raises(CorpusError, match=rf"{name}: cannot be converted: .*save it again"):
        read(".")
    assert [text for _, _, text, _ in read(".", skip_bad=True)] == ["Good."]


@pytest.mark.parametrize(("name", "package"), [("a.pdf", "pypdfium2"), ("a.docx", "mammoth")])
def test_a_missing_package_is_named_with_the_file(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    Path(name).write_bytes(b"any")
    with pytest.raises(SettingError, match=rf"{name}.*pip install .*{package}"):
        read(name)


def test_charts_are_named_as_left_out(tmp_path: Path) -> None:
    pytest.importorskip("mammoth")
    files = (
        write_docx(Path("plan.docx"), [("Normal", "Sales grew.")]),
        write_pptx(Path("plan.pptx"), [("Plan", [], [])]),
    )
    for file, folder in zip(files, ("word", "ppt"), strict=True):
        with ZipFile(file, "a") as archive:
            archive.writestr(f"{folder}/charts/chart1.xml", "<c:chartSpace/>")
    skipped = SkippedRecords(tmp_path / "skipped.jsonl")
    assert len(read(*files, skipped=skipped)) == 2
    assert skipped.kinds == {"has charts, whose numbers are not read": 2} and "plan.docx" in skipped.summary


def test_scanned_pages_are_named_not_refused(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    skipped = SkippedRecords(tmp_path / "skipped.jsonl")
    paths = write_pdf(Path("all.pdf"), [None, None]), write_pdf(Path("some.pdf"), ["Read.", None])
    assert [text for _, _, text, _ in read(*paths, skipped=skipped)] == ["Read."]
    noted = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(each["where"], each["problem"].partition(":")[0]) for each in noted] == [
        ("all.pdf", "2 pages, 1, 2"),
        ("some.pdf", "1 pages, 2"),
    ]
    with pytest.raises(CorpusError, match="has no text"):
        read(write_pdf(Path("empty.pdf"), ["", ""]))


def test_answers_name_pages_and_files_are_replaced_and_deleted_as_one(
    tiny_encoder_folder: Path, npmlm: CommandLine
) -> None:
    pytest.importorskip("pypdfium2")
    pages = [f"The office of region {number} was opened by Ana Duarte in {number}." for number in range(3)]
    write_pdf(Path("offices.pdf"), pages)
    write_epub(Path("tale.epub"), "A tale", ["<p>The inn was opened by Tomas Lind in Oslo.</p>"])
    files, index = "corpus.files=[offices.pdf,tale.epub]", "index=i"
    own = [f"encoder={tiny_encoder_folder}", "copy_encoder=true", "blocks.max_block_tokens=64"]
    assert npmlm("build", files, index, *own).status == 0
    assert npmlm("build", files, "index=again", *own).status == 0
    for path in (path for path in Path("i").rglob("*") if path.is_file()):
        assert path.read_bytes() == Path("again", *path.parts[1:]).read_bytes()

    def answering(*settings: str) -> set[str]:
        outcome = npmlm("fill", index, "k=50", "output=json", *settings, "The place was opened by <mask>.")
        assert outcome.status == 0, outcome.err
        phrases = json.loads(outcome.out)["phrases"]
        return {place["document"] for phrase in phrases for place in phrase["occurrences"]}

    assert answering("where=[page>=3]") == {"offices.pdf, page 3"}
    assert answering("where=[file=tale.epub]") == {"tale.epub, section 1"}
    table = npmlm("fill", index, "k=1", "where=[page=2]", "It was opened by <mask>.")
    assert "offices (offices.pdf, page 2)" in table.out

    assert json.loads(npmlm("inspect", index, "output=json").out)["kept_fields"] == ["file", "page", "heading"]

    write_pdf(Path("offices.pdf"), ["The office was opened by Priya Raman."])
    assert npmlm("add", index, "corpus.files=[offices.pdf]").status == 2
    outcome = npmlm("add", index, "corpus.files=[offices.pdf]", "replace=true")
    assert (outcome.status, "3 deleted" in outcome.err) == (0, True)
    assert answering() == {"offices.pdf, page 1", "tale.epub, section 1"}
    assert npmlm("delete", index, "ids=[offices.pdf]").status == 0
    assert npmlm("delete", index, "ids=[offices.pdf]").status == 0  # resumes what is done
    assert answering() == {"tale.epub, section 1"}
    assert npmlm("delete", index, "ids=[office.pdf]").status == 2


@pytest.mark.parametrize(("built", "added"), [("heading", "file"), ("file", "heading"), ("heading", "heading")])
def test_a_page_of_text_is_replaced_as_one_whether_it_was_cut_or_not(
    built: str, added: str, tiny_encoder_folder: Path, npmlm: CommandLine
) -> None:
    room = "The reading room of the first floor is called {}."
    pages = Path("rooms.md"), Path("other.html")
    for page in pages:
        page.write_text(f"# Rooms\n## First\n{room.format('Linden')}\n## Second\nMaple has a long table.\n")
    own = [f"encoder={tiny_encoder_folder}", "copy_encoder=true", "blocks.max_block_tokens=64"]
    assert npmlm("build", "corpus.files=[rooms.md,other.html]", f"corpus.split={built}", "index=i", *own).status == 0
    pages[0].write_text(f"# Rooms\n## First\n{room.format('Willow')}\n")
    command = ("add", "index=i", "corpus.files=[rooms.md]", f"corpus.split={added}")
    npmlm(*command).refused("rooms.md", "replace=true")
    assert npmlm(*command, "replace=true").status == 0
    found = npmlm("find", "index=i", "output=json", "Linden")
    assert "rooms.md" not in found.out and "other.html" in found.out
    assert "rooms.md" in npmlm("find", "index=i", "output=json", "Willow").out


def test_records_that_resemble_parts_are_not_taken_for_them(tiny_encoder_folder: Path, npmlm: CommandLine) -> None:
    text = "The function of this part was written by Ana Duarte in Lisbon."
    ids = ["a.py, part 1", "a.py, part 2", "a.pdf, page 1", "a.pdf, page 2"]
    records = [json.dumps({"id": each, "file": each[: each.index(",")], "text": text}) for each in ids]
    Path("all.jsonl").write_text("\n".join(records))
    Path("new.jsonl").write_text("\n".join(records[::2]))
    own = [f"encoder={tiny_encoder_folder}", "copy_encoder=true", "blocks.max_block_tokens=64"]
    assert npmlm("build", "corpus.files=[all.jsonl]", "corpus.kept_fields=[file]", "index=i", *own).status == 0
    npmlm("delete", "index=i", "ids=[a.py]").refused("a.py")
    outcome = npmlm("add", "index=i", "corpus.files=[new.jsonl]", "replace=true")
    assert "2 documents added, 2 deleted, 4 answer" in outcome.err
