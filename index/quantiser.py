"""The quantiser: centroids and codec, trained once from a sample of the vectors; it holds no vectors itself.

Factories that are plain inverted lists (of flat, scalar, product or RaBitQ codes, also behind transforms) are trained
here, k-means with checkpoints; of all others FAISS trains the whole.

Shapes: t training rows, n vectors, K lists, d dimensions as stored, e dimensions after the transforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray, to_float32
from index.exact import check_finite
from index.faiss_library import (
    FaissIndex,
    factory_error,
    faiss_threads,
    import_faiss,
    inverted_file,
    last_line,
    new_faiss_index,
    read_faiss,
    whole_threads,
    write_faiss,
)
from index.kmeans import Assign, faiss_assigner, train_centroids
from index.types import Report, no_report
from npm.core.artifact import Manifest, check_folder, finished_folder, folder_lock, read_manifest, remove, write_folder
from npm.core.errors import ArtifactError
from npm.core.files import digest_of, sha256_of_bytes

QUANTISER_KIND, TRAINED_FILE = "quantiser", "trained.faiss"
CODEC_TRAIN_ROWS = 1 << 16
"""Rows that a codec is trained on; ranges and codebooks of 256 entries need no more."""
ROW_GRAPH_LISTS, ROW_GRAPH_SEARCH = 4096, 16
"""From this many lists on, the nearest one of a row is found through a graph, visiting 16 candidates: at 8192
lists a third of the time, another list for 2 % of the rows, on average 0.3 % further away."""


def train_quantiser(
    folder: Path,
    vectors: ShardedArray,
    trainable_rows: np.ndarray | None,
    resolved: Mapping[str, Any],
    *,
    progress: Report = no_report,
) -> Manifest:
    """Train on rows of `vectors` f16|f32 [n, d], or on those in `trainable_rows` i64 [m]; write `folder`.

    `resolved` are settings of `index.settings.resolved_settings`, which the manifest records, with whatever else the
    caller adds to them; a finished quantiser of the same settings is kept. K-means keeps its state in `.<name>.partial`
    beside `folder`: after a kill the same call goes on there and ends in the same bytes. `progress(rounds done,
    rounds)`. Raises UserError if FAISS does not know the factory or has too few rows for it, ArtifactError if a vector
    is not finite, another process is training it, or `folder` was made with other settings.
    """
    checkpoints, lock = folder.parent / f".{folder.name}.partial", f".{folder.name}.lock"
    if (kept := finished_folder(folder, kind=QUANTISER_KIND, settings=resolved)) is not None:
        remove(checkpoints, also=[lock])
        return kept
    with folder_lock(checkpoints / folder.name):
        index = _train(checkpoints, vectors, trainable_rows, resolved, progress)
        with write_folder(folder, kind=QUANTISER_KIND, settings=resolved) as writer:
            write_faiss(index, writer.open_binary(TRAINED_FILE))
        remove(checkpoints, also=[lock])
    return read_manifest(folder, kind=QUANTISER_KIND)


def _train(
    checkpoints: Path,
    vectors: ShardedArray,
    trainable_rows: np.ndarray | None,
    resolved: Mapping[str, Any],
    progress: Report,
) -> FaissIndex:
    factory, thread_count = resolved["factory"], resolved["thread_count"]
    index = new_faiss_index(factory, vectors.shape[1])
    trainable = len(vectors) if trainable_rows is None else len(trainable_rows)
    # Drawn, not the first ones: articles of a corpus often come sorted, and lists must fit all of them.
    rows = drawn_rows(trainable, resolved["train_rows"], seed=resolved["seed"])  # i64 [t]
    rows = rows if trainable_rows is None else trainable_rows[rows]
    sample = vectors.take(rows)  # [t, d] as stored
    check_finite(sample, rows)
    with faiss_threads(thread_count):
        if (lists := plain_lists(index)) is None:
            with faiss_threads(whole_threads(factory, thread_count)):
                _train_whole(index, to_float32(sample), factory, seed=resolved["seed"])
        else:
            sample = _transformed(index, sample, factory)  # [t, e]
            if lists.nlist > len(sample):
                raise factory_error(factory, f"{lists.nlist} lists, {len(sample)} rows to train them on")
            sample_hash = sha256_of_bytes(np.ascontiguousarray(sample).reshape(-1).view(np.uint8).data)
            key = digest_of({"settings": dict(resolved), "sample": sample_hash})[:16]
            for other in checkpoints.glob("*"):  # of another training
                if other.name != key:
                    remove(other)
            centroids = train_centroids(
                sample,
                lists.nlist,
                iterations=resolved["train_iterations"],
                seed=resolved["seed"],
                assigner=row_assigner,
                checkpoints=checkpoints / key,
                progress=progress,
            )
            quantizer = import_faiss().downcast_index(lists.quantizer)
            quantizer.reset()
            with faiss_threads(1):  # a graph over the centroids depends on the order in which threads add to it
                quantizer.add(centroids)
            _train_codec(lists, centroids, sample, factory)
            index.is_trained = True
    return index


class Quantiser:
    """A trained quantiser: which list a vector belongs to, and the few bytes that stand for it there."""

    def __init__(self, file: Path, *, digest: str, thread_count: int) -> None:
        index = read_faiss(file)
        lists = plain_lists(index)
        self.index = index
        self.file = file
        self.digest = digest
        self.dimensions: int = index.d
        self.has_lists = lists is not None
        self.list_count: int = 0 if lists is None else lists.nlist
        self.code_bytes: int = 0 if lists is None else lists.code_size
        self._lists = lists
        self._thread_count = thread_count
        self._assign: Assign | None = None  # made when first needed: a search never encodes

    @classmethod
    def open(cls, folder: Path) -> Quantiser:
        """The quantiser in `folder`; raises ArtifactError if it is missing or damaged."""
        manifest = check_folder(folder, kind=QUANTISER_KIND, hash_all=True)
        opened = cls(
            folder / TRAINED_FILE, digest=manifest.digest, thread_count=manifest.settings.typed("thread_count", int)
        )
        if opened.dimensions != manifest.settings["dimensions"]:
            raise ArtifactError(
                f"{folder / TRAINED_FILE} must have {manifest.settings['dimensions']} dimensions, got "
                f"{opened.dimensions}; remove this folder and train the quantizer again (stage=quantise)"
            )
        return opened

    def check_dimensions(self, dimensions: int) -> None:
        """Raise ArtifactError unless vectors of `dimensions` numbers fit this quantiser."""
        if dimensions != self.dimensions:
            raise ArtifactError(
                f"{self.file} was trained for vectors of {self.dimensions} dimensions, got {dimensions}; "
                "train a quantizer on vectors of this encoder (stage=quantise)"
            )

    def encode(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The list i64 [n] and the code u8 [n, code_bytes] of each of `vectors` f32 [n, d], all finite."""
        if self._lists is None:
            raise ValueError(f"a quantiser of {type(self.index).__name__} has no inverted lists")
        faiss = import_faiss()
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)  # [n, d]
        with faiss_threads(self._thread_count):
            for transform in transforms(self.index):
                vectors = transform.apply(vectors)  # [n, e]
            if self._assign is None:
                self._assign = row_assigner(self._lists.quantizer.reconstruct_n(0, self.list_count))
            lists = np.ascontiguousarray(self._assign(vectors), dtype=np.int64)  # [n]
            codes = np.empty((len(vectors), self.code_bytes), dtype=np.uint8)  # [n, code_bytes]
            pointers = (faiss.swig_ptr(array) for array in (vectors, lists, codes))
            self._lists.encode_vectors(len(vectors), *pointers)
        return lists, codes


