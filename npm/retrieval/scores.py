"""Scores of given words against passages in memory: of words for a mask, and of the words of a claim.

Shapes: q texts, m candidate spans, T tokens of all passages in a row, c claims, n masked tokens of all claims,
d dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import QueryError, SettingError, place_of
from npm.core.types import MASK_TEXT, Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.models.batches import encode_sequences
from npm.retrieval.passages import PassageIndex
from npm.retrieval.queries import MaskNeighbors, Texts, checked_texts, encode_queries, read_queries, sentences_of
from npm.retrieval.search import candidate_weights, similarity_factor
from npm.retrieval.spans import CandidateSpans, SpanFinder

if TYPE_CHECKING:
    from npm.indexing.phrase_index import DocumentFilter, PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.settings import FillSettings

SCORE_BYTES = 64 << 20
"""Similarities of texts with all tokens held at once, in float64."""
NO_CONTENT = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
"""Flags of tokens without content."""


class PassageScores:
    """Scores of given words against all passages of an index in memory."""

    def __init__(
        self,
        index: PhraseIndex,
        encoder: Encoder,
        settings: FillSettings,
        finder: SpanFinder,
        allowed: DocumentFilter,
    ) -> None:
        """`finder` finds the candidates of `settings`, in the blocks that are `allowed`.

        Raises SettingError for an index that is not of passages in memory.
        """
        if not isinstance(index, PassageIndex):
            raise SettingError("only passages in memory score given words: open them by PhraseFiller.over")
        self.index, self.encoder, self.settings, self._finder = index, encoder, settings, finder
        self._allowed_blocks = allowed.allowed(np.arange(index.store.block_count))  # i64 [blocks]
        self._candidates = lru_cache(maxsize=4)(self._find_candidates)

    def score(self, texts: str | Texts, spans: str | Texts) -> list[float]:
        """The probability that the words `spans` fill the `<mask>` of `texts`.

        Of one text with one span or several, or of as many texts as spans. It is
        Σ over the positions where the words occur in the passages, divided by the same sum over these and all candidate
        spans, both as `fill` weighs them; 0.0 where they do not occur. So it is the score that `fill` gives the
        phrase with retrieval=dense and overlaps=keep, and words that are never answers, such as ones that begin with
        `the`, have one too. Words are the same for any case, Unicode form and space between them. Words that are not
        candidates compete with the candidates and themselves alone, so the scores of several such words do not add up
        to one. With `scoring.reference` a score is not a probability. In bfloat16 the second or third digit of a score
        depends on the texts and passages that are encoded in the same batch.

        Raises QueryError for a text that is not one question, for words that are not text, or for unequal numbers.
        """
        several = [query.text for query in read_queries(texts)]
        words = checked_texts(spans, name="span")
        if not isinstance(texts, str) and (isinstance(spans, str) or len(several) != len(words)):
            counts = f"{len(several)} texts and {'one string' if isinstance(spans, str) else f'{len(words)} spans'}"
            raise QueryError(f"give one span for each text, or one text with several spans, got {counts}")
        several = several * len(words) if isinstance(texts, str) else several
        unique = list(dict.fromkeys(several))
        sentences = sentences_of(unique, self.settings)
        vectors = encode_queries(self.encoder, sentences, tokens_per_batch=self.settings.tokens_per_batch)
        scores = [0.0] * len(words)
        pairs = np.stack([vectors.start, vectors.end], axis=1)  # f32 [q, 2, d]
        for text, similarities in zip(unique, self._similarities_of(pairs), strict=True):
            candidates = self._candidates(MaskNeighbors.of(text, self.encoder))  # i64 [m]
            for number in (number for number, own in enumerate(several) if own == text):
                scores[number] = self._score(words[number], similarities, candidates)
        return scores

    def score_claim(self, claims: str | Texts) -> list[float]:
        """Support of each claim by the passages: the mean probability of its content tokens, masked in turn.

        P(token) = Σ over the passages' tokens that equal it / Σ over all of them, each weighed as `fill` weighs a
        phrase of one token (Min et al. 2023, arXiv 2305.14251, §4.1, whose encoder has one mask).
        Content tokens are neither stop-words nor punctuation. In bfloat16 the second or third digit of a score depends
        on the claims and passages that are encoded in the same batch. Raises QueryError for a claim without any
        content, with a mask, that is not a text, or that is longer than the encoder takes.
        """
        several = checked_texts(claims, name="claim")
        inputs, slots, masked, counts = masked_claims(several, self.encoder)
        tokens = self.settings.tokens_per_batch
        encoded = encode_sequences(self.encoder, inputs, slots, tokens_per_batch=tokens).vectors  # n of f32 [2, d]
        store = self.index.store
        blocks = np.repeat(np.arange(store.block_count), np.diff(store.block_offsets))  # i64 [T]
        of_text = (store.flags.slice(0, store.token_count) & TokenFlag.SPECIAL.value) == 0  # bool [T], not of titles
        places = np.flatnonzero(np.isin(blocks, self._allowed_blocks) & of_text)  # i64 [m], the tokens of these blocks
        token_ids, spans = store.token_ids.take(places), _spans(places, np.ones_like(places))  # i32 [m]
        scores = []
        pairs = np.array(encoded, dtype=np.float32).reshape(-1, 2, self.encoder.dimensions)  # f32 [n, 2, d]
        for token, similarities in zip(masked, self._similarities_of(pairs), strict=True):
            scores.append(self._weights(similarities, spans, places)[token_ids == token].sum())
        offsets = itertools.pairwise(np.cumsum([0, *counts]).tolist())
        return [float(np.mean(scores[first:stop])) for first, stop in offsets]

    def _score(self, words: str, similarities: np.ndarray, candidates: np.ndarray) -> float:
        """The score of `words` among `candidates` i64 [m], by the similarities f64 [2, T] of a text with all tokens."""
        starts, lengths = self.index.given_words.find(words)  # i64 [n] each
        given = self._span_numbers(starts, lengths)  # i64 [n]
        given = given[np.isin(self.index.store.block_of(starts), self._allowed_blocks)]
        if len(given) == 0:
            return 0.0
        numbers = np.union1d(candidates, given)  # i64 [m]
        spans = _spans(*np.divmod(numbers, self.index.store.token_count + 1))
        weights = self._weights(similarities, spans, self._hits)  # f64 [m]
        return float(weights[np.searchsorted(numbers, given)].sum())

    def _weights(self, similarities: np.ndarray, spans: CandidateSpans, hits: np.ndarray) -> np.ndarray:
        """Weight of each span, f64 [m], by the similarities f64 [2, T] of one text; `hits` i64 [n] as in a search."""
        return candidate_weights(
            lambda side, rows: similarities[side, rows], spans, (hits, hits), self.settings.scoring
        )

    def _span_numbers(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """A unique number for each span, i64 [n]."""
        return starts * (self.index.store.token_count + 1) + lengths

    def _similarities_of(self, pairs: np.ndarray) -> Iterator[np.ndarray]:
        """The scaled similarities f64 [2, T] of each pair of queries f32 [q, 2, d] with all tokens."""
        factor = similarity_factor(self.encoder, self.settings.scoring)
        pairs_at_once = max(1, SCORE_BYTES // (2 * 8 * len(self.index.token_vectors)))
        for first in range(0, len(pairs), pairs_at_once):
            batch = pairs[first : first + pairs_at_once].reshape(-1, pairs.shape[2])  # f32 [2 batch, d]
            scaled = (batch @ self.index.token_vectors.T).astype(np.float64) * factor  # f64 [2 batch, T]
            yield from scaled.reshape(len(batch) // 2, 2, -1)  # f64 [batch, 2, T]

    @cached_property
    def _hits(self) -> np.ndarray:
        """The positions i64 [n] of the tokens that a phrase may begin or end with."""
        offsets = self.index.store.block_offsets
        rows = self.index.rows.rows_within(offsets[self._allowed_blocks], offsets[self._allowed_blocks + 1])
        return self.index.rows.positions(rows)

    def _find_candidates(self, neighbors: MaskNeighbors) -> np.ndarray:
        """The numbers i64 [m] of all spans that `fill` may answer for a mask between `neighbors`."""
        found = self._finder.find(self.index.rows.rows_at(self._hits)[0], None, neighbors)
        return self._span_numbers(found.starts, found.lengths)


def _spans(starts: np.ndarray, lengths: np.ndarray) -> CandidateSpans:
    """Spans i64 [m] whose rows are the positions of their ends, since here each token has a vector."""
    return CandidateSpans(starts, lengths, starts, starts + lengths - 1, np.zeros(len(starts), dtype=np.uint64))


def masked_claims(
    claims: Sequence[str], encoder: Encoder
) -> tuple[list[np.ndarray], list[np.ndarray], list[int], list[int]]:
    """Each content token of each claim behind a mask pair, or one mask for one-mask encoders.

    Gives n sequences of token ids i64, the positions of the first and the last mask in each, i64 [2], the masked token,
    and the number of the n of each claim. Raises QueryError for a claim with a mask, without content tokens, or with
    more tokens than the encoder takes.
    """
    specials = len(encoder.prefix_ids) + len(encoder.suffix_ids)
    room = encoder.max_input_tokens - specials - (encoder.query_masks - 1)
    packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=room + specials))
    inputs: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    masked: list[int] = []
    counts: list[int] = []
    packed = packer.pack_many([Document(id="", title="", text=claim) for claim in claims])
    for number, (claim, blocks) in enumerate(zip(claims, packed, strict=True), start=1):
        where = place_of(number, len(claims), "claim")
        if MASK_TEXT in claim:
            raise QueryError(
                f"{where} must not have {MASK_TEXT}, got {claim[:80]!r}; `score` takes a text with a mask and words "
                "for it"
            )
        if len(blocks) > 1:
            raise QueryError(
                f"{where} must have at most {room} tokens, got {sum(len(block.token_ids) for block in blocks)}; "
                "split it into sentences"
            )
        # Pieces within a word are content too.
        places = np.flatnonzero((blocks[0].flags & NO_CONTENT) == 0).tolist() if blocks else []
        if not places:
            raise QueryError(f"{where} must have a word that is not a stop-word, got {claim[:80]!r}")
        ids = blocks[0].token_ids.tolist()
        for place in places:
            masks = [encoder.mask_id] * encoder.query_masks
            sequence = [*encoder.prefix_ids, *ids[:place], *masks, *ids[place + 1 :], *encoder.suffix_ids]
            inputs.append(np.array(sequence, dtype=np.int64))
            slots.append(len(encoder.prefix_ids) + place + np.array([0, encoder.query_masks - 1]))
            masked.append(ids[place])
        counts.append(len(places))
    return inputs, slots, masked, counts
