"""Settings of the documents that are read; without the code that reads them, which answering never needs."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from pydantic import PositiveInt

from npm.core.settings import PathText, Settings

TEXT_FIELD = "text"
"""Default of `text_field`: tables without it are read by the cells of their rows."""


class DocumentSplit(Enum):
    """One document of a `.txt` file, or with `heading` of an `.md` or `.html` file."""

    file = "file"
    paragraph = "paragraph"
    line = "line"
    heading = "heading"


class CorpusSettings(Settings):
    """Settings of the documents that are read, and of the fields of their source."""

    files: list[PathText] = field(default_factory=list)
    """Paths, folders, addresses such as s3://bucket/x.jsonl, or hub data sets as hub:NAME, hub:NAME@CONFIG/SPLIT; the
    files of a folder, also of those in it, and of a glob are read in sorted order."""

    split: DocumentSplit = DocumentSplit.file
    """Unit of one document in a .txt file: file, paragraph (between empty lines) or line; `heading` cuts .md and .html
    files before each heading. Others are read by page (.pdf), slide (.pptx) or section (.docx, .epub)."""

    join_lines: bool = True
    """Read single line breaks within a paragraph of a .txt, .md or .pdf file as spaces; not with split=line."""

    id_field: str = "id"
    """Field with the document's id; where it is missing the id is "path:line", with the path of the file as given.
    The id of a .txt, .md or .html file that is one document is its path, of a part "path, page 7"."""

    title_field: str = "title"
    """Field with the document's title; may be missing."""

    text_field: str = TEXT_FIELD
    """Field with the document's text; a .csv or .tsv file without a column `text` is read by the cells of its rows."""

    kept_fields: list[str] = field(default_factory=list)
    """Further fields kept with each document, where it has them; those of .md files are in their front matter. Parts
    of files always keep `file`, and `page` or `heading`, rows of .csv and .tsv files `file`."""

    max_documents: PositiveInt | None = None
    """Documents read at most, from the beginning; null reads all."""

    skip_bad: bool = False
    """Skip and report lines and documents that cannot be used; otherwise the first ends the reading."""