def row_assigner(centroids: np.ndarray) -> Assign:
    """Which list of `centroids` f32 [K, e] a row belongs to: the nearest by Euclidean distance, as k-means had it.

    Queries look for lists by inner product; measured on contextual token vectors, lists of nearest rows and these
    queries together find more than lists by inner product, because one-bit codes want short residuals.
    """
    from index.gpu import cuda_device, torch_assigner

    if (device := cuda_device()) is not None:
        return torch_assigner(device)(centroids)
    if len(centroids) < ROW_GRAPH_LISTS:
        return faiss_assigner(centroids)
    faiss = import_faiss()
    graph = faiss.IndexHNSWFlat(centroids.shape[1], 32)
    graph.hnsw.efSearch = ROW_GRAPH_SEARCH
    with faiss_threads(1):  # the graph depends on the order in which threads add to it
        graph.add(centroids)

    def assign(vectors: np.ndarray) -> np.ndarray:
        lists: np.ndarray = graph.search(vectors, 1)[1][:, 0]  # i64 [n]
        return lists

    return assign


def plain_lists(index: FaissIndex) -> FaissIndex | None:
    """The inverted file of `index` if its codes can be made shard by shard and merged; else None.

    FastScan packs codes of many rows together, refinement keeps a second index, graphs hold no lists.
    """
    faiss = import_faiss()
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    plain = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ, faiss.IndexIVFRaBitQ)
    return inner if type(inner) in plain else None


