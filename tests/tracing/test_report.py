"""The page of a traced text: what a reader sees without colour, in the text and in the list."""

from __future__ import annotations

import re

from npm.tracing.report import trace_page
from npm.tracing.trace import Trace, TracedSpan

TEXT = "Ada met Bob and Cem and Dov."


def page_of(*spans: tuple[str, str, float]) -> str:
    """The page of TEXT with spans that have a text, a verdict and a support."""
    traced = tuple(
        TracedSpan("name", text, TEXT.index(text), TEXT.index(text) + len(text), verdict, support)  # type: ignore[arg-type]
        for text, verdict, support in spans
    )
    return trace_page([("", Trace(TEXT, traced))])


def line_styles(page: str, span: str) -> set[str]:
    """The styles of the line under a span in the text, but for its colour."""
    found = re.search(rf'<a class="([^"]*)"[^>]*>{span}</a>', page)
    assert found is not None
    rules = re.findall(r"^([^{}\n]*) \{ (.*) \}$", page, re.MULTILINE)
    classes = {f".{name}" for name in found[1].split()}
    own = [style for selectors, style in rules if classes & set(selectors.split(", "))]
    return set(re.findall(r"border-bottom-style: (\w+)", " ".join(own)))


def test_low_support_is_told_from_high_without_colour() -> None:
    page = page_of(("Ada", "supported", 0.95), ("Bob", "supported", 0.6), ("Cem", "found", 0.3), ("Dov", "other", 0.3))
    styles = [line_styles(page, span) for span in ("Ada", "Bob", "Cem")]
    assert len(set(map(frozenset, styles))) == 3, styles
    entries = re.findall(r"<li [^>]*><b>(\w+)</b>: (.*?)\.?</li>", page)
    assert entries == [
        ("Ada", "supported, support 0.95 (sure)"),
        ("Bob", "supported, support 0.60 (likely)"),
        ("Cem", "found, support 0.30 (unsure)"),
        ("Dov", "other, support 0.30"),  # the verdict says enough
    ]
