"""Size of an index before it is built: bytes by arithmetic from a sample of the corpus, time from one encoded batch.

Each sampled document counts as often as the corpus contains as much; bytes follow from the shapes of stored arrays.

Shapes: S sampled documents, T tokens of all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import row_bytes
from index.settings import fitting_settings, search_shape, tier_reason
from npm.core.errors import CorpusError, named
from npm.core.types import Block, Document, Progress, silent
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.readers import open_text, parquet_row_count
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.corpus.shards import encoded_document, stored_places
from npm.corpus.sources import COMPRESSED, Source, file_size, find_sources
from npm.corpus.store import LARGEST_U16_VOCABULARY, TOKENS_PER_SHARD
from npm.indexing.bm25 import count_words
from npm.indexing.embed import kept_tokens
from npm.indexing.rotation import SAMPLE_TOKENS, refuse_few_vectors
from npm.indexing.settings import EstimateSettings, LexiconSettings, Rotation
from npm.models.batches import encode_batch, length_sorted_batches
from npm.models.memory import private_bytes

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

MAX_FILES = 16
"""Files that are sampled, evenly spread over the corpus."""
RATIO_BYTES = 5 << 18
"""Read of each compressed file to learn its compression ratio."""
MAX_CHARS = 1 << 18
"""Read of one document; a longer one counts as several of this length."""
STORE_BYTES = 24
"""Memory of a block of an opened store: its offset, its document, its first character, its length."""
ID_BYTES = 24
"""Memory of a document in the table that finds repeated ids."""


@dataclass(frozen=True, slots=True)
class CorpusSample:
    """Some documents, and how many of its length each represents."""

    documents: list[Document]  # S
    weights: np.ndarray  # f64 [S]
    document_count: float  # documents of the corpus, as far as known
    unknown_sources: list[str] = field(default_factory=list)  # data sets of unknown size: only their sample counts


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of an index; bytes of memory and seconds are those of one job on this machine."""

    documents: float
    tokens: float
    rows: float  # stored vectors
    tier: str  # with the FAISS factory string, if there is one
    tier_reason: str
    disk: dict[str, float]  # bytes by part of the index
    build_bytes: float  # memory of a build at its peak
    search_bytes: float  # memory that a search reads: float32 vectors in the exact tier, else codes and centroids
    partitions: int
    partition_disk_bytes: float  # files that one partition reads
    partition_memory_bytes: float  # memory that it fills; its lists are mapped
    sampled_documents: int
    unknown_sources: list[str]
    encoding_seconds: float = 0.0

    @property
    def disk_bytes(self) -> float:
        """The finished index."""
        return sum(self.disk.values())

    def record(self) -> dict[str, Any]:
        """JSON values of all fields."""
        return {**asdict(self), "disk_bytes": self.disk_bytes}


