"""Documents from files and hub data sets, streamed one by one in a fixed order.

Each source yields records: a number (line, paragraph or row) and a mapping of fields. What makes a record a document
is decided in one place, so the same faults get the same messages in all formats.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Annotated, NoReturn

from index.files import storage_errors
from npm.core.errors import ArtifactError, CorpusError, UserError, named
from npm.core.settings import Bounds, CheckedSettings, PathList
from npm.core.types import Document
from npm.corpus.rows import Row, json_rows, table_rows
from npm.corpus.sources import (
    FileState,
    OnBad,
    Source,
    file_states,
    find_sources,
    read_hub,
    read_parquet,
    refuse_changed_files,
)
from npm.corpus.text_files import DocumentSplit, read_texts

MOST_SUMMARISED = 3
MOST_TOLD = 20
MOST_CHARS_READ_ON = 1 << 28
"""How much text is read after the first fault to tell of all of them at once."""
REPEATED_ID = "has an id that came before"


@dataclass(kw_only=True, slots=True)
class CorpusSettings(CheckedSettings):
    """Which documents are read, and which fields of their source mean what."""

    files: PathList = field(default_factory=list)
    """Paths, folders, addresses such as s3://bucket/x.jsonl, or hub data sets as hub:NAME, hub:NAME@CONFIG/SPLIT; the
    files of a folder, also of those in it, and of a glob are read in sorted order."""

    split: DocumentSplit = DocumentSplit.file
    """What is one document in a .txt file: file, paragraph (between empty lines) or line."""

    join_lines: bool = True
    """Whether single line breaks within a paragraph of a .txt or .md file are read as spaces; not with split=line."""

    id_field: str = "id"
    """Field with the document's id; where it is missing the id is "file name:line", with folders where names repeat.
    The id of a .txt, .md or .html file that is one document is its path as given."""

    title_field: str = "title"
    """Field with the document's title; may be missing."""

    text_field: str = "text"
    """Field with the document's text."""

    kept_fields: list[str] = field(default_factory=list)
    """Further fields kept with each document, where it has them; those of .md files are in their front matter."""

    max_documents: Annotated[int | None, Bounds(1)] = None
    """Documents read at most, from the beginning; null reads all."""

    skip_bad: bool = False
    """Whether lines and documents that cannot be used are passed over and reported; otherwise the first ends the
    reading, and the message names the next ones too."""


REPORTED = ("where", "kind", "problem")
"""Keys of each line of the report."""


class SkippedRecords:
    """What `skip_bad` passed over: counted by kind, the first few kept, all of them as JSON lines in a file."""

    def __init__(self, report: Path | None = None) -> None:
        """`report` is written from the beginning with the first one; None keeps no list."""
        self._report = report
        self._kinds: Counter[str] = Counter()
        self._first: list[str] = []

    @classmethod
    def beside(cls, folder: Path) -> SkippedRecords:
        """With its report beside `folder`, which holds nothing but what the manifest names: FOLDER.skipped.jsonl."""
        place = folder.resolve()
        return cls(place.with_name(f"{place.name}.skipped.jsonl"))

    def add(self, where: str, kind: str, error: UserError) -> None:
        """One more. Raises StorageError if the report cannot be written."""
        if len(self._first) < MOST_SUMMARISED:
            self._first.append(f"{where} ({kind})")
        if self._report is not None:
            if not self._kinds:
                _make_way(self._report)
            line = dict(zip(REPORTED, (where, kind, str(error).removeprefix(f"{where}: ")), strict=True))
            mode = "a" if self._kinds else "x"  # never through a link
            with storage_errors(self._report):
                self._report.parent.mkdir(parents=True, exist_ok=True)
                with self._report.open(mode, encoding="utf-8", errors="backslashreplace") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._kinds[kind] += 1

    @property
    def summary(self) -> str:
        """How many there were of each kind, the first of them and where all stand; "" if there were none."""
        if not (total := self._kinds.total()):
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._kinds.most_common())
        place = f"; all of them: {self._report}" if self._report is not None else ""
        return f"skipped {total} of the corpus: {kinds}; first {', '.join(self._first)}{place}"


def _make_way(report: Path) -> None:
    """Remove the report of an earlier reading. Raises ArtifactError for anything else in its place."""
    if not os.path.lexists(report):
        return
    try:
        with report.open(encoding="utf-8") as file:
            is_ours = not report.is_symlink() and list(json.loads(file.readline())) == list(REPORTED)
    except (OSError, ValueError, TypeError):
        is_ours = False
    if not is_ours:
        raise ArtifactError(f"{report} is in the way of the list of skipped documents: move it away")
    with storage_errors(report):
        report.unlink()


