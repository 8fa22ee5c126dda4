"""The blocks that a text is answered from: ranked by shared words, by block vectors, or by both, and read with it.

Shapes: q texts, n candidate blocks of one text, k blocks per text, T tokens of one block, d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.errors import SettingError
from npm.core.settings import checked
from npm.corpus.text import is_title
from npm.indexing.bm25 import best_scoring
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage, PassageTokens, Reader, TokenScores
from npm.retrieval.literal import LITERAL_BLOCKS, Gap, literal_gaps
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from index.types import Hits
    from npm.corpus.store import BlockStore
    from npm.indexing.phrase_index import DocumentFilter, PhraseIndex
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind
    from npm.retrieval.queries import QueryVectors

Blocks = Sequence[int] | np.ndarray
DEFAULT_VECTOR_SHARE = 0.5
CANDIDATES_OF_A_KIND = 100
"""Best blocks by BM25, and as many by vectors, that are ranked by both."""
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The blocks that one mask is answered from, and what counts in each of them besides stored vectors."""

    blocks: np.ndarray  # i64 [blocks], ascending; none where all of the index is searched
    bonuses: np.ndarray  # f64 [blocks], added to the similarities in a block
    joint: tuple[np.ndarray, ...] = ()  # f64 [2, T] for each block, of the reader; empty: none was read
    unknown_share: float = 0.0  # of the tokens of the blocks, those that the reader does not know
    gaps: tuple[Gap, ...] = ()  # positions in the blocks where the words around the mask occur
    is_everywhere: bool = False  # the best rows of all of the index are candidates, instead of all rows of blocks

    @classmethod
    def within(cls, blocks: np.ndarray) -> BlockPlan:
        """Some blocks, which all have equal weight."""
        return cls(blocks, np.zeros(len(blocks)))

    @classmethod
    def everywhere(cls) -> BlockPlan:
        """All of the index."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), is_everywhere=True)


class RankedBlocks(NamedTuple):
    """The best blocks of one text, best first."""

    blocks: np.ndarray  # i64 [n]
    scores: np.ndarray  # f32 [n]
    gaps: tuple[Gap, ...] = ()  # in `hybrid`, of these blocks and others


def checked_blocks(blocks: Blocks, block_count: int) -> np.ndarray:
    """Block numbers of a caller, ascending without repeats, i64. Raises SettingError for other values."""
    if isinstance(blocks, np.ndarray | range):
        blocks = np.asarray(blocks).tolist()
    numbers = sorted(set(checked(blocks, list[int], "blocks")))
    if numbers and not (numbers[0] >= 0 and numbers[-1] < block_count):
        raise SettingError(f"blocks must be numbers from 0 to {block_count - 1}, got {numbers[0]} to {numbers[-1]}")
    return np.array(numbers, dtype=np.int64)


def choose_blocks(
    index: PhraseIndex,
    texts: Sequence[str],
    vectors: QueryVectors,
    settings: FillSettings,
    *,
    allowed: DocumentFilter,
    given: np.ndarray | None = None,
) -> list[BlockPlan]:
    """The plan of each of q texts: the blocks `given` i64 [n], or the best ones as `rank_blocks` finds them.

    All of the index is searched in `dense`, and in `hybrid` for a text that no block shares a word with; all of a few
    passages in memory. Raises as `rank_blocks` does.
    """
    if given is None and index.is_in_memory:
        every = allowed.allowed(np.arange(index.store.block_count))  # i64 [blocks]
        if settings.retrieval is Retrieval.dense or len(every) <= settings.bm25_blocks:
            given = every
    if given is not None:
        return [BlockPlan.within(allowed.allowed(given))] * len(texts)
    if settings.retrieval is Retrieval.dense:
        return [BlockPlan.everywhere()] * len(texts)
    hybrid = settings.retrieval is Retrieval.hybrid
    plans: list[BlockPlan] = []
    for own in rank_blocks(index, texts, vectors.sentences, settings, allowed=allowed.blocks):
        if hybrid and not len(own.blocks) and index.stores_tokens:
            plans.append(BlockPlan.everywhere())
            continue
        order = np.argsort(own.blocks)
        share = own.scores[order].astype(np.float64) / max(float(own.scores.max(initial=0)), TINY)  # f64 [n]
        bonuses = (settings.lexical_weight if hybrid else 0.0) * share  # f64 [n]
        inside = tuple(gap for gap in own.gaps if gap.block in own.blocks)
        plans.append(BlockPlan(own.blocks[order], bonuses, gaps=inside))
    return plans


def vector_share(index: PhraseIndex, settings: FillSettings) -> float:
    """Weight of a block's vector in its score; 0 is BM25 alone."""
    if settings.retrieval is Retrieval.blocks:
        return 1.0
    if settings.retrieval is not Retrieval.hybrid or index.block_vectors is None:
        return 0.0
    return DEFAULT_VECTOR_SHARE if settings.vector_share is None else settings.vector_share


