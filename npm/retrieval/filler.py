"""What all fillers share: texts are encoded, and their hits grown into spans, weighed and put together as phrases.

Shapes: q texts, m candidate spans of one mask, n rows, d dimensions, k hits a query.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, overload

import numpy as np

from npm.core.errors import SettingError
from npm.core.settings import checked
from npm.core.types import Answer, JointAnswer, MaskPhrases, Phrase, Sentence
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex, select
from npm.models.encoder import Encoder
from npm.retrieval.answers import SurfaceReader, ranked_phrases, without_overlaps
from npm.retrieval.blocks import rank_blocks, ranking_notes, reason_for_few, sentence_pooler, vector_share
from npm.retrieval.joint_filling import joint_fillings, texts_with_one_mask
from npm.retrieval.literal import with_literal_evidence
from npm.retrieval.queries import (
    MaskNeighbors,
    QueryVectors,
    check_masked_text,
    check_query,
    checked_texts,
    encode_queries,
    place_of,
    query_notes,
)
from npm.retrieval.reading import joint_share, reading_notes
from npm.retrieval.reranking import before_reranking, rerank, rerank_pooler
from npm.retrieval.restriction import Restriction
from npm.retrieval.scoring import Combination, ScoringSettings
from npm.retrieval.sentences import SENTENCE_BLOCKS, SENTENCE_PHRASES, check_sentences, ranked_sentences
from npm.retrieval.settings import (
    MAX_PHRASES,
    FillOptions,
    FillSettings,
    Overlaps,
    closed_error,
    given_options,
)
from npm.retrieval.spans import ScannedSimilarities, SpanFinder, candidate_weights, digit_tokens

if TYPE_CHECKING:
    from index.types import Hits, Scan


OVERLAPS_LOOKED_AT, PHRASES_PER_ENTRY = 20, 5
"""Phrases looked at beyond `k`, and for each entry, at least: there are `k` entries where the corpus has as many."""


def searched(settings: FillSettings, *, reranked: bool) -> tuple[FillSettings, FillSettings, FillSettings]:
    """How phrases are put together for an answer, looked for before that, and looked for each of several masks."""
    merges = settings.overlaps is Overlaps.merge
    looked_at = max(settings.k + OVERLAPS_LOOKED_AT, settings.k * PHRASES_PER_ENTRY)
    count = min(looked_at, MAX_PHRASES) if merges else settings.k
    # Fillings are made of more phrases than are shown, so that k does not decide which is the best.
    together = replace(settings, k=max(count, settings.beam_width), occurrences=max(settings.occurrences, 1))
    shown = replace(together, k=count) if merges else settings
    return shown, before_reranking(shown) if reranked else shown, together


class Filler(ABC):
    """Fills texts with phrases; a subclass says which blocks each text is answered from."""

    _opened: tuple[PhraseIndex, Encoder] | None = None  # None once it is closed

    def __init__(self, phrase_index: PhraseIndex, encoder: Encoder, settings: FillSettings | None = None) -> None:
        """Raises ArtifactError if `encoder` is not the one that made the index, SettingError for other settings."""
        if not isinstance(settings, FillSettings | None):
            raise SettingError(f"settings must be FillSettings, got {settings!r}")
        self.settings = settings or FillSettings()
        self._use(phrase_index, encoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        counts = self._counts if self._opened is not None else "closed"
        return f"{type(self).__name__}({counts})"

    def __reduce__(self) -> NoReturn:
        # what is behind it are mapped files and a model; a copy would have to find them again
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: open another one in each process")

    def close(self) -> None:
        """Answer nothing from now on; what was opened goes with this filler, when no other thread fills with it."""
        self._opened = None

    @property
    def index(self) -> PhraseIndex:
        """What answers. Raises SettingError if this filler was closed."""
        return self._both[0]

    @property
    def encoder(self) -> Encoder:
        """What encodes the texts. Raises SettingError if this filler was closed."""
        return self._both[1]

    @property
    def _both(self) -> tuple[PhraseIndex, Encoder]:
        if self._opened is None:
            raise closed_error(self)
        return self._opened

    @property
    def _counts(self) -> str:
        """What answers, in words."""
        live, store = self.index.live_documents, self.index.store
        count = store.document_count if live is None else int(np.count_nonzero(live))
        return f"{str(self.index.folder)!r}, {count:,} documents, {store.token_count:,} tokens, {self.encoder.name}"

    def _use(self, phrase_index: PhraseIndex, encoder: Encoder) -> None:
        """Answer from `phrase_index` from now on."""
        self._opened = phrase_index, phrase_index.check_encoder(encoder)
        self._reader = SurfaceReader(phrase_index.store, encoder.tokenizer)
        self._digit_tokens = digit_tokens(encoder.tokenizer)
        self._filtered: tuple[tuple[tuple[str, ...] | None, tuple[str, ...]], DocumentFilter] | None = None

    def refresh(self) -> bool:
        """Open the present generation of the index if it is another one than that in use; returns whether it was."""
        if self.index.is_current:
            return False
        self._use(PhraseIndex.open(self.index.folder), self.encoder)
        return True

    @overload
    def fill(
        self,
        texts: str,
        k: int | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        **options: Unpack[FillOptions],
    ) -> Answer: ...

    @overload
    def fill(
        self,
        texts: list[str] | tuple[str, ...],
        k: int | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        **options: Unpack[FillOptions],
    ) -> list[Answer]: ...

    def fill(
        self,
        texts: str | list[str] | tuple[str, ...],
        k: int | None = None,
        *,
        blocks: Sequence[int] | np.ndarray | None = None,
        **options: Unpack[FillOptions],
    ) -> Answer | list[Answer]:
        """The best phrases for each text with `<mask>`; an Answer for a text, a list for several.

        A text with several masks gets a JointAnswer, with phrases for each mask and fillings of all of them together.

        `k`, `occurrences`, `retrieval`, `documents` (ids of the only documents to answer from; [] means none) and
        `where` (conditions on kept fields) stand in for the settings unless they are None; `blocks` are the numbers of
        the only blocks to look in, for all texts, by vectors alone. All texts are checked before any is answered:
        raises QueryError for one that is none, is empty, broken, or has no mask, more than MOST_MASKS, or masks too far
        apart for the encoder; SettingError for a setting of another kind or one that cannot be met.
        """
        several = checked_texts(texts, name="text")
        for number, text in enumerate(several, start=1):
            check_masked_text(self.encoder, text, where=place_of(number, len(several)))
        settings = replace(self.settings, **given_options(k=k, **options))
        allowed = None if blocks is None else self._checked_blocks(blocks)
        answers = self._filled(several, settings, allowed)
        return answers[0] if isinstance(texts, str) else answers

    def _filled(self, texts: Sequence[str], settings: FillSettings, blocks: np.ndarray | None) -> list[Answer]:
        pooler = sentence_pooler(self.index, settings) if blocks is None else None
        vectors = encode_queries(self.encoder, texts, pooler=pooler, tokens_per_batch=settings.tokens_per_batch)
        return self.fill_encoded(texts, vectors, settings=settings, blocks=blocks)

    def sentences(self, texts: Sequence[str], k: int | None = None) -> list[tuple[Sentence, ...]]:
        """The `k` best sentences for each text with one `<mask>`, and the phrases of its answer inside them.

        The best blocks with `retrieval=dense` are those by shared words. Raises QueryError as `fill` does, SettingError
        for an index without text and a `k` out of range.
        """
        settings = self.settings if k is None else replace(self.settings, k=k)
        check_sentences(self.index)
        several = checked_texts(texts, name="text")
        for number, text in enumerate(several, start=1):
            check_query(text, where=place_of(number, len(several)))
        wider = replace(settings, bm25_blocks=max(settings.bm25_blocks, SENTENCE_BLOCKS))
        pooler = sentence_pooler(self.index, wider)
        vectors = encode_queries(self.encoder, several, pooler=pooler, tokens_per_batch=settings.tokens_per_batch)
        allowed = self._document_filter(settings).blocks
        return ranked_sentences(
            self.index,
            self.encoder,
            self.fill_encoded(several, vectors, settings=replace(settings, k=SENTENCE_PHRASES, occurrences=1)),
            rank_blocks(self.index, several, vectors.sentences, wider, allowed=allowed),
            vectors.sentences,
            pooler=pooler,
            share=vector_share(self.index, wider),
            k=settings.k,
        )

    def fill_encoded(
        self,
        texts: Sequence[str],
        vectors: QueryVectors,
        *,
        settings: FillSettings | None = None,
        blocks: np.ndarray | None = None,
    ) -> list[Answer]:
        """Answers for texts that are checked, and encoded with the `sentence_pooler` of index and settings.

        A text with several masks gets a JointAnswer. `blocks` as in `fill`, ascending i64.
        """
        settings = self.settings if settings is None else settings
        allowed = self._document_filter(settings)
        restrictions: list[Restriction | None]
        if settings.documents == []:
            restrictions = [Restriction(np.zeros(0, dtype=np.int64), np.zeros(0))] * len(vectors.start)
        else:
            restrictions = self._restrictions(texts, vectors, settings, document_filter=allowed, blocks=blocks)
        pooler = rerank_pooler(settings, self.encoder) if blocks is None else None
        shown, alone, together = searched(settings, reranked=pooler is not None)
        counts = np.diff(vectors.offsets).tolist()
        asked = vectors.per_mask(
            [(text, alone if count == 1 else together) for text, count in zip(texts, counts, strict=True)]
        )
        phrases = self._phrases_of_masks(asked, vectors, restrictions, allowed)
        if pooler is not None:
            single = np.flatnonzero(vectors.per_mask([count == 1 for count in counts])).tolist()
            first = [(asked[number][0], phrases[number]) for number in single]
            for number, again in zip(single, rerank(self.encoder, pooler, first, shown), strict=True):
                phrases[number] = again
        found = zip(phrases, restrictions, strict=True)
        return [
            self._answer(text, list(itertools.islice(found, count)), cut, settings, blocks)
            for text, count, cut in zip(texts, counts, vectors.cut.tolist(), strict=True)
        ]

    def _phrases_of_masks(
        self,
        asked: Sequence[tuple[str, FillSettings]],
        vectors: QueryVectors,
        restrictions: Sequence[Restriction | None],
        document_filter: DocumentFilter,
    ) -> list[tuple[Phrase, ...]]:
        """The phrases for each mask, of which `asked` has the text and how it is filled."""
        phrases: list[tuple[Phrase, ...]] = [()] * len(asked)
        unrestricted = [number for number, restriction in enumerate(restrictions) if restriction is None]
        masks_per_scan = max(1, self.index.searcher.max_queries_per_scan // 2)
        for first in range(0, len(unrestricted), masks_per_scan):
            batch = unrestricted[first : first + masks_per_scan]
            stacked = np.concatenate([vectors.start[batch], vectors.end[batch]])  # f32 [2 * batch, d]
            scan = self.index.searcher.scan(stacked, document_filter.rows)
            wanted = asked[batch[0]][1].candidates_per_side or self.index.candidates_per_side
            hits = scan.top(min(wanted, len(self.index.rows)))
            for place, number in enumerate(batch):
                text, settings = asked[number]
                pair = (place, len(batch) + place)
                phrases[number] = self.phrases_of_hits(text, scan, hits, queries=pair, settings=settings)
        for number, restriction in enumerate(restrictions):
            if restriction is not None and len(restriction.blocks):
                text, settings = asked[number]
                queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
                phrases[number] = self._within(text, queries, restriction, settings)
        return phrases

    def _answer(
        self,
        text: str,
        masks: Sequence[tuple[tuple[Phrase, ...], Restriction | None]],
        cut: bool,
        settings: FillSettings,
        blocks: np.ndarray | None,
    ) -> Answer:
        """The answer to one text by the phrases of its masks and the blocks that they are from."""
        notes = query_notes(text, cut=cut, max_input_tokens=self.encoder.max_input_tokens)
        if blocks is None:
            notes += ranking_notes(self.index, settings) + reading_notes(settings, self.encoder)
        by_words = vector_share(self.index, settings) == 0
        shown = [without_overlaps(phrases, settings) for phrases, _ in masks]
        reasons = [
            reason_for_few(len(phrases), restriction, settings, given=blocks, by_words=by_words)
            for phrases, (_, restriction) in zip(shown, masks, strict=True)
        ]
        if len(set(reasons)) == 1:
            notes += reasons[0]
        else:
            notes += tuple(f"mask {number}: {why}" for number, own in enumerate(reasons, start=1) for why in own)
        if len(masks) == 1:
            return Answer(text=text, phrases=shown[0], cut=cut, notes=notes)
        answer = JointAnswer(text=text, phrases=(), cut=cut, notes=notes, masks=tuple(map(MaskPhrases, shown)))
        count = max(settings.k, settings.beam_width)
        return self._with_fillings(answer, [phrases[:count] for phrases, _ in masks], settings, blocks)

    def _with_fillings(
        self,
        answer: JointAnswer,
        masks: Sequence[tuple[Phrase, ...]],
        settings: FillSettings,
        blocks: np.ndarray | None,
    ) -> JointAnswer:
        """The answer with the fillings that are made of some phrases of its masks."""
        live = self.index.live_blocks
        fill_jointly = partial(
            joint_fillings,
            answer.text,
            blocks_holding=cache(self._blocks_holding),
            block_count=self.index.store.block_count if live is None else int(np.count_nonzero(live)),
            settings=settings,
        )
        notes = list(answer.notes)
        fillings = fill_jointly(masks)
        if fillings and settings.refine_fillings:
            single = replace(settings, k=settings.beam_width, occurrences=0, overlaps=Overlaps.keep)
            refined = self._filled(texts_with_one_mask(answer.text, fillings[0].phrases), single, blocks)
            if again := fill_jointly([own.phrases for own in refined]):
                fillings = again
            else:
                notes.append("with the other masks filled in a mask has no phrase: the fillings are not refined")
        if not fillings:
            empty = [str(number) for number, own in enumerate(masks, start=1) if not own]
            why = f"no phrase for mask {', '.join(empty)}" if empty else "the phrases for its masks repeat each other"
            notes.append(f"the text has no filling: {why}")
        if not self._reader.has_text:
            notes.append("the index has no text to count phrases in: fillings are scored by their masks alone")
        return replace(answer, notes=tuple(notes), fillings=fillings)

    def _blocks_holding(self, phrase: str) -> np.ndarray | None:
        """The live blocks i64 [n], ascending, that hold the words of `phrase`; None where that cannot be counted."""
        return None if self.index.lexicon is None else self.index.lexicon.blocks_with(phrase)

    def phrases_of_hits(
        self, text: str, scan: Scan, hits: Hits, *, queries: tuple[int, int], settings: FillSettings
    ) -> tuple[Phrase, ...]:
        """The phrases for one text, grown from the `hits` of its start and end query.

        `queries` are the numbers of these two in the `hits` [queries, k] and in `scan`, which may score any row.
        """
        start_rows, end_rows = (np.sort(hits.rows[query][hits.found[query]]) for query in queries)  # i64 [n] each
        return self._grown(text, [scan], queries, (start_rows, end_rows), None, settings)

    @abstractmethod
    def _restrictions(
        self,
        texts: Sequence[str],
        vectors: QueryVectors,
        settings: FillSettings,
        *,
        document_filter: DocumentFilter,
        blocks: np.ndarray | None,
    ) -> list[Restriction | None]:
        """The blocks that each mask is answered from, None for all: of those allowed, `blocks` if they are given."""

    def _document_filter(self, settings: FillSettings) -> DocumentFilter:
        """The documents that `settings` allow; the last are kept, since a prompt asks with the same filters again."""
        filters = (None if settings.documents is None else tuple(settings.documents), tuple(settings.where))
        kept = self._filtered
        if kept is None or kept[0] != filters:
            kept = self._filtered = (filters, select(self.index, *filters))
        return kept[1]

    def _within(
        self, text: str, queries: np.ndarray, restriction: Restriction, settings: FillSettings
    ) -> tuple[Phrase, ...]:
        """The phrases for one text, its start and end query f32 [2, d], from some blocks only."""
        offsets = self.index.store.block_offsets
        rows = self.index.rows.rows_within(offsets[restriction.blocks], offsets[restriction.blocks + 1])  # i64 [n]
        if len(rows) == 0:
            return ()
        if restriction.queries is None:
            scans = [self.index.searcher.scan(queries, rows)]
        else:
            # Each pair looks in its own block only: one scan for all would score every pair with every block.
            blocks = self.index.store.block_of(self.index.rows.positions(rows))  # i64 [n], ascending
            pieces = np.split(rows, np.searchsorted(blocks, restriction.blocks[1:]))
            scans = [self.index.searcher.scan(*pair) for pair in zip(restriction.queries, pieces, strict=True)]
        return self._grown(text, scans, (0, 1), (rows, None), restriction, settings)

    def _grown(
        self,
        text: str,
        scans: Sequence[Scan],
        queries: tuple[int, int],
        hits: tuple[np.ndarray, np.ndarray | None],
        restriction: Restriction | None,
        settings: FillSettings,
    ) -> tuple[Phrase, ...]:
        """The phrases for one text that grow from the rows i64 [n] hit by its start and by its end query.

        The latter None are the same ones.
        """
        # Both sides are grown: a span is found where either of its ends is among the best rows of its query, and the
        # other end, which may be none of them, is then scored from its stored vector. So the shares are exact for the
        # candidates there are, however roughly the hits were searched.
        start_rows, end_rows = hits
        scoring = settings.scoring
        neighbors = MaskNeighbors.of(text, self.encoder)
        candidates = self.span_finder(settings).find(start_rows, end_rows, neighbors)
        share = 0.0 if restriction is None or restriction.joint is None else joint_share(settings, self.encoder)
        factors = (1 - share) * self.similarity_factor(scoring), share / scoring.temperature
        similarities = ScannedSimilarities(self.index, scans, queries, factors, restriction)
        sides = (start_rows, start_rows if end_rows is None else end_rows)
        weights = candidate_weights(similarities, candidates, sides, scoring)
        if restriction is not None and restriction.gaps:
            candidates, weights = with_literal_evidence(
                candidates,
                weights,
                restriction.gaps,
                settings.literal_weight,
                store=self.index.store,
                limits=self._phrase_limits(settings),
            )
        return ranked_phrases(text, candidates, weights, self._reader, settings)

    def span_finder(self, settings: FillSettings) -> SpanFinder:
        """What grows hits into the spans that `settings` allow: single words where the encoder asks with one mask."""
        tokens, words = self._phrase_limits(settings)
        return SpanFinder(
            self.index.store,
            self.index.rows,
            max_phrase_tokens=tokens,
            max_phrase_words=words,
            scoring=settings.scoring,
            digit_tokens=self._digit_tokens,
            words_only=self.encoder.query_masks == 1,
        )

    def _phrase_limits(self, settings: FillSettings) -> tuple[int, int | None]:
        """Most tokens and words of a phrase."""
        tokens, words = settings.phrase_limits(of_bytes=self.encoder.spells_bytes)
        return tokens, 1 if self.encoder.query_masks == 1 else words

    def similarity_factor(self, scoring: ScoringSettings) -> float:
        """What an inner product is multiplied with, by the scale of the encoder and the temperature.

        The one query of a single mask stands for both ends, and e^(s + t) would count it twice: halved, a word of one
        token weighs e^s, as it was trained.
        """
        counts_twice = self.encoder.query_masks == 1 and scoring.combination is Combination.product
        return self.encoder.similarity_scale / scoring.temperature / (2 if counts_twice else 1)

    def _checked_blocks(self, blocks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Block numbers ascending without repeats, i64."""
        if isinstance(blocks, np.ndarray | range):
            blocks = np.asarray(blocks).tolist()
        numbers = sorted(set(checked(blocks, list[int], "blocks")))
        block_count = self.index.store.block_count
        if numbers and not (numbers[0] >= 0 and numbers[-1] < block_count):
            raise SettingError(f"blocks must be numbers from 0 to {block_count - 1}, got {numbers[0]} to {numbers[-1]}")
        return np.array(numbers, dtype=np.int64)
