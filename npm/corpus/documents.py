"""Documents from files and hub data sets, streamed one by one in a fixed order.

Each source yields records: a number (line, paragraph or row) and a mapping of fields. What makes a record a document
is decided in one place, so the same faults get the same messages in all formats.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Annotated

from npm.corpus.rows import MOST_SHOWN_CHARS, Row, json_rows
from npm.corpus.sources import Source, find_sources, read_hub, read_lines, read_parquet
from npm.errors import CorpusError
from npm.settings import Bounds, CheckedSettings, PathList
from npm.types import Document


class DocumentSplit(Enum):
    """What is one document in a `.txt` file."""

    file = "file"
    paragraph = "paragraph"
    line = "line"


@dataclass(kw_only=True, slots=True)
class CorpusSettings(CheckedSettings):
    """Which documents are read, and which fields of their source mean what."""

    files: PathList = field(default_factory=list)
    """Paths, globs, or hub data sets as hub:NAME, hub:NAME@CONFIG/SPLIT; a glob is read in sorted order."""

    split: DocumentSplit = DocumentSplit.file
    """What is one document in a .txt file: file, paragraph (between empty lines) or line."""

    id_field: str = "id"
    """Field with the document's id; where it is missing the id is "file name:line", with folders where names repeat."""

    title_field: str = "title"
    """Field with the document's title; may be missing."""

    text_field: str = "text"
    """Field with the document's text."""

    kept_fields: list[str] = field(default_factory=list)
    """Further fields kept with each document, where it has them."""

    max_documents: Annotated[int | None, Bounds(1)] = None
    """Documents read at most, from the beginning; null reads all."""


def read_corpus(settings: CorpusSettings) -> Iterator[Document]:
    """The documents of `.jsonl`, `.jsonl.zst`, `.txt` and `.parquet` files and of `hub:` data sets, in a fixed order.

    Text is given as it stands, without any normalisation. All paths are checked before anything is read. Raises
    CorpusError, with file and line, for whatever cannot be read as a document, and for an id that comes twice.
    """
    return islice(_documents(find_sources(settings.files), settings), settings.max_documents)


def _documents(sources: Sequence[Source], settings: CorpusSettings) -> Iterator[Document]:
    seen = SeenIdentifiers()
    for source_number, source in enumerate(sources):
        record_number = 0
        for record_number, record in _records(source, settings):
            document = _document(record, settings, place=f"{source.name}:{record_number}", source=source)
            earlier = seen.add(document.id, source_number, record_number)
            if earlier is not None:
                raise CorpusError(
                    f"the id {document.id!r} comes twice",
                    expected="every document has an id of its own",
                    got=f"{sources[earlier[0]].path}:{earlier[1]} and {source.path}:{record_number}",
                    where=f"{source.path}:{record_number}",
                    fix="give one of them another id, or leave ids out: they become file name and line",
                )
            yield document
        if record_number == 0:
            raise CorpusError(
                f"{source.name} has no text",
                expected="at least one document",
                got="nothing but empty lines" if source.format != "hub" else "no rows",
                where=source.path,
                fix="check the file, or leave it out",
            )


def _records(source: Source, settings: CorpusSettings) -> Iterator[tuple[int, Row]]:
    path = Path(source.path)
    if source.format == "hub":
        yield from read_hub(source)
    elif source.format == "parquet":
        names = (settings.id_field, settings.title_field, settings.text_field, *settings.kept_fields)
        yield from read_parquet(source, columns=names, required=settings.text_field)
    elif source.format == "jsonl":
        yield from json_rows(path, example='{"id": "1", "title": "…", "text": "…"}', refuse_nan=True)
    else:
        for number, text in _text_pieces(path, settings.split):
            yield number, {settings.title_field: path.stem, settings.text_field: text}


def _text_pieces(path: Path, split: DocumentSplit) -> Iterator[tuple[int, str]]:
    """Documents of a plain text file, numbered by line or paragraph; empty ones separate and are no documents."""
    if split is DocumentSplit.line:
        yield from ((number, line) for number, line in read_lines(path) if line and not line.isspace())
        return
    piece_count = 0
    pending: list[str] = []
    for _, line in read_lines(path, keep_ends=True):
        if split is DocumentSplit.file or not line.isspace():
            pending.append(line)
        elif pending:
            piece_count += 1
            yield piece_count, _without_line_end("".join(pending))
            pending = []
    text = "".join(pending)
    if text and not text.isspace():
        yield piece_count + 1, text if split is DocumentSplit.file else _without_line_end(text)


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _document(record: Row, settings: CorpusSettings, *, place: str, source: Source) -> Document:
    """One record as a document. Raises CorpusError if it lacks text or a field has the wrong type."""
    where = f"{source.path}:{place.rpartition(':')[2]}"
    text = record.get(settings.text_field)
    if not isinstance(text, str) or not text or text.isspace():
        raise CorpusError(
            f"{place} lacks text",
            expected=f"a string with text in the field {settings.text_field!r}",
            got=f"the fields {sorted(record)}" if settings.text_field not in record else repr(text)[:MOST_SHOWN_CHARS],
            where=where,
            fix="correct or remove this document, or name the field that holds the text with corpus.text_field=",
        )
    number = record.get(settings.id_field)
    identifier = str(number) if type(number) is int else number
    title = record.get(settings.title_field)
    for name, value in ((settings.title_field, title), (settings.id_field, identifier)):
        if value is not None and not isinstance(value, str):
            raise _wrong_field(name, value, expected="a string, or no such field", where=where, place=place)
    if identifier == "":
        raise _wrong_field(settings.id_field, identifier, expected="an id that is not empty", where=where, place=place)
    kept = {name: record[name] for name in settings.kept_fields if name in record}
    try:
        for value in (identifier or "", title or "", text):
            value.encode()
        json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        got = f"half a surrogate pair, \\u{ord(error.object[error.start]):04x}, at character {error.start}"
        raise CorpusError(
            f"{place} is not valid Unicode",
            expected="text of whole characters",
            got=got,
            where=where,
            fix="correct or remove this document",
        ) from None
    except (TypeError, ValueError) as error:
        raise _wrong_field("kept_fields", error, expected="JSON values", where=where, place=place) from None
    return Document(id=identifier or place, title=title or "", text=text, fields=kept)


def _wrong_field(name: str, value: object, *, expected: str, where: str, place: str) -> CorpusError:
    return CorpusError(
        f"{place}: the field {name!r} cannot be used",
        expected=expected,
        got=repr(value)[:MOST_SHOWN_CHARS],
        where=where,
        fix="correct or remove this document, or name another field",
    )


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
