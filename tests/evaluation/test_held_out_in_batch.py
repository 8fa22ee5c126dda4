"""Task `in_batch` against plain loops over spans and keys, on a tiny random encoder."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Document, TokenFlag
from npm.evaluation.held_out import Article, HeldOutArticles, evaluate_in_batch, held_out_articles
from npm.evaluation.settings import HeldOutSettings, SampleSettings
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker, mask_rng
from npm.models.encoder import Encoder
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SETTINGS = HeldOutSettings(least_tokens=90, blocks_per_article=4, max_block_tokens=32)
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
def articles(encoder: Encoder) -> list[Article]:
    return held_out_articles(DOCUMENTS, encoder, SETTINGS, limit=2, task="in_batch")


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
    masks: int, unit: MaskingUnit, articles: list[Article]
) -> None:
    encoder = tiny_encoder("bert")
    encoder.query_masks = masks
    whole = unit is MaskingUnit.phrase_words
    result = evaluate_in_batch(
        encoder, HeldOutArticles(articles, replace(SETTINGS, unit="word" if whole else "token"), SAMPLE)
    )
    assert [line["document"] for line in result.lines] == ["d0", "d2"]
    for number, line in enumerate(result.lines):
        sequences = articles[number].sequences
        assert len(sequences) == 4
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
        assert line["spans"] == len(spans)
        if masks == 1:
            expected["end_loss"] = 0.0  # the one query is trained on one side
        for name, value in expected.items():
            assert line[name] == pytest.approx(value, abs=1e-4), name


def test_means_are_over_all_spans_and_top1_is_the_mean_of_both_sides(encoder: Encoder, articles: list[Article]) -> None:
    result = evaluate_in_batch(encoder, HeldOutArticles(articles, SETTINGS, SAMPLE))
    spans, means = sum(line["spans"] for line in result.lines), result.means
    assert means["span_count"] == spans
    assert means["start_top1"] == sum(line["start_correct"] for line in result.lines) / spans
    assert means["top1"]["mean"] == pytest.approx((means["start_top1"] + means["end_top1"]) / 2)
    losses = sum(line["start_loss"] + line["end_loss"] for line in result.lines)
    assert means["loss"] == pytest.approx(losses / spans)
    assert 0 < means["chance"] < 1


def test_only_as_many_documents_are_read_as_are_needed_and_too_few_are_refused(encoder: Encoder) -> None:
    read = iter(DOCUMENTS)
    assert [each.document for each in held_out_articles(read, encoder, SETTINGS, limit=2, task="in_batch")] == [
        "d0",
        "d2",
    ]
    assert next(read).id == "d3"
    with pytest.raises(CorpusError, match="too few long articles: 3 of 4"):
        held_out_articles(DOCUMENTS, encoder, SETTINGS, limit=4, task="in_batch")


def test_an_encoder_in_training_is_evaluated_without_dropout_and_goes_on_training(
    encoder: Encoder, articles: list[Article]
) -> None:
    expected = evaluate_in_batch(encoder, HeldOutArticles(articles, SETTINGS, SAMPLE))
    encoder.model.train()
    try:
        assert evaluate_in_batch(encoder, HeldOutArticles(articles, SETTINGS, SAMPLE)) == expected
        assert encoder.model.training
    finally:
        encoder.model.eval()


def test_articles_without_a_repeated_phrase_are_refused(encoder: Encoder) -> None:
    text = "R e y k j a v i c L o w"
    settings = HeldOutSettings(least_tokens=10, blocks_per_article=2, max_block_tokens=8)
    articles = held_out_articles([Document("letters", "", text)], encoder, settings, limit=1, task="in_batch")
    with pytest.raises(CorpusError, match="occurs in two blocks"):
        evaluate_in_batch(encoder, HeldOutArticles(articles, settings))


def test_blocks_that_masks_make_longer_than_the_encoder_takes_are_refused_by_the_setting(
    encoder: Encoder, articles: list[Article], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "max_input_tokens", SETTINGS.max_block_tokens)
    masker = build_masker(MaskingSettings(span_success_probability=1.0))  # each span of one token becomes two masks
    monkeypatch.setattr("npm.evaluation.held_out.build_masker", lambda _: masker)
    with pytest.raises(SettingError, match="max_block_tokens must be") as raised:
        evaluate_in_batch(encoder, HeldOutArticles(articles, SETTINGS, SAMPLE))
    most, _, got = map(int, re.findall(r"\d+", str(raised.value)))
    assert got - SETTINGS.max_block_tokens == SETTINGS.max_block_tokens - most > 0
