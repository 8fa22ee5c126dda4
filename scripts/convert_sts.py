"""Convert the public sets of sentence pairs to what `npmlm evaluate task=sts` reads.

    python scripts/convert_sts.py FOLDER OUT

Of FOLDER (or STS, sts, SICK below it) everything that is there is converted to OUT/NAME-SPLIT.jsonl with `sentence1`,
`sentence2`, `score` (null without a gold score) and, of the years, `subset`:

- STS12-en-test … STS16-en-test, or STS12 …, with STS.input.SUBSET.txt and STS.gs.SUBSET.txt;
- STSBenchmark/sts-{train,dev,test}.csv (tab-separated, no quotation marks);
- SICK_test_annotated.txt, or SICK.txt, of which the rows of SemEval's test part are taken;
- data sets of the hub: stsbenchmark-sts/{train,validation,test}*.parquet, sts12-sts/test*.parquet, sickr-sts/…
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npm.corpus.readers import read_rows

Row = dict[str, Any]
YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Subsets that Gao et al. 2021 (arXiv 2104.08821) evaluate; the SMT part of 2013 is not public."""
HUB = {f"{year.lower()}-sts": year.lower() for year in YEARS} | {"stsbenchmark-sts": "stsb", "sickr-sts": "sickr"}
SPLITS = {"train": "train", "validation": "dev", "test": "test"}


def row_of(first: str, second: str, score: str, subset: str = "") -> Row:
    """One line of the converted file."""
    row = {"sentence1": first, "sentence2": second, "score": float(score) if score.strip() else None}
    return row | ({"subset": subset} if subset else {})


def tab_separated(file: Path) -> Iterator[list[str]]:
    """Cells of each line."""
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def year_rows(folder: Path, subsets: tuple[str, ...]) -> Iterator[Row]:
    """All subsets of a year, one after the other; another choice of subsets would have another score."""
    for subset in subsets:
        scores = (folder / f"STS.gs.{subset}.txt").read_text("utf-8").splitlines()
        cells = tab_separated(folder / f"STS.input.{subset}.txt")
        for (first, second, *_), score in zip(cells, scores, strict=True):
            yield row_of(first, second, score, subset)


def sick_rows(file: Path) -> Iterator[Row]:
    """The test part, by the names of the columns."""
    header, *lines = tab_separated(file)
    for cells in lines:
        row = dict(zip(header, cells, strict=True))
        if row.get("SemEval_set", "TEST") == "TEST":
            yield row_of(row["sentence_A"], row["sentence_B"], row["relatedness_score"])


def found_sets(place: Path) -> Iterator[tuple[str, Iterator[Row]]]:
    """Names such as stsb-dev and rows of all that lies in one folder."""
    for year, subsets in YEARS.items():
        for folder in (place / f"{year}-en-test", place / year):
            if folder.is_dir():
                yield f"{year.lower()}-test", year_rows(folder, subsets)
    for split in SPLITS.values():
        if (file := place / "STSBenchmark" / f"sts-{split}.csv").is_file():
            yield f"stsb-{split}", (row_of(cells[5], cells[6], cells[4]) for cells in tab_separated(file))
    for file in (place / "SICK_test_annotated.txt", place / "SICK.txt"):
        if file.is_file():
            yield "sickr-test", sick_rows(file)
    for folder_name, name in HUB.items():
        for spelt, split in SPLITS.items():
            if files := sorted((place / folder_name).rglob(f"{spelt}*.parquet")):
                names = ("sentence1", "sentence2", "score")
                rows = ({each: row[each] for each in names} for file in files for _, row in read_rows(file))
                yield f"{name}-{split}", rows


def main(arguments: list[str]) -> int:
    """Convert, and print a line for each file that was written."""
    if len(arguments) != 2:
        sys.stderr.write(__doc__ or "")
        return 2
    source, out = map(Path, arguments)
    out.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Iterator[Row]] = {}
    for place in (source, source / "STS", source / "sts", source / "SICK"):
        sets = dict(found_sets(place)) | sets
    if not sets:
        sys.stderr.write(f"{source} has none of the sets that {Path(__file__).name} knows\n")
        return 2
    for name, rows in sets.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (out / f"{name}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        sys.stdout.write(f"{out / name}.jsonl: {len(lines)} pairs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
