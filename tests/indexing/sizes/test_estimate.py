"""What a build will take, estimated before it: samples against whole corpora, bytes against a built index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.artifact import read_manifest
from npm.core.errors import CorpusError, SettingError
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, DocumentSplit, read_corpus
from npm.indexing.build import build_index
from npm.indexing.changes import partition_index
from npm.indexing.generation import Generation
from npm.indexing.settings import EstimateSettings, LexiconSettings, PruningRule, VectorSettings
from npm.indexing.sizes import disk_needs
from npm.indexing.sizes import estimate as estimate_module
from npm.indexing.sizes.disk_needs import CorpusSample, corpus_counts, corpus_needs, packed_in_batches, sample_corpus
from npm.indexing.sizes.estimate import Estimate, StageNeeds, estimate_build, summary, table_rows
from npm.models.encoder import Encoder
from tests.helpers.command_line import zstd
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

DAY = 86_400.0
"""Time enough for everything."""


@pytest.fixture(scope="module")
def bert() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture(scope="module", autouse=True)
def small_measurements() -> Iterator[None]:
    """Tests look at what is reckoned from a measurement, not at how good it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimate_module, "WRITTEN_BYTES", 1 << 20)
        patched.setattr(estimate_module, "PIECE_BYTES", 1 << 20)
        patched.setattr(estimate_module, "LEAST_TRAIN_ROWS", 512)
        patched.setattr(estimate_module, "CODED_ROWS", 256)
        yield


