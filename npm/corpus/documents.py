"""Documents from files and hub data sets, streamed one by one in a fixed order.

Texts of `.txt`, `.md` and `.html` files have the offsets of the file as given.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.corpus.html_pages import page_text
from npm.corpus.markdown import joined_lines, markdown_text
from npm.corpus.markup import HIDDEN, ReadText, hidden, row_text, sections
from npm.corpus.office_files import OFFICE_FORMATS, read_office_file
from npm.corpus.readers import MAX_LINE_BYTES, OnBad, Row, Rows, read_lines, read_records
from npm.corpus.settings import TEXT_FIELD, CorpusSettings, DocumentSplit
from npm.corpus.shards import document_key
from npm.corpus.sources import CONTROL_CHARACTER, PART_NAMES, Source, StoredFile, find_sources

MAX_SUMMARIZED = 3
PART_FIELDS = ("file", "page", "heading")
"""Fields that are kept with a page, a slide or a section of a file; the first with a row of a table too."""


@dataclass
class SkippedRecords:
    """Records that `skip_bad` skipped: counted by kind, the first few kept, all of them as JSON lines in a file."""

    report: Path | None = None
    """File of the list, which the first record starts anew; None: no list is written."""
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    @classmethod
    def beside(cls, folder: Path) -> SkippedRecords:
        """Report next to `folder`, which contains only the files of its manifest: FOLDER.skipped.jsonl."""
        place = folder.resolve()
        return cls(place.with_name(f"{place.name}.skipped.jsonl"))

    def add(self, where: str, kind: str, detail: str) -> None:
        """Add a record; an `OnBad`."""
        if len(self.first) < MAX_SUMMARIZED:
            self.first.append(f"{where} ({kind})")
        if self.report is not None:
            if not self.kinds:
                self.report.parent.mkdir(parents=True, exist_ok=True)
                self.report.unlink(missing_ok=True)  # that of an earlier reading
            line = json.dumps({"where": where, "kind": kind, "problem": detail}, ensure_ascii=False)
            with self.report.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line + "\n")
        self.kinds[kind] += 1

    @property
    def summary(self) -> str:
        """Count of each kind, the first records and the path of the report; "" if there were none."""
        if not (total := self.kinds.total()):
            return ""
        kinds = ", ".join(f"{kind} ({count})" for kind, count in self.kinds.most_common())
        place = f"; all of them: {self.report}" if self.report is not None else ""
        return f"skipped {total} of the corpus: {kinds}; first {', '.join(self.first)}{place}"


def _refuse(where: str, kind: str, detail: str) -> None:
    raise CorpusError(f"{where}: {kind}: {detail}; corpus.skip_bad=true skips and lists what cannot be used")


def read_corpus(
    settings: CorpusSettings, *, sources: Sequence[Source] | None = None, skipped: SkippedRecords | None = None
) -> Iterator[Document]:
    """Yield the documents of files of all FORMATS and of `hub:` data sets in a fixed order, or of given `sources`.

    Texts are not normalized, except those of office files; those of `.txt`, `.md` and `.html` files keep their length
    unless they are cut at headings, with HIDDEN in place of what is not read (see `npm.corpus.markup`). All paths are
    checked before anything is read. Raises CorpusError, with file and line, for a record that is not a document or
    repeats an id; with `settings.skip_bad` these go to `skipped`, and scanned pages always. Raises it too
    if nothing else was found.
    """
    sources = find_sources(settings.files) if sources is None else sources
    skipped = skipped or SkippedRecords()
    on_bad = skipped.add if settings.skip_bad else _refuse
    return islice(_some(_documents(sources, settings, on_bad, skipped.add), skipped), settings.max_documents)


def _some(documents: Iterator[Document], skipped: SkippedRecords) -> Iterator[Document]:
    """The documents, at least one. Raises CorpusError with the reasons where all were skipped."""
    is_empty = True
    for document in documents:
        is_empty = False
        yield document
    if is_empty and skipped.kinds:
        raise CorpusError(f"no document could be read: {skipped.summary}")


def _documents(sources: Sequence[Source], settings: CorpusSettings, on_bad: OnBad, note: OnBad) -> Iterator[Document]:
    seen = SeenIds()
    for source in sources:
        number = 0
        # as page, where a file is read in parts
        in_parts = source.format in OFFICE_FORMATS or settings.split is DocumentSplit.heading
        part_name = PART_NAMES.get(source.format, "") if in_parts else ""
        of_file = PART_FIELDS if part_name else PART_FIELDS[: source.format == "table"]
        fields = (*settings.kept_fields, *of_file)
        records = _parts(source, settings, part_name, on_bad, note) if part_name else _records(source, settings, on_bad)
        for number, record in records:
            where = f"{source.path}:{number}"
            document = _document(record, settings, fields, place=f"{source.identifier}:{number}")
            if isinstance(document, tuple):
                on_bad(where, *document)
            elif seen.add(document.id):
                problem = f"{document.id!r} comes twice; leave out ids, or change it"
                on_bad(where, "has an id that came before", problem)
            else:
                yield document
        if not number and source.format not in OFFICE_FORMATS:
            on_bad(source.path, "has no text", "check the file, or leave it out")


def _records(source: Source, settings: CorpusSettings, on_bad: OnBad) -> Rows:
    others = (settings.id_field, settings.title_field, *settings.kept_fields)
    if source.format == "table":
        required = [] if settings.text_field == TEXT_FIELD else [settings.text_field]
        for number, row in read_records(source, required=required, keys="corpus.text_field", on_bad=on_bad):
            cells = {name: cell for name, cell in row.items() if cell}  # an empty cell is not a value
            of_row = {TEXT_FIELD: row_text(row), settings.title_field: source.stem}
            # last, since delete and sync find a file's rows by it
            yield number, {**({} if settings.text_field in row else of_row), **cells, "file": source.identifier}
        return
    if source.format not in ("txt", "md", "html"):
        required = [settings.text_field]
        yield from read_records(source, required=required, optional=others, keys="corpus.text_field", on_bad=on_bad)
        return
    is_file = source.format != "txt" or settings.split in (DocumentSplit.file, DocumentSplit.heading)
    identifier = {settings.id_field: source.identifier} if is_file else {}
    for number, title, text, front in _texts(source, settings, on_bad):
        title = str(front.get(settings.title_field) or title)
        yield number, {**front, **identifier, settings.title_field: title, settings.text_field: text}


def _parts(source: Source, settings: CorpusSettings, name: str, on_bad: OnBad, note: OnBad) -> Rows:
    path, parts = source.identifier, _texts(source, settings, on_bad)
    if source.format in OFFICE_FORMATS:
        join_lines = settings.join_lines
        parts = read_office_file(source.file, source.format, join_lines=join_lines, on_bad=on_bad, note=note)
    for number, title, text, fields in parts:
        title, heading = str(fields.get(settings.title_field) or title), fields.get("heading")
        yield (
            number,
            {
                **{name: value for name, value in fields.items() if value != ""},
                "file": path,
                settings.id_field: f"{path}, {name} {number}",
                settings.title_field: title if heading in ("", title) else f"{title}, {heading}",
                settings.text_field: text,
            },
        )


def _document(
    record: Row, settings: CorpusSettings, kept_fields: Sequence[str], *, place: str
) -> Document | tuple[str, str]:
    """Return one record as a document, or what is wrong with it: the kind of fault in a few words, and its details."""
    text = record.get(settings.text_field)
    if not isinstance(text, str) or not text.strip():
        return "has no text", f"corpus.text_field={settings.text_field} is {text!r:.80}"
    number = record.get(settings.id_field)
    identifier = str(number) if type(number) is int else number
    title = record.get(settings.title_field)
    if not isinstance(title, str | None):
        return f"has an invalid {settings.title_field}", f"it must be a string, or missing, got {title!r:.80}"
    if not isinstance(identifier, str | None) or identifier == "" or CONTROL_CHARACTER.search(identifier or ""):
        expected = "a string with characters, none of them a control character, or missing"
        return f"has an invalid {settings.id_field}", f"it must be {expected}, got {identifier!r:.80}"
    kept = {name: record[name] for name in kept_fields if name in record}
    try:
        json.dumps([identifier, title, text, kept], ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        return "is not valid Unicode", f"\\u{ord(error.object[error.start]):04x} is half a surrogate pair"
    except (TypeError, ValueError) as error:
        return "has an invalid field of corpus.kept_fields", f"it must be a JSON value, got {error}"
    return Document(id=identifier or place, title=title or "", text=text, fields=kept)


RECENT_IDS = 1 << 18


_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?)^\1[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def _texts(source: Source, settings: CorpusSettings, on_bad: OnBad) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Yield the documents of a .txt, .md or .html file: number, title, text, and fields of the front matter.

    Sections of an md or html file have the field `heading` too. Other content goes to `on_bad`, as does front matter
    that cannot be read.
    """
    path, kind, split = source.file, source.format, settings.split
    names = (settings.title_field, *settings.kept_fields)
    for number, given in _pieces(path, split if kind == "txt" else DocumentSplit.file, on_bad):
        body = given.lstrip(HIDDEN)
        try:
            front, body = front_matter(body, names) if kind == "md" else ({}, body)
        except ValueError as error:
            on_bad(f"{path}:1", "has broken front matter", str(error)[:200])
            continue
        start = hidden(given[: len(given) - len(body)])
        if kind == "html":
            read = page_text(body)
        elif kind == "md":
            read = markdown_text(body, join_lines=settings.join_lines)
        else:
            joins = settings.join_lines and split is not DocumentSplit.line
            read = ReadText(joined_lines(body) if joins else body, "", [])
        if split is DocumentSplit.heading and kind != "txt":
            for section, (heading, text) in enumerate(sections(read), start=1):
                yield section, read.title or path.stem, text, {**front, "heading": heading}
        elif read.text and not read.text.isspace():
            yield number, read.title or path.stem, start + read.text, front


