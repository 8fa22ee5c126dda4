"""Task `masked_tokens` against `transformers` and plain loops over blocks, on tiny random masked language models."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.corpus.documents import CorpusSettings
from npm.corpus.store import BlockStore
from npm.evaluation.held_out.articles import build_held_out_store, held_out_store
from npm.evaluation.held_out.masked_tokens import ArticleSums, MaskedTokensResult, evaluate_masked_tokens
from npm.evaluation.metrics import ratio_standard_error
from npm.evaluation.settings import MaskedTokensSettings, MaskedUnit, SampleSettings
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, build_in_place_views
from npm.masking.masker import mask_rng
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.evaluation.held_out.test_in_batch import DOCUMENTS
from tests.helpers.language_models import deaf_head, published
from tests.helpers.tiny_models import tiny_encoder

SETTINGS = MaskedTokensSettings(articles=2, least_tokens=90, blocks_per_article=4, max_block_tokens=32)
Model = tuple[Encoder, MaskedHead, Path]


def held_out(encoder: Encoder, folder: Path, settings: MaskedTokensSettings = SETTINGS) -> BlockStore:
    return build_held_out_store(folder / "blocks", DOCUMENTS, encoder, settings)


@pytest.mark.parametrize("unit", MaskedUnit)
def test_the_sums_of_each_article_equal_those_of_transformers_over_its_blocks(
    model: Model, unit: MaskedUnit, tmp_path: Path
) -> None:
    encoder, head, folder = model
    store = held_out(encoder, tmp_path)
    result = evaluate_masked_tokens(encoder, head, store, replace(SETTINGS, unit=unit))
    assert result.record["settings"]["masked_unit"] == unit.value
    language_model = published(folder)
    assert [each.document for each in result.articles] == ["d0", "d2"]
    for number, sums in enumerate(result.articles):
        first = int(np.flatnonzero(store.block_documents == number)[0])
        masked = masked_blocks(encoder, store, range(first, first + 4), number, CorruptionUnit[unit.name])
        plain = [block_sums(language_model, *block) for block in masked]
        assert sums.predictions == sum(count for count, _, _ in plain) > 0
        assert sums.correct == sum(correct for _, correct, _ in plain)
        assert sums.loss == pytest.approx(sum(loss for _, _, loss in plain), rel=1e-4)


def masked_blocks(
    encoder: Encoder, store: BlockStore, blocks: range, number: int, unit: CorruptionUnit
) -> list[tuple[list[int], list[int]]]:
    """What the encoder reads of each block, and what stood there; where masks are is the corruption's own business."""
    views = build_in_place_views(
        CorruptionSettings(unit=unit, masked_fraction=0.15),
        mask_id=-5,
        pad_id=-7,
        ordinary_ids=np.zeros(0, dtype=np.int64),
    )
    shown = views.view([store.sequences(blocks)], [mask_rng(0, 0, number, 1)])
    found = []
    for read, clean in zip(shown.query_input_ids.tolist(), shown.key_input_ids.tolist(), strict=True):
        original = [token for token in clean if token != -7]
        seen = [encoder.mask_id if token == -5 else token for token in read if token != -7]
        framed = [*encoder.prefix_ids, *seen, *encoder.suffix_ids]
        found.append((framed, [*encoder.prefix_ids, *original, *encoder.suffix_ids]))
        assert all(token in (encoder.mask_id, true) for token, true in zip(seen, original, strict=True))
    return found


@torch.no_grad()
def block_sums(language_model: torch.nn.Module, read: list[int], original: list[int]) -> tuple[int, int, float]:
    """Predictions, right ones, and their loss, one masked place at a time."""
    ids = torch.tensor([read])
    scores = language_model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].log_softmax(-1)
    places = [place for place, (seen, true) in enumerate(zip(read, original, strict=True)) if seen != true]
    right = sum(int(scores[place].argmax()) == original[place] for place in places)
    return len(places), right, -sum(float(scores[place, original[place]]) for place in places)


def test_about_the_asked_share_of_the_tokens_is_predicted_in_every_article(model: Model, tmp_path: Path) -> None:
    encoder, head, _ = model
    store = held_out(encoder, tmp_path)
    for fraction in (0.15, 0.5):
        settings = MaskedTokensSettings(
            articles=2, least_tokens=90, blocks_per_article=4, max_block_tokens=32, masked_fraction=fraction
        )
        result = evaluate_masked_tokens(encoder, head, store, settings)
        for sums in result.articles:
            assert 4 * (fraction * 30 - 1) <= sums.predictions <= 4 * (fraction * 30 + 1)


