"""Passages in memory as an index: embedded once, searched like an index on disk.

Shapes: T tokens of all passages in a row, n blocks, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from index.exact import ExactSearcher
from npm.core.errors import CorpusError
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.embed import kept_tokens
from npm.indexing.generation import IndexManifest
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rows import RowMap
from npm.indexing.settings import PruningRule
from npm.reading.loading import open_reader
from npm.retrieval.passage_store import GivenWords, PassageCache, PassageStore, checked_passages
from npm.retrieval.queries import TOKENS_PER_BATCH
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.core.types import Document
    from npm.models.encoder import Encoder
    from npm.reading.reader import Reader

SHARED_CACHE = PassageCache()
"""Default cache of passages."""


@dataclass(frozen=True, slots=True)
class PassageIndex(PhraseIndex):
    """Passages as an index in memory: no folder that could change, no encoder but the one that embeds them."""

    token_vectors: np.ndarray = field(kw_only=True)  # f32 [T, d]
    given_words: GivenWords = field(kw_only=True)

    @property
    def is_in_memory(self) -> bool:
        """Small enough to be searched completely."""
        return True

    @property
    def is_current(self) -> bool:
        """Passages do not change."""
        return True

    @property
    def facts(self) -> str:
        """Description for people."""
        return f"{self.store.document_count:,} passages, {self.store.token_count:,} tokens"

    def check_encoder(self, encoder: Encoder) -> Encoder:
        """Nothing to compare or cut: a `PassageIndex` has just been embedded with `encoder`."""
        return encoder

    def blocks_holding(self, phrase: str) -> np.ndarray:
        """The blocks i64 [n], ascending, in which `phrase` occurs."""
        return np.unique(self.store.block_of(self.given_words.find(phrase)[0]))


def passage_index(
    passages: Sequence[str | Document],
    encoder: Encoder,
    *,
    cache: PassageCache = SHARED_CACHE,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> PassageIndex:
    """The index of some passages; those that are not in `cache` are embedded.

    Raises CorpusError if there is no passage, or one that is no text.
    """
    documents = checked_passages(passages)
    embedded = cache.embed(encoder, documents, tokens_per_batch=tokens_per_batch)
    if not any(passage.blocks for passage in embedded):
        raise CorpusError(f"the encoder's tokenizer makes no token of the {len(documents)} passages: check them")
    store = PassageStore(documents, embedded)
    vectors = np.concatenate([passage.vectors for passage in embedded])  # f32 [T, d]
    kept = kept_tokens(store.flags.slice(0, store.token_count), PruningRule.without_stopwords)  # bool [T]
    return PassageIndex(
        folder=store.folder,
        manifest=IndexManifest(),
        store=store,
        rows=RowMap.of_mask(kept),
        searcher=ExactSearcher(vectors[kept]),
        lexicon=BlockLexicon.of_store(store),
        token_vectors=vectors,
        given_words=GivenWords(store),
    )


def passage_settings(encoder: Encoder, reader: Reader | None) -> FillSettings:
    """Settings of filling from passages unless others are given: `hybrid` with a reader, `dense` without one."""
    has_reader = reader is not None or open_reader(FillSettings().reader, encoder) is not None
    return FillSettings(retrieval=Retrieval.hybrid if has_reader else Retrieval.dense)
