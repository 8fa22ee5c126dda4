"""Phrases, scores and losses equal those of the reference implementation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.types import Answer, Sequences, Spans
from npm.indexing.settings import IndexBuildSettings, PruningRule, VectorDtype, VectorSettings
from npm.masking.rendering import MaskRenderer
from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import NonparametricMasked
from npm.objectives.settings import NonparametricSettings
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.parity.corpus import GIVEN_CORPUS, index_block_store, write_parity_store

SCORE_TOLERANCE = 1e-4
PRUNING_OF_EXPECTED = {
    "all_boundary_tokens": PruningRule.word_boundaries,
    "without_stopwords": PruningRule.without_stopwords,
}


@pytest.fixture(scope="module")
def recorded(parity_folder: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((parity_folder / "predictions.json").read_text(encoding="utf-8"))
    return recorded


@pytest.fixture(scope="module")
def encoder(parity_folder: Path) -> Encoder:
    """Reads a batch once: the indexes of both rules are of the same blocks in the same batches."""
    encoder = Encoder.load(str(parity_folder / "model"), device="cpu", dtype="float32")
    read: dict[bytes, torch.Tensor] = {}

    def token_vectors(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        key = b"".join(tensor.numpy().tobytes() for tensor in (input_ids, attention_mask))
        if key not in read:
            read[key] = Encoder.token_vectors(encoder, input_ids, attention_mask)  # f32 [B, L, d]
        return read[key]

    encoder.token_vectors = token_vectors  # type: ignore[method-assign]
    return encoder


@pytest.fixture(scope="module")
def filler_of(
    recorded: dict[str, Any], encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[PruningRule], PhraseFiller]:
    folder = tmp_path_factory.mktemp("parity")
    opened: dict[PruningRule, PhraseFiller] = {}

    def filler(rule: PruningRule) -> PhraseFiller:
        if rule not in opened:
            index = folder / rule.value
            write_parity_store(index / GIVEN_CORPUS, recorded, encoder)
            vectors = VectorSettings(pruning=rule, dtype=VectorDtype.float16)  # as the reference stores them
            index_block_store(index, IndexBuildSettings(vectors=vectors), encoder)
            reference = FillSettings.reference().scoring
            settings = FillSettings(k=5, overlaps=Overlaps.keep, retrieval=Retrieval.dense, scoring=reference)
            opened[rule] = PhraseFiller.open(index, encoder, settings=settings)
        return opened[rule]

    return filler


@pytest.mark.parametrize("expected_name", sorted(PRUNING_OF_EXPECTED))
def test_parity_of_the_five_best_phrases_within_three_blocks(
    expected_name: str,
    recorded: dict[str, Any],
    encoder: Encoder,
    filler_of: Callable[[PruningRule], PhraseFiller],
) -> None:
    filler = filler_of(PRUNING_OF_EXPECTED[expected_name])
    failures = []
    for number, query in enumerate(recorded["queries"]):
        answer = filler.fill(query["text"], blocks=query["block_ids"])
        expected = [(score, encoder.tokenizer.decode(ids).strip()) for score, ids in query["expected"][expected_name]]
        if not _agrees(answer, expected):
            got = [(phrase.score, phrase.phrase) for phrase in answer.phrases]
            failures.append(f"query {number}: expected {expected}, got {got}")
    assert not failures, "\n".join(failures)


def _agrees(answer: Answer, expected: list[tuple[float, str]]) -> bool:
    """Equal scores at every rank, and equal phrases but for those whose scores are too close to be ordered."""
    if len(answer.phrases) != len(expected):
        return False
    for rank, phrase in enumerate(answer.phrases):
        as_good = {text for score, text in expected if abs(score - phrase.score) <= SCORE_TOLERANCE}
        if abs(phrase.score - expected[rank][0]) > SCORE_TOLERANCE or phrase.phrase not in as_good:
            return False
    got_texts = sorted(phrase.phrase for phrase in answer.phrases)
    return got_texts == sorted(text for _, text in expected)


def test_parity_of_many_texts_at_once_with_one_at_a_time(
    recorded: dict[str, Any], filler_of: Callable[[PruningRule], PhraseFiller]
) -> None:
    filler = filler_of(PruningRule.without_stopwords)
    query = recorded["queries"][0]
    texts = [other["text"] for other in recorded["queries"][:8]]
    for text, together in zip(texts, filler.fill(texts, blocks=query["block_ids"]), strict=True):
        alone = filler.fill(text, blocks=query["block_ids"])
        assert [phrase.phrase for phrase in alone.phrases] == [phrase.phrase for phrase in together.phrases]
        scores = [[phrase.score for phrase in answer.phrases] for answer in (alone, together)]
        np.testing.assert_allclose(*scores, atol=1e-6)


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
    assert encoder.similarity_scale == encoder.dimensions**-0.5
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
