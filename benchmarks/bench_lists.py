"""Claim: 4-bit codes by a fast scan find as many of the best 100 rows as codes by RaBitQ, in less time and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_lists index=DIR [lists=2048] [questions=50]
    OMP_NUM_THREADS=1 python -m benchmarks.bench_lists rows=42753168 dimensions=128 [lists=8192,32768]

The first takes the vectors of an index that searches exactly, and the start and end vectors of questions about it, in
full length and with 128 dimensions by PCA, then as many made-up vectors around a thousand centers. All codecs have
the same lists, so the differences are those of the codes; candidates are scored by the vectors, as in a search.
The second times the scan alone in lists of random codes, of more rows than can be encoded here. Processor time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.drawn_questions import draw_questions
from index.arrays import ShardedArray
from index.exact import exact_top
from index.faiss_library import block_rows, faiss_threads, import_faiss, new_faiss_index, split
from index.ivf import ID_BYTES, Quantizer, attach_lists, train_quantizer, write_code_shard, write_search_folder
from index.search import FaissSearcher, open_search
from index.settings import SHORT_DIMENSIONS, SearchSettings, SearchTier, default_probed_lists, resolved_settings
from npm.evaluation.report import markdown_table
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rotation import principal_axes
from npm.retrieval.queries import encode_queries

RECALL_AT, GOAL = 100, 0.97
PROBED, RERANKED = (64, 128, 256, 512), (500, 1000, 2000, 4000)
DEFAULT = (256, 2000)
SHORT = 128
HEADER = ["vectors", "codes", "bytes per row", "training, s", "coding, µs per row", "recall@100", "µs per query"]
HEADER += [f"fastest with {GOAL}: lists, reranked", "µs per query"]


def data(given: dict[str, str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, vectors f16 [n, d] and queries f32 [q, d] of each comparison."""
    index = PhraseIndex.open(Path(given["index"]))
    encoder = index.load_encoder(None, device="cpu", for_reading=True)
    drawn = draw_questions(index, int(given.get("questions", "50")), seed=0, words_only=encoder.query_masks == 1)
    encoded = encode_queries(encoder, [question.text for question in drawn])
    queries = np.concatenate([encoded.start, encoded.end])  # f32 [q, d]
    assert index.vectors is not None, "an index that was opened from its folder"
    vectors = index.vectors.take(np.arange(len(index.vectors))).astype(np.float16)  # [n, d]
    yield "phrases", vectors, queries
    axes = principal_axes(vectors[:: max(1, len(vectors) // 100_000)].astype(np.float32), SHORT)[0]  # f32 [128, d]
    short, short_queries = (vectors.astype(np.float32) @ axes.T).astype(np.float16), queries @ axes.T
    best = exact_top(ShardedArray([vectors]), queries, RECALL_AT).rows  # i64 [q, 100]
    nearest = exact_top(ShardedArray([short]), short_queries, RERANKED[0]).rows  # i64 [q, 500]
    for depth in (RECALL_AT, RERANKED[0]):
        kept = np.mean([np.isin(*pair).mean() for pair in zip(best, nearest[:, :depth], strict=True)])
        print(f"the best {depth} with {SHORT} dimensions hold {kept:.3f} of the best {RECALL_AT} in full length")
    yield "phrases, PCA", short, short_queries
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((1000, vectors.shape[1])).astype(np.float32)  # [centers, d]
    numbers = rng.integers(1000, size=len(vectors))  # i64 [n]
    made = centers[numbers] + rng.standard_normal(vectors.shape, dtype=np.float32)  # f32 [n, d]
    yield "made up", made.astype(np.float16), made[:: len(made) // len(queries)][: len(queries)]


def codecs(dimensions: int) -> tuple[str, str]:
    """The codes by RaBitQ with as many bits per dimension as those of the tier, and these."""
    factory = resolved_settings(SearchSettings(tier=SearchTier.ivf_pq), 1, dimensions)["factory"]
    return "RaBitQ2" if dimensions <= SHORT_DIMENSIONS else "RaBitQ", factory.rpartition(",")[2]


def compare(name: str, vectors: np.ndarray, queries: np.ndarray, list_count: int) -> Iterator[list[str]]:
    """A row of the table for each codec."""
    stored, dimensions = ShardedArray([vectors]), vectors.shape[1]
    best = exact_top(stored, queries, RECALL_AT).rows  # i64 [q, 100]
    resolved = resolved_settings(SearchSettings(tier=SearchTier.ivf_pq, list_count=list_count), *vectors.shape)
    for codes in dict.fromkeys((*codecs(dimensions), f"PQ{dimensions // 2}x4fsr")):
        made_with = resolved | {"factory": f"RR{dimensions},IVF{list_count},{codes}", "thread_count": 1}
        with TemporaryDirectory() as temporary:
            root, started = Path(temporary), time.process_time()
            train_quantizer(root / "quantizer", stored, None, made_with)
            trained, quantizer = time.process_time(), Quantizer.open(root / "quantizer")
            write_code_shard(root / "codes", vectors, quantizer, settings={"quantizer": quantizer.digest})
            arguments = {"quantizer": quantizer, "code_folders": [root / "codes"]}
            write_search_folder(root / "search", made_with, stored, **arguments)
            coded = time.process_time()
            searcher = open_search(root / "search", stored, quantizer=root / "quantizer")
            assert isinstance(searcher, FaissSearcher)
            found = {
                (probed, reranked): measured(searcher, queries, best, probed, reranked)
                for probed in PROBED
                for reranked in RERANKED
            }
        good = [(took, *at) for at, (recall, took) in found.items() if recall >= GOAL]
        fastest = [f"{min(good)[1]}, {min(good)[2]}", f"{min(good)[0]:.0f}"] if good else ["–", "–"]
        times = [f"{trained - started:.1f}", f"{(coded - trained) / len(vectors) * 1e6:.1f}"]
        recall, took = found[DEFAULT]
        size = str(quantizer.code_bytes + ID_BYTES)
        yield [f"{name}, {dimensions}", codes, size, *times, f"{recall:.3f}", f"{took:.0f}", *fastest]


def measured(
    searcher: FaissSearcher, queries: np.ndarray, best: np.ndarray, probed: int, reranked: int
) -> tuple[float, float]:
    """Fraction of the `best` rows i64 [q, 100] that are found, and the median of µs per query."""
    searcher.probed_lists, searcher.rerank_factor = probed, reranked // RECALL_AT
    found, times = 0, []
    for query, rows in zip(queries[:, None], best, strict=True):  # f32 [1, d], i64 [100]
        started = time.thread_time()
        hits = searcher.scan(query).top(RECALL_AT)
        times.append(time.thread_time() - started)
        found += len(np.intersect1d(hits.rows[hits.found], rows))
    return found / best.size, median(times) * 1e6


def scan_alone(rows: int, dimensions: int, list_count: int, codes: str) -> list[str]:
    """Median time of a search without reranking among random codes in lists of equal size."""
    faiss, rng = import_faiss(), np.random.default_rng(0)
    index = new_faiss_index(f"RR{dimensions},IVF{list_count},{codes}", dimensions)
    rotation, lists = split(index)
    sample = rng.standard_normal((4096, dimensions)).astype(np.float32)  # [4096, d]
    rotation.train(sample)
    lists.quantizer.add(rng.standard_normal((list_count, dimensions)).astype(np.float32))
    numbers = np.zeros(len(sample), dtype=np.int64)  # [4096]
    lists.train_encoder(len(sample), faiss.swig_ptr(sample), faiss.swig_ptr(numbers))
    lists.is_trained = index.is_trained = True
    sizes = np.full(list_count, rows // list_count)  # i64 [K]
    step = block_rows(lists)
    capacity = -(-(rows // list_count) // step) * step
    with TemporaryDirectory() as temporary:
        faiss.write_index(index, str(Path(temporary) / "trained.faiss"))
        np.save(Path(temporary) / "list_sizes.npy", sizes)
        ids = np.arange(rows // list_count)  # i64 [rows of a list]
        with (Path(temporary) / "lists.bin").open("wb") as file:
            for number in range(list_count):
                file.write(rng.bytes(capacity * lists.code_size))
                file.write((ids + number * len(ids)).tobytes())
        quantizer = Quantizer(Path(temporary) / "trained.faiss", digest="", thread_count=1)
        held = attach_lists(quantizer, Path(temporary))
        times = []
        for probed in (256, default_probed_lists(list_count)):
            parameters = faiss.SearchParametersIVF(nprobe=probed)
            parameters = faiss.SearchParametersPreTransform(index_params=parameters)
            for query in sample[:60, None]:  # f32 [1, d]
                started = time.thread_time()
                quantizer.index.search(query, DEFAULT[1], params=parameters)
                times.append(time.thread_time() - started)
        assert held.totsize
    return [codes, f"{list_count:,}", f"{median(times[10:60]) * 1e3:.1f}", f"{median(times[70:]) * 1e3:.1f}"]


def main(arguments: list[str]) -> None:
    """Print the table of one of the two comparisons."""
    given = dict(argument.split("=", 1) for argument in arguments)
    with faiss_threads(1):
        if "index" in given:
            list_count = int(given.get("lists", "2048"))
            rows = [row for each in data(given) for row in compare(*each, list_count)]
            print(markdown_table(HEADER, rows))
            return
        dimensions, counts = int(given["dimensions"]), given.get("lists", "8192,32768").split(",")
        rows = [
            scan_alone(int(given["rows"]), dimensions, int(count), codes)
            for count in counts
            for codes in codecs(dimensions)
        ]
        print(markdown_table(["codes", "lists", "ms per query, 256 probed", "by default"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
