"""BM25 scores of blocks (Robertson and Zaragoza 2009), and the term counts that they are computed from.

A segment's lexicon is a shard of counts for each shard of its corpus:

words.npy          u8 [bytes], the distinct words in UTF-8, sorted      posting_blocks.npy [n], within the shard
word_offsets.npy   [v + 1], bytes                                       posting_counts.npy [n]
posting_offsets.npy [v + 1], postings of each word                      block_lengths.npy  u32 [blocks], words

Postings of a word are in block order. The other arrays have the smallest unsigned types that hold their numbers. A
shard holds no weights: those depend on all live blocks, and are computed when a text is looked up.

Shapes: v words, n postings or blocks found, B blocks of a shard.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npm.core.artifact import Manifest, check_folder, open_array, refuse_changed, written_once
from npm.core.errors import damaged
from npm.core.files import FolderWriter
from npm.core.settings import as_json, settings_from
from npm.corpus.markup import readable
from npm.corpus.text import counted_forms, folded_words, lexical_query, words_of
from npm.indexing.settings import LexiconSettings

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore


LEXICON_KIND, LEXICON_SHARD_KIND = "lexicon", "lexicon-shard"
SHARD_ARRAYS = ("words", "word_offsets", "posting_offsets", "posting_blocks", "posting_counts", "block_lengths")


class TermCounts(NamedTuple):
    """The term counts of some blocks, as a shard stores them."""

    words: list[str]  # [v], sorted
    posting_offsets: np.ndarray  # u8 to u64 [v + 1]
    posting_blocks: np.ndarray  # u8, u16 or u32 [n]
    posting_counts: np.ndarray  # u8, u16 or u32 [n]
    block_lengths: np.ndarray  # u32 [B]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a shard, by the names of their files."""
        encoded = [word.encode() for word in self.words]
        word_offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)  # [v + 1]
        return {
            "words": np.frombuffer(b"".join(encoded), dtype=np.uint8),  # u8 [bytes]
            "word_offsets": word_offsets.astype(np.min_scalar_type(word_offsets[-1])),
            "posting_offsets": self.posting_offsets,
            "posting_blocks": self.posting_blocks,
            "posting_counts": self.posting_counts,
            "block_lengths": self.block_lengths,
        }


def as_record(settings: LexiconSettings, store: BlockStore) -> dict[str, Any]:
    """Record in the manifest of a segment's lexicon: its settings and its corpus."""
    return {**as_json(asdict(settings)), "corpus": store.digest, "block_count": store.block_count}


def write_lexicon_shard(folder: Path, store: BlockStore, number: int, settings: LexiconSettings) -> Manifest:
    """Count the words of the blocks in corpus shard `number` of a segment's `store`.

    `folder` is the shard's own; one that is finished is kept. Raises ArtifactError if it was made with other
    settings, is damaged, or another process writes it.
    """
    first, stop = store.shard_blocks[number : number + 2].tolist()
    recorded = {**as_record(settings, store), "first_block": first, "block_count": stop - first}

    def write(writer: FolderWriter) -> None:
        for name, counted in count_words(_block_texts(store, first, stop), settings).arrays().items():
            writer.write_array(name, counted)

    return written_once(folder, kind=LEXICON_SHARD_KIND, settings=recorded, write=write)


def count_words(block_texts: Iterable[tuple[str, str]], settings: LexiconSettings) -> TermCounts:
    """Term counts of blocks that come as (title of the document, text of the block), in order.

    >>> blocks = [("Rome", "rivers of Rome"), ("Rome", "a river, a bridge")]
    >>> counts = count_words(blocks, LexiconSettings(title_repeats=2))
    >>> counts.words, counts.posting_offsets.tolist()
    (['bridge', 'river', 'rome'], [0, 1, 3, 5])
    >>> counts.posting_blocks.tolist(), counts.posting_counts.tolist(), counts.block_lengths.tolist()
    ([1, 0, 1, 0, 1], [1, 1, 1, 3, 2], [4, 4])
    """
    numbers = _WordNumbers(settings)
    found_words, found_counts = array("i"), array("q")  # of one block after the other
    found, lengths = array("q"), array("q")  # words that each block has, and how often it has any
    for title, text in block_texts:
        counts = Counter(numbers.of(text))
        for number, times in Counter(numbers.of(title)).items() if settings.title_repeats else ():
            counts[number] += times * settings.title_repeats
        counts.pop(-1, None)
        found_words.extend(counts)
        found_counts.extend(counts.values())
        found.append(len(counts))
        lengths.append(counts.total())
    words = sorted(numbers.by_form)
    ranks = np.empty(len(words), dtype=np.int64)  # i64 [v], places of the numbered words in sorted order
    ranks[[numbers.by_form[word] for word in words]] = np.arange(len(words))
    posting_words = ranks[np.array(found_words, dtype=np.int64)]  # i64 [n]
    order = np.argsort(posting_words, kind="stable")  # i64 [n], by word, then by block
    posting_counts = np.array(found_counts, dtype=np.int64)[order]  # i64 [n]
    posting_offsets = np.searchsorted(posting_words[order], np.arange(len(words) + 1))  # i64 [v + 1]
    blocks = np.arange(len(found), dtype=np.min_scalar_type(len(found)))  # [B]
    return TermCounts(
        words=words,
        posting_offsets=posting_offsets.astype(np.min_scalar_type(len(order))),
        posting_blocks=np.repeat(blocks, np.array(found, dtype=np.int64))[order],
        posting_counts=posting_counts.astype(np.min_scalar_type(posting_counts.max(initial=0))),
        block_lengths=np.array(lengths, dtype=np.uint32),
    )


