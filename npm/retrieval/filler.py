"""What all fillers share: texts are encoded, and their hits grown into spans, weighed and put together as phrases.

Shapes: q texts, m candidate spans of one text, n rows, d dimensions, k hits a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, Unpack, overload

import numpy as np

from index.settings import typed_value
from npm.errors import SettingError
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex, select
from npm.models.encoder import Encoder
from npm.models.similarity import scaled_similarity
from npm.retrieval.answers import SurfaceReader, ranked_phrases
from npm.retrieval.blocks import Restriction, ranking_notes, sentence_pooler, vector_share
from npm.retrieval.queries import QueryVectors, check_query, checked_texts, encode_queries, query_notes
from npm.retrieval.reading import joint_share, reading_notes
from npm.retrieval.scoring import (
    Combination,
    Normalisation,
    ScoringSettings,
    occurrence_shares,
    reference_weights,
)
from npm.retrieval.settings import FillSettings, Retrieval
from npm.retrieval.spans import CandidateSpans, SpanFinder
from npm.types import Answer, Phrase

if TYPE_CHECKING:
    from index.types import Hits, Scan


class RemoteOptions(TypedDict, total=False):
    """What `fill` takes besides texts and `k`, on this machine and on a server."""

    occurrences: int | None
    retrieval: Retrieval | str | None
    documents: Sequence[str] | None
    where: Sequence[str] | str | None


class FillOptions(RemoteOptions, total=False):
    """What `Filler.fill` takes besides texts and `k`."""

    blocks: Sequence[int] | np.ndarray | None


class Filler(ABC):
    """Fills texts with phrases; a subclass says which blocks each text is answered from."""

    _opened: tuple[PhraseIndex, Encoder] | None = None  # None once it is closed

    def __init__(self, phrase_index: PhraseIndex, encoder: Encoder, settings: FillSettings | None = None) -> None:
        """Raises ArtefactError if `encoder` is not the one that made the index, SettingError for other settings."""
        self.settings = FillSettings() if settings is None else settings
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
    def settings(self) -> FillSettings:
        """How texts are filled. A value that was assigned to one of them is checked here: raises SettingError."""
        self._settings.__post_init__()
        self._settings.scoring.__post_init__()
        return self._settings

    @settings.setter
    def settings(self, settings: FillSettings) -> None:
        self._settings: FillSettings = typed_value(settings, FillSettings, "settings")

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
        self._filtered: tuple[tuple[tuple[str, ...] | None, tuple[str, ...]], DocumentFilter] | None = None

    def refresh(self) -> bool:
        """Open the present generation of the index if it is another one than that in use; returns whether it was."""
        if self.index.is_current:
            return False
        self._use(PhraseIndex.open(self.index.folder), self.encoder)
        return True

    @overload
    def fill(self, texts: str, k: int | None = None, **options: Unpack[FillOptions]) -> Answer: ...

    @overload
    def fill(
        self, texts: list[str] | tuple[str, ...], k: int | None = None, **options: Unpack[FillOptions]
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

        `k`, `occurrences`, `retrieval`, `documents` (ids of the only documents to answer from; [] means none) and
        `where` (conditions on kept fields) stand in for the settings unless they are None; `blocks` are the numbers of
        the only blocks to look in, for all texts, by vectors alone. All texts are checked before any is answered:
        raises QueryError for one that is none, is empty, broken, or has no mask or several, SettingError for a setting
        of another kind or one that cannot be met.
        """
        several = checked_texts(texts, name="text")
        for number, text in enumerate(several, start=1):
            check_query(text, where="text" if len(several) == 1 else f"text {number} of {len(several)}")
        changes = given_options(k, occurrences, retrieval, documents, where)
        settings = replace(self.settings, **changes) if changes else self.settings
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

        `blocks` as in `fill`, ascending i64.
        """
        settings = settings if settings is not None else self.settings
        document_filter = self._document_filter(settings)
        restrictions: list[Restriction | None] = [Restriction(np.zeros(0, dtype=np.int64), np.zeros(0))] * len(texts)
        if settings.documents != []:
            restrictions = self._restrictions(texts, vectors, settings, document_filter=document_filter, blocks=blocks)
        phrases: list[tuple[Phrase, ...]] = [()] * len(texts)
        unrestricted = [number for number, restriction in enumerate(restrictions) if restriction is None]
        texts_per_scan = max(1, self.index.searcher.max_queries_per_scan // 2)
        for first in range(0, len(unrestricted), texts_per_scan):
            batch = unrestricted[first : first + texts_per_scan]
            stacked = np.concatenate([vectors.start[batch], vectors.end[batch]])  # f32 [2 * batch, d]
            scan = self.index.searcher.scan(stacked, document_filter.rows)
            hits = scan.top(min(settings.candidates_per_side or self.index.candidates_per_side, len(self.index.rows)))
            for place, number in enumerate(batch):
                pair = (place, len(batch) + place)
                phrases[number] = self.phrases_of_hits(texts[number], scan, hits, queries=pair, settings=settings)
        for number, restriction in enumerate(restrictions):
            if restriction is not None and len(restriction.blocks):
                queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, d]
                phrases[number] = self._within(texts[number], queries, restriction, settings)
        answers = []
        for text, best, cut, restriction in zip(texts, phrases, vectors.cut.tolist(), restrictions, strict=True):
            notes = query_notes(text, cut=cut, max_input_tokens=self.encoder.max_input_tokens)
            if blocks is None:
                notes += ranking_notes(self.index, settings) + reading_notes(settings, self.encoder)
            if len(best) < settings.k:
                by_words = vector_share(self.index, settings) == 0
                notes += _reason_for_few(len(best), restriction, settings, given=blocks, by_words=by_words)
            answers.append(Answer(text=text, phrases=best, cut=cut, notes=notes))
        return answers

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
        """The blocks that each text is answered from, None for all: of those allowed, `blocks` if they are given."""

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
        candidates = self.span_finder(settings).find(start_rows, end_rows)
        share = 0.0 if restriction is None or restriction.joint is None else joint_share(settings, self.encoder)
        factors = (1 - share) * self.similarity_factor(scoring), share / scoring.temperature
        similarities = ScannedSimilarities(self.index, scans, queries, factors, restriction)
        sides = (start_rows, start_rows if end_rows is None else end_rows)
        weights = candidate_weights(similarities, candidates, sides, scoring)
        return ranked_phrases(text, candidates, weights, self._reader, settings)

    def span_finder(self, settings: FillSettings) -> SpanFinder:
        """What grows hits into the spans that `settings` allow: single words where the encoder asks with one mask."""
        return SpanFinder(
            self.index.store,
            self.index.rows,
            max_phrase_tokens=settings.max_phrase_tokens,
            scoring=settings.scoring,
            words_only=self.encoder.query_masks == 1,
        )

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
        numbers = np.unique(np.array(typed_value(_listed(blocks), list[int], "blocks"), dtype=np.int64))
        block_count = self.index.store.block_count
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < block_count):
            raise SettingError(
                "there is no such block",
                expected=f"block numbers from 0 to {block_count - 1}",
                got=f"{numbers[0]} to {numbers[-1]}",
                where="blocks",
                fix="give numbers of blocks of this index",
            )
        return numbers


def closed_error(filler: object) -> SettingError:
    """What to say where a filler is asked after `close`."""
    return SettingError(
        "this filler is closed",
        expected="an open one",
        got="a filler after close(), or behind its with block",
        where=type(filler).__name__,
        fix="open another one",
    )


def given_options(k: Any, occurrences: Any, retrieval: Any, documents: Any, where: Any) -> dict[str, Any]:
    """The options of `fill` that are not None, by the names of the settings that they stand in for."""
    given = {
        "k": k,
        "occurrences": occurrences,
        "retrieval": retrieval,
        "documents": _listed(documents),
        "where": [where] if isinstance(where, str) else _listed(where),
    }
    return {name: value for name, value in given.items() if value is not None}


def _listed(values: Any) -> Any:
    """Several values as a list; anything else, which a setting will refuse, as it is."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes | dict) else values


