"""How often each word stands in each block: one shard of term counts for each corpus shard of a segment.

words.npy          u8 [bytes], the distinct words in UTF-8, sorted      posting_blocks.npy u32 [n], within the shard
word_offsets.npy   i64 [v + 1], bytes                                   posting_counts.npy u8, u16 or u32 [n]
posting_offsets.npy i64 [v + 1], postings of each word                  block_lengths.npy  u32 [blocks], words

Postings of a word stand in block order. Counts take as many bytes as the largest of the shard needs. A shard holds
no weights: those depend on all live blocks, and are computed when a text is looked up.

Shapes: v words, n postings, m occurrences of words, B blocks of a shard.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from index.locking import folder_lock
from index.store import Manifest, check_folder, open_array, write_folder, write_manifest
from npm.corpus.text import Stemming, counted_forms, folded_words
from npm.errors import ArtefactError, check_range
from npm.retrieval.manifests import keeps_finished

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore

LEXICON_KIND, LEXICON_SHARD_KIND = "lexicon", "lexicon-shard"


@dataclass(kw_only=True, slots=True)
class LexiconSettings:
    """How BM25 weighs words: Robertson and Zaragoza 2009, in Lucene's variant."""

    k1: float = 0.9
    """How slowly further occurrences of a word in a block stop to count."""
    b: float = 0.4
    """How much longer blocks are held against, from 0 to 1."""
    stemming: Stemming = Stemming.plural
    """`plural` takes English plural endings off (the S-stemmer, Harman 1991); `none` leaves words as they are."""
    keep_stopwords: bool = False
    """Whether English function words count; without them a question's own words decide."""
    title_repeats: int = 2
    """How many times the document's title counts in each of its blocks; 0 leaves it out."""

    def __post_init__(self) -> None:
        limits = (("k1", self.k1, 0, 100), ("b", self.b, 0, 1), ("title_repeats", self.title_repeats, 0, 100))
        for name, value, low, high in limits:
            check_range(low <= value <= high, f"lexicon.{name}", expected=f"a number in [{low}, {high}]", got=value)


class TermCounts(NamedTuple):
    """The term counts of some blocks, as a shard stores them."""

    words: list[str]  # [v], sorted
    posting_offsets: np.ndarray  # i64 [v + 1]
    posting_blocks: np.ndarray  # u32 [n]
    posting_counts: np.ndarray  # u8, u16 or u32 [n]
    block_lengths: np.ndarray  # u32 [B]


def recorded_settings(settings: LexiconSettings, store: BlockStore) -> dict[str, Any]:
    """What the manifest of a segment's lexicon says: the settings, and the corpus it is of."""
    own = {**asdict(settings), "stemming": settings.stemming.value}
    return {**own, "corpus": store.digest, "block_count": store.block_count}


def write_lexicon_shard(folder: Path, store: BlockStore, number: int, settings: LexiconSettings) -> Manifest:
    """Count the words of the blocks in corpus shard `number` of a segment's `store`, which must have text.

    `folder` is the shard's own; one that is finished is kept. Raises ArtefactError if it was made with other
    settings, is damaged, or another process writes it, StorageError if a write is refused.
    """
    assert store.start_chars is not None, "a lexicon needs a store with text"
    first, stop = store.shard_blocks[number : number + 2].tolist()
    recorded = _shard_settings(settings, store, number)
    with folder_lock(folder):
        if (kept := keeps_finished(folder, kind=LEXICON_SHARD_KIND, settings=recorded)) is not None:
            return kept
        counts = count_words(_block_texts(store, first, stop), settings)
        encoded = [word.encode() for word in counts.words]
        word_offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)  # i64 [v + 1]
        with write_folder(folder, kind=LEXICON_SHARD_KIND, settings=recorded) as writer:
            writer.write_array("words", np.frombuffer(b"".join(encoded), dtype=np.uint8))  # u8 [bytes]
            writer.write_array("word_offsets", word_offsets)
            writer.write_array("posting_offsets", counts.posting_offsets)
            writer.write_array("posting_blocks", counts.posting_blocks)
            writer.write_array("posting_counts", counts.posting_counts)
            writer.write_array("block_lengths", counts.block_lengths)
    return check_folder(folder, kind=LEXICON_SHARD_KIND)


