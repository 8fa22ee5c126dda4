"""One opened generation of an index with its encoder, and the queries that it answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import npm
from index.search import parts_of
from npm.core.errors import QueryError, SettingError
from npm.core.settings import as_json, per_request
from npm.core.types import MASK_TEXT, Document
from npm.corpus.markup import shown, visible
from npm.corpus.text import sentence_bounds
from npm.evaluation.labeling import OWN_MASK, label_rows, label_task
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import OpenSearcher, PhraseIndex, select, without_rows
from npm.models.encoder import Encoder
from npm.retrieval.blocks import sentence_pooler
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import MAX_MASKS, encode_queries, read_query, sentences_of
from npm.retrieval.settings import FillSettings, FilterSettings, Retrieval
from npm.serving import replies, requests
from npm.serving.batcher import Done
from npm.serving.partitions import PartitionsLost, ServedPartitions
from npm.serving.settings import ServeSettings
from npm.tracing.find import find_phrase
from npm.tracing.settings import TraceSettings
from npm.tracing.spans import Span
from npm.tracing.trace import Tracer

MOST_DOCUMENTS = 2_000
"""Documents that are read for a phrase, while everybody else waits."""
LAST_WORD = re.compile(r"\w+(?=\W*$)")
WARM_UP = f"The first question of a day is {MASK_TEXT}."
EXAMPLES, MOST_EXAMPLES, MOST_EXAMPLE_CHARS = 5, 100, 300
"""Texts that the page offers: made from documents, or read from a file at most."""


@dataclass(frozen=True)
class OpenedIndex:
    """Source of all answers: one generation of an index, its encoder and the settings of the server.

    Everything that encodes or searches is to be called in the computing thread.
    """

    filler: PhraseFiller
    settings: ServeSettings
    facts: replies.IndexFacts
    """Description for a client, before it asks."""

    @classmethod
    def open(
        cls,
        folder: Path,
        encoder: Encoder,
        settings: ServeSettings,
        examples: Sequence[str] | None = None,
        open_searcher: OpenSearcher | None = None,
    ) -> OpenedIndex:
        """Open the present generation of the index in `folder`, made by `encoder`, and answer one question.

        `examples` are the texts that the page offers; None: those that the settings say. `open_searcher` as in
        `PhraseIndex.open`. Raises ArtifactError as `PhraseFiller.open` does, QueryError for a file of examples that is
        none, PartitionsLost if a partition does not answer.
        """
        index = PhraseIndex.open(folder, open_searcher)
        try:
            filler = PhraseFiller(index, encoder, settings.fill)
            chosen = _examples(filler, settings) if examples is None else examples
            # the folder is read once more for them, now: later it may hold another generation, or be gone
            opened = cls(filler, settings, _facts(filler, settings, chosen))
            filler.fill(WARM_UP)
        except Exception:
            if isinstance(index.searcher, ServedPartitions):
                index.searcher.close()
            raise
        return opened

    def close(self) -> None:
        """Close the partitions; to be called after the last query."""
        if self.partitions is not None:
            self.partitions.close()

    @property
    def partitions(self) -> ServedPartitions | None:
        """The partitions that run elsewhere; None: all is in this process."""
        searcher = self.filler.index.searcher
        return searcher if isinstance(searcher, ServedPartitions) else None

    @property
    def partitions_lost(self) -> frozenset[int]:
        """Numbers of the partitions that do not answer at present."""
        return frozenset() if self.partitions is None else self.partitions.lost

    @property
    def folder(self) -> Path:
        """Folder of the index; never sent to a client."""
        return self.filler.index.folder

    @property
    def state(self) -> replies.IndexState:
        """Generation and digest."""
        manifest = self.filler.index.manifest
        return replies.IndexState(manifest.generation, manifest.digest)

    def fill_settings(self, options: requests.Options) -> FillSettings:
        """Fill settings of a request: its own, and the server's for the rest."""
        base = FillSettings.reference() if options.scoring == "reference" else self.settings.fill
        names = requests.OPTIONS.keys() - {"retrieval"} | {"tokens_per_batch"}
        kept = {name: getattr(self.settings.fill, name) for name in names}
        return replace(base, **{**kept, **options.given(FillSettings), **self._filters(options)})

    def _filters(self, request: requests.Request) -> dict[str, Any]:
        """The filters of a request: its own, and the server's for those that it leaves out."""
        given = request.given(FilterSettings)
        usual = self.settings.fill
        return {"documents": given.get("documents", usual.documents), "where": given.get("where") or usual.where}

    def fill(
        self, texts: Sequence[str], settings: FillSettings, *, where: str = "text", allow_partial: bool = False
    ) -> list[Done]:
        """The answer to each of the texts, which are checked, or the error of one, `where`, with masks too far apart.

        Raises QueryError for a filter that leaves nothing, PartitionsLost if partitions do not answer, with
        `allow_partial` if none does.
        """
        started = perf_counter()
        pooler = sentence_pooler(self.filler.index, settings)
        encoder, tokens = self.filler.encoder, settings.tokens_per_batch
        try:
            asked = sentences_of(texts, settings)
            vectors = encode_queries(encoder, asked, pooler=pooler, tokens_per_batch=tokens, where=where)
        except QueryError as error:
            return [Done(error)] * len(texts)
        encoded = perf_counter()
        lost: frozenset[int] = frozenset()
        while True:
            try:
                answers = self._filler_without(lost).fill_encoded(texts, vectors, settings=settings)
                break
            except PartitionsLost as error:
                if not allow_partial or error.lost <= lost or len(lost | error.lost) == error.asked:
                    raise
                lost |= error.lost
        if lost:
            note = f"{self.answered(lost).missing_rows_share:.0%} of the index does not answer at present"
            answers = [replace(answer, notes=(*answer.notes, note)) for answer in answers]
        times = {"encode_seconds": encoded - started, "search_seconds": perf_counter() - encoded}
        return [Done(answer, **times, lost=lost) for answer in answers]

    def answered(self, lost: frozenset[int]) -> replies.Partitions:
        """Partitions as reported to a client, of which `lost` were skipped."""
        if self.partitions is None:
            return replies.Partitions()
        asked, searcher = len(self.partitions.parts), self.partitions
        missing = sum(searcher.parts[number].row_count for number in lost)
        return replies.Partitions(asked, asked - len(lost), missing / searcher.row_count)

    def _filler_without(self, lost: frozenset[int]) -> PhraseFiller:
        """Filler over all but the partitions `lost`, as if their blocks were deleted."""
        if not lost or self.partitions is None:
            return self.filler
        first_rows = self.partitions.first_rows.tolist()
        ranges = [(first_rows[number], first_rows[number + 1]) for number in sorted(lost)]
        return self.filler.with_index(without_rows(self.filler.index, ranges), self.settings.fill)

    def over(self, request: requests.OverRequest, texts: Sequence[str]) -> list[Done]:
        """Answer to each text from the passages of a request, the weights of its words, or the error of the text."""
        started = perf_counter()
        documents = [
            Document(each.id, each.title, each.text) if each.id or each.title else each.text
            for each in request.passages
        ]
        usual = self.settings.fill
        retrieval = Retrieval.dense if self.filler.reader(usual) is None else Retrieval.hybrid
        settings = replace(
            usual,
            retrieval=retrieval,
            documents=None,
            where=[],
            min_share=0.0,
            min_confidence=0.0,
            **request.given(FillSettings),
        )
        # in memory for this request only: at full length, however short the vectors of the index are
        filler = PhraseFiller.over(documents, self.filler.encoder.cut_to(None), settings=settings)
        encoded = perf_counter()
        values: list[object] = []
        for text in texts:
            try:
                values.append(filler.fill(text) if request.words is None else filler.score(text, request.words))
            except QueryError as error:
                values.append(error)
        ended = perf_counter()
        return [Done(value, encode_seconds=encoded - started, search_seconds=ended - encoded) for value in values]

    def find(self, request: requests.FindRequest) -> list[Done]:
        """The places of a phrase, of the first MOST_DOCUMENTS with its words."""
        started, index = perf_counter(), self.filler.index
        found = find_phrase(
            index,
            request.phrase,
            match_case=request.match_case,
            show=request.show,
            allowed=select(index, **self._filters(request)),
            most_documents=MOST_DOCUMENTS,
        )
        return [Done(found, search_seconds=perf_counter() - started)]

    def spans(self, request: requests.TraceRequest) -> list[Done]:
        """The spans of a text."""
        started = perf_counter()
        spans = self._tracer(request).spans(request.text)
        return [Done(spans, search_seconds=perf_counter() - started)]

    def traced(self, request: requests.TraceRequest, spans: Sequence[Span], _: Sequence[str]) -> list[Done]:
        """The verdicts on some spans of a text."""
        started = perf_counter()
        traced = self._tracer(request).verdicts(request.text, spans)
        return [Done(traced, search_seconds=perf_counter() - started)]

    def _tracer(self, request: requests.TraceRequest) -> Tracer:
        kinds, right_passed = list(request.kinds), request.right_passed
        return Tracer(self.filler, TraceSettings(kinds=kinds, right_passed=right_passed, **self._filters(request)))

    def labels(self, request: requests.LabelsRequest, texts: Sequence[str]) -> list[Done]:
        """The share of each label of a request for each text, by the occurrences of its words in the index."""
        started = perf_counter()
        words = {name: list(dict.fromkeys(word.strip() for word in own)) for name, own in request.labels.items()}
        rows = [("text", {"text": text}) for text in texts]
        notes: list[str] = []
        try:
            task = label_task(words, OWN_MASK)
            labeled = label_rows(self.filler, task, rows, shown=len(words), notice=notes.append)
        except SettingError as error:
            raise SettingError(f"labels: {error}", code=error.code) from error
        answers = []
        for text, found in zip(texts, labeled, strict=True):
            of_name = {each.label: each for each in found.ranked}
            ordered = [of_name[name] for name in words]
            shares = [replies.LabelShare(each.label, each.score, each.word, each.occurrence) for each in ordered]
            answers.append(replies.TextLabels(text, shares, found.cut))
        seconds = perf_counter() - started
        return [Done((answer, notes), search_seconds=seconds) for answer in answers]

    def document(
        self, identifier: str, *, start_char: int, end_char: int | None, around: int
    ) -> replies.DocumentWindow | None:
        """The part of a live document around [start_char, end_char); None if there is no such document."""
        index = self.filler.index
        found = index.document(identifier)
        if found is None:
            return None
        total = len(found.text)
        start = min(start_char, total)
        end = start if end_char is None else min(max(end_char, start), total)
        first, last = max(0, start - around), min(total, end + around)
        text, fields, generation = shown(found.text[first:last]), dict(found.fields), index.manifest.generation
        return replies.DocumentWindow(
            found.id, found.title, fields, text, first, last, total, start, end, generation=generation
        )


