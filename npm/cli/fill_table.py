"""`npmlm fill table=`: a row per subject, with the value, its confidence, its place, and the second answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npm.cli.base import Output
from npm.cli.progress import StageProgress
from npm.cli.rows import SHARE_DIGITS, TableRow, columns_of, filled_template, place_cells, read_table, write_rows
from npm.core.errors import missing
from npm.core.types import Answer
from npm.retrieval.queries import check_template, read_query

if TYPE_CHECKING:
    from npm.retrieval.filler import PhraseFiller

ROWS_AT_ONCE = 64
ADDED = ("answer", "answer_share", "second_answer", "second_share", "answer_confidence")
ADDED_PLACE = ("answer_title", "answer_document", "answer_sentence", "answer_status", "answer_note")


def table_texts(table: str, template: str) -> list[tuple[TableRow, str]]:
    """The rows of the file `table` with the template filled from each, all checked.

    Raises SettingError for a template without a column, QueryError for one without a mask and a cell with
    one, CorpusError for a row.
    """
    if not (table and template):
        raise missing("template" if table else "table", 'table=FILE template="{name} was founded in <mask>."')
    check_template(template)
    rows = read_table("table", table, added=ADDED + ADDED_PLACE)
    return [(row, read_query(filled_template(template, row), where=f"{row.place}, template")) for row in rows]


def fill_table(
    filler: PhraseFiller, asked: list[tuple[TableRow, str]], out: str, output: Output, *, by_doubt: bool = False
) -> None:
    """Answer each row, and write all rows as `write_rows` does; with `by_doubt` the least certain ones first."""
    columns = [*columns_of(row for row, _ in asked), *ADDED, *ADDED_PLACE]
    with StageProgress() as progress:

        def rows() -> Iterator[dict[str, Any]]:
            for first in range(0, len(asked), ROWS_AT_ONCE):
                batch = asked[first : first + ROWS_AT_ONCE]
                answers = filler.fill([text for _, text in batch], 2, occurrences=1)
                for (row, _), answer in zip(batch, answers, strict=True):
                    yield row.cells | answer_cells(answer)
                progress("fill", first + len(batch), len(asked))

        write_rows(out, output, columns, sorted(rows(), key=certainty) if by_doubt else rows())


def certainty(cells: dict[str, Any]) -> tuple[bool, float]:
    """Sort key: unanswered rows first, then ascending confidence, or ascending share where the reader has none."""
    known = cells["answer_confidence"]
    return cells["answer"] != "", (cells["answer_share"] or 0.0) if known == "" else known


def answer_cells(answer: Answer) -> dict[str, Any]:
    """The cells that an answer adds to its row."""
    cells: list[Any] = []
    for phrase in (*answer.phrases[:2], None, None)[:2]:
        cells += ["", ""] if phrase is None else [phrase.phrase, round(phrase.score, SHARE_DIGITS)]
    places = answer.phrases[0].occurrences if answer.phrases else ()
    place = place_cells("answer", next(iter(places), None))
    # A note that there is no second phrase would only repeat the empty cells.
    note = "; ".join(answer.notes) if answer.cut or not answer.phrases or answer.status != "ok" else ""
    cells.append("" if answer.confidence is None else round(answer.confidence, SHARE_DIGITS))
    return dict(zip(ADDED, cells, strict=True)) | place | {"answer_status": answer.status, "answer_note": note}
