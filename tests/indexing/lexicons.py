"""Small corpora with their lexicons, and BM25 as it is written down."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.corpus.text import words_of
from npm.indexing.bm25 import BlockLexicon, write_lexicon_shard
from npm.indexing.settings import LexiconSettings
from npm.indexing.stages import lexicon_part
from tests.helpers.tiny_models import wordpiece_tokenizer

ALPHABET = ("river", "rivers", "city", "the", "of", "Łódź", "paulo", "oslo", "rhine", "1605", "hydrogen", "element")


def store_of(folder: Path, documents: Sequence[Document], *, tokens_per_shard: int = 1 << 20) -> BlockStore:
    packer = BlockPacker(_tokenizer(), BlockSettings(max_block_tokens=16))
    return build_block_store(folder, documents, packer, settings={}, tokens_per_shard=tokens_per_shard)


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    """One for all stores: where counts tie, training another may cut words, and so blocks, in other places."""
    return wordpiece_tokenizer()


def write_lexicon(folder: Path, store: BlockStore, **settings: Any) -> Path:
    for number in range(len(store.shard_blocks) - 1):
        write_lexicon_shard(folder / f"{number:05d}", store, number, LexiconSettings(**settings))
    finish_lexicon(folder, store, LexiconSettings(**settings))
    return folder


def finish_lexicon(folder: Path, store: BlockStore, settings: LexiconSettings) -> None:
    """Write the manifest of the shards in `folder`."""
    part = lexicon_part(folder, store, settings)
    replace(part, folder=folder).finish()


def opened_lexicon(folder: Path, store: BlockStore, **settings: Any) -> BlockLexicon:
    return BlockLexicon.open([write_lexicon(folder, store, **settings)])


def random_documents(rng: np.random.Generator, count: int) -> list[Document]:
    """Documents of 1 to 60 words, of which a few are frequent; some of function words alone."""
    shares = 1 / np.arange(1, len(ALPHABET) + 1)  # f64 [words]
    documents = []
    for number in range(count):
        words = rng.choice(ALPHABET, size=rng.integers(1, 60), p=shares / shares.sum()).tolist()
        text = "of the" if rng.random() < 0.1 else " ".join(words)
        documents.append(Document(id=str(number), title=f"{rng.choice(ALPHABET)} {number}", text=text))
    return documents


def block_words(store: BlockStore, settings: LexiconSettings) -> list[list[str]]:
    """The words that count in each block, title included."""
    blocks = []
    for block in range(store.block_count):
        title = store.document(int(store.block_documents[block])).title
        weighted = f"{title} " * settings.title_repeats + store.block_text(block)
        blocks.append(words_of(weighted, settings.stemming, keep_stopwords=settings.keep_stopwords))
    return blocks


def plain_bm25(blocks: Sequence[Sequence[str]], query: Sequence[str], settings: LexiconSettings) -> list[float]:
    """Lucene's BM25 as it is written down: idf · tf / (tf + k1 (1 − b + b · length / mean length))."""
    mean_length = sum(map(len, blocks)) / len(blocks)
    scores = []
    for words in blocks:
        counts, score = Counter(words), 0.0
        for word in query:
            frequency = sum(word in other for other in blocks)
            idf = math.log(1 + (len(blocks) - frequency + 0.5) / (frequency + 0.5))
            tf = counts[word]
            if tf:
                score += idf * tf / (tf + settings.k1 * (1 - settings.b + settings.b * len(words) / mean_length))
        scores.append(score)
    return scores
