"""The text of a block is read from its own bytes, regardless of the characters around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npm.core.types import Block, Document
from npm.corpus.store import write_block_store

ALPHABET = ['"', "\\", "\n", "\t", "\x01", "a", "é", "漢", "🜨", "\u2028", " ", '"text": "', "/"]


def block_of(first: int, stop: int) -> Block:
    """Two tokens from character `first` to `stop`."""
    starts, ends = np.array([first, first], dtype=np.uint32), np.array([stop, stop], dtype=np.uint32)
    return Block(np.array([1, 2], dtype=np.int32), np.zeros(2, dtype=np.uint8), starts, ends)


def test_the_text_of_every_block_is_the_slice_of_its_document(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents, blocks = [], []
    for number in range(40):
        text = "".join(rng.choice(ALPHABET, size=int(rng.integers(1, 60))).tolist())
        # neighbouring blocks share characters now and then, as where a tokenizer cuts one character apart
        bounds = np.sort(rng.integers(0, len(text) + 1, size=(3, 2)), axis=1)
        bounds = bounds[np.argsort(bounds[:, 0])]
        documents.append(Document(id=f"{number}{rng.choice(ALPHABET)}", title=str(rng.choice(ALPHABET)), text=text))
        blocks.append([block_of(int(first), int(stop)) for first, stop in bounds])
    store = write_block_store(
        tmp_path / "store",
        zip(documents, blocks, strict=True),
        settings={},
        tokenizer_fingerprint="t",
        tokens_per_shard=50,
    )
    expected = [
        document.text[int(block.start_chars[0]) : int(block.end_chars[-1])]  # type: ignore[index]
        for document, of_document in zip(documents, blocks, strict=True)
        for block in of_document
    ]
    assert [store.block_text(block) for block in range(store.block_count)] == expected
