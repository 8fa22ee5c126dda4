"""The rows of a file of sentence pairs, one at a time, whatever form it has. Their values are not checked here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npm.corpus.rows import TaskDataError, read_rows
from npm.corpus.sources import Source, read_lines, read_parquet

COLUMNS = ("sentence1", "sentence2", "score")
SUBSET_COLUMN = "subset"
SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
SICK_PART = "SemEval_set"
BENCHMARK_SCORE, BENCHMARK_FIRST, BENCHMARK_SECOND = 4, 5, 6
"""Cells of a line of sts-dev.csv."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair as a file has it."""

    first: Any
    second: Any
    gold: Any
    """None or "" where the pair has no gold score."""
    where: str
    subset: str = ""


def subset_rows(name: str, sentences: Path, golds: Path) -> Iterator[PairRow]:
    """STS.input.NAME.txt and STS.gs.NAME.txt: two sentences and further cells a line; the gold score, or nothing."""
    gold_lines = [line.strip() for _, line in read_lines(golds)]
    number = 0
    for number, line in read_lines(sentences):
        cells = line.split("\t")
        if len(cells) < 2:
            raise broken_pairs(
                f"{sentences}:{number}", "two sentences with a tab between them", f"{len(cells)} cell: {line!r:.60}"
            )
        gold = gold_lines[number - 1] if number <= len(gold_lines) else ""
        yield PairRow(cells[0], cells[1], gold, f"{sentences}:{number}", name)
    if number != len(gold_lines):
        raise broken_pairs(
            str(golds), f"a line for each of the {number} of {sentences.name}", f"{len(gold_lines)} lines"
        )


def benchmark_rows(file: Path) -> Iterator[PairRow]:
    """sts-dev.csv: genre, file, year, number, score, sentence, sentence and further cells, with tabs between them."""
    for number, line in read_lines(file):
        cells = line.split("\t")
        if len(cells) <= BENCHMARK_SECOND:
            raise broken_pairs(
                f"{file}:{number}", "7 or more cells with tabs between them", f"{len(cells)}: {line!r:.60}"
            )
        gold = cells[BENCHMARK_SCORE].strip()
        yield PairRow(cells[BENCHMARK_FIRST], cells[BENCHMARK_SECOND], gold, f"{file}:{number}")


def sick_rows(file: Path) -> Iterator[PairRow]:
    """SICK_test_annotated.txt, or the test part of SICK.txt: tabs between cells, columns named in the first line."""
    lines = read_lines(file)
    names = next((line for _, line in lines), "").split("\t")
    if missing := [name for name in SICK_COLUMNS if name not in names]:
        raise _lacks(file, missing, names)
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(names):
            raise broken_pairs(f"{file}:{number}", f"{len(names)} cells with tabs between them", f"{len(cells)}")
        row = dict(zip(names, cells, strict=True))
        if row.get(SICK_PART, "TEST") == "TEST":
            first, second, gold = (row[name] for name in SICK_COLUMNS)
            yield PairRow(first, second, gold.strip(), f"{file}:{number}")


def table_rows(file: Path) -> Iterator[PairRow]:
    """JSON lines or Parquet with sentence1, sentence2 and score; `subset` names the subset, if it is there."""
    for number, row in _rows_of(file):
        if missing := [name for name in COLUMNS if name not in row]:
            raise _lacks(file, missing, list(row))
        first, second, score = (row[name] for name in COLUMNS)
        subset = row.get(SUBSET_COLUMN)
        yield PairRow(first, second, score, f"{file}:{number}", subset if isinstance(subset, str) else "")


def _rows_of(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if file.suffix != ".parquet":
        return read_rows(file)
    source = Source(path=str(file), name=file.name, format="parquet")
    wanted = (*COLUMNS, SUBSET_COLUMN)
    return read_parquet(source, columns=wanted, required=COLUMNS[0], fix=f"name the columns {', '.join(COLUMNS)}")


def broken_pairs(where: str, expected: str, got: str) -> TaskDataError:
    """The error for a file that is not in its form."""
    return TaskDataError(
        "a file of sentence pairs is not in its form",
        expected=expected,
        got=got,
        where=where,
        fix="fetch the file again, or mend this line",
    )


def _lacks(file: Path, missing: Iterable[str], names: Sequence[str]) -> TaskDataError:
    return TaskDataError(
        f"{file.name} lacks the columns {', '.join(missing)}",
        expected=", ".join(SICK_COLUMNS if file.suffix == ".txt" else COLUMNS),
        got=", ".join(map(repr, names)) or "nothing",
        where=str(file),
        fix="rename the columns of the file",
    )
