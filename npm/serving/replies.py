"""Responses over HTTP. Answers are the dataclasses of `npm.core.types`, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from npm.core.settings import field_texts, per_request
from npm.core.types import Answer, JointAnswer, Occurrence
from npm.retrieval.settings import FillSettings
from npm.serving.problems import ProblemDetails
from npm.tracing.find import Found
from npm.tracing.trace import TracedSpan

Kind = TypeVar("Kind")


class Reply:
    """Base of what is sent, whose description has the docstrings of its fields, as requests have theirs."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class IndexState:
    """Index that answered."""

    generation: int
    """Number of changes of the index since it was built."""
    digest: str
    """Digest of all parts of the index."""


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """Time by part: waiting, encoding texts, searching phrases, and the total."""

    queue: float
    """Longest wait for the computing thread."""
    encode: float
    """Time in the encoder."""
    search: float
    """Time of search, reading and scoring."""
    total: float
    """Time from the arrival of the request."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Number of partitions of the index, and of those that answered."""

    asked: int = 1
    """Partitions of the index."""
    answered: int = 1
    """Partitions that answered."""
    missing_rows_share: float = 0.0
    """Share of all rows in partitions that did not answer; their phrases are missing from the scores."""


def _with_options(reply: type[Kind]) -> type[Kind]:
    """Give a reply the options of filling, with their values."""
    texts, options = field_texts(FillSettings), per_request(FillSettings)
    described = [(name, Annotated[hint, Field(description=texts[name])]) for name, hint in options.items()]
    return make_dataclass(reply.__name__, described, bases=(reply,), frozen=True, kw_only=True)


@_with_options
@dataclass(frozen=True)
class UsedOptions:
    """Options that the texts were filled with."""

    scoring: Annotated[Literal["default", "reference"], Field(description="Scoring method.")]


@dataclass(frozen=True, slots=True)
class FailedText:
    """A text of a list that cannot be answered."""

    problem: ProblemDetails
    """Reason, as the text alone would be refused."""


@dataclass(frozen=True, slots=True)
class Summary(Reply):
    """Facts about an answered request."""

    answered: int
    """Number of texts with an answer."""
    failed: int
    """Number of texts with a problem."""
    index: IndexState
    """Index that answered."""
    settings: UsedOptions
    """Options that were used, with the server's defaults."""
    took_ms: Milliseconds
    """Time by part."""
    partitions: Partitions
    """Partitions that answered."""


@dataclass(frozen=True, slots=True)
class Answers(Summary):
    """Answers to texts. All offsets are Unicode code points."""

    answers: list[JointAnswer | Answer | FailedText]
    """An answer for each text, in their order."""


@dataclass(frozen=True, slots=True)
class OverAnswers(Reply):
    """Answers from passages: phrases, or scores of the words that were given."""

    answers: list[JointAnswer | Answer | FailedText] | None
    """An answer for each text, in their order; null with words."""
    scores: list[float] | list[list[float] | FailedText] | None
    """Score of each word, in their order: they sum to 1, or are 0 if none occurs. A list per text of a list."""
    evidence: float | list[float | None] | None
    """Fraction of all evidence that the words have together: if it is small, other phrases fit better."""
    took_ms: Milliseconds
    """Time by part."""


@dataclass(frozen=True, slots=True)
class FindAnswer(Reply):
    """Number of places of a phrase, and the first of them."""

    found: Found
    """The phrase and its places."""
    index: IndexState
    """Index that answered."""
    took_ms: Milliseconds
    """Time by part."""


@dataclass(frozen=True, slots=True)
class TraceAnswer(Reply):
    """Spans of a text with their verdicts, in order. All offsets are Unicode code points."""

    spans: list[TracedSpan]
    """Spans in the order of the text."""
    index: IndexState
    """Index that answered."""
    took_ms: Milliseconds
    """Time by part."""


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A label, and the word that counts most for it, where it fits best; null without evidence in the index."""

    label: str
    """Name of the label."""
    share: float
    """Fraction of the evidence, from 0 to 1."""
    word: str | None
    """Word of the label with the largest contribution."""
    occurrence: Occurrence | None
    """Occurrence of this word that fits best."""


@dataclass(frozen=True, slots=True)
class TextLabels:
    """Shares of all labels for a text, in the order given; they sum to 1."""

    text: str
    """The text as it was read."""
    labels: list[LabelShare]
    """All labels, in the order given."""
    cut: bool
    """True if only a part of the text around the mask was read, because the text is too long for the encoder."""


@dataclass(frozen=True, slots=True)
class LabelAnswers(Reply):
    """The labels of each text, and notes about words that do not occur."""

    answers: list[TextLabels | FailedText]
    """Labels of each text, in the order of the texts."""
    notes: list[str]
    """Remarks about words that do not occur."""
    index: IndexState
    """Index that answered."""
    took_ms: Milliseconds
    """Time by part."""


@dataclass(frozen=True, slots=True)
class DocumentWindow(Reply):
    """A part of a document: `text` is the code points [window_start_char, window_end_char) of all its text."""

    id: str
    """Id of the document."""
    title: str
    """Title of the document."""
    fields: dict[str, Any]
    """Kept fields of the document."""
    text: str
    """The part of the text."""
    window_start_char: int
    """First character of the part."""
    window_end_char: int
    """End of the part, exclusive."""
    total_chars: int
    """Length of the full text."""
    start_char: int
    """Requested start, within the text."""
    end_char: int
    """Requested end, within the text."""
    generation: int
    """Generation of the index."""


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """The encoder of the index."""

    name: str
    """Name of the encoder."""
    fingerprint: str
    """Digest of its weights and settings."""
    dimensions: int
    """Dimensions of the vectors of the index, at most those of the encoder."""


@dataclass(frozen=True, slots=True)
class IndexFacts(Reply):
    """Index that answers, and limits."""

    name: str
    """Name of its folder, or of the one above for a folder called index."""
    generation: int
    """Number of changes since the index was built."""
    digest: str
    """Digest of all parts of the index."""
    documents: int
    """Documents that are not deleted."""
    blocks: int
    """Passages that the documents were cut into."""
    tokens: int
    """Tokens of all documents."""
    rows: int
    """Stored vectors, including those of deleted documents until the index is compacted."""
    partitions: int
    """Partitions in other processes, each of which may be lost for a while; 1: the server has all itself."""
    tier: str
    """Kind of search: `exact`, or `ivf_sq8` or `ivf_pq` with compressed vectors."""
    rotation: str
    """Rotation of vectors before they were shortened: none, or pca."""
    encoder: EncoderFacts
    """Encoder of texts and index."""
    fields: list[str]
    """Kept fields of documents, for `where`."""
    defaults: dict[str, Any]
    """Options of a request that does not set them."""
    limits: dict[str, int]
    """Largest values and longest lists of a request."""
    about: str
    """Line about the corpus, written by the server's administrator."""
    examples: list[str]
    """Texts to try; one that begins with `#` is a heading."""
    version: str
    """Version of npmlm."""
