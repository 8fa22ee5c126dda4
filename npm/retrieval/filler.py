"""Fill `<mask>` with phrases of a corpus: texts in, answers with provenance out.

A question goes through seven functions, in `PhraseFiller.fill_encoded`: encode, choose blocks, read them, search, grow
hits into spans, weigh these, and make an answer of them.

Shapes: q texts, n masks of all texts, m candidate spans of one mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, overload

import numpy as np

from npm.core.errors import SettingError
from npm.core.settings import PathText, checked
from npm.core.types import Answer, Document, Phrase, Progress, silent
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex, select
from npm.models.batches import masked_inputs
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.reading.loading import NO_READER, open_reader
from npm.retrieval.answers import (
    SurfaceReader,
    compose,
    confidence_features,
    is_name,
    ranked_phrases,
    unknown_words,
    with_confidence,
)
from npm.retrieval.blocks import (
    BlockPlan,
    Blocks,
    check_readable,
    checked_blocks,
    choose_blocks,
    read_blocks,
    sentence_pooler,
)
from npm.retrieval.queries import (
    MAX_MASKS,
    MaskNeighbors,
    Query,
    QueryVectors,
    Texts,
    encode_queries,
    read_queries,
    sentences_of,
)
from npm.retrieval.search import Search, search, similarity_factor, weigh
from npm.retrieval.settings import FillOptions, FillSettings, closed_error, given_options
from npm.retrieval.spans import CandidateSpans, SpanFinder, digit_tokens

if TYPE_CHECKING:
    from npm.reading.confidence import Confidence
    from npm.reading.reader import Reader
    from npm.retrieval.remote import RemoteFiller
    from npm.retrieval.scores import PassageScores

TEXTS_AT_ONCE = 64


class PhraseFiller:
    """An opened phrase index with the encoder that made it, and a reader: fills texts with phrases."""

    _opened: tuple[PhraseIndex, Encoder] | None = None  # None once it is closed
    _passage_scores: PassageScores | None = None

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

    @classmethod
    def open(
        cls,
        folder: str | Path,
        encoder: Encoder | str | Path | None = None,
        *,
        reader: Reader | str | Path | None = None,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
    ) -> PhraseFiller:
        """Open the index in `folder` with an encoder, an encoder's folder or name, or the index's own.

        `reader` is an object, or a name that replaces `reader` of the settings.

        Without `encoder` that is the shipped one if it made the index, else the one saved inside the index; `device`
        and `dtype` are where and how it computes. Raises ArtifactError if the index is missing, unfinished, damaged
        or was made by another encoder, SettingError for an argument of another kind.
        """
        precision = checked(dtype, Precision, "dtype")
        given: Encoder | str | None = checked(encoder, Encoder | PathText | None, "encoder")
        phrase_index = PhraseIndex.open(Path(checked(folder, PathText, "folder")))
        encoder = phrase_index.load_encoder(given, device=device, dtype=precision, for_reading=True)
        if isinstance(reader, str | Path):
            settings, reader = replace(settings or FillSettings(), reader=str(reader)), None
        return cls(phrase_index, encoder, settings, reader=reader)

    @classmethod
    def over(
        cls,
        passages: Sequence[str | Document],
        encoder: Encoder | str | Path | None = None,
        *,
        reader: Reader | None = None,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
    ) -> PhraseFiller:
        """A filler that answers from the given texts, an index in memory, and scores given words.

        Without `encoder` it is the shipped one. With a reader the passages that share most words with a text are read,
        all of them where there are few; without one stored vectors are searched. Passages are embedded once for all
        fillers. Raises CorpusError if there is no passage, or one that is no text, EncoderError as `Encoder.load` does,
        SettingError for an argument of another kind.
        """
        from npm.retrieval.passages import passage_index, passage_settings

        opened = Encoder.of(encoder, device, dtype)
        if not isinstance(settings, FillSettings | None):
            raise SettingError(f"settings must be FillSettings, got {settings!r}")
        settings = passage_settings(opened, reader) if settings is None else settings
        index = passage_index(passages, opened, tokens_per_batch=settings.tokens_per_batch)
        return cls(index, opened, settings, reader=reader)

    @classmethod
    def over_files(
        cls,
        files: Sequence[str | Path],
        encoder: Encoder | str | Path | None = None,
        *,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
        progress: Progress = silent,
    ) -> PhraseFiller:
        """A filler over files and folders, whose index of words is kept in the user's cache and follows them.

        What has not changed since the last call is not read again. Without `encoder` it is the shipped one. Raises
        CorpusError for files that cannot be used, StorageError where the cache cannot be written, and as `open` does.
        """
        from npm.indexing.sync import files_index

        opened = Encoder.of(encoder, device, dtype)
        names = [files] if isinstance(files, str | Path) else list(files)
        folder, _ = files_index([str(checked(name, PathText, "files")) for name in names], opened, progress=progress)
        return cls.open(folder, opened, settings=settings)

    @staticmethod
    def connect(url: str, key: str | None = None, *, timeout_seconds: float = 30.0) -> RemoteFiller:
        """A filler that queries the server of `npmlm serve` at `url`, such as `http://127.0.0.1:8080`, with its `key`.

        `timeout_seconds` is how long a request may take, tries at a busy server included. Raises SettingError for an
        argument that cannot be used or a key that the server does not know, ServerError if no such server answers.
        """
        from npm.retrieval.remote import RemoteFiller

        return RemoteFiller(url, key, timeout_seconds=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        facts = "closed" if self._opened is None else f"{self.index.facts}, {self.encoder.name}"
        return f"{type(self).__name__}({facts})"

    def __reduce__(self) -> NoReturn:
        # it holds mapped files and a model, which a copy would have to open again
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: open another one in each process")

    def close(self) -> None:
        """Close the filler: it answers no more, and frees its files when no other thread fills with it."""
        self._opened = None
        self._passage_scores = None

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

    def _use(self, phrase_index: PhraseIndex, encoder: Encoder) -> None:
        """Answer from `phrase_index` from now on."""
        self._opened = phrase_index, phrase_index.check_encoder(encoder)
        self.surfaces = SurfaceReader(phrase_index.store)
        self._digit_tokens = digit_tokens(encoder.tokenizer)
        self._filtered: tuple[tuple[tuple[str, ...] | None, tuple[str, ...]], DocumentFilter] | None = None
        self._passage_scores = None

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
        for one that is no text, is empty, broken, or has more than MAX_MASKS masks, or masks too far apart for the
        encoder; SettingError for a setting of another kind or one that cannot be met.
        """
        queries = read_queries(texts, max_masks=MAX_MASKS)
        settings = replace(self.settings, **given_options(FillSettings, k=k, **options))
        given = None if blocks is None else checked_blocks(blocks, self.index.store.block_count)
        found = list(self.answers(queries, settings, blocks=given, at_once=max(1, len(queries))))
        return found[0] if isinstance(texts, str) else found

    def answers(
        self,
        queries: Sequence[Query],
        settings: FillSettings | None = None,
        *,
        blocks: np.ndarray | None = None,
        at_once: int = TEXTS_AT_ONCE,
    ) -> Iterator[Answer]:
        """The answer to each query in turn, `at_once` of them together; `blocks` as in `fill`, ascending i64.

        Raises QueryError before the first if the masks of one are too far apart for the encoder.
        """
        settings = self.settings if settings is None else settings
        texts, places = [query.text for query in queries], [query.place for query in queries]
        if len(texts) > at_once:
            masked_inputs(self.encoder, texts, self.encoder.query_masks, places=places)
        pooler = None if blocks is not None else sentence_pooler(self.index, settings)
        for first in range(0, len(texts), at_once):
            batch = slice(first, first + at_once)
            vectors = encode_queries(
                self.encoder,
                sentences_of(texts[batch], settings),
                pooler=pooler,
                tokens_per_batch=settings.tokens_per_batch,
                places=places[batch],
            )
            yield from self.fill_encoded(texts[batch], vectors, settings=settings, blocks=blocks)

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
        given = np.zeros(0, dtype=np.int64) if settings.documents == [] else blocks
        vectors = self._mapped(vectors, settings, blocks)
        sentences = sentences_of(texts, settings)
        plans = choose_blocks(self.index, sentences, vectors, settings, allowed=allowed, given=given)  # q
        plans = self.read(sentences, vectors, plans, settings) if given is None else vectors.per_mask(plans)  # n
        asked, masks = vectors.per_mask(texts), vectors.per_mask(np.diff(vectors.offsets).tolist())
        has_confidence = self._known_confidence(settings) is not None
        wanted = [settings.for_mask(is_alone=each, has_confidence=has_confidence) for each in (False, True)]
        phrases: list[tuple[Phrase, ...]] = [()] * len(plans)
        for number, found in self.searched(vectors, plans, settings):
            spans, weights = self.weighed(asked[number], found, settings)
            phrases[number] = ranked_phrases(asked[number], spans, weights, self.surfaces, wanted[masks[number] == 1])
        of_texts = zip(texts, itertools.pairwise(vectors.offsets.tolist()), vectors.cut.tolist(), strict=True)
        return [
            self._answer(text, phrases[first:stop], plans[first:stop], cut, settings, blocks)
            for text, (first, stop), cut in of_texts
        ]

    def _mapped(self, vectors: QueryVectors, settings: FillSettings, blocks: np.ndarray | None) -> QueryVectors:
        """The queries, changed by learned maps if there are some for stored vectors."""
        if not self.index.stores_tokens:
            check_readable(self.index, self.reader(settings), settings, blocks)
        maps = self.index.maps_for(settings.retrieval.value)
        return vectors if maps is None or maps.reader else vectors.mapped(maps.maps)

    def read(
        self, texts: Sequence[str], vectors: QueryVectors, plans: Sequence[BlockPlan], settings: FillSettings
    ) -> list[BlockPlan]:
        """The plan of each of n masks, from those of q texts, with what the reader of `settings` finds there."""
        reader = self.reader(settings) if settings.reads else None
        if reader is None:
            return vectors.per_mask(plans)
        maps = self.index.maps_for(settings.retrieval.value)
        own_maps = maps.maps if maps is not None and maps.reader == reader.fingerprint else None
        read = read_blocks(self.index.store, reader, texts, plans, maps=own_maps)
        of_texts = zip(read, plans, np.diff(vectors.offsets).tolist(), strict=True)
        return [mask for own, whole, count in of_texts for mask in own or [whole] * count]

    def searched(
        self, vectors: QueryVectors, plans: Sequence[BlockPlan], settings: FillSettings
    ) -> Iterator[tuple[int, Search]]:
        """The number of each mask that has rows to search, and the hits of its two queries."""
        factor, rows = similarity_factor(self.encoder, settings.scoring), self._document_filter(settings).rows
        return search(self.index, vectors, plans, settings, allowed=rows, factor=factor)

    def weighed(self, text: str, found: Search, settings: FillSettings) -> tuple[CandidateSpans, np.ndarray]:
        """The candidates for one mask of `text`, grown from its hits, and their weights f64 [m]."""
        # where all rows of blocks are hit, growing to the left as well would find nothing new
        ends = found.end_rows if found.plan.is_everywhere else None
        spans = self.span_finder(settings).find(found.start_rows, ends, MaskNeighbors.of(text, self.encoder))
        return weigh(found, spans, settings, settings.phrase_limits(self.encoder))

    def _answer(
        self,
        text: str,
        phrases: Sequence[tuple[Phrase, ...]],
        plans: Sequence[BlockPlan],
        cut: bool,
        settings: FillSettings,
        blocks: np.ndarray | None,
    ) -> Answer:
        """The answer to one text by the phrases of its masks and the blocks that they are from."""
        most = self.encoder.max_input_tokens
        unknown = () if blocks is not None else unknown_words(text, self.index.lexicon)
        answer = compose(
            self.index, text, phrases, plans, settings, cut=cut, given=blocks, unknown=unknown, max_input_tokens=most
        )
        if len(plans) > 1:
            return answer
        answer = self._with_confidence(answer, phrases[0], plans[0], settings)
        # The reader may be sure of an answer about another name; min_confidence=0 makes every answer clear.
        if answer.confidence is not None and self.least_confidence(settings) and any(map(is_name, unknown)):
            return replace(answer, status="low_evidence")
        return answer

    def _with_confidence(
        self, answer: Answer, found: Sequence[Phrase], plan: BlockPlan, settings: FillSettings
    ) -> Answer:
        known = self._known_confidence(settings)
        features = None
        if known is not None:
            features = confidence_features(self.index, self.encoder, answer.text, found, plan, settings)
        return with_confidence(answer, known, features, settings)

    def _known_confidence(self, settings: FillSettings) -> Confidence | None:
        """The confidence of the reader of `settings`, an object that reads among them."""
        reads = settings.reads and not settings.scoring.reference
        return getattr(self.reader(settings), "confidence", None) if reads else None

    def least_confidence(self, settings: FillSettings) -> float | None:
        """Confidence below which an answer is unclear; None where no reader has one."""
        known = self._known_confidence(settings)
        return None if known is None else known.threshold(settings.min_confidence)

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

    @overload
    def score(self, texts: str, spans: str) -> float: ...

    @overload
    def score(self, texts: str | Texts, spans: Texts) -> list[float]: ...

    def score(self, texts: str | Texts, spans: str | Texts) -> float | list[float]:
        """The probability that the words `spans` fill the `<mask>` of `texts`, as `PassageScores.score` says.

        A text and one span give a float; a text and a list of spans, or as many texts as spans, a list of floats.
        """
        found = self._scores.score(texts, spans)
        return found[0] if isinstance(spans, str) else found

    @overload
    def score_claim(self, claims: str) -> float: ...

    @overload
    def score_claim(self, claims: Texts) -> list[float]: ...

    def score_claim(self, claims: str | Texts) -> float | list[float]:
        """The support of each claim by the passages, as `PassageScores.score_claim` says."""
        found = self._scores.score_claim(claims)
        return found[0] if isinstance(claims, str) else found

    @property
    def _scores(self) -> PassageScores:
        """Raises SettingError for an index that is not of passages in memory."""
        from npm.retrieval.scores import PassageScores

        if self._passage_scores is None:
            allowed, finder = self._document_filter(self.settings), self.span_finder(self.settings)
            self._passage_scores = PassageScores(self.index, self.encoder, self.settings, finder, allowed)
        return self._passage_scores
