"""Held-out articles: the first long enough documents of a corpus, as blocks that no training has seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, write_block_store
from npm.errors import CorpusError, check_range

if TYPE_CHECKING:
    from npm.models.encoder import StoredModel
    from npm.types import Block, Document


MIN_FILLED_FRACTION = 0.97  # full blocks, as in training, so that articles are comparable


@dataclass(kw_only=True, slots=True)
class HeldOutSettings:
    """Which articles are held out, and how they are cut."""

    articles: int = 200
    """Articles, the first of the corpus that are long enough."""
    least_tokens: int = 2048
    """Shortest article, in tokens."""
    blocks_per_article: int = 16
    """Blocks from the beginning of each article, masked together; at least 2."""
    max_block_tokens: int = 128
    """Tokens of a block, the encoder's special tokens included, where blocks are cut from documents."""

    def __post_init__(self) -> None:
        least = {"articles": 1, "least_tokens": 1, "blocks_per_article": 2, "max_block_tokens": 4}
        for name, limit in least.items():
            value = getattr(self, name)
            check_range(value >= limit, name, expected=f"at least {limit}", got=value)


def build_held_out_store(
    folder: str | Path, documents: Iterable[Document], model: StoredModel, settings: HeldOutSettings
) -> BlockStore:
    """Cut the first long enough of `documents` into blocks and store them in `folder`; the rest is not read.

    Raises CorpusError if there are too few.
    """
    # One block more than is used, so that the last one ends where it would end in the whole document.
    enough_tokens = (settings.blocks_per_article + 1) * settings.max_block_tokens
    blocks = BlockSettings(
        max_block_tokens=settings.max_block_tokens,
        max_document_tokens=max(settings.least_tokens, enough_tokens),
        min_filled_fraction=MIN_FILLED_FRACTION,
    )
    packer = BlockPacker(model.tokenizer, blocks)
    return write_block_store(
        folder,
        _long_documents(documents, packer, settings),
        settings={"blocks": asdict(blocks), "articles": settings.articles},
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        vocabulary_size=packer.vocabulary_size,
    )


def _long_documents(
    documents: Iterable[Document], packer: BlockPacker, settings: HeldOutSettings
) -> Iterator[tuple[Document, Sequence[Block]]]:
    found = 0
    for document in documents:
        blocks = packer.pack(document)
        if _is_long(sum(len(block.token_ids) for block in blocks), len(blocks), settings):
            yield document, blocks
            found += 1
            if found == settings.articles:
                return
    raise _too_few(found, settings, where="corpus.files")


def long_articles(store: BlockStore, settings: HeldOutSettings) -> list[range]:
    """The first blocks of each of the first long enough documents; raises CorpusError if there are too few."""
    documents = store.block_documents  # i64 [blocks]
    edges = np.flatnonzero(np.append(True, documents[1:] != documents[:-1]))  # i64 [documents]
    edges = np.append(edges, len(documents))  # i64 [documents + 1]
    token_counts = np.diff(store.block_offsets[edges])  # i64 [documents]
    block_counts = np.diff(edges)  # i64 [documents]
    long = [
        range(int(first), int(first) + settings.blocks_per_article)
        for first, tokens, blocks in zip(edges[:-1], token_counts, block_counts, strict=True)
        if _is_long(int(tokens), int(blocks), settings)
    ]
    if len(long) < settings.articles:
        raise _too_few(len(long), settings, where=str(store.folder))
    return long[: settings.articles]


def _is_long(token_count: int, block_count: int, settings: HeldOutSettings) -> bool:
    return token_count >= settings.least_tokens and block_count >= settings.blocks_per_article


def _too_few(found: int, settings: HeldOutSettings, *, where: str) -> CorpusError:
    long = f"at least {settings.least_tokens} tokens in {settings.blocks_per_article} blocks"
    return CorpusError(
        "the corpus has too few long articles",
        expected=f"{settings.articles} of {long}",
        got=str(found),
        where=where,
        fix="give more text, or ask for fewer articles with limit=",
    )
