"""Inverted lists by FAISS: training, the codes of vector shards, and the lists merged from them.

A row belongs to the list with the nearest centroid, by Euclidean distance; queries find lists by inner product.
Measured on contextual token vectors, these two together find more than lists by inner product, because codes of a bit
or two per dimension want short residuals.

Shapes: t training rows, n vectors, K lists, d dimensions as stored, e dimensions after the rotation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import ShardedArray, to_float32
from index.exact import check_finite, finite_chunks
from index.faiss_library import (
    FaissIndex,
    block_rows,
    faiss_threads,
    import_faiss,
    new_faiss_index,
    packed_codes,
    read_faiss,
    split,
)
from index.settings import CODEC_TRAIN_ROWS, SearchTier, ThreadCount, check_trainable, default_probed_lists
from index.types import SEARCH_KIND
from npm.core.artifact import Manifest, check_folder, open_array, write_manifest, written_once
from npm.core.errors import ArtifactError
from npm.core.files import FolderWriter, digest_of
from npm.core.types import Progress, silent

QUANTIZER_KIND, CODE_SHARD_KIND = "quantizer", "code-shard"
TRAINED_FILE, LISTS_FILE = "trained.faiss", "lists.bin"
ROW_GRAPH_LISTS, ROW_GRAPH_SEARCH = 4096, 16
"""From this many lists on, the nearest one of a row is found through a graph, visiting 16 candidates: at 8192
lists a third of the time, another list for 2 % of the rows, on average 0.3 % further away."""
ROWS_PER_CHUNK = 1 << 14
"""Rows coded at once; the lists and codes of a row may depend on it in the last bit, so it is no setting."""
ID_BYTES = 8
TWO_LEVEL_LISTS = 1024
"""From this many lists on, centroids are trained in two levels."""


def train_quantizer(
    folder: Path,
    vectors: ShardedArray,
    trainable_rows: np.ndarray | None,
    resolved: Mapping[str, Any],
    *,
    progress: Progress = silent,
) -> Manifest:
    """Train on rows of `vectors` [n, d], or on those in `trainable_rows` i64 [m]; write `folder`.

    `resolved` are settings of `index.settings.resolved_settings`, which the manifest records, with any further
    ones of the caller; a finished quantizer of the same settings is kept. Progress counts groups of
    lists, and the codec as one more. Raises SettingError as `check_trainable` does, ArtifactError if a vector is not
    finite, or `folder` was made with other settings.
    """

    def write(writer: FolderWriter) -> None:
        trainable = len(vectors) if trainable_rows is None else len(trainable_rows)
        # Drawn, not the first ones: articles of a corpus often come sorted, and lists must fit all of them.
        rows = drawn_rows(trainable, resolved["train_rows"], seed=resolved["seed"])  # i64 [t]
        rows = rows if trainable_rows is None else trainable_rows[rows]
        check_trainable(resolved, len(rows))
        with faiss_threads(resolved["thread_count"]):
            index = _trained(vectors, rows, resolved, progress)
        faiss = import_faiss()
        # streamed, without a second copy of it in memory
        faiss.write_index(index, faiss.PyCallbackIOWriter(writer.open_binary(TRAINED_FILE).write))

    return written_once(folder, kind=QUANTIZER_KIND, settings=resolved, write=write)


def _trained(vectors: ShardedArray, rows: np.ndarray, resolved: Mapping[str, Any], progress: Progress) -> FaissIndex:
    """The index without rows, trained on the `rows` i64 [t] of `vectors` [n, d]."""
    index = new_faiss_index(resolved["factory"], vectors.shape[1])
    rotation, lists = split(index)
    sample = np.empty((len(rows), lists.d), dtype=np.float32)  # [t, e]
    # In chunks, since the sample takes up to two gigabytes.
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        piece = slice(start, start + ROWS_PER_CHUNK)
        chunk = vectors.take(rows[piece])  # f16|f32 [c, d]
        check_finite(chunk, rows[piece])
        chunk = to_float32(chunk)  # [c, d]
        if rotation is not None:
            if start == 0:
                rotation.train(chunk)  # random: the same for any rows
            chunk = rotation.apply(chunk)  # f32 [c, e]
        sample[piece] = chunk
    centroids = _centroids(sample, resolved, progress)  # f32 [K, e]
    lists.quantizer.add(centroids)
    # The codec codes the residuals of rows after subtracting the centroid of their list.
    coded = sample[:: -(-len(sample) // CODEC_TRAIN_ROWS)].copy()  # f32 [<= CODEC_TRAIN_ROWS, e]
    numbers = RowAssigner(centroids).nearest(coded)  # i64 [<= CODEC_TRAIN_ROWS]
    if lists.by_residual:
        coded -= centroids[numbers]  # f32 [<= CODEC_TRAIN_ROWS, e]
    faiss = import_faiss()
    if hasattr(lists, "pq"):
        lists.pq.cp.seed, lists.pq.cp.min_points_per_centroid = resolved["seed"], 1
    lists.train_encoder(len(coded), faiss.swig_ptr(coded), faiss.swig_ptr(numbers))
    lists.is_trained = index.is_trained = True
    steps = _group_count(resolved["list_count"]) + 1
    progress("quantizer", steps, steps)
    return index


def _group_count(list_count: int) -> int:
    """Number of groups of lists that are trained one after the other."""
    return round(math.sqrt(list_count)) if list_count >= TWO_LEVEL_LISTS else 1


def _centroids(sample: np.ndarray, resolved: Mapping[str, Any], progress: Progress) -> np.ndarray:
    """Centroids f32 [K, e] of `sample` f32 [t, e] by k-means, where they are many in two levels.

    Each of √K groups of rows gets lists in proportion to its rows; then each centroid becomes the mean of the rows
    that are nearest to it among all. This is a small part of the work of all lists at once, for the same recall.
    """
    list_count: int = resolved["list_count"]
    group_count = _group_count(list_count)
    groups = RowAssigner(_k_means(sample, group_count, resolved)).nearest(sample)  # i64 [t]
    stops = np.cumsum(np.bincount(groups, minlength=group_count)) * list_count // len(sample)  # i64 [groups]
    centroids = []
    for number, count in enumerate(np.diff(stops, prepend=0).tolist()):  # at most the rows of the group
        if count:
            centroids.append(_k_means(sample[groups == number], count, resolved))  # f32 [count, e]
        progress("quantizer", number + 1, group_count + 1)  # the codec follows
    result = np.concatenate(centroids)  # f32 [K, e]
    if group_count > 1:
        numbers = RowAssigner(result).nearest(sample)  # i64 [t]
        stops = np.cumsum(np.bincount(numbers, minlength=list_count))  # i64 [K]
        for number, rows in enumerate(np.split(np.argsort(numbers, kind="stable"), stops[:-1])):  # i64 [of the list]
            if len(rows):
                result[number] = sample[rows].mean(axis=0)  # f32 [e]
    return result


def _k_means(rows: np.ndarray, count: int, resolved: Mapping[str, Any]) -> np.ndarray:
    """The centroids f32 [count, e] of `rows` f32 [r, e], r >= count, starting from rows drawn with the seed."""
    means = import_faiss().Kmeans(
        rows.shape[1],
        count,
        niter=resolved["train_iterations"],
        seed=resolved["seed"],
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # all rows: no second sampling
        gpu=True,  # all there are; faiss-cpu sees none
    )
    first = rows[drawn_rows(len(rows), count, seed=resolved["seed"])]  # f32 [count, e]
    means.train(rows, init_centroids=first)
    return np.asarray(means.centroids)  # f32 [count, e]


def drawn_rows(row_count: int, most: int, *, seed: int) -> np.ndarray:
    """At most `most` of `row_count` rows drawn with `seed`, ascending i64 [n]; memory does not grow with the rows."""
    if most >= row_count:
        return np.arange(row_count)  # i64 [n]
    return np.sort(np.random.default_rng(seed).choice(row_count, size=most, replace=False, shuffle=False))  # i64 [most]


class RowAssigner:
    """Finds the nearest of `centroids` f32 [K, e] by Euclidean distance.

    Exactly on GPUs, if faiss-gpu sees some, or where centroids are few; else by a graph, which gives about 2 % of the
    rows another near list.
    """

    def __init__(self, centroids: np.ndarray) -> None:
        faiss = import_faiss()
        dimensions = centroids.shape[1]
        self._index = faiss.IndexFlatL2(dimensions)
        if faiss.get_num_gpus():
            self._index = faiss.index_cpu_to_all_gpus(self._index)
        elif len(centroids) >= ROW_GRAPH_LISTS:
            self._index = faiss.IndexHNSWFlat(dimensions, 32)
            self._index.hnsw.efSearch = ROW_GRAPH_SEARCH
        with faiss_threads(1):  # a graph depends on the order in which threads add to it
            self._index.add(centroids)

    def nearest(self, vectors: np.ndarray) -> np.ndarray:
        """The nearest centroid of each of `vectors` f32 [n, e]: i64 [n]."""
        return np.ascontiguousarray(self._index.search(vectors, 1)[1][:, 0])


class Quantizer:
    """A trained quantizer: the list that a vector belongs to, and the few bytes of its code there."""

    def __init__(self, file: Path, *, digest: str, thread_count: int) -> None:
        self.index = read_faiss(file)
        self.file, self.digest = file, digest
        self._rotation, self.lists = split(self.index)
        self.list_count: int = self.lists.nlist
        self.code_bytes: int = self.lists.code_size
        self._thread_count = thread_count
        self._assigner: RowAssigner | None = None  # made when first needed: a search never encodes

    @classmethod
    def open(cls, folder: Path) -> Quantizer:
        """The quantizer in `folder`; raises ArtifactError if it is missing or damaged."""
        manifest = check_folder(folder, kind=QUANTIZER_KIND, hash_all=True)
        threads = manifest.settings.typed("thread_count", ThreadCount)
        return cls(folder / TRAINED_FILE, digest=manifest.digest, thread_count=threads)

    def check_dimensions(self, dimensions: int) -> None:
        """Raise ArtifactError unless vectors of `dimensions` fit this quantizer."""
        if dimensions != self.index.d:
            raise ArtifactError(
                f"{self.file} was trained for vectors of {self.index.d} dimensions, got {dimensions}; "
                "train a quantizer on vectors of this encoder (stage=quantize)"
            )

    def encode(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The list i64 [n] and the code u8 [n, code_bytes] of each of `vectors` f32 [n, d], all finite."""
        faiss = import_faiss()
        with faiss_threads(self._thread_count):
            if self._rotation is not None:
                vectors = self._rotation.apply(vectors)  # f32 [n, e]
            if self._assigner is None:
                self._assigner = RowAssigner(self.lists.quantizer.reconstruct_n(0, self.list_count))
            lists = self._assigner.nearest(vectors)  # i64 [n]
            codes = np.empty((len(vectors), self.code_bytes), dtype=np.uint8)  # [n, code_bytes]
            self.lists.encode_vectors(len(vectors), *(faiss.swig_ptr(array) for array in (vectors, lists, codes)))
        return lists, codes