def read_corpus(
    settings: CorpusSettings,
    *,
    sources: Sequence[Source] | None = None,
    skipped: SkippedRecords | None = None,
    since: Sequence[FileState] | None = None,
) -> Iterator[Document]:
    """The documents of files of all FORMATS and of `hub:` data sets, in a fixed order; of some `sources`, if given.

    Text is given as it stands, without any normalisation; of `.txt`, `.md` and `.html` files with the same length, what
    is not read as HIDDEN (see `npm.corpus.markup`). All paths are checked before anything is read. Raises
    CorpusError, with file and line, for whatever cannot be read as a document, and for an id that comes twice; with
    `settings.skip_bad` these go to `skipped` instead. At the end it raises CorpusError if a file is not what it was
    `since` then, by default since this call.
    """
    sources = find_sources(settings.files) if sources is None else sources
    states = file_states(settings.files) if since is None else since
    if settings.skip_bad:
        read = _documents(sources, settings, (skipped or SkippedRecords()).add)
    else:
        read = _all_or_none(sources, settings)
    return _watched(islice(read, settings.max_documents), settings, states)


def refuse_repeated_id(settings: CorpusSettings, sources: Sequence[Source]) -> NoReturn:
    """Raise the CorpusError of the first id that comes twice in `sources`, which are known to repeat one."""

    def on_bad(where: str, kind: str, error: UserError) -> None:  # noqa: ARG001 - an OnBad
        if kind == REPEATED_ID:
            raise error

    deque(_documents(sources, settings, on_bad), maxlen=0)
    raise AssertionError("no id comes twice")


def _watched(read: Iterator[Document], settings: CorpusSettings, states: Sequence[FileState]) -> Iterator[Document]:
    try:
        yield from read
    except CorpusError:
        refuse_changed_files(settings.files, states)  # the line may be bad because it is being written
        raise
    refuse_changed_files(settings.files, states)


def _all_or_none(sources: Sequence[Source], settings: CorpusSettings) -> Iterator[Document]:
    """The documents up to the first fault; then some more text is read to tell of all faults at once."""
    found: list[tuple[str, str, UserError]] = []

    def on_bad(where: str, kind: str, error: UserError) -> None:
        found.append((where, kind, error))
        if len(found) == MOST_TOLD:
            raise error

    chars_left, end = MOST_CHARS_READ_ON, ""
    try:
        for document in _documents(sources, settings, on_bad):
            if not found:
                yield document
                continue
            chars_left -= len(document.text)
            if chars_left < 0:
                end = ", read no further"
                break
    except UserError:
        if not found:
            raise
        end = ", read no further"
    if found:
        (_, _, first), *others = found
        places = "".join(f"\n  {where}: {kind}" for where, kind, _ in others)
        more = f"; {len(others)} more cannot be used{end}:{places}" if others else ""
        raise CorpusError(f"{first}; corpus.skip_bad=true passes over what cannot be used{more}")


def _documents(sources: Sequence[Source], settings: CorpusSettings, on_bad: OnBad) -> Iterator[Document]:
    seen = SeenIdentifiers()
    for source_number, source in enumerate(sources):
        is_empty = True

        def bad(where: str, kind: str, error: UserError) -> None:
            nonlocal is_empty
            is_empty = False
            on_bad(where, kind, error)

        for record_number, record in _records(source, settings, bad):
            is_empty = False
            where = f"{source.path}:{record_number}"
            try:
                document = _document(record, settings, place=f"{source.name}:{record_number}")
            except _UnusableError as fault:
                kind, detail = fault.args
                bad(where, kind, CorpusError(f"{where}: {kind}: {detail}; correct or remove it"))
                continue
            earlier = seen.add(document.id, source_number, record_number)
            if earlier is None:
                yield document
                continue
            first = f"{sources[earlier[0]].path}:{earlier[1]}"
            problem = f"the id {document.id!r} comes twice, first in {first}; leave ids out, or give it another"
            bad(where, REPEATED_ID, CorpusError(f"{where}: {problem}"))
        if is_empty:
            nothing = CorpusError(f"{source.path} has no text; check the file, or leave it out")
            bad(source.path, "has no text", nothing)


