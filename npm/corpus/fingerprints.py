"""Which tokenizer it is: what cuts a text into other tokens has another fingerprint."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the whole definition of a fast tokenizer; how a call cuts and pads is no part of it."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition.pop("truncation", None)
    definition.pop("padding", None)
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