class _WordNumbers(dict[str, int]):
    """The number of the counted form of each folded word, given out as they come; -1 for words that do not count.

    Each distinct word is stemmed once, regardless of the number of its occurrences.
    """

    def __init__(self, settings: LexiconSettings) -> None:
        super().__init__()
        self.by_form: dict[str, int] = {}
        self._settings = settings

    def __missing__(self, word: str) -> int:
        forms = counted_forms([word], self._settings.stemming, keep_stopwords=self._settings.keep_stopwords)
        self[word] = self.by_form.setdefault(forms[0], len(self.by_form)) if forms else -1
        return self[word]

    def of(self, text: str) -> Iterator[int]:
        """The numbers of a text's words, in order."""
        return map(self.__getitem__, folded_words(text))


class LexiconShard:
    """The term counts of one shard; words are found by bisection, so that no vocabulary is loaded."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`arrays` are those of `TermCounts.arrays`."""
        self.block_lengths = arrays["block_lengths"]  # u32 [B]
        self._posting_blocks = np.asarray(arrays["posting_blocks"])  # u8, u16 or u32 [n]
        self._posting_counts = np.asarray(arrays["posting_counts"])  # u8, u16 or u32 [n]
        # Single elements of a memoryview cost a fraction of those of an array.
        self._posting_offsets = np.asarray(arrays["posting_offsets"]).data  # u8 to u64 [v + 1]
        self._word_offsets = np.asarray(arrays["word_offsets"]).data  # u8 to u64 [v + 1]
        self._words = np.asarray(arrays["words"]).data  # u8 [bytes]

    @classmethod
    def open(cls, folder: Path) -> LexiconShard:
        """The shard in `folder`, memory-mapped. Raises ArtifactError if it is damaged."""
        check_folder(folder, kind=LEXICON_SHARD_KIND, hash_all=True)
        return cls({name: open_array(folder, name) for name in SHARD_ARRAYS})

    def postings(self, word: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The blocks [n] of the shard that contain a word in UTF-8, ascending, and its counts [n] in them."""
        vocabulary_size = len(self._word_offsets) - 1
        number = bisect_left(range(vocabulary_size), word, key=self._word)
        start = stop = 0
        if number < vocabulary_size and self._word(number) == word:
            start, stop = self._posting_offsets[number], self._posting_offsets[number + 1]
        return self._posting_blocks[start:stop], self._posting_counts[start:stop]

    def _word(self, number: int) -> bytes:
        return self._words[self._word_offsets[number] : self._word_offsets[number + 1]].tobytes()


def _block_texts(store: BlockStore, first: int, stop: int) -> Iterator[tuple[str, str]]:
    """Title and text of the blocks [first, stop); those of one document are adjacent, so it is read once."""
    for block in range(first, stop):
        document = store.document(int(store.block_documents[block]))
        yield document.title, readable(document.text, *store.block_chars(block)).text


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

    shards: Sequence[LexiconShard]
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
        parts = [folder / name for folder, manifest in zip(folders, manifests, strict=True) for name in manifest.parts]
        shards = [LexiconShard.open(part) for part in parts]
        return cls(shards, settings, np.concatenate([shard.block_lengths for shard in shards]))

    @classmethod
    def of_store(cls, store: BlockStore) -> BlockLexicon:
        """The lexicon of a store that has none on disk, counted now."""
        settings = LexiconSettings()
        counts = count_words(_block_texts(store, 0, store.block_count), settings)
        return cls([LexiconShard(counts.arrays())], settings, counts.block_lengths)

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
            first += len(shard.block_lengths)
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
