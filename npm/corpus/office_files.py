"""The parts of `.pdf`, `.docx`, `.pptx` and `.epub` files: pages, slides, and sections between headings."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from npm.core.errors import CorpusError, SettingError
from npm.corpus.html_pages import page_text
from npm.corpus.markdown import joined_lines
from npm.corpus.markup import CELL, HEADER_CELL, HIDDEN, SUPERSCRIPTS, sections
from npm.corpus.readers import MAX_LINE_BYTES, OnBad, open_text
from npm.corpus.sources import StoredFile

if TYPE_CHECKING:
    from pypdfium2 import PdfPage, PdfTextPage

Part = tuple[str, str, str | None]
"""Title of the file, heading, and text; None for a page that is a picture."""

FULL_LINE = 0.85
"""Fraction of a long line of its page that a line fills if the paragraph continues."""
REPAIR = "open the file in its program and save it again, without a password, or leave it out"
_CHART = re.compile(r"(?:word|ppt)/charts/chart\d*\.xml")
_BROKEN_WORD = re.compile(r"([^\W\d_]+)(?:[-\u00ad\u2010]\r?\n|\ufffe)([^\W\d_A-Z]+)")
_COMPOUND_BEGINS = re.compile(
    "all|anti|co|cross|ex|full|half|high|ill|inter|large|long|low|mid|multi|non|open|post|pre|real|self|semi|short|single"
    "|small|two|three|well",
    re.IGNORECASE,
)
"""Words, and parts of words, that a hyphen at the end of a line follows in a compound rather than in a broken word."""
_COMPOUND = re.compile(r"[^\W\d_]+-[^\W\d_]+")
SPACE = ord(" ")
LEAST_GIVEN = 4
"""Spaces of a page per gap that a PDF library takes for one: with fewer, gaps are its only spaces."""
LEAST_GAP = 0.9
"""Least width of a gap between letters of a PDF that is read as a space, as a multiple of the width of a space."""
_LIGATURES = str.maketrans(
    {
        "ﬀ": "ff",
        "ﬁ": "fi",
        "ﬂ": "fl",
        "ﬃ": "ffi",
        "ﬄ": "ffl",
        "ﬅ": "st",
        "ﬆ": "st",
        "\0": " ",
        "\u00ad": "",
        "\ufffe": "-",
    }
)
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_PACKAGE = "{http://www.idpf.org/2007/opf}"


def read_office_file(
    path: StoredFile, kind: str, *, join_lines: bool, on_bad: OnBad, note: OnBad
) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Yield the parts of a file of `kind` pdf, docx, pptx or epub that have text: number, title, text, and fields.

    The fields are `page` (also of a slide) and `heading`. A file that cannot be converted goes to `on_bad`, one with
    scanned pages or charts to `note`. Raises SettingError if the package that converts it is missing.
    """
    with open_text(path) as stream:
        data = io.BytesIO(stream.read())
    scanned: list[int] = []
    has_text, charts = False, 0
    try:
        for number, (title, heading, text) in enumerate(_READERS[kind](data, path, join_lines, on_bad), start=1):
            if text is None:
                scanned.append(number)
            elif clean := _clean(text):
                has_text = True
                fields = {"page": number} if kind in ("pdf", "pptx") else {}
                yield number, _clean(title) or path.stem, clean, fields | {"heading": _clean(heading)}
        if kind in ("docx", "pptx"):
            with ZipFile(data) as archive:
                charts = len([*filter(_CHART.fullmatch, archive.namelist())])
    except CorpusError:
        raise
    except ImportError as error:
        raise SettingError(f"{path}: a .{kind} file requires {error.name}: pip install pypdfium2 mammoth") from error
    except Exception as error:  # of a damaged file, the libraries raise any
        on_bad(str(path), "cannot be converted", _reason(error))
        return
    if charts:
        note(str(path), "has charts, whose numbers are not read", f"{charts} charts: put the numbers into a table")
    if scanned:
        pages = ", ".join(map(str, scanned[:10])) + (", …" if len(scanned) > 10 else "")
        advice = "recognize their text, for example with ocrmypdf"
        note(str(path), "has scanned pages without text", f"{len(scanned)} pages, {pages}: {advice}")
    elif not has_text:
        on_bad(str(path), "has no text", "check the file, or leave it out")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}; {REPAIR}".replace("\n", " ")


