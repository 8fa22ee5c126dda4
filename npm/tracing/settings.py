"""Settings of tracing, and the names of kinds and verdicts."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, get_args

from pydantic import Field

from npm.core.settings import PerRequest
from npm.retrieval.settings import FilterSettings

SpanKind = Literal["name", "number", "date", "quotation"]
Verdict = Literal["found", "supported", "other", "not_found"]
"""The corpus has the span word for word in the document that the sentence is about, supports it in other words or
from another document, has another phrase in its place, or has neither."""
RightPassed = Annotated[float, Field(ge=0.5, le=0.99), PerRequest()]
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class TraceSettings(FilterSettings):
    """Settings of tracing a text."""

    kinds: Annotated[list[SpanKind], Field(min_length=1), PerRequest()] = field(default_factory=lambda: list(KINDS))
    """Kinds of spans that are traced: `name`, `number`, `date`, `quotation`."""
    right_passed: RightPassed = 0.9
    """Share of right spans that are `found` or `supported`, as measured when the support was fitted; with a smaller one
    more exchanged spans are reported."""
