from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from npm.cli.tables import estimate_text, inspection_text, tune_text
from npm.indexing.estimate import Estimate
from npm.indexing.inspect import Inspection, inspect_index
from npm.models.encoder import Encoder
from npm.tuning.settings import TuneSettings
from npm.tuning.tune import TuneResult, tune_index
from tests.helpers.tuned_indexes import LISTS, build_measured


@pytest.fixture(scope="module")
def folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_measured(tmp_path_factory.mktemp("tables") / "index", encoder, f"ivf_sq8 {LISTS}")


@pytest.fixture(scope="module")
def result(folder: Path, encoder: Encoder) -> TuneResult:
    settings = TuneSettings(
        index=str(folder), queries=4, probed_lists=(2,), reranked_rows=(32,), candidates_per_side=(32,)
    )
    return tune_index(settings, encoder)


@pytest.fixture(scope="module")
def inspection(folder: Path) -> Inspection:
    return inspect_index(folder)


def test_the_table_of_tune_shows_what_was_chosen_and_what_was_before(
    result: TuneResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    slow = tuple(replace(each, p50_ms=1500.0, p95_ms=2500.0) for each in result.measured)
    result = replace(result, measured=slow)
    shown = tune_text(replace(result, chosen=result.measured[1], goals_met=True, notes=("few sentences",)))
    lines = shown.splitlines()
    assert f"IVF{LISTS},SQ8: 4 questions" in lines[0]
    chosen = next(line for line in lines if line.endswith("chosen"))
    cells = chosen.split()
    assert cells[:3] == ["2", "32", "32"]
    assert cells[3:7] == [
        f"{share:.3f}"
        for share in (
            *result.measured[1].recall.values(),
            result.measured[1].agreement,
        )
    ]
    assert any(line.endswith("before") for line in lines)
    assert "fastest that reaches recall@100 of 0.97 and agreement of 0.95" in shown
    assert max(len(line) for line in lines if "  " in line) <= 80  # sentences wrap by themselves
    assert lines[-1] == "note: few sentences"
    assert shown.endswith("\n")


def test_a_goal_that_was_missed_is_told_plainly(result: TuneResult) -> None:
    shown = tune_text(replace(result, goals_met=False))
    assert "No setting reaches recall@100 of 0.97" in shown
    assert f"agreement {result.chosen.agreement:.3f}" in shown
    assert "written" not in shown
    assert "now generation 7" in tune_text(replace(result, written_generation=7))


def test_bytes_are_shown_by_part_a_token_and_a_vector(result: TuneResult) -> None:
    lines = tune_text(result).splitlines()
    ids = next(line for line in lines if line.strip().startswith("row ids"))
    assert ids.split()[-1] == "8.00"
    alls = [line.split()[-1] for line in lines if line.strip().startswith("all ")]
    bytes_ = result.footprint
    assert alls == [f"{bytes_.disk_bytes_per_token:.2f}", f"{bytes_.hot_bytes_per_vector:.2f}"]


def test_an_inspection_is_shown_whole(inspection: Inspection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = inspection_text(inspection)
    for part in ("150, 0 of them deleted", "tiny-bert", "index.jsonl", f"IVF{LISTS},SQ8", "without_stopwords (chosen)"):
        assert part in shown, part
    assert f"{inspection.pruning['kept']:,}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.endswith("\n")


def test_an_estimate_is_a_table_with_sentences_below_it() -> None:
    estimate = Estimate(
        documents=1e4,
        tokens=2e6,
        rows=1e6,
        tier="exact",
        tier_reason="by the number of vectors",
        disk={"corpus": 2.0**30, "vectors": 3 * 2.0**30},
        build_bytes=5 * 2.0**30,
        search_bytes=6 * 2.0**30,
        partitions=2,
        partition_disk_bytes=7 * 2.0**30,
        partition_memory_bytes=8 * 2.0**30,
        sampled_documents=200,
        unknown_sources=["hub:x"],
        encoding_seconds=7300.0,
    )
    shown = estimate_text(estimate)
    lines = [line.split() for line in shown.splitlines()]
    assert ["vectors", "3.0", "GiB", "1610.6"] in lines
    assert ["all", "4.0", "GiB", "2147.5"] in lines
    for part in (
        "2,000,000 tokens, 1,000,000 vectors",
        "2:01:40",
        "5.0 GiB",
        "6.0 GiB",
        "7.0 GiB",
        "8.0 GiB",
        "hub:x",
    ):
        assert part in shown, part
    record = estimate.record()
    assert json.loads(json.dumps(record)) == record
    assert record["disk_bytes"] == 4 << 30
