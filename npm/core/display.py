"""Display: one table as text for a terminal, HTML and CSV, and what is printed made safe for a terminal.

rich is loaded when something is shown with it.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from npm.core.errors import UNPRINTABLE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

OPENING_MARK, CLOSING_MARK = "«", "»"
CONTEXT_CHARS = 150
"""Characters of a sentence shown around a phrase."""
SENTENCE_CHARS = 400
"""Characters of a sentence shown alone."""
PASSAGE_CHARS = 1500
"""Characters of a document shown around a phrase."""
REPORT_COLUMNS, MAX_REPORT_COLUMNS, MIN_TEXT_COLUMNS = 100, 120, 20
CELL_STYLE = 'style="text-align:left;vertical-align:top"'


def counted(count: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "file"), counted(12_000, "row")
    ('1 file', '12,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Marked(NamedTuple):
    """A text with a marked part, such as a sentence with a phrase."""

    before: str
    marked: str
    after: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells to show, each a text or `Marked`."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numbers: Sequence[int] | None = None
    """Columns of numbers, by default all but the first."""

    def text(self) -> RichTable:
        """For a terminal.

        Numbers are not broken, so that a column of text keeps space for its longest cell, or for MIN_TEXT_COLUMNS of
        it.
        """
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        right = range(1, len(self.header)) if self.numbers is None else self.numbers
        rows = [
            [marked_context(cell) if isinstance(cell, Marked) else Text(one_line(cell)) for cell in row]
            for row in self.rows
        ]
        heading = Text(one_line(self.title)) if self.title else None
        shown = RichTable(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for column, name in enumerate(self.header):
            if column in right:
                shown.add_column(name, justify="right", no_wrap=True)
            else:
                longest = max((len(row[column]) for row in rows), default=0)
                shown.add_column(name, min_width=min(MIN_TEXT_COLUMNS, longest))
        for row in rows:
            shown.add_row(*row)
        return shown

    def html(self, *, empty: str) -> str:
        """For a page or a notebook, the first cell of each row bold; without rows the sentence `empty`.

        >>> Table("", ["a"], []).html(empty="no <row>"), Table("t", [], []).html(empty="-")
        ('<p>no &lt;row&gt;</p>', '<p>t</p><p>-</p>')
        """
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        if not self.rows:
            return f"{title}<p>{escape(empty)}</p>"
        lines = [("th", list(map(escape, self.header)))]
        for first, *others in self.rows:
            lines.append(("td", [f"<b>{_html_cell(first)}</b>", *map(_html_cell, others)]))
        cells = ["".join(f"<{tag} {CELL_STYLE}>{cell}</{tag}>" for cell in line) for tag, line in lines]
        return f"{title}<table><tr>{'</tr><tr>'.join(cells)}</tr></table>"


def _html_cell(cell: str | Marked) -> str:
    if isinstance(cell, str):
        return escape(cell)
    before, marked, after = map(escape, cell)
    return f"{before}<mark>{marked}</mark>{after}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(markdown_table(["method", "hit@1, %"], [["a|b", "60.0"]]))
    | method | hit@1, % |
    |---|---:|
    | a\\|b | 60.0 |
    """
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    written = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([written[0], "|---" + "|---:" * (len(header) - 1) + "|", *written[1:]])


def csv_lines(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Rows as lines of CSV, each as soon as it comes.

    >>> list(csv_lines([["name", "n"], ["a, b", None]]))
    ['name,n\\n', '"a, b",\\n']
    """
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def marked_context(parts: tuple[str, str, str], *, most_chars: int = CONTEXT_CHARS) -> Text:
    """A sentence before, in and after a phrase, the phrase bold and in guillemets; shortened around it.

    >>> marked_context(("It is run from ", "Reykjavík", ".")).plain
    'It is run from «Reykjavík».'
    """
    from rich.text import Text

    before, phrase, after = parts
    room = max(0, most_chars - len(phrase))
    kept_before = min(len(before), max(room // 2, room - len(after)))
    text = Text(one_line(_end_of(before, kept_before)))
    text.append(f"{OPENING_MARK}{one_line(phrase)}{CLOSING_MARK}", style="bold")
    text.append(one_line(_beginning_of(after, room - kept_before)))
    return text


def one_line(text: str) -> str:
    """`text` for a line of a terminal: line breaks and tabs as spaces, other control characters replaced."""
    return printable("".join(" " if char.isspace() else char for char in text))


def printable(text: str) -> str:
    """`text` with control characters replaced: those of a corpus or a question must not steer a terminal."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def indented(context: Text, document: str) -> list[RenderableType]:
    """A sentence and the name of its document, indented."""
    from rich.padding import Padding
    from rich.text import Text

    return [Padding(each, (0, 0, 0, 4), expand=False) for each in (context, Text(one_line(document), style="dim"))]


def write_rendered(shown: RenderableType) -> None:
    """Write what rich renders to stdout."""
    # written by us, because rich ends the process with status 1 when the reader of a pipe goes away
    sys.stdout.write(rendered([shown]))
    sys.stdout.flush()


def rendered(parts: Iterable[RenderableType], *, columns: int | None = None) -> str:
    """Text that rich makes of the parts, without padding; as colorful and, without `columns`, as wide as stdout."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=columns, highlight=False)
    with console.capture() as printed:
        for part in parts:
            console.print(part)
    return re.sub(" +$", "", printed.get(), flags=re.MULTILINE)


def report_text(parts: Iterable[RenderableType | Table], *, min_columns: int = 80) -> str:
    """Tables, plain texts, and what rich renders, of a report; as wide as the terminal, within bounds."""
    from rich.text import Text

    columns = max(min_columns, min(MAX_REPORT_COLUMNS, shutil.get_terminal_size((REPORT_COLUMNS, 24)).columns))
    texts = (Text(part) if isinstance(part, str) else part for part in parts)
    shown = (part.text() if isinstance(part, Table) else part for part in texts)
    return rendered(shown, columns=columns)


def _end_of(text: str, most_chars: int) -> str:
    """The last characters of `text`, cut at a word.

    >>> _end_of("one two three", 9), _end_of("one", 3)
    ('… three', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[len(text) - most_chars :]
    return "… " + (cut.partition(" ")[2] if " " in cut.rstrip() else "")


def _beginning_of(text: str, most_chars: int) -> str:
    """The first characters of `text`, cut at a word.

    >>> _beginning_of("one two three", 9), _beginning_of("one", 3)
    ('one two …', 'one')
    """
    if len(text) <= most_chars:
        return text
    cut = text[:most_chars]
    return (cut.rpartition(" ")[0] if " " in cut.lstrip() else "") + " …"
