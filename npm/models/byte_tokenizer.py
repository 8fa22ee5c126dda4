"""Tokenizers whose tokens are the 256 bytes: no word of any script is unknown to them, and offsets are of characters.

The bytes of one character share its offsets (Xue et al. 2022, ByT5, arXiv 2105.13626, §3, for bytes as tokens). Saved
as tokenizer.json, so that whatever takes an encoder takes one with these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

MASKED_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYT5_SPECIALS = ("<pad>", "</s>", "<unk>")
BYT5_SENTINELS = 125
BYTE_COUNT = 256


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The special tokens of a masked language model, ids 0 to 4, then the bytes: 261 tokens."""
    from transformers import PreTrainedTokenizerFast as Fast

    pad, unk, cls, sep, mask = MASKED_SPECIALS
    roles = {"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep, "mask_token": mask}
    return Fast(tokenizer_object=_backend(MASKED_SPECIALS, (), around=(cls, sep)), **roles)


def byt5_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of published ByT5 weights with offsets: pad, end, unknown, the bytes, 125 sentinels: 384 tokens.

    A mask is the first sentinel; a text is followed by its end.
    """
    from transformers import PreTrainedTokenizerFast as Fast

    pad, end, unk = BYT5_SPECIALS
    sentinels = [f"<extra_id_{number}>" for number in range(BYT5_SENTINELS)]
    roles = {"pad_token": pad, "eos_token": end, "sep_token": end, "unk_token": unk, "mask_token": sentinels[0]}
    backend = _backend(BYT5_SPECIALS, sentinels, around=("", end))
    return Fast(tokenizer_object=backend, extra_special_tokens=sentinels, **roles)


def spells_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if the tokens of a fast tokenizer are single bytes."""
    if len(tokenizer) > 2 * BYTE_COUNT:  # known without a look at a whole vocabulary
        return False
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return model["type"] == "BPE" and not model["merges"]


def _backend(first: Sequence[str], last: Sequence[str], *, around: tuple[str, str]) -> object:
    """Special tokens, the bytes in their order, more special tokens; `around` a text stand these, empty for none."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [*first, *byte_symbols(), *last]
    backend = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = alphabet
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*first, *last)])
    before, after = around
    used = [(token, backend.token_to_id(token)) for token in around if token]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(), pair=f"{before} $A {after} $B {after}".strip(), special_tokens=used
    )
    return backend


def byte_symbols() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, byte 0 first (Radford et al. 2019).

    >>> byte_symbols()[65], byte_symbols()[32], len(set(byte_symbols()))
    ('A', 'Ġ', 256)
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(BYTE_COUNT, 2 * BYTE_COUNT))
    return [chr(byte if byte in printed else next(others)) for byte in range(BYTE_COUNT)]
