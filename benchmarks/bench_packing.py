"""Claim: packing a corpus into blocks takes private memory that does not grow with the corpus.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_packing ENCODER FILE [FILE ...]

Packs the files into a temporary block store and prints tokens, tokens/s, and the peak of private memory
(RssAnon + RssShmem of /proc/self/status, Linux only), sampled every 10 ms.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from npm.core.memory import private_bytes

SAMPLE_SECONDS = 0.01


class PeakMemory:
    """Samples the private memory of this process in the background while it is entered."""

    def __init__(self) -> None:
        self._before = self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def growth(self) -> int:
        """Bytes at the peak above those at the beginning."""
        return self._peak - self._before

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = private_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._peak = max(self._peak, private_bytes())

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, private_bytes())


def main(encoder_name: str, files: list[str]) -> None:
    """Pack and report."""
    from npm.corpus.blocks import BlockPacker, BlockSettings
    from npm.corpus.documents import CorpusSettings, read_corpus
    from npm.corpus.store import build_block_store
    from npm.models.encoder import Encoder

    tokenizer = Encoder.load(encoder_name).tokenizer
    began = private_bytes()
    started = time.perf_counter()
    with TemporaryDirectory() as folder, PeakMemory() as memory:
        store = build_block_store(
            Path(folder) / "blocks",
            read_corpus(CorpusSettings(files=files)),
            BlockPacker(tokenizer, BlockSettings()),
            settings={},
        )
        seconds = time.perf_counter() - started
        print(f"{store.document_count:,} documents, {store.block_count:,} blocks, {store.token_count:,} tokens")
        print(f"{seconds:.0f} s, {store.token_count / seconds:,.0f} tokens/s")
    before, peak = began / 2**20, (began + memory.growth) / 2**20
    print(f"private memory: {before:,.0f} MiB before, {peak:,.0f} MiB at the peak")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
