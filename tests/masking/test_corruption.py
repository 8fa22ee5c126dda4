"""The settings of masked language modelling: what is refused, what they build, and words of a real tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from npm.core.errors import SettingError
from npm.core.types import Document, Sequences
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.masking.collocation_mining import mined_collocations
from npm.masking.collocations import CollocationSettings, CollocationVocabulary
from npm.masking.corruption import (
    SAMPLERS,
    CorruptionSampler,
    CorruptionSettings,
    CorruptionUnit,
    Selector,
    build_in_place_views,
    build_selector,
)
from npm.masking.masker import mask_rng
from npm.masking.samplers import (
    GeometricSpanSampler,
    PartitionSampler,
    SuffixSampler,
    UniformSampler,
    WordSpanSampler,
)
from npm.masking.units import CooccurringUnits, TokenUnits, WordUnits
from tests.helpers.groups import pairs
from tests.helpers.tiny_models import SENTENCES, byte_bpe_tokenizer, wordpiece_tokenizer

SHIPPED_ENCODER = Path(__file__).parents[2] / "npm" / "assets" / "encoder-mini"


def test_config_single_bytes_are_masked_only_where_that_is_allowed() -> None:
    alone: list[dict[str, Any]] = [{}, {"unit": CorruptionUnit.cooccurring}]
    for settings in alone:
        with pytest.raises(SettingError, match="mask single bytes"):
            CorruptionSettings(**settings).check_tokens(of_bytes=True)
        CorruptionSettings(**settings, allow_bytes=True).check_tokens(of_bytes=True)
        CorruptionSettings(**settings).check_tokens(of_bytes=False)
    longer: list[dict[str, Any]] = [{"unit": CorruptionUnit.word}, {"sampler": CorruptionSampler.partition}]
    for settings in longer:
        CorruptionSettings(**settings).check_tokens(of_bytes=True)


def test_config_more_replaced_than_masked_is_refused() -> None:
    with pytest.raises(SettingError, match="random_fraction") as refusal:
        CorruptionSettings(random_fraction=0.6, unchanged_fraction=0.5)
    assert "1.1" in str(refusal.value)
    assert CorruptionSettings(random_fraction=0.6, unchanged_fraction=0.4).mask_probability == pytest.approx(0)


def test_config_a_prediction_rate_above_the_corruption_rate_needs_copies() -> None:
    with pytest.raises(SettingError, match=r"predicted_fraction must be at most .*got 0\.4") as refusal:
        CorruptionSettings(masked_fraction=0.1, predicted_fraction=0.4)
    assert "copies=true" in str(refusal.value)


def test_config_copies_that_would_mask_more_than_there_is_are_refused() -> None:
    with pytest.raises(SettingError, match=r"predicted_fraction=0\.9"):
        CorruptionSettings(masked_fraction=0.4, predicted_fraction=0.9, copies=True)


@pytest.mark.parametrize("sampler", [CorruptionSampler.partition, CorruptionSampler.suffix])
def test_config_copies_need_a_sampler_that_can_leave_tokens_out(sampler: CorruptionSampler) -> None:
    with pytest.raises(SettingError, match=f"sampler={sampler.name}"):
        CorruptionSettings(sampler=sampler, masked_fraction=0.1, predicted_fraction=0.4, copies=True)
    CorruptionSettings(sampler=sampler, masked_fraction=0.4, predicted_fraction=0.1, copies=True)


def test_config_units_and_samplers_that_do_not_go_together_are_refused() -> None:
    for unit in CorruptionUnit:
        for sampler in CorruptionSampler:
            if sampler in SAMPLERS[unit]:
                assert CorruptionSettings(unit=unit, sampler=sampler).copy_count == 1
                continue
            with pytest.raises(SettingError) as refusal:
                CorruptionSettings(unit=unit, sampler=sampler)
            assert SAMPLERS[unit][0].name in str(refusal.value) and sampler.name in str(refusal.value)


@pytest.mark.parametrize(
    ("masked", "predicted", "copies"),
    [
        (0.1, 0.4, 4),
        (0.05, 0.4, 8),
        (0.2, 0.4, 2),
        (0.15, 0.4, 3),
        (0.3, 0.9, 3),
        (0.1, 0.7, 7),
        (0.09, 0.27, 3),
        (0.4, 0.2, 1),
    ],
)
def test_the_number_of_copies_is_the_quotient_of_the_rates_rounded_up(
    masked: float, predicted: float, copies: int
) -> None:
    settings = CorruptionSettings(masked_fraction=masked, predicted_fraction=predicted, copies=True)
    assert settings.copy_count == copies


def test_config_settings_reach_what_is_built() -> None:
    def built(**fields: Any) -> Selector:
        return build_selector(CorruptionSettings(**fields))

    assert built() == Selector(TokenUnits(), UniformSampler(), 0.15)
    spans = built(
        unit=CorruptionUnit.word,
        sampler=CorruptionSampler.geometric,
        masked_fraction=0.3,
        predicted_fraction=0.2,
        span_success_probability=0.4,
        max_span_units=6,
    )
    sampler = WordSpanSampler(success_probability=0.4, max_span_words=6)
    assert spans == Selector(WordUnits(), sampler, 0.3, 0.2)
    phrases = built(unit=CorruptionUnit.cooccurring, sampler=CorruptionSampler.geometric)
    assert isinstance(phrases.sampler, GeometricSpanSampler)
    assert not phrases.sampler.overshoot
    assert phrases.units == CooccurringUnits(max_span_tokens=10)
    tokens = built(unit=CorruptionUnit.cooccurring)
    assert tokens.units == CooccurringUnits(max_span_tokens=1, word_boundaries=False)
    assert built(sampler=CorruptionSampler.partition, mean_span_tokens=8.0).sampler == PartitionSampler(8.0)
    assert built(sampler=CorruptionSampler.suffix).sampler == SuffixSampler(vary_length=False)
    with pytest.raises(ValueError, match="needs a vocabulary"):
        built(unit=CorruptionUnit.collocation)


def test_the_shipped_vocabulary_is_that_of_uncased_bert() -> None:
    """So that masking rates and token statistics can be set beside published ones; the number is theirs."""
    tokenizer = json.loads((SHIPPED_ENCODER / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == 30_522
    assert sum(re.fullmatch(r"(##)?[A-Za-z]+", token) is not None for token in vocabulary) == 26_503


def packed_sentences(tokenizer: PreTrainedTokenizerFast) -> Sequences:
    packer = BlockPacker(tokenizer, BlockSettings(max_block_tokens=64))
    blocks = [b for n, text in enumerate(SENTENCES) for b in packer.pack_many([Document(str(n), "", text)])[0]]
    return Sequences(
        np.concatenate([block.token_ids for block in blocks]),
        np.concatenate([block.flags for block in blocks]),
        np.cumsum([0, *(len(block.token_ids) for block in blocks)]),
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_masked_words_of_a_tokenizer_are_words_of_the_text(family: str) -> None:
    tokenizer = wordpiece_tokenizer() if family == "bert" else byte_bpe_tokenizer()
    sequences = packed_sentences(tokenizer)
    selector = build_selector(CorruptionSettings(unit=CorruptionUnit.word, masked_fraction=0.5))
    words = set()
    for seed in range(5):
        (selection,) = selector.select(sequences, mask_rng(seed, 0, 0))
        for start, length in pairs(selection.masked):
            text = str(tokenizer.decode(sequences.token_ids[start : start + length])).strip().lower()
            assert length == 1 or text.isalnum(), text
            words.add(text)
    assert {"rhine", "kingdom", "america"} & words


@pytest.mark.parametrize(("unit", "sampler"), [(u, s) for u, samplers in SAMPLERS.items() for s in samplers])
def test_every_strategy_masks_real_text_from_its_settings_on(unit: CorruptionUnit, sampler: CorruptionSampler) -> None:
    sequences = packed_sentences(wordpiece_tokenizer())
    entries, _ = mined_collocations([sequences, sequences], CollocationSettings(min_count=2))
    views = build_in_place_views(
        CorruptionSettings(unit=unit, sampler=sampler, random_fraction=0.1, unchanged_fraction=0.1),
        mask_id=1000,
        pad_id=1001,
        ordinary_ids=np.arange(5, 300),
        vocabulary=CollocationVocabulary(entries),
    )
    batch = views.view([sequences], [mask_rng(0, 0, 0, 1)])
    assert batch.query_input_ids.shape == batch.key_input_ids.shape
    assert 0 < len(batch.span_sequences) <= 0.15 * len(sequences.token_ids) + len(sequences)
    assert (batch.query_input_ids == 1000).any()
    again = views.view([sequences], [mask_rng(0, 0, 0, 1)])
    assert again.query_input_ids.equal(batch.query_input_ids)
    assert not views.view([sequences], [mask_rng(1, 0, 0, 1)]).query_input_ids.equal(batch.query_input_ids)
