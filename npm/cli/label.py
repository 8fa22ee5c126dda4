"""`npmlm label`: texts of a file in, their labels out, with the places of the corpus that support them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npm.cli.base import EncoderCommand, Output
from npm.cli.registry import verb
from npm.core.errors import SettingError, missing
from npm.core.settings import Fraction, PathText

if TYPE_CHECKING:
    from npm.evaluation.labeling import LabeledText

ADDED = (
    *("label", "label_score", "label_word", "label_title", "label_document", "label_sentence"),
    *("next_label", "next_score", "label_note"),
)
"""Columns added to a table; in JSON lines, `labels` holds all but the last three."""
CONFIDENCE = "label_confidence"
"""Column added with known=."""
CUT_NOTE = "the text is longer than the encoder takes: it was cut"


class LabelCommand(EncoderCommand):
    """Label texts by the words of the labels, with the places of the corpus that support each label."""

    labels: str = ""
    """The words of each label, {world: [politics, war], sports: [sport]}, or labels that are their own words,
    [politics, sport]; a .yaml or .json file of either; or a closed task by its name or YAML file. Required."""
    texts: PathText = ""
    """File with a text a line (.txt) or a row (.csv, .tsv, .jsonl, .json, .parquet). Required."""
    column: str = ""
    """Column of the texts; empty: `text`, or what the task says."""
    template: str = ""
    """Sentence with one <mask> around the columns of a row, such as {text} It was <mask>.; empty: the task's, or {text}
    The text topic is about <mask>."""
    multi_label: bool = False
    """A text may have several labels, or none: a score is then the fraction of the corpus's sentences that fit the
    label less well. Else labels compete, and a score is the share of the evidence."""
    min_score: Fraction | None = None
    """Least score of a label; a text without one stays unlabeled. Unset: 0, with multi_label 0.9."""
    known: PathText = ""
    """File of rows, as texts=, with the right label of each: the table then says how likely each first label is right,
    as fitted to these rows."""
    known_column: str = "label"
    """Column of the right labels in known=."""
    out: PathText = ""
    """File to write, .csv or .jsonl, replaced where it exists; empty: standard output."""
    output: Output = "table"
    """Without out=, `table` writes CSV, `json` JSON lines."""


@verb(
    LabelCommand,
    'npmlm label index=DIR "labels={world: [politics, war], sports: [sport]}" texts=FILE out=labels.csv',
    "index labels texts column template multi_label min_score known known_column out output encoder device",
)
def run_label(settings: LabelCommand) -> int:
    """Label the texts of a file."""
    if not (settings.labels and settings.texts):
        raise missing("texts" if settings.labels else "labels", "labels=[politics, sport] texts=FILE")
    from npm.cli.progress import StageProgress
    from npm.cli.rows import SHARE_DIGITS, cell_text, check_out, columns_of, read_table, write_rows, writes_csv
    from npm.evaluation.labeling import fit_label_confidence, label_rows, label_task

    for read in filter(None, (settings.texts, settings.known)):
        check_out(settings.out, read)
    if settings.known and settings.multi_label:
        raise SettingError("known= needs labels that compete: leave multi_label=false")
    added = (*ADDED, CONFIDENCE) if settings.known else ADDED
    task = label_task(settings.labels, settings.template, settings.column)
    rows = read_table("texts", settings.texts, line_column=settings.column or "text", added=(*added, "labels"))
    filler = settings.open_filler()
    is_csv = writes_csv(settings.out, settings.output)
    with StageProgress() as progress:
        confidence = None
        if settings.known:
            known = read_table("known", settings.known)
            right = [cell_text(row, settings.known_column) for row in known]
            first = list(label_rows(filler, task, [(row.place, row.cells) for row in known], progress=progress))
            confidence = fit_label_confidence(task, first, right)
            progress.say(f"note: {confidence.right} of {confidence.rows} rows of {settings.known} got the right label")
        labeled = label_rows(
            filler,
            task,
            [(row.place, row.cells) for row in rows],
            multi_label=settings.multi_label,
            min_score=settings.min_score,
            progress=progress,
            notice=lambda note: progress.say(f"note: {note}"),
        )
        written = (
            row.cells
            | label_cells(found, is_csv)
            | ({CONFIDENCE: round(confidence.of(found), SHARE_DIGITS)} if confidence else {})
            for row, found in zip(rows, labeled, strict=True)
        )
        write_rows(settings.out, settings.output, [*columns_of(rows), *added], written)
    return 0


def label_cells(found: LabeledText, is_csv: bool) -> dict[str, Any]:
    """The cells that are added to the row of a text: of a table, the place of the first label alone."""
    from npm.cli.rows import SHARE_DIGITS, place_cells

    labels = [
        {"label": each.label, "label_score": round(each.score, SHARE_DIGITS), "label_word": each.word or ""}
        | place_cells("label", each.occurrence)
        for each in found.labels
    ]
    after = found.ranked[len(labels) : len(labels) + 1]
    following = {
        "next_label": after[0].label if after else "",
        "next_score": round(after[0].score, SHARE_DIGITS) if after else "",
        "label_note": CUT_NOTE if found.cut else "",
    }
    if not is_csv:
        return {"labels": labels} | following
    joined = {name: " | ".join(str(each[name]) for each in labels) for name in ("label", "label_score")}
    return dict.fromkeys(ADDED, "") | (labels[0] if labels else {}) | joined | following