def write_documents(path: Path, rng: np.random.Generator, count: int) -> Path:
    """Documents of one to six of the sentences, in the form that the name of the file promises."""
    texts = [" ".join(rng.choice(SENTENCES, rng.integers(1, 7))) for _ in range(count)]
    records = [{"id": f"{path.name} {number}", "title": "T", "text": text} for number, text in enumerate(texts)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if path.name.endswith(".zst"):
        path.write_bytes(zstd(lines.encode()))
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        path.write_text(lines if path.suffix == ".jsonl" else "\n".join(texts), encoding="utf-8")
    return path


def settings_for(*files: Path | str, **corpus: Any) -> CorpusSettings:
    return CorpusSettings(files=[str(file) for file in files], **corpus)


def char_count(sample: CorpusSample) -> float:
    return float(sample.weights @ np.array([len(document.text) for document in sample.documents]))


def true_counts(settings: CorpusSettings) -> tuple[int, int]:
    lengths = [len(document.text) for document in read_corpus(settings)]
    return len(lengths), sum(lengths)


def test_a_sample_that_reaches_the_end_of_every_file_is_the_corpus(rng: np.random.Generator, tmp_path: Path) -> None:
    names = ("a.jsonl", "b.jsonl.zst", "c.parquet", "d.txt")
    settings = settings_for(*(write_documents(tmp_path / name, rng, 7) for name in names), split=DocumentSplit.line)
    sample = sample_corpus(settings, documents=1000, seconds=DAY)
    assert sample.documents == list(read_corpus(settings))
    assert sample.weights.tolist() == [1.0] * 28
    assert (sample.document_count, sample.unknown_sources) == (28, [])


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.zst", "corpus.parquet", "corpus.txt"])
def test_the_beginning_of_a_file_tells_how_much_is_in_it(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    settings = settings_for(write_documents(tmp_path / name, rng, 900), split=DocumentSplit.line)
    sample = sample_corpus(settings, documents=150, seconds=DAY)
    documents, chars = true_counts(settings)
    assert len(sample.documents) == 150
    assert sample.document_count == pytest.approx(documents, rel=0.1)
    assert char_count(sample) == pytest.approx(chars, rel=0.1)


def test_a_large_compressed_file_is_read_only_at_its_beginning(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.jsonl.zst"
    # text that hardly compresses, so that the file has many pieces
    words = [rng.bytes(60).hex() for _ in range(30_000)]
    lines = "".join(json.dumps({"text": word}) + "\n" for word in words)
    path.write_bytes(zstd(lines.encode()))
    monkeypatch.setattr(disk_needs, "RATIO_BYTES", 5 << 18)
    assert path.stat().st_size > 7 << 18
    sample = sample_corpus(settings_for(path), documents=20, seconds=DAY)
    assert len(sample.documents) == 20
    assert sample.document_count == pytest.approx(30_000, rel=0.05)


def test_files_that_were_not_looked_into_count_by_their_bytes(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = rng.integers(20, 60, 9).tolist()
    files = [write_documents(tmp_path / f"{number}.jsonl", rng, count) for number, count in enumerate(counts)]
    other = write_documents(tmp_path / "other.parquet", rng, 40)
    monkeypatch.setattr(disk_needs, "MOST_FILES", 3)
    settings = settings_for(*files, other)
    sample = sample_corpus(settings, documents=10_000, seconds=DAY)
    read = {document.id.split()[0] for document in sample.documents}
    assert len(read) == 3
    assert "other.parquet" in read
    assert sample.document_count == pytest.approx(true_counts(settings)[0], rel=0.1)
    # without any time, one file of every kind
    ticks = iter(range(1000))
    hurried = sample_corpus(settings, documents=10_000, seconds=0, clock=lambda: float(next(ticks)))
    assert len({document.id.split()[0] for document in hurried.documents}) == 2
    assert hurried.document_count == pytest.approx(true_counts(settings)[0], rel=0.25)


def test_max_documents_and_long_documents_are_reckoned_with(rng: np.random.Generator, tmp_path: Path) -> None:
    file = write_documents(tmp_path / "corpus.jsonl", rng, 300)
    sample = sample_corpus(settings_for(file, max_documents=30), documents=50, seconds=DAY)
    assert sample.document_count == 30
    assert sample.weights.sum() == pytest.approx(30)
    long = tmp_path / "long.txt"
    long.write_text("word " * 200_000, encoding="utf-8")
    whole = sample_corpus(settings_for(long), documents=5, seconds=DAY)
    assert [len(document.text) for document in whole.documents] == [disk_needs.MOST_CHARS]
    assert (whole.document_count, char_count(whole)) == (1, pytest.approx(1_000_000))


def test_of_a_data_set_only_what_was_read_is_known_unless_max_documents_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(source: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return ((number, {"text": SENTENCES[number % 8]}) for number in range(1, 1000))

    monkeypatch.setattr("npm.corpus.readers._hub_rows", rows)
    sample = sample_corpus(settings_for("hub:someone/news"), documents=10, seconds=DAY)
    assert (sample.document_count, sample.unknown_sources) == (10, ["hub:someone/news"])
    known = sample_corpus(settings_for("hub:someone/news", max_documents=500), documents=10, seconds=DAY)
    assert (known.document_count, known.unknown_sources) == (500, [])


def test_a_bad_line_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "Good."}\n{oops\n', encoding="utf-8")
    with pytest.raises(CorpusError) as caught:
        sample_corpus(settings_for(path), documents=10, seconds=DAY)
    assert f"{path}:2" in str(caught.value)


def estimate_settings(corpus: CorpusSettings, **more: Any) -> EstimateSettings:
    return EstimateSettings(
        corpus=corpus,
        blocks=BlockSettings(max_block_tokens=32),
        vectors=VectorSettings(tokens_per_shard=3000, tokens_per_batch=300),
        sample_seconds=0.5,
        **more,
    )


def part_bytes(index: Path) -> dict[str, int]:
    """The bytes of the parts of a built index, by the stages that made them, without JSON and the headers of arrays."""
    segment = Generation.read(index).segments[0]
    places = {
        "blocks": segment.corpus,
        "vectors": segment.vectors,
        "lexicon": segment.lexicon,
        "quantiser": index / "quantiser",
        "codes": segment.codes,
        "lists": Generation.read(index).search,
    }
    return {
        stage: sum(
            path.stat().st_size - (128 if path.suffix == ".npy" else 0)
            for path in place.rglob("*")
            if path.is_file() and path.suffix != ".json"
        )
        for stage, place in places.items()
    }


@pytest.mark.parametrize(
    "search",
    [
        SearchSettings(),
        SearchSettings(tier=SearchTier.ivf_rabitq, list_count=64, train_iterations=1),
        SearchSettings(tier=SearchTier.ivf_sq8, list_count=64, train_iterations=1),
    ],
    ids=["exact", "rabitq", "sq8"],
)
def test_the_bytes_of_a_whole_sample_are_those_of_the_built_index(
    search: SearchSettings, bert: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    corpus = settings_for(write_documents(tmp_path / "corpus.jsonl", rng, 120))
    settings = estimate_settings(corpus, search=search, sample_documents=1000, partitions=3)
    estimate = estimate_build(settings, bert, progress=lambda *_: None)
    built = build_index(tmp_path / "index", settings, bert).manifest
    assert built is not None
    counts = built.settings["counts"]
    assert (estimate.documents, estimate.tokens, estimate.rows) == tuple(
        counts[name] for name in ("documents", "tokens", "rows")
    )
    searched = read_manifest(Generation.read(tmp_path / "index").search).settings
    assert estimate.tier == " ".join(searched[name] for name in ("tier", "factory") if name in searched)
    found = part_bytes(tmp_path / "index")
    for needs in estimate.stages:
        # FAISS files have headers of some hundred bytes, and a graph's levels are drawn at random
        assert needs.disk_bytes == pytest.approx(found[needs.stage], rel=0.03, abs=700), needs.stage
    assert corpus_needs(settings, bert) == pytest.approx(estimate.disk_bytes, rel=0.2)
    vectors = sum(path.stat().st_size - 128 for path in (tmp_path / "index").rglob("vectors.npy"))
    partition_index(tmp_path / "index", 3)
    stored = vectors + part_bytes(tmp_path / "index")["lists"] + 3 * found["quantiser"]
    assert 3 * estimate.partition[0] == pytest.approx(stored, rel=0.03, abs=2100)
    held = 4 * 32 * estimate.rows / 3 if estimate.tier == "exact" else found["quantiser"]
    assert estimate.partition[1] == pytest.approx(held, rel=0.03, abs=700)


def test_a_sample_of_a_larger_corpus_foretells_its_counts_and_bytes(
    bert: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    files = [write_documents(tmp_path / f"{number}.jsonl", rng, count) for number, count in enumerate((300, 50, 150))]
    settings = estimate_settings(settings_for(*files), sample_documents=120)
    estimate = estimate_build(settings, bert, progress=lambda *_: None)
    assert estimate.sampled_documents == 120
    documents = list(read_corpus(settings.corpus))
    packed = packed_in_batches(
        BlockPacker(bert.tokenizer, settings.blocks), CorpusSample(documents, np.ones(500), 500, [])
    )
    tokens = sum(len(block.token_ids) for blocks in packed for block in blocks)
    assert estimate.tokens == pytest.approx(tokens, rel=0.1)
    assert estimate.documents == pytest.approx(500, rel=0.1)
    assert estimate.rows < estimate.tokens
    for needs in estimate.stages:
        assert needs.memory_bytes > 0
        assert (needs.seconds > 0) == (needs.stage in ("blocks", "vectors", "lexicon"))


def test_pruning_by_frequency_leaves_out_the_same_tokens_as_in_a_build(
    bert: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    corpus = settings_for(write_documents(tmp_path / "corpus.jsonl", rng, 60))
    vectors = VectorSettings(pruning=PruningRule.all, max_token_share=0.03)
    sample = sample_corpus(corpus, documents=1000, seconds=DAY)
    packed = packed_in_batches(BlockPacker(bert.tokenizer, BlockSettings(max_block_tokens=32)), sample)
    counts = corpus_counts(sample, packed, vectors, LexiconSettings())
    settings = estimate_settings(corpus)
    settings.vectors = vectors
    built = build_index(tmp_path / "index", settings, bert).manifest
    assert built is not None
    assert counts.rows == built.settings["counts"]["rows"]
    assert counts.rows < counts.tokens


def test_a_corpus_without_a_kept_token_is_told(bert: Encoder, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "of the and to"}) + "\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"vectors\.pruning"):
        estimate_build(estimate_settings(settings_for(path)), bert, progress=lambda *_: None)


def test_the_table_names_each_stage_and_the_whole() -> None:
    stages = (
        StageNeeds("blocks", memory_bytes=2 << 20, disk_bytes=1 << 30, seconds=30.0),
        StageNeeds("vectors", memory_bytes=3 << 30, disk_bytes=3 << 30, seconds=3570.0),
    )
    estimate = Estimate(
        stages, documents=1e4, tokens=2e6, rows=1e6, tier="exact", sampled_documents=200, unknown_sources=["hub:x"]
    )
    assert table_rows(estimate) == [
        ("stage", "private memory", "disk", "time", "share of time"),
        ("blocks", "2.0 MiB", "1.0 GiB", "30 s", "1%"),
        ("vectors", "3.0 GiB", "3.0 GiB", "59 min 30 s", "99%"),
        ("all", "3.0 GiB", "4.0 GiB", "1 h 0 min", "100%"),
    ]
    told = " ".join(summary(estimate))
    assert "2,000,000 tokens, 1,000,000 stored vectors" in told
    assert "hub:x" in told
    record = estimate.record()
    assert json.loads(json.dumps(record)) == record
    assert record["disk_bytes"] == 4 << 30
    assert record["stages"]["vectors"] == {"memory_bytes": 3 << 30, "disk_bytes": 3 << 30, "seconds": 3570.0}


@pytest.mark.parametrize(("name", "value"), [("sample_documents", 0), ("sample_seconds", 0.0)])
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=name):
        EstimateSettings(**{name: value})  # type: ignore[arg-type]
    assert asdict(EstimateSettings())["sample_documents"] == 200
