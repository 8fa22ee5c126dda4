"""Stores made by hand and at random, and their content as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.types import Block, Document
from npm.corpus.store import BlockStore, Packed, write_block_store


def random_block(rng: np.random.Generator, most_tokens: int) -> Block:
    """A block of 1 to `most_tokens` tokens with character offsets."""
    length = int(rng.integers(1, most_tokens + 1))
    start_chars = np.cumsum(rng.integers(0, 5, length)).astype(np.uint32)  # [T]
    return Block(
        token_ids=rng.integers(0, 1000, length).astype(np.int32),
        flags=rng.integers(0, 256, length).astype(np.uint8),
        start_chars=start_chars,
        end_chars=start_chars + np.uint32(2),
    )


def random_packed(
    rng: np.random.Generator,
    count: int,
    *,
    prefix: str = "d",
    fewest_blocks: int = 0,
) -> list[Packed]:
    """That many documents of up to 4 blocks."""
    packed: list[Packed] = []
    for number in range(count):
        blocks = [random_block(rng, most_tokens=9) for _ in range(int(rng.integers(fewest_blocks, 5)))]
        fields = {"n": number, "parity": ("even", "odd")[number % 2]} if rng.random() < 0.7 else {}
        packed.append((Document(f"{prefix}{number}", f"Title {number}", "word " * 9, fields), blocks))
    return packed


def spelled(token_ids: np.ndarray, flags: np.ndarray, words: Sequence[str], *, identifier: str = "d") -> Packed:
    """A document of one block: `words`, one for each of the tokens i32 [T], with a space between them."""
    lengths = np.array([len(word) for word in words], dtype=np.uint32)  # [T]
    ends = np.cumsum(lengths + 1, dtype=np.uint32) - 1  # [T]
    return Document(identifier, "", " ".join(words)), [Block(token_ids, flags, ends - lengths, ends)]


def stored(
    folder: Path,
    packed: list[Packed],
    *,
    tokens_per_shard: int = 50,
    tokenizer_fingerprint: str = "f",
    vocabulary_size: int = 1000,
) -> BlockStore:
    """A store of these items."""
    return write_block_store(
        folder,
        packed,
        settings={},
        tokenizer_fingerprint=tokenizer_fingerprint,
        vocabulary_size=vocabulary_size,
        tokens_per_shard=tokens_per_shard,
    )


def stored_documents(folder: Path, fields: list[dict[str, Any]], *, documents_per_shard: int = 3) -> BlockStore:
    """A store with a document of one token for each of the `fields`, named d0, d1, …"""
    block = Block(*(np.zeros(1, dtype=dtype) for dtype in (np.int32, np.uint8, np.uint32, np.uint32)))
    packed: list[Packed] = [(Document(f"d{n}", "", "t", own), [block]) for n, own in enumerate(fields)]
    return stored(folder, packed, tokens_per_shard=documents_per_shard)


def token_places(store: BlockStore) -> tuple[np.ndarray, np.ndarray]:
    """First and past-the-last character of every token of a store in its document, i64 [T] each."""
    starts, ends = np.concatenate([store.block_places(block) for block in range(store.block_count)], axis=1)
    return starts.astype(np.int64), ends.astype(np.int64)
