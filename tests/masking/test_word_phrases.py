"""Phrases counted in words against plain loops; spans of whole words as in SpanBERT."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.types import Sequences, Spans, TokenFlag
from npm.corpus.blocks import SentenceTokenizer
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker, mask_rng
from npm.masking.rendering import MaskRenderer
from npm.masking.samplers import WordSpanSampler
from npm.masking.units import CooccurringWordUnits, WordUnits, whole_words
from npm.models.tokenizer import byte_tokenizer
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import Keys, NonparametricMasked, following_tokens, positive_keys
from npm.objectives.settings import NonparametricSettings
from tests.helpers.groups import SPECIAL_ID, group, pairs, random_group
from tests.masking.plain_masking import plain_neighbors, plain_words

TEXTS = (
    "The Bank of America was founded here, in Łódź.",
    "Łódź has a Bank  of America, and the Bank of America has Łódź.",
    "A bank, a Bank of Łódź: the bank.",
)


def of_texts(*texts: str) -> Sequences:
    return SentenceTokenizer(byte_tokenizer(), max_tokens=500).encode(texts)


def words_within(sequences: Sequences, first: int, stop: int) -> list[tuple[int, int]]:
    """The words [start, end) of the tokens [first, stop) that begin and end there."""
    words: list[tuple[int, int]] = []
    start = None
    for place in range(first, stop):
        flag = int(sequences.flags[place])
        start = place if flag & 1 else start
        if flag & 64:
            start = None
        if flag & 2 and start is not None:
            words.append((start, place + 1))
            start = None
    return words


def plain_runs(sequences: Sequences, longest: int) -> dict[tuple[int, int], int]:
    """Token span → words, of runs whose tokens stand as the same whole words in another sequence."""
    places: dict[tuple[Any, ...], set[int]] = {}
    runs: dict[tuple[int, int], tuple[tuple[Any, ...], int]] = {}
    for number, (first, stop) in enumerate(zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)):
        words = words_within(sequences, int(first), int(stop))
        for i in range(len(words)):
            for j in range(i, min(i + longest, len(words))):
                start, end = words[i][0], words[j][1]
                if (sequences.flags[start:end] & 64).any() or (j > i and sequences.flags[start] & 32):
                    continue
                ends = [(first - start, last - start) for first, last in words[i : j + 1]]
                tokens = (*sequences.token_ids[start:end].tolist(), *ends)
                places.setdefault(tokens, set()).add(number)
                runs[start, end - start] = tokens, j - i + 1
    return {span: count for span, (tokens, count) in runs.items() if len(places[tokens]) > 1}


@pytest.mark.parametrize("longest", [1, 3, 10])
def test_candidates_are_those_of_plain_loops_over_words(longest: int) -> None:
    sequences = of_texts(*TEXTS)
    found = CooccurringWordUnits(longest).candidates(sequences)
    assert found.word_counts is not None
    spans = zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
    assert dict(zip(spans, found.word_counts.tolist(), strict=True)) == plain_runs(sequences, longest)
    texts = {bytes((sequences.token_ids[s : s + n] - 5).tolist()).decode() for s, n in plain_runs(sequences, longest)}
    assert {"Łódź", "Bank"} <= texts
    assert ("Bank of America" in texts) == (longest > 1)  # two spaces are not one


def test_candidates_are_those_of_plain_loops_in_random_groups(rng: np.random.Generator) -> None:
    for _ in range(20):
        sequences = random_group(rng, sequence_count=4, max_tokens=30, vocabulary=5)
        found = CooccurringWordUnits(3).candidates(sequences)
        assert found.word_counts is not None
        spans = zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
        assert dict(zip(spans, found.word_counts.tolist(), strict=True)) == plain_runs(sequences, 3)
        words = whole_words(sequences)
        bounds = zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)
        plain = [word for first, stop in bounds for word in words_within(sequences, int(first), int(stop))]
        assert list(zip(words.starts.tolist(), (words.starts + words.lengths).tolist(), strict=True)) == plain


def test_equal_phrases_have_one_number_and_masks_are_drawn_by_words() -> None:
    text = "the quick brown fox jumps over a lazy dog and runs away from nineteen extraordinary mathematicians"
    sequences = of_texts(*[text] * 8)
    settings = MaskingSettings(unit=MaskingUnit.phrase_words, masked_fraction=0.3, max_span_words=2)
    spans = build_masker(settings).select(sequences, mask_rng(0, 0, 0))
    assert spans is not None
    texts = [bytes((sequences.token_ids[s : s + n] - 5).tolist()).decode() for s, n in pairs(spans)]
    assert all(1 <= len(each.split()) <= 2 and each in text for each in texts)
    assert any(len(each) > 10 for each in texts)  # longer than the ten tokens of `phrase`
    candidates = CooccurringWordUnits(2).candidates(sequences)
    numbers: dict[int, set[tuple[int, ...]]] = {}
    for start, length, number in zip(
        candidates.starts.tolist(), candidates.lengths.tolist(), candidates.phrase_ids.tolist(), strict=True
    ):
        numbers.setdefault(number, set()).add(tuple(sequences.token_ids[start : start + length].tolist()))
    assert all(len(tokens) == 1 for tokens in numbers.values()) and len(numbers) == 31  # 16 words, 15 pairs


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_word_inside_another_is_an_occurrence_only_where_words_are_not_whole(whole_words: bool) -> None:
    sequences = of_texts("art is art", "part of art starts")
    spans = build_masker(MaskingSettings(unit=MaskingUnit.phrase_words, masked_fraction=0.3)).select(
        sequences, mask_rng(0, 0, 0)
    )
    assert spans is not None
    batch = MaskRenderer(mask_id=4, pad_id=0, whole_words=whole_words).render(sequences, spans)
    ids = batch.key_input_ids if batch.key_identities is None else batch.key_identities
    row = ids[1][batch.key_attention_mask[1].bool()]  # i64 [L], of the second text
    keys = Keys(torch.zeros(len(row), 1), row, torch.zeros(len(row), dtype=torch.int64))
    art = batch.span_token_ids[batch.span_sequences == 0][:1]  # i64 [1, m]
    found = positive_keys(art, following_tokens(keys, art.shape[1]))[0].nonzero()[:, 0].tolist()
    assert found == ([8] if whole_words else [1, 8, 14])


def test_spans_of_whole_words_have_their_losses_from_the_keys_of_clean_copies() -> None:
    sequences = of_texts(*TEXTS, "art is art, a bank", "part of art starts a bank")
    masking = MaskingSettings(unit=MaskingUnit.phrase_words, masked_fraction=0.3)
    spans = build_masker(masking).select(sequences, mask_rng(0, 0, 0))
    assert spans is not None
    batch = MaskRenderer(mask_id=4, pad_id=0, whole_words=True).render(sequences, spans)
    known = [*zip(sequences.token_ids.tolist(), (sequences.flags & 3).tolist(), strict=True)]

    def recurs(start: int, size: int) -> bool:
        for first, stop in pairwise(sequences.offsets.tolist()):
            shown = known[first:stop]
            places = range(len(shown) - size + 1) if not first <= start < stop else range(0)
            if any(shown[place : place + size] == known[start : start + size] for place in places):
                return True
        return False

    found = [recurs(*span) for span in pairs(spans)]
    assert found and all(found)
    objective = NonparametricMasked(NonparametricSettings(), similarity_scale=1.0)
    terms = objective(EncodedBatch(lambda ids, _: ids[..., None] * torch.ones(2), batch))
    assert {term.count for term in terms.values()} == {*objective.counts(batch).values()} == {sum(found)}
    assert float(terms["start"].sum) > 0


START, END = int(TokenFlag.WORD_START), int(TokenFlag.WORD_END)


def draw(sampler: WordSpanSampler, sequences: Sequences, budget_tokens: int, seed: int = 0) -> Spans:
    candidates = WordUnits().candidates(sequences)
    return sampler.draw(candidates, sequences, budget_tokens, np.random.default_rng(seed))


def two_token_words(word_count: int) -> Sequences:
    return group([5, 6] * word_count, flags=[[START, END] * word_count])


def test_spans_are_almost_four_words_long_on_average() -> None:
    sequences = two_token_words(80_000)
    words = []
    for seed in range(30):
        # so little of the text is masked that spans hardly ever meet, and few are the last, which is cut
        words += (draw(WordSpanSampler(), sequences, 2000, seed).lengths / 2).tolist()
    assert abs(np.mean(words) - 3.80) < 0.05
    assert set(words) >= set(range(1, 11))


def test_every_token_is_masked_about_as_often_as_any_other() -> None:
    counts = np.zeros(60)  # f64 [T]
    for seed in range(1000):
        spans = draw(WordSpanSampler(max_span_words=1), group([5] * 60), 9, seed)
        counts[spans.starts] += 1
    assert (np.abs(counts - 150) < 5 * np.sqrt(150)).all()


def test_only_the_last_span_is_cut_and_all_others_are_whole_words_in_a_row() -> None:
    rng = np.random.default_rng(2)
    for seed in range(60):
        sequences = random_group(rng, sequence_count=4, max_tokens=40, vocabulary=8)
        words = plain_words(sequences)
        budget = int(sum(length for _, length in words) * 0.4)
        spans = pairs(draw(WordSpanSampler(), sequences, budget, seed))
        assert sum(length for _, length in spans) == budget
        runs = [
            {(run[i][0], sum(run[j]) - run[i][0]) for i in range(len(run)) for j in range(i, min(i + 10, len(run)))}
            for run in plain_neighbors(sequences)
        ]
        whole = set().union(*runs)
        cut = [span for span in spans if span not in whole]
        assert len(cut) <= 1
        assert all(start in {word for word, _ in words} for start, _ in cut)
        assert all(SPECIAL_ID not in sequences.token_ids[start : start + length] for start, length in spans)
        assert all(before[0] + before[1] <= start for before, (start, _) in itertools.pairwise(spans))
