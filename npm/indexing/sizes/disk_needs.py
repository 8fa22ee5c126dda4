"""What an index will hold and take on the disk, estimated from a sample of its corpus before it is built.

Counts come from the sample, each document with its weight; bytes from the shapes of the arrays that are stored.
`tests/indexing/test_estimate.py` compares both with built indexes.

Shapes: S sampled documents, T tokens of them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.settings import SearchSettings, SearchTier, resolved_settings
from npm.core.files import check_room, stored_bytes
from npm.core.types import Block, Document
from npm.corpus.addresses import StoredFile, file_size
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import CorpusSettings, DocumentSplit, read_corpus
from npm.corpus.readers import COMPRESSED, open_text, parquet_row_count, read_records
from npm.corpus.shards import encoded_document
from npm.corpus.sources import Source, find_sources
from npm.corpus.store import DOCUMENTS_PER_BATCH, LARGEST_U16_VOCABULARY, TOKENS_PER_SHARD
from npm.corpus.text import is_title
from npm.indexing.block_vectors import block_bytes
from npm.indexing.embed import kept_tokens
from npm.indexing.lexicon import count_words
from npm.indexing.settings import LexiconSettings, Rotation, VectorSettings

if TYPE_CHECKING:
    from npm.indexing.settings import EstimateSettings, IndexBuildSettings
    from npm.models.encoder import Encoder


GRAPH_LINKS = 32
"""Links of a node of the graph over centroids; twice as many in its lowest level."""
SAMPLED_DOCUMENTS, SAMPLE_SECONDS = 32, 0.5
"""Read before every build."""
MOST_FILES = 16
"""Files that are read from; of more, as many, evenly spread."""
RATIO_BYTES = 5 << 18
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
class CorpusCounts:
    """How much of everything the whole corpus comes to."""

    documents: float
    document_bytes: float  # of their texts, and of the rest as JSON
    blocks: float
    tokens: float
    rows: float  # stored vectors
    lexicon_bytes: float
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class SearchShape:
    """What the settings of search come to for a number of rows."""

    resolved: dict[str, Any]
    list_count: int  # 0 without inverted lists
    code_bytes: int  # of one row; 0 in the exact tier
    centroid_bytes: int = 0  # of all lists
    transform_bytes: int = 0  # of the matrices before the lists, such as a rotation

    @property
    def tier(self) -> str:
        """Tier, and the factory string where there is one."""
        return " ".join(str(self.resolved[name]) for name in ("tier", "factory") if name in self.resolved)


def check_disk_needs(folder: Path, settings: IndexBuildSettings, encoder: Encoder) -> None:
    """Raise StorageError if the finished index will not fit the disk, less what an earlier build left in `folder`."""
    check_room(folder, corpus_needs(settings, encoder) - stored_bytes(folder), what="index")


def corpus_needs(settings: IndexBuildSettings, encoder: Encoder) -> float:
    """About the bytes of the finished index, from a few documents, without encoding any; a part of a second.

    Data sets of unknown size count with those documents only. Raises CorpusError as reading the corpus does.
    """
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    sample = sample_corpus(settings.corpus, documents=SAMPLED_DOCUMENTS, seconds=SAMPLE_SECONDS)
    counts = corpus_counts(sample, packed_in_batches(packer, sample), settings.vectors, settings.lexicon)
    shape = search_shape(settings.search, round(counts.rows), encoder.dimensions)
    return sum(disk_needs(counts, shape, settings, encoder, vocabulary_size=packer.vocabulary_size).values())


def packed_in_batches(packer: BlockPacker, sample: CorpusSample) -> list[list[Block]]:
    """The blocks of each document of the sample, packed as many at once as a build does."""
    documents = sample.documents
    return [
        blocks
        for start in range(0, len(documents), DOCUMENTS_PER_BATCH)
        for blocks in packer.pack_many(documents[start : start + DOCUMENTS_PER_BATCH])
    ]


def corpus_counts(
    sample: CorpusSample, packed: Sequence[Sequence[Block]], vectors: VectorSettings, lexicon: LexiconSettings
) -> CorpusCounts:
    """The counts of the whole corpus, from the blocks `packed` of each of the sample's S documents."""
    weights = sample.weights  # f64 [S]
    blocks = [block for of_document in packed for block in of_document]
    token_counts = [sum(len(block.token_ids) for block in of_document) for of_document in packed]
    token_weights = np.repeat(weights, token_counts)  # f64 [T]
    tokens, sampled_tokens = float(token_weights.sum()), len(token_weights)
    token_ids = np.concatenate([np.zeros(0, np.int32), *(block.token_ids for block in blocks)])  # i32 [T]
    flags = np.concatenate([np.zeros(0, np.uint8), *(block.flags for block in blocks)])  # u8 [T]
    dropped = np.zeros(0, dtype=np.int64)  # i64 [n]
    if vectors.max_token_share is not None:
        of_text = ~is_title(flags)  # bool [T]
        counts = np.bincount(token_ids[of_text], weights=token_weights[of_text])  # f64 [largest id + 1]
        dropped = np.flatnonzero(counts > vectors.max_token_share * counts.sum())
    block_count = float(weights @ np.array([len(of_document) for of_document in packed]))
    texts = block_texts(sample, packed)
    half, whole = count_words(texts[::2], lexicon), count_words(texts, lexicon)
    posting_bytes = whole.posting_blocks.nbytes + whole.posting_counts.nbytes
    words = _vocabulary(len(half.words), len(whole.words), sampled_tokens, tokens)
    word_bytes = sum(len(word.encode()) for word in whole.words) / max(1, len(whole.words))
    offset_bytes = 2 * whole.posting_offsets.itemsize  # where the word lies, and where its postings
    return CorpusCounts(
        documents=sample.document_count,
        document_bytes=float(weights @ np.array([sum(map(len, encoded_document(each))) for each in sample.documents])),
        blocks=block_count,
        tokens=tokens,
        rows=float(token_weights @ kept_tokens(flags, vectors.pruning, token_ids, dropped)),
        lexicon_bytes=posting_bytes * tokens / max(1, sampled_tokens)
        + words * (word_bytes + offset_bytes)
        + block_count * whole.block_lengths.itemsize,
        sampled_tokens=sampled_tokens,
    )