def transforms(index: FaissIndex) -> list[Any]:
    """The transforms before the lists, such as a rotation, in order."""
    faiss = import_faiss()
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(number)) for number in range(index.chain.size())]


def drawn_rows(row_count: int, most: int, *, seed: int) -> np.ndarray:
    """At most `most` of `row_count` rows drawn with `seed`, ascending i64 [n]; memory does not grow with the rows."""
    if most >= row_count:
        return np.arange(row_count)  # i64 [n]
    return np.sort(np.random.default_rng(seed).choice(row_count, size=most, replace=False, shuffle=False))  # i64 [most]


def _train_whole(index: FaissIndex, sample: np.ndarray, factory: str, *, seed: int) -> None:
    lists = inverted_file(index)
    if lists is not None:
        lists.cp.seed = seed
        if lists.nlist > len(sample):
            raise factory_error(factory, f"{lists.nlist} lists, {len(sample)} rows to train them on")
    if not index.is_trained:
        try:
            index.train(sample)
        except RuntimeError as error:
            raise factory_error(factory, f"training failed: {last_line(error)}") from error


def _transformed(index: FaissIndex, sample: np.ndarray, factory: str) -> np.ndarray:
    """The sample [t, e] after the transforms of `index`, which are trained on `CODEC_TRAIN_ROWS` of it."""
    for transform in transforms(index):
        try:
            transform.train(to_float32(sample[:: -(-len(sample) // CODEC_TRAIN_ROWS)]))
        except RuntimeError as error:
            raise factory_error(factory, f"training failed: {last_line(error)}") from error
        applied = np.empty((len(sample), transform.d_out), dtype=np.float32)  # [t, e]
        for start in range(0, len(sample), CODEC_TRAIN_ROWS):
            chunk = slice(start, start + CODEC_TRAIN_ROWS)
            applied[chunk] = transform.apply(to_float32(sample[chunk]))
        sample = applied
    return sample


def _train_codec(lists: FaissIndex, centroids: np.ndarray, sample: np.ndarray, factory: str) -> None:
    """Train the codec on what it will code: what is left of rows after subtracting the centroid of their list."""
    faiss = import_faiss()
    step = -(-len(sample) // CODEC_TRAIN_ROWS)
    coded = np.array(sample[::step], dtype=np.float32)  # [<= CODEC_TRAIN_ROWS, e]; a copy, changed below
    numbers = np.ascontiguousarray(row_assigner(centroids)(coded), dtype=np.int64)  # [<= CODEC_TRAIN_ROWS]
    if lists.by_residual:
        coded -= centroids[numbers]
    try:
        lists.train_encoder(len(coded), faiss.swig_ptr(coded), faiss.swig_ptr(numbers))
    except RuntimeError as error:
        raise factory_error(factory, f"training failed: {last_line(error)}") from error
    lists.is_trained = True