def _records(source: Source, settings: CorpusSettings, on_bad: OnBad) -> Iterator[tuple[int, Row]]:
    if source.format == "hub":
        yield from read_hub(source)
        return
    path = source.file
    if source.format == "parquet":
        names = (settings.id_field, settings.title_field, settings.text_field, *settings.kept_fields)
        yield from read_parquet(source, columns=names, required=settings.text_field, keys="corpus.text_field")
    elif source.format == "jsonl":
        yield from json_rows(path, example='{"id": "1", "title": "…", "text": "…"}', refuse_nan=True, on_bad=on_bad)
    elif source.format == "table":
        for number, row in table_rows(path, required=settings.text_field, on_bad=on_bad):
            yield number, {name: cell for name, cell in row.items() if cell}  # an empty cell is no value
    else:
        names = (settings.title_field, *settings.kept_fields)
        read = read_texts(
            path,
            source.format,
            split=settings.split,
            join_lines=settings.join_lines,
            fields=names,
            on_bad=on_bad,
        )
        is_file = source.format != "txt" or settings.split is DocumentSplit.file
        identifier = {settings.id_field: path.as_posix() if isinstance(path, Path) else str(path)} if is_file else {}
        for number, title, text, front in read:
            title = str(front.get(settings.title_field) or title)
            yield number, {**front, **identifier, settings.title_field: title, settings.text_field: text}


class _UnusableError(Exception):
    """A record is no document: the kind of fault in a word or two, and what was expected."""


def _document(record: Row, settings: CorpusSettings, *, place: str) -> Document:
    """One record as a document. Raises _UnusableError if it has no text or a field has the wrong type."""
    text = record.get(settings.text_field)
    if not isinstance(text, str) or not text or text.isspace():
        got = f"{text!r:.80}" if settings.text_field in record else f"fields {named(sorted(record))}"
        raise _UnusableError(
            "has no text", f"corpus.text_field={settings.text_field} must be a string with text, got {got}"
        )
    number = record.get(settings.id_field)
    identifier = str(number) if type(number) is int else number
    title = record.get(settings.title_field)
    for name, value in ((settings.title_field, title), (settings.id_field, identifier)):
        if value is not None and not isinstance(value, str):
            raise _wrong_field(name, "a string, or missing", value)
    if identifier == "":
        raise _wrong_field(settings.id_field, "a string that is not empty", identifier)
    kept = {name: record[name] for name in settings.kept_fields if name in record}
    try:
        for value in (identifier or "", title or "", text):
            value.encode()
        json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        found = f"\\u{ord(error.object[error.start]):04x}, half a surrogate pair, at character {error.start}"
        raise _UnusableError("is not valid Unicode", found) from None
    except (TypeError, ValueError) as error:
        raise _wrong_field("kept_fields", "JSON values", error) from None
    return Document(id=identifier or place, title=title or "", text=text, fields=kept)


def _wrong_field(name: str, expected: str, value: object) -> _UnusableError:
    return _UnusableError(f"has an invalid {name}", f"it must be {expected}, got {value!r:.80}")


RECORD_BITS = 40  # a file has fewer than 2^40 records
FIRST_SLOTS = 1 << 10


def document_key(identifier: str) -> int:
    """A hash of an id for looking it up, in [1, 2^64): BLAKE2b of 8 bytes; 0 is left to mean no id.

    A text from outside that is not valid Unicode has a key too, though no document can have such an id.
    """
    return int.from_bytes(blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest()) or 1


class SeenIdentifiers:
    """Maps 64-bit hashes of ids to packed places (file number, record number): open addressing, at most 2/3 full.

    A dict would take 130 bytes an id. Two different ids share a hash with probability 3e-6 in ten million.
    """

    def __init__(self) -> None:
        self._hashes = array("Q", bytes(8 * FIRST_SLOTS))  # u64 [slots], 0 where free
        self._places = array("Q", bytes(8 * FIRST_SLOTS))  # u64 [slots]
        self._count = 0

    def add(self, identifier: str, file_number: int, record_number: int) -> tuple[int, int] | None:
        """Remember an id; returns (file number, record number) of its first place if it was there already."""
        hashed = document_key(identifier)
        slot = self._slot(hashed)
        if self._hashes[slot]:
            place = self._places[slot]
            return place >> RECORD_BITS, place & ((1 << RECORD_BITS) - 1)
        self._put(slot, hashed, file_number << RECORD_BITS | record_number)
        if 3 * self._count > 2 * len(self._hashes):
            self._grow()
        return None

    def _slot(self, hashed: int) -> int:
        last = len(self._hashes) - 1
        slot = hashed & last
        while self._hashes[slot] not in (0, hashed):
            slot = (slot + 1) & last
        return slot

    def _put(self, slot: int, hashed: int, place: int) -> None:
        self._hashes[slot], self._places[slot] = hashed, place
        self._count += 1

    def _grow(self) -> None:
        hashes, places = self._hashes, self._places
        self._hashes, self._places = array("Q", bytes(16 * len(hashes))), array("Q", bytes(16 * len(hashes)))
        self._count = 0
        for hashed, place in zip(hashes, places, strict=True):
            if hashed:
                self._put(self._slot(hashed), hashed, place)
