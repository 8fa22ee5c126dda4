"""Passages with vectors that a test chooses, and the scoring of given words as plain loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.indexing.settings import PruningRule
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.passage_store import EmbeddedPassage, PassageCache
from npm.retrieval.passages import PassageIndex, passage_index
from npm.retrieval.settings import FillSettings, ScoringSettings
from tests.helpers.stores import token_places
from tests.retrieval.plain_filling import PlainCorpus, plain_kept, plain_span_allowed

WORDS = ["the", "of", "Rome", "rome", "Oslo", "Seine", ".", ",", "fell", "and", "New", "York", "-", "is"]
SCALE = 0.7
BLOCK_TOKENS = 12


def token_encoder(*, similarity_scale: float = SCALE) -> Encoder:
    """What a filler needs of an encoder when vectors are given: each of the `WORDS` is a token."""
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    facts = {
        "name": "tokens",
        "similarity_scale": similarity_scale,
        "query_masks": 2,
        "spells_bytes": False,
        "title_tokens": 0,
        "max_input_tokens": 64,
    }
    return cast(Encoder, SimpleNamespace(tokenizer=tokenizer, **facts))


class ChosenVectors(PassageCache):
    """Embeds each token by a function of its text."""

    def __init__(self, vector_of: Callable[[str], np.ndarray], *, block_tokens: int = BLOCK_TOKENS) -> None:
        super().__init__()
        self._vector_of = vector_of
        self._block_tokens = block_tokens

    def embed(self, encoder: Encoder, documents: Sequence[Document], *, tokens_per_batch: int) -> list[EmbeddedPassage]:
        packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=self._block_tokens))
        passages = []
        for document in documents:
            blocks = packer.pack(document)
            vectors = []
            for block in blocks:
                places = zip(block.start_chars.tolist(), block.end_chars.tolist(), strict=True)
                vectors += [self._vector_of(document.text[start:end]) for start, end in places]
            passages.append(EmbeddedPassage(tuple(blocks), np.array(vectors, dtype=np.float32)))
        return passages


def chosen_filler(
    texts: Sequence[str | Document], encoder: Encoder, settings: FillSettings, cache: PassageCache
) -> PhraseFiller:
    """A filler over passages with the vectors of `cache`."""
    index = passage_index(texts, encoder, tokens_per_batch=settings.tokens_per_batch, cache=cache)
    return PhraseFiller(index, encoder, settings)


def plain_corpus(filler: PhraseFiller) -> tuple[PlainCorpus, list[str]]:
    """The tokens of a filler's passages one by one, and the surface text of each."""
    store = filler.index.store
    assert isinstance(filler.index, PassageIndex)
    flags = store.flags.arrays[0].tolist()
    documents = [
        store.block_documents[block] for block, length in enumerate(np.diff(store.block_offsets)) for _ in range(length)
    ]
    chars = zip(*(side.tolist() for side in token_places(store)), strict=True)
    surfaces = [store.document(int(document)).text[a:b] for document, (a, b) in zip(documents, chars, strict=True)]
    corpus = PlainCorpus(
        words=[],
        token_ids=store.token_ids.arrays[0].tolist(),
        flags=flags,
        block_offsets=store.block_offsets.tolist(),
        row_positions=[at for at, flag in enumerate(flags) if plain_kept(flag, PruningRule.without_stopwords)],
        vectors=filler.index.token_vectors,
    )
    return corpus, surfaces


def plain_text(filler: PhraseFiller, start: int, length: int) -> str:
    """The text of a span, case-folded, each run of space one."""
    store = filler.index.store
    block = max(number for number, first in enumerate(store.block_offsets.tolist()[:-1]) if first <= start)
    text = store.document(int(store.block_documents[block])).text
    starts, ends = token_places(store)
    chars = slice(int(starts[start]), int(ends[start + length - 1]))
    return re.sub(r"\s+", " ", text[chars].casefold())


def plain_score(
    filler: PhraseFiller, span: str, start_query: np.ndarray, end_query: np.ndarray, settings: FillSettings
) -> float:
    """The score of given words, one span after the other."""
    corpus, _ = plain_corpus(filler)
    scoring = settings.scoring
    factor = filler.encoder.similarity_scale / scoring.temperature
    s = [factor * float(vector @ start_query) for vector in corpus.vectors.astype(np.float64)]
    t = [factor * float(vector @ end_query) for vector in corpus.vectors.astype(np.float64)]
    candidates, given = set(), set()
    for start in range(len(s)):
        for length in range(1, BLOCK_TOKENS + 1):
            last = start + length - 1
            if last >= len(s) or corpus.block_of(start) != corpus.block_of(last):
                break
            if length <= settings.max_phrase_tokens and plain_span_allowed(corpus, start, length, scoring):
                candidates.add((start, length))
            # Each token is a word of its own here.
            if plain_text(filler, start, length) == re.sub(r"\s+", " ", span.casefold()).strip():
                given.add((start, length))
    spans = sorted(candidates | given)
    weights = {span: _weight(span, s, t, scoring) for span in spans}
    if not scoring.reference:
        return sum(weights[span] for span in given) / sum(weights.values()) if given else 0.0
    hits = set(corpus.row_positions)
    starts = sum(np.exp(s[at]) for at in hits | {start for start, _ in spans})
    ends = sum(np.exp(t[at]) for at in hits | {start + length - 1 for start, length in spans})
    return float(sum(_weight(span, s, t, scoring, starts, ends) for span in given))


def _weight(
    span: tuple[int, int],
    s: Sequence[float],
    t: Sequence[float],
    scoring: ScoringSettings,
    starts: float = 1.0,
    ends: float = 1.0,
) -> float:
    start, length = span
    p, q = np.exp(s[start]) / starts, np.exp(t[start + length - 1]) / ends
    joined = p + q if scoring.reference else p * q
    return float(joined * length**scoring.length_exponent)
