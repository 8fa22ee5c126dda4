"""The term counts that BM25 is computed from: one shard of them for each corpus shard of a segment.

words.npy          u8 [bytes], the distinct words in UTF-8, sorted      posting_blocks.npy u32 [n], within the shard
word_offsets.npy   i64 [v + 1], bytes                                   posting_counts.npy u8, u16 or u32 [n]
posting_offsets.npy i64 [v + 1], postings of each word                  block_lengths.npy  u32 [blocks], words

Postings of a word are in block order. Counts take as many bytes as the largest of the shard needs. A shard holds
no weights: those depend on all live blocks, and are computed when a text is looked up.

Shapes: v words, n postings, B blocks of a shard.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npm.core.artifact import Manifest, check_folder, open_array, written_once
from npm.core.files import FolderWriter
from npm.core.settings import as_json
from npm.corpus.markup import readable
from npm.corpus.text import counted_forms, folded_words
from npm.indexing.generation import finish_shards
from npm.indexing.settings import LexiconSettings

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore


LEXICON_KIND, LEXICON_SHARD_KIND = "lexicon", "lexicon-shard"


class TermCounts(NamedTuple):
    """The term counts of some blocks, as a shard stores them."""

    words: list[str]  # [v], sorted
    posting_offsets: np.ndarray  # i64 [v + 1]
    posting_blocks: np.ndarray  # u32 [n]
    posting_counts: np.ndarray  # u8, u16 or u32 [n]
    block_lengths: np.ndarray  # u32 [B]


def as_record(settings: LexiconSettings, store: BlockStore) -> dict[str, Any]:
    """Record in the manifest of a segment's lexicon: its settings and its corpus."""
    return {**as_json(asdict(settings)), "corpus": store.digest, "block_count": store.block_count}


def write_lexicon_shard(folder: Path, store: BlockStore, number: int, settings: LexiconSettings) -> Manifest:
    """Count the words of the blocks in corpus shard `number` of a segment's `store`, which must have text.

    `folder` is the shard's own; one that is finished is kept. Raises ArtifactError if it was made with other
    settings, is damaged, or another process writes it.
    """
    assert store.start_chars is not None, "a lexicon needs a store with text"
    first, stop = store.shard_blocks[number : number + 2].tolist()
    recorded = {**as_record(settings, store), "first_block": first, "block_count": stop - first}

    def write(writer: FolderWriter) -> None:
        counts = count_words(_block_texts(store, first, stop), settings)
        encoded = [word.encode() for word in counts.words]
        writer.write_array("words", np.frombuffer(b"".join(encoded), dtype=np.uint8))  # u8 [bytes]
        writer.write_array("word_offsets", np.cumsum([0, *map(len, encoded)], dtype=np.int64))  # i64 [v + 1]
        writer.write_array("posting_offsets", counts.posting_offsets)
        writer.write_array("posting_blocks", counts.posting_blocks)
        writer.write_array("posting_counts", counts.posting_counts)
        writer.write_array("block_lengths", counts.block_lengths)

    return written_once(folder, kind=LEXICON_SHARD_KIND, settings=recorded, write=write)


def finish_lexicon(folder: Path, store: BlockStore, settings: LexiconSettings) -> Manifest:
    """Write the manifest of a segment's lexicon, whose shards 00000 … are in `folder`; raises as `finish_shards`."""
    return finish_shards(
        folder,
        len(store.shard_blocks) - 1,
        kinds=(LEXICON_KIND, LEXICON_SHARD_KIND),
        settings=lambda: as_record(settings, store),
        stage="encode",
    )


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
    return TermCounts(
        words=words,
        posting_offsets=np.searchsorted(posting_words[order], np.arange(len(words) + 1)),
        posting_blocks=np.repeat(np.arange(len(found), dtype=np.uint32), np.array(found, dtype=np.int64))[order],
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
    """The term counts of one shard, memory-mapped; words are found by bisection, so that no vocabulary is loaded."""

    def __init__(self, folder: Path) -> None:
        manifest = check_folder(folder, kind=LEXICON_SHARD_KIND, hash_all=True)
        self.block_count: int = manifest.settings.typed("block_count", int)
        self.folder = folder
        self._posting_blocks = np.asarray(open_array(folder, "posting_blocks"))  # u32 [n]
        self._posting_counts = np.asarray(open_array(folder, "posting_counts"))  # u8, u16 or u32 [n]
        # Single elements of a memoryview cost a fraction of those of an array.
        self._posting_offsets = np.asarray(open_array(folder, "posting_offsets")).data  # i64 [v + 1]
        self._word_offsets = np.asarray(open_array(folder, "word_offsets")).data  # i64 [v + 1]
        self._words = np.asarray(open_array(folder, "words")).data  # u8 [bytes]

    def postings(self, word: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The blocks u32 [n] of the shard that contain a word in UTF-8, ascending, and its counts [n] in them."""
        vocabulary_size = len(self._word_offsets) - 1
        number = bisect_left(range(vocabulary_size), word, key=self._word)
        start = stop = 0
        if number < vocabulary_size and self._word(number) == word:
            start, stop = self._posting_offsets[number], self._posting_offsets[number + 1]
        return self._posting_blocks[start:stop], self._posting_counts[start:stop]

    def _word(self, number: int) -> bytes:
        return self._words[self._word_offsets[number] : self._word_offsets[number + 1]].tobytes()


class CountedBlocks:
    """The term counts of all blocks of a store, in memory, looked up like those of a shard."""

    def __init__(self, store: BlockStore, settings: LexiconSettings) -> None:
        self._counts = count_words(_block_texts(store, 0, store.block_count), settings)
        self.block_count, self.block_lengths = store.block_count, self._counts.block_lengths  # u32 [blocks]

    def postings(self, word: bytes) -> tuple[np.ndarray, np.ndarray]:
        """As those of a `LexiconShard`."""
        counts, text = self._counts, word.decode()
        number = bisect_left(counts.words, text)
        is_known = number < len(counts.words) and counts.words[number] == text
        own = slice(*counts.posting_offsets[number : number + 2].tolist()) if is_known else slice(0)
        return counts.posting_blocks[own], counts.posting_counts[own]


def _block_texts(store: BlockStore, first: int, stop: int) -> Iterator[tuple[str, str]]:
    """Title and text of the blocks [first, stop); those of one document are adjacent, so it is read once."""
    for block in range(first, stop):
        document = int(store.block_documents[block])
        if document < 0:
            yield "", ""
            continue
        found = store.document(document)
        yield found.title, readable(found.text, *store.block_chars(block)).text
