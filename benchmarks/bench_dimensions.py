"""What shorter vectors cost and save: an encoder trained for several lengths, one that was not, and PCA.

    python -m benchmarks.bench_dimensions trained=runs/matryoshka/encoder held_out=DATA/enwiki-07.jsonl.zst
        [untrained=DIR] [dimensions=64,128,256] [articles=100] [work=DIR]

For each length: in-batch retrieval on held-out articles, hit@1 and hit@5 of the demo questions (test half) with hybrid
and with dense retrieval, and the bytes of the demo index and of the vectors in it. `trained` is what
experiment=matryoshka leaves, `untrained` (by default the shipped encoder, from which it started) is cut in the same
way, and once more behind a rotation onto the principal axes of the vectors that are searched. Takes about 15 minutes on
a CPU core; indexes are kept in `work` if it is given.

Shapes: B sequences, L padded length, T tokens, d dimensions, k of them.
"""

from __future__ import annotations

import os

# Before torch is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from index.files import shown_bytes, stored_bytes
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.store import BlockStore, build_block_store
from npm.evaluation.demo import evaluate_demo
from npm.evaluation.held_out.articles import build_held_out_store
from npm.evaluation.held_out.in_batch import evaluate_in_batch
from npm.evaluation.report import markdown_table, percent
from npm.evaluation.settings import DemoSettings, InBatchSettings
from npm.indexing.build import build_index
from npm.indexing.generation import Generation
from npm.indexing.settings import IndexBuildSettings
from npm.models.batches import encode_padded
from npm.models.encoder import SCALE_KEY, Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

DEMO_CORPUS = CorpusSettings(files=[str(Path(__file__).parents[1] / "npm" / "assets" / "demo" / "*.jsonl")])
BLOCKS_AT_ONCE = 32
EncoderFor = Callable[[BlockStore], Encoder]
"""The encoder for texts that are searched; PCA depends on them."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The texts of both measures as blocks, and where indexes are built."""

    work: Path
    demo: BlockStore
    held_out: BlockStore
    articles: int

    @classmethod
    def made(cls, work: Path, encoder: Encoder, held_out: str, *, articles: int) -> Stores:
        """Cut the demo corpus and the first long articles of the file `held_out` into blocks in `work`."""
        packer = BlockPacker(encoder.tokenizer, BlockSettings())
        demo = build_block_store(work / "demo-blocks", read_corpus(DEMO_CORPUS), packer, settings={})
        place, settings = work / f"held-out-{articles}", InBatchSettings(articles=articles)
        if not BlockStore.is_finished(place):
            build_held_out_store(place, read_corpus(CorpusSettings(files=[held_out])), encoder, settings)
        return cls(work, demo, BlockStore.open(place), articles)


class PrincipalAxes(Encoder):
    """An encoder whose vectors are rotated onto principal axes: their leading numbers are what PCA would store."""

    axes: torch.Tensor  # f32 [d, d], one axis a column, the strongest first

    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Projections f32 [B, L, k] of the token vectors."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # [B, L, d]
        return states.float() @ self.axes[:, : self.dimensions].to(states.device)  # f32 [B, L, k]

    @property  # type: ignore[misc]
    def similarity_scale(self) -> float:
        """That of whole vectors: what the axes leave out of an inner product is small."""
        return float(getattr(self.model.config, SCALE_KEY))

    @classmethod
    def of(cls, encoder: Encoder, store: BlockStore) -> PrincipalAxes:
        """The axes that keep most of the inner products among the vectors of the texts in `store`.

        They are the eigenvectors of Σ v vᵀ over all tokens. The mean is not taken away first: search compares raw
        inner products, which centring would change.
        """
        made = cls(encoder.model, encoder.tokenizer, name=encoder.name)
        moment = torch.zeros(encoder.dimensions, encoder.dimensions, dtype=torch.float64)  # [d, d]
        for vectors in block_vectors(encoder, store):
            moment += (vectors.T @ vectors).double()
        _, axes = torch.linalg.eigh(moment)  # f64 [d, d], ascending
        made.axes = axes.flip(1).float()
        return made


