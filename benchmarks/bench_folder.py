"""A folder that is asked for the first time: seconds to the first answer, and bytes on disk, beside bm25s.

    python -m benchmarks.bench_folder corpus=enwiki-00.jsonl.zst megabytes=0.1,1,10 kinds=none,blocks

The folder has the first articles of the corpus as files of text. bm25s indexes its paragraphs, without a reader, and
returns the best one. Both run in this process, one after the other, with models loaded; a row a size.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import bm25s

from npm import PhraseFiller
from npm.core.files import stored_bytes
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.indexing.sync import files_index
from npm.models.encoder import Encoder

QUESTIONS = ("When was the first edition published?", "Who was the first president of the society?")


def write_folder(corpus: str, folder: Path, size: float) -> int:
    """Write the first documents as files of text, `size` megabytes in all; returns the bytes."""
    total = 0
    for number, document in enumerate(read_corpus(CorpusSettings(files=[corpus]))):
        text = f"{document.title}\n\n{document.text}"
        total += (folder / f"{number:06d}.txt").write_text(text, encoding="utf-8")
        if total >= size * 1e6:
            break
    return sum(file.stat().st_size for file in folder.iterdir())


def measured(kind: str, folder: Path, place: Path, encoder: Encoder) -> tuple[float, float, float, int]:
    """Seconds to the index, of the first and of the second question; bytes of the index."""
    started = time.perf_counter()
    if kind == "none":
        os.environ["XDG_CACHE_HOME"] = str(place)
        index = files_index([str(folder)], encoder)[0]
    else:
        vectors, index = VectorSettings(tokens=kind == "tokens"), place / kind
        settings = IndexBuildSettings(corpus=CorpusSettings(files=[str(folder)]), vectors=vectors)
        build_index(index, settings, encoder)
    built = time.perf_counter()
    filler = PhraseFiller.open(index, encoder)
    times = []
    for question in QUESTIONS:
        begun = time.perf_counter()
        filler.fill(question)
        times.append(time.perf_counter() - begun)
    return built - started, times[0], times[1], int(stored_bytes(index))


def bm25_seconds(folder: Path) -> tuple[float, float]:
    """Seconds of bm25s to index all paragraphs, and of a question."""
    started = time.perf_counter()
    texts = [part for file in sorted(folder.iterdir()) for part in file.read_text(encoding="utf-8").split("\n\n")]
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    built = time.perf_counter()
    retriever.retrieve(bm25s.tokenize(QUESTIONS[0], show_progress=False), corpus=texts, k=1, show_progress=False)
    return built - started, time.perf_counter() - built


def main() -> None:
    """Measure every size and kind, and print."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    kinds = given.get("kinds", "none").split(",")
    encoder = Encoder.load("", for_reading=True)
    print("| MB | kind | index, s | first question, s | second, s | bytes a byte | index, times bm25s |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for size in map(float, given.get("megabytes", "0.1,1,10").split(",")):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "folder"
            folder.mkdir()
            total = write_folder(given["corpus"], folder, size)
            plain, question = bm25_seconds(folder)
            print(f"| {total / 1e6:.1f} | bm25s | {plain:.1f} | {question:.3f} | | | 1 |", flush=True)
            for kind in kinds:
                built, first, second, stored = measured(kind, folder, Path(place) / "cache", encoder)
                seconds = f"{built:.1f} | {first:.2f} | {second:.2f}"
                print(
                    f"| {total / 1e6:.1f} | {kind} | {seconds} | {stored / total:.1f} | {built / plain:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
