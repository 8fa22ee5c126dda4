"""A build by many machines, reckoned from the costs of its stages: numbers worked by hand, and what users see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from npm.cli.tables import estimate_text
from npm.indexing.settings import EstimateSettings
from npm.indexing.sizes.simulation import StageCosts, simulate
from tests.helpers.command_line import CommandLine

HOUR = 3600.0
COSTS = StageCosts("vectors", 80 * HOUR, 100, read_bytes=2e12, read_bytes_by_job=1e11, written_bytes=5e12)
SURE = EstimateSettings(jobs=20, machines=10, mtbf_hours=1e12, network_gbit_per_second=8.0, disk_mb_per_second=1000.0)


def test_time_without_failures_is_that_of_the_slowest_of_processors_network_and_disk() -> None:
    run = simulate([COSTS], SURE).stages[0]
    # 20 jobs of 4 h, two waves on 10 machines; 2 + 20 · 0.1 + 5 TB over ten networks of 1 GB/s, or one disk of 1 GB/s
    assert (run.limited_by, run.moved_bytes) == ("processor", 9e12)
    assert run.seconds == pytest.approx(8 * HOUR)
    assert run.disk_bound_from == 32  # 80 h / (9e12 / 1e9 s) = 32
    slow_disk = simulate([COSTS], replace(SURE, disk_mb_per_second=100.0)).stages[0]
    assert (slow_disk.limited_by, slow_disk.seconds) == ("disk", pytest.approx(90_000))
    slow_network = simulate([COSTS], replace(SURE, network_gbit_per_second=0.08)).stages[0]
    assert (slow_network.limited_by, slow_network.seconds) == ("network", pytest.approx(9e12 / (10 * 1e7)))
    uneven = simulate([COSTS], replace(SURE, jobs=11)).stages[0]
    assert uneven.seconds == pytest.approx(2 * 80 * HOUR / 11)  # one machine has two jobs
    alone = simulate([replace(COSTS, most_jobs=1)], SURE).stages[0]
    assert (alone.jobs, alone.moved_bytes, alone.seconds) == (1, 7.1e12, pytest.approx(80 * HOUR))


def test_a_failure_costs_half_a_shard_and_a_restart() -> None:
    settings = replace(SURE, mtbf_hours=20.0, restart_seconds=360.0)
    run = simulate([COSTS], settings).stages[0]
    # 10 machines for 8 h, one failure in 20 h each: 4; a shard is 80 h / 100, half of it 24 min; restarts 6 min each
    assert run.failures == pytest.approx(4)
    assert run.repeated_seconds == pytest.approx(4 * 0.4 * HOUR)
    assert run.seconds == pytest.approx(8 * HOUR + (4 * 0.4 * HOUR + 4 * 360) / 10)


def test_more_machines_than_jobs_are_noted_and_one_job_on_one_machine_is_the_estimate_itself() -> None:
    idle = simulate([COSTS], replace(SURE, jobs=4))
    assert idle.stages[0].seconds == pytest.approx(20 * HOUR)
    assert any("6 of 10 machines have no job" in note for note in idle.notes)
    assert len(simulate([COSTS], SURE).notes) == 1
    assert simulate([COSTS], replace(SURE, jobs=1, machines=1)).stages == ()


def test_the_first_to_saturate_and_the_sum_of_all_stages_are_shown() -> None:
    merge = StageCosts("lists", 2 * HOUR, 10, read_bytes=1e12, read_bytes_by_job=0, written_bytes=1e12)
    cluster = simulate([COSTS, merge], SURE)
    assert "in lists, from 4 machines on" in cluster.notes[0]  # 7200 s against 2000 s
    rows = cluster.rows()
    assert [row[0] for row in rows] == ["stage", "vectors", "lists", "all"]
    assert rows[1][1:3] == ("20", "8 h 0 min")
    assert rows[-1][2] == "8 h 33 min"  # and 2000 s of lists
    text = estimate_text([("stage", "time"), ("all", "4 h")], cluster.notes, cluster)
    assert "disk-bound from" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_command_line_simulates_a_corpus_of_any_size(
    corpus: Path, tiny_encoder_folder: Path, npmlm: CommandLine
) -> None:
    given = ["estimate", f"corpus.files={corpus}", f"encoder={tiny_encoder_folder}", "sample_seconds=0.1"]
    many = [*given, "tokens=2000000", "jobs=64", "machines=16"]
    record = json.loads(npmlm(*many, "output=json").out)
    assert record["tokens"] == 2_000_000
    assert record["cluster"].keys() == {"blocks", "vectors", "lexicon", "quantiser", "codes", "lists"}
    assert (record["cluster"]["vectors"]["jobs"], record["cluster"]["quantiser"]["jobs"]) == (8, 1)  # a shard each
    assert record["cluster"]["vectors"]["seconds"] < record["stages"]["vectors"]["seconds"]
    table = npmlm(*many).out
    assert "wall time" in table
    assert max(map(len, table.splitlines())) <= 140
    assert json.loads(npmlm(*given, "output=json").out)["cluster"] == {}
    npmlm(*given, "jobs=0").refused("jobs", "at least 1")
    npmlm(*given, "jobs=2", "mtbf_hours=0").refused("mtbf_hours", "above 0")
    assert "note: 12 of 16 machines have no job" in npmlm(*given, "jobs=4", "machines=16").out