def sentence_pooler(index: PhraseIndex, settings: FillSettings) -> PoolerKind | None:
    """Pooler of the texts that `rank_blocks` ranks for; None if it needs no sentence vectors."""
    return index.block_pooler if vector_share(index, settings) > 0 else None


def rank_blocks(
    index: PhraseIndex,
    texts: Sequence[str],
    sentences: np.ndarray | None,
    settings: FillSettings,
    *,
    allowed: np.ndarray | None = None,
) -> list[RankedBlocks]:
    """The `settings.bm25_blocks` best blocks of each text, as `settings.retrieval` ranks them.

    `sentences` are the texts' vectors f32 [q, d] by the `sentence_pooler`, 0 for a text without words. A block is found
    by BM25 if it shares a word with the text, by both if it does or its cosine is positive, by vectors for any
    cosine. In `hybrid` those with the highest `fused_scores` among the best by BM25 and the best by vectors are; one
    with a literal gap scores as the best one does, and comes before it. Only blocks in the mask `allowed` bool [blocks]
    are, all if None. Ties go to the block that is earlier in the corpus. Raises SettingError if `blocks`
    finds no block vectors in the index.
    """
    lexicon, block_vectors, share = index.lexicon, index.block_vectors, vector_share(index, settings)
    k, count = settings.bm25_blocks, max(CANDIDATES_OF_A_KIND, settings.bm25_blocks)
    if settings.retrieval is Retrieval.blocks:
        if block_vectors is None:
            raise SettingError(
                "retrieval=blocks needs an index with block vectors: choose retrieval=hybrid, or build one with "
                "an encoder that has a sentence pooler",
                code="retrieval_unavailable",
            )
        assert sentences is not None, "encoded with the sentence_pooler"
        nearest = block_vectors.best(sentences, k, allowed=allowed)
        found = nearest.found & sentences.any(axis=1, keepdims=True)  # bool [q, k]
        return [RankedBlocks(*own) for own in _kept(replace(nearest, found=found))]
    if settings.retrieval is not Retrieval.hybrid:
        return [RankedBlocks(*lexicon.best_blocks(text, k, allowed=allowed)) for text in texts]
    near = [(np.zeros(0, dtype=np.int64), np.zeros(0))] * len(texts)
    if share and block_vectors is not None:
        assert sentences is not None, "encoded with the sentence_pooler"
        near = _kept(block_vectors.best(sentences, count, allowed=allowed))
    ranked: list[RankedBlocks] = []
    for number, text in enumerate(texts):
        lexical = lexicon.scores(text)  # f32 [blocks]
        by_words = best_scoring(lexical, count, allowed=allowed)  # i64 [at most count]
        gaps = literal_gaps(index.store, lexicon, text, by_words[:LITERAL_BLOCKS]) if settings.literal_weight else ()
        candidates = np.union1d(by_words, near[number][0])  # i64 [n]
        cosines = np.zeros(len(candidates))  # [n]
        if share and block_vectors is not None and sentences is not None:
            cosines = block_vectors.similarities(sentences[number : number + 1], candidates)[0]  # f32 [n]
        fused = fused_scores(lexical[candidates], cosines, share)  # f64 [n]
        gap_shares = np.zeros(len(candidates))  # [n]
        for gap in reversed(gaps):  # the best last
            gap_shares[np.searchsorted(candidates, gap.block)] = gap.share
        fused[gap_shares > 0] = fused.max(initial=0)
        best = np.lexsort((-gap_shares, -fused))[:k]  # i64 [at most k]
        best = best[fused[best] > 0]
        ranked.append(RankedBlocks(candidates[best], fused[best].astype(np.float32), gaps))
    return ranked


def _kept(hits: Hits) -> list[tuple[np.ndarray, np.ndarray]]:
    """The blocks i64 [n] of each text that were found, and their scores f32 [n]."""
    by_text = zip(hits.rows, hits.scores, hits.found, strict=True)
    return [(blocks[found], scores[found]) for blocks, scores, found in by_text]


