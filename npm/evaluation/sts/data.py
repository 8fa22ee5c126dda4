"""The public sets of sentence pairs as they lie in a folder, in the forms in which they are handed round.

- the year folders of STS 2012–2016 with STS.input.NAME.txt and STS.gs.NAME.txt, a file each for every subset;
- STSBenchmark/sts-{train,dev,test}.csv (tab-separated, no quotation marks);
- SICK_test_annotated.txt, or SICK.txt of which the rows of SemEval's test part are taken;
- tables with the columns sentence1, sentence2 and score: stsb-dev.jsonl, sts12-sts/test.parquet, …
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.errors import CorpusError
from npm.core.files import sha256_of_file
from npm.corpus.readers import read_lines, read_rows
from npm.evaluation.sts.correlation import SentencePairs

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
            raise CorpusError(f"{sentences}:{number}: expected two sentences with a tab between, got {line!r:.80}")
        gold = gold_lines[number - 1] if number <= len(gold_lines) else ""
        yield PairRow(cells[0], cells[1], gold, f"{sentences}:{number}", name)
    if number != len(gold_lines):
        raise CorpusError(f"{golds}: expected {number} lines as in {sentences.name}, got {len(gold_lines)}")


def benchmark_rows(file: Path) -> Iterator[PairRow]:
    """sts-dev.csv: genre, file, year, number, score, sentence, sentence and further cells, with tabs between them."""
    for number, line in read_lines(file):
        cells = line.split("\t")
        if len(cells) <= BENCHMARK_SECOND:
            raise CorpusError(f"{file}:{number}: expected 7 or more cells with tabs between, got {line!r:.80}")
        gold = cells[BENCHMARK_SCORE].strip()
        yield PairRow(cells[BENCHMARK_FIRST], cells[BENCHMARK_SECOND], gold, f"{file}:{number}")


def sick_rows(file: Path) -> Iterator[PairRow]:
    """SICK_test_annotated.txt, or the test part of SICK.txt: tabs between cells, columns named in the first line."""
    lines = read_lines(file)
    names = next((line for _, line in lines), "").split("\t")
    if missing := [name for name in SICK_COLUMNS if name not in names]:
        raise _missing(file, missing, names)
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(names):
            raise CorpusError(f"{file}:{number}: expected {len(names)} cells with tabs between, got {len(cells)}")
        row = dict(zip(names, cells, strict=True))
        if row.get(SICK_PART, "TEST") == "TEST":
            first, second, gold = (row[name] for name in SICK_COLUMNS)
            yield PairRow(first, second, gold.strip(), f"{file}:{number}")


def table_rows(file: Path) -> Iterator[PairRow]:
    """JSON lines or Parquet with sentence1, sentence2 and score; `subset` names the subset, if it is there."""
    for number, row in read_rows(file):
        if missing := [name for name in COLUMNS if name not in row]:
            raise _missing(file, missing, row)
        first, second, score = (row[name] for name in COLUMNS)
        subset = row.get(SUBSET_COLUMN)
        yield PairRow(first, second, score, f"{file}:{number}", subset if isinstance(subset, str) else "")


def _missing(file: Path, missing: Iterable[str], names: Iterable[str]) -> CorpusError:
    return CorpusError(f"{file}: no column {', '.join(missing)}; the columns are {', '.join(names) or 'none'}")


HIGHEST_GOLD = 5.0
PLACES = (".", "STS", "sts", "SICK")
"""Folders below data_dir in which a set may lie."""
TABLES = (".jsonl", ".jsonl.zst", ".parquet")
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
SICK_R_PAIRS = 9927
"""Of all splits together, as mteb has them; the test part alone has 4,927, and its score is another."""


@dataclass(frozen=True, slots=True)
class PublicSet:
    """One set: how it is called, and the names of the files and folders that may hold it."""

    name: str
    short: str
    """Begins the names of single files: stsb-dev.jsonl."""
    folder: str
    """With a file for each split, as on the hub: stsbenchmark-sts/test.parquet."""
    test_pairs: int
    """Pairs with a gold score in published results."""
    subsets: tuple[str, ...] = ()
    """Of a year folder."""


STS_B = PublicSet("STS-B", "stsb", "stsbenchmark-sts", 1379)
SICK_R = PublicSet("SICK-R", "sickr", "sickr-sts", 4927)
YEARS = (
    PublicSet(
        "STS12", "sts12", "sts12-sts", 3108, ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews")
    ),
    PublicSet("STS13", "sts13", "sts13-sts", 1500, ("FNWN", "headlines", "OnWN")),
    PublicSet(
        "STS14", "sts14", "sts14-sts", 3750, ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news")
    ),
    PublicSet(
        "STS15", "sts15", "sts15-sts", 3000, ("answers-forums", "answers-students", "belief", "headlines", "images")
    ),
    PublicSet(
        "STS16",
        "sts16",
        "sts16-sts",
        1186,
        ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    ),
)
"""The subsets that Gao et al. 2021 (SimCSE, arXiv 2104.08821) evaluate; the SMT part of 2013 is not public."""
PUBLIC_SETS = (*YEARS, STS_B, SICK_R)


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of one set in one form, and how its rows are read."""

    files: tuple[Path, ...]
    rows: Callable[[], Iterator[PairRow]]
    split: str


