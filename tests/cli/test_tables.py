"""Tables of `npmlm inspect` and `npmlm estimate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npm.cli.index import estimate_text, inspection_text
from npm.indexing.estimate import Estimate
from npm.indexing.inspect import inspect_index
from npm.models.encoder import Encoder
from tests.helpers.tuned_indexes import LISTS, build_measured


def test_an_inspection_is_shown_whole(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    inspection = inspect_index(build_measured(tmp_path / "index", encoder, f"ivf_sq8 {LISTS}"))
    shown = inspection_text(inspection)
    for part in ("150, 0 of them deleted", "tiny-bert", "index.jsonl", f"IVF{LISTS},SQ8", "without_stopwords (chosen)"):
        assert part in shown, part
    assert f"{inspection.pruning['kept']:,}" in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    ids = next(line for line in lines if line.strip().startswith("row ids"))
    assert ids.split()[-1] == "8.00"
    alls = [line.split()[-1] for line in lines if line.strip().startswith("all ")]
    bytes_ = inspection.footprint
    assert alls[-2:] == [f"{bytes_.disk_bytes_per_token:.2f}", f"{bytes_.hot_bytes_per_vector:.2f}"]


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
    for part in ("2,000,000 tokens, 1,000,000 vectors", "2:01:40", "5.0 GiB", "6.0 GiB", "7.0 GiB", "8.0 GiB", "hub:x"):
        assert part in shown, part
    record = estimate.record()
    assert json.loads(json.dumps(record)) == record
    assert record["disk_bytes"] == 4 << 30
