"""Task `sts`: one encoder or two on the same pairs, with what is written and shown of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from npm.core.errors import CorpusError
from npm.evaluation.settings import GeometryPairs, GeometrySettings, SampleSettings, StsSettings
from npm.evaluation.sts.correlation import (
    SentencePairs,
    SentenceVectors,
    pair_cosines,
    resampled_spearman,
    spearman,
    unit_rows,
)
from npm.evaluation.sts.evaluate import evaluate_sts, geometry_rows, layer_rows, notes, sentence_vectors, set_rows
from npm.evaluation.sts.geometry import alignment, mean_cosine, uniformity
from npm.evaluation.tasks.task import Split
from npm.models.settings import PoolerKind
from tests.evaluation.sts.sentence_pairs import in_the_plane, pairs_of, random_vectors
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SAMPLE = SampleSettings(resamples=60)
SETTINGS = StsSettings(geometry=GeometrySettings(layer_sentences=0))
STS_B = pairs_of([("a", "b", 5.0), ("a", "d", 2.0), ("c", "d", 4.5), ("b", "f", 0.0), ("e", "f", 4.0)])
STS13 = pairs_of(
    [("a", "c", 4.0), ("a", "f", 0.0), ("b", "e", 5.0), ("d", "e", 1.0), ("d", "f", 0.5)],
    name="STS13",
    subsets=["FNWN", "FNWN", "OnWN", "OnWN", "OnWN"],
)
PLANE = SentenceVectors("plane", in_the_plane, {"name": "plane", "pooler": "avg"})
RANDOM = SentenceVectors("random", random_vectors(0), {"name": "random", "pooler": "cls"})


def test_a_set_is_scored_over_all_its_pairs_and_its_subsets_beside_that() -> None:
    result = evaluate_sts([PLANE], [STS13], SETTINGS, SAMPLE)
    (score,) = result.encoders[0].sets
    cosines = pair_cosines(in_the_plane, STS13)
    assert score.spearman.mean == spearman(cosines, STS13.gold)
    first, second = spearman(cosines[:2], STS13.gold[:2]), spearman(cosines[2:], STS13.gold[2:])
    assert score.subset_spearman == {"FNWN": first, "OnWN": second}
    assert first == pytest.approx(1)
    assert score.subset_mean == pytest.approx((first + second) / 2)
    assert score.subset_weighted_mean == pytest.approx((2 * first + 3 * second) / 5)
    assert score.spearman.mean != pytest.approx(score.subset_mean)
    assert result.encoders[0].average is None
    assert result.encoders[0].geometry is None


def test_two_encoders_are_compared_on_the_same_resamples() -> None:
    result = evaluate_sts([RANDOM, PLANE], [STS_B, STS13], SETTINGS, SAMPLE)
    rng = np.random.default_rng(0)
    drawn = []
    for pairs, cosines in zip((STS_B, STS13), result.cosines, strict=True):
        assert cosines.shape == (2, 5)
        drawn.append(resampled_spearman(cosines, pairs.gold, rng, resamples=60))
        exact = [spearman(own, pairs.gold) for own in cosines]
        assert [each.sets[len(drawn) - 1].spearman.mean for each in result.encoders] == exact
        found = result.differences[len(drawn) - 1]
        low, high = np.quantile(drawn[-1][:, 1] - drawn[-1][:, 0], [0.025, 0.975])
        assert (found.mean, found.low, found.high) == pytest.approx((exact[1] - exact[0], low, high))
    averages = [each.average for each in result.encoders]
    for place, average in enumerate(averages):
        assert average is not None
        own = result.encoders[place]
        assert average.mean == pytest.approx(np.mean([score.spearman.mean for score in own.sets]))
        both = (drawn[0][:, place] + drawn[1][:, place]) / 2
        assert (average.low, average.high) == pytest.approx(tuple(np.quantile(both, [0.025, 0.975])))
    assert len(result.differences) == 3


def test_geometry_is_over_distinct_sentences_and_alignment_over_gold_scores_above_4() -> None:
    other = pairs_of([("a", "c", 4.0), ("a", "b", 4.2)], split="dev")
    result = evaluate_sts([PLANE], [STS_B], SETTINGS, SAMPLE, geometry_pairs=[STS_B, other])
    geometry = result.encoders[0].geometry
    assert geometry is not None
    units = unit_rows(in_the_plane(["a", "c", "b", "e", "d", "f"]))
    assert geometry.uniformity == pytest.approx(uniformity(units))
    assert geometry.anisotropy == pytest.approx(mean_cosine(units))
    same = [("a", "b"), ("c", "d"), ("a", "b")]
    plain = alignment(*(unit_rows(in_the_plane([pair[side] for pair in same])) for side in (0, 1)))
    assert geometry.alignment == pytest.approx(plain)
    assert geometry.layers == ()
    assert result.geometry_facts == {"splits": ["test", "dev"], "sentence_count": 6, "aligned_pair_count": 3}


def test_scores_from_0_to_1_have_no_pair_that_means_the_same() -> None:
    shrunk = pairs_of([("a", "b", 1.0), ("a", "d", 0.4)])
    with pytest.raises(CorpusError, match="scores up to 1"):
        evaluate_sts([PLANE], [shrunk], SETTINGS, SAMPLE, geometry_pairs=[shrunk])


def test_what_is_written_has_a_line_a_pair_and_is_the_same_again(tmp_path: Path) -> None:
    for place in ("one", "two"):
        result = evaluate_sts([RANDOM, PLANE], [STS_B, STS13], SETTINGS, SAMPLE, geometry_pairs=[STS_B])
        result.write(tmp_path / place)
    lines = [json.loads(line) for line in (tmp_path / "one" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 10
    assert lines[7] == {
        "set": "STS13",
        "subset": "OnWN",
        "number": 2,
        "sentence1": "b",
        "sentence2": "e",
        "gold": 5.0,
        "cosine": pytest.approx(np.cos(1.6), abs=1e-6),
        "cosine_before": pytest.approx(float(pair_cosines(RANDOM.encode, STS13)[2])),
    }
    metrics = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert metrics["encoders"][1]["sets"]["STS13"]["subset_spearman"].keys() == {"FNWN", "OnWN"}
    assert metrics["encoders"][0]["geometry"]["spectrum"]["values"][0] == 1.0
    assert metrics["sets"][1]["subsets"] == {"FNWN": 2, "OnWN": 3}
    for name in ("predictions.jsonl", "metrics.json", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_tables_of_one_encoder_and_of_two() -> None:
    one = evaluate_sts([PLANE], [STS_B], SETTINGS, SAMPLE, geometry_pairs=[STS_B])
    header, rows = set_rows(one)
    assert header == ["set", "pairs", "Spearman × 100 [95 %]"]
    assert [row[:2] for row in rows] == [["STS-B test", "5"]]
    header, rows = geometry_rows(one)
    assert header == ["sentence vectors of STS-B", "plane"]
    assert [row[0].split(" ")[0] for row in rows] == ["alignment", "uniformity", "anisotropy", "effective", "share"]
    two = evaluate_sts([RANDOM, PLANE], [STS_B, STS13], SETTINGS, SAMPLE, geometry_pairs=[STS_B])
    header, rows = set_rows(two)
    assert header == ["set", "pairs", "before", "after", "after − before [95 %]"]
    assert [row[0] for row in rows] == ["STS-B test", "STS13 test", "average of 2"]
    assert all(row[4][0] in "+-" for row in rows)
    assert len(geometry_rows(two)[0]) == 3


def test_notes_say_what_is_absent_and_what_cannot_be_compared() -> None:
    sick = SentencePairs("SICK-R", "all", ["a", "b"], ["c", "d"], np.array([1.0, 5.0]), (), np.zeros(2, int), 3)
    said = "\n".join(notes(evaluate_sts([PLANE], [STS_B, sick], SETTINGS, SAMPLE)))
    assert "no test part of them: STS12, STS13, STS14, STS15, STS16" in said
    assert "SICK-R has 2 pairs here, and 4,927 in published results" in said
    assert "3 pairs of SICK-R have no gold score" in said
    assert "no geometry was measured" in said
    dev = pairs_of([("a", "b", 5.0), ("a", "d", 2.0)], split="dev")
    assert "published" not in "\n".join(
        notes(evaluate_sts([PLANE], [dev], SETTINGS, SampleSettings(resamples=60, split=Split.dev)))
    )


def test_a_saved_encoder_is_evaluated_with_its_layers_and_the_report_fits_a_terminal(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    vectors = [
        sentence_vectors(str(tmp_path / "encoder"), pooler=kind, device="cpu")
        for kind in (PoolerKind.avg, PoolerKind.avg_first_last)
    ]
    pairs = pairs_of([(SENTENCES[0], SENTENCES[1], 5.0), (SENTENCES[2], SENTENCES[3], 1.0), ("Paris.", "Oslo.", 4.5)])
    settings = StsSettings(geometry=GeometrySettings(pairs=GeometryPairs.split, layer_sentences=4))
    result = evaluate_sts(vectors, [pairs], settings, SampleSettings(resamples=20), geometry_pairs=[pairs])
    assert [each.facts["pooler"] for each in result.encoders] == ["avg", "avg_first_last"]
    header, rows = layer_rows(result)
    assert header[1:] == ["sentence before", "sentence after", "any two before", "any two after"]
    assert [row[0] for row in rows] == ["embeddings", "1", "2"]
    assert all(row[1] == row[2] and row[3] == row[4] for row in rows)
    console = Console(file=io.StringIO(), width=80, highlight=False)
    result.show(console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "before: encoder (avg); after: encoder (avg_first_last)" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