def read_set(chosen: PublicSet, data_dir: str | Path, *, split: str) -> SentencePairs | None:
    """The pairs of one split (train, dev or test) of a set, in whatever form lies in `data_dir`; None if there is none.

    The first form that is there is read, in the order of this file's beginning. Rows without a gold score are left out
    and counted. Raises CorpusError or CorpusError, with file and line, for a file that is not in its form, a score
    outside 0 to 5, and a year folder that lacks a subset.
    """
    found = next((each for place in PLACES for each in _forms(chosen, Path(data_dir) / place, split)), None)
    return None if found is None else _pairs(chosen, found)


def read_sets(data_dir: str | Path, *, split: str) -> list[SentencePairs]:
    """All public sets whose `split` lies in `data_dir`; see `read_set`. Raises CorpusError if there is none."""
    if not Path(data_dir).is_dir():
        raise CorpusError(f"data_dir={data_dir} must be a folder with the files of STS12–16, STS-B or SICK-R")
    read = [read_set(each, data_dir, split=split) for each in PUBLIC_SETS]
    sets = [pairs for pairs in read if pairs is not None]
    if not sets:
        looked = [f"{STS_B.short}-{split}.jsonl", f"{STS_B.folder}/{split}.parquet"]
        looked += ["STS12-en-test/", "SICK_test_annotated.txt"] if split == "test" else []
        raise CorpusError(
            f"data_dir={data_dir} has no pairs of the split {split}: expected files such as {', '.join(looked)};"
            " docs/evaluation.md names their forms"
        )
    return sets


def _forms(chosen: PublicSet, place: Path, split: str) -> Iterator[_Found]:
    """Every form in which one split of a set lies in the folder `place`."""
    if chosen in YEARS and split == "test":
        folders = (place / f"{chosen.name}-en-test", place / chosen.name)
        yield from (_year(chosen, folder) for folder in folders if folder.is_dir())
    elif chosen is STS_B and (file := place / "STSBenchmark" / f"sts-{split}.csv").is_file():
        yield _Found((file,), partial(benchmark_rows, file), split)
    elif chosen is SICK_R and split == "test":
        files = (place / "SICK_test_annotated.txt", place / "SICK.txt")
        yield from (_Found((file,), partial(sick_rows, file), split) for file in files if file.is_file())
    for spelt in SPLIT_NAMES[split]:
        names = (f"{chosen.short}-{spelt}", f"{chosen.folder}/{spelt}")
        named = (place / f"{name}{extension}" for extension in TABLES for name in names)
        tables = [file for file in named if file.is_file()]
        tables += (place / chosen.folder / "data").glob(f"{spelt}-00000-of-00001.parquet")
        yield from (_Found((file,), partial(table_rows, file), split) for file in tables)


def _year(chosen: PublicSet, folder: Path) -> _Found:
    files = {name: (folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt") for name in chosen.subsets}
    lacking = [file.name for both in files.values() for file in both if not file.is_file()]
    if lacking:
        raise CorpusError(
            f"{folder}: missing {', '.join(lacking)}: another set of subsets has another score; add them, or take this"
            " folder out of data_dir"
        )

    def rows() -> Iterator[PairRow]:
        for name, (sentences, golds) in files.items():
            yield from subset_rows(name, sentences, golds)

    return _Found(tuple(file for both in files.values() for file in both), rows, "test")


def _pairs(chosen: PublicSet, found: _Found) -> SentencePairs:
    """What the rows say, checked one by one."""
    first: list[str] = []
    second: list[str] = []
    gold: list[float] = []
    subsets: dict[str, int] = {}
    numbers: list[int] = []
    without_gold = 0
    for row in found.rows():
        score = _score(row)
        if score is None:
            without_gold += 1
            continue
        first.append(_sentence(row.first, row.where))
        second.append(_sentence(row.second, row.where))
        gold.append(score)
        numbers.append(subsets.setdefault(row.subset, len(subsets)))
    if len(gold) < 2:
        files = ", ".join(map(str, found.files))
        raise CorpusError(f"{files}: expected at least two pairs with a gold score, got {len(gold)}")
    is_all = chosen is SICK_R and len(gold) + without_gold == SICK_R_PAIRS
    return SentencePairs(
        name=chosen.name,
        split="all" if is_all else found.split,
        first=first,
        second=second,
        gold=np.array(gold),  # f64 [n]
        subsets=() if set(subsets) == {""} else tuple(subsets),
        subset_numbers=np.array(numbers, dtype=np.int64),  # i64 [n]
        without_gold=without_gold,
        digest=hashlib.sha256("".join(map(sha256_of_file, found.files)).encode()).hexdigest(),
    )


def _score(row: PairRow) -> float | None:
    """The gold score of a row, None if it has none."""
    if row.gold is None or row.gold == "":
        return None
    try:
        score = float(row.gold) if not isinstance(row.gold, bool) else math.nan
    except (TypeError, ValueError):
        score = math.nan
    if not 0 <= score <= HIGHEST_GOLD:
        raise CorpusError(f"{row.where}: the gold score must be from 0 to {HIGHEST_GOLD:g}, got {row.gold!r:.80}")
    return score


def _sentence(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CorpusError(f"{where}: expected a sentence, got {value!r:.80}")
    return value
