"""Small random indexes over word-level token ids, the same as a `PhraseFiller` and as a `PlainCorpus`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from index.exact import ExactSearcher
from npm.core.types import TokenFlag
from npm.corpus.store import BlockStore, write_block_store
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.embed import kept_tokens
from npm.indexing.generation import EncoderRecord, IndexManifest
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rows import RowMap, pack_kept
from npm.indexing.settings import PruningRule
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import QueryVectors
from npm.retrieval.settings import FillSettings
from tests.helpers.stores import spelled
from tests.retrieval.plain_filling import PlainCorpus, plain_kept

WORDS = ["a", "b", "c", "d", "e", "A", "B", "C"]
SCALE = 0.7
FLAG_SHARES = {
    TokenFlag.WORD_START: 0.7,
    TokenFlag.WORD_END: 0.7,
    TokenFlag.PUNCTUATION: 0.1,
    TokenFlag.STOPWORD: 0.25,
    TokenFlag.LINKING: 0.3,
    TokenFlag.SENTENCE_START: 0.1,
    TokenFlag.CLAUSE_PUNCTUATION: 0.1,
    TokenFlag.SPECIAL: 0.04,
}


def word_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class PlainEncoder(SimpleNamespace):
    """Facts of an encoder that has no vectors of its own."""

    def cut_to(self, dimensions: int | None) -> PlainEncoder:
        """Itself, for an index of whole vectors."""
        assert dimensions is None
        return self


def plain_encoder() -> Encoder:
    """What a filler needs of an encoder when queries are given as vectors."""
    facts = {
        "name": "plain",
        "spells_bytes": False,
        "fingerprint": "f",
        "tokenizer_fingerprint": "t",
        "max_input_tokens": 64,
        "query_masks": 2,
        "reads_jointly": False,
        "block_pooler": None,
    }
    return cast(Encoder, PlainEncoder(tokenizer=word_tokenizer(), similarity_scale=SCALE, **facts))


def packed_kept(positions: np.ndarray, token_count: int) -> np.ndarray:
    """A bit for each token of a shard, set at `positions`, u8 [ceil(T / 8)]."""
    kept = np.zeros(token_count, dtype=bool)  # [T]
    kept[positions] = True
    return pack_kept(kept)


def random_store(folder: Path, rng: np.random.Generator, *, block_count: int) -> BlockStore:
    """Documents of 1 to 30 random words with random flags, a block each."""
    documents = []
    for number, length in enumerate(rng.integers(1, 31, block_count)):
        flags = np.zeros(length, dtype=np.uint8)  # u8 [T]
        for flag, share in FLAG_SHARES.items():
            flags |= np.where(rng.random(length) < share, flag.value, 0).astype(np.uint8)
        token_ids = rng.integers(0, len(WORDS), length).astype(np.int32)  # [T]
        documents.append(spelled(token_ids, flags, [WORDS[each] for each in token_ids], identifier=f"d{number}"))
    return write_block_store(
        folder,
        documents,
        settings={},
        tokenizer_fingerprint="t",
        vocabulary_size=len(WORDS),
        special_tokens_in_blocks=True,
        tokens_per_shard=100,
    )


def random_index(
    folder: Path, rng: np.random.Generator, *, rule: PruningRule, settings: FillSettings, block_count: int = 14
) -> tuple[PhraseFiller, PlainCorpus]:
    """A filler over random blocks and random vectors of 5 dimensions, and the same as a plain corpus."""
    store = random_store(folder, rng, block_count=block_count)
    row_count = np.count_nonzero(kept_tokens(store.flags.slice(0, store.token_count), rule))
    vectors = rng.standard_normal((row_count, 5)).astype(np.float32)  # f32 [rows, 5]
    return index_of(store, vectors, rule=rule, settings=settings)


def index_of(
    store: BlockStore, vectors: np.ndarray, *, rule: PruningRule, settings: FillSettings
) -> tuple[PhraseFiller, PlainCorpus]:
    """A filler over `vectors` f32 [rows, d] of the tokens that `rule` keeps, and the same as a plain corpus."""
    flags = store.flags.slice(0, store.token_count)
    positions = np.flatnonzero(kept_tokens(flags, rule))
    index = PhraseIndex(
        folder=store.folder,
        manifest=IndexManifest(encoder=EncoderRecord("plain", "f", "t")),
        store=store,
        rows=RowMap([packed_kept(positions, store.token_count)], [store.token_count]),
        searcher=ExactSearcher(vectors),
        lexicon=BlockLexicon.of_store(store),
    )
    corpus = PlainCorpus(
        words=WORDS,
        token_ids=store.token_ids.slice(0, store.token_count).tolist(),
        flags=flags.tolist(),
        block_offsets=store.block_offsets.tolist(),
        row_positions=[at for at, flag in enumerate(flags.tolist()) if plain_kept(flag, rule)],
        vectors=vectors,
    )
    return PhraseFiller(index, plain_encoder(), settings), corpus


def random_queries(rng: np.random.Generator, count: int) -> QueryVectors:
    start, end = rng.standard_normal((2, count, 5)).astype(np.float32)  # f32 [count, 5] each
    return QueryVectors(start=start, end=end, cut=np.zeros(count, dtype=bool))
