"""Readers by name: folders, models of the hub, the shipped one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.reading.reader import Reader

NO_READER = "none"
"""Name for no reader at all."""


def open_reader(name: str, encoder: Encoder) -> Reader | None:
    """The reader of a folder, of the hub or the shipped one, on the device and in the number format of `encoder`.

    An empty `name` means the shipped one where `encoder` has its tokenizer, and else none, as `none` does. A folder
    that `experiment=reader` made is read by its masks, any other by its head. A process opens each once. Raises
    EncoderError if there is none.
    """
    from npm.models.names import SHIPPED_READER

    if name == NO_READER or (not name and _shipped_tokenizer() != encoder.tokenizer_fingerprint):
        return None
    return _opened(name or SHIPPED_READER, str(encoder.device), encoder.dtype_name)


@lru_cache(maxsize=1)
def _shipped_tokenizer() -> str:
    """The fingerprint of the shipped reader's tokenizer; empty without a shipped reader."""
    from npm.corpus.blocks import tokenizer_fingerprint
    from npm.models.names import SHIPPED_READER, WEIGHTS, shipped_folder
    from npm.models.tokenizer import load_tokenizer

    folder = shipped_folder(SHIPPED_READER)
    return tokenizer_fingerprint(load_tokenizer(str(folder), plain=True)) if (folder / WEIGHTS).is_file() else ""


@lru_cache(maxsize=2)
def _opened(name: str, device: str, dtype: str) -> Reader:
    from npm.models.encoder import Encoder
    from npm.models.names import is_mask_reader, locate_encoder
    from npm.reading.confidence import read_confidence
    from npm.reading.mask_reader import MaskReader
    from npm.reading.span_head import SpanHeadReader

    folder = locate_encoder(name, key="reader")
    confidence = read_confidence(Path(folder))
    if is_mask_reader(folder):
        return MaskReader(Encoder.load(name, device=device, dtype=dtype, for_reading=True), confidence=confidence)
    reader = SpanHeadReader.load(name, device=device, dtype=dtype)
    reader.confidence = confidence
    return reader