def _clean(text: str) -> str:
    """Text with letters for ligatures, and without halves of surrogate pairs."""
    plain = text.replace(HIDDEN, "").translate(_LIGATURES).encode("utf-8", "replace").decode()
    return plain.strip()


def _pdf_pages(data: io.BytesIO, path: StoredFile, join_lines: bool, on_bad: OnBad) -> Iterator[Part]:
    import pypdfium2

    texts: list[str | None] = []
    with closing(pypdfium2.PdfDocument(data)) as document:
        title = str(document.get_metadata_dict().get("Title") or "")
        for number in range(len(document)):
            try:
                texts.append(_page_text(document[number]))
            except Exception as error:
                on_bad(f"{path}, page {number + 1}", "cannot be converted", _reason(error))
                texts.append("")
    compounds = {found[0].casefold() for text in texts for found in _COMPOUND.finditer(text or "")}

    def mended(broken: re.Match[str]) -> str:
        with_hyphen = f"{broken[1]}-{broken[2]}"
        is_compound = _COMPOUND_BEGINS.fullmatch(broken[1]) or with_hyphen.casefold() in compounds
        return with_hyphen if is_compound else broken[1] + broken[2]

    for text in texts:
        plain = None if text is None else _BROKEN_WORD.sub(mended, text)
        yield title, "", joined_lines(_paragraphs_apart(plain)) if plain and join_lines else plain


