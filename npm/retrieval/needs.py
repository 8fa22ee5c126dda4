"""What an index will hold and take on the disk, told beforehand from a sample of its corpus.

Counts come from the sample, each with its weight; bytes come from the shapes of the arrays that are stored.

Shapes: S sampled documents, T tokens of a document, d dimensions, K inverted lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from index.settings import SearchSettings, SearchTier, resolved_settings
from npm.corpus.blocks import BlockPacker
from npm.corpus.shards import document_line
from npm.corpus.store import DOCUMENTS_PER_BATCH, LARGEST_U16_VOCABULARY, TOKENS_PER_SHARD
from npm.retrieval.corpus_sample import CorpusSample
from npm.retrieval.embed import VectorSettings
from npm.retrieval.lexicon_shards import LexiconSettings, count_words
from npm.retrieval.pruning import kept_tokens
from npm.types import Block

if TYPE_CHECKING:
    from npm.models.encoder import Encoder

GRAPH_LINKS = 32
"""Links of a node of the graph over centroids; twice as many in its lowest level."""


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """How much of everything the whole corpus comes to."""

    documents: float
    document_bytes: float  # as JSON lines
    blocks: float
    tokens: float
    rows: float  # stored vectors
    postings: float  # pairs of a word and a block
    posting_bytes: float
    vocabulary_bytes: float  # words, and where they and their postings lie


@dataclass(frozen=True, slots=True)
class SearchShape:
    """What the settings of search come to for a number of rows."""

    resolved: dict[str, Any]
    list_count: int  # 0 without inverted lists
    code_bytes: int  # of one row; 0 in the exact tier
    centroid_bytes: int = 0  # of all lists
    transform_bytes: int = 0  # of the matrices before the lists, such as a rotation
    has_graph: bool = False  # over the centroids, or over the rows

    @property
    def tier(self) -> str:
        """Tier, and the factory string where there is one."""
        return " ".join(str(self.resolved[name]) for name in ("tier", "factory") if name in self.resolved)


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """Bytes of the finished parts of an index."""

    corpus: float
    vectors: float
    lexicon: float
    quantiser: float
    codes: float
    search: float
    encoder: float

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        names = ("corpus", "vectors", "lexicon", "quantiser", "codes", "search", "encoder")
        return float(sum(getattr(self, name) for name in names))


def corpus_counts(
    sample: CorpusSample, packed: Sequence[Sequence[Block]], vectors: VectorSettings, lexicon: LexiconSettings
) -> CorpusCounts:
    """The counts of the whole corpus, from the blocks `packed` of each of the sample's S documents."""
    weights = sample.weights  # f64 [S]
    token_counts = np.array([sum(len(block.token_ids) for block in blocks) for blocks in packed])  # i64 [S]
    tokens = float(weights @ token_counts)
    dropped = _frequent_ids(packed, weights, vectors.max_token_share)  # i64 [n]
    kept = [
        sum(int(kept_tokens(block.flags, vectors.pruning, block.token_ids, dropped).sum()) for block in blocks)
        for blocks in packed
    ]
    texts = block_texts(sample, packed)
    half, whole = count_words(texts[::2], lexicon), count_words(texts, lexicon)
    growth = tokens / max(1, int(token_counts.sum()))
    posting_count = len(whole.posting_blocks) * growth
    block_count = float(weights @ np.array([len(blocks) for blocks in packed]))
    words = _vocabulary(len(half.words), len(whole.words), int(token_counts.sum()), tokens)
    word_bytes = sum(len(word.encode()) for word in whole.words) / max(1, len(whole.words))
    return CorpusCounts(
        documents=sample.document_count,
        document_bytes=float(weights @ np.array([len(document_line(document)) for document in sample.documents])),
        blocks=block_count,
        tokens=tokens,
        rows=float(weights @ np.array(kept)),
        postings=posting_count,
        posting_bytes=posting_count * (whole.posting_blocks.itemsize + whole.posting_counts.itemsize),
        vocabulary_bytes=words * (word_bytes + 2 * whole.posting_offsets.itemsize),
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
    """Tier, lists and bytes a code. Raises UserError for a factory that FAISS does not know."""
    resolved = resolved_settings(settings, row_count, dimensions)
    if resolved["tier"] == SearchTier.exact.value:
        return SearchShape(resolved, list_count=0, code_bytes=0)
    from index.faiss_library import new_faiss_index
    from index.quantiser import plain_lists, transforms

    index = new_faiss_index(resolved["factory"], dimensions)
    has_graph = "HNSW" in resolved["factory"]
    if (lists := plain_lists(index)) is not None:
        matrices = [step for step in transforms(index) if hasattr(step, "A")]
        return SearchShape(
            resolved,
            list_count=lists.nlist,
            code_bytes=lists.code_size,
            centroid_bytes=4 * lists.nlist * lists.d,
            transform_bytes=sum(4 * step.d_in * step.d_out for step in matrices),
            has_graph=has_graph,
        )
    try:
        code_bytes = int(index.sa_code_size())
    except RuntimeError:  # a graph and the like: the vectors themselves
        code_bytes = 4 * dimensions
    return SearchShape(resolved, list_count=0, code_bytes=code_bytes, has_graph=has_graph)


def disk_needs(
    counts: CorpusCounts,
    shape: SearchShape,
    vectors: VectorSettings,
    *,
    encoder: Encoder,
    vocabulary_size: int,
    copy_encoder: bool,
) -> DiskNeeds:
    """The bytes of the finished index, by what its arrays hold."""
    dimensions = encoder.dimensions
    id_bytes = 2 if vocabulary_size <= LARGEST_U16_VOCABULARY else 4
    lists, rows = shape.list_count, counts.rows
    shards = math.ceil(counts.tokens / vectors.tokens_per_shard)
    codes = rows * (shape.code_bytes + 4) + shards * 8 * (lists + 1) if lists else 0.0
    if lists:  # space for codes is a multiple of 8 in every list: 3.5 more on average
        search = rows * (shape.code_bytes + 8) + lists * (3.5 * shape.code_bytes + 8)
    else:
        search = rows * (shape.code_bytes + (graph_bytes(1) if shape.has_graph else 0)) if shape.code_bytes else 0.0
    parameters = sum(tensor.numel() for tensor in encoder.model.parameters())
    return DiskNeeds(
        corpus=counts.tokens * (id_bytes + 1 + 8) + counts.blocks * 32 + counts.documents * 16 + counts.document_bytes,
        vectors=rows * dimensions * np.dtype(vectors.dtype.value).itemsize + counts.tokens / 8,
        lexicon=counts.posting_bytes + counts.vocabulary_bytes + counts.blocks * 4,
        quantiser=shape.centroid_bytes + shape.transform_bytes + (graph_bytes(lists) if shape.has_graph else 0),
        codes=codes,
        search=search,
        encoder=4.0 * parameters if copy_encoder else 0.0,
    )


def graph_bytes(node_count: int) -> float:
    """What FAISS keeps beside the vectors of a graph: links in all levels, where they begin, and each node's levels."""
    upper_levels = 1 / (GRAPH_LINKS - 1)  # of a node, on average
    return node_count * (4 * GRAPH_LINKS * (2 + upper_levels) + 8 + 4)


def packed_in_batches(packer: BlockPacker, sample: CorpusSample) -> list[list[Block]]:
    """The blocks of each document of the sample, packed as many at once as a build does."""
    documents = sample.documents
    return [
        blocks
        for start in range(0, len(documents), DOCUMENTS_PER_BATCH)
        for blocks in packer.pack_many(documents[start : start + DOCUMENTS_PER_BATCH])
    ]


def _frequent_ids(packed: Sequence[Sequence[Block]], weights: np.ndarray, max_token_share: float | None) -> np.ndarray:
    """The token ids i64 [n] above the share in the sample with `weights` f64 [S]."""
    ids = [
        np.concatenate([block.token_ids for block in blocks]) if blocks else np.zeros(0, np.int64) for blocks in packed
    ]
    if max_token_share is None or not any(map(len, ids)):
        return np.zeros(0, dtype=np.int64)
    each = np.repeat(weights, [len(of_document) for of_document in ids])  # f64 [tokens of the sample]
    counts = np.bincount(np.concatenate(ids), weights=each)  # f64 [largest id + 1]
    return np.flatnonzero(counts > max_token_share * counts.sum())


def _vocabulary(half_words: int, words: int, sample_tokens: int, tokens: float) -> float:
    """Distinct words of all shards of term counts, by Heaps' law: v = K nᵝ, β from half the sample and all of it.

    >>> round(_vocabulary(100, 141, 1000, 4000.0))
    280
    """
    exponent = min(1.0, math.log2(words / half_words)) if half_words else 1.0
    shards = max(1.0, tokens / TOKENS_PER_SHARD)
    return shards * words * (tokens / shards / max(1, sample_tokens)) ** exponent