def _reason_for_few(
    found: int,
    restriction: Restriction | None,
    settings: FillSettings,
    *,
    given: np.ndarray | None,
    by_words: bool,
) -> tuple[str, ...]:
    """Why an answer has fewer than k phrases, where a reader could not guess.

    `given` are the blocks asked for; without them, `by_words` says that shared words alone chose the blocks.
    """
    if settings.documents == []:
        return ("the list of documents to answer from is empty, so nothing is answered",)
    if given is not None and len(given) == 0:
        return ("the list of blocks to look in is empty, so nothing is answered",)
    if restriction is not None and len(restriction.blocks) == 0:
        if given is not None:
            return ("no block given is of a document that may answer",)
        return (f"no block of the corpus {'shares a word with' if by_words else 'can be ranked for'} the text",)
    if found == 0:
        return ("what was looked in holds nothing but stop-words, punctuation and words of the text",)
    ranked = given is None and settings.retrieval is not Retrieval.dense
    if ranked and restriction is not None and len(restriction.blocks) == settings.bm25_blocks:
        which = "share most words with the text" if by_words else "rank best for the text"
        limit = f"the {settings.bm25_blocks} blocks that {which} were looked in"
        return (f"{found} of {settings.k} phrases: {limit} (bm25_blocks)",)
    return ()


