"""Requests and responses over HTTP. Answers are the dataclasses of `npm.core.types`, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from npm.core.types import Answer, JointAnswer, Occurrence
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

    model_config = ConfigDict(extra="forbid", strict=True)


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

    model_config = ConfigDict(extra="forbid", strict=False)

    text: Text
    """A text with `<mask>` where a phrase is missing, or a plain question."""


Texts = Annotated[
    list[Text],
    BeforeValidator(lambda text: [text] if isinstance(text, str) else text, json_schema_input_type=Text | list[Text]),
]


class FillRequest(Options):
    """Texts to be filled."""

    text: Texts
    """A text with `<mask>` where a phrase is missing, a plain question, or several texts."""


class FullPassage(Request):
    """A text to answer from."""

    text: Text
    id: ShortText = ""
    title: ShortText = ""


Passage = Annotated[
    FullPassage,
    BeforeValidator(
        lambda text: {"text": text} if isinstance(text, str) else text, json_schema_input_type=Text | FullPassage
    ),
]


class OverRequest(Sizes):
    """A text to be filled, or words to be scored in it, from passages that come along."""

    passages: Annotated[list[Passage], Field(min_length=1, max_length=LIMITS["passages"])]
    text: Text
    """A text with one `<mask>`."""
    words: Annotated[list[ShortText] | None, Field(max_length=LIMITS["words"])] = None
    """Words whose probability at the mask is asked for; null: the best phrases are."""


class FindRequest(Filters):
    """A phrase to be looked up word for word."""

    phrase: ShortText
    show: Annotated[int, Field(ge=0, le=LIMITS["occurrences"])] = 10
    """Places shown at most, the first of the corpus."""
    match_case: bool = False
    """Distinguish upper and lower case."""


class TraceRequest(Filters):
    """A text to be traced back to the corpus."""

    text: Text
    kinds: Annotated[list[SpanKind], Field(min_length=1)] = Field(default_factory=lambda: list(KINDS))
    """Kinds of spans that are traced."""


class LabelsRequest(Request):
    """Texts to be classified by the words of their labels."""

    text: Texts
    """A text with one `<mask>`, which a word of the right label could fill, or several texts."""
    labels: Annotated[
        dict[ShortText, Annotated[list[ShortText], Field(min_length=1, max_length=LIMITS["words"])]],
        Field(min_length=2, max_length=LIMITS["labels"]),
    ]
    """The words of each label, by its name."""
    timeout_ms: Annotated[int, Field(ge=1, le=MOST_TIMEOUT_MS)] | None = None


@dataclass(frozen=True, slots=True)
class IndexState:
    """Index that answered."""

    generation: int
    digest: str


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """Time by part: waiting, encoding texts, looking for phrases (reading blocks among it), all of it."""

    queue: float
    encode: float
    search: float
    total: float


@dataclass(frozen=True, slots=True)
class Partitions:
    """Parts of the index that were asked, and that answered."""

    asked: int = 1
    answered: int = 1
    missing_rows_share: float = 0.0
    """Of all rows, those of the partitions that did not answer; their phrases are missing from the shares."""


@dataclass(frozen=True, slots=True)
class UsedOptions:
    """Options that the texts were filled with."""

    k: int
    occurrences: int
    retrieval: RetrievalName
    documents: list[str] | None
    where: list[str]
    min_share: float
    scoring: Literal["default", "reference"]


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers in the order of the texts. All offsets are Unicode code points."""

    answers: list[JointAnswer | Answer]
    index: IndexState
    settings: UsedOptions
    took_ms: Milliseconds
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class OverAnswers:
    """Answer from passages: phrases, or the probability of each of the words."""

    answers: list[JointAnswer | Answer] | None
    scores: list[float] | None
    took_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class FindAnswer:
    """Number of places of a phrase, and the first of them."""

    found: Found
    index: IndexState
    took_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """Spans of a text with their verdicts, in order. All offsets are Unicode code points."""

    spans: list[TracedSpan]
    index: IndexState
    took_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A label, and the word that counts most for it, where it fits best; null without evidence in the index."""

    label: str
    share: float
    word: str | None
    occurrence: Occurrence | None


@dataclass(frozen=True, slots=True)
class TextLabels:
    """Shares of all labels for a text, in the order given; they sum to 1."""

    text: str
    labels: list[LabelShare]


@dataclass(frozen=True, slots=True)
class LabelAnswers:
    """The labels of each text, and notes about words that do not occur."""

    answers: list[TextLabels]
    notes: list[str]
    index: IndexState
    took_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class DocumentWindow:
    """A part of a document: `text` is the code points [window_start_char, window_end_char) of all its text."""

    id: str
    title: str
    fields: dict[str, Any]
    text: str
    window_start_char: int
    window_end_char: int
    total_chars: int
    start_char: int
    end_char: int
    generation: int


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """The encoder of the index."""

    name: str
    fingerprint: str
    dimensions: int
    """Of the vectors of the index, which may be shorter than the encoder's own."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Index that answers, and limits."""

    name: str
    """Of its folder, or of the one above where that is called index."""
    generation: int
    digest: str
    documents: int
    blocks: int
    tokens: int
    rows: int
    partitions: int
    """That answer from elsewhere, each of which may be lost for a while; 1: the server itself answers from all."""
    tier: str
    rotation: str
    """Rotation of vectors before they were cut: none, or pca."""
    encoder: EncoderFacts
    fields: list[str]
    """Kept fields of documents, for `where`."""
    defaults: dict[str, Any]
    limits: dict[str, int]
    examples: list[str]
    version: str
