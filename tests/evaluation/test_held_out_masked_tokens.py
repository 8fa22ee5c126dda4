"""Task `masked_tokens` against `transformers` and plain loops over blocks, on tiny random masked language models."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Sequences
from npm.evaluation.held_out import Article, HeldOutArticles, evaluate_masked_tokens, held_out_articles
from npm.evaluation.metrics import ratio_standard_error
from npm.evaluation.results import Result
from npm.evaluation.settings import HeldOutSettings, SampleSettings
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, build_in_place_views
from npm.masking.masker import mask_rng
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.evaluation.test_held_out_in_batch import DOCUMENTS
from tests.helpers.language_models import deaf_head, published

SAMPLE = SampleSettings()
SETTINGS = HeldOutSettings(least_tokens=90, blocks_per_article=4, max_block_tokens=32)
Model = tuple[Encoder, MaskedHead, Path]


def held_out(encoder: Encoder, settings: HeldOutSettings = SETTINGS, limit: int = 2) -> list[Article]:
    return held_out_articles(DOCUMENTS, encoder, settings, limit=limit, task="masked_tokens")


def evaluated(model: Model, settings: HeldOutSettings = SETTINGS, sample: SampleSettings = SAMPLE) -> Result:
    encoder, head, _ = model
    return evaluate_masked_tokens(encoder, head, HeldOutArticles(held_out(encoder, settings), settings, sample))


@pytest.mark.parametrize("unit", ["token", "word"])
def test_the_sums_of_each_article_equal_those_of_transformers_over_its_blocks(model: Model, unit: Any) -> None:
    encoder, _, folder = model
    result = evaluated(model, replace(SETTINGS, unit=unit))
    assert result.record["settings"]["masked_unit"] == unit
    language_model = published(folder)
    assert [line["document"] for line in result.lines] == ["d0", "d2"]
    for line, article in zip(result.lines, held_out(encoder), strict=True):
        masked = masked_blocks(encoder, article.sequences, article.number, CorruptionUnit(unit))
        plain = [block_sums(language_model, *block) for block in masked]
        assert line["predictions"] == sum(count for count, _, _ in plain) > 0
        assert line["correct"] == sum(correct for _, correct, _ in plain)
        assert line["loss"] == pytest.approx(sum(loss for _, _, loss in plain), rel=1e-4)


def masked_blocks(
    encoder: Encoder, sequences: Sequences, number: int, unit: CorruptionUnit
) -> list[tuple[list[int], list[int]]]:
    """What the encoder reads of each block, and what stood there; where masks are is the corruption's own business."""
    views = build_in_place_views(
        CorruptionSettings(unit=unit, masked_fraction=0.15),
        mask_id=-5,
        pad_id=-7,
        ordinary_ids=np.zeros(0, dtype=np.int64),
    )
    shown = views.view([sequences], [mask_rng(0, 0, number, 1)])
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


def test_whole_words_are_masked_at_once_where_that_is_asked(bert: Encoder) -> None:
    (article,) = held_out(bert, limit=1)
    inside = 0
    for read, clean in masked_blocks(bert, article.sequences, 0, CorruptionUnit.word):
        for place, piece in enumerate(bert.tokenizer.convert_ids_to_tokens(clean)):
            if piece.startswith("##"):
                inside += read[place] == bert.mask_id
                assert (read[place] == bert.mask_id) == (read[place - 1] == bert.mask_id)
    assert inside


def test_a_head_that_is_deaf_has_the_loss_and_the_accuracy_of_its_probabilities(bert: Encoder) -> None:
    result = evaluated((bert, deaf_head(bert, {"the": 0.4}), Path()))
    rest, count = math.log(0.6 / (len(bert.tokenizer) - 1)), result.means["prediction_count"]
    right = sum(line["correct"] for line in result.lines)
    assert 0 < right < count
    expected = -(right * math.log(0.4) + (count - right) * rest) / count
    assert result.means["accuracy"] == right / count
    assert result.means["loss"] == pytest.approx(expected, rel=1e-5)
    assert result.means["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_means_are_over_predictions_and_errors_over_articles() -> None:
    # r = 12/6 = 2; residuals 4 − 2·1, 8 − 2·5 = ±2; √(2/1 · 8) / 6 = 4/6
    assert ratio_standard_error(np.array([4.0, 8.0]), np.array([1.0, 5.0])) == pytest.approx(4 / 6)
    rng = np.random.default_rng(0)
    sums = rng.normal(size=50)
    equal = ratio_standard_error(sums, np.ones(50))
    assert equal == pytest.approx(sums.std(ddof=1) / math.sqrt(50))
    assert ratio_standard_error(np.ones(1), np.ones(1)) is None


def test_a_loss_beyond_all_floats_has_no_perplexity(bert: Encoder) -> None:
    head = deaf_head(bert, {"the": 0.4})
    with torch.no_grad():
        head.bias *= 1e4
    result = evaluated((bert, head, Path()))
    assert result.metrics()["perplexity"] is None
    assert result.tables[0].rows[0][-1] == "∞"


def test_what_is_written_is_the_same_again_and_another_seed_masks_other_tokens(model: Model, tmp_path: Path) -> None:
    for place in ("one", "two"):
        result = evaluated(model)
        result.write(tmp_path / place)
    for name in ("predictions.jsonl", "metrics.json", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    metrics = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["settings"]["masked_fraction"] == 0.15
    assert evaluated(model, sample=SampleSettings(seed=1)).means["loss"] != metrics["loss"]


def test_what_cannot_be_asked_is_refused(model: Model) -> None:
    with pytest.raises(SettingError, match=r"held_out\.max_block_tokens must be"):
        held_out(model[0], HeldOutSettings(max_block_tokens=4096))
    with pytest.raises(CorpusError, match="no token of the articles was masked"):
        evaluated(model, replace(SETTINGS, masked_fraction=1e-9))
