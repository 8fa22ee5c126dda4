"""Whether blocks go with an encoder, and with the settings of the build that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.corpus.store import BlockStore
from npm.errors import EncoderError
from npm.retrieval.manifests import refuse_differences

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


def check_blocks(store: BlockStore, encoder: Encoder) -> None:
    """Raise EncoderError if the blocks were cut by another tokenizer or are longer than the encoder takes."""
    if store.tokenizer_fingerprint != encoder.tokenizer_fingerprint:
        raise EncoderError(
            "the blocks were cut by another tokenizer than the encoder's",
            expected=f"tokenizer fingerprint {store.tokenizer_fingerprint}",
            got=f"{encoder.name}, tokenizer fingerprint {encoder.tokenizer_fingerprint}",
            where=str(store.folder),
            fix="give the encoder that the blocks were made for with encoder=…, or build into another folder",
        )
    specials = 0 if store.special_tokens_in_blocks else len(encoder.prefix_ids) + len(encoder.suffix_ids)
    check_input_tokens(encoder, store.max_block_tokens + specials)


def check_input_tokens(encoder: Encoder, token_count: int) -> None:
    """Raise EncoderError if blocks of up to `token_count` tokens, special tokens included, are too long for it."""
    if token_count > encoder.max_input_tokens:
        raise EncoderError(
            "blocks are longer than the encoder takes",
            expected=f"at most {encoder.max_input_tokens} tokens, special tokens included",
            got=f"up to {token_count}",
            where=f"encoder {encoder.name}",
            fix=f"set blocks.max_block_tokens={encoder.max_input_tokens} or less",
        )


def packing_record(made: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the blocks of a build with the recorded settings `made` depend on, besides its tokenizer."""
    return {"sources": list(sources), "corpus": made["corpus"], "blocks": made["blocks"]}


def open_packed(folder: Path, packing: Mapping[str, Any], *, index: Path) -> BlockStore:
    """The finished blocks in `folder`, which an earlier run left in the folder of the index.

    Raises ArtefactError if they were not made as `packing` says. Without sources nothing is compared: they were handed
    over ready.
    """
    store = BlockStore.open(folder)
    if packing["sources"]:
        refuse_differences(index, made_with={name: store.settings[name] for name in packing}, wanted=packing)
    return store