def block_vectors(encoder: Encoder, store: BlockStore) -> Iterator[torch.Tensor]:
    """The vectors f32 [T, d] of all tokens of some blocks after the other, special tokens left out."""
    prefix, suffix = len(encoder.prefix_ids), len(encoder.suffix_ids)
    for first in range(0, store.block_count, BLOCKS_AT_ONCE):
        blocks = store.sequences(range(first, min(first + BLOCKS_AT_ONCE, store.block_count)))
        texts = [blocks.token_ids[blocks.offsets[row] : blocks.offsets[row + 1]] for row in range(len(blocks))]
        framed = [np.array([*encoder.prefix_ids, *text, *encoder.suffix_ids]) for text in texts]  # i64 [L] each
        states = encode_padded(encoder, framed).cpu()  # f32 [B, L, d]
        yield torch.cat([states[row, prefix : len(ids) - suffix] for row, ids in enumerate(framed)])  # f32 [T, d]


def demo(folder: Path, encoder: Encoder, dimensions: int | None) -> list[str]:
    """Hit rates of both retrievals in per cent, and bytes of the vectors and of the whole index."""
    build_index(folder, IndexBuildSettings(corpus=DEMO_CORPUS, dimensions=dimensions), encoder)
    cells: list[str] = []
    for retrieval in (Retrieval.hybrid, Retrieval.dense):
        filler = PhraseFiller.open(folder, encoder, settings=FillSettings(retrieval=retrieval))
        rates = evaluate_demo(filler, DemoSettings(baseline=False)).total
        cells.append(f"{100 * rates.hit_at_1.mean:.1f} / {100 * rates.hit_at_k.mean:.1f}")
    vectors = stored_bytes(Generation.read(folder).segments[0].vectors)
    return [*cells, shown_bytes(vectors), shown_bytes(stored_bytes(folder))]


def measured_rows(name: str, encoder_for: EncoderFor, stores: Stores, lengths: list[int]) -> list[list[str]]:
    """A row for each of `lengths`, the longest first."""
    settings = InBatchSettings(articles=stores.articles, dimensions=lengths)
    result = evaluate_in_batch(encoder_for(stores.held_out), stores.held_out, settings)
    top1 = {each.dimensions: percent(each.top1) for each in result.shorter}
    encoder = encoder_for(stores.demo)
    top1[encoder.dimensions] = percent(result.top1)
    rows = []
    for length in sorted(lengths, reverse=True):
        folder = stores.work / f"{name.replace(' ', '-')}-{length}"
        rows.append([f"{name}, {length}", top1[length], *demo(folder, encoder, length)])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main(argv: list[str]) -> None:
    """Measure and print one table."""
    given = dict(argument.split("=", 1) for argument in argv)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    trained, untrained = Encoder.load(given["trained"]), Encoder.load(given.get("untrained", ""))
    shorter = [int(length) for length in given.get("dimensions", "64,128,256").split(",")]
    lengths = [*shorter, untrained.dimensions]
    print(f"{trained.name} was trained for {trained.trained_dimensions}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(given.get("work", temporary))
        stores = Stores.made(work, untrained, given["held_out"], articles=int(given.get("articles", "100")))
        rows = [
            *measured_rows("trained for it", lambda _: trained, stores, lengths),
            *measured_rows("cut", lambda _: untrained, stores, lengths),
            *measured_rows("PCA", lambda store: PrincipalAxes.of(untrained, store), stores, shorter),
        ]
    header = ["vectors, dimensions", "in-batch top-1, % [95 %]", "demo hybrid, hit@1 / @5", "demo dense, hit@1 / @5"]
    print(markdown_table([*header, "vectors", "index"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
