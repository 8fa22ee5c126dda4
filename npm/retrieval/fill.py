"""Fill `<mask>` with phrases of the corpus: texts in, answers with provenance out.

Shapes: q texts, m candidate spans of one text, n rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from npm.errors import SettingError
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex, select
from npm.models.encoder import Encoder, Precision
from npm.retrieval.answers import SurfaceReader, ranked_phrases
from npm.retrieval.filler import ScannedSimilarities, candidate_weights
from npm.retrieval.queries import (
    QueryVectors,
    Restriction,
    check_query,
    encode_queries,
    lexical_restrictions,
    query_notes,
    with_reading,
)
from npm.retrieval.settings import FillSettings, Retrieval, retrieval_named
from npm.retrieval.spans import CandidateSpans, SpanFinder
from npm.types import Answer, Document, Phrase

__all__ = ["FillSettings", "PhraseFiller", "Retrieval"]

if TYPE_CHECKING:
    from index.types import Scan
    from npm.retrieval.passages import PassageFiller


class PhraseFiller:
    """An opened phrase index with the encoder that made it; fills texts."""

    def __init__(self, phrase_index: PhraseIndex, encoder: Encoder, settings: FillSettings | None = None) -> None:
        """Raises ArtefactError if `encoder` is not the one that made the index."""
        self.index = phrase_index
        self.encoder = phrase_index.check_encoder(encoder)
        self.settings = settings if settings is not None else FillSettings()
        self._reader = SurfaceReader(phrase_index.store, encoder.tokenizer)
        self._select = lru_cache(1)(partial(select, phrase_index))  # a prompt asks with the same filters again

    @classmethod
    def open(
        cls,
        folder: str | Path,
        encoder: Encoder | str | None = None,
        *,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision = Precision.auto,
    ) -> PhraseFiller:
        """Open the index in `folder` with an encoder, an encoder's folder or name, or the one that belongs to it.

        Without `encoder` that is the shipped one if it made the index, else the one saved inside the index; `device`
        and `dtype` are where and how it computes. Raises ArtefactError if the index is missing, unfinished, damaged
        or was made by another encoder.
        """
        phrase_index = PhraseIndex.open(Path(folder))
        return cls(phrase_index, phrase_index.load_encoder(encoder, device=device, dtype=dtype), settings)

    @classmethod
    def over(
        cls,
        passages: Sequence[str | Document],
        encoder: Encoder | str | None = None,
        *,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision = Precision.auto,
    ) -> PassageFiller:
        """A filler that answers from texts handed over, without an index, and scores given words; held in memory.

        Without `encoder` it is the shipped one; `settings`, by default, look in all passages. Passages are embedded
        once, whichever filler asks. Raises CorpusError if there is no passage, or one that is no text, EncoderError
        as `Encoder.load` does, SettingError for a retrieval other than `dense`.
        """
        from npm.retrieval.passages import PassageFiller

        chosen = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder or "", device=device, dtype=dtype)
        return PassageFiller(passages, chosen, settings)

    def refresh(self) -> bool:
        """Open the present generation of the index if it is another one than that in use; returns whether it was."""
        if self.index.is_current:
            return False
        renewed = PhraseIndex.open(self.index.folder)
        self.encoder = renewed.check_encoder(self.encoder)
        self.index = renewed
        self._reader = SurfaceReader(renewed.store, self.encoder.tokenizer)
        self._select = lru_cache(1)(partial(select, renewed))
        return True

    @overload
    def fill(
        self,
        texts: str,
        k: int | None = None,
        *,
        occurrences: int | None = None,
        retrieval: Retrieval | str | None = None,
        blocks: Sequence[int] | np.ndarray | None = None,
        documents: Sequence[str] | None = None,
        where: Sequence[str] | str | None = None,
    ) -> Answer: ...

    @overload
    def fill(
        self,
        texts: list[str] | tuple[str, ...],
        k: int | None = None,
        *,
        occurrences: int | None = None,
        retrieval: Retrieval | str | None = None,
        blocks: Sequence[int] | np.ndarray | None = None,
        documents: Sequence[str] | None = None,
        where: Sequence[str] | str | None = None,
    ) -> list[Answer]: ...

    def fill(
        self,
        texts: str | list[str] | tuple[str, ...],
        k: int | None = None,
        *,
        occurrences: int | None = None,
        retrieval: Retrieval | str | None = None,
        blocks: Sequence[int] | np.ndarray | None = None,
        documents: Sequence[str] | None = None,
        where: Sequence[str] | str | None = None,
    ) -> Answer | list[Answer]:
        """The best phrases for each text with one `<mask>`; an Answer for a text, a list for several.

        `k`, `occurrences`, `retrieval`, `documents` (ids of the only documents to answer from) and `where` (conditions
        on kept fields) stand in for the settings; `blocks` are the numbers of the only blocks to look in, for all
        texts, by vectors alone. All texts are checked before any is answered: raises QueryError for
        one that is empty, broken, or has no mask or several, SettingError for a setting that cannot be met.
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        for number, text in enumerate(several, start=1):
            check_query(text, where="text" if len(several) == 1 else f"text {number} of {len(several)}")
        settings = self._settings(k, occurrences, retrieval, documents, where)
        allowed = None if blocks is None else self._checked_blocks(blocks)
        vectors = encode_queries(self.encoder, several, tokens_per_batch=settings.tokens_per_batch)
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
        """Answers for texts that are checked and encoded; `blocks` as in `fill`, ascending i64."""
        settings = settings if settings is not None else self.settings
        document_filter = self._select(tuple(settings.documents), tuple(settings.where))
        restrictions = self._restrictions(texts, vectors, settings, document_filter=document_filter, blocks=blocks)
        finder = SpanFinder(
            self.index.store, self.index.rows, max_phrase_tokens=settings.max_phrase_tokens, scoring=settings.scoring
        )
        phrases: list[tuple[Phrase, ...]] = [()] * len(texts)
        unrestricted = [number for number, restriction in enumerate(restrictions) if restriction is None]
        texts_per_scan = max(1, getattr(self.index.searcher, "max_queries_per_scan", 64) // 2)
        for first in range(0, len(unrestricted), texts_per_scan):
            batch = unrestricted[first : first + texts_per_scan]
            stacked = np.concatenate([vectors.start[batch], vectors.end[batch]])  # f32 [2 * batch, d]
            scan = self.index.searcher.scan(stacked, document_filter.rows)
            hits = scan.top(min(settings.candidates_per_side or self.index.candidates_per_side, len(self.index.rows)))
            for place, number in enumerate(batch):
                start_query, end_query = place, len(batch) + place
                start_rows = np.sort(hits.rows[start_query][hits.found[start_query]])  # i64 [n]
                end_rows = np.sort(hits.rows[end_query][hits.found[end_query]])  # i64 [n]
                candidates = finder.find(start_rows, end_rows)
                similarities = self._similarities([scan], (start_query, end_query), None, settings)
                weights = candidate_weights(similarities, candidates, (start_rows, end_rows), settings.scoring)
                phrases[number] = self._ranked(texts[number], candidates, weights, settings)
        for number, restriction in enumerate(restrictions):
            if restriction is not None and len(restriction.blocks):
                queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
                phrases[number] = self._within(texts[number], queries, restriction, finder, settings)
        return [
            self._answer(text, phrases[number], bool(vectors.cut[number]), restrictions[number])
            for number, text in enumerate(texts)
        ]

    def _restrictions(
        self,
        texts: Sequence[str],
        vectors: QueryVectors,
        settings: FillSettings,
        *,
        document_filter: DocumentFilter,
        blocks: np.ndarray | None,
    ) -> list[Restriction | None]:
        """The blocks that each text is answered from, None for all: those given, else what `settings` ask for."""
        if blocks is not None:
            blocks = document_filter.allowed(blocks)
            return [Restriction(blocks, np.zeros(len(blocks)))] * len(texts)
        if settings.retrieval is Retrieval.dense:
            return [None] * len(texts)
        restrictions = lexical_restrictions(self.index, texts, settings, allowed=document_filter.blocks)
        if settings.retrieval is Retrieval.hybrid and settings.reading_share:
            return with_reading(self.index, self.encoder, texts, vectors, restrictions, settings)
        return restrictions

    def _within(
        self, text: str, queries: np.ndarray, restriction: Restriction, finder: SpanFinder, settings: FillSettings
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
        candidates = finder.find(rows, None)
        similarities = self._similarities(scans, (0, 1), restriction, settings)
        weights = candidate_weights(similarities, candidates, (rows, rows), settings.scoring)
        return self._ranked(text, candidates, weights, settings)

    def _similarities(
        self,
        scans: Sequence[Scan],
        queries: tuple[int, int],
        restriction: Restriction | None,
        settings: FillSettings,
    ) -> ScannedSimilarities:
        factor = self.encoder.similarity_scale / settings.scoring.temperature
        return ScannedSimilarities(self.index, scans, queries, factor, restriction)

    def _ranked(
        self, text: str, candidates: CandidateSpans, weights: np.ndarray, settings: FillSettings
    ) -> tuple[Phrase, ...]:
        return ranked_phrases(
            text,
            candidates,
            weights,
            reader=self._reader,
            scoring=settings.scoring,
            phrase_count=settings.k,
            occurrence_count=settings.occurrences,
            merged_groups=max(settings.merged_groups, settings.k),
        )

    def _answer(self, text: str, phrases: tuple[Phrase, ...], cut: bool, restriction: Restriction | None) -> Answer:
        notes = query_notes(text, cut=cut, max_input_tokens=self.encoder.max_input_tokens)
        if restriction is not None and len(restriction.blocks) == 0:
            notes += ("no block of the corpus shares a word with the text",)
        return Answer(text=text, phrases=phrases, cut=cut, notes=notes)

    def _settings(
        self,
        k: int | None,
        occurrences: int | None,
        retrieval: Retrieval | str | None,
        documents: Sequence[str] | None,
        where: Sequence[str] | str | None,
    ) -> FillSettings:
        given = {
            "k": k,
            "occurrences": occurrences,
            "retrieval": None if retrieval is None else retrieval_named(retrieval),
            "documents": None if documents is None else list(documents),
            "where": [where] if isinstance(where, str) else where,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self.settings, **changes) if changes else self.settings

    def _checked_blocks(self, blocks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Block numbers ascending without repeats, i64."""
        numbers = np.unique(np.asarray(blocks, dtype=np.int64))
        block_count = len(self.index.store.block_offsets) - 1
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < block_count):
            raise SettingError(
                "there is no such block",
                expected=f"block numbers from 0 to {block_count - 1}",
                got=f"{numbers[0]} to {numbers[-1]}",
                where="blocks",
                fix="give numbers of blocks of this index",
            )
        return numbers