def fused_scores(lexical: np.ndarray, cosines: np.ndarray, share: float) -> np.ndarray:
    """BM25 scores [n] and cosines [n] of one text's candidates, each divided by the best of its kind: f64 [n].

    Negative scores count 0.

    >>> fused_scores(np.array([4.0, 2.0, 0.0]), np.array([0.2, 0.8, -0.1]), 0.5).tolist()
    [0.625, 0.75, 0.0]
    """
    kinds = [np.clip(scores.astype(np.float64), 0, None) for scores in (lexical, cosines)]  # f64 [n] each
    by_words, by_vectors = (scores / max(scores.max(initial=0), TINY) for scores in kinds)  # f64 [n] each
    fused: np.ndarray = (1 - share) * by_words + share * by_vectors  # f64 [n]
    return fused


def lacks_block_vectors(index: PhraseIndex, encoder: Encoder, settings: FillSettings) -> bool:
    """Return True if blocks would by default be ranked by vectors too, and the index has none."""
    would_rank = settings.retrieval is Retrieval.hybrid and settings.vector_share is None and index.stores_tokens
    return would_rank and index.block_vectors is None and encoder.block_pooler is not None


def read_blocks(
    store: BlockStore,
    reader: Reader,
    texts: Sequence[str],
    plans: Sequence[BlockPlan],
    *,
    maps: np.ndarray | None = None,
) -> list[list[BlockPlan]]:
    """For each mask of each of q texts the plan of the text, with what the reader says of its blocks.

    None for a text without blocks to read. `maps` f32 [2, d, d + 1] change the queries of a `MaskReader`.
    """
    pairs = [
        (text, passage_of(store, block))
        for text, plan in zip(texts, plans, strict=True)
        for block in plan.blocks.tolist()
    ]
    found = reader.read(pairs, maps=maps) if isinstance(reader, MaskReader) else reader.read(pairs)
    scores = (
        [(_of_block(each, passage.tokens), each.unknown_share) for each in own]
        for (_, passage), own in zip(pairs, found, strict=True)
        if passage.tokens is not None
    )
    result: list[list[BlockPlan]] = []
    for plan in plans:
        read = list(itertools.islice(scores, len(plan.blocks)))  # for each mask of each block
        of_masks: list[BlockPlan] = []
        for blocks in zip(*read, strict=True):
            joint, unknown = zip(*blocks, strict=True)  # f64 [2, T] and a share of each block
            of_masks.append(replace(plan, joint=joint, unknown_share=float(np.mean(unknown))))
        result.append(of_masks)
    return result


def check_readable(
    index: PhraseIndex, reader: Reader | None, settings: FillSettings, blocks: np.ndarray | None
) -> None:
    """Raise SettingError unless `reader` chooses the phrases, as it must where tokens have no vectors."""
    if reader is not None and blocks is None and settings.reads and not settings.scoring.reference:
        return
    raise SettingError(
        f"{index.folder} has no vectors of tokens, so only retrieval=hybrid with a reader answers: leave retrieval, "
        "reader, joint_share, scoring and blocks as they are, or build with vectors=tokens",
        code="retrieval_unavailable",
    )


def _of_block(scores: TokenScores, tokens: PassageTokens) -> np.ndarray:
    """The scores f64 [2, T] of all tokens of a block; no phrase begins or ends in its title."""
    title = len(tokens.ids) - len(tokens.bounds)
    return np.pad(scores.of_tokens(tokens.bounds), ((0, 0), (title, 0)), constant_values=-np.inf)  # f64 [2, T]


def passage_of(store: BlockStore, block: int) -> Passage:
    """A block as a reader takes it."""
    first, stop = store.block_offsets[block : block + 2].tolist()
    flags = store.flags.slice(first, stop)  # u8 [title + T]
    is_text = ~is_title(flags)  # bool [title + T]
    bounds = np.stack(store.block_places(block), axis=1)[is_text].astype(np.int64)  # i64 [T, 2], in the document
    document = store.document(int(store.block_documents[block]))
    base, end = (int(bounds[0, 0]), int(bounds[-1, 1])) if len(bounds) else (0, 0)
    tokens = PassageTokens(
        tokenizer_fingerprint=str(store.settings["tokenizer_fingerprint"]),
        ids=store.token_ids.slice(first, stop).astype(np.int64),
        bounds=bounds - base,
    )
    return Passage(document.text[base:end], document.title, tokens)