def code_shard_settings(quantizer: Quantizer, vectors_digest: str) -> dict[str, Any]:
    """Settings of a code shard: the quantizer and the vector shard, by the digests of their manifests."""
    return {"quantizer": quantizer.digest, "vectors": vectors_digest}


def write_code_shard(
    folder: Path, vectors: np.ndarray | ShardedArray, quantizer: Quantizer, *, settings: Mapping[str, Any]
) -> Manifest:
    """Code all `vectors` [n, d] of one shard, sorted by list; `settings` are those of `code_shard_settings`.

    A finished shard of the same settings is kept. Raises ArtifactError if the vectors have other dimensions than the
    quantizer, one is not finite, or `folder` was made with other settings.
    """
    quantizer.check_dimensions(vectors.shape[1])

    def write(writer: FolderWriter) -> None:
        lists = np.empty(len(vectors), dtype=np.int32)  # [n]
        codes = np.empty((len(vectors), quantizer.code_bytes), dtype=np.uint8)  # [n, code_bytes]
        for start, chunk in finite_chunks(vectors, ROWS_PER_CHUNK):  # f32 [c, d]
            coded = slice(start, start + len(chunk))
            lists[coded], codes[coded] = quantizer.encode(chunk)
        order = np.argsort(lists, kind="stable").astype(np.uint32)  # [n]
        writer.write_array("list_sizes", np.bincount(lists, minlength=quantizer.list_count))  # i64 [K]
        writer.write_array("rows", order)
        writer.write_array("codes", codes[order])

    return written_once(folder, kind=CODE_SHARD_KIND, settings=settings, write=write)