Similarities = Callable[[int, np.ndarray], np.ndarray]
"""Scaled similarities f64 [n] of the start (0) or end (1) query of a text with rows i64 [n]."""


@dataclass(frozen=True, slots=True)
class ScannedSimilarities:
    """The similarities of one text with the rows that were scanned for it, each with the bonus of its block."""

    index: PhraseIndex
    scans: Sequence[Scan]  # one for all rows, or one for each block of the restriction
    queries: tuple[int, int]  # the numbers of the start and the end query in a scan
    factors: tuple[float, float]  # what an inner product is multiplied with, and a similarity of the joint pass
    restriction: Restriction | None

    def __call__(self, side: int, rows: np.ndarray) -> np.ndarray:
        """f64 [n] for the start (0) or end (1) query and rows i64 [n]."""
        query = self.queries[side]
        if self.restriction is None:
            return scaled_similarity(self.scans[0].at(query, rows).astype(np.float64), self.factors[0])
        # In `hybrid` all similarities in a block are raised by the same bonus, so that within a block the vectors alone
        # decide, and between blocks their BM25 scores have a say.
        positions = self.index.rows.positions(rows)  # i64 [n]
        blocks = self.index.store.block_of(positions)  # i64 [n]
        places = np.searchsorted(self.restriction.blocks, blocks)  # i64 [n], in the restriction
        products = np.empty(len(rows))  # f64 [n]
        scan_of = places if len(self.scans) > 1 else np.zeros(len(rows), dtype=np.int64)  # i64 [n]
        for number in np.unique(scan_of).tolist():
            here = np.flatnonzero(scan_of == number)
            products[here] = self.scans[number].at(query, rows[here])
        similarities = scaled_similarity(products, self.factors[0]) + self.restriction.bonuses[places]  # f64 [n]
        if self.restriction.joint is not None:
            slots = positions - self.index.store.block_offsets[blocks]  # i64 [n], within their blocks
            for number in np.unique(places).tolist():
                here = np.flatnonzero(places == number)
                similarities[here] += self.factors[1] * self.restriction.joint[number][side, slots[here]]
        return similarities


def candidate_weights(
    similarities: Similarities,
    candidates: CandidateSpans,
    sides: tuple[np.ndarray, np.ndarray],
    scoring: ScoringSettings,
) -> np.ndarray:
    """What each candidate counts, f64 [m]; `sides` are the rows i64 [n] that the start and the end query hit."""
    start = similarities(0, candidates.start_rows)  # f64 [m]
    end = similarities(1, candidates.end_rows)  # f64 [m]
    if scoring.normalisation is Normalisation.candidates:
        return occurrence_shares(
            start,
            end,
            candidates.lengths,
            combination=scoring.combination,
            length_exponent=scoring.length_exponent,
        )
    # As in the reference, a span found from its other end adds its own end to the candidates of this side.
    all_starts = similarities(0, np.union1d(sides[0], candidates.start_rows))  # f64 [n]
    all_ends = similarities(1, np.union1d(sides[1], candidates.end_rows))  # f64 [n]
    return reference_weights(
        start,
        end,
        candidates.lengths,
        all_starts=all_starts,
        all_ends=all_ends,
        combination=scoring.combination,
        length_exponent=scoring.length_exponent,
    )
