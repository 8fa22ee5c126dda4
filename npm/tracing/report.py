"""A traced text as a page in one file, to be sent or printed: no script, and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from npm.core.types import Occurrence
from npm.tracing.settings import VERDICTS
from npm.tracing.trace import Trace, TracedSpan

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Traced: {title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere }}
a {{ color: inherit; text-decoration: none; border-width: 0 0 2px; border-bottom-style: solid; padding: 0 .1em }}
.found, .supported {{ border-color: light-dark(#2a7d3f, #6fcf8b) }}
.likely {{ border-bottom-style: dashed; border-left-style: dashed }}
.unsure {{ border-bottom-style: dotted; border-left-style: dotted; border-color: light-dark(#6b6b6b, #a8a8a8) }}
.text .unsure::after {{ content: "?" }}
.other {{ border-color: light-dark(#b26a00, #ffb84d); background: light-dark(#fff1d6, #4a3510) }}
.not_found {{ border-color: light-dark(#b3261e, #ff8a80); background: light-dark(#fde4e1, #4d1f1b) }}
li {{ margin: 1rem 0; padding-left: .7rem; border-width: 0 0 0 4px; border-left-style: solid }}
blockquote {{ margin: .2rem 0 }}
small {{ opacity: .8 }}
</style>
{sections}
<p><small>A verdict says what the documents contain. It does not say whether the text is true.</small></p>
</html>
"""


def trace_page(traces: Sequence[tuple[str, Trace]]) -> str:
    """A page of HTML with the traced texts of files, whose names may be empty."""
    names = [name or "text" for name, _ in traces]
    sections = (line for number, (_, trace) in enumerate(traces) for line in _section(number, names[number], trace))
    return PAGE.format(title=escape(", ".join(names)), sections="\n".join(sections))


def _section(number: int, name: str, trace: Trace) -> Iterator[str]:
    """The text with a link from each span to its entry in the list below."""
    counts = ", ".join(f"{trace.count(verdict)} {_words(verdict)}" for verdict in VERDICTS)
    yield f"<h1>{escape(name)}</h1>\n<p>{len(trace.spans)} names, numbers, dates and quotations: {counts}</p>"
    marked, done = [], 0
    for place, span in enumerate(trace.spans):
        link = f'<a class="{_classes(span)}" href="#s{number}-{place}">'
        marked += [escape(trace.text[done : span.start_char]), link, escape(span.text), "</a>"]
        done = span.end_char
    yield f'<p class="text">{"".join(marked)}{escape(trace.text[done:])}</p>\n<ol>'
    yield from (_entry(f"s{number}-{place}", span) for place, span in enumerate(trace.spans))
    yield "</ol>"


def _entry(anchor: str, span: TracedSpan) -> str:
    """A span with its verdict, and the sentence that supports it or has another phrase instead."""
    instead = "" if span.other is None else f" The documents have <b>{escape(span.other)}</b>."
    place = span.place if span.other is None else span.other_place
    support = f"support {span.support:.2f}" + (f" ({span.certainty})" if span.certainty else "")
    heading = f"<b>{escape(span.text)}</b>: {_words(span.verdict)}, {support}.{instead}"
    return f'<li id="{anchor}" class="{_classes(span)}">{heading}{_quotation(place)}</li>'


def _classes(span: TracedSpan) -> str:
    return f"{span.verdict} {span.certainty}".rstrip()


def _quotation(place: Occurrence | None) -> str:
    if place is None:
        return ""
    before, phrase, after = map(escape, place.parts)
    return (
        f"<blockquote>{before}<mark>{phrase}</mark>{after}<br><small>{escape(place.document_name)}</small></blockquote>"
    )


def _words(verdict: str) -> str:
    return verdict.replace("_", " ")
