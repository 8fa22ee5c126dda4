"""Ranking of the blocks that a text is answered from: by shared words, by block vectors, or by both.

Shapes: q texts, n candidate blocks of one text, k blocks per text, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.errors import SettingError
from npm.indexing.bm25 import best_scoring
from npm.retrieval.literal import LITERAL_BLOCKS, Gap, literal_gaps
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from index.types import Hits
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind
    from npm.retrieval.queries import QueryVectors

DEFAULT_VECTOR_SHARE = 0.5
CANDIDATES_OF_A_KIND = 100
"""Best blocks by BM25, and as many by vectors, that are ranked by both."""
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Restriction:
    """The blocks that one text is answered from, and the bonus of each to the similarities in it."""

    blocks: np.ndarray  # i64 [blocks], ascending
    bonuses: np.ndarray  # f64 [blocks]
    joint: tuple[np.ndarray, ...] | None = None  # f64 [2, T] for each block, of the reader; None: none read
    unknown_share: float = 0.0  # of the tokens of the blocks, those that the reader does not know
    gaps: tuple[Gap, ...] = ()  # positions in the blocks where the words around the mask occur

    @classmethod
    def within(cls, blocks: np.ndarray) -> Restriction:
        """Restriction to some blocks, which all have equal weight."""
        return cls(blocks, np.zeros(len(blocks)))


class RankedBlocks(NamedTuple):
    """The best blocks of one text, best first."""

    blocks: np.ndarray  # i64 [n]
    scores: np.ndarray  # f32 [n]
    gaps: tuple[Gap, ...] = ()  # in `hybrid`, of these blocks and others


def block_restrictions(
    index: PhraseIndex,
    texts: Sequence[str],
    vectors: QueryVectors,
    settings: FillSettings,
    *,
    allowed: np.ndarray | None = None,
) -> list[Restriction | None]:
    """The best blocks of each of q texts as `rank_blocks` finds them; without any, `hybrid` searches everywhere (None).

    Raises as `rank_blocks` does.
    """
    hybrid = settings.retrieval is Retrieval.hybrid
    restrictions: list[Restriction | None] = []
    for own in rank_blocks(index, texts, vectors.sentences, settings, allowed=allowed):
        order = np.argsort(own.blocks)
        share = own.scores[order].astype(np.float64) / max(float(own.scores.max(initial=0)), TINY)  # f64 [n]
        bonuses = (settings.lexical_weight if hybrid else 0.0) * share  # f64 [n]
        inside = tuple(gap for gap in own.gaps if gap.block in own.blocks)
        everywhere = hybrid and not len(order) and index.stores_tokens
        restrictions.append(None if everywhere else Restriction(own.blocks[order], bonuses, gaps=inside))
    return restrictions


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
    are, all if None. Ties go to the block that is earlier in the corpus. Raises SettingError if the index has no text,
    or no block vectors.
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
    if lexicon is None:
        others = "retrieval=dense" if block_vectors is None else "retrieval=blocks or retrieval=dense"
        raise SettingError(
            f"retrieval={settings.retrieval.value} needs an index with text: choose {others}",
            code="retrieval_unavailable",
        )
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


def reason_for_few(
    found: int,
    restriction: Restriction | None,
    settings: FillSettings,
    *,
    given: np.ndarray | None,
    by_words: bool,
) -> tuple[str, ...]:
    """Reason why an answer has fewer than k phrases, unless it is obvious.

    `given` are the requested blocks; without them, `by_words` says that shared words alone chose the blocks.
    """
    if found >= settings.k:
        return ()
    for what, chosen in (("documents to answer from", settings.documents), ("blocks to look in", given)):
        if chosen is not None and len(chosen) == 0:
            return (f"the list of {what} is empty, so nothing is answered",)
    if restriction is not None and len(restriction.blocks) == 0:
        if given is not None:
            return ("no block given is of a document that may answer",)
        return (f"no block of the corpus {'shares a word with' if by_words else 'can be ranked for'} the text",)
    ranked = given is None and settings.retrieval is not Retrieval.dense
    if found == 0 and settings.values:
        searched = f" in the {settings.bm25_blocks} blocks that were searched (bm25_blocks)" if ranked else ""
        return (f"no phrase of values was found{searched}",)
    if found == 0:
        return ("what was looked in holds nothing but stop-words, punctuation and words of the text",)
    if ranked and restriction is not None and len(restriction.blocks) == settings.bm25_blocks:
        which = "share most words with the text" if by_words else "rank best for the text"
        limit = f"the {settings.bm25_blocks} blocks that {which} were looked in"
        return (f"{found} of {settings.k} phrases: {limit} (bm25_blocks)",)
    return ()
