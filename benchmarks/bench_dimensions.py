"""What shorter vectors cost and save: leading numbers, those of an encoder trained for it, and a stored rotation.

    python -m benchmarks.bench_dimensions [dimensions=64,128] [trained=runs/matryoshka/encoder] [encoder=DIR] [work=DIR]

For each length: hit@1 and hit@5 of the demo questions (test half) with hybrid and with dense retrieval, and the bytes
of the demo index and of the vectors in it; of `encoder` (by default the shipped one) whole, cut, and with rotation=pca,
and of `trained`, which experiment=matryoshka leaves, cut. Two minutes a row on a quiet CPU core; indexes are kept in
`work` if it is given. In-batch retrieval at several lengths: npmlm evaluate task=in_batch in_batch.dimensions=[64,128].
"""

from __future__ import annotations

import os

# Before torch is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
from pathlib import Path

import torch

from npm.core.files import shown_bytes, stored_bytes
from npm.corpus.documents import CorpusSettings
from npm.evaluation.demo import evaluate_demo
from npm.evaluation.report import markdown_table
from npm.evaluation.settings import DemoSettings
from npm.indexing.build import build_index
from npm.indexing.generation import Generation
from npm.indexing.settings import IndexBuildSettings, Rotation
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

DEMO_CORPUS = CorpusSettings(files=[str(Path(__file__).parents[1] / "npm" / "assets" / "demo" / "*.jsonl")])


def measured_row(folder: Path, encoder: Encoder, dimensions: int | None, rotation: Rotation) -> list[str]:
    """Hit rates of both retrievals in per cent, and bytes of the vectors and of the whole index."""
    settings = IndexBuildSettings(corpus=DEMO_CORPUS, dimensions=dimensions, rotation=rotation)
    build_index(folder, settings, encoder)
    cells: list[str] = []
    for retrieval in (Retrieval.hybrid, Retrieval.dense):
        filler = PhraseFiller.open(folder, encoder, settings=FillSettings(retrieval=retrieval))
        rates = evaluate_demo(filler, DemoSettings(baseline=False)).total
        cells.append(f"{100 * rates.hit_at_1.mean:.1f} / {100 * rates.hit_at_k.mean:.1f}")
    vectors = stored_bytes(Generation.read(folder).segments[0].vectors)
    return [*cells, shown_bytes(vectors), shown_bytes(stored_bytes(folder))]


def main(argv: list[str]) -> None:
    """Measure and print one table."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    encoder = Encoder.load(given.get("encoder", ""))
    lengths = sorted((int(length) for length in given.get("dimensions", "64,128").split(",")), reverse=True)
    wanted = [("whole", encoder, None, Rotation.none)]
    wanted += [("rotation=pca", encoder, length, Rotation.pca) for length in lengths]
    wanted += [("cut", encoder, length, Rotation.none) for length in lengths]
    if "trained" in given:
        trained = Encoder.load(given["trained"])
        wanted += [("trained for it", trained, length, Rotation.none) for length in (None, *lengths)]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(given.get("work", temporary))
        for name, chosen, length, rotation in wanted:
            title = f"{name}, {length or chosen.dimensions}"
            folder = work / title.replace(", ", "-").replace(" ", "-")
            rows.append([title, *measured_row(folder, chosen, length, rotation)])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    header = ["vectors, dimensions", "demo hybrid, hit@1 / @5", "demo dense, hit@1 / @5", "vectors", "index"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
