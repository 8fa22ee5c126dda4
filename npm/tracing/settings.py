"""Settings of look-up and tracing, and the names of kinds and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal, get_args

from npm.core.errors import SettingError, unknown
from npm.core.settings import Settings

SpanKind = Literal["name", "number", "date", "quotation"]
Verdict = Literal["found", "other", "not_found"]
"""The corpus has the span in a sentence about the same thing, has another phrase there, or has neither."""
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class LookupSettings(Settings):
    """Documents that are looked in."""

    documents: list[str] | None = None
    """Ids of the only documents to look in; unset: all."""
    where: list[str] = field(default_factory=list)
    """Conditions on kept fields that a document must meet, all of them, such as `lang=en` or `year>=1990`."""


class TraceSettings(LookupSettings):
    """Settings of tracing a text."""

    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    """Kinds of spans that are traced: `name`, `number`, `date`, `quotation`."""

    def check(self) -> None:
        """Raise SettingError for unknown kinds, or none."""
        check_names("kinds", self.kinds, KINDS)
        if not self.kinds:
            raise SettingError("kinds is empty: name one kind at least, or leave it out")


def check_names(key: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise SettingError for a name in the setting `key` that is not known."""
    for name in names:
        if name not in known:
            raise unknown(f"name in {key}", name, known)
