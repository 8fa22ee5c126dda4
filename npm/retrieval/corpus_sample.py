"""A sample of a corpus for planning: the first documents of files spread over it, and what each of them stands for.

Shapes: S sampled documents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from npm.corpus.documents import CorpusSettings, DocumentSplit, read_documents
from npm.corpus.sources import CHUNK_BYTES, Source, find_sources, parquet_row_count, read_lines
from npm.types import Document

MOST_FILES = 16
"""Files looked into; of more, as many, spread evenly."""
RATIO_BYTES = 5 * CHUNK_BYTES
"""Read of each compressed file to learn how far its text is compressed."""
MOST_CHARS = 1 << 18
"""Read of one document; a longer one stands for as many of this length as it makes."""


@dataclass(frozen=True, slots=True)
class CorpusSample:
    """Some documents, and how many of its length each stands for."""

    documents: list[Document]  # S
    weights: np.ndarray  # f64 [S]
    document_count: float  # documents of the corpus, as far as that is known
    unknown_sources: list[str]  # data sets of unknown size: of these only the sample counts


@dataclass(frozen=True, slots=True)
class _SourceSample:
    documents: list[Document]
    factor: float  # the whole source as a multiple of these documents
    is_known: bool = True


def sample_corpus(
    settings: CorpusSettings, *, documents: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> CorpusSample:
    """About `documents` documents; after `seconds` no further file is opened once there is one of every kind.

    Raises CorpusError as reading the corpus does.
    """
    sources = find_sources(settings.files)
    kinds: dict[str, list[Source]] = {}
    for source in sources:
        kinds.setdefault(_kind(source), []).append(source)
    chosen = {kind: _spread(group, max(1, MOST_FILES * len(group) // len(sources))) for kind, group in kinds.items()}
    files_left = sum(map(len, chosen.values()))
    stop_at = clock() + seconds
    sampled: list[Document] = []
    weights: list[float] = []
    unknown: list[str] = []
    for kind, group in kinds.items():
        read: list[tuple[Source, _SourceSample]] = []
        for source in chosen[kind]:
            if not read or kind == "hub" or clock() < stop_at:
                quota = max(1, (documents - len(sampled)) // files_left)
                read.append((source, _sample_source(source, settings, quota)))
                sampled += read[-1][1].documents
            files_left -= 1
        spread = _stored_bytes(group) / _stored_bytes([source for source, _ in read])
        for source, found in read:
            weights += [found.factor * spread] * len(found.documents)
            if not found.is_known:
                unknown.append(source.name)
    return _scaled(sampled, np.array(weights), unknown, settings.max_documents)


def _scaled(
    documents: list[Document], weights: np.ndarray, unknown: list[str], max_documents: int | None
) -> CorpusSample:
    """The sample with `weights` f64 [S] cut to `max_documents`, and its long documents cut too."""
    document_count = float(weights.sum())
    if max_documents is not None and document_count > 0 and (unknown or max_documents < document_count):
        weights = weights * (max_documents / document_count)  # f64 [S]
        document_count, unknown = float(max_documents), []
    lengths = np.array([len(document.text) for document in documents], dtype=np.float64)  # f64 [S]
    weights = weights * np.maximum(1.0, lengths / MOST_CHARS)  # f64 [S]
    documents = [replace(document, text=document.text[:MOST_CHARS]) for document in documents]
    return CorpusSample(documents, weights, document_count, unknown)


def _sample_source(source: Source, settings: CorpusSettings, quota: int) -> _SourceSample:
    """The first `quota` documents of a source, and how many times as much it holds."""
    read = read_documents(
        [source.path],
        split=settings.split,
        id_field=settings.id_field,
        title_field=settings.title_field,
        text_field=settings.text_field,
        kept_fields=settings.kept_fields,
    )
    documents = list(islice(read, quota))
    is_whole = next(read, None) is None
    read.close()  # type: ignore[attr-defined]
    if is_whole or (source.format == "txt" and settings.split is DocumentSplit.file):
        return _SourceSample(documents, 1.0)
    if source.format == "hub":
        return _SourceSample(documents, 1.0, is_known=False)
    if source.format == "parquet":
        return _SourceSample(documents, parquet_row_count(source) / len(documents))
    if source.format == "txt":
        taken_bytes = sum(len(document.text.encode()) + 1 for document in documents)
        return _SourceSample(documents, max(1.0, Path(source.path).stat().st_size / taken_bytes))
    return _SourceSample(documents, _text_factor(Path(source.path), len(documents)))


def _text_factor(path: Path, line_count: int) -> float:
    """How many times the text of the first `line_count` lines that are not empty the file holds, decompressed."""
    read_bytes = text_bytes = taken_bytes = taken = 0
    marks: list[tuple[int, int]] = []  # before each piece: bytes of the file read, bytes of text that came of them

    def mark(byte_count: int) -> None:
        nonlocal read_bytes
        marks.append((read_bytes, text_bytes))
        read_bytes += byte_count

    size = path.stat().st_size
    is_plain = path.suffix != ".zst"
    for _, line in read_lines(path, keep_ends=True, on_bytes=mark):
        text_bytes += len(line.encode())
        if taken < line_count and not line.isspace():
            taken += 1
            taken_bytes = text_bytes
        if taken == line_count and (is_plain or RATIO_BYTES <= read_bytes < size):
            break
    if is_plain or read_bytes == size:
        return max(1.0, (size if is_plain else text_bytes) / taken_bytes)
    # A decompressor is always behind by a part of what it has read: differences leave that out.
    (first_read, first_text), (last_read, last_text) = marks[1], marks[-1]
    return max(1.0, size * (last_text - first_text) / (last_read - first_read) / taken_bytes)


def _kind(source: Source) -> str:
    return "zst" if source.path.endswith(".zst") else source.format


def _spread(sources: Sequence[Source], most: int) -> list[Source]:
    """At most so many of them, evenly spread."""
    count = min(most, len(sources))
    return [sources[number * len(sources) // count] for number in range(count)]


def _stored_bytes(sources: Sequence[Source]) -> float:
    """The bytes of all sources; of data sets, whose bytes nobody knows, their number."""
    return sum(1.0 if source.format == "hub" else float(Path(source.path).stat().st_size) for source in sources)
