"""The rows of files of sentences, pairs and triplets, streamed one by one in a fixed order."""

from __future__ import annotations

import csv
import glob
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.lines import read_lines
from npm.corpus.pair_settings import SentenceDataSettings
from npm.corpus.sentences import sentence_bounds
from npm.corpus.sources import Source, find_sources, read_parquet
from npm.errors import CorpusError
from npm.types import SURROGATE

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENTAILMENT, NEUTRAL, CONTRADICTION, NO_LABEL = 0, 1, 2, -1
LABELS = {"entailment": ENTAILMENT, "neutral": NEUTRAL, "contradiction": CONTRADICTION, "-": NO_LABEL}
"""Codes of labels; `-` stands where the annotators did not agree."""
NAME_COLUMNS = "name the columns of your files with sentences.anchor_column=, sentences.positive_column=, …"
MOST_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one row in the order of the columns, where they stand, and the label of the pair if it has one."""

    texts: tuple[str, ...]
    where: str
    label: int | None = None


def sentence_sources(settings: SentenceDataSettings) -> list[Source]:
    """The files that `settings` name, checked, globs expanded; empty if sentences come from the corpus.

    Raises CorpusError for a file that is missing, empty, given twice or of an unknown kind, SettingError if there are
    columns to read but no files.
    """
    settings.check_files()
    sources: list[Source] = []
    for file in settings.files:
        sources += _delimited_sources(file) if Path(file).suffix in DELIMITERS else find_sources([file])
    paths = [source.path for source in sources]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise CorpusError(
            f"{Path(twice).name} is given twice",
            expected="each file once",
            got=f"{paths.count(twice)} times",
            where="sentences.files",
            fix="leave one of them out; globs may overlap",
        )
    return sources


def _delimited_sources(name: str) -> list[Source]:
    names = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) and not Path(name).exists() else [name]  # noqa: PTH207
    for path in map(Path, names or [name]):
        if not path.is_file() or not path.stat().st_size:
            raise CorpusError(
                f"{path.name} is empty" if path.is_file() else f"{path.name} does not exist",
                expected="a file with a line of column names and rows",
                got="0 bytes" if path.is_file() else "no such file",
                where=str(path),
                fix="check sentences.files, or fetch the file again",
            )
    return [Source(path=path, name=Path(path).name, format=Path(path).suffix[1:]) for path in names]


def read_text_rows(settings: SentenceDataSettings, corpus: CorpusSettings) -> Iterator[TextRow]:
    """The rows that `settings` describe, out of their files, else the sentences of `corpus`.

    With labels, each row is an anchor and what it is compared with. Pairs under the least score, neutral pairs and
    pairs without a label are left out. Raises CorpusError, with file and row, for what is not usable.
    """
    sources = sentence_sources(settings)
    if not sources:
        yield from _corpus_sentences(settings, corpus)
    for source in sources:
        is_empty = True
        for number, record in _records(source, settings):
            is_empty = False
            row = _text_row(record, settings, where=f"{source.path}:{number}", source=source)
            if row is not None:
                yield row
        if is_empty:
            raise CorpusError(
                f"{source.name} has no rows",
                expected="at least one row with text",
                got="column names or empty lines only",
                where=source.path,
                fix="check the file, or leave it out",
            )


def _corpus_sentences(settings: SentenceDataSettings, corpus: CorpusSettings) -> Iterator[TextRow]:
    for document in read_corpus(corpus):
        for start, end in sentence_bounds(document.text).tolist():
            sentence = document.text[start:end]
            if len(sentence.split()) >= settings.least_sentence_words:
                yield TextRow((sentence,), document.id)


def _records(source: Source, settings: SentenceDataSettings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Numbered rows of one file by column."""
    if source.format in ("csv", "tsv"):
        return _delimited_records(source, settings)
    if source.format == "parquet":
        return _parquet_records(source, settings)
    if source.format == "jsonl":
        return _json_records(source)
    if source.format == "txt" and len(settings.text_columns) == 1:
        lines = read_lines(Path(source.path))
        return ((number, {settings.anchor_column: line}) for number, line in lines if line and not line.isspace())
    raise CorpusError(
        f"{source.name} cannot hold pairs",
        expected="files with columns: .jsonl, .csv, .tsv or .parquet",
        got=source.name,
        where=source.path,
        fix="give a file with columns, or only sentences.anchor_column for a sentence a line",
    )


