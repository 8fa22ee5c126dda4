"""BM25 scores of blocks, from the term counts of `npm.indexing.lexicon` (Robertson and Zaragoza 2009).

Shapes: n postings or blocks found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npm.core.artifact import check_folder, open_array
from npm.core.errors import damaged
from npm.core.records import refuse_changed
from npm.core.settings import settings_from
from npm.corpus.text import lexical_query, words_of
from npm.indexing.lexicon import LEXICON_KIND, CountedBlocks, LexiconShard
from npm.indexing.settings import LexiconSettings

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore


def inverse_document_frequency(block_count: int, blocks_with_word: int) -> float:
    """The weight of a word: ln(1 + (N − df + 0.5) / (df + 0.5)), as Lucene has it: never negative.

    >>> round(inverse_document_frequency(10, 1), 6), round(inverse_document_frequency(10, 10), 6)
    (1.99243, 0.04652)
    """
    return math.log(1 + (block_count - blocks_with_word + 0.5) / (blocks_with_word + 0.5))


def term_saturation(counts: np.ndarray, relative_lengths: np.ndarray, *, k1: float, b: float) -> np.ndarray:
    """Saturated weight of a word's occurrences: tf / (tf + k1 (1 − b + b · length / mean length)), f64 [n].

    Robertson and Zaragoza 2009, section 3.4, without the constant factor k1 + 1.

    >>> term_saturation(np.array([1, 3]), np.array([1.0, 2.0]), k1=1.0, b=0.5).tolist()
    [0.5, 0.6666666666666666]
    """
    saturation: np.ndarray = counts / (counts + k1 * (1 - b + b * relative_lengths))  # f64 [n]
    return saturation


@dataclass(eq=False)
class BlockLexicon:
    """BM25 scores of the blocks of all segments, over those that are live. Made by `BlockLexicon.open`.

    How many blocks there are, how many hold a word and how long they are on average is counted over live blocks only,
    so that scores equal those of a lexicon that never held the others. Takes 4 bytes of private memory a block.
    """

    shards: Sequence[LexiconShard | CountedBlocks]
    settings: LexiconSettings
    block_lengths: np.ndarray  # u32 [blocks]
    live_blocks: np.ndarray | None = None  # bool [blocks], or None: all

    def __post_init__(self) -> None:
        self.block_count = len(self.block_lengths)
        live = True if self.live_blocks is None else self.live_blocks
        self._live_count = self.block_count if self.live_blocks is None else int(np.count_nonzero(live))
        self._mean_length = int(self.block_lengths.sum(dtype=np.int64, where=live)) / max(1, self._live_count)

    @classmethod
    def open(cls, folders: Sequence[Path]) -> BlockLexicon:
        """Open the lexicons of all segments, in their order.

        Raises ArtifactError if one is missing, damaged, or counts or weighs words otherwise than the first.
        """
        manifests = [check_folder(folder, kind=LEXICON_KIND) for folder in folders]
        names = [item.name for item in fields(LexiconSettings)]
        recorded = [{name: manifest.settings[name] for name in names} for manifest in manifests]
        for folder, own in zip(folders, recorded, strict=True):
            refuse_changed(recorded[0], own, where=folder)
        settings = settings_from(LexiconSettings, recorded[0])
        shards = [
            LexiconShard(folder / name)
            for folder, manifest in zip(folders, manifests, strict=True)
            for name in manifest.parts
        ]
        block_lengths = np.concatenate([open_array(shard.folder, "block_lengths") for shard in shards])  # u32 [blocks]
        return cls(shards, settings, block_lengths)

    @classmethod
    def of_store(cls, store: BlockStore) -> BlockLexicon:
        """The lexicon of a store that has none on disk, counted now."""
        settings = LexiconSettings()
        counted = CountedBlocks(store, settings)
        return cls([counted], settings, counted.block_lengths)

    def with_live(self, live_blocks: np.ndarray | None) -> BlockLexicon:
        """The same lexicon over the blocks that are live, bool [blocks]; None: over all."""
        if live_blocks is not None and live_blocks.shape != (self.block_count,):
            raise ValueError(f"live blocks {live_blocks.shape} for {self.block_count} blocks")
        return replace(self, live_blocks=live_blocks)

    def best_blocks(self, text: str, k: int, *, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """At most k blocks i64 [n] that share a word with a text, best first, and their BM25 scores f32 [n].

        Only blocks that are live and `allowed`, bool [blocks], are found; `allowed` changes no score. Ties go to the
        block that occurs earlier in the corpus.
        """
        scores = self.scores(text)  # f32 [blocks]
        best = best_scoring(scores, k, allowed=allowed)  # i64 [at most k]
        return best, scores[best]

    def scores(self, text: str) -> np.ndarray:
        """BM25 score of every block for one text with a mask, f32 [blocks]; 0 for blocks that are not live.

        The words' contributions are added in the order of their first occurrence in the text, for any shards.
        """
        settings, words = self.settings, self.counted_words(lexical_query(text))
        scores = np.zeros(self.block_count, dtype=np.float64)  # f64 [blocks]
        for word, times in Counter(words).items():
            blocks, counts = self._live_postings(word.encode())  # i64 [n], [n]
            if not len(blocks):
                continue
            if blocks[-1] >= self.block_count:  # they ascend
                raise damaged("the lexicon of the index", f"{word!r} is in block {blocks[-1]} of {self.block_count}")
            relative_lengths = self.block_lengths[blocks] / self._mean_length  # f64 [n]
            saturation = term_saturation(counts, relative_lengths, k1=settings.k1, b=settings.b)  # f64 [n]
            scores[blocks] += times * inverse_document_frequency(self._live_count, len(blocks)) * saturation
        return scores.astype(np.float32)  # f32 [blocks]

    def word_weight(self, word: str) -> float:
        """The inverse document frequency of a folded word, 0 for words that do not count."""
        return sum(map(self.form_weight, self.counted_words(word)))

    def form_weight(self, form: str) -> float:
        """The inverse document frequency of a word in the form in which it is counted."""
        return inverse_document_frequency(self._live_count, len(self._live_postings(form.encode())[0]))

    def counted_words(self, text: str) -> list[str]:
        """The words of a text that count, in the form in which they are counted."""
        return words_of(text, self.settings.stemming, keep_stopwords=self.settings.keep_stopwords)

    def blocks_with(self, phrase: str) -> np.ndarray | None:
        """The live blocks i64 [n], ascending, that hold all words of `phrase`; None if none of its words counts.

        Words are what BM25 counts: without function words, by their stems, those of the document's title among them
        unless `title_repeats` is 0, in any order and anywhere in the block.
        """
        words = self.counted_words(phrase)
        postings = [self._live_postings(word.encode())[0] for word in dict.fromkeys(words)]  # i64 [n] each
        if not postings:
            return None
        return reduce(partial(np.intersect1d, assume_unique=True), sorted(postings, key=len))

    def covered_share(self, text: str, blocks: np.ndarray) -> float:
        """The share of a text's words, by inverse document frequency, that occur in one of some blocks i64 [n].

        A word that no block has counts as much as one of a single block; 1 for a text without words that count.
        """
        words = dict.fromkeys(self.counted_words(lexical_query(text)))
        holders = [self._live_postings(word.encode())[0] for word in words]  # i64 [.] each
        weights = np.array([inverse_document_frequency(self._live_count, max(1, len(own))) for own in holders])
        covered = np.array([np.isin(own, blocks).any() for own in holders], dtype=bool)  # [words]
        return float(weights[covered].sum() / weights.sum()) if len(weights) else 1.0

    def _live_postings(self, word: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The live blocks i64 [n] that hold a word, ascending, and how often each does, [n]."""
        blocks, counts = [], []
        first = 0
        for shard in self.shards:
            shard_blocks, shard_counts = shard.postings(word)
            blocks.append(shard_blocks + np.int64(first))  # i64 [n of the shard]
            counts.append(shard_counts)
            first += shard.block_count
        all_blocks, all_counts = np.concatenate(blocks), np.concatenate(counts)  # i64 [n], [n]
        if self.live_blocks is None:
            return all_blocks, all_counts
        live = self.live_blocks[all_blocks]  # bool [n]
        return all_blocks[live], all_counts[live]


def best_scoring(scores: np.ndarray, k: int, *, allowed: np.ndarray | None = None) -> np.ndarray:
    """The numbers i64 [at most k] of the blocks with the highest positive `scores` f32 [blocks], best first.

    Only of those in the mask `allowed` bool [blocks], all if None; ties go to the earlier block.
    """
    has_word = scores > 0  # bool [blocks]
    reached = np.flatnonzero(has_word if allowed is None else has_word & allowed)  # i64 [reached]
    found = scores[reached]  # f32 [reached]
    if len(found) > k > 0:
        limit = np.partition(found, -k)[-k]
        above = np.flatnonzero(found > limit)  # i64 [fewer than k]
        # Of all that are as good as the last place only the first ones: there may be as many as there are blocks.
        level = np.flatnonzero(found == limit)[: k - len(above)]  # i64
        places = np.concatenate([above, level])  # i64 [k]
    else:
        places = np.arange(len(found))[:k]  # i64
    return reached[places[np.lexsort((places, -found[places]))]]
