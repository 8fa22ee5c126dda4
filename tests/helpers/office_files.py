"""Small real files of office formats, written byte by byte."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote
from zipfile import ZipFile

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
RELATIONS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SHAPES = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    f'xmlns:r="{OFFICE}"'
)


def write_pdf(path: Path, pages: list[str | None], title: str = "") -> Path:
    """A PDF with the lines of each page, or a picture for None."""
    picture = b"<</Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8/Length 1>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{' '.join(f'{6 + 2 * n} 0 R' for n in range(len(pages)))}]>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        picture + b"stream\n\x00\nendstream",
        f"<</Title({title})>>".encode(),
    ]
    for number, text in enumerate(pages):
        lines = "".join(f"({line}) Tj T* " for line in (text or "").splitlines())
        drawn = f"BT /F1 12 Tf 14 TL 72 720 Td {lines}ET" if text is not None else "/I1 Do"
        resources = "/XObject<</I1 4 0 R>>" if text is None else "/Font<</F1 3 0 R>>"
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]"
            + f"/Resources<<{resources}>>/Contents {7 + 2 * number} 0 R>>".encode(),
            f"<</Length {len(drawn)}>>stream\n{drawn}\nendstream".encode(),
        ]
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    trailer = f"trailer<</Size {len(objects) + 1}/Root 1 0 R/Info 5 0 R>>\nstartxref\n{len(data)}\n%%EOF\n"
    path.write_bytes(data + (head + trailer).encode())
    return path


def write_docx(path: Path, paragraphs: list[tuple[str, str]]) -> Path:
    """A Word file of paragraphs, each with the name of its style and its text."""
    styles = sorted({style for style, _ in paragraphs})
    named = "".join(
        f'<w:style w:type="paragraph" w:styleId="S{number}"><w:name w:val="{style}"/></w:style>'
        for number, style in enumerate(styles)
    )
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="S{styles.index(style)}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    types = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    return _archive(
        path,
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f'<Override PartName="/word/document.xml" ContentType="{types}.document.main+xml"/></Types>',
            "_rels/.rels": f'<Relationships {RELATIONS}><Relationship Id="r1" Type="{OFFICE}/officeDocument" '
            'Target="word/document.xml"/></Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships {RELATIONS}><Relationship Id="r1" '
            f'Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
            "word/styles.xml": f"<w:styles {WORD}>{named}</w:styles>",
            "word/document.xml": f"<w:document {WORD}><w:body>{body}</w:body></w:document>",
        },
    )


def write_pptx(path: Path, slides: list[tuple[str, list[str], list[list[str]]]], notes: str = "") -> Path:
    """A presentation: of each slide the title, the paragraphs and the rows of a table; notes on the first."""
    ids = "".join(f'<p:sldId id="{300 + n}" r:id="s{n}"/>' for n in range(len(slides)))
    targets = "".join(
        f'<Relationship Id="s{n}" Type="{OFFICE}/slide" Target="slides/slide{len(slides) - n}.xml"/>'
        for n in range(len(slides))
    )
    members = {
        "ppt/presentation.xml": f"<p:presentation {SHAPES}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<Relationships {RELATIONS}>{targets}</Relationships>",
        "ppt/notesSlides/n.xml": f"<p:notes {SHAPES}>{_shape('body', [notes])}{_shape('sldNum', ['1'])}</p:notes>",
        f"ppt/slides/_rels/slide{len(slides)}.xml.rels": f"<Relationships {RELATIONS}>"
        + f'<Relationship Id="n1" Type="{OFFICE}/notesSlide" Target="../notesSlides/n.xml"/>' * bool(notes)
        + "</Relationships>",
    }
    for number, (title, paragraphs, rows) in enumerate(slides):
        cells = ["".join(f"<a:tc><a:txBody>{_paragraph(cell)}</a:txBody></a:tc>" for cell in row) for row in rows]
        table = "".join(f"<a:tr>{row}</a:tr>" for row in cells)
        shapes = _shape("title", [title]) + _shape("", paragraphs)
        members[f"ppt/slides/slide{len(slides) - number}.xml"] = (
            f"<p:sld {SHAPES}>{shapes}<p:graphicFrame><a:tbl>{table}</a:tbl></p:graphicFrame></p:sld>"
        )
    return _archive(path, members)


def write_epub(path: Path, title: str, chapters: list[str]) -> Path:
    """A book of chapters in HTML, listed in the reverse order of their names."""
    names = [f"text/c {len(chapters) - number}.xhtml" for number in range(len(chapters))]
    items = "".join(f'<item id="i{n}" href="{quote(name)}"/>' for n, name in enumerate(names))
    order = "".join(f'<itemref idref="i{n}"/>' for n in range(len(names)))
    return _archive(
        path,
        {
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": '<package xmlns="http://www.idpf.org/2007/opf" '
            f'xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>{title}</dc:title></metadata>'
            f"<manifest>{items}</manifest><spine>{order}</spine></package>",
            **{f"OEBPS/{name}": chapter for name, chapter in zip(names, chapters, strict=True)},
        },
    )


def _shape(kind: str, paragraphs: list[str]) -> str:
    body = "".join(map(_paragraph, paragraphs))
    placeholder = f'<p:ph type="{kind}"/>' if kind else ""
    return f"<p:sp><p:nvSpPr><p:nvPr>{placeholder}</p:nvPr></p:nvSpPr><p:txBody>{body}</p:txBody></p:sp>"


def _paragraph(text: str) -> str:
    return f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"


def _archive(path: Path, members: dict[str, str]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path
