"""Encoding from blocks on disk to vectors on disk, against the bare encoder over the same batches.

    python -m benchmarks.bench_encoding index=DIR | corpus=FILE [encoder=minilm] [shards=8] [tokens_per_shard=32768]
                                        [tokens_per_batch=4096] [threads=2]

Claim: at least 0.9 of the forward pass alone, over the same length-sorted batches, packed before, in the same
number format. Shard by shard the two take turns, and so do their places, so that a machine that gets slower slows
both; speeds are medians over shards, ratios are medians of ratios, and processor time says more on a busy machine,
with `threads=1`. `index` is an index of which the first segment's blocks are read, `corpus` a file whose first
documents are cut in a temporary folder.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import ShardBlocks, embed_shard, recorded_vectors, shard_folder, vector_shards
from npm.indexing.generation import Generation
from npm.indexing.settings import VectorSettings
from npm.models.encoder import Encoder

GOAL = 0.9
BARE, WHOLE = "forward pass alone", "blocks on disk to vectors on disk"
DOCUMENTS = 3000
Batches = list[tuple[torch.Tensor, list[int]]]


def open_store(given: dict[str, str], encoder: Encoder, temporary: Path) -> BlockStore:
    """The blocks of the index or of the corpus file."""
    if "index" in given:
        return BlockStore.open(Generation.read(Path(given["index"])).segments[0].corpus)
    documents = itertools.islice(read_corpus(CorpusSettings(files=[given["corpus"]])), DOCUMENTS)
    packer = BlockPacker(encoder.tokenizer, BlockSettings())
    return build_block_store(temporary / "corpus", documents, packer, settings={})


def packed_batches(blocks: ShardBlocks, encoder: Encoder) -> Batches:
    """All batches of a shard on the encoder's device: token ids i64 [N], and the lengths of their sequences."""
    batches = [blocks.sequences_of(batch) for batch in blocks.batches]
    return [
        (torch.from_numpy(np.concatenate(each)).to(encoder.device), [len(sequence) for sequence in each])
        for each in batches
    ]


def forward(encoder: Encoder, batches: Batches) -> None:
    """The encoder and nothing else."""
    with torch.inference_mode():
        for ids, lengths in batches:
            encoder.packed_vectors(ids, lengths)
    if encoder.device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(job: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock time and processor time of one call; other processes disturb the second one less."""
    started = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def compare(
    store: BlockStore, encoder: Encoder, settings: VectorSettings, folder: Path, shard_count: int
) -> dict[str, list[tuple[float, float]]]:
    """Tokens a second, by the wall clock and by processor time, of both jobs for each of the first shards."""
    pooler = settings.block_pooler(encoder)
    recorded = recorded_vectors(store, encoder, settings, block_pooler=pooler)
    speeds: dict[str, list[tuple[float, float]]] = {BARE: [], WHOLE: []}
    for number in range(min(shard_count, len(vector_shards(store, settings.tokens_per_shard)))):
        first, stop = vector_shards(store, settings.tokens_per_shard)[number]
        shard_settings = {**recorded, "first_block": first, "block_count": stop - first}
        batches = packed_batches(ShardBlocks(store, encoder, shard_settings), encoder)
        tokens = int(store.block_offsets[stop] - store.block_offsets[first])
        if number == 0:
            forward(encoder, batches[:3])  # warm-up
        jobs: dict[str, Callable[[], object]] = {
            BARE: partial(forward, encoder, batches),
            WHOLE: partial(embed_shard, store, encoder, folder, number, recorded=recorded),
        }
        names = list(jobs) if number % 2 else list(jobs)[::-1]
        for name in names:
            wall, processor = seconds_of(jobs[name])
            speeds[name].append((tokens / wall, tokens / processor))
        vectors = np.load(shard_folder(folder, number) / "vectors.npy", mmap_mode="r")
        print(
            f"shard {number}: {tokens:,} tokens, {len(vectors):,} vectors,"
            f" ratio {speeds[WHOLE][-1][0] / speeds[BARE][-1][0]:.3f}",
            file=sys.stderr,
        )
    return speeds


def main(argv: list[str]) -> None:
    """Compare, and print a table."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(int(given.get("threads", "2")))
    encoder = Encoder.load(given.get("encoder", "minilm"))
    settings = VectorSettings(
        tokens_per_batch=int(given.get("tokens_per_batch", "4096")),
        tokens_per_shard=int(given.get("tokens_per_shard", "32768")),
    )
    shard_count = int(given.get("shards", "8"))
    with tempfile.TemporaryDirectory() as temporary:
        store = open_store(given, encoder, Path(temporary))
        print(
            f"{encoder.name}, {encoder.dtype_name} on {encoder.device}, {torch.get_num_threads()} threads;"
            f" {settings.tokens_per_batch} tokens a batch, {settings.tokens_per_shard:,} a shard"
        )
        speeds = compare(store, encoder, settings, Path(temporary) / "vectors", shard_count)
    print("| job | tokens/s | ratio | tokens a second of processor time | ratio | goal |\n|---|---|---|---|---|---|")
    for name, pairs in speeds.items():
        cells = []
        for clock in (0, 1):
            ratio = median(one[clock] / other[clock] for one, other in zip(pairs, speeds[BARE], strict=True))
            cells.append(f"{median(pair[clock] for pair in pairs):,.0f} | {ratio:.3f}")
        print(f"| {name} | {' | '.join(cells)} | {f'≥ {GOAL}' if name == WHOLE else ''} |")


if __name__ == "__main__":
    main(sys.argv[1:])