def test_whole_words_are_masked_at_once_where_that_is_asked(bert: Encoder, tmp_path: Path) -> None:
    store = held_out(bert, tmp_path)
    inside = 0
    for read, clean in masked_blocks(bert, store, range(8), 0, CorruptionUnit.word):
        for place, piece in enumerate(bert.tokenizer.convert_ids_to_tokens(clean)):
            if piece.startswith("##"):
                inside += read[place] == bert.mask_id
                assert (read[place] == bert.mask_id) == (read[place - 1] == bert.mask_id)
    assert inside


def test_a_head_that_is_deaf_has_the_loss_and_the_accuracy_of_its_probabilities(bert: Encoder, tmp_path: Path) -> None:
    head = deaf_head(bert, {"the": 0.4})
    store = held_out(bert, tmp_path)
    result = evaluate_masked_tokens(bert, head, store, SETTINGS)
    rest = math.log(0.6 / (len(bert.tokenizer) - 1))
    right = sum(each.correct for each in result.articles)
    assert 0 < right < result.prediction_count
    expected = -(right * math.log(0.4) + (result.prediction_count - right) * rest) / result.prediction_count
    assert result.accuracy == right / result.prediction_count
    assert result.loss == pytest.approx(expected, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=1e-4)


def test_means_are_over_predictions_and_errors_over_articles() -> None:
    # r = 12/6 = 2; residuals 4 − 2·1, 8 − 2·5 = ±2; √(2/1 · 8) / 6 = 4/6
    assert ratio_standard_error(np.array([4.0, 8.0]), np.array([1.0, 5.0])) == pytest.approx(4 / 6)
    rng = np.random.default_rng(0)
    sums = rng.normal(size=50)
    equal = ratio_standard_error(sums, np.ones(50))
    assert equal == pytest.approx(sums.std(ddof=1) / math.sqrt(50))
    assert ratio_standard_error(np.ones(1), np.ones(1)) is None


def test_a_loss_beyond_all_floats_has_no_perplexity() -> None:
    result = MaskedTokensResult(
        model_name="x",
        articles=(ArticleSums("d", 1, 0, 900.0),),
        record={},
        prediction_count=1,
        loss=900.0,
        loss_standard_error=None,
        accuracy=0.0,
        accuracy_standard_error=None,
    )
    assert result.metrics()["perplexity"] is None


def test_results_on_documents_are_those_on_blocks_and_are_the_same_again(model: Model, tmp_path: Path) -> None:
    encoder, head, _ = model
    corpus = tmp_path / "held-out.jsonl"
    lines = [json.dumps({"id": each.id, "title": "", "text": each.text}, ensure_ascii=False) for each in DOCUMENTS]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    told: list[tuple[str, float, float | None]] = []
    for place in ("one", "two"):
        with held_out_store(encoder, CorpusSettings(files=[str(corpus)]), SETTINGS) as blocks:
            result = evaluate_masked_tokens(encoder, head, blocks, SETTINGS, progress=lambda *at: told.append(at))
        result.write(tmp_path / place)
    assert told[:2] == [("articles", 1, 2), ("articles", 2, 2)]
    assert result.articles == evaluate_masked_tokens(encoder, head, held_out(encoder, tmp_path), SETTINGS).articles
    for name in ("predictions.jsonl", "metrics.json", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    metrics = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["settings"]["masked_fraction"] == 0.15


def test_another_seed_masks_other_tokens(model: Model, tmp_path: Path) -> None:
    encoder, head, _ = model
    store = held_out(encoder, tmp_path)
    first, other = (
        evaluate_masked_tokens(encoder, head, store, SETTINGS, SampleSettings(seed=seed)) for seed in (0, 1)
    )
    assert first.loss != other.loss


def test_what_cannot_be_asked_is_refused(model: Model, tmp_path: Path) -> None:
    encoder, head, _ = model
    store = held_out(encoder, tmp_path)
    with pytest.raises(SettingError, match="masked_fraction must be"):
        MaskedTokensSettings(masked_fraction=1.0)
    with pytest.raises(SettingError, match="blocks_per_article must be"):
        MaskedTokensSettings(blocks_per_article=1)
    with pytest.raises(SettingError, match="max_block_tokens must be"):
        evaluate_masked_tokens(encoder, head, store, MaskedTokensSettings(max_block_tokens=4096))
    with pytest.raises(CorpusError, match="no token of the articles was masked"):
        tiny = MaskedTokensSettings(
            articles=2, least_tokens=90, blocks_per_article=4, max_block_tokens=32, masked_fraction=1e-9
        )
        evaluate_masked_tokens(encoder, head, store, tiny)
    other = tiny_encoder("roberta" if encoder.name == "tiny-bert" else "bert")
    with pytest.raises(ArtifactError, match="another tokenizer"):
        evaluate_masked_tokens(other, head, store, SETTINGS)
