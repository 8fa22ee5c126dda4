"""What a build will take, estimated before it: samples against whole corpora, bytes against a built index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.settings import SearchSettings, SearchTier
from npm.core.artifact import read_manifest
from npm.core.errors import CorpusError
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings, DocumentSplit
from npm.indexing import estimate as estimate_module
from npm.indexing.build import build_index
from npm.indexing.changes import partition_index
from npm.indexing.estimate import CorpusSample, estimate_build, sample_corpus
from npm.indexing.generation import Generation
from npm.indexing.settings import EstimateSettings, VectorSettings
from npm.models.encoder import Encoder
from npm.models.memory import private_bytes
from tests.helpers.command_line import zstd
from tests.helpers.tiny_models import SENTENCES


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
    sample = sample_corpus(settings, documents=1000)
    assert sample.documents == list(read_corpus(settings))
    assert sample.weights.tolist() == [1.0] * 28
    assert (sample.document_count, sample.unknown_sources) == (28, [])


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.zst", "corpus.parquet", "corpus.txt"])
def test_the_beginning_of_a_file_tells_how_much_is_in_it(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    settings = settings_for(write_documents(tmp_path / name, rng, 900), split=DocumentSplit.line)
    sample = sample_corpus(settings, documents=150)
    documents, chars = true_counts(settings)
    assert len(sample.documents) == 150
    assert sample.document_count == pytest.approx(documents, rel=0.1)
    assert char_count(sample) == pytest.approx(chars, rel=0.1)


def test_a_large_compressed_file_is_read_only_at_its_beginning(rng: np.random.Generator, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.zst"
    # text that hardly compresses, so that the file has many pieces
    words = [rng.bytes(60).hex() for _ in range(30_000)]
    lines = "".join(json.dumps({"text": word}) + "\n" for word in words)
    path.write_bytes(zstd(lines.encode()))
    assert path.stat().st_size > 7 << 18
    sample = sample_corpus(settings_for(path), documents=20)
    assert len(sample.documents) == 20
    assert sample.document_count == pytest.approx(30_000, rel=0.1)


def test_files_that_were_not_looked_into_count_by_their_bytes(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = rng.integers(20, 60, 9).tolist()
    files = [write_documents(tmp_path / f"{number}.jsonl", rng, count) for number, count in enumerate(counts)]
    monkeypatch.setattr(estimate_module, "MAX_FILES", 3)
    settings = settings_for(*files)
    sample = sample_corpus(settings, documents=10_000)
    assert {document.id.split()[0] for document in sample.documents} == {"0.jsonl", "3.jsonl", "6.jsonl"}
    assert sample.document_count == pytest.approx(true_counts(settings)[0], rel=0.1)


def test_max_documents_and_long_documents_are_reckoned_with(rng: np.random.Generator, tmp_path: Path) -> None:
    file = write_documents(tmp_path / "corpus.jsonl", rng, 300)
    sample = sample_corpus(settings_for(file, max_documents=30), documents=50)
    assert sample.document_count == 30
    assert sample.weights.sum() == pytest.approx(30)
    long = tmp_path / "long.txt"
    long.write_text("word " * 200_000, encoding="utf-8")
    whole = sample_corpus(settings_for(long), documents=5)
    assert [len(document.text) for document in whole.documents] == [estimate_module.MAX_CHARS]
    assert (whole.document_count, char_count(whole)) == (1, pytest.approx(1_000_000))


def test_of_a_data_set_only_what_was_read_is_known_unless_max_documents_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(source: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return ((number, {"text": SENTENCES[number % 8]}) for number in range(1, 1000))

    monkeypatch.setattr("npm.corpus.readers._hub_rows", rows)
    sample = sample_corpus(settings_for("hub:someone/news"), documents=10)
    assert (sample.document_count, sample.unknown_sources) == (10, ["hub:someone/news"])
    known = sample_corpus(settings_for("hub:someone/news", max_documents=500), documents=10)
    assert (known.document_count, known.unknown_sources) == (500, [])


def test_a_file_that_a_build_skips_counts_nothing(rng: np.random.Generator, tmp_path: Path) -> None:
    good = write_documents(tmp_path / "good.jsonl", rng, 4)
    (tmp_path / "bad.jsonl").write_text("[1]\n")
    settings = settings_for(tmp_path, skip_bad=True)
    assert len(sample_corpus(settings, documents=100).documents) == len([*read_corpus(settings)]) == 4
    with pytest.raises(CorpusError, match=r"bad\.jsonl"):
        sample_corpus(settings_for(tmp_path), documents=100)
    good.unlink()
    with pytest.raises(CorpusError, match="no document"):
        sample_corpus(settings, documents=100)


def test_a_bad_line_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "Good."}\n{oops\n', encoding="utf-8")
    with pytest.raises(CorpusError) as caught:
        sample_corpus(settings_for(path), documents=10)
    assert f"{path}:2" in str(caught.value)


def estimate_settings(corpus: CorpusSettings, **more: Any) -> EstimateSettings:
    return EstimateSettings(
        corpus=corpus,
        blocks=BlockSettings(max_block_tokens=32),
        vectors=VectorSettings(tokens_per_shard=3000, tokens_per_batch=300),
        **more,
    )


def part_bytes(index: Path) -> dict[str, int]:
    """The bytes of the parts of a built index without JSON and the headers of arrays."""
    generation = Generation.read(index)
    segment = generation.segments[0]
    places = {
        "corpus": segment.corpus,
        "vectors": segment.vectors,
        "lexicon": segment.lexicon,
        "quantizer": generation.quantizer,
        "codes": segment.codes,
        "search": generation.search,
    }
    sizes = {
        part: sum(
            path.stat().st_size - (128 if path.suffix == ".npy" else 0)
            for path in place.rglob("*")
            if path.is_file() and path.suffix != ".json"
        )
        for part, place in places.items()
        if place is not None
    }
    return {part: size for part, size in sizes.items() if size}


@pytest.mark.parametrize(
    "search",
    [
        SearchSettings(),
        SearchSettings(tier=SearchTier.ivf_pq, list_count=64, train_iterations=1),
    ],
    ids=["exact", "pq"],
)
def test_the_bytes_of_a_whole_sample_are_those_of_the_built_index(
    search: SearchSettings, encoder: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    corpus = settings_for(write_documents(tmp_path / "corpus.jsonl", rng, 120))
    settings = estimate_settings(corpus, search=search, sample_documents=1000, partitions=3)
    estimate = estimate_build(settings, encoder, progress=lambda *_: None)
    built = build_index(tmp_path / "index", settings, encoder).manifest
    assert built is not None
    counts = built.settings["counts"]
    assert (estimate.documents, estimate.tokens, estimate.rows) == tuple(
        counts[name] for name in ("documents", "tokens", "rows")
    )
    searched = read_manifest(Generation.read(tmp_path / "index").search).settings
    assert estimate.tier == " ".join(searched[name] for name in ("tier", "factory") if name in searched)
    found = part_bytes(tmp_path / "index")
    assert estimate.disk == pytest.approx(found, rel=0.03, abs=700)  # FAISS files have headers of some hundred bytes
    few = estimate_build(replace(settings, sample_documents=32), encoder)
    assert few.disk_bytes == pytest.approx(estimate.disk_bytes, rel=0.2)
    vectors = sum(path.stat().st_size - 128 for path in (tmp_path / "index").rglob("vectors.npy"))
    partition_index(tmp_path / "index", 3)
    lists, quantizer = part_bytes(tmp_path / "index").get("search", 0), found.get("quantizer", 0)
    assert 3 * estimate.partition_disk_bytes == pytest.approx(vectors + lists + 3 * quantizer, rel=0.03, abs=2100)
    held = quantizer or 4 * 32 * estimate.rows / 3
    assert estimate.partition_memory_bytes == pytest.approx(held, rel=0.03, abs=700)


def test_a_sample_of_a_larger_corpus_foretells_its_counts_and_bytes(
    encoder: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    files = [write_documents(tmp_path / f"{number}.jsonl", rng, count) for number, count in enumerate((300, 50, 150))]
    settings = estimate_settings(settings_for(*files), sample_documents=120)
    estimate = estimate_build(settings, encoder, progress=lambda *_: None)
    assert estimate.sampled_documents == 120
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    packed = packer.pack_many(list(read_corpus(settings.corpus)))
    tokens = sum(len(block.token_ids) for blocks in packed for block in blocks)
    assert estimate.tokens == pytest.approx(tokens, rel=0.1)
    assert estimate.documents == pytest.approx(500, rel=0.1)
    assert estimate.rows < estimate.tokens
    assert estimate.encoding_seconds > 0
    assert estimate.build_bytes > private_bytes() / 2  # that of the process counts too


def test_a_corpus_of_so_many_tokens_has_the_shares_of_the_sample(
    encoder: Encoder, rng: np.random.Generator, tmp_path: Path
) -> None:
    settings = estimate_settings(settings_for(write_documents(tmp_path / "corpus.jsonl", rng, 60)), sample_documents=60)
    once = estimate_build(settings, encoder)
    many = estimate_build(replace(settings, tokens=round(100 * once.tokens)), encoder)
    for name in ("documents", "tokens", "rows"):
        assert getattr(many, name) == pytest.approx(100 * getattr(once, name), rel=1e-6)
    assert many.disk["vectors"] == pytest.approx(100 * once.disk["vectors"], rel=1e-6)
    # words recur, but the numbers of more than 255 blocks take a byte more
    assert many.disk["lexicon"] < 140 * once.disk["lexicon"]


def test_a_corpus_without_a_kept_token_is_told(encoder: Encoder, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "of the and to"}) + "\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"vectors\.pruning"):
        estimate_build(estimate_settings(settings_for(path)), encoder, progress=lambda *_: None)
