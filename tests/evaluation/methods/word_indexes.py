"""Small random indexes with vectors of their own and deleted blocks, and words to look for, as plain loops see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from npm.core.types import TokenFlag
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex, rows_of_blocks
from npm.indexing.settings import IndexBuildSettings, PruningRule
from npm.models.encoder import Encoder
from npm.retrieval.settings import FillSettings
from tests.helpers.live_indexes import record, write_records
from tests.helpers.random_indexes import random_index
from tests.retrieval.plain_filling import PlainCorpus

Place = tuple[int, int, int]
"""Word number, position of its first token, tokens."""


@dataclass
class WordIndex:
    """A random index over the words a to e, A to C, and the same for plain loops."""

    index: PhraseIndex
    encoder: Encoder
    corpus: PlainCorpus
    live_blocks: list[bool]

    def plain_places(self, words: list[str], *, live_only: bool = True, with_rows: bool = True) -> list[Place]:
        """Every place of every word, found by trying each form of each word at each position."""
        places = []
        corpus = self.corpus
        for number, word in enumerate(words):
            spellings = {word, word[:1].upper() + word[1:]}
            forms = [[corpus.words.index(part) for part in spelling.split()] for spelling in sorted(spellings)]
            for start in range(len(corpus.token_ids)):
                block = corpus.block_of(start)
                if live_only and not self.live_blocks[block]:
                    continue
                for form in forms:
                    last = start + len(form) - 1
                    if corpus.token_ids[start : last + 1] != form or corpus.block_of(last) != block:
                        continue
                    if not corpus.flags[start] & TokenFlag.WORD_START or not corpus.flags[last] & TokenFlag.WORD_END:
                        continue
                    if with_rows and not {start, last} <= set(corpus.row_positions):
                        continue
                    places.append((number, start, len(form)))
        return sorted(places)


def word_index(folder: Path, rng: np.random.Generator, *, deleted_share: float = 0.3) -> WordIndex:
    """An index without stop-words in uneven shards, of which some blocks are deleted."""
    filler, corpus = random_index(
        folder, rng, rule=PruningRule.without_stopwords, settings=FillSettings(), block_count=20
    )
    store, rows = filler.index.store, filler.index.rows
    live = rng.random(store.block_count) >= deleted_share  # bool [blocks]
    halves = corpus.vectors.astype(np.float16)  # f16 [rows, 5]
    cut = len(halves) // 3
    corpus.vectors = halves.astype(np.float32)
    index = replace(
        filler.index,
        vectors=ShardedArray([halves[:cut], halves[cut:]]),
        searcher=ExactSearcher(corpus.vectors),
        live_blocks=live,
        live_rows=rows_of_blocks(store, rows, live),
    )
    return WordIndex(index, filler.encoder, corpus, live.tolist())


def random_words(rng: np.random.Generator, count: int) -> list[str]:
    """Words of one to three tokens, each with a capital form, and one that stands nowhere."""
    firsts, lengths = rng.choice(list("abc"), count), rng.integers(0, 3, count)
    words = [" ".join([first, *rng.choice(list("abcde"), more)]) for first, more in zip(firsts, lengths, strict=True)]
    return [*words, "c d c b a e d c"]


def index_of_texts(folder: Path, texts: Sequence[str], encoder: Encoder) -> PhraseIndex:
    """An index over documents with these texts, in which only stop-words and punctuation have no vectors."""
    records = [record(number, text=text) for number, text in enumerate(texts)]
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[write_records(folder.with_suffix(".jsonl"), records)]),
        blocks=BlockSettings(max_block_tokens=40),
    )
    build_index(folder, settings, encoder)
    return PhraseIndex.open(folder)