def write_search_folder(
    folder: Path,
    resolved: Mapping[str, Any],
    vectors: ShardedArray,
    *,
    quantizer: Quantizer | None = None,
    code_folders: Sequence[Path] = (),
    progress: Progress = silent,
) -> Manifest:
    """Write the search folder over `vectors` [n, d], or keep a finished one of the same.

    With a quantizer it holds the lists of all code shards, which follow each other in the order of their rows; without,
    for exact search, vectors are checked to be finite, and the manifest is all there is. Progress counts lists or
    rows. Raises ArtifactError for damage, another quantizer, or shards that do not cover the rows.
    """
    row_count, dimensions = vectors.shape
    settings = {**resolved, "row_count": row_count}
    if quantizer is None:
        for start, chunk in finite_chunks(vectors):
            progress("rows", start + len(chunk), row_count)
        folder.mkdir(parents=True, exist_ok=True)
        return write_manifest(folder, kind=SEARCH_KIND, settings=settings)
    quantizer.check_dimensions(dimensions)
    shards = [check_folder(place, kind=CODE_SHARD_KIND, hash_all=True) for place in code_folders]
    for place, shard in zip(code_folders, shards, strict=True):
        if shard.settings["quantizer"] != quantizer.digest:
            raise ArtifactError(f"the codes in {place} come from another quantizer; remove it and run stage=code again")
    settings |= {
        "quantizer": quantizer.digest,
        "codes": digest_of([shard.digest for shard in shards]),
        "probed_lists": default_probed_lists(quantizer.list_count),
        # More candidates are scored exactly where codes have a bit or two per dimension.
        "rerank_factor": 4 if resolved.get("tier") == SearchTier.ivf_pq.value else 2,
    }
    rows = [open_array(place, "rows") for place in code_folders]  # u32 [rows of the shard] each
    codes = [open_array(place, "codes") for place in code_folders]  # u8 [rows of the shard, code_bytes] each
    first_rows = np.cumsum([0, *map(len, rows)]).tolist()
    if first_rows[-1] != row_count:
        raise ArtifactError(
            f"the code shards do not make up the {row_count} rows of {folder}: they have {first_rows[-1]}; "
            "code the vector shards that are missing or were made again (stage=code)"
        )
    sizes = np.stack([open_array(place, "list_sizes") for place in code_folders])  # i64 [shards, K]
    stops = np.cumsum(sizes, axis=1)  # i64 [shards, K]
    starts = stops - sizes  # i64 [shards, K]

    def write(writer: FolderWriter) -> None:
        writer.write_array("list_sizes", sizes.sum(axis=0))  # i64 [K]
        file = writer.open_binary(LISTS_FILE)
        for number, total in enumerate(sizes.sum(axis=0).tolist()):
            pieces = list(map(slice, starts[:, number], stops[:, number]))  # of each shard
            if total:
                of_list = np.concatenate([each[piece] for each, piece in zip(codes, pieces, strict=True)])  # [total, ·]
                file.write(packed_codes(of_list, quantizer.lists).tobytes())
                ids = [each[piece].astype(np.int64) for each, piece in zip(rows, pieces, strict=True)]
                file.write(np.concatenate(list(map(np.add, ids, first_rows))).tobytes())
            progress("lists", number + 1, quantizer.list_count)

    return written_once(folder, kind=SEARCH_KIND, settings=settings, write=write)


