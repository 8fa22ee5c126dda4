"""Evidence for a span of a text in a corpus: the sentences in which it, or another phrase in its place, occurs.

The words that a sentence of the text has in common with a sentence of the corpus, title included, are weighed:

    share = Σ_{w ∈ Q ∩ S} idf(w) / Σ_{w ∈ Q} idf(w),

with the words Q of the text's sentence without the span, and the words S of the corpus's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npm.core.types import MASK_TEXT, Occurrence
from npm.corpus.markup import visible
from npm.corpus.text import sentence_bounds
from npm.retrieval.answers import occurrence_in
from npm.tracing.find import SoughtPhrase

if TYPE_CHECKING:
    from npm.indexing.bm25 import BlockLexicon
    from npm.indexing.phrase_index import PhraseIndex

BLOCKS_READ = 16
"""Blocks that hold a span, the best by the words around it, in which its places are compared."""
SPELLINGS_READ = 16
"""Blocks in which the spelling of a word that begins a sentence is looked up."""


class Place(NamedTuple):
    """A place in the corpus, and the share of the words around a span that its sentence has."""

    occurrence: Occurrence
    share: float


class CorpusEvidence:
    """Look-up of spans in the live and allowed blocks of an index."""

    def __init__(self, index: PhraseIndex, lexicon: BlockLexicon, blocks: np.ndarray | None) -> None:
        """`blocks` is the mask bool [blocks] of those that may be read; None: all."""
        self._store, self._lexicon, self._blocks = index.store, lexicon, blocks
        self._weight = lru_cache(maxsize=4096)(lexicon.form_weight)

    def share(self, context: frozenset[str], sentence: str, title: str) -> float:
        """The share of the words of `context` that a sentence of the corpus has; 1 without any word."""
        total = sum(map(self._weight, context))
        both = context.intersection(self.words(f"{title} {visible(sentence)}"))
        return sum(map(self._weight, both)) / total if total else 1.0

    def words(self, text: str) -> frozenset[str]:
        """The distinct words of a text that count, in the form in which they are counted."""
        return frozenset(self._lexicon.counted_words(text))

    def best_place(self, span: str, sentence: str) -> Place | None:
        """The place of `span` whose sentence has most of the words of `sentence`, which has a mask in its place.

        Where the title of a document has it, each of its sentences is such a place. Ties go to the block that is best
        by BM25.
        """
        holding = self._lexicon.blocks_with(span)  # i64 [n]
        if holding is None or not len(holding):
            return None
        allowed = np.zeros(self._store.block_count, dtype=bool)  # [blocks]
        allowed[holding] = True
        allowed &= True if self._blocks is None else self._blocks
        blocks = np.flatnonzero(allowed)[:BLOCKS_READ]
        scored, _ = self._lexicon.best_blocks(sentence, BLOCKS_READ, allowed=allowed)
        best = [*scored.tolist(), *blocks.tolist()][:BLOCKS_READ]
        context, phrase = self.words(sentence.replace(MASK_TEXT, " ")), SoughtPhrase(span)
        places = (
            Place(found, self.share(context, found.context, found.title))
            for block in dict.fromkeys(best)
            for found in self._places(block, phrase)
        )
        return max(places, key=lambda place: place.share, default=None)

    def _places(self, block: int, phrase: SoughtPhrase) -> Iterator[Occurrence]:
        document = self._store.document(int(self._store.block_documents[block]))
        first, stop = self._store.block_chars(block)
        for start, end in phrase.places(document.text, first, stop):
            yield occurrence_in(document, start, end)
        if any(phrase.places(document.title)):
            for start, end in sentence_bounds(document.text[first:stop]).tolist():
                yield occurrence_in(document, first + start, first + end)

    def begins_name(self, run: str) -> bool:
        """Return True if the first of a run of capitalized words, which begins a sentence, belongs to the name.

        That is so where the corpus has the run of several in this spelling, or the first word mostly with a capital.
        """
        word, _, more = run.partition(" ")
        if more and any(self._spelled(run, run)):
            return True
        lower = word[:1].lower() + word[1:]
        capitals, small = self._spelled(word, word, lower)
        return capitals > 3 * small or not (capitals or small)

    def _spelled(self, words: str, *spellings: str) -> list[int]:
        """Occurrences of each spelling in the first blocks that hold `words`."""
        holding = self._lexicon.blocks_with(words)  # i64 [n]
        if holding is None:
            return [0] * len(spellings)
        texts = [self._store.block_text(block) for block in holding[:SPELLINGS_READ].tolist()]
        phrases = [SoughtPhrase(spelling, match_case=True) for spelling in spellings]
        return [sum(1 for text in texts for _ in phrase.places(text)) for phrase in phrases]