def _facts(filler: PhraseFiller, settings: ServeSettings, examples: Sequence[str]) -> replies.IndexFacts:
    manifest, folder = filler.index.manifest, filler.index.folder.resolve()
    filters = per_request(FilterSettings)
    defaults = {name: getattr(settings.fill, name) for name in requests.OPTIONS if name not in filters}
    return replies.IndexFacts(
        name=folder.parent.name if folder.name == "index" else folder.name,
        generation=manifest.generation,
        digest=manifest.digest,
        documents=manifest.counts.documents - manifest.deleted_documents,
        blocks=manifest.counts.blocks,
        tokens=manifest.counts.tokens,
        rows=manifest.counts.rows,
        partitions=len(parts_of(filler.index.searcher)),
        tier=inspect_index(filler.index.folder).tier,
        rotation=manifest.rotation.value,
        encoder=replies.EncoderFacts(filler.encoder.name, filler.encoder.fingerprint, filler.encoder.dimensions),
        fields=manifest.fields,
        defaults=as_json(defaults | {"min_confidence": filler.least_confidence(settings.fill)}),
        limits={
            "texts": settings.texts_per_request,
            "body_bytes": settings.max_body_bytes,
            "timeout_ms": int(settings.timeout_seconds * 1000),
            **requests.LIMITS,
        },
        about=settings.about,
        examples=list(examples),
        version=npm.__version__,
    )


