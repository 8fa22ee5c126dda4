"""Requests over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
    WrapValidator,
    create_model,
)

from npm.core.settings import field_texts, per_request
from npm.retrieval.settings import FillSettings, FilterSettings
from npm.tracing.settings import KINDS, RightPassed, SpanKind

OPTIONS = {name: get_args(hint) for name, hint in per_request(FillSettings).items()}
"""Type and marks, PerRequest last, of each option of filling."""
LIMITS = {"text_chars": 10_000, "labels": 32, "words": 64, "passages": 64}
LIMITS |= {name: marks[-1].most for name, (_, *marks) in OPTIONS.items() if marks[-1].most}
"""Largest values and longest lists of a request, for any settings of the server."""
MAX_AROUND_CHARS, MAX_TIMEOUT_MS = 100_000, 3_600_000

Text = Annotated[str, StringConstraints(max_length=LIMITS["text_chars"])]
ShortText = Annotated[str, StringConstraints(max_length=1_000)]
Kind = TypeVar("Kind", bound="Request")


class Request(BaseModel):
    """A body: a field that is not declared, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    def given(self, kind: type[FilterSettings]) -> dict[str, Any]:
        """The options of settings class `kind` that the request has; of those that are null the server decides."""
        values = {name: getattr(self, name, None) for name in per_request(kind)}
        return {name: value for name, value in values.items() if value is not None}


def with_options(kind: type[FilterSettings], *names: str) -> Callable[[type[Kind]], type[Kind]]:
    """Give a request the options of `kind`, or those of `names`; null, the default, takes the server's choice."""

    def extended(request: type[Kind]) -> type[Kind]:
        options: dict[str, Any] = {}
        for name in names or per_request(kind):
            description = field_texts(kind)[name]
            options[name] = (_json_type(name) | None, Field(None, description=description))
        return create_model(request.__name__, __base__=request, __module__=__name__, __doc__=request.__doc__, **options)

    return extended


def _json_type(name: str) -> Any:
    """The type of an option in JSON: names for members of an enumeration, numbers and lists up to its `most`."""
    hint, *limits, mark = OPTIONS[name]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(member.value for member in hint)]
    if hint in (list[str], list[str] | None):
        return Annotated[list[ShortText], Field(max_length=mark.most)]
    if mark.most:
        limits.append(Field(le=mark.most))
    return Annotated[hint, *limits] if limits else hint


class Timed(Request):
    """Time for an answer."""

    timeout_ms: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = None
    """Time for the answer; at most the server's limit counts."""


@with_options(FillSettings)
class Options(Timed):
    """Options of filling; null takes the server's choice."""

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
    Annotated[list[str], FailFast()],  # each is checked by its route, which answers the others
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


@with_options(FillSettings, "k", "occurrences")
class OverRequest(Timed):
    """Texts to be filled, or words to be scored in them, from passages that come along."""

    passages: Annotated[list[Passage], Field(min_length=1, max_length=LIMITS["passages"])]
    """Texts to answer from, each a string or an object with id and title."""
    text: Texts
    """A text with `<mask>`, exactly one with `words`, or several texts."""
    words: Annotated[list[ShortText] | None, Field(min_length=1, max_length=LIMITS["words"])] = None
    """Words that are compared at the mask; null: the best phrases are returned."""


@with_options(FilterSettings)
class FindRequest(Timed):
    """A phrase to be looked up word for word."""

    phrase: ShortText
    """The phrase, with one content word at least."""
    show: Annotated[int, Field(ge=0, le=LIMITS["occurrences"])] = 10
    """Places shown at most, the first of the corpus."""
    match_case: bool = False
    """Distinguish upper and lower case."""


@with_options(FilterSettings)
class TraceRequest(Timed):
    """A text to be traced back to the corpus."""

    text: Text
    """A text of one or more sentences."""
    kinds: Annotated[list[SpanKind], Field(min_length=1)] = Field(default_factory=lambda: list(KINDS))
    """Kinds of spans that are traced."""
    right_passed: RightPassed = 0.9
    """Share of right spans that are `found` or `supported`, as measured when the support was fitted."""


class LabelsRequest(Timed):
    """Texts to be classified by the words of their labels."""

    text: Texts
    """A text with one `<mask>`, which a word of the right label could fill, or several texts."""
    labels: Annotated[
        dict[ShortText, Annotated[list[ShortText], Field(min_length=1, max_length=LIMITS["words"])]],
        Field(min_length=2, max_length=LIMITS["labels"]),
    ]
    """The words of each label, by its name."""
