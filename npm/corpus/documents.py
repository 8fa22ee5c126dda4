"""Documents from files and hub data sets, streamed one by one in a fixed order.

Each source yields records: a number (line, paragraph or row) and a mapping of fields. What makes a record a document
is decided in one place, so the same faults get the same messages in all formats.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from npm.corpus.sources import Source, find_sources, read_hub, read_lines, read_parquet
from npm.errors import CorpusError, check_range
from npm.settings import PathList
from npm.types import Document

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


class DocumentSplit(Enum):
    """What is one document in a `.txt` file."""

    file = "file"
    paragraph = "paragraph"
    line = "line"


@dataclass(kw_only=True, slots=True)
class CorpusSettings:
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

    max_documents: int | None = None
    """Documents read at most, from the beginning; null reads all."""

    def __post_init__(self) -> None:
        check_range(
            self.max_documents is None or self.max_documents >= 1,
            "corpus.max_documents",
            expected="at least 1 document, or null for all",
            got=self.max_documents,
        )


def read_corpus(settings: CorpusSettings) -> Iterator[Document]:
    """The documents that `settings` describe; see `read_documents`."""
    documents = read_documents(
        settings.files,
        split=settings.split,
        id_field=settings.id_field,
        title_field=settings.title_field,
        text_field=settings.text_field,
        kept_fields=settings.kept_fields,
    )
    return islice(documents, settings.max_documents)


def read_documents(
    files: Sequence[str | Path],
    *,
    split: DocumentSplit = DocumentSplit.file,
    id_field: str = "id",
    title_field: str = "title",
    text_field: str = "text",
    kept_fields: Sequence[str] = (),
) -> Iterator[Document]:
    """The documents of `.jsonl`, `.jsonl.zst`, `.txt` and `.parquet` files and of `hub:` data sets, in a fixed order.

    Text is given as it stands, without any normalisation. All paths are checked before anything is read. Raises
    CorpusError, with file and line, for whatever cannot be read as a document, and for an id that comes twice.
    """
    fields = _Fields(id_field, title_field, text_field, tuple(kept_fields))
    sources = find_sources(files)
    return _documents(sources, split=split, fields=fields)


@dataclass(frozen=True, slots=True)
class _Fields:
    id: str
    title: str
    text: str
    kept: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (self.id, self.title, self.text, *self.kept)


def _documents(sources: Sequence[Source], *, split: DocumentSplit, fields: _Fields) -> Iterator[Document]:
    seen = SeenIdentifiers()
    for source_number, source in enumerate(sources):
        record_number = 0
        for record_number, record in _records(source, split=split, fields=fields):
            document = _document(record, place=f"{source.name}:{record_number}", source=source, fields=fields)
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


def _records(source: Source, *, split: DocumentSplit, fields: _Fields) -> Iterator[tuple[int, Mapping[str, Any]]]:
    readers: dict[str, Callable[[], Iterator[tuple[int, Mapping[str, Any]]]]] = {
        "jsonl": partial(_json_records, source),
        "txt": partial(_text_records, source, split=split, fields=fields),
        "parquet": partial(read_parquet, source, columns=fields.all, required=fields.text),
        "hub": partial(read_hub, source),
    }
    return readers[source.format]()


def _json_records(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in read_lines(Path(source.path)):
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line, parse_constant=_refuse_constant)
            got = f"a JSON {type(record).__name__}"
        except (ValueError, RecursionError) as error:
            record, got = None, f"{error}: {_shortened(line)}"
        if not isinstance(record, dict):
            raise CorpusError(
                f"{source.name} has a line {number} that is not a JSON object",
                expected='one JSON object a line, such as {"id": "1", "title": "…", "text": "…"}',
                got=got,
                where=f"{source.path}:{number}",
                fix="mend or remove this line; if it is the last one, the file may not have been written to its end",
            )
        yield number, record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text_records(source: Source, *, split: DocumentSplit, fields: _Fields) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Records of a plain text file, numbered by line or paragraph; empty ones separate and are not counted as text."""
    title = Path(source.path).stem
    for number, text in _text_pieces(Path(source.path), split):
        yield number, {fields.title: title, fields.text: text}


def _text_pieces(path: Path, split: DocumentSplit) -> Iterator[tuple[int, str]]:
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


def _document(record: Mapping[str, Any], *, place: str, source: Source, fields: _Fields) -> Document:
    """One record as a document. Raises CorpusError if it lacks text or a field has the wrong type."""
    where = f"{source.path}:{place.rpartition(':')[2]}"
    text = record.get(fields.text)
    if not isinstance(text, str) or not text or text.isspace():
        raise CorpusError(
            f"{place} lacks text",
            expected=f"a string with text in the field {fields.text!r}",
            got=f"the fields {sorted(record)}" if fields.text not in record else _shortened(repr(text)),
            where=where,
            fix="mend or remove this document, or name the field that holds the text with corpus.text_field=",
        )
    number = record.get(fields.id)
    identifier = str(number) if type(number) is int else number
    title = record.get(fields.title)
    for name, value in ((fields.title, title), (fields.id, identifier)):
        if value is not None and not isinstance(value, str):
            raise _wrong_field(name, value, expected="a string, or no such field", where=where, place=place)
    if identifier == "":
        raise _wrong_field(fields.id, identifier, expected="an id that is not empty", where=where, place=place)
    kept = {name: record[name] for name in fields.kept if name in record}
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
            fix="mend or remove this document",
        ) from None
    except (TypeError, ValueError) as error:
        raise _wrong_field("kept_fields", error, expected="JSON values", where=where, place=place) from None
    return Document(id=identifier or place, title=title or "", text=text, fields=kept)


def _wrong_field(name: str, value: object, *, expected: str, where: str, place: str) -> CorpusError:
    return CorpusError(
        f"{place}: the field {name!r} cannot be used",
        expected=expected,
        got=_shortened(repr(value)),
        where=where,
        fix="mend or remove this document, or name another field",
    )


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
