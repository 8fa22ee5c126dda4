"""Fill and score against passages that are handed over, without an index.

Shapes: q texts, m candidate spans, T tokens of all passages in a row, c claims, n masked tokens of all claims,
d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np

from index.exact import ExactSearcher
from npm.core.errors import CorpusError, QueryError, SettingError
from npm.core.types import MASK_TEXT, Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.indexing.embed import kept_tokens
from npm.indexing.generation import IndexManifest
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rows import RowMap
from npm.indexing.settings import PruningRule
from npm.models.batches import encode_sequences
from npm.models.similarity import scaled_similarity
from npm.retrieval.filler import Filler
from npm.retrieval.passage_store import GivenWords, PassageCache, PassageStore, checked_passages
from npm.retrieval.queries import QueryVectors, check_query, checked_texts, encode_queries, place_of
from npm.retrieval.restriction import Restriction
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.spans import CandidateSpans, candidate_weights

if TYPE_CHECKING:
    from npm.indexing.phrase_index import DocumentFilter
    from npm.models.encoder import Encoder


SHARED_CACHE = PassageCache()
"""What fillers take passages from unless they are given another cache."""
SCORE_BYTES = 64 << 20
"""Similarities of texts with all tokens held at once, in float64."""
NO_CONTENT = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
"""Flags of tokens that say nothing of a claim."""


@dataclass(frozen=True, slots=True)
class PassageIndex(PhraseIndex):
    """Passages as an index in memory: no folder that could change, no encoder but the one that embeds them."""

    @property
    def is_current(self) -> bool:
        """Passages do not change."""
        return True

    def check_encoder(self, encoder: Encoder) -> Encoder:
        """Nothing to compare or cut: a `PassageIndex` has just been embedded with `encoder`."""
        return encoder


class PassageFiller(Filler):
    """Passages in memory with an encoder: fills texts from all of them, and scores words that are given."""

    def __init__(
        self,
        passages: Sequence[str | Document],
        encoder: Encoder,
        settings: FillSettings | None = None,
        *,
        cache: PassageCache = SHARED_CACHE,
    ) -> None:
        """Embeds what is not in `cache`. Raises CorpusError and SettingError as `PhraseFiller.over` does."""
        if not isinstance(settings, FillSettings | None):
            raise SettingError(f"settings must be FillSettings, got {settings!r}")
        settings = settings or FillSettings(retrieval=Retrieval.dense)
        _check_retrieval(settings)
        documents = checked_passages(passages)
        embedded = cache.embed(encoder, documents, tokens_per_batch=settings.tokens_per_batch)
        if not any(passage.blocks for passage in embedded):
            raise CorpusError(f"the encoder's tokenizer makes no token of the {len(documents)} passages: check them")
        store = PassageStore(documents, embedded)
        self._vectors = np.concatenate([passage.vectors for passage in embedded])  # f32 [T, d]
        kept = kept_tokens(store.flags.slice(0, store.token_count), PruningRule.without_stopwords)  # bool [T]
        index = PassageIndex(
            folder=store.folder,
            manifest=IndexManifest(),
            store=store,
            rows=RowMap.of_mask(kept),
            searcher=ExactSearcher(self._vectors[kept]),
            lexicon=None,
        )
        super().__init__(index, encoder, settings)

    @property
    def _counts(self) -> str:
        store = self.index.store
        return f"{store.document_count:,} passages, {store.token_count:,} tokens, {self.encoder.name}"

    @overload
    def score(self, texts: str, spans: str) -> float: ...

    @overload
    def score(self, texts: str | list[str] | tuple[str, ...], spans: list[str] | tuple[str, ...]) -> list[float]: ...

    def score(
        self, texts: str | list[str] | tuple[str, ...], spans: str | list[str] | tuple[str, ...]
    ) -> float | list[float]:
        """The probability that the words `spans` fill the `<mask>` of `texts`.

        A text and one span give a float; a text and a list of spans, or as many texts as spans, a list of floats. It is
        Σ over the places where the words stand in the passages, divided by the same sum over these and all candidate
        spans, both as `fill` weighs them; 0.0 where they do not stand there. So it is the score that `fill` gives the
        phrase, and words that `fill` would not answer, such as ones that begin with `the`, have one too. Words are
        the same whatever their case, Unicode form and the space between them. Words that are no candidate compete with
        the candidates and themselves alone, so the scores of several such words do not add up to one. With
        `normalisation=start_end` a score is no probability. In bfloat16 the second or third digit of a
        score depends on the texts and passages that are encoded in the same batch.

        Raises QueryError for a text that is not one question, for words that are none, or for unequal numbers.
        """
        several, words = checked_texts(texts, name="text"), checked_texts(spans, name="span")
        if not isinstance(texts, str) and (isinstance(spans, str) or len(several) != len(words)):
            given = ((texts, several), (spans, words))
            kinds = ("one string" if isinstance(one, str) else f"a list of {len(every)}" for one, every in given)
            raise QueryError(f"give one span for each text, or one text with several spans, got {' and '.join(kinds)}")
        for number, text in enumerate(several, start=1):
            check_query(text, where=place_of(number, len(several)))
        for number, span in enumerate(words, start=1):
            if not span.strip():
                raise QueryError(f"{place_of(number, len(words), 'span')} is empty")
        several = several * len(words) if isinstance(texts, str) else several
        unique = list(dict.fromkeys(several))
        vectors = encode_queries(self.encoder, unique, tokens_per_batch=self.settings.tokens_per_batch)
        asked: dict[str, list[int]] = {text: [] for text in unique}
        for number, text in enumerate(several):
            asked[text].append(number)
        scores = [0.0] * len(several)
        for text, similarities in zip(unique, self._similarities_of(vectors), strict=True):
            for number in asked[text]:
                scores[number] = self._score(words[number], similarities)
        return scores[0] if isinstance(spans, str) else scores

    @overload
    def score_claim(self, claims: str) -> float: ...

    @overload
    def score_claim(self, claims: list[str] | tuple[str, ...]) -> list[float]: ...

    def score_claim(self, claims: str | list[str] | tuple[str, ...]) -> float | list[float]:
        """How well the passages support each claim: the mean probability of its content tokens, each masked in turn.

        P(token) = Σ over the passages' tokens that equal it / Σ over all of them, each weighed as `fill` weighs a
        phrase of one token (Min et al. 2023, arXiv 2305.14251, §4.1, whose encoder asks with one mask).
        Content is what is neither a stop-word nor punctuation. In bfloat16 the second or third digit of a score depends
        on the claims and passages that are encoded in the same batch. Raises QueryError for a claim without any
        content, with a mask, that is no text, or that is longer than the encoder takes.
        """
        several = checked_texts(claims, name="claim")
        for number, claim in enumerate(several, start=1):
            if MASK_TEXT in claim:
                raise QueryError(
                    f"{place_of(number, len(several), 'claim')} must not have {MASK_TEXT}, got {claim[:80]!r}; "
                    "`score` takes a text with a mask and words for it"
                )
        masks = ClaimMasks.of(several, self.encoder)
        vectors = masks.encode(self.encoder, tokens_per_batch=self.settings.tokens_per_batch)
        store = self.index.store
        blocks = np.repeat(np.arange(store.block_count), np.diff(store.block_offsets))  # i64 [T]
        of_text = (store.flags.slice(0, store.token_count) & TokenFlag.SPECIAL.value) == 0  # bool [T], not of titles
        places = np.flatnonzero(np.isin(blocks, self._allowed_blocks) & of_text)  # i64 [n], the tokens of these blocks
        token_ids = store.token_ids.take(places)  # i32 [n]
        spans = _spans(places, np.ones_like(places))
        scores = np.zeros(len(masks.token_ids))  # f64 [masked tokens]
        for number, similarities in enumerate(self._similarities_of(vectors)):
            weights = self._weights(similarities, spans, places)  # f64 [n]
            scores[number] = weights[token_ids == masks.token_ids[number]].sum()
        means = masks.means(scores)
        return means[0] if isinstance(claims, str) else means

    def _restrictions(
        self,
        texts: Sequence[str],  # noqa: ARG002
        vectors: QueryVectors,
        settings: FillSettings,
        *,
        document_filter: DocumentFilter,
        blocks: np.ndarray | None,
    ) -> list[Restriction | None]:
        """All blocks that may be looked in, whatever their number: nothing is left to the best rows."""
        _check_retrieval(settings)
        blocks = document_filter.allowed(np.arange(self.index.store.block_count) if blocks is None else blocks)
        return [Restriction(blocks, np.zeros(len(blocks)))] * len(vectors.start)

    def _blocks_holding(self, phrase: str) -> np.ndarray:
        """The blocks i64 [n] in which `phrase` stands, as `score` finds it."""
        return np.unique(self.index.store.block_of(self._given_words.find(phrase)[0]))

    def _score(self, words: str, similarities: np.ndarray) -> float:
        """The score of `words` by the similarities f64 [2, T] of one text with all tokens."""
        starts, lengths = self._given_words.find(words)  # i64 [n] each
        allowed = np.isin(self.index.store.block_of(starts), self._allowed_blocks)  # bool [n]
        starts, lengths = starts[allowed], lengths[allowed]
        if len(starts) == 0:
            return 0.0
        spans, numbers = self._candidates
        given = self._span_numbers(starts, lengths)  # i64 [n]
        places = np.minimum(np.searchsorted(numbers, given), len(numbers) - 1) if len(numbers) else starts  # i64 [n]
        further = numbers[places] != given if len(numbers) else np.ones(len(given), dtype=bool)  # bool [n]
        # What `fill` would not answer stands behind the candidates.
        places = np.append(places[~further], len(numbers) + np.arange(further.sum()))  # i64 [n]
        spans = _spans(np.append(spans.starts, starts[further]), np.append(spans.lengths, lengths[further]))
        weights = self._weights(similarities, spans, self._hits)  # f64 [m + further]
        return float(weights[places].sum())

    def _weights(self, similarities: np.ndarray, spans: CandidateSpans, hits: np.ndarray) -> np.ndarray:
        """What each span counts, f64 [m], by the similarities f64 [2, T] of one text; `hits` i64 [n] as in a search."""
        return candidate_weights(
            lambda side, rows: similarities[side, rows], spans, (hits, hits), self.settings.scoring
        )

    def _span_numbers(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """A number of its own for each span, i64 [n]."""
        return starts * (self.index.store.token_count + 1) + lengths

    def _similarities_of(self, vectors: QueryVectors) -> Iterator[np.ndarray]:
        """For each text the scaled similarities f64 [2, T] of its start and end query with all tokens."""
        factor = self.similarity_factor(self.settings.scoring)
        texts_at_once = max(1, SCORE_BYTES // (2 * 8 * len(self._vectors)))
        for first in range(0, len(vectors.start), texts_at_once):
            stop = first + texts_at_once
            pairs = np.stack([vectors.start[first:stop], vectors.end[first:stop]], axis=1)  # f32 [q, 2, d]
            products = pairs.reshape(-1, pairs.shape[2]) @ self._vectors.T  # f32 [2 q, T]
            scaled = scaled_similarity(products.astype(np.float64), factor)  # f64 [2 q, T]
            yield from scaled.reshape(len(pairs), 2, -1)  # f64 [q, 2, T]

    @cached_property
    def _given_words(self) -> GivenWords:
        return GivenWords(self.index.store)

    @cached_property
    def _allowed_blocks(self) -> np.ndarray:
        """The blocks i64 [blocks] of the documents that the settings name."""
        return self._document_filter(self.settings).allowed(np.arange(self.index.store.block_count))

    @cached_property
    def _hits(self) -> np.ndarray:
        """The positions i64 [n] of the tokens that a phrase may begin or end with."""
        offsets = self.index.store.block_offsets
        rows = self.index.rows.rows_within(offsets[self._allowed_blocks], offsets[self._allowed_blocks + 1])
        return self.index.rows.positions(rows)

    @cached_property
    def _candidates(self) -> tuple[CandidateSpans, np.ndarray]:
        """All spans that `fill` may answer, and their numbers i64 [m], ascending.

        Their rows are token positions, since here each token has a vector.
        """
        found = self.span_finder(self.settings).find(self.index.rows.rows_at(self._hits)[0], None)
        numbers = self._span_numbers(found.starts, found.lengths)  # i64 [m]
        order = np.argsort(numbers)  # i64 [m]
        return _spans(found.starts[order], found.lengths[order]), numbers[order]


def _spans(starts: np.ndarray, lengths: np.ndarray) -> CandidateSpans:
    """Spans i64 [m] whose rows are the positions of their ends."""
    return CandidateSpans(
        starts=starts,
        lengths=lengths,
        start_rows=starts,
        end_rows=starts + lengths - 1,
        hashes=np.zeros(len(starts), dtype=np.uint64),
    )


def _check_retrieval(settings: FillSettings) -> None:
    if settings.retrieval is not Retrieval.dense:
        raise SettingError(
            f"retrieval must be dense for passages, got {settings.retrieval.value}; or build an index over them"
        )


@dataclass(frozen=True, slots=True)
class ClaimMasks:
    """Each content token of each claim behind a mask pair, or behind one mask where the encoder asks so."""

    inputs: tuple[np.ndarray, ...]  # n sequences of token ids i64, special tokens included
    slots: np.ndarray  # i64 [n], where the masks begin
    token_ids: np.ndarray  # i64 [n], what was masked
    offsets: np.ndarray  # i64 [c + 1]; claim i has the masked tokens [offsets[i], offsets[i + 1])

    @classmethod
    def of(cls, claims: Sequence[str], encoder: Encoder) -> ClaimMasks:
        """Raises QueryError for a claim without content tokens, or with more tokens than the encoder takes."""
        specials = len(encoder.prefix_ids) + len(encoder.suffix_ids)
        room = encoder.max_input_tokens - specials - (encoder.query_masks - 1)
        packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=room + specials))
        inputs: list[np.ndarray] = []
        slots: list[int] = []
        token_ids: list[int] = []
        offsets = [0]
        packed = packer.pack_many([Document(id="", title="", text=claim) for claim in claims])
        masks = np.full(encoder.query_masks, encoder.mask_id, dtype=np.int64)
        for number, blocks in enumerate(packed):
            where = place_of(number + 1, len(claims), "claim")
            if len(blocks) > 1:
                raise QueryError(
                    f"{where} must have at most {room} tokens, got {sum(len(block.token_ids) for block in blocks)}; "
                    "split it into sentences"
                )
            # Pieces within a word are content too.
            places = (
                np.flatnonzero((blocks[0].flags & NO_CONTENT) == 0) if blocks else np.zeros(0, dtype=np.int64)
            )  # i64 [own]
            if len(places) == 0:
                raise QueryError(f"{where} must have a word that is not a stop-word, got {claims[number][:80]!r}")
            ids = blocks[0].token_ids.astype(np.int64)  # i64 [tokens of the claim]
            for place in places.tolist():
                rest = (encoder.prefix_ids, ids[:place], masks, ids[place + 1 :], encoder.suffix_ids)
                inputs.append(np.concatenate([np.asarray(part, dtype=np.int64) for part in rest]))
                slots.append(len(encoder.prefix_ids) + place)
                token_ids.append(int(ids[place]))
            offsets.append(len(inputs))
        return cls(tuple(inputs), np.array(slots, dtype=np.int64), np.array(token_ids), np.array(offsets))

    def encode(self, encoder: Encoder, *, tokens_per_batch: int) -> QueryVectors:
        """The start and end query f32 [n, d] of each masked token."""
        places = self.slots[:, None] + [0, encoder.query_masks - 1]  # i64 [n, 2]
        encoded = encode_sequences(encoder, self.inputs, list(places), tokens_per_batch=tokens_per_batch)
        queries = np.array(encoded, dtype=np.float32).reshape(-1, 2, encoder.dimensions)  # f32 [n, 2, d]
        start, end = queries.swapaxes(0, 1).copy()  # f32 [n, d] each
        return QueryVectors(start=start, end=end, cut=np.zeros(len(encoded), dtype=bool))

    def means(self, scores: np.ndarray) -> list[float]:
        """The mean of each claim's `scores` f64 [n]: c numbers."""
        return [float(own.mean()) for own in np.split(scores, self.offsets[1:-1])] if len(self.offsets) > 1 else []