def block_texts(sample: CorpusSample, packed: Sequence[Sequence[Block]]) -> list[tuple[str, str]]:
    """Title and text of every block of the sample, as term counts are made of."""
    texts: list[tuple[str, str]] = []
    for document, blocks in zip(sample.documents, packed, strict=True):
        for block in blocks:
            assert block.start_chars is not None and block.end_chars is not None, "blocks of documents have text"
            texts.append((document.title, document.text[int(block.start_chars[0]) : int(block.end_chars[-1])]))
    return texts


def search_shape(settings: SearchSettings, row_count: int, dimensions: int) -> SearchShape:
    """Tier, lists and bytes per code."""
    resolved = resolved_settings(settings, row_count, dimensions)
    if resolved["tier"] == SearchTier.exact.value:
        return SearchShape(resolved, list_count=0, code_bytes=0)
    from index.faiss_library import new_faiss_index
    from index.ivf import split

    index = new_faiss_index(resolved["factory"], dimensions)  # owns both of its parts
    rotation, lists = split(index)
    return SearchShape(
        resolved,
        list_count=lists.nlist,
        code_bytes=lists.code_size,
        centroid_bytes=4 * lists.nlist * lists.d,
        transform_bytes=0 if rotation is None else 4 * rotation.d_in * rotation.d_out,
    )


def disk_needs(
    counts: CorpusCounts, shape: SearchShape, settings: IndexBuildSettings, encoder: Encoder, *, vocabulary_size: int
) -> dict[str, float]:
    """The bytes that each stage leaves in the finished index, by what its arrays hold."""
    vectors, lists, rows = settings.vectors, shape.list_count, counts.rows
    id_bytes = 2 if vocabulary_size <= LARGEST_U16_VOCABULARY else 4
    shards = math.ceil(counts.tokens / vectors.tokens_per_shard)
    parameters = sum(tensor.numel() for tensor in encoder.model.parameters()) if settings.copy_encoder else 0
    return {
        "blocks": counts.tokens * (id_bytes + 1 + 8)
        + counts.blocks * 32
        + counts.documents * 24
        + counts.document_bytes,
        "vectors": rows * encoder.dimensions * np.dtype(vectors.dtype.value).itemsize
        + counts.tokens / 8
        + (0 if settings.rotation is Rotation.none else 4 * encoder.dimensions * encoder.whole_dimensions)
        + (counts.blocks * block_bytes(encoder.dimensions) if vectors.block_pooler(encoder) else 0),
        "lexicon": counts.lexicon_bytes,
        "quantiser": quantiser_bytes(shape),
        "codes": rows * (shape.code_bytes + 4) + shards * 8 * (lists + 1) if lists else 0.0,
        "lists": search_bytes(rows, shape) + 4 * parameters,
    }


def search_bytes(rows: float, shape: SearchShape) -> float:
    """What the search folder holds for so many rows, without the quantiser."""
    if lists := shape.list_count:  # space for codes is a multiple of 8 in every list: 3.5 more on average
        return rows * (shape.code_bytes + 8) + lists * (3.5 * shape.code_bytes + 8)
    return 0.0