def attach_lists(quantizer: Quantizer, folder: Path) -> Any:
    """Map the lists of a checked search folder into the index of `quantizer`; the result must live as long as it.

    Raises ArtifactError if the lists do not fit the quantizer.
    """
    faiss = import_faiss()
    sizes, code_bytes = open_array(folder, "list_sizes"), quantizer.code_bytes  # i64 [K]
    step = block_rows(quantizer.lists)
    capacities = -(-sizes // step) * step  # i64 [K], codes that each list has space for
    ends = np.cumsum(capacities * code_bytes + sizes * ID_BYTES)  # i64 [K]
    path = folder / LISTS_FILE
    if (len(sizes), path.stat().st_size) != (quantizer.list_count, ends[-1]):
        raise ArtifactError(f"the lists in {folder} do not fit {quantizer.file}; remove this folder and merge again")
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size = len(sizes), code_bytes
    lists.read_only, lists.filename, lists.totsize = True, str(path), int(ends[-1])
    lists.prefetch_nthread = 0  # its threads would read entire lists ahead of the search, on all cores
    offsets = [0, *ends[:-1].tolist()]
    for size, capacity, offset in zip(sizes.tolist(), capacities.tolist(), offsets, strict=True):
        one = faiss.OnDiskOneList()
        one.size, one.capacity, one.offset = size, capacity, offset
        lists.lists.push_back(one)
    if lists.totsize:
        lists.do_mmap()
    quantizer.lists.replace_invlists(lists, False)
    quantizer.lists.ntotal = quantizer.index.ntotal = int(sizes.sum())
    return lists