def _json_records(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in read_lines(Path(source.path)):
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise CorpusError(
                f"{source.name} has a line {number} that is not a JSON object",
                expected='one JSON object a line, such as {"sentence1": "…", "sentence2": "…"}',
                got=line[:MOST_SHOWN_CHARS],
                where=f"{source.path}:{number}",
                fix="mend or remove this line",
            )
        yield number, record


def _delimited_records(source: Source, settings: SentenceDataSettings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows under a line of column names; quotes are quotes in .csv files and ordinary characters in .tsv files."""
    suffix = Path(source.path).suffix
    lines = (line for _, line in read_lines(Path(source.path), keep_ends=True))
    if suffix == ".tsv":
        rows = csv.reader(lines, delimiter=DELIMITERS[suffix], quoting=csv.QUOTE_NONE, strict=True)
    else:
        rows = csv.reader(lines, delimiter=DELIMITERS[suffix], strict=True)
    try:
        names = next(rows, [])
        if missing := [name for name in _needed_columns(settings) if name not in names]:
            raise _without_columns(source, missing, names)
        for values in rows:
            if values:
                yield rows.line_num, dict(zip(names, values, strict=False))
    except csv.Error as error:
        raise CorpusError(
            f"{source.name} cannot be read as {suffix} in line {rows.line_num}",
            expected=f"rows of cells parted by {DELIMITERS[suffix]!r}",
            got=str(error),
            where=f"{source.path}:{rows.line_num}",
            fix="mend this line, or convert the file to .jsonl",
        ) from None


def _parquet_records(source: Source, settings: SentenceDataSettings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    needed = _needed_columns(settings)
    return read_parquet(source, columns=needed, required=needed[0], fix=NAME_COLUMNS)


def _needed_columns(settings: SentenceDataSettings) -> list[str]:
    return [name for name in (*settings.text_columns, settings.label_column, settings.score_column) if name]


def _without_columns(source: Source, missing: list[str], present: list[str], where: str = "") -> CorpusError:
    return CorpusError(
        f"{source.name} lacks {', '.join(map(repr, missing))}",
        expected=f"the columns {', '.join(map(repr, missing))}",
        got=", ".join(present)[:MOST_SHOWN_CHARS] or "none",
        where=where or source.path,
        fix=NAME_COLUMNS,
    )


def _text_row(
    record: Mapping[str, Any], settings: SentenceDataSettings, *, where: str, source: Source
) -> TextRow | None:
    """One record as texts; None if its score or label leaves it out."""
    if missing := [name for name in _needed_columns(settings) if name not in record]:
        raise _without_columns(source, missing, sorted(record), where)
    texts = tuple(record[name] for name in settings.text_columns)
    if settings.score_column and _score(record[settings.score_column], settings, where) < settings.least_score:
        return None
    label = _label(record[settings.label_column], settings, where) if settings.label_column else None
    if label in (NEUTRAL, NO_LABEL):
        return None
    for name, text in zip(settings.text_columns, texts, strict=True):
        if not isinstance(text, str) or not text or text.isspace() or SURROGATE.search(text):
            raise _unusable(name, text, where, expected="a string with text")
    return TextRow(texts, where, label)


def _score(value: object, settings: SentenceDataSettings, where: str) -> float:
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        score = math.nan
    if math.isnan(score):
        raise _unusable(settings.score_column, value, where, expected="a number")
    return score


def _label(value: object, settings: SentenceDataSettings, where: str) -> int:
    text = str(value).strip().lower()
    if text in LABELS:
        return LABELS[text]
    if text.removeprefix("-").isdigit() and int(text) in LABELS.values():
        return int(text)
    raise _unusable(
        settings.label_column, value, where, expected="entailment, neutral, contradiction or -, or 0, 1, 2 or -1"
    )


def _unusable(column: str, value: object, where: str, *, expected: str) -> CorpusError:
    return CorpusError(
        f"the column {column!r} of a row cannot be used",
        expected=expected,
        got=repr(value)[:MOST_SHOWN_CHARS],
        where=where,
        fix="mend or remove this row, or name another column",
    )
