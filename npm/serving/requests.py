"""Requests over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WrapValidator

from npm.tracing.settings import KINDS, RightPassed, SpanKind

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
MAX_AROUND_CHARS, MAX_TIMEOUT_MS = 100_000, 3_600_000

Text = Annotated[str, StringConstraints(max_length=LIMITS["text_chars"])]
ShortText = Annotated[str, StringConstraints(max_length=1_000)]
RetrievalName = Literal["dense", "bm25", "blocks", "hybrid"]


class Request(BaseModel):
    """A body: a field that is not declared, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Timed(Request):
    """Time for an answer."""

    timeout_ms: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = None
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
    where: Annotated[list[ShortText] | None, Field(max_length=LIMITS["where"])] = None
    """Conditions on the documents' kept fields, such as `lang=en` or `year>=1990`; all must hold."""


class Options(Sizes, Filters):
    """Options of filling; null takes the server's choice."""

    retrieval: RetrievalName | None = None
    """Candidates that phrases are searched in."""
    min_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Fraction of the evidence that a clear first phrase has at least; `status` is `low_evidence` if it has less. With
    a value above 0, a text with a capitalized word that does not occur in the corpus has this status, too."""
    min_confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    """Confidence that a clear answer has at least; `status` is `low_evidence` if it has less."""
    scoring: Literal["default", "reference"] = "default"
    """`reference` fills as the paper's implementation does."""
    allow_partial: bool = False
    """Accept an answer from the rest of the index while a partition does not answer, instead of 503."""


class FillQuery(Options):
    """A text to be filled, in an address; numbers are written as text there."""

    model_config = ConfigDict(strict=False)

    text: Text
    """A question, or a text with `<mask>` where a phrase is missing."""


class SingleText(list[str]):
    """One text that was sent as a string, which messages and scores do not number."""


Texts = Annotated[
    list[str],  # each is checked by its route, which answers the others
    WrapValidator(
        lambda text, validate: SingleText([text]) if isinstance(text, str) else validate(text),
        json_schema_input_type=Text | list[Text],
    ),
]


class FillRequest(Options):
    """Texts to be filled."""

    text: Texts
    """A question, or a text with `<mask>` where a phrase is missing, or several of them."""


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
    right_passed: RightPassed = 0.9
    """Share of right spans that are `found`, as measured when the support was fitted."""


class LabelsRequest(Timed):
    """Texts to be classified by the words of their labels."""

    text: Texts
    """A text with one `<mask>`, which a word of the right label could fill, or several texts."""
    labels: Annotated[
        dict[ShortText, Annotated[list[ShortText], Field(min_length=1, max_length=LIMITS["words"])]],
        Field(min_length=2, max_length=LIMITS["labels"]),
    ]
    """The words of each label, by its name."""
