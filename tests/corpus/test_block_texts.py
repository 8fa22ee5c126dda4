"""The text of a block is read where it stands in its document's line, whatever characters stand around it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import ArtifactError
from npm.core.types import Block, Document
from npm.corpus.shards import document_line, text_bytes
from npm.corpus.store import write_block_store

ALPHABET = ['"', "\\", "\n", "\t", "\x01", "a", "é", "漢", "🜨", "\u2028", " ", '"text": "', "/"]


def block_of(first: int, stop: int) -> Block:
    """Two tokens from character `first` to `stop`."""
    starts, ends = np.array([first, first], dtype=np.uint32), np.array([stop, stop], dtype=np.uint32)
    return Block(np.array([1, 2], dtype=np.int32), np.zeros(2, dtype=np.uint8), starts, ends)


def test_bytes_of_a_text_with_escapes_are_those_counted_by_hand() -> None:
    document = Document(id="1", title='"text": "', text='a"é\n🜨b')
    line = document_line(document)
    begin = line.index('a\\"é'.encode())
    assert text_bytes(line, document.text, [block_of(0, 1), block_of(1, 3), block_of(4, 5), block_of(5, 6)]) == [
        (begin, begin + 1),
        (begin + 1, begin + 5),
        (begin + 7, begin + 11),
        (begin + 11, begin + 12),
    ]


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


def test_a_store_whose_texts_are_cut_short_under_an_open_reader_says_so(tmp_path: Path) -> None:
    document = Document(id="1", title="", text="Oslo lies on a fjord.")
    packed = [(document, [block_of(0, 4)])]
    store = write_block_store(tmp_path / "store", packed, settings={}, tokenizer_fingerprint="t")
    os.truncate(tmp_path / "store" / "00000" / "documents.jsonl", 10)
    for read in (store.document, store.block_text, lambda number: store.document_ids([number])):
        with pytest.raises(ArtifactError, match="damaged"):
            read(0)
