"""Requests and responses over HTTP. Answers are the dataclasses of `npm.core.types`, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from npm.core.types import Answer, JointAnswer, Occurrence
from npm.serving.problems import ProblemDetails
from npm.tracing.find import Found
from npm.tracing.settings import KINDS, SpanKind
from npm.tracing.trace import TracedSpan

LIMITS = {
    "text_chars": 10_000,
    "k": 100,
    "occurrences": 50,
    "documents": 1_000,
    "where": 16,
    "labels": 32,
    "words": 64,
    "passages": 64,
}
"""Largest values and longest lists of a request, for any settings of the server."""
MOST_AROUND_CHARS, MOST_TIMEOUT_MS = 100_000, 3_600_000

Text = Annotated[str, StringConstraints(max_length=LIMITS["text_chars"])]
ShortText = Annotated[str, StringConstraints(max_length=1_000)]
RetrievalName = Literal["dense", "bm25", "blocks", "hybrid"]


class Request(BaseModel):
    """A body: a field that is not declared, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Timed(Request):
    """Time for an answer."""

    timeout_ms: Annotated[int, Field(ge=1, le=MOST_TIMEOUT_MS)] | None = None
    """Time for the answer; at most the server's limit counts."""


class Sizes(Timed):
    """Size of an answer, and its time; null takes the server's choice."""

    k: Annotated[int, Field(ge=1, le=LIMITS["k"])] | None = None
    """Phrases an answer has at most."""
    occurrences: Annotated[int, Field(ge=0, le=LIMITS["occurrences"])] | None = None
    """Places shown for a phrase at most, best first."""


class Filters(Timed):
    """Documents that may answer."""

    documents: Annotated[list[ShortText] | None, Field(max_length=LIMITS["documents"])] = None
    """Ids of the only documents to answer from; an empty list means none."""
    where: Annotated[list[ShortText], Field(max_length=LIMITS["where"])] = Field(default_factory=list)
    """Conditions on the documents' kept fields, such as `lang=en` or `year>=1990`; all must hold."""


class Options(Sizes, Filters):
    """Options of filling; null takes the server's choice."""

    retrieval: RetrievalName | None = None
    """Candidates that phrases are searched in."""
    min_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the evidence below which the first phrase is no clear answer: the `status` is `low_evidence`, as it then
    is for a text with a capitalized word that the corpus lacks."""
    scoring: Literal["default", "reference"] = "default"
    """`reference` fills as the paper's implementation does."""
    allow_partial: bool = False
    """Accept an answer from the rest of the index while a partition does not answer, instead of 503."""


class FillQuery(Options):
    """A text to be filled, in an address; numbers are written as text there."""

    model_config = ConfigDict(strict=False)

    text: Text
    """A text with `<mask>` where a phrase is missing, or a plain question."""


Texts = Annotated[
    list[str],  # the length of each is checked by its route, which answers the others
    BeforeValidator(lambda text: [text] if isinstance(text, str) else text, json_schema_input_type=Text | list[Text]),
]


class FillRequest(Options):
    """Texts to be filled."""

    text: Texts
    """A text with `<mask>` where a phrase is missing, a plain question, or several texts."""


class FullPassage(Request):
    """A text to answer from."""

    text: Text
    """The passage."""
    id: ShortText = ""
    """Id, returned as `document` of occurrences."""
    title: ShortText = ""
    """Title, returned with occurrences."""


Passage = Annotated[
    FullPassage,
    BeforeValidator(
        lambda text: {"text": text} if isinstance(text, str) else text, json_schema_input_type=Text | FullPassage
    ),
]


class OverRequest(Sizes):
    """Texts to be filled, or words to be scored in them, from passages that come along."""

    passages: Annotated[list[Passage], Field(min_length=1, max_length=LIMITS["passages"])]
    """Texts to answer from, each a string or an object with id and title."""
    text: Texts
    """A text with `<mask>`, exactly one with `words`, or several texts."""
    words: Annotated[list[ShortText] | None, Field(min_length=1, max_length=LIMITS["words"])] = None
    """Words that are compared at the mask; null: the best phrases are returned."""


class FindRequest(Filters):
    """A phrase to be looked up word for word."""

    phrase: ShortText
    """The phrase, with one content word at least."""
    show: Annotated[int, Field(ge=0, le=LIMITS["occurrences"])] = 10
    """Places shown at most, the first of the corpus."""
    match_case: bool = False
    """Distinguish upper and lower case."""


class TraceRequest(Filters):
    """A text to be traced back to the corpus."""

    text: Text
    """A text of one or more sentences."""
    kinds: Annotated[list[SpanKind], Field(min_length=1)] = Field(default_factory=lambda: list(KINDS))
    """Kinds of spans that are traced."""


class LabelsRequest(Timed):
    """Texts to be classified by the words of their labels."""

    text: Texts
    """A text with one `<mask>`, which a word of the right label could fill, or several texts."""
    labels: Annotated[
        dict[ShortText, Annotated[list[ShortText], Field(min_length=1, max_length=LIMITS["words"])]],
        Field(min_length=2, max_length=LIMITS["labels"]),
    ]
    """The words of each label, by its name."""


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
    """Time by part: waiting, encoding texts, looking for phrases (reading blocks among it), all of it."""

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
    """Parts of the index that were asked, and that answered."""

    asked: int = 1
    """Partitions of the index."""
    answered: int = 1
    """Partitions that answered."""
    missing_rows_share: float = 0.0
    """Of all rows, those of the partitions that did not answer; their phrases are missing from the shares."""


@dataclass(frozen=True, slots=True)
class UsedOptions:
    """Options that the texts were filled with."""

    k: int
    """Phrases per answer at most."""
    occurrences: int
    """Occurrences per phrase at most."""
    retrieval: RetrievalName
    """Candidates that were searched."""
    documents: list[str] | None
    """Ids of the only documents; null means all."""
    where: list[str]
    """Conditions on documents."""
    min_share: float
    """Fraction below which an answer is not clear."""
    scoring: Literal["default", "reference"]
    """Scoring method."""


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
    """Vectors that can be found."""
    partitions: int
    """Partitions in other processes, each of which may be lost for a while; 1: the server has all itself."""
    tier: str
    """Kind of search: exact or compressed."""
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
    examples: list[str]
    """Texts to try."""
    version: str
    """Version of npmlm."""
