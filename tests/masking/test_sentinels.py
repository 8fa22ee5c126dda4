"""Spans as sentinels: inputs and targets by hand, against a plain loop, and put together again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npm.core.errors import EncoderError
from npm.core.types import DenoisingBatch, Sequences, Spans
from npm.masking.denoising import NO_TARGET, DenoiserSettings, MixtureMasker, Sentinels
from tests.helpers.groups import group, pairs, random_group
from tests.helpers.restored_texts import restored

END, PAD, FIRST_MODE, SECOND_MODE = 1000, 1001, 1002, 1003
SENTINELS = Sentinels(tuple(range(2000, 2100)), end_id=END, pad_id=PAD, mode_ids=(FIRST_MODE, SECOND_MODE))


def plain_rows(
    sequences: Sequences, spans: Spans, denoisers: list[int], sentinels: Sentinels
) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of each sequence, token by token."""
    starts = dict(pairs(spans))
    rows = []
    for number in range(len(sequences)):
        inputs = [sentinels.mode_ids[denoisers[number]]] if sentinels.mode_ids else []
        targets: list[int] = []
        unused = list(sentinels.sentinel_ids)
        position, end = int(sequences.offsets[number]), int(sequences.offsets[number + 1])
        while position < end:
            length = starts.get(position, 0)
            if length:
                inputs.append(unused[0])
                targets += [unused.pop(0), *sequences.token_ids[position : position + length].tolist()]
            else:
                inputs.append(int(sequences.token_ids[position]))
            position += length or 1
        rows.append(([*inputs, sentinels.end_id], [*targets, sentinels.end_id]))
    return rows


def unpadded(batch: DenoisingBatch) -> list[tuple[list[int], list[int]]]:
    return [
        (inputs[attention.bool()].tolist(), targets[targets != NO_TARGET].tolist())
        for inputs, attention, targets in zip(batch.input_ids, batch.attention_mask, batch.target_ids, strict=True)
    ]


def random_masked(rng: np.random.Generator) -> tuple[Sequences, Spans, np.ndarray]:
    sequences = random_group(rng, sequence_count=7, max_tokens=50, vocabulary=900)
    denoiser = DenoiserSettings(rate=float(rng.uniform(0.05, 0.95)), mean_span_tokens=float(rng.uniform(1, 9)))
    spans, _ = MixtureMasker((denoiser,)).select(sequences, rng)
    return sequences, spans, rng.integers(0, 2, 7)


def test_a_worked_example() -> None:
    sequences = group([10, 11, 12, 13, 14, 15, 16], [20, 21, 22])
    spans = Spans(np.array([1, 5, 9]), np.array([2, 1, 1]))
    batch = SENTINELS.render(sequences, spans, np.array([0, 1]))
    assert batch.input_ids.tolist() == [
        [FIRST_MODE, 10, 2000, 13, 14, 2001, 16, END],
        [SECOND_MODE, 20, 21, 2000, END, PAD, PAD, PAD],
    ]
    assert batch.attention_mask.tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert batch.target_ids.tolist() == [
        [2000, 11, 12, 2001, 15, END],
        [2000, 22, END, NO_TARGET, NO_TARGET, NO_TARGET],
    ]
    assert batch.denoisers.tolist() == [0, 1]
    assert batch.token_count == 10


@pytest.mark.parametrize("with_modes", [True, False])
def test_rendering_equals_a_plain_loop_and_can_be_inverted(with_modes: bool) -> None:
    rng = np.random.default_rng(0)
    sentinels = SENTINELS if with_modes else replace(SENTINELS, mode_ids=())
    for _ in range(40):
        sequences, spans, denoisers = random_masked(rng)
        batch = sentinels.render(sequences, spans, denoisers)
        assert unpadded(batch) == plain_rows(sequences, spans, denoisers.tolist(), sentinels)
        texts = np.split(sequences.token_ids, sequences.offsets[1:-1])
        assert restored(sentinels, batch) == [text.tolist() for text in texts]


def test_more_spans_than_sentinels_are_refused() -> None:
    few = replace(SENTINELS, sentinel_ids=(2000, 2001))
    sequences = group([10, 11, 12, 13, 14], [20, 21])
    few.render(sequences, Spans(np.array([0, 2, 5]), np.array([1, 1, 1])), np.array([0, 0]))
    with pytest.raises(EncoderError, match="too few sentinels: 2 of 3"):
        few.render(sequences, Spans(np.array([0, 2, 4]), np.array([1, 1, 1])), np.array([0, 0]))
