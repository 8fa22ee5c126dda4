"""Files of sentence pairs in every form in which the public sets are handed round, and what broken ones get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from npm.core.errors import CorpusError, UserError
from npm.evaluation.sts.data import PUBLIC_SETS, SICK_R, STS_B, YEARS, read_set, read_sets
from tests.evaluation.sts.sentence_pairs import write_lines

ROWS: list[dict[str, Any]] = [
    {"sentence1": "A plane lands.", "sentence2": "An air plane is landing.", "score": 5.0},
    {"sentence1": "Łódź is a city.", "sentence2": "A dog barks.", "score": 0},
    {"sentence1": "A man eats.", "sentence2": "Someone eats.", "score": 3.25},
]
FIRST = [row["sentence1"] for row in ROWS]
STS12, STS13 = YEARS[:2]


def write_jsonl(file: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    return write_lines(file, *(json.dumps(row, ensure_ascii=False) for row in rows))


def write_year(folder: Path, subsets: tuple[str, ...] = STS13.subsets) -> Path:
    """A year folder with two pairs in each subset, one of them without a gold score in the first."""
    for number, name in enumerate(subsets):
        write_lines(folder / f"STS.input.{name}.txt", f"{name} one\ttwo\tsource", f"{name} three\tfour")
        write_lines(folder / f"STS.gs.{name}.txt", "" if number == 0 else "1.5", "4.2")
    return folder


@pytest.mark.parametrize("name", ["stsb-dev.jsonl", "stsbenchmark-sts/validation.jsonl", "sts/stsb-dev.jsonl"])
def test_tables_of_json_lines_are_read_under_each_of_their_names(name: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / name)
    pairs = read_set(STS_B, tmp_path, split="dev")
    assert pairs is not None
    assert (pairs.name, pairs.split, pairs.subsets, pairs.without_gold) == ("STS-B", "dev", (), 0)
    assert pairs.first == FIRST
    assert pairs.second == [row["sentence2"] for row in ROWS]
    assert pairs.gold.tolist() == [5.0, 0.0, 3.25]
    assert read_set(STS_B, tmp_path, split="test") is None
    assert read_set(SICK_R, tmp_path, split="dev") is None


@pytest.mark.parametrize("name", ["sts12-sts/test.parquet", "sts12-sts/data/test-00000-of-00001.parquet"])
def test_parquet_is_read_as_on_the_hub(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / name)
    (pairs,) = read_sets(tmp_path, split="test")
    assert (pairs.name, pairs.first) == ("STS12", FIRST)


@pytest.mark.parametrize("folder", ["STS13-en-test", "STS/STS13-en-test", "STS13"])
def test_year_folders_give_all_subsets_in_a_row_without_the_pairs_that_have_no_gold(
    folder: str, tmp_path: Path
) -> None:
    write_year(tmp_path / folder)
    (pairs,) = read_sets(tmp_path, split="test")
    assert (pairs.name, pairs.subsets, pairs.without_gold) == ("STS13", ("FNWN", "headlines", "OnWN"), 1)
    assert pairs.first == ["FNWN three", "headlines one", "headlines three", "OnWN one", "OnWN three"]
    assert pairs.second == ["four", "two", "four", "two", "four"]
    assert pairs.gold.tolist() == [4.2, 1.5, 4.2, 1.5, 4.2]
    assert pairs.subset_numbers.tolist() == [0, 1, 1, 2, 2]


def test_the_benchmark_is_read_from_its_tab_separated_file(tmp_path: Path) -> None:
    lines = ['main-news\tMSRpar\t2012\t1\t4.5\tHe said "no.\tHe said: no.', "g\tf\t2013\t2\t0.5\tOne.\tTwo.\ta\tb"]
    write_lines(tmp_path / "STS" / "STSBenchmark" / "sts-test.csv", *lines)
    (pairs,) = read_sets(tmp_path, split="test")
    assert pairs.first == ['He said "no.', "One."]
    assert pairs.gold.tolist() == [4.5, 0.5]


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
WHOLE_SICK = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set"


def test_sick_is_read_from_its_test_file_and_from_the_test_part_of_the_whole_file(tmp_path: Path) -> None:
    whole = ["1\tA dog.\tA cat.\tNEUTRAL\t2.5\tTRAIN", "2\tA man.\tA woman.\tNEUTRAL\t3.1\tTEST"]
    write_lines(tmp_path / "whole" / "SICK.txt", WHOLE_SICK, *whole, "3\tA car.\tA bus.\tNEUTRAL\t4\tTEST")
    part = ["6\tA man.\tA woman.\t3.1\tNEUTRAL", "7\tA car.\tA bus.\t4\tNEUTRAL"]
    write_lines(tmp_path / "part" / "SICK" / "SICK_test_annotated.txt", SICK, *part)
    for place in ("whole", "part"):
        (pairs,) = read_sets(tmp_path / place, split="test")
        assert (pairs.name, pairs.split) == ("SICK-R", "test")
        assert pairs.first == ["A man.", "A car."]
        assert pairs.gold.tolist() == [3.1, 4.0]


def test_a_sick_file_with_the_rows_of_all_splits_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "sickr-sts" / "test.jsonl", [*ROWS, {**ROWS[0], "score": None}])
    (pairs,) = read_sets(tmp_path, split="test")
    assert (pairs.split, len(pairs), pairs.without_gold) == ("test", 3, 1)
    monkeypatch.setattr("npm.evaluation.sts.data.SICK_R_PAIRS", 4)
    (pairs,) = read_sets(tmp_path, split="test")
    assert pairs.split == "all"


def test_a_column_may_name_subsets_and_the_digest_tells_files_apart(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a" / "sts16-test.jsonl", [{**row, "subset": row["sentence1"][:1]} for row in ROWS])
    write_jsonl(tmp_path / "b" / "sts16-test.jsonl")
    write_jsonl(tmp_path / "c" / "sts16-test.jsonl")
    a, b, c = (read_sets(tmp_path / place, split="test")[0] for place in "abc")
    assert (a.subsets, a.subset_numbers.tolist()) == (("A", "Ł"), [0, 1, 0])
    assert b.subsets == ()
    assert a.digest != b.digest == c.digest


def test_sets_come_in_the_order_of_the_published_tables(tmp_path: Path) -> None:
    write_year(tmp_path / "STS12-en-test", STS12.subsets)
    write_jsonl(tmp_path / "sickr-test.jsonl")
    write_jsonl(tmp_path / "stsb-test.jsonl")
    assert [pairs.name for pairs in read_sets(tmp_path, split="test")] == ["STS12", "STS-B", "SICK-R"]
    assert [each.name for each in PUBLIC_SETS] == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]


def test_a_folder_without_any_set_or_none_at_all_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "notes.txt", "nothing")
    with pytest.raises(CorpusError, match="split dev"):
        read_sets(tmp_path, split="dev")
    with pytest.raises(CorpusError, match="nowhere"):
        read_sets(tmp_path / "nowhere", split="dev")


def test_a_year_that_lacks_a_subset_is_refused_and_not_scored_without_it(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "STS13-en-test")
    (folder / "STS.gs.OnWN.txt").unlink()
    with pytest.raises(CorpusError, match=r"STS.gs.OnWN.txt"):
        read_sets(tmp_path, split="test")


def broken_year(tmp_path: Path, *, sentences: list[str], golds: list[str]) -> None:
    folder = write_year(tmp_path / "STS13-en-test")
    write_lines(folder / "STS.input.OnWN.txt", *sentences)
    write_lines(folder / "STS.gs.OnWN.txt", *golds)


@pytest.mark.parametrize(
    ("sentences", "golds", "got"),
    [
        (["a\tb", "no tab"], ["1", "2"], "no tab"),
        (["a\tb", "c\td"], ["1", "2", "3"], "got 3"),
        (["a\tb", "c\td"], ["1"], "got 1"),
        (["a\tb", "c\td"], ["1", "5.1"], "'5.1'"),
        (["a\tb", "c\td"], ["1", "nan"], "'nan'"),
        (["a\tb", "c\t "], ["1", "2"], "' '"),
    ],
)
def test_broken_lines_of_a_year_are_refused_with_their_place(
    sentences: list[str], golds: list[str], got: str, tmp_path: Path
) -> None:
    broken_year(tmp_path, sentences=sentences, golds=golds)
    with pytest.raises(CorpusError, match=rf"OnWN\.txt.*{got}"):
        read_sets(tmp_path, split="test")


@pytest.mark.parametrize(
    "change", [{"score": "high"}, {"score": -0.5}, {"score": True}, {"sentence2": ""}, {"sentence1": 7}]
)
def test_broken_rows_of_a_table_are_refused_with_their_line(change: dict[str, Any], tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "stsb-test.jsonl", [ROWS[0], {**ROWS[1], **change}, ROWS[2]])
    with pytest.raises(CorpusError, match=f"{file}:2"):
        read_sets(tmp_path, split="test")


def test_missing_columns_are_named(tmp_path: Path) -> None:
    rows = [{"text1": "a", "sentence2": "b", "score": 1}]
    write_jsonl(tmp_path / "json" / "stsb-test.jsonl", rows)
    (tmp_path / "parquet").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "parquet" / "stsb-test.parquet")
    write_lines(tmp_path / "sick" / "SICK_test_annotated.txt", "pair_ID\tsentence_A\tsentence_B\tlabel", "1\ta\tb\tN")
    with pytest.raises(CorpusError, match="no column sentence1"):
        read_sets(tmp_path / "json", split="test")
    with pytest.raises(CorpusError, match="sentence1"):
        read_sets(tmp_path / "parquet", split="test")
    with pytest.raises(CorpusError, match="no column relatedness_score"):
        read_sets(tmp_path / "sick", split="test")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("SICK_test_annotated.txt", [SICK, "1\ta\tb"]),
        ("SICK_test_annotated.txt", [SICK, "1\ta\tb\t3\tN"]),
        ("STSBenchmark/sts-test.csv", ["main-news\tMSRpar\t2012\t1\t4.5\tone sentence"]),
        ("stsb-test.jsonl", ["[1, 2]"]),
    ],
    ids=["too few cells", "a single pair", "one sentence", "no object"],
)
def test_files_that_are_not_in_their_form_are_refused(name: str, lines: list[str], tmp_path: Path) -> None:
    write_lines(tmp_path / name, *lines)
    with pytest.raises(UserError):
        read_sets(tmp_path, split="test")
