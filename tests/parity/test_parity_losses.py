"""The phrase loss equals that of the reference implementation, record by record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npm.core.types import Sequences, Spans
from npm.masking.rendering import MaskRenderer
from npm.models.encoder import Encoder
from npm.models.settings import reference_scale
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.settings import NonparametricSettings


def sequences_and_spans(record: dict[str, Any]) -> tuple[Sequences, Spans]:
    """What the renderer takes; the recorded token ids hold their special tokens already."""
    offsets = np.cumsum([0, *(len(row) for row in record["token_ids"])])  # i64 [S + 1]
    token_ids = np.concatenate(record["token_ids"]).astype(np.int32)  # i32 [T]
    spans = np.array(sorted(record["spans"]), dtype=np.int64)  # i64 [n, 3]: sequence, start, length
    flags = np.zeros(len(token_ids), dtype=np.uint8)  # u8 [T]; only the choice of spans would look at them
    return Sequences(token_ids, flags, offsets), Spans(offsets[spans[:, 0]] + spans[:, 1], spans[:, 2])


def test_parity_of_the_loss_and_of_its_two_terms(parity_folder: Path) -> None:
    recorded = json.loads((parity_folder / "losses.json").read_text(encoding="utf-8"))
    encoder = Encoder.load(str(parity_folder / "model"), device="cpu", dtype="float32")
    assert encoder.similarity_scale == reference_scale(encoder.dimensions)
    renderer = MaskRenderer(mask_id=encoder.mask_id, pad_id=encoder.pad_id)
    objective = NonparametricMasked(
        NonparametricSettings(similarity_scale=None), similarity_scale=encoder.similarity_scale
    )
    failures = []
    for number, (record, expected) in enumerate(zip(recorded["records"], recorded["expected"], strict=True)):
        batch = renderer.render(*sequences_and_spans(record))
        assert len(batch.span_sequences) == len(record["spans"])
        with torch.no_grad():
            terms = objective(EncodedBatch(encoder.token_vectors, batch))
        start, end = (float(terms[side].sum) / terms[side].count for side in ("start", "end"))
        for name, got in (("loss", start + end), ("loss_start", start), ("loss_end", end)):
            if abs(got - expected[name]) > 1e-5 + 1e-5 * abs(expected[name]):
                failures.append(f"record {number}: {name} is {got}, expected {expected[name]}")
    assert recorded["records"]
    assert not failures, "\n".join(failures)
