"""Maskable spans against plain Python and the reference; the settings of masked language modeling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from npm.core.errors import SettingError
from npm.core.types import Document, Sequences, Spans, TokenFlag
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
from npm.masking.units import MAX_GROUP_TOKENS, CooccurringUnits, TokenUnits, WordUnits, words_that_go_on
from tests.helpers.groups import WORD, group, pairs, random_group
from tests.helpers.tiny_models import SENTENCES, byte_bpe_tokenizer, wordpiece_tokenizer
from tests.masking.plain_masking import plain_candidates, plain_phrase, plain_words

START, END = int(TokenFlag.WORD_START), int(TokenFlag.WORD_END)
CLAUSE = WORD | int(TokenFlag.CLAUSE_PUNCTUATION)
SPECIAL = int(TokenFlag.SPECIAL)


def found(units: CooccurringUnits, sequences: Sequences) -> list[tuple[int, int]]:
    candidates = units.candidates(sequences)
    return sorted(zip(candidates.starts.tolist(), candidates.lengths.tolist(), strict=True))


def test_a_span_is_a_candidate_if_it_stands_in_another_sequence() -> None:
    sequences = group([5, 6, 7, 8], [9, 6, 7], [8])
    assert found(CooccurringUnits(), sequences) == [(1, 1), (1, 2), (2, 1), (3, 1), (5, 1), (5, 2), (6, 1), (7, 1)]


def test_a_span_starts_and_ends_at_word_boundaries_but_its_other_occurrence_need_not() -> None:
    sequences = group([5, 6, 7], [5, 6, 7], flags=[[START, END, WORD], [0, 0, 0]])
    assert found(CooccurringUnits(), sequences) == [(0, 2), (0, 3), (2, 1)]


def test_token_units_are_all_tokens_that_are_not_special() -> None:
    candidates = TokenUnits().candidates(group([1, 5, 6], [5, 7], flags=[[SPECIAL, 0, 0], [WORD, 0]]))
    assert (candidates.starts.tolist(), candidates.lengths.tolist()) == ([1, 2, 3, 4], [1, 1, 1, 1])


@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[5]], [[], [5], []]])
def test_groups_without_a_second_sequence_have_no_candidates(rows: list[list[int]]) -> None:
    candidates = CooccurringUnits().candidates(group(*rows))
    assert (len(candidates.starts), len(candidates.lengths), len(candidates.phrase_ids)) == (0, 0, 0)


@pytest.mark.parametrize("word_boundaries", [True, False])
@pytest.mark.parametrize("max_span_tokens", [1, 3, 10])
@pytest.mark.parametrize("vocabulary", [3, 4, 8, 40])
def test_candidates_equal_those_of_plain_python(word_boundaries: bool, max_span_tokens: int, vocabulary: int) -> None:
    units = CooccurringUnits(max_span_tokens=max_span_tokens, word_boundaries=word_boundaries)
    rng = np.random.default_rng([vocabulary, max_span_tokens])
    for sequence_count in (1, 2, 3, 5, 16):
        for max_tokens in (1, 5, 30, 80):
            sequences = random_group(rng, sequence_count=sequence_count, max_tokens=max_tokens, vocabulary=vocabulary)
            plain = plain_candidates(sequences, max_span_tokens=max_span_tokens, word_boundaries=word_boundaries)
            assert found(units, sequences) == sorted(plain)


def test_phrase_ids_are_equal_where_tokens_are_equal_and_differ_elsewhere() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        sequences = random_group(rng, sequence_count=6, max_tokens=50, vocabulary=5)
        candidates = CooccurringUnits().candidates(sequences)
        phrases = [
            plain_phrase(sequences, span)
            for span in zip(candidates.starts.tolist(), candidates.lengths.tolist(), strict=True)
        ]
        ids = candidates.phrase_ids.tolist()
        assert len(set(phrases)) == len(set(ids)) == len(set(zip(phrases, ids, strict=True)))


def test_large_token_ids_are_told_apart() -> None:
    largest = 2**31 - 1
    sequences = group([largest, 5], [largest, 6], [largest - 1, 5])
    assert found(CooccurringUnits(), sequences) == [(0, 1), (1, 1), (2, 1), (5, 1)]


def test_a_group_of_exactly_the_largest_size_is_searched() -> None:
    """Numbers and positions just below the limit must not run into each other's bits."""
    half = np.arange(MAX_GROUP_TOKENS // 2, dtype=np.int32)
    flags = np.full(MAX_GROUP_TOKENS, WORD, dtype=np.uint8)
    sequences = Sequences(np.concatenate([half, half]), flags, np.array([0, 1, 2]) * len(half))
    lengths = CooccurringUnits(max_span_tokens=2).candidates(sequences).lengths
    assert np.bincount(lengths).tolist() == [0, MAX_GROUP_TOKENS, MAX_GROUP_TOKENS - 2]


def test_every_span_masked_by_the_reference_is_a_candidate_parity(parity_groups: list[tuple[Sequences, Spans]]) -> None:
    for sequences, spans in parity_groups:
        assert set(pairs(spans)) <= set(found(CooccurringUnits(), sequences))


def test_words_are_whole_and_what_is_in_none_stands_alone() -> None:
    flags = [[START, 0, END, WORD, SPECIAL, 0, WORD], [END, 0, 0, START]]
    sequences = group([5, 6, 7, 8, 1, 9, 8], [7, 9, 9, 5], flags=flags)
    candidates = WordUnits().candidates(sequences)
    words = list(zip(candidates.starts.tolist(), candidates.lengths.tolist(), strict=True))
    # a block may begin in the middle of a word; tokens of nothing but space have no flag
    assert words == [(0, 3), (3, 1), (5, 1), (6, 1), (7, 1), (8, 2), (10, 1)]


def test_words_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        sequences = random_group(rng, sequence_count=5, max_tokens=30, vocabulary=5)
        candidates = WordUnits().candidates(sequences)
        spans = list(zip(candidates.starts.tolist(), candidates.lengths.tolist(), strict=True))
        assert spans == plain_words(sequences)


def test_a_word_goes_on_unless_a_sequence_ends_or_a_special_token_follows() -> None:
    flags = [[WORD, START, END, SPECIAL, WORD], [WORD]]
    sequences = group([5, 6, 7, 1, 8], [9], flags=flags)
    candidates = WordUnits().candidates(sequences)
    goes_on = words_that_go_on(sequences, Spans(candidates.starts, candidates.lengths))
    assert goes_on.tolist() == [True, False, False, False]


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
    [(0.1, 0.4, 4), (0.15, 0.4, 3), (0.3, 0.9, 3), (0.1, 0.7, 7), (0.09, 0.27, 3), (0.4, 0.2, 1)],
)
def test_the_number_of_copies_is_rounded_up(masked: float, predicted: float, copies: int) -> None:
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
