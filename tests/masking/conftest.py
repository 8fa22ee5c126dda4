"""Where the recorded outputs of the reference implementation are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from tests.helpers.groups import WORD

REPOSITORY = Path(__file__).resolve().parents[2]
SPECIAL_IDS = (0, 2)
"""<s> and </s> in the recorded token ids."""


@pytest.fixture(scope="session")
def parity_groups() -> list[tuple[Sequences, Spans]]:
    """The recorded groups and the spans that the reference masked in them; every token counts as a word."""
    named = os.environ.get("NPM_PARITY_DIR")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "parity"
    if not named and not folder.exists():
        pytest.skip(f"no recorded outputs in {folder}; NPM_PARITY_DIR may name another folder")
    records = json.loads((folder / "losses.json").read_text(encoding="utf-8"))["records"]
    return [_group(record) for record in records]


def _group(record: dict[str, Any]) -> tuple[Sequences, Spans]:
    offsets = np.cumsum([0, *(len(row) for row in record["token_ids"])])  # i64 [S + 1]
    token_ids = np.concatenate(record["token_ids"]).astype(np.int32)  # i32 [T]
    flags = np.full(len(token_ids), WORD, dtype=np.uint8)  # u8 [T]
    flags[np.isin(token_ids, SPECIAL_IDS)] = np.uint8(TokenFlag.SPECIAL)
    spans = np.array(record["spans"], dtype=np.int64).reshape(-1, 3)  # i64 [n, 3]
    spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
    return Sequences(token_ids, flags, offsets), Spans(offsets[spans[:, 0]] + spans[:, 1], spans[:, 2])