def _page_text(page: PdfPage) -> str | None:
    """Text of a page of a PDF, without the gaps within words that look like spaces; None for a picture."""
    from pypdfium2 import raw

    found = page.get_textpage()
    text: str = found.get_text_range().replace("\r\n", "\n")
    if not text.strip():
        return None if any(each.type == raw.FPDF_PAGEOBJ_IMAGE for each in page.get_objects()) else ""
    gaps: dict[int, float] = {}  # of spaces within a line
    if (count := found.count_chars()) == len(found.get_text_range()):
        for place in range(1, count - 1):
            if raw.FPDFText_GetUnicode(found, place) == SPACE:
                left, right = found.get_charbox(place - 1, loose=True), found.get_charbox(place + 1, loose=True)
                gaps[place] = (right[0] - left[2]) / (raw.FPDFText_GetFontSize(found, place) or 1)
    made = [place for place in gaps if raw.FPDFText_IsGenerated(found, place)]
    given = sorted(gap for place, gap in gaps.items() if place not in set(made))
    if len(given) >= LEAST_GIVEN * len(made):
        whole = found.get_text_range()
        cut = {place for place in made if 0 <= gaps[place] < LEAST_GAP * given[len(given) // 2]}
        text = "".join(char for place, char in enumerate(whole) if place not in cut).replace("\r\n", "\n")
    last = len(text) - _single_last_lines(found)
    return text[:last] + "".join(f"\n{char}" for char in text[last:])


def _single_last_lines(page: PdfTextPage) -> int:
    """Number of lines of one character that end a page, such as its number: pdfium joins them to the line before."""
    lines, place = 0, page.count_chars() - 1
    while place > 0:
        (_, bottom, _, top), (_, bottom_before, _, _) = (
            page.get_charbox(each, loose=True) for each in (place, place - 1)
        )
        if (bottom + top) / 2 >= bottom_before:
            break
        lines, place = lines + 1, place - 1
    return lines


def _paragraphs_apart(text: str) -> str:
    """Text with an empty line after each line that ends early: a heading, or the last line of a paragraph.

    >>> _paragraphs_apart("Leave\\nParents may take 45 days,\\nor more.\\nAsk Ana about the form.")
    'Leave\\n\\nParents may take 45 days,\\nor more.\\n\\nAsk Ana about the form.'
    """
    lines = text.splitlines()
    full = FULL_LINE * sorted(map(len, lines))[len(lines) * 9 // 10] if lines else 0
    apart = ""
    for line, following in pairwise([*lines, ""]):
        would_fit = len(line) + 1 + len(following.partition(" ")[0]) < full
        apart += line + ("\n\n" if would_fit and not following[:1].islower() else "\n")
    return apart.removesuffix("\n")


def _word_sections(data: io.BytesIO, *_: object) -> Iterator[Part]:
    import mammoth

    styles = "p[style-name='Title'] => h1:fresh"
    no_image = mammoth.images.img_element(lambda _: {"src": ""})
    page = page_text(mammoth.convert_to_html(_plain_word(data), style_map=styles, convert_image=no_image).value)
    for heading, text in sections(page):
        yield page.title, heading, text


def _plain_word(data: io.BytesIO) -> io.BytesIO:
    """A Word file without hidden and struck text, with its page headers first, and equations as text."""
    plain = io.BytesIO()
    with ZipFile(data) as archive, ZipFile(plain, "w") as copy:
        names = archive.namelist()
        headers = [_xml(archive, name) for name in sorted(names) if re.fullmatch(r"word/header\d+\.xml", name)]
        for name in names:
            content = _member(archive, "", name)
            if name == "word/document.xml":
                content = _plain_body(ElementTree.fromstring(content), headers)
            copy.writestr(name, content)
    plain.seek(0)
    return plain


def _plain_body(document: ElementTree.Element, headers: Sequence[ElementTree.Element]) -> bytes:
    body = document.find(f"{_WORD}body")
    if body is not None:
        lines = dict.fromkeys(
            "".join(each.itertext()).strip() for header in headers for each in header.iter(f"{_WORD}p")
        )
        for place, line in enumerate(filter(None, lines)):
            paragraph = ElementTree.Element(f"{_WORD}p")
            paragraph.append(_word_run(line))
            body.insert(place, paragraph)
    for parent in list(document.iter()):
        for place, child in enumerate(list(parent)):
            if child.tag in (f"{_MATH}oMath", f"{_MATH}oMathPara"):
                parent[place] = _word_run(_equation(child))
            elif child.tag == f"{_WORD}r" and any(_is_on(child, name) for name in ("vanish", "strike", "dstrike")):
                parent[place] = ElementTree.Element(f"{_WORD}r")
    return ElementTree.tostring(document)


def _word_run(text: str) -> ElementTree.Element:
    run = ElementTree.Element(f"{_WORD}r")
    ElementTree.SubElement(run, f"{_WORD}t").text = text
    return run


def _is_on(run: ElementTree.Element, name: str) -> bool:
    """Return True if a run of Word has a property."""
    found = run.find(f"{_WORD}rPr/{_WORD}{name}")
    return found is not None and found.get(f"{_WORD}val") not in ("0", "false", "off")


def _equation(part: ElementTree.Element) -> str:
    """Text of an equation in one line.

    >>> space = _MATH.strip("{}")
    >>> _equation(ElementTree.fromstring(f"<x xmlns='{space}'><sSup><e><t>m</t></e><sup><t>2</t></sup></sSup></x>"))
    'm²'
    """
    if part.tag == f"{_MATH}t":
        return part.text or ""
    inner = [_equation(child) for child in part]
    if part.tag == f"{_MATH}f":
        return "/".join(filter(None, inner))
    text = "".join(inner)
    is_exponent = part.tag == f"{_MATH}sup" and text.strip("0123456789+-−n") == ""
    return text.translate(SUPERSCRIPTS) if is_exponent else f"^{text}" if part.tag == f"{_MATH}sup" else text


def _slides(data: io.BytesIO, *_: object) -> Iterator[Part]:
    with ZipFile(data) as archive:
        targets = _relations(archive, "ppt/presentation.xml")
        for slide in _xml(archive, "ppt/presentation.xml").iter(f"{_SLIDES}sldId"):
            name = targets[slide.attrib[_RELATION]]
            content = _xml(archive, name)
            shapes = [*content.iter(f"{_SLIDES}sp")]
            headings = [" ".join(_paragraphs(each)) for each in shapes if _placeholder(each) in ("title", "ctrTitle")]
            lines = [line for shape in shapes for line in _paragraphs(shape)]
            lines += [row for table in content.iter(f"{_DRAWING}tbl") for row in _table_rows(table)]
            for notes in (target for target in _relations(archive, name).values() if "/notesSlides/" in target):
                bodies = [each for each in _xml(archive, notes).iter(f"{_SLIDES}sp") if _placeholder(each) == "body"]
                lines += [line for body in bodies for line in _paragraphs(body)]
            yield "", "".join(headings[:1]), "\n".join(lines)


def _table_rows(table: ElementTree.Element) -> Iterator[str]:
    """The rows of a table on a slide; the first is its header where the table says so."""
    properties = table.find(f"{_DRAWING}tblPr")
    has_header = properties is not None and properties.get("firstRow") in ("1", "true")
    for number, row in enumerate(table.iter(f"{_DRAWING}tr")):
        edge = HEADER_CELL if has_header and not number else CELL
        yield f" {edge} ".join(" ".join(_paragraphs(cell)) for cell in row.iter(f"{_DRAWING}tc"))


def _placeholder(shape: ElementTree.Element) -> str:
    """Kind of the placeholder that a shape fills, such as title; "" if it fills none."""
    found = shape.find(f".//{_SLIDES}ph")
    return "" if found is None else found.get("type", "")


def _paragraphs(shape: ElementTree.Element) -> list[str]:
    """Paragraphs with text of a shape or a row of a table, each in one line."""
    texts = ("".join(part.text or "" for part in each.iter(f"{_DRAWING}t")) for each in shape.iter(f"{_DRAWING}p"))
    return [" ".join(text.split()) for text in texts if text.strip()]


def _chapters(data: io.BytesIO, *_: object) -> Iterator[Part]:
    with ZipFile(data) as archive:
        package = _xml(archive, "META-INF/container.xml").findall(".//{*}rootfile")[0].attrib["full-path"]
        book = _xml(archive, package)
        files = {item.attrib["id"]: item.attrib["href"] for item in book.iter(f"{_PACKAGE}item")}
        title = book.findtext(".//{http://purl.org/dc/elements/1.1/}title") or ""
        for chapter in book.iter(f"{_PACKAGE}itemref"):
            page = page_text(_member(archive, package, unquote(files[chapter.attrib["idref"]])).decode("utf-8-sig"))
            for heading, text in sections(page):
                yield title, heading or page.title, text


def _relations(archive: ZipFile, name: str) -> dict[str, str]:
    """Names of the members that an Office file's member refers to, by the id of the reference."""
    folder, file = posixpath.split(name)
    relations = posixpath.join(folder, "_rels", f"{file}.rels")
    if relations not in archive.namelist():
        return {}
    return {
        each.attrib["Id"]: posixpath.normpath(posixpath.join(folder, each.attrib["Target"])).lstrip("/")
        for each in _xml(archive, relations)
    }


def _xml(archive: ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(_member(archive, "", name))


def _member(archive: ZipFile, beside: str, name: str) -> bytes:
    """Content of a member that is named relative to the folder of another."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(beside), name))
    if archive.getinfo(name).file_size > MAX_LINE_BYTES:  # a small archive may contain terabytes
        raise ValueError(f"{name} in it has more than {MAX_LINE_BYTES >> 20} MiB")
    return archive.read(name)


_READERS: dict[str, Callable[[io.BytesIO, StoredFile, bool, OnBad], Iterator[Part]]] = {
    "pdf": _pdf_pages,
    "docx": _word_sections,
    "pptx": _slides,
    "epub": _chapters,
}
OFFICE_FORMATS = frozenset(_READERS)
