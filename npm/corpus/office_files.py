"""The parts of `.pdf`, `.docx`, `.pptx` and `.epub` files: pages, slides, and sections between headings."""

from __future__ import annotations

import io
import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

from npm.core.errors import CorpusError, SettingError
from npm.corpus.addresses import StoredFile
from npm.corpus.html_pages import page_text
from npm.corpus.markup import joined_lines, sections, visible
from npm.corpus.readers import MAX_LINE_BYTES, OnBad, open_text

Part = tuple[str, str, str | None]
"""Title of the file, heading, and text; None for a page that is a picture."""

FULL_LINE = 0.85
"""Fraction of a long line of its page that a line fills if the paragraph continues."""
REPAIR = "open the file in its program and save it again, without a password, or leave it out"
_BROKEN_WORD = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\r?\n(?=[^\W\d_A-Z])")
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\0": " ", "\u00ad": ""}
)
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_PACKAGE = "{http://www.idpf.org/2007/opf}"


def read_office_file(
    path: StoredFile, kind: str, *, join_lines: bool, on_bad: OnBad, note: OnBad
) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Yield the parts of a file of `kind` pdf, docx, pptx or epub that have text: number, title, text, and fields.

    The fields are `page` (also of a slide) and `heading`. A file that cannot be converted goes to `on_bad`, one with
    scanned pages to `note`. Raises SettingError if the package that converts it is missing.
    """
    with open_text(path) as stream:
        data = io.BytesIO(stream.read())
    scanned: list[int] = []
    has_text = False
    try:
        for number, (title, heading, text) in enumerate(_READERS[kind](data, path, join_lines, on_bad), start=1):
            if text is None:
                scanned.append(number)
            elif clean := _clean(text):
                has_text = True
                fields = {"page": number} if kind in ("pdf", "pptx") else {}
                yield number, _clean(title) or path.stem, clean, fields | {"heading": _clean(heading)}
    except CorpusError:
        raise
    except ImportError as error:
        raise SettingError(f"{path}: a .{kind} file requires {error.name}: pip install pypdf mammoth") from error
    except Exception as error:  # of a damaged file, the libraries raise any
        on_bad(str(path), "cannot be converted", _reason(error))
        return
    if scanned:
        pages = ", ".join(map(str, scanned[:10])) + (", …" if len(scanned) > 10 else "")
        advice = "recognize their text, for example with ocrmypdf"
        note(str(path), "has scanned pages without text", f"{len(scanned)} pages, {pages}: {advice}")
    elif not has_text:
        on_bad(str(path), "has no text", "check the file, or leave it out")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}; {REPAIR}".replace("\n", " ")


def _clean(text: str) -> str:
    """Text with letters for ligatures, and without hidden characters and halves of surrogate pairs."""
    plain = visible(text).translate(_LIGATURES).encode("utf-8", "replace").decode()
    return plain.strip()


def _pdf_pages(data: io.BytesIO, path: StoredFile, join_lines: bool, on_bad: OnBad) -> Iterator[Part]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each irregularity of a file that it can read
    reader = PdfReader(data)
    title = str((reader.metadata and reader.metadata.title) or "")
    for number, page in enumerate(reader.pages, start=1):
        try:
            text = page.extract_text()
            is_scanned = not text.strip() and "/XObject" in page.get("/Resources", {})
        except Exception as error:
            on_bad(f"{path}, page {number}", "cannot be converted", _reason(error))
            text, is_scanned = "", False
        text = _BROKEN_WORD.sub("", text)
        yield title, "", None if is_scanned else joined_lines(_paragraphs_apart(text)) if join_lines else text


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
    page = page_text(mammoth.convert_to_html(data, style_map=styles, convert_image=no_image).value)
    for heading, text in sections(page):
        yield page.title, heading, text


def _slides(data: io.BytesIO, *_: object) -> Iterator[Part]:
    with ZipFile(data) as archive:
        targets = _relations(archive, "ppt/presentation.xml")
        for slide in _xml(archive, "ppt/presentation.xml").iter(f"{_SLIDES}sldId"):
            name = targets[slide.attrib[_RELATION]]
            content = _xml(archive, name)
            shapes = [*content.iter(f"{_SLIDES}sp")]
            headings = [" ".join(_paragraphs(each)) for each in shapes if _placeholder(each) in ("title", "ctrTitle")]
            lines = [line for shape in shapes for line in _paragraphs(shape)]
            lines += [" | ".join(_paragraphs(row)) for row in content.iter(f"{_DRAWING}tr")]
            for notes in (target for target in _relations(archive, name).values() if "/notesSlides/" in target):
                bodies = [each for each in _xml(archive, notes).iter(f"{_SLIDES}sp") if _placeholder(each) == "body"]
                lines += [line for body in bodies for line in _paragraphs(body)]
            yield "", "".join(headings[:1]), "\n".join(lines)


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
