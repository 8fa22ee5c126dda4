"""The settings of masked language modeling: what is refused, what they build, and words of a real tokenizer."""

from __future__ import annotations

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
    build_in_place_views,
    build_selector,
)
from npm.masking.masker import mask_rng
from tests.helpers.groups import pairs
from tests.helpers.tiny_models import SENTENCES, byte_bpe_tokenizer, wordpiece_tokenizer


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


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"random_fraction": 0.6, "unchanged_fraction": 0.5}, "at most 1 together, got 1.1"),
        ({"masked_fraction": 0.1, "predicted_fraction": 0.4}, "copies=true"),
        ({"masked_fraction": 0.4, "predicted_fraction": 0.9, "copies": True}, "more than all tokens"),
        ({"sampler": "suffix", "masked_fraction": 0.1, "predicted_fraction": 0.4, "copies": True}, "sampler=suffix"),
        ({"unit": "word", "sampler": "partition"}, "must be uniform or geometric"),
    ],
)
def test_config_what_does_not_fit_together_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        CorruptionSettings(**fields)


@pytest.mark.parametrize(
    ("masked", "predicted", "copies"),
    [
        (0.1, 0.4, 4),
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
    entries = mined_collocations([sequences, sequences], CollocationSettings(min_count=2))
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