def finish_lexicon(folder: Path, store: BlockStore, settings: LexiconSettings) -> Manifest:
    """Write the manifest of a segment's lexicon, whose shards 00000 … lie in `folder`; one that is there is kept.

    Raises ArtefactError if shards are missing, naming them, or if one is damaged or of other settings.
    """
    recorded = recorded_settings(settings, store)
    with folder_lock(folder, wait=True):
        if (kept := keeps_finished(folder, kind=LEXICON_KIND, settings=recorded)) is not None:
            return kept
        shards: dict[str, Manifest | None] = {}
        for number in range(len(store.shard_blocks) - 1):
            name, wanted = f"{number:05d}", _shard_settings(settings, store, number)
            shards[name] = keeps_finished(folder / name, kind=LEXICON_SHARD_KIND, settings=wanted)
        if missing := [name for name, shard in shards.items() if shard is None]:
            raise ArtefactError(
                f"{folder} lacks term counts",
                expected=f"a shard for each of the {len(shards)} corpus shards",
                got=f"{len(missing)} missing: {', '.join(missing[:8])}{' …' if len(missing) > 8 else ''}",
                where=str(folder),
                fix="run the jobs that count the words of these shards, then this one again",
            )
        parts = {name: shard.digest for name, shard in shards.items() if shard is not None}
        return write_manifest(folder, kind=LEXICON_KIND, settings=recorded, parts=parts)


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
    titles, texts = _Occurrences(), _Occurrences()
    for title, text in block_texts:
        titles.append(numbers.of(title) if settings.title_repeats else ())
        texts.append(numbers.of(text))
    block_count = len(texts.lengths)
    word_numbers = np.concatenate([titles.word_numbers(), texts.word_numbers()])  # i32 [m]
    blocks = np.concatenate([titles.blocks(), texts.blocks()])  # i64 [m]
    times = np.ones(len(blocks), dtype=np.int64)  # i64 [m], how often each occurrence counts
    times[: len(titles.numbers)] = settings.title_repeats
    counted = word_numbers >= 0  # bool [m]
    word_numbers, blocks, times = word_numbers[counted], blocks[counted], times[counted]  # i32, i64, i64 [m]
    words = sorted(numbers.by_form)
    ranks = np.empty(len(words), dtype=np.int64)  # i64 [v], places of the numbered words in sorted order
    ranks[[numbers.by_form[word] for word in words]] = np.arange(len(words))
    keys = ranks[word_numbers] * block_count + blocks  # i64 [m], ordered by word, then by block
    order = np.argsort(keys)  # i64 [m]
    keys = keys[order]  # i64 [m]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))  # i64 [n]
    counts = np.add.reduceat(times[order], starts) if len(starts) else starts  # i64 [n]
    posting_words, posting_blocks = np.divmod(keys[starts], max(1, block_count))  # i64 [n], i64 [n]
    return TermCounts(
        words=words,
        posting_offsets=np.searchsorted(posting_words, np.arange(len(words) + 1)),
        posting_blocks=posting_blocks.astype(np.uint32),
        posting_counts=counts.astype(np.min_scalar_type(counts.max(initial=0))),
        block_lengths=np.bincount(blocks, weights=times, minlength=block_count).astype(np.uint32),
    )


class _WordNumbers(dict[str, int]):
    """The number of the counted form of each folded word, given out as they come; -1 for words that do not count.

    Each distinct word is stemmed once, whatever the number of its occurrences.
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


class _Occurrences:
    """Word numbers of one block after the other, 4 bytes each."""

    def __init__(self) -> None:
        self.numbers = array("i")
        self.lengths = array("q")

    def append(self, word_numbers: Iterable[int]) -> None:
        """Add a block."""
        before = len(self.numbers)
        self.numbers.extend(word_numbers)
        self.lengths.append(len(self.numbers) - before)

    def word_numbers(self) -> np.ndarray:
        """Of all blocks, i32 [m]."""
        return np.frombuffer(self.numbers, dtype=np.int32)  # i32 [m]

    def blocks(self) -> np.ndarray:
        """The block of each, i64 [m]."""
        lengths = np.frombuffer(self.lengths, dtype=np.int64)  # i64 [B]
        return np.repeat(np.arange(len(lengths)), lengths)  # i64 [m]


class Postings(NamedTuple):
    """Where one word stands in one shard."""

    blocks: np.ndarray  # u32 [n], within the shard, ascending
    counts: np.ndarray  # u8, u16 or u32 [n]


class LexiconShard:
    """The term counts of one shard, memory-mapped; words are found by bisection, so that no vocabulary is loaded."""

    def __init__(self, folder: Path) -> None:
        self.block_count = int(check_folder(folder, kind=LEXICON_SHARD_KIND).settings["block_count"])
        self._folder = folder
        self._posting_blocks = np.asarray(open_array(folder, "posting_blocks"))  # u32 [n]
        self._posting_counts = np.asarray(open_array(folder, "posting_counts"))  # u8, u16 or u32 [n]
        # Single elements of a memoryview cost a fraction of those of an array.
        self._posting_offsets = np.asarray(open_array(folder, "posting_offsets")).data  # i64 [v + 1]
        self._word_offsets = np.asarray(open_array(folder, "word_offsets")).data  # i64 [v + 1]
        self._words = np.asarray(open_array(folder, "words")).data  # u8 [bytes]

    def postings(self, word: bytes) -> Postings:
        """The postings of a word in UTF-8; none if it does not stand in the shard."""
        vocabulary_size = len(self._word_offsets) - 1
        number = bisect_left(range(vocabulary_size), word, key=self._word)
        start = stop = 0
        if number < vocabulary_size and self._word(number) == word:
            start, stop = self._posting_offsets[number], self._posting_offsets[number + 1]
        return Postings(self._posting_blocks[start:stop], self._posting_counts[start:stop])

    def block_lengths(self) -> np.ndarray:
        """Words of each block, u32 [B], mapped anew: opened lexicons keep one array over all shards instead."""
        return open_array(self._folder, "block_lengths")

    def _word(self, number: int) -> bytes:
        return self._words[self._word_offsets[number] : self._word_offsets[number + 1]].tobytes()


def _shard_settings(settings: LexiconSettings, store: BlockStore, number: int) -> dict[str, Any]:
    first, stop = store.shard_blocks[number : number + 2].tolist()
    return {**recorded_settings(settings, store), "first_block": first, "block_count": stop - first}


def _block_texts(store: BlockStore, first: int, stop: int) -> Iterator[tuple[str, str]]:
    """Title and text of the blocks [first, stop); those of one document stand together, so it is read once."""
    for block in range(first, stop):
        document = int(store.block_documents[block])
        yield store.document(document).title if document >= 0 else "", store.block_text(block)
