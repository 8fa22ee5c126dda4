"""The corpus of the recorded predictions, token ids and boundaries, as a block store and an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import MANIFEST_NAME
from npm.core.types import Block, Document, TokenFlag
from npm.corpus.store import BlockStore, Packed, write_block_store
from npm.indexing.generation import CORPUS, IndexManifest, SegmentRecord, as_record, write_generation
from npm.indexing.settings import IndexBuildSettings
from npm.indexing.stages import encoded_parts, finish_search, make_segments
from npm.models.encoder import Encoder

GIVEN_CORPUS = f"{CORPUS}-{0:016x}"
"""The part of an index that holds the blocks, which come without a request."""


def write_parity_store(folder: Path, recorded: dict[str, Any], encoder: Encoder) -> BlockStore:
    """Store the recorded blocks, which hold their special tokens, in `folder`; each is a document that spells them."""
    special_ids = [*encoder.prefix_ids, *encoder.suffix_ids]
    pieces = [encoder.tokenizer.decode([number]) for number in range(len(encoder.tokenizer))]
    return write_block_store(
        folder,
        (
            parity_document(str(number), block, recorded["stopword_ids"], special_ids, pieces)
            for number, block in enumerate(recorded["blocks"])
        ),
        settings={"source": "parity"},
        tokenizer_fingerprint=encoder.tokenizer_fingerprint,
        vocabulary_size=len(encoder.tokenizer),
        special_tokens_in_blocks=True,
    )


def parity_document(
    identifier: str,
    recorded_block: dict[str, Any],
    stopword_ids: list[int],
    special_ids: list[int],
    pieces: Sequence[str],
) -> Packed:
    """A recorded block with its boundaries, stop-words and special tokens as flags; `pieces` spell the tokens."""
    token_ids = np.array(recorded_block["token_ids"], dtype=np.int32)  # i32 [T]
    flags = np.zeros(len(token_ids), dtype=np.uint8)  # u8 [T]
    flags[recorded_block["valid_start"]] |= TokenFlag.WORD_START.value
    flags[recorded_block["valid_end"]] |= TokenFlag.WORD_END.value
    flags[np.isin(token_ids, stopword_ids)] |= TokenFlag.STOPWORD.value
    flags[np.isin(token_ids, special_ids)] |= TokenFlag.SPECIAL.value
    own = [pieces[number] for number in token_ids.tolist()]
    ends = np.cumsum([len(piece) for piece in own])  # i64 [T]
    starts = ends - [len(piece.lstrip()) for piece in own]  # i64 [T], without the space before a word
    block = Block(token_ids, flags, starts.astype(np.uint32), ends.astype(np.uint32))
    return Document(identifier, "", "".join(own)), [block]


def index_block_store(folder: Path, settings: IndexBuildSettings, encoder: Encoder) -> None:
    """Build the index of the block store in `folder` / GIVEN_CORPUS unless it is there."""
    if (folder / MANIFEST_NAME).is_file():
        return
    corpus = folder / GIVEN_CORPUS
    pooler = settings.vectors.block_pooler(encoder)
    parts = encoded_parts(folder, corpus, BlockStore.open(corpus), encoder, settings, pooler)
    make_segments([parts])
    segment, counts = parts.finish()
    wanted = IndexManifest(
        as_record(settings, encoder),
        segments=(SegmentRecord.of(segment, [], counts),),
        search_folder=finish_search(folder, [segment], None).name,
    )
    write_generation(folder, wanted)
