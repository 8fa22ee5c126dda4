"""Filling texts: encode, rank blocks, search, grow hits into spans, weigh them and combine them into phrases.

Shapes: q texts, n masks of all texts, m candidate spans of one mask, d dimensions, k hits per query.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, overload

import numpy as np

from npm.core.errors import SettingError
from npm.core.settings import checked
from npm.core.types import Answer, Filling, JointAnswer, MaskPhrases, Phrase
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex, select
from npm.models.encoder import Encoder
from npm.reading.confidence import Confidence, features_of
from npm.reading.loading import NO_READER, open_reader
from npm.reading.reader import Reader
from npm.retrieval.answers import SurfaceReader, ranked_phrases, without_overlaps
from npm.retrieval.blocks import Restriction, reason_for_few, sentence_pooler, vector_share
from npm.retrieval.literal import with_literal_evidence
from npm.retrieval.queries import (
    MAX_MASKS,
    MaskNeighbors,
    QueryVectors,
    Texts,
    checked_queries,
    encode_queries,
    query_notes,
    unknown_words,
)
from npm.retrieval.reading import check_readable, with_reading
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.search import Search, candidate_weights
from npm.retrieval.settings import (
    MAX_PHRASES,
    FillOptions,
    FillSettings,
    Overlaps,
    Retrieval,
    closed_error,
    given_options,
)
from npm.retrieval.spans import CandidateSpans, SpanFinder, digit_tokens

if TYPE_CHECKING:
    from index.types import Hits, Scan

OVERLAPS_LOOKED_AT, PHRASES_PER_ENTRY = 20, 5
"""Phrases looked at beyond `k`, and for each entry, at least: there are `k` entries where the corpus has as many."""
MAX_UNKNOWN_SHARE = 0.5
"""Share of unknown tokens above which a reader is of another language than the passages."""
Blocks = Sequence[int] | np.ndarray


class Filler(ABC):
    """Fills texts with phrases; a subclass chooses the blocks that each text is answered from."""

    _opened: tuple[PhraseIndex, Encoder] | None = None  # None once it is closed

    def __init__(
        self,
        phrase_index: PhraseIndex,
        encoder: Encoder,
        settings: FillSettings | None = None,
        *,
        reader: Reader | None = None,
    ) -> None:
        """`reader` is used instead of that of the settings, unless they say `none`.

        Raises ArtifactError if `encoder` is not the one that made the index, SettingError for other settings.
        """
        if not isinstance(settings, FillSettings | None):
            raise SettingError(f"settings must be FillSettings, got {settings!r}")
        self.settings = settings or FillSettings()
        self._reader = reader
        self._use(phrase_index, encoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._facts if self._opened is not None else 'closed'})"

    def __reduce__(self) -> NoReturn:
        # it holds mapped files and a model, which a copy would have to open again
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: open another one in each process")

    def close(self) -> None:
        """Close the filler: it answers no more, and frees its files when no other thread fills with it."""
        self._opened = None

    @property
    def index(self) -> PhraseIndex:
        """The index that answers. Raises SettingError if this filler was closed."""
        if self._opened is None:
            raise closed_error(self)
        return self._opened[0]

    @property
    def encoder(self) -> Encoder:
        """The encoder of the texts. Raises SettingError if this filler was closed."""
        if self._opened is None:
            raise closed_error(self)
        return self._opened[1]

    def with_index(self, phrase_index: PhraseIndex, settings: FillSettings | None = None) -> Self:
        """The same encoder and reader over another view of the index."""
        return type(self)(phrase_index, self.encoder, settings or self.settings, reader=self._reader)

    def reader(self, settings: FillSettings) -> Reader | None:
        """The reader that was given, or that of `settings`, opened when it is first needed; None: without one."""
        if self._reader is not None and settings.reader != NO_READER:
            return self._reader
        return open_reader(settings.reader, self.encoder)

    @property
    def _facts(self) -> str:
        """Description of the index and the encoder."""
        live, store = self.index.live_documents, self.index.store
        count = store.document_count if live is None else int(np.count_nonzero(live))
        return f"{str(self.index.folder)!r}, {count:,} documents, {store.token_count:,} tokens, {self.encoder.name}"

    def _use(self, phrase_index: PhraseIndex, encoder: Encoder) -> None:
        """Answer from `phrase_index` from now on."""
        self._opened = phrase_index, phrase_index.check_encoder(encoder)
        self.surfaces = SurfaceReader(phrase_index.store, encoder.tokenizer)
        self._digit_tokens = digit_tokens(encoder.tokenizer)
        self._filtered: tuple[tuple[tuple[str, ...] | None, tuple[str, ...]], DocumentFilter] | None = None

    def refresh(self) -> bool:
        """Open the current generation of the index if it is another one than that in use; returns whether it was."""
        if self.index.is_current:
            return False
        self._use(PhraseIndex.open(self.index.folder), self.encoder)
        return True

    @overload
    def fill(
        self, texts: str, k: int | None = None, *, blocks: Blocks | None = None, **options: Unpack[FillOptions]
    ) -> Answer: ...

    @overload
    def fill(
        self, texts: Texts, k: int | None = None, *, blocks: Blocks | None = None, **options: Unpack[FillOptions]
    ) -> list[Answer]: ...

    def fill(
        self, texts: str | Texts, k: int | None = None, *, blocks: Blocks | None = None, **options: Unpack[FillOptions]
    ) -> Answer | list[Answer]:
        """The best phrases for each text with `<mask>`; an Answer for a text, a list for several.

        A text with several masks gets a JointAnswer, with phrases for each mask and fillings of all of them together.

        `k`, `occurrences`, `retrieval`, `documents` (ids of the only documents to answer from; [] means none),
        `where` (conditions on kept fields), `min_share` and `min_confidence` replace the settings unless they are
        None; `blocks` are the numbers of the only blocks to search, for all texts, by vectors alone. A text without a
        mask gets one behind it, as `read_query` says. All texts are checked before any is answered: raises QueryError
        for one that is no text, is empty, broken, or has no mask, more than MAX_MASKS, or masks too far apart for the
        encoder; SettingError for a setting of another kind or one that cannot be met.
        """
        several = checked_queries(texts, max_masks=MAX_MASKS)
        settings = replace(self.settings, **given_options(FillSettings, k=k, **options))
        allowed = None if blocks is None else self._checked_blocks(blocks)
        pooler = sentence_pooler(self.index, settings) if allowed is None else None
        vectors = encode_queries(self.encoder, several, pooler=pooler, tokens_per_batch=settings.tokens_per_batch)
        answers = self.fill_encoded(several, vectors, settings=settings, blocks=allowed)
        return answers[0] if isinstance(texts, str) else answers

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
        if not self.index.stores_tokens:
            check_readable(self.index, self.reader(settings), settings, blocks)
        maps = self.index.maps_for(settings.retrieval.value)
        if maps is not None and not maps.reader:
            vectors = vectors.mapped(maps.maps)
        allowed = self._document_filter(settings)
        given = np.zeros(0, dtype=np.int64) if settings.documents == [] else blocks
        restrictions: Sequence[Restriction | None]
        if given is None:
            restrictions = self._restrictions(texts, vectors, settings, allowed)
        else:
            restrictions = [Restriction.within(allowed.allowed(given))] * len(vectors.start)
        counts = np.diff(vectors.offsets).tolist()
        is_alone = vectors.per_mask([count == 1 for count in counts])
        asked = vectors.per_mask(texts)
        count = settings.k
        if settings.overlaps is Overlaps.merge or self._known_confidence(settings) is not None:
            count = min(max(settings.k + OVERLAPS_LOOKED_AT, settings.k * PHRASES_PER_ENTRY), MAX_PHRASES)
        # Fillings are made of more phrases than are shown, so that k does not decide which is the best.
        wider = replace(settings, k=max(count, settings.beam_width), occurrences=max(settings.occurrences, 1))
        single = replace(wider, k=count)
        phrases: list[tuple[Phrase, ...]] = [()] * len(asked)
        for number, search in self.searches(vectors, restrictions, allowed, settings):
            phrases[number] = self._phrases(asked[number], search, single if is_alone[number] else wider)
        of_masks = zip(phrases, restrictions, strict=True)
        return [
            self._answer(text, list(itertools.islice(of_masks, count)), cut, settings, blocks)
            for text, count, cut in zip(texts, counts, vectors.cut.tolist(), strict=True)
        ]

    @abstractmethod
    def _restrictions(
        self, texts: Sequence[str], vectors: QueryVectors, settings: FillSettings, allowed: DocumentFilter
    ) -> Sequence[Restriction | None]:
        """The blocks, of those allowed, that each mask is answered from; None for all."""

    def read(
        self,
        texts: Sequence[str],
        vectors: QueryVectors,
        restrictions: Sequence[Restriction | None],
        settings: FillSettings,
    ) -> list[Restriction | None]:
        """The restriction of each mask, from those of the texts, with what the reader of `settings` finds there."""
        reader = self.reader(settings) if settings.retrieval is Retrieval.hybrid and settings.joint_share else None
        if reader is None or not self.surfaces.has_text:
            return vectors.per_mask(restrictions)
        maps = self.index.maps_for(settings.retrieval.value)
        joint_maps = maps.maps if maps is not None and maps.reader == reader.fingerprint else None
        read = with_reading(self.index.store, reader, texts, restrictions, maps=joint_maps)
        counts = np.diff(vectors.offsets).tolist()
        of_texts = zip(read, restrictions, counts, strict=True)
        return [mask for own, whole, count in of_texts for mask in own or [whole] * count]

    def searches(
        self,
        vectors: QueryVectors,
        restrictions: Sequence[Restriction | None],
        document_filter: DocumentFilter,
        settings: FillSettings,
    ) -> Iterator[tuple[int, Search]]:
        """The index of each mask that has rows to search, and the hits of its two queries."""
        unrestricted = [number for number, restriction in enumerate(restrictions) if restriction is None]
        masks_per_scan = max(1, self.index.searcher.max_queries_per_scan // 2)
        wanted = min(settings.candidates_per_side or self.index.candidates_per_side, len(self.index.rows))
        for first in range(0, len(unrestricted), masks_per_scan):
            batch = unrestricted[first : first + masks_per_scan]
            stacked = np.concatenate([vectors.start[batch], vectors.end[batch]])  # f32 [2 * batch, d]
            scan = self.index.searcher.scan(stacked, document_filter.rows)
            hits = scan.top(wanted)
            for place, number in enumerate(batch):
                yield number, self._search_of(scan, hits, (place, len(batch) + place), settings)
        offsets, factor = self.index.store.block_offsets, self.similarity_factor(settings.scoring)
        for number, restriction in enumerate(restrictions):
            if restriction is None:
                continue
            starts, stops = offsets[restriction.blocks], offsets[restriction.blocks + 1]  # i64 [blocks] each
            rows = self.index.rows.rows_within(starts, stops)  # i64 [rows]
            if not len(rows):
                continue
            share = settings.joint_share if self.index.stores_tokens else 1.0
            share = 0.0 if restriction.joint is None else share
            scans = (
                []
                if share == 1
                else [self.index.searcher.scan(np.stack([vectors.start[number], vectors.end[number]]), rows)]
            )
            factors = (1 - share) * factor, share / settings.scoring.temperature
            yield number, Search(self.index, scans, (0, 1), (rows, None), factors, restriction)

    def _search_of(self, scan: Scan, hits: Hits, queries: tuple[int, int], settings: FillSettings) -> Search:
        """The search of one mask, its queries' numbers among the `hits` [queries, k] of `scan`."""
        start_rows, end_rows = (np.sort(hits.rows[query][hits.found[query]]) for query in queries)  # i64 [hits] each
        factors = self.similarity_factor(settings.scoring), 0.0
        return Search(self.index, [scan], queries, (start_rows, end_rows), factors)

    def _phrases(self, text: str, search: Search, settings: FillSettings) -> tuple[Phrase, ...]:
        """The phrases for one mask of `text`.

        Both sides are grown: a span is found where either of its ends is among the best rows of its query, and the
        other end, which may be none of them, is then scored from its stored vector. So the weights are exact for the
        candidates there are, however roughly the hits were searched.
        """
        candidates, weights = self.weighed(text, search, settings)
        return ranked_phrases(text, candidates, weights, self.surfaces, settings)

    def weighed(self, text: str, search: Search, settings: FillSettings) -> tuple[CandidateSpans, np.ndarray]:
        """The candidates for one mask of `text`, and their weights f64 [m]."""
        start_rows, end_rows = search.hits
        candidates = self.span_finder(settings).find(start_rows, end_rows, MaskNeighbors.of(text, self.encoder))
        sides = (start_rows, start_rows if end_rows is None else end_rows)
        weights = candidate_weights(search.similarities, candidates, sides, settings.scoring)  # f64 [m]
        if search.restriction is not None and search.restriction.gaps:
            candidates, weights = with_literal_evidence(
                candidates,
                weights,
                search.restriction.gaps,
                settings.literal_weight,
                store=self.index.store,
                limits=settings.phrase_limits(self.encoder),
            )
        return candidates, weights

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
        is_hybrid = blocks is None and settings.retrieval is Retrieval.hybrid
        if is_hybrid and settings.vector_share and self.index.block_vectors is None:
            notes += ("the index has no block vectors: its blocks were ranked by shared words alone (vector_share)",)
        if any(restriction is not None and restriction.unknown_share > MAX_UNKNOWN_SHARE for _, restriction in masks):
            notes += ("the reader does not know most of the passages' tokens: set reader to one of their language",)
        unknown = () if blocks is not None or self.index.lexicon is None else unknown_words(text, self.index.lexicon)
        if unknown:
            notes += (f"not in the corpus: {', '.join(unknown)}",)
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
            answer = Answer(text=text, phrases=shown[0], cut=cut, notes=notes)
            answer = self._with_confidence(answer, *masks[0], settings)
            return _with_status(answer, shown[0], settings, lacks_words=bool(unknown))
        from npm.retrieval.joint_filling import joint_fillings

        live, count = self.index.live_blocks, max(settings.k, settings.beam_width)
        fillings, why = joint_fillings(
            text,
            [phrases[:count] for phrases, _ in masks],
            self._blocks_holding,
            block_count=self.index.store.block_count if live is None else int(np.count_nonzero(live)),
            settings=settings,
        )
        if not self.surfaces.has_text:
            why += ("the index has no text to count phrases in: fillings are scored by their masks alone",)
        of_masks = tuple(map(MaskPhrases, shown))
        joint = JointAnswer(text=text, phrases=(), cut=cut, notes=notes + why, masks=of_masks, fillings=fillings)
        return _with_status(joint, fillings, settings, lacks_words=bool(unknown))

    def _with_confidence(
        self, answer: Answer, found: Sequence[Phrase], restriction: Restriction | None, settings: FillSettings
    ) -> Answer:
        """The answer with its confidence, if its reader has one; unclear where that is too small."""
        known = self._known_confidence(settings)
        features = None if known is None else self.features(answer.text, found, restriction, settings)
        if known is None or features is None:
            if not settings.min_confidence:
                return answer
            note = f"min_confidence={settings.min_confidence:g} was not applied: this answer has no confidence"
            return replace(answer, notes=(*answer.notes, note))
        confidence, least = float(known.of(features)), known.threshold(settings.min_confidence)
        answer = replace(answer, confidence=confidence)
        if confidence >= least:
            return answer
        note = f"no clear answer: the confidence is {confidence:.2f}, below min_confidence={least:.2f}"
        return replace(answer, notes=(*answer.notes, note), status="low_evidence")

    def _known_confidence(self, settings: FillSettings) -> Confidence | None:
        """The confidence of the reader of `settings`, an object that reads among them."""
        reads = settings.retrieval is Retrieval.hybrid and settings.joint_share and not settings.scoring.reference
        return getattr(self.reader(settings), "confidence", None) if reads else None

    def least_confidence(self, settings: FillSettings) -> float | None:
        """Confidence below which an answer is unclear; None where no reader has one."""
        known = self._known_confidence(settings)
        return None if known is None else known.threshold(settings.min_confidence)

    def features(
        self, text: str, found: Sequence[Phrase], restriction: Restriction | None, settings: FillSettings
    ) -> np.ndarray | None:
        """The input of the confidence of an answer, f64 [f], from all phrases `found`; None where there is none.

        Overlapping phrases are merged, so that neither `k` nor `overlaps` changes it; shares among `values` differ.
        """
        if restriction is None or restriction.joint is None or self.index.lexicon is None or settings.values:
            return None
        first = without_overlaps(found, replace(settings, k=2, overlaps=Overlaps.merge))
        shares = [phrase.score for phrase in first]
        if not shares:
            return None
        words = self.index.lexicon.covered_share(text, restriction.blocks)
        tokens = settings.phrase_limits(self.encoder)[0]
        return features_of(restriction.joint, restriction.bonuses, shares, words, max_span_tokens=tokens)

    def _blocks_holding(self, phrase: str) -> np.ndarray | None:
        """The live blocks i64 [n], ascending, that hold the words of `phrase`; None where that cannot be counted."""
        return None if self.index.lexicon is None else self.index.lexicon.blocks_with(phrase)

    def _document_filter(self, settings: FillSettings) -> DocumentFilter:
        """The documents that `settings` allow; the last are kept, since a prompt repeats the same filters."""
        filters = (None if settings.documents is None else tuple(settings.documents), tuple(settings.where))
        kept = self._filtered
        if kept is None or kept[0] != filters:
            kept = self._filtered = (filters, select(self.index, *filters))
        return kept[1]

    def span_finder(self, settings: FillSettings) -> SpanFinder:
        """Finder of the spans that `settings` allow around hits: single words for one-mask encoders."""
        limits = settings.phrase_limits(self.encoder)
        return SpanFinder(self.index.store, self.index.rows, limits, settings.scoring, digit_tokens=self._digit_tokens)

    def similarity_factor(self, scoring: ScoringSettings) -> float:
        """Factor of an inner product, from the scale of the encoder and the temperature.

        The one query of a single mask is that of both ends, and e^(s + t) would count it twice: halved, a word of one
        token weighs e^s, as it was trained.
        """
        counts_twice = self.encoder.query_masks == 1 and not scoring.reference
        return self.encoder.similarity_scale / scoring.temperature / (2 if counts_twice else 1)

    def _checked_blocks(self, blocks: Blocks) -> np.ndarray:
        """Block numbers ascending without repeats, i64."""
        if isinstance(blocks, np.ndarray | range):
            blocks = np.asarray(blocks).tolist()
        numbers = sorted(set(checked(blocks, list[int], "blocks")))
        block_count = self.index.store.block_count
        if numbers and not (numbers[0] >= 0 and numbers[-1] < block_count):
            raise SettingError(f"blocks must be numbers from 0 to {block_count - 1}, got {numbers[0]} to {numbers[-1]}")
        return np.array(numbers, dtype=np.int64)


def _with_status(
    answer: Answer, best: Sequence[Phrase | Filling], settings: FillSettings, *, lacks_words: bool
) -> Answer:
    """The answer, unclear if the first of its `best` has too small a share or the corpus lacks words of the text."""
    share = best[0].score if best else 0.0
    if not settings.min_share or settings.scoring.reference or (share >= settings.min_share and not lacks_words):
        return answer
    below = f"the best share is {share:.3f}, below min_share={settings.min_share:g}"
    note = f"the corpus has no clear answer: {below if share < settings.min_share else 'it lacks words of the text'}"
    return replace(answer, notes=(*answer.notes, note), status="low_evidence")
