"""The groups of the recorded outputs of the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from tests.helpers.groups import WORD
from tests.parity.conftest import parity_folder

__all__ = ["parity_folder", "parity_groups"]

SPECIAL_IDS = (0, 2)
"""<s> and </s> in the recorded token ids."""


@pytest.fixture(scope="module")
def parity_groups(parity_folder: Path) -> list[tuple[Sequences, Spans]]:
    """The recorded groups and the spans that the reference masked in them; every token counts as a word."""
    content = json.loads((parity_folder / "losses.json").read_text(encoding="utf-8"))
    return [_group(record) for record in content["records"]]


def _group(record: dict[str, Any]) -> tuple[Sequences, Spans]:
    offsets = np.cumsum([0, *(len(row) for row in record["token_ids"])])  # i64 [S + 1]
    token_ids = np.concatenate(record["token_ids"]).astype(np.int32)  # i32 [T]
    flags = np.full(len(token_ids), WORD, dtype=np.uint8)  # u8 [T]
    flags[np.isin(token_ids, SPECIAL_IDS)] = np.uint8(TokenFlag.SPECIAL)
    spans = np.array(record["spans"], dtype=np.int64).reshape(-1, 3)  # i64 [n, 3]
    spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
    return Sequences(token_ids, flags, offsets), Spans(offsets[spans[:, 0]] + spans[:, 1], spans[:, 2])
