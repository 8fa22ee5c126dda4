"""Task `in_batch` against plain loops over spans and keys, on a tiny random encoder."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.types import Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.evaluation.held_out.articles import build_held_out_store, held_out_store
from npm.evaluation.held_out.in_batch import InBatchResult, evaluate_in_batch, in_batch_rows
from npm.evaluation.settings import InBatchSettings, SampleSettings
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker, mask_rng
from npm.models.encoder import Encoder
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SETTINGS = InBatchSettings(articles=2, least_tokens=90, blocks_per_article=4, max_block_tokens=32)
SAMPLE = SampleSettings(resamples=50)
Span = tuple[int, int, int]
"""Block of the article, first token, tokens."""


def article(number: int, sentences: int) -> Document:
    order = np.random.default_rng(number).integers(0, len(SENTENCES), size=sentences)
    return Document(id=f"d{number}", title="", text=" ".join(SENTENCES[place] for place in order))


DOCUMENTS = [article(0, 12), article(1, 2), article(2, 9), article(3, 14)]
"""The second is too short."""


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    return build_held_out_store(tmp_path_factory.mktemp("held-out") / "blocks", DOCUMENTS, encoder, SETTINGS)


def vectors(encoder: Encoder, token_ids: list[int]) -> np.ndarray:
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        return encoder.token_vectors(ids, torch.ones_like(ids))[0].double().numpy()  # f64 [tokens, d]


def plain_article(
    encoder: Encoder, blocks: list[list[int]], edges: list[list[int]], spans: list[Span]
) -> dict[str, float]:
    """The sums of one article, one block, span and key at a time; `edges` say where words begin and end, or nothing."""
    framed = [[*encoder.prefix_ids, *block, *encoder.suffix_ids] for block in blocks]
    around = ([0] * len(encoder.prefix_ids), [0] * len(encoder.suffix_ids))
    known = [
        [*zip(block, [*around[0], *ends, *around[1]], strict=True)] for block, ends in zip(framed, edges, strict=True)
    ]
    clean = [vectors(encoder, block) for block in framed]
    prefix = len(encoder.prefix_ids)
    sums = dict.fromkeys(("start_correct", "end_correct", "start_loss", "end_loss", "chance"), 0.0)
    for number, framed_block in enumerate(framed):
        masked, slots, place = [], {}, 0
        inside = sorted((first + prefix, first + prefix + size) for block, first, size in spans if block == number)
        for first, last in inside:
            masked += framed_block[place:first]
            slots[first, last] = len(masked)
            masked += [encoder.mask_id] * encoder.query_masks
            place = last
        masked += framed_block[place:]
        queries = vectors(encoder, masked)
        for (first, last), slot in slots.items():
            span = known[number][first:last]
            sides = {"start": (queries[slot], 0), "end": (queries[slot + encoder.query_masks - 1], len(span) - 1)}
            for side, (query, offset) in sides.items():
                keys = []
                for other, other_block in enumerate(known):
                    for key in range(len(other_block)):
                        begin = key - offset
                        positive = begin >= 0 and other_block[begin : begin + len(span)] == span
                        if other != number:
                            keys.append((encoder.similarity_scale * float(query @ clean[other][key]), positive))
                total = sum(math.exp(logit) for logit, _ in keys)
                sums[f"{side}_loss"] += math.log(total) - math.log(sum(math.exp(s) for s, right in keys if right))
                sums[f"{side}_correct"] += max(keys)[1]
                if side == "start":
                    sums["chance"] += sum(right for _, right in keys) / len(keys)
    return sums


@pytest.mark.parametrize(
    ("masks", "unit"), [(1, MaskingUnit.token), (2, MaskingUnit.phrase), (2, MaskingUnit.phrase_words)]
)
def test_the_scores_of_each_article_equal_those_of_plain_loops(
    masks: int, unit: MaskingUnit, store: BlockStore
) -> None:
    encoder = tiny_encoder("bert")
    encoder.query_masks = masks
    whole = unit is MaskingUnit.phrase_words
    result = evaluate_in_batch(encoder, store, replace(SETTINGS, whole_words=whole), SAMPLE)
    assert [score.document for score in result.articles] == ["d0", "d2"]
    for number, score in enumerate(result.articles):
        first = int(np.flatnonzero(store.block_documents == number)[0])
        sequences = store.sequences(range(first, first + 4))
        masked = build_masker(MaskingSettings(unit=unit)).select(sequences, mask_rng(0, 0, number))
        assert masked is not None
        starts, stops = sequences.offsets[:-1].tolist(), sequences.offsets[1:].tolist()
        blocks = [sequences.token_ids[start:stop].tolist() for start, stop in zip(starts, stops, strict=True)]
        ends = sequences.flags & (TokenFlag.WORD_START | TokenFlag.WORD_END) * whole
        edges = [ends[start:stop].tolist() for start, stop in zip(starts, stops, strict=True)]
        spans: list[Span] = []
        for start, size in zip(masked.starts.tolist(), masked.lengths.tolist(), strict=True):
            block = max(place for place in range(4) if starts[place] <= start)
            spans.append((block, start - starts[block], size))
        expected = plain_article(encoder, blocks, edges, spans)
        assert score.spans == len(spans)
        if masks == 1:
            expected["end_loss"] = 0.0  # the one query is trained on one side
        for name, value in expected.items():
            assert getattr(score, name) == pytest.approx(value, abs=1e-4), name


def test_means_are_over_all_spans_and_top1_is_the_mean_of_both_sides(encoder: Encoder, store: BlockStore) -> None:
    result = evaluate_in_batch(encoder, store, SETTINGS, SAMPLE)
    spans = sum(score.spans for score in result.articles)
    assert result.span_count == spans
    assert result.start_top1 == sum(score.start_correct for score in result.articles) / spans
    assert result.top1.mean == pytest.approx((result.start_top1 + result.end_top1) / 2)
    assert result.loss == pytest.approx(sum(score.start_loss + score.end_loss for score in result.articles) / spans)
    assert 0 < result.chance < 1


def test_scores_at_shorter_lengths_are_those_of_the_cut_encoder_on_the_same_masks(
    encoder: Encoder, store: BlockStore
) -> None:
    whole = evaluate_in_batch(encoder, store, SETTINGS, SAMPLE)
    result = evaluate_in_batch(encoder, store, replace(SETTINGS, dimensions=[32, 16, 4]), SAMPLE)
    assert [means.dimensions for means in result.shorter] == [4, 16]  # 32 are all
    assert (result.top1, result.chance) == (whole.top1, whole.chance)
    assert result.loss == pytest.approx(whole.loss, rel=1e-5)  # inner products are summed in another order
    for means in result.shorter:
        cut = evaluate_in_batch(encoder.cut_to(means.dimensions), store, SETTINGS, SAMPLE)
        assert (means.start_top1, means.end_top1, means.top1) == (cut.start_top1, cut.end_top1, cut.top1)
        assert means.loss == pytest.approx(cut.loss, rel=1e-5)
        assert means.loss != pytest.approx(whole.loss, rel=1e-3)
        for ours, theirs in zip(result.articles, cut.articles, strict=True):
            sums = ours.shorter[means.dimensions]
            assert (sums.start_correct, sums.end_correct) == (theirs.start_correct, theirs.end_correct)
    metrics = result.metrics()["shorter"]
    assert list(metrics) == ["4", "16"]
    assert metrics["4"]["top1"]["mean"] == result.shorter[0].top1.mean


def test_a_table_has_a_row_for_each_length(encoder: Encoder, store: BlockStore) -> None:
    _, rows = in_batch_rows(evaluate_in_batch(encoder, store, replace(SETTINGS, dimensions=[4, 16]), SAMPLE))
    assert [row[0] for row in rows] == [
        encoder.name,
        "its first 16 dimensions",
        "its first 4 dimensions",
        "a random key",
    ]


@pytest.mark.parametrize("dimensions", [[33], [4, 64]])
def test_lengths_that_the_vectors_do_not_have_are_refused(
    dimensions: list[int], encoder: Encoder, store: BlockStore
) -> None:
    with pytest.raises(SettingError, match="dimensions"):
        evaluate_in_batch(encoder, store, replace(SETTINGS, dimensions=dimensions))


def test_only_as_many_documents_are_read_as_are_needed(encoder: Encoder, tmp_path: Path) -> None:
    read: list[str] = []

    def documents() -> object:
        for document in DOCUMENTS:
            read.append(document.id)
            yield document

    store = build_held_out_store(tmp_path / "blocks", documents(), encoder, SETTINGS)  # type: ignore[arg-type]
    assert read == ["d0", "d1", "d2"]
    assert [store.document(number).id for number in range(store.document_count)] == ["d0", "d2"]


def test_a_store_of_all_documents_gives_the_same_scores(encoder: Encoder, store: BlockStore, tmp_path: Path) -> None:
    packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=32, min_filled_fraction=0.97))
    whole = build_block_store(tmp_path / "blocks", DOCUMENTS, packer, settings={})
    long_enough = InBatchSettings(articles=2, least_tokens=120, blocks_per_article=4, max_block_tokens=32)
    held_out = build_held_out_store(tmp_path / "held-out", DOCUMENTS, encoder, long_enough)
    found = evaluate_in_batch(encoder, whole, long_enough)
    assert found.articles == evaluate_in_batch(encoder, held_out, long_enough).articles


def test_the_same_evaluation_writes_the_same_bytes(encoder: Encoder, tmp_path: Path) -> None:
    corpus = tmp_path / "articles.jsonl"
    lines = [json.dumps({"id": document.id, "text": document.text}) for document in DOCUMENTS]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    seen: list[tuple[str, float, float | None]] = []

    def evaluated(name: str) -> InBatchResult:
        with held_out_store(encoder, CorpusSettings(files=[str(corpus)]), SETTINGS) as blocks:
            result = evaluate_in_batch(encoder, blocks, SETTINGS, SAMPLE, progress=lambda *at: seen.append(at))
        result.write(tmp_path / name)
        return result

    assert evaluated("first") == evaluated("second")
    for name in ("metrics.json", "predictions.jsonl", "manifest.json"):
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes()
        assert str(tmp_path).encode() not in content
    assert seen == [("articles", 1, 2), ("articles", 2, 2)] * 2


def test_an_encoder_in_training_is_evaluated_without_dropout_and_goes_on_training(
    encoder: Encoder, store: BlockStore
) -> None:
    expected = evaluate_in_batch(encoder, store, SETTINGS, SAMPLE)
    encoder.model.train()
    try:
        assert evaluate_in_batch(encoder, store, SETTINGS, SAMPLE) == expected
        assert encoder.model.training
    finally:
        encoder.model.eval()


def test_too_few_long_articles_are_refused(encoder: Encoder, store: BlockStore, tmp_path: Path) -> None:
    settings = InBatchSettings(articles=4, least_tokens=90, blocks_per_article=4, max_block_tokens=32)
    with pytest.raises(CorpusError, match="too few long articles: 3 of 4"):
        build_held_out_store(tmp_path / "blocks", DOCUMENTS, encoder, settings)
    assert not (tmp_path / "blocks").exists()
    with pytest.raises(CorpusError, match="too few long articles"):
        evaluate_in_batch(encoder, store, settings)


def test_articles_without_a_repeated_phrase_are_refused(encoder: Encoder, tmp_path: Path) -> None:
    text = "R e y k j a v i c L o w"
    settings = InBatchSettings(articles=1, least_tokens=10, blocks_per_article=2, max_block_tokens=8)
    store = build_held_out_store(tmp_path / "blocks", [Document("letters", "", text)], encoder, settings)
    with pytest.raises(CorpusError, match="occurs in two blocks"):
        evaluate_in_batch(encoder, store, settings)


def test_a_store_of_another_tokenizer_and_settings_out_of_range_are_refused(store: BlockStore) -> None:
    with pytest.raises(ArtifactError, match="another tokenizer"):
        evaluate_in_batch(tiny_encoder("roberta"), store, SETTINGS)
    with pytest.raises(SettingError, match="blocks_per_article must be"):
        InBatchSettings(blocks_per_article=1)


def test_blocks_that_masks_make_longer_than_the_encoder_takes_are_refused_by_the_setting(
    encoder: Encoder, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "max_input_tokens", SETTINGS.max_block_tokens)
    masker = build_masker(MaskingSettings(span_success_probability=1.0))  # each span of one token becomes two masks
    monkeypatch.setattr("npm.evaluation.held_out.in_batch.build_masker", lambda _: masker)
    with pytest.raises(SettingError, match="max_block_tokens must be") as raised:
        evaluate_in_batch(encoder, store, SETTINGS, SAMPLE)
    most, _, got = map(int, re.findall(r"\d+", str(raised.value)))
    assert got - SETTINGS.max_block_tokens == SETTINGS.max_block_tokens - most > 0
