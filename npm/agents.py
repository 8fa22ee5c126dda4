"""Tools for agents, over the Model Context Protocol: phrases and sentences of an index, with their places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

import npm.api
from npm.core.errors import QueryError, UserError
from npm.core.settings import explain
from npm.core.types import MASK_TEXT, Answer, JointAnswer, Occurrence, Phrase
from npm.corpus.markup import visible
from npm.retrieval.queries import MAX_MASKS, read_query
from npm.tracing.settings import Verdict

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from npm.evaluation.labeling import ScoredLabel
    from npm.retrieval.filler import PhraseFiller
    from npm.tracing.trace import TracedSpan

MAX_COUNT, MAX_CHARS, MAX_TEXTS, MAX_LABELS = 50, 20_000, 64, 64
INSTRUCTIONS = (
    "Look up facts in the user's own documents ({documents:,} documents, such as {example!r}). Every phrase is copied "
    "word for word from a document and comes with its sentence and its place. Read the sentence before you rely on a "
    "phrase: about half of the first phrases are wrong, and if the documents do not contain the answer, the closest "
    "phrase is returned. Quote the document when you use a phrase.{fields}"
)


class Place(BaseModel):
    """A place in a document."""

    document: str = Field(description="Id of the document, to be quoted; it names the page or section of a file")
    title: str
    sentence: str = Field(description="The sentence in which the phrase occurs, copied from the document")
    start_char: int = Field(description="Position of the phrase in the document; pass it to read")


class FoundPhrase(BaseModel):
    """A phrase of the corpus."""

    phrase: str
    share: float = Field(description="Share of the evidence among all candidates, from 0 to 1; not a probability")
    places: list[Place]


class Filled(BaseModel):
    """Phrases for a question or a statement with a mask, best first."""

    statement: str = Field(description="The text as it was read, with the mask behind a question")
    confidence: float | None = Field(
        description="Probability that the first phrase is right; below a half check the sentence. Null if unknown"
    )
    phrases: list[FoundPhrase]
    masks: list[list[FoundPhrase]] = Field(description="Phrases for each mask, if the statement has several")
    notes: list[str]


class FoundPlaces(BaseModel):
    """The places of a phrase, in the order of the documents."""

    phrase: str
    count: int = Field(description="Number of places in all documents; 0 means that the phrase does not occur")
    documents: int = Field(description="Number of documents with the phrase")
    places: list[Place]


class Span(BaseModel):
    """A name, number, date or quotation of a text, traced to the documents."""

    text: str
    start_char: int
    verdict: Verdict = Field(
        description="found: the document that the sentence is about has it word for word; supported: it is there in "
        "other words or in another document; other: the documents have something else there; not_found. None of them "
        "means true or false"
    )
    support: float = Field(description="How much the documents speak for it, from 0 to 1")
    place: Place | None = Field(description="The best place in the documents; read the sentence")
    other: str | None = Field(description="The phrase that the documents have instead")
    other_place: Place | None


class Traced(BaseModel):
    """The spans of a text, in its order."""

    spans: list[Span]


class FittingLabel(BaseModel):
    """A label that fits a text."""

    label: str
    score: float = Field(description="Share of the evidence, or with multi_label how unusual the fit is, from 0 to 1")
    word: str | None = Field(description="The word of the label that fits best")
    place: Place | None = Field(description="The place in the documents where the word fits like in the text")


class LabeledText(BaseModel):
    """The labels of a text, best first; none if no label reaches the threshold of multi_label."""

    labels: list[FittingLabel]
    cut: bool = Field(description="True if only the beginning of the text was read, because the text is too long")


class Labeled(BaseModel):
    """The labels of each text, in the order of the texts."""

    texts: list[LabeledText]


class Passage(BaseModel):
    """A part of a document."""

    document: str
    title: str
    fields: dict[str, Any]
    text: str
    start_char: int = Field(description="Position of the first character of text")
    total_chars: int


Text = Annotated[str, Field(max_length=MAX_CHARS)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, description="Number of phrases or places to return")]
Where = Annotated[
    list[str] | None,
    Field(
        description='Conditions on the fields of documents, all of which must hold, such as ["year>=2024", "page=7"]'
    ),
]


def agent_server(filler: PhraseFiller) -> MCPServer:
    """A server whose tools answer from the index of `filler`, and from each newer generation of it."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    class Server(MCPServer):
        async def call_tool(self, name: str, *given: Any, **options: Any) -> Any:
            """Call a tool; a mistake, or an argument that its schema does not allow, is one sentence."""
            try:
                return await super().call_tool(name, *given, **options)
            except ToolError as error:
                cause = error.__cause__
                if isinstance(cause, ValidationError):
                    raise ToolError(f"{name}: {explain(cause, None)}") from cause
                if isinstance(cause, UserError):
                    raise ToolError(str(cause)) from cause
                raise

    tools, index, kept = Tools(filler), filler.index, filler.index.manifest.fields
    store = index.store
    fields = f" Documents have the fields {', '.join(kept)}, which where filters by." if kept else ""
    numbers = range(store.document_count) if index.live_documents is None else np.flatnonzero(index.live_documents)
    example = store.document_ids(numbers[:1])[0]
    instructions = INSTRUCTIONS.format(documents=len(numbers), example=example, fields=fields)
    server = Server("npmlm", instructions=instructions, version=npm.__version__, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in tools.every():
        server.tool(description=getdoc(tool), annotations=reads, structured_output=True)(tool)
    return server


class Tools:
    """The tools; the docstrings and the descriptions of arguments are read by agents. They raise UserErrors."""

    def __init__(self, filler: PhraseFiller) -> None:
        self._filler = filler
        self._lock = threading.Lock()  # calls come in threads, and one uses the cores of all

    def every(self) -> tuple[Callable[..., BaseModel], ...]:
        """All tools."""
        return self.fill, self.find, self.trace, self.label, self.read

    def fill(
        self,
        question: Annotated[
            str,
            Field(description=f"A question, or a statement such as 'The outage was caused by {MASK_TEXT}.'"),
        ],
        where: Where = None,
        count: Count = 5,
    ) -> Filled:
        """Answer a question, or complete a statement, with phrases of the documents: names, dates, quantities, terms.

        Ask as a person would, or word a statement as the documents would, with <mask> in place of the answer. Each
        phrase comes with the sentences in which it was found. Check that the sentence says what was asked.
        """
        with self._answering() as filler:
            statement = read_query(question, where="question", max_masks=MAX_MASKS)
            answer: Answer = filler.fill(statement, k=count, where=where or None)
        masks = answer.masks if isinstance(answer, JointAnswer) else ()
        return Filled(
            statement=statement,
            confidence=answer.confidence,
            phrases=[*map(_phrase, answer.phrases)],
            masks=[[*map(_phrase, mask.phrases)] for mask in masks],
            notes=[*answer.notes],
        )

    def find(
        self,
        phrase: Annotated[str, Field(description="Words to look up, such as a name, a number or a quotation")],
        where: Where = None,
        count: Count = 10,
    ) -> FoundPlaces:
        """Look up whether and where the documents contain a phrase word for word, upper or lower case."""
        with self._answering() as filler:
            found = npm.api.find(phrase, filler, show=count, where=where or ())
        places = [*map(_place, found.occurrences)]
        return FoundPlaces(phrase=found.phrase, count=found.count, documents=found.documents, places=places)

    def trace(
        self, text: Annotated[Text, Field(description="Text to check, such as your own draft")], where: Where = None
    ) -> Traced:
        """Check a text against the documents: does a sentence there say each name, number, date and quotation of it?"""
        with self._answering() as filler:
            found = npm.api.trace(text, filler, where=where or ())
        return Traced(spans=[*map(_span, found.spans)])

    def label(
        self,
        texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS, description="Texts to label")],
        labels: Annotated[
            dict[str, list[str]],
            Field(min_length=2, max_length=MAX_LABELS, description="Words for each label, which the documents use"),
        ],
        multi_label: Annotated[bool, Field(description="True if a text may have several labels, or none")] = False,
    ) -> Labeled:
        """Classify texts by a few words per label, compared with the places of those words in the documents."""
        with self._answering() as filler:
            found = npm.api.label(texts, labels, filler, multi_label=multi_label)
        return Labeled(texts=[LabeledText(labels=[*map(_label, each.labels)], cut=each.cut) for each in found])

    def read(
        self,
        document: Annotated[str, Field(description="Id of the document, from a place")],
        start_char: Annotated[int, Field(ge=0, description="Position to read around, from a place")] = 0,
        chars: Annotated[int, Field(ge=1, le=MAX_CHARS, description="Number of characters to read")] = 2000,
    ) -> Passage:
        """Read a document around a place, to check a phrase in its context."""
        with self._answering() as filler:
            found = filler.index.document(document)
            if found is None:
                raise QueryError(f"no document has the id {document[:200]!r}: pass the id of a place unchanged")
        first = max(0, min(start_char, len(found.text)) - chars // 2)
        return Passage(
            document=found.id,
            title=found.title,
            fields=dict(found.fields),
            text=visible(found.text[first : first + chars]),
            start_char=first,
            total_chars=len(found.text),
        )

    @contextmanager
    def _answering(self) -> Iterator[PhraseFiller]:
        """The filler, of the current generation, for this thread alone."""
        with self._lock:
            self._filler.refresh()
            yield self._filler


def _phrase(phrase: Phrase) -> FoundPhrase:
    return FoundPhrase(phrase=phrase.phrase, share=phrase.score, places=[*map(_place, phrase.occurrences)])


def _span(span: TracedSpan) -> Span:
    return Span(
        text=span.text,
        start_char=span.start_char,
        verdict=span.verdict,
        support=span.support,
        place=None if span.place is None else _place(span.place),
        other=span.other,
        other_place=None if span.other_place is None else _place(span.other_place),
    )


def _label(found: ScoredLabel) -> FittingLabel:
    place = None if found.occurrence is None else _place(found.occurrence)
    return FittingLabel(label=found.label, score=found.score, word=found.word, place=place)


def _place(occurrence: Occurrence) -> Place:
    return Place(
        document=occurrence.document,
        title=occurrence.title,
        sentence=" ".join("".join(occurrence.parts).split()),
        start_char=occurrence.start_char,
    )
