"""Documents from files and hub data sets, streamed one by one in a fixed order."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np
from pydantic import PositiveInt

from npm.core.errors import ArtifactError, CorpusError
from npm.core.settings import PathText, Settings
from npm.core.types import Document
from npm.corpus.readers import OnBad, Row, Rows, read_records
from npm.corpus.sources import Source, find_sources
from npm.corpus.text_files import DocumentSplit, read_texts

MAX_SUMMARIZED = 3
REPEATED_ID = "has an id that came before"
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


class CorpusSettings(Settings):
    """Which documents are read, and which fields of their source mean what."""

    files: list[PathText] = field(default_factory=list)
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

    max_documents: PositiveInt | None = None
    """Documents read at most, from the beginning; null reads all."""

    skip_bad: bool = False
    """Skip and report lines and documents that cannot be used; otherwise the first ends the reading."""


REPORT_START = '{"where": "'
"""Beginning of every line of the report."""


class SkippedRecords:
    """Records that `skip_bad` skipped: counted by kind, the first few kept, all of them as JSON lines in a file."""

    def __init__(self, report: Path | None = None) -> None:
        """Without a `report` no list is written; it is begun anew with the first record."""
        self._report = report
        self._kinds: Counter[str] = Counter()
        self._first: list[str] = []

    @classmethod
    def beside(cls, folder: Path) -> SkippedRecords:
        """Report next to `folder`, which contains nothing but what its manifest lists: FOLDER.skipped.jsonl."""
        place = folder.resolve()
        return cls(place.with_name(f"{place.name}.skipped.jsonl"))

    def add(self, where: str, kind: str, detail: str) -> None:
        """Add a record; an `OnBad`. Raises ArtifactError if the report would replace a file that is none."""
        if len(self._first) < MAX_SUMMARIZED:
            self._first.append(f"{where} ({kind})")
        if self._report is not None:
            if not self._kinds:
                self._remove_old_report(self._report)
            line = json.dumps({"where": where, "kind": kind, "problem": detail}, ensure_ascii=False)
            mode = "a" if self._kinds else "x"  # never through a link
            with self._report.open(mode, encoding="utf-8", errors="backslashreplace") as file:
                file.write(line + "\n")
        self._kinds[kind] += 1

    @staticmethod
    def _remove_old_report(report: Path) -> None:
        report.parent.mkdir(parents=True, exist_ok=True)
        is_file = report.is_file() and not report.is_symlink()
        if is_file and report.read_bytes().startswith(REPORT_START.encode()):
            report.unlink()
        elif is_file or report.is_symlink():
            raise ArtifactError(f"{report} is in the way of the list of skipped documents: move it away")

    @property
    def summary(self) -> str:
        """Count of each kind, the first records and the path of the report; "" if there were none."""
        if not (total := self._kinds.total()):
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._kinds.most_common())
        place = f"; all of them: {self._report}" if self._report is not None else ""
        return f"skipped {total} of the corpus: {kinds}; first {', '.join(self._first)}{place}"


def _refuse(where: str, kind: str, detail: str) -> None:
    raise CorpusError(f"{where}: {kind}: {detail}; corpus.skip_bad=true skips and lists what cannot be used")


def read_corpus(
    settings: CorpusSettings, *, sources: Sequence[Source] | None = None, skipped: SkippedRecords | None = None
) -> Iterator[Document]:
    """Yield the documents of files of all FORMATS and of `hub:` data sets in a fixed order, or of given `sources`.

    Texts are not normalized; those of `.txt`, `.md` and `.html` files keep their length, with HIDDEN in place of what
    is not read (see `npm.corpus.markup`). All paths are checked before anything is read. Raises CorpusError, with file
    and line, for a record that is no document, and for a repeated id; with `settings.skip_bad` these go to `skipped`.
    """
    sources = find_sources(settings.files) if sources is None else sources
    on_bad = (skipped or SkippedRecords()).add if settings.skip_bad else _refuse
    return islice(_documents(sources, settings, on_bad), settings.max_documents)


def refuse_repeated_id(settings: CorpusSettings, sources: Sequence[Source]) -> NoReturn:
    """Raise the CorpusError of the first id that comes twice in `sources`, which are known to repeat one."""

    def on_bad(where: str, kind: str, detail: str) -> None:
        if kind == REPEATED_ID:
            _refuse(where, kind, detail)

    deque(_documents(sources, settings, on_bad), maxlen=0)
    raise AssertionError("no id comes twice")


def _documents(sources: Sequence[Source], settings: CorpusSettings, on_bad: OnBad) -> Iterator[Document]:
    seen = SeenIds()
    for source_number, source in enumerate(sources):
        number = 0
        for number, record in _records(source, settings, on_bad):
            where = f"{source.path}:{number}"
            try:
                document = _document(record, settings, place=f"{source.name}:{number}")
            except _UnusableError as fault:
                on_bad(where, *fault.args)
                continue
            earlier = seen.add(document.id, source_number << RECORD_BITS | number)
            if earlier is None:
                yield document
            else:
                first = f"{sources[earlier >> RECORD_BITS].path}:{earlier % (1 << RECORD_BITS)}"
                on_bad(
                    where, REPEATED_ID, f"{document.id!r} comes twice, first in {first}; leave out ids, or change it"
                )
        if not number:
            on_bad(source.path, "has no text", "check the file, or leave it out")


def _records(source: Source, settings: CorpusSettings, on_bad: OnBad) -> Rows:
    others = (settings.id_field, settings.title_field, *settings.kept_fields)
    if source.format not in ("txt", "md", "html"):
        required = [settings.text_field]
        read = read_records(source, required=required, optional=others, keys="corpus.text_field", on_bad=on_bad)
        for number, row in read:
            # an empty cell of a table is no value
            yield number, {name: cell for name, cell in row.items() if cell} if source.format == "table" else row
        return
    names = (settings.title_field, *settings.kept_fields)
    split, join_lines = settings.split, settings.join_lines
    is_file = source.format != "txt" or split is DocumentSplit.file
    path = source.file
    identifier = {settings.id_field: path.as_posix() if isinstance(path, Path) else str(path)} if is_file else {}
    texts = read_texts(path, source.format, split=split, join_lines=join_lines, fields=names, on_bad=on_bad)
    for number, title, text, front in texts:
        title = str(front.get(settings.title_field) or title)
        yield number, {**front, **identifier, settings.title_field: title, settings.text_field: text}


class _UnusableError(Exception):
    """A record is not a document: the kind of fault in a few words, and its details."""


def _document(record: Row, settings: CorpusSettings, *, place: str) -> Document:
    """Return one record as a document. Raises _UnusableError if it has no text or a field has the wrong type."""
    text = record.get(settings.text_field)
    if not isinstance(text, str) or not text.strip():
        raise _UnusableError("has no text", f"corpus.text_field={settings.text_field} is {text!r:.80}")
    number = record.get(settings.id_field)
    identifier = str(number) if type(number) is int else number
    title = record.get(settings.title_field)
    for name, value in ((settings.title_field, title), (settings.id_field, identifier)):
        if value is not None and not isinstance(value, str):
            raise _wrong_field(name, "a string, or missing", value)
    if identifier == "" or (identifier and CONTROL_CHARACTER.search(identifier)):
        raise _wrong_field(settings.id_field, "a string with characters, none of them a control character", identifier)
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


def document_key(identifier: str) -> int:
    """Hash an id for looking it up, in [1, 2^64): BLAKE2b of 8 bytes; 0 is left to mean no id.

    A text from outside that is not valid Unicode has a key too, though no document can have such an id.
    """
    return int.from_bytes(blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest()) or 1


RECORD_BITS = 40  # a file has fewer than 2^40 records
RECENT_IDS = 1 << 18


class SeenIds:
    """Places of ids by the 64-bit hashes of the ids: sorted arrays of 16 bytes per id, where a dict takes 130.

    Two different ids share a hash with probability 3e-6 in ten million.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, dtype=np.uint64)  # [ids], sorted
        self._places = np.zeros(0, dtype=np.int64)  # [ids]
        self._recent: dict[int, int] = {}

    def add(self, identifier: str, place: int) -> int | None:
        """Remember the place of an id; returns its first place if the id came before."""
        key = document_key(identifier)
        slot = int(np.searchsorted(self._keys, np.uint64(key)))
        if slot < len(self._keys) and int(self._keys[slot]) == key:
            return int(self._places[slot])
        if key in self._recent:
            return self._recent[key]
        self._recent[key] = place
        if len(self._recent) == RECENT_IDS:
            keys = np.concatenate([self._keys, np.array(list(self._recent), dtype=np.uint64)])  # [ids]
            places = np.concatenate([self._places, np.array(list(self._recent.values()), dtype=np.int64)])  # [ids]
            order = np.argsort(keys)  # [ids]
            self._keys, self._places = keys[order], places[order]
            self._recent.clear()
        return None
