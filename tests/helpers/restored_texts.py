"""The texts that a rendered batch of corrupted ones was made from."""

from __future__ import annotations

from npm.masking.batches import DenoisingBatch
from npm.masking.denoising import NO_TARGET, Sentinels


def restored(sentinels: Sentinels, batch: DenoisingBatch) -> list[list[int]]:
    """The token ids of each text, put together again from its inputs and targets, which must name equal sentinels."""
    texts = []
    for row in range(len(batch.input_ids)):
        inputs = batch.input_ids[row][batch.attention_mask[row].bool()].tolist()[bool(sentinels.mode_ids) : -1]
        targets = batch.target_ids[row][batch.target_ids[row] != NO_TARGET].tolist()[:-1]
        spans: dict[int, list[int]] = {}
        span: list[int] = []  # what stood before the first sentinel would belong to none; no rendering puts any there
        for token_id in targets:
            if token_id in sentinels.sentinel_ids:
                span = spans[token_id] = []
            else:
                span.append(token_id)
        assert [token_id for token_id in inputs if token_id in sentinels.sentinel_ids] == list(spans)
        texts.append([part for token_id in inputs for part in spans.get(token_id, [token_id])])
    return texts