def _examples(filler: PhraseFiller, settings: ServeSettings) -> list[str]:
    """Texts that the page offers: those of a file, or first sentences of documents."""
    if not settings.examples:
        return _opening_sentences(filler.index)
    path = Path(settings.examples)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"examples: cannot read {path}: {error}") from error
    for number, line in enumerate(lines[:MOST_EXAMPLES], start=1):
        if not line.startswith("#"):
            read_query(line, where=f"{path}, line {number}", max_masks=MAX_MASKS)
    return lines[:MOST_EXAMPLES]


def _opening_sentences(index: PhraseIndex) -> list[str]:
    """First sentences of documents over all of the index, their last word masked."""
    live = (
        np.arange(index.store.document_count) if index.live_documents is None else np.flatnonzero(index.live_documents)
    )
    found = []
    for document in live[np.linspace(0, len(live) - 1, min(EXAMPLES, len(live)), dtype=np.int64)].tolist():
        text = visible(index.store.document(document).text[:MOST_EXAMPLE_CHARS])
        if (bounds := sentence_bounds(text)).size:
            sentence = LAST_WORD.sub(MASK_TEXT, text[bounds[0, 0] : bounds[0, 1]])
            if sentence.count(MASK_TEXT) == 1 and len(sentence) > len(MASK_TEXT) + 1:
                found.append(sentence)
    return found
