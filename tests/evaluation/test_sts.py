"""Task `sts`: correlations, files of pairs and whitening, by hand, against SciPy and plain loops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from scipy.stats import spearmanr

from npm.core.errors import CorpusError, EncoderError, SettingError
from npm.evaluation.settings import SampleSettings
from npm.evaluation.sts import (
    SentencePairs,
    SentenceVectors,
    encode_distinct,
    evaluate_sts,
    pair_cosines,
    read_set,
    read_sets,
    resampled_spearman,
    sentence_vectors,
    spearman,
    sts_spearman,
    whitened,
)
from npm.models.settings import PoolerKind
from scripts.convert_sts import YEARS
from scripts.convert_sts import main as convert
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

ANGLES = {"a": 0.0, "b": 0.3, "c": 0.7, "d": 1.2, "e": 1.9, "f": 2.8}
"""Sentences as directions in the plane, in radians."""


def pairs_of(
    rows: Sequence[tuple[str, str, float]], *, name: str = "STS-B", split: str = "test", subsets: Sequence[str] = ()
) -> SentencePairs:
    first, second, gold = zip(*rows, strict=True)
    return SentencePairs(name, split, [*first], [*second], np.array(gold), [*(subsets or [""] * len(rows))])


def in_the_plane(sentences: list[str]) -> np.ndarray:
    """The vectors of `ANGLES`, of different lengths."""
    rows = [(1 + ANGLES[each]) * np.array([np.cos(ANGLES[each]), np.sin(ANGLES[each])]) for each in sentences]
    return np.array(rows, dtype=np.float32)


def random_vectors(sentences: list[str]) -> np.ndarray:
    """A random vector for each sentence, always the same one."""
    return np.array([np.random.default_rng([*each.encode()]).normal(size=5) for each in sentences], dtype=np.float32)


def test_all_subsets_together_score_otherwise_than_the_mean_of_subsets() -> None:
    # Each subset is in perfect order by itself; together the better-scored subset has the lower cosines.
    gold = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    cosines = np.array([0.7, 0.8, 0.9, 0.1, 0.2, 0.3])
    assert spearman(cosines[:3], gold[:3]) == spearman(cosines[3:], gold[3:]) == pytest.approx(1.0)
    # ranks 4 5 6 1 2 3 against 1 … 6: Σd² = 6 · 9 = 54, and 1 − 6 · 54 / (6 · 35) = −0.542857
    assert spearman(cosines, gold) == pytest.approx(1 - 6 * 54 / (6 * 35))


def test_correlations_with_ties_equal_those_of_scipy_and_a_constant_correlates_with_nothing() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 10, 57):
        scores, gold = rng.normal(size=size).round(1), rng.integers(0, 6, size=size) / 1.0
        gold[0], gold[-1] = 0, 5
        scores[0], scores[-1] = -9, 3
        assert spearman(scores, gold) == pytest.approx(spearmanr(scores, gold).statistic)
    assert spearman(np.full(4, 0.9), np.arange(4.0)) == spearman(np.arange(4.0), np.full(4, 0.9)) == 0


def test_resamples_are_paired_and_equal_a_plain_loop_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    gold = rng.integers(0, 6, size=30) / 1.0
    good, bad = gold + 0.3 * rng.normal(size=30), gold + 3 * rng.normal(size=30)
    found = resampled_spearman(np.stack([good, good, bad]), gold, np.random.default_rng(3), resamples=9)
    drawn = np.random.default_rng(3).integers(0, 30, size=(9, 30))
    plain = [[spearmanr(scores[each], gold[each]).statistic for scores in (good, good, bad)] for each in drawn]
    np.testing.assert_allclose(found, plain)
    monkeypatch.setattr("npm.evaluation.sts.DRAWN_AT_ONCE", 70)  # two at once
    pieces = resampled_spearman(np.stack([good, good, bad]), gold, np.random.default_rng(3), resamples=9)
    assert (pieces == found).all()


def test_pairs_are_scored_by_the_angle_and_each_sentence_is_encoded_once() -> None:
    asked: list[list[str]] = []

    def encode(sentences: list[str]) -> np.ndarray:
        asked.append(sentences)
        return in_the_plane(sentences)

    pairs = pairs_of([("a", "b", 5.0), ("a", "c", 3.0), ("b", "f", 0.0), ("a", "a", 5.0)])
    assert pair_cosines(encode, pairs) == pytest.approx(np.cos([0.3, 0.7, 2.5, 0.0]), abs=1e-6)
    assert asked == [["a", "b", "c", "f"]]
    # ranks of cosines 3 2 1 4, of gold 3.5 2 1 3.5: Pearson's of these is √0.9
    assert sts_spearman(encode, pairs) == pytest.approx(np.sqrt(0.9))


@pytest.mark.parametrize("wrong", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_without_a_direction_is_refused(wrong: list[float]) -> None:
    with pytest.raises(EncoderError, match="sentence 2 of 2"):
        encode_distinct(lambda _: np.array([[1.0, 0.0], wrong]), ["a", "b"])


ROWS: list[dict[str, Any]] = [
    {"sentence1": "A plane lands.", "sentence2": "An air plane is landing.", "score": 5.0},
    {"sentence1": "Łódź is a city.", "sentence2": "A dog barks.", "score": 0},
    {"sentence1": "A man eats.", "sentence2": "Someone eats.", "score": 3.25},
]


def write_lines(file: Path, *lines: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def write_jsonl(file: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    return write_lines(file, *(json.dumps(row, ensure_ascii=False) for row in rows))


def test_json_lines_and_parquet_say_the_same_and_pairs_without_gold_are_counted(tmp_path: Path) -> None:
    rows = [{**row, "subset": row["sentence1"][:1]} for row in [*ROWS, {**ROWS[0], "score": None}]]
    write_jsonl(tmp_path / "stsb-dev.jsonl", rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sts12-dev.parquet")
    sets = read_sets(tmp_path, split="dev")
    assert [each.name for each in sets] == ["STS12", "STS-B"]
    for pairs in sets:
        assert (pairs.split, pairs.subsets, pairs.without_gold) == ("dev", ["A", "Ł", "A"], 1)
        assert pairs.first == [row["sentence1"] for row in ROWS]
        assert pairs.second == [row["sentence2"] for row in ROWS]
        assert pairs.gold.tolist() == [5.0, 0.0, 3.25]
    assert sets[0].digest != sets[1].digest
    assert read_set("STS-B", tmp_path, split="test") is read_set("SICK-R", tmp_path, split="dev") is None
    with pytest.raises(CorpusError, match="split=train"):
        read_sets(tmp_path, split="train")


@pytest.mark.parametrize(
    "change", [{"score": "high"}, {"score": -0.5}, {"score": True}, {"sentence2": ""}, {"sentence1": 7}]
)
def test_broken_rows_are_refused_with_their_line(change: dict[str, Any], tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "stsb-test.jsonl", [ROWS[0], {**ROWS[1], **change}, ROWS[2]])
    with pytest.raises(CorpusError, match=f"{file}:2"):
        read_sets(tmp_path, split="test")


def test_the_historic_forms_of_the_sets_are_converted(tmp_path: Path) -> None:
    for number, name in enumerate(YEARS["STS13"]):
        folder = tmp_path / "STS" / "STS13-en-test"
        write_lines(folder / f"STS.input.{name}.txt", f"{name} one\ttwo\tsource", f'{name} "three\tfour')
        write_lines(folder / f"STS.gs.{name}.txt", "" if number == 0 else "1.5", "4.2")
    lines = ['main-news\tMSRpar\t2012\t1\t4.5\tHe said "no.\tHe said: no.', "g\tf\t2013\t2\t0.5\tOne.\tTwo.\ta\tb"]
    write_lines(tmp_path / "STSBenchmark" / "sts-dev.csv", *lines)
    sick = ["1\tA dog.\tA cat.\tNEUTRAL\t2.5\tTRAIN", "2\tA man.\tA woman.\tNEUTRAL\t3.1\tTEST"]
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set"
    write_lines(tmp_path / "SICK.txt", header, *sick, "3\tA car.\tA bus.\tNEUTRAL\t4\tTEST")
    (tmp_path / "sts12-sts" / "data").mkdir(parents=True)
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, tmp_path / "sts12-sts" / "data" / "test-00000-of-00001.parquet")
    assert convert([str(tmp_path), str(tmp_path / "out")]) == 0
    sts12, sts13, sick_r = read_sets(tmp_path / "out", split="test")
    assert sts12.first == [row["sentence1"] for row in ROWS]
    assert sts13.first == ['FNWN "three', "headlines one", 'headlines "three', "OnWN one", 'OnWN "three']
    assert (sts13.gold.tolist(), sts13.without_gold) == ([4.2, 1.5, 4.2, 1.5, 4.2], 1)
    assert sts13.subsets == ["FNWN", "headlines", "headlines", "OnWN", "OnWN"]
    assert (sick_r.first, sick_r.gold.tolist()) == (["A man.", "A car."], [3.1, 4.0])
    (benchmark,) = read_sets(tmp_path / "out", split="dev")
    assert (benchmark.first, benchmark.gold.tolist()) == (['He said "no.', "One."], [4.5, 0.5])
    assert convert([str(tmp_path / "SICK"), str(tmp_path / "none")]) == 2


SAMPLE = SampleSettings(resamples=60)
STS_B = pairs_of([("a", "b", 5.0), ("a", "d", 2.0), ("c", "d", 4.5), ("b", "f", 0.0), ("e", "f", 4.0)])
STS13 = pairs_of(
    [("a", "c", 4.0), ("a", "f", 0.0), ("b", "e", 5.0), ("d", "e", 1.0), ("d", "f", 0.5)],
    name="STS13",
    subsets=["FNWN", "FNWN", "OnWN", "OnWN", "OnWN"],
)
PLANE = SentenceVectors("plane", in_the_plane, {"name": "plane", "pooler": "avg"})
RANDOM = SentenceVectors("random", random_vectors, {"name": "random", "pooler": "cls"})


def test_a_set_is_scored_over_all_its_pairs_and_its_subsets_beside_that() -> None:
    result = evaluate_sts([PLANE], [STS13], SAMPLE)
    (measured,) = result.metrics()["encoders"]
    score = measured["sets"]["STS13"]
    cosines = pair_cosines(in_the_plane, STS13)
    assert score["spearman"]["mean"] == spearman(cosines, STS13.gold)
    first, second = spearman(cosines[:2], STS13.gold[:2]), spearman(cosines[2:], STS13.gold[2:])
    assert score["subset_spearman"] == {"FNWN": first, "OnWN": second}
    assert score["subset_mean"] == pytest.approx((first + second) / 2)
    assert score["subset_weighted_mean"] == pytest.approx((2 * first + 3 * second) / 5)
    assert score["spearman"]["mean"] != pytest.approx(score["subset_mean"])
    assert measured["average"] is None


def test_two_encoders_are_compared_on_the_same_resamples() -> None:
    result = evaluate_sts([RANDOM, PLANE], [STS_B, STS13], SAMPLE)
    rng, (encoders, differences) = np.random.default_rng(0), (result.means[key] for key in ("encoders", "differences"))
    drawn: list[np.ndarray] = []
    for pairs in (STS_B, STS13):
        cosines = np.stack([pair_cosines(each, pairs) for each in (random_vectors, in_the_plane)])
        drawn.append(resampled_spearman(cosines, pairs.gold, rng, resamples=60))
        exact = [spearman(own, pairs.gold) for own in cosines]
        assert [each["sets"][pairs.name]["spearman"]["mean"] for each in encoders] == exact
        found = differences[len(drawn) - 1]
        low, high = np.quantile(drawn[-1][:, 1] - drawn[-1][:, 0], [0.025, 0.975])
        assert tuple(found.values()) == pytest.approx((exact[1] - exact[0], low, high))
    for place, own in enumerate(encoders):
        means = [score["spearman"]["mean"] for score in own["sets"].values()]
        assert own["average"]["mean"] == pytest.approx(np.mean(means))
        both = (drawn[0][:, place] + drawn[1][:, place]) / 2
        assert [own["average"][key] for key in ("low", "high")] == pytest.approx(np.quantile(both, [0.025, 0.975]))
    assert len(differences) == 3


def test_a_line_is_written_for_each_pair_and_the_tables_are_of_one_encoder_or_two(tmp_path: Path) -> None:
    result = evaluate_sts([RANDOM, PLANE], [STS_B, STS13], SAMPLE)
    result.write(tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 10
    assert lines[7] == {
        "set": "STS13",
        "subset": "OnWN",
        "number": 2,
        "sentence1": "b",
        "sentence2": "e",
        "gold": 5.0,
        "cosine": pytest.approx(np.cos(1.6), abs=1e-6),
        "cosine_before": pytest.approx(float(pair_cosines(random_vectors, STS13)[2])),
    }
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["encoders"][1]["sets"]["STS13"]["subset_spearman"].keys() == {"FNWN", "OnWN"}
    assert metrics["sets"][1]["subsets"] == {"FNWN": 2, "OnWN": 3}
    header, rows = result.tables[0].header, result.tables[0].rows
    assert header == ["set", "pairs", "before", "after", "after − before [95 %]"]
    assert [row[0] for row in rows] == ["STS-B test", "STS13 test", "average of 2"]
    (table,) = evaluate_sts([PLANE], [STS_B], SAMPLE).tables
    assert table.header == ["set", "pairs", "Spearman × 100 [95 %]"]
    assert [row[:2] for row in table.rows] == [("STS-B test", "5")]


def test_notes_say_what_is_absent_and_what_cannot_be_compared() -> None:
    sick = SentencePairs("SICK-R", "test", ["a", "b"], ["c", "d"], np.array([1.0, 5.0]), ["", ""], 3)
    said = "\n".join(evaluate_sts([PLANE], [STS_B, sick], SAMPLE).notes)
    assert "no test part of them: STS12, STS13, STS14, STS15, STS16" in said
    assert "SICK-R has 2 pairs here and 4,927 in published results" in said
    assert "3 pairs of SICK-R have no gold score" in said
    dev = pairs_of([("a", "b", 5.0), ("a", "d", 2.0)], split="dev")
    assert "published" not in "\n".join(evaluate_sts([PLANE], [dev], SAMPLE).notes)


def test_a_saved_encoder_is_evaluated_and_the_report_fits_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tiny_encoder("bert").save(tmp_path / "encoder")
    vectors = [
        sentence_vectors(str(tmp_path / "encoder"), pooler=kind, device="cpu")
        for kind in (PoolerKind.avg, PoolerKind.cls_before_pooler)
    ]
    pairs = pairs_of([(SENTENCES[0], SENTENCES[1], 5.0), (SENTENCES[2], SENTENCES[3], 1.0), ("Paris.", "Oslo.", 4.5)])
    report = evaluate_sts(vectors, [pairs], SampleSettings(resamples=20)).text()
    assert "before: encoder (avg)" in report and "after: encoder (cls_before_pooler)" in report
    assert max(len(line) for line in report.splitlines()) <= 80


def test_whitened_vectors_have_mean_0_and_covariance_1_and_the_angles_of_mahalanobis() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)) + 5
    white = whitened(vectors)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(4), atol=1e-12)
    inverse = np.linalg.inv(np.cov(vectors.T, bias=True))
    centered = vectors - vectors.mean(0)
    np.testing.assert_allclose(white @ white.T, centered @ inverse @ centered.T, atol=1e-10)
    flat = np.column_stack([vectors[:, :2], vectors[:, 0]])  # two directions in three dimensions
    assert whitened(flat).shape == (50, 2)
    with pytest.raises(SettingError, match="got 5"):
        whitened(vectors[:5])