def estimate_build(settings: EstimateSettings, encoder: Encoder, *, progress: Progress = silent) -> Estimate:
    """Estimate of a build with these settings; writes nothing. Data sets of unknown size count with their sample only.

    Raises CorpusError as reading the corpus does, if no token of the sample has a vector, and for too few vectors for a
    rotation; EncoderError if the encoder does not fit the blocks, SettingError if its vectors are too short.
    """
    encoder = encoder.cut_to(settings.dimensions)
    settings = replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens))
    estimate, blocks = _sizes(settings, encoder)
    progress("sample", len(blocks), len(blocks))
    if estimate.rows == 0:
        raise CorpusError(
            f"vectors.pruning={settings.vectors.pruning.value} keeps none of the tokens of the sample; use another "
            "rule, such as word_boundaries, or a larger sample_documents"
        )
    if settings.rotation is not Rotation.none:
        refuse_few_vectors(round(estimate.rows), encoder.dimensions)
    prefix, suffix = (np.array(ids, dtype=np.int64) for ids in (encoder.prefix_ids, encoder.suffix_ids))
    sequences = [np.concatenate([prefix, block.token_ids, suffix]) for block in blocks]
    lengths = np.array(list(map(len, sequences)))  # i64 [blocks]
    batches = length_sorted_batches(lengths, tokens_per_batch=settings.vectors.tokens_per_batch)
    batch = [sequences[number] for number in batches[len(batches) // 2]]
    for _ in range(2):  # the first one warms up
        started = time.perf_counter()
        encode_batch(encoder, batch, list(map(np.arange, map(len, batch))), settings.vectors.block_pooler(encoder))
        seconds = time.perf_counter() - started
    progress("encoder", 1, 1)
    batch_tokens = sum(len(sequence) - len(prefix) - len(suffix) for sequence in batch)
    tokens = estimate.tokens
    if settings.rotation is not Rotation.none:  # some are encoded for the axes, and once more for their vectors
        tokens += min(SAMPLE_TOKENS, tokens)
    return replace(
        estimate,
        encoding_seconds=tokens * seconds / batch_tokens,
        build_bytes=estimate.build_bytes + private_bytes(),
    )


def _sizes(settings: EstimateSettings, encoder: Encoder) -> tuple[Estimate, list[Block]]:
    """The estimate without anything encoded, and the blocks of the sample."""
    vectors, dimensions = settings.vectors, encoder.dimensions * settings.vectors.tokens
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    sample = sample_corpus(settings.corpus, documents=settings.sample_documents)
    packed = packer.pack_many(sample.documents)
    blocks = [block for of_document in packed for block in of_document]
    token_counts = [sum(len(block.token_ids) for block in of_document) for of_document in packed]
    factor = settings.tokens / max(1.0, float(sample.weights @ token_counts)) if settings.tokens else 1.0
    weights = sample.weights * factor  # f64 [S]
    token_weights = np.repeat(weights, token_counts)  # f64 [T]
    token_count, document_count = float(token_weights.sum()), sample.document_count * factor
    block_count = float(weights @ [len(of_document) for of_document in packed])
    flags = np.concatenate([np.zeros(0, np.uint8), *(block.flags for block in blocks)])  # u8 [T]
    rows = float(token_weights @ kept_tokens(flags, vectors.pruning))
    shape = search_shape(resolved := fitting_settings(settings.search, round(rows), dimensions))
    quantizer, share = shape.quantizer_bytes, rows / settings.partitions
    vector_bytes, block_bytes = (row_bytes(d, np.dtype(vectors.dtype.value)) for d in (dimensions, encoder.dimensions))
    places = stored_places(blocks)
    token_bytes = (2 if packer.vocabulary_size <= LARGEST_U16_VOCABULARY else 4) + 1  # of the id and the flags
    token_bytes += places["char_offsets"].itemsize + places["char_lengths"].itemsize
    shard_count = math.ceil(token_count / vectors.tokens_per_shard)
    document_bytes = float(weights @ [sum(map(len, encoded_document(document))) for document in sample.documents])
    disk = {
        "corpus": token_count * token_bytes + block_count * 20 + document_count * 24 + document_bytes,
        "vectors": rows * vector_bytes + token_count / 8,
        "block vectors": block_count * block_bytes if vectors.block_pooler(encoder) else 0,
        "rotation": 0 if settings.rotation is Rotation.none else 4 * dimensions * encoder.whole_dimensions,
        "lexicon": _lexicon_bytes(sample.documents, packed, settings.lexicon, token_count),
        "quantizer": quantizer,
        "codes": rows * (shape.code_bytes + 4) + shard_count * 8 * shape.list_count if shape.list_count else 0,
        "search": shape.list_bytes(rows),
        "encoder": 4 * sum(each.numel() for each in encoder.model.parameters()) if settings.copy_encoder else 0,
    }
    training = min(resolved.get("train_rows", 0), rows) * dimensions * 4 + 5 * quantizer  # as float32
    with_rows = token_count / 4 + max(rows / max(1, shard_count) * (vector_bytes + 8), training)
    return Estimate(
        documents=document_count,
        tokens=token_count,
        rows=rows,
        tier=" ".join(filter(None, [resolved["tier"], resolved.get("factory")])),
        tier_reason=tier_reason(settings.search, round(rows), resolved["tier"]),
        disk={part: float(size) for part, size in disk.items() if size},
        build_bytes=block_count * STORE_BYTES + max(document_count * ID_BYTES, with_rows),
        search_bytes=shape.searched_bytes(rows),
        partitions=settings.partitions,
        partition_disk_bytes=share * vector_bytes + shape.list_bytes(share) + quantizer,
        partition_memory_bytes=float(quantizer) or shape.searched_bytes(share),
        sampled_documents=len(sample.documents),
        unknown_sources=sample.unknown_sources,
    ), blocks


def _lexicon_bytes(
    documents: Sequence[Document], packed: Sequence[Sequence[Block]], settings: LexiconSettings, token_count: float
) -> float:
    """Bytes of the term counts of a corpus of `token_count` tokens like the `packed` documents."""
    words = count_words(
        [
            (document.title, document.text[int(block.start_chars[0]) : int(block.end_chars[-1])])
            for document, blocks in zip(documents, packed, strict=True)
            for block in blocks
        ],
        settings,
    )
    sample_tokens = max(1, sum(len(block.token_ids) for blocks in packed for block in blocks))
    repeats, in_shard = (count / sample_tokens for count in (token_count, min(token_count, TOKENS_PER_SHARD)))
    # Each shard has its own vocabulary, which grows with the root of its text.
    vocabularies = math.sqrt(repeats * max(1.0, token_count / TOKENS_PER_SHARD))  # times that of the sample
    spelled = sum(len(word.encode()) for word in words.words)
    postings, blocks = len(words.posting_blocks), len(words.block_lengths)
    offsets = _width(spelled * math.sqrt(in_shard)) + _width(postings * in_shard)  # of a word
    of_blocks = postings * (_width(blocks * in_shard) + words.posting_counts.itemsize) + words.block_lengths.nbytes
    return repeats * of_blocks + (spelled + len(words.words) * offsets) * vocabularies


def _width(largest: float) -> int:
    """Bytes of each number up to the `largest`."""
    return np.min_scalar_type(math.ceil(largest)).itemsize


def sample_corpus(settings: CorpusSettings, *, documents: int) -> CorpusSample:
    """About `documents` documents, the first ones of files spread over the corpus.

    Raises CorpusError as reading the corpus does.
    """
    sources = find_sources(settings.files)
    hub = [source for source in sources if source.format == "hub"]
    files = [source for source in sources if source.format != "hub"]
    chosen = files[:: math.ceil(len(files) / MAX_FILES) or 1]
    all_bytes, chosen_bytes = (sum(file_size(source.file) for source in each) for each in (files, chosen))
    spread = all_bytes / max(1, chosen_bytes)
    sampled: list[Document] = []
    weights: list[float] = []
    unknown: list[str] = []
    for number, source in enumerate([*chosen, *hub]):
        quota = max(1, (documents - len(sampled)) // (len(chosen) + len(hub) - number))
        found, factor = _first_documents(source, settings, quota)
        sampled += found
        weights += [(factor or 1.0) * (1.0 if source.format == "hub" else spread)] * len(found)
        if factor is None:
            unknown.append(source.name)
    if not sampled:
        raise CorpusError(f"no document could be read of {named([source.path for source in chosen])}: check the files")
    document_weights = np.array(weights)  # f64 [S]
    document_count = float(document_weights.sum())
    most = settings.max_documents
    if most is not None and document_count > 0 and (unknown or most < document_count):
        document_weights *= most / document_count
        document_count, unknown = float(most), []
    lengths = np.array([len(document.text) for document in sampled], dtype=np.float64)  # f64 [S]
    document_weights = document_weights * np.maximum(1.0, lengths / MAX_CHARS)  # f64 [S]
    cut = [replace(document, text=document.text[:MAX_CHARS]) for document in sampled]
    return CorpusSample(cut, document_weights, document_count, unknown)


def _first_documents(source: Source, settings: CorpusSettings, quota: int) -> tuple[list[Document], float | None]:
    """The first `quota` documents of a source, and how many times as much it contains; None: unknown."""
    skipped = SkippedRecords()
    read = read_corpus(replace(settings, files=[source.path], max_documents=None), skipped=skipped)
    try:
        documents = list(islice(read, quota))
    except CorpusError as error:
        if not skipped.kinds or skipped.summary not in str(error):
            raise
        documents = []  # a build skips all of it too
    is_file = source.format == "txt" and settings.split in (DocumentSplit.file, DocumentSplit.heading)
    if next(read, None) is None or is_file:
        return documents, 1.0
    if source.format == "hub":
        return documents, None
    if source.format == "parquet":
        return documents, parquet_row_count(source) / len(documents)
    if source.format not in ("jsonl", "table", "txt"):  # read entirely in any case
        return documents, 1 + (1 + sum(1 for _ in read)) / len(documents)
    path, text_bytes, sampled_bytes = source.file, 0, 0
    is_plain, size = path.suffix.lower() not in COMPRESSED, file_size(path)
    with path.open("rb") as stored, open_text(path, stored) as text:
        for number, line in enumerate(text, start=1):
            text_bytes += len(line)
            if number <= len(documents):
                sampled_bytes = text_bytes
            elif is_plain or stored.tell() >= RATIO_BYTES:
                break
        text_bytes = size if is_plain else round(text_bytes * size / stored.tell())
    if source.format == "txt":
        sampled_bytes = sum(len(document.text.encode()) + 1 for document in documents)
    return documents, max(1.0, text_bytes / sampled_bytes)
