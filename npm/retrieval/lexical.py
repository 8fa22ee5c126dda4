"""The lexical stage: BM25 over blocks, which finds where a question's words stand.

Shapes: q texts, k blocks a text, n non-zero entries, v words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from index.store import check_folder, open_array, write_folder
from npm.corpus.stopwords import CONTRACTION_TAILS, STOP_WORDS
from npm.errors import check_range
from npm.types import MASK_TEXT

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore

LEXICON_KIND = "lexicon"
_WORD = re.compile(r"\w+")


class Stemming(Enum):
    """What is taken off the end of a word."""

    none = "none"
    plural = "plural"


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


class BlockHits(NamedTuple):
    """The best blocks of each text, best first."""

    blocks: np.ndarray  # i64 [q, k], 0 where not found
    scores: np.ndarray  # f32 [q, k], BM25, 0 where not found
    found: np.ndarray  # bool [q, k]


def words_of(text: str, stemming: Stemming = Stemming.none, *, keep_stopwords: bool = True) -> list[str]:
    """Case-folded runs of letters, digits and underscores, in order.

    >>> words_of("Größe der 2 Städte")
    ['grösse', 'der', '2', 'städte']
    >>> words_of("Croatia's seat is in", keep_stopwords=False)
    ['croatia', 'seat']
    """
    words = _WORD.findall(text.casefold())
    if not keep_stopwords:
        words = [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS]
    return [_singular(word) for word in words] if stemming is Stemming.plural else words


def _singular(word: str) -> str:
    """The S-stemmer.

    >>> [_singular(word) for word in ("countries", "rivers", "glass", "gas")]
    ['country', 'river', 'glass', 'ga']
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def lexical_query(text: str) -> str:
    """What is looked up for a text with a mask: the question if the mask comes after one, else all but the mask.

    >>> lexical_query("Who wrote it? The answer is: <mask>.")
    'Who wrote it?'
    >>> lexical_query("Rome lies on <mask>. Why?")
    'Rome lies on  . Why?'
    """
    before, found, after = text.partition(MASK_TEXT)
    question, mark, _ = before.partition("?")
    return question + mark if mark and found else f"{before} {after}"


class BlockLexicon:
    """BM25 scores of every word in every block, opened from a folder."""

    def __init__(self, bm25: Any, vocabulary: dict[str, int], settings: LexiconSettings, block_count: int) -> None:
        self._bm25 = bm25
        self._vocabulary = vocabulary
        self._settings = settings
        self.block_count = block_count

    @classmethod
    def build(
        cls,
        store: BlockStore,
        folder: Path,
        *,
        settings: LexiconSettings,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Weigh title and text of every block of a store that has text, and write the lexicon to `folder`.

        `progress(blocks done, blocks)` is called after each block. Raises StorageError if a write is refused.
        """
        import bm25s

        vocabulary: dict[str, int] = {}
        blocks: list[list[int]] = []
        for title, text in _block_texts(store):
            weighted = f"{title}\n" * settings.title_repeats + text
            words = words_of(weighted, settings.stemming, keep_stopwords=settings.keep_stopwords)
            blocks.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
            if progress is not None:
                progress(len(blocks), store.block_count)
        vocabulary.setdefault("", len(vocabulary))  # bm25s cannot weigh an empty vocabulary
        bm25 = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", backend="numpy", csc_backend="numpy")
        bm25.index((blocks, vocabulary), create_empty_token=False, show_progress=False)
        with write_folder(folder, kind=LEXICON_KIND, settings=recorded_settings(settings, store)) as writer:
            writer.write_array("data", np.asarray(bm25.scores["data"], dtype=np.float32))  # f32 [n]
            writer.write_array("indices", np.asarray(bm25.scores["indices"], dtype=np.int32))  # i32 [n]
            writer.write_array("indptr", np.asarray(bm25.scores["indptr"], dtype=np.int64))  # i64 [v + 1]
            writer.write_json("vocabulary", vocabulary)

    @classmethod
    def open(cls, folder: Path) -> BlockLexicon:
        """Open a built lexicon; raises ArtefactError if it is missing or damaged."""
        import json

        import bm25s

        manifest = check_folder(folder, kind=LEXICON_KIND)
        recorded = manifest.settings
        chosen = {item.name: recorded[item.name] for item in fields(LexiconSettings)}
        settings = LexiconSettings(**{**chosen, "stemming": Stemming(recorded["stemming"])})
        bm25 = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", backend="numpy", csc_backend="numpy")
        block_count = int(recorded["block_count"])
        arrays = {name: np.asarray(open_array(folder, name)) for name in ("data", "indices", "indptr")}
        bm25.scores = {**arrays, "num_docs": block_count}
        bm25.nonoccurrence_array = None  # what bm25s sets when it indexes or loads; Lucene's variant has none
        vocabulary = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        return cls(bm25, vocabulary, settings, block_count)

    def best_blocks(self, texts: Sequence[str], k: int) -> BlockHits:
        """The k blocks with the highest BM25 scores for each text with a mask; a block must share a word with it.

        Ties go to the block that stands earlier in the corpus.
        """
        blocks = np.zeros((len(texts), k), dtype=np.int64)  # [q, k]
        scores = np.zeros((len(texts), k), dtype=np.float32)  # [q, k]
        for number, text in enumerate(texts):
            all_scores = self.scores(text)  # f32 [blocks]
            count = min(k, len(all_scores))
            limit = max(np.partition(all_scores, -count)[-count], np.finfo(np.float32).tiny)
            reached = np.flatnonzero(all_scores >= limit)
            best = reached[np.argsort(-all_scores[reached], kind="stable")[:count]]
            blocks[number, : len(best)] = best
            scores[number, : len(best)] = all_scores[best]
        return BlockHits(blocks=blocks, scores=scores, found=scores > 0)

    def scores(self, text: str) -> np.ndarray:
        """BM25 score of every block for one text with a mask, f32 [blocks]."""
        words = words_of(lexical_query(text), self._settings.stemming, keep_stopwords=self._settings.keep_stopwords)
        word_ids = [self._vocabulary[word] for word in words if word in self._vocabulary]
        if not word_ids:
            return np.zeros(self.block_count, dtype=np.float32)
        scores: np.ndarray = self._bm25.get_scores_from_ids(word_ids)
        return scores


def recorded_settings(settings: LexiconSettings, store: BlockStore) -> dict[str, Any]:
    """What the manifest of a lexicon says: the settings, and the corpus it is of."""
    own = {**asdict(settings), "stemming": settings.stemming.value}
    return {**own, "corpus": store.digest, "block_count": store.block_count}


def _block_texts(store: BlockStore) -> Iterator[tuple[str, str]]:
    """Title and text of each block, in order."""
    assert store.start_chars is not None, "a lexicon needs a store with text"
    for block in range(store.block_count):
        document = int(store.block_documents[block])
        title = store.document(document).title if document >= 0 else ""
        yield title, store.block_text(block)