def front_matter(text: str, names: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the fields with these `names` at the head of a Markdown text, and the text after it.

    The head is YAML between lines of `---` or TOML between lines of `+++`; dates become ISO strings. Raises ValueError
    if it cannot be read, or refers to an alias of YAML.

    >>> front_matter("---\\ntitle: Leave\\nsince: 2024-05-01\\n---\\nText", ["since"])
    ({'since': '2024-05-01'}, 'Text')
    """
    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    import yaml

    try:
        is_toml = found[1] == "+++"
        if not is_toml and "*" in found[2] and any(isinstance(each, yaml.AliasToken) for each in yaml.scan(found[2])):
            raise ValueError("YAML aliases, which can expand to gigabytes, are not read: write the value out")
        head = tomllib.loads(found[2]) if is_toml else yaml.safe_load(found[2])
        if not isinstance(head, dict | None):  # text between two rules
            return {}, text
        kept = {name: head[name] for name in names if head and name in head}
        return json.loads(json.dumps(kept, default=lambda date: date.isoformat())), text[found.end() :]
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _pieces(path: StoredFile, split: DocumentSplit, on_bad: OnBad) -> Iterator[tuple[int, str]]:
    """Yield the documents of a plain text file, numbered by line or paragraph; empty lines only separate them.

    A document with a bad line is bad, and reported by the first.
    """
    faults: list[tuple[str, str, str]] = []
    lines: list[str] = []
    by_line, piece, size = split is DocumentSplit.line, 1, 0
    numbered = read_lines(path, keep_ends=True, byte_order_mark=HIDDEN, on_bad=lambda *fault: faults.append(fault))
    for number, line in chain(numbered, [(0, "")]):
        is_break = not number or (split is DocumentSplit.paragraph and line.isspace())
        size += 0 if is_break else len(line)
        if "\0" in line:
            faults.append((f"{path}:{number}", "is not text", "it has a byte 0x00; convert the file to UTF-8"))
        elif size > MAX_LINE_BYTES:
            limit = f"a document has at most {MAX_LINE_BYTES >> 20} MiB; cut it"
            lines, faults = [], faults or [(f"{path}:{number}", "too long", limit)]
        elif not is_break:
            lines.append(line)
        if is_break or by_line:
            for fault in faults if by_line else faults[:1]:
                on_bad(*fault)
            text = "".join(lines)
            if text and not text.isspace() and (by_line or not faults):
                is_file = split in (DocumentSplit.file, DocumentSplit.heading)
                yield number if by_line else piece, text if is_file else text.removesuffix("\n").removesuffix("\r")
            piece += bool(lines or faults)
            lines, faults, size = [], [], 0


class SeenIds:
    """The ids that came, by 64-bit hashes: a sorted array of 8 bytes per id, where a set takes 60.

    Two different ids share a hash with probability 3e-6 in ten million.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, dtype=np.uint64)  # [ids], sorted
        self._recent: set[int] = set()

    def add(self, identifier: str) -> bool:
        """Remember an id; returns True if it came before."""
        key = document_key(identifier)
        slot = int(np.searchsorted(self._keys, np.uint64(key)))
        if key in self._recent or (slot < len(self._keys) and int(self._keys[slot]) == key):
            return True
        self._recent.add(key)
        if len(self._recent) == RECENT_IDS:
            self._keys = np.sort(np.append(self._keys, np.array([*self._recent], dtype=np.uint64)))  # u64 [ids]
            self._recent.clear()
        return False