def partition_needs(
    counts: CorpusCounts, shape: SearchShape, settings: EstimateSettings, encoder: Encoder
) -> tuple[float, float]:
    """Bytes of files that each of `settings.partitions` reads, and of memory that it fills with them.

    The files are its vectors and lists, and the whole quantiser. In the exact tier its vectors are held as float32,
    else the quantiser; the rest is mapped.
    """
    rows = counts.rows / settings.partitions
    row_bytes = encoder.dimensions * np.dtype(settings.vectors.dtype.value).itemsize
    held = quantiser_bytes(shape) if shape.code_bytes else rows * encoder.dimensions * 4
    return rows * row_bytes + search_bytes(rows, shape) + quantiser_bytes(shape), held


def quantiser_bytes(shape: SearchShape) -> float:
    """Centroids and the transform."""
    return shape.centroid_bytes + shape.transform_bytes


def graph_bytes(node_count: int) -> float:
    """What FAISS keeps beside the vectors of a graph: links in all levels, where they begin, and each node's levels."""
    upper_levels = 1 / (GRAPH_LINKS - 1)  # of a node, on average
    return node_count * (4 * GRAPH_LINKS * (2 + upper_levels) + 8 + 4)


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
        suffix = Path(source.path).suffix.lower()
        kind = suffix if suffix in COMPRESSED else source.format
        kinds.setdefault(kind, []).append(source)
    chosen: dict[str, list[Source]] = {}
    for kind, group in kinds.items():
        count = min(len(group), max(1, MOST_FILES * len(group) // len(sources)))
        chosen[kind] = [group[number * len(group) // count] for number in range(count)]
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
    read = read_corpus(replace(settings, files=[source.path], max_documents=None))
    documents = list(islice(read, quota))
    is_whole = next(read, None) is None
    if is_whole or (source.format == "txt" and settings.split is DocumentSplit.file):
        return _SourceSample(documents, 1.0)
    if source.format == "hub":
        return _SourceSample(documents, 1.0, is_known=False)
    if source.format == "parquet":
        return _SourceSample(documents, parquet_row_count(source) / len(documents))
    if source.format == "txt":
        taken_bytes = sum(len(document.text.encode()) + 1 for document in documents)
        return _SourceSample(documents, max(1.0, file_size(source.file) / taken_bytes))
    path, line_count = source.file, len(documents)
    if source.format == "table":  # the row that names the columns, then rows of several lines each
        rows = read_records(source, on_bad=lambda *_: None)
        line_count, _ = next(islice(rows, line_count - 1, None))
    return _SourceSample(documents, _text_factor(path, line_count))


def _text_factor(path: StoredFile, line_count: int) -> float:
    """How many times the text of the first `line_count` lines that are not empty the file holds, decompressed."""
    size, text_bytes, taken_bytes, taken = file_size(path), 0, 0, 0
    marks = [(0, 0)]  # bytes of the file read, bytes of text that came of them before
    is_plain = path.suffix.lower() not in COMPRESSED
    with path.open("rb") as stored, open_text(path, stored) as text:
        for line in text:
            if stored.tell() > marks[-1][0]:
                marks.append((stored.tell(), text_bytes))
            text_bytes += len(line)
            if taken < line_count and not line.isspace():
                taken += 1
                taken_bytes = text_bytes
            if taken == line_count and (is_plain or RATIO_BYTES <= marks[-1][0] < size):
                break
    if is_plain or marks[-1][0] == size:
        return max(1.0, (size if is_plain else text_bytes) / taken_bytes)
    # A decompressor is always behind by a part of what it has read: differences leave that out.
    (first_read, first_text), (last_read, last_text) = marks[1], marks[-1]
    return max(1.0, size * (last_text - first_text) / (last_read - first_read) / taken_bytes)


def _stored_bytes(sources: Sequence[Source]) -> float:
    """The bytes of all sources; of data sets, whose bytes are not known, their number."""
    return sum(1.0 if source.format == "hub" else float(file_size(source.file)) for source in sources)


def _vocabulary(half_words: int, words: int, sample_tokens: int, tokens: float) -> float:
    """Distinct words of all shards of term counts, by Heaps' law: v = K nᵝ, β from half the sample and all of it.

    >>> round(_vocabulary(100, 141, 1000, 4000.0))
    280
    """
    exponent = min(1.0, math.log2(words / half_words)) if half_words else 1.0
    shards = max(1.0, tokens / TOKENS_PER_SHARD)
    return shards * words * (tokens / shards / max(1, sample_tokens)) ** exponent
