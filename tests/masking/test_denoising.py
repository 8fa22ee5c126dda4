"""Mixtures of denoisers: settings, shares and masks of each; spans as sentinels against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npm.core.errors import EncoderError, SettingError
from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.batches import DenoisingBatch
from npm.masking.denoising import (
    NO_TARGET,
    UL2,
    DenoiserFamily,
    DenoiserSettings,
    DenoisingSettings,
    MixtureMasker,
    MixtureName,
    Sentinels,
    build_denoising_views,
)
from npm.masking.units import has_flag, sequence_numbers
from tests.helpers.groups import group, pairs, random_group, restored

SENTINELS = Sentinels(tuple(range(9000, 9100)), end_id=8000, pad_id=8001)


def with_modes(settings: DenoisingSettings) -> Sentinels:
    ids = {"[R]": 8002, "[S]": 8003, "[X]": 8004}
    return replace(SENTINELS, mode_ids=tuple(ids[mode] for mode in settings.modes()))


def test_the_default_is_ul2_with_seven_denoisers() -> None:
    settings = DenoisingSettings()
    found = {denoiser.name: denoiser.weight for denoiser in settings.denoisers()}
    others = ("R-3-0.15", "R-8-0.15", "X-3-0.5", "X-8-0.5", "X-64-0.15", "X-64-0.5")
    assert found == pytest.approx(dict.fromkeys(others, 0.8 / 6) | {"S-0.25": 0.2})
    assert settings.modes() == ("[R]", "[R]", "[X]", "[X]", "[X]", "[X]", "[S]")
    assert "".join(settings.families()) == "RRXXXXS"


@pytest.mark.parametrize(("preset", "families"), [("r", "RR"), ("s", "S"), ("x", "XXXX"), ("ul2r", "RXXS")])
def test_presets_choose_denoisers(preset: str, families: str) -> None:
    assert "".join(DenoisingSettings(preset=MixtureName[preset]).families()) == families


def test_ul2r_draws_half_s_and_a_quarter_of_each_other() -> None:
    weights = dict.fromkeys("RSX", 0.0)
    for denoiser in DenoisingSettings(preset=MixtureName.ul2r).denoisers():
        weights[denoiser.family.value] += denoiser.weight
    assert weights == {"R": 0.25, "S": 0.5, "X": 0.25}


def test_a_mixture_of_ones_own_takes_the_place_of_the_preset() -> None:
    own = DenoiserSettings(family=DenoiserFamily.X, rate=0.4, mean_span_tokens=5)
    settings = DenoisingSettings(mixture=[own])
    assert settings.denoisers() == (own,)
    assert settings.modes() == ("[X]",)


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(SettingError, match="weight above 0"):
        DenoisingSettings(mixture=[DenoiserSettings(weight=0.0)])


def test_denoisers_are_drawn_by_weight() -> None:
    denoisers = UL2
    sequences = group(*[[1, 2, 3]] * 6000)
    numbers = MixtureMasker(denoisers).select(sequences, np.random.default_rng(0))[1]
    counts = np.bincount(numbers, minlength=7)
    expected = np.array([denoiser.weight for denoiser in denoisers])
    assert (np.abs(counts - 6000 * expected) < 4.5 * np.sqrt(6000 * expected * (1 - expected))).all()


def test_each_sequence_is_masked_at_the_rate_and_with_the_spans_of_its_denoiser() -> None:
    denoisers = UL2
    sequences = group(*[list(range(2, 202))] * 300)
    spans, numbers = MixtureMasker(denoisers).select(sequences, np.random.default_rng(1))
    owners = sequence_numbers(sequences)[spans.starts]
    for number, drawn in enumerate(numbers.tolist()):
        denoiser = denoisers[drawn]
        lengths = spans.lengths[owners == number]
        if denoiser.family is DenoiserFamily.S:
            assert len(lengths) == 1
            assert spans.starts[owners == number][0] + lengths[0] == 200 * (number + 1)
        else:
            assert lengths.sum() == round(denoiser.rate * 200)
            runs = max(1, round(lengths.sum() / denoiser.mean_span_tokens))
            assert len(lengths) in (runs, runs + 1)
        assert len(lengths) <= denoiser.most_spans(200)


def test_special_tokens_are_never_masked_and_something_of_each_text_stays() -> None:
    rng = np.random.default_rng(2)
    for seed in range(40):
        sequences = random_group(rng, sequence_count=8, max_tokens=30, vocabulary=6)
        spans, _ = MixtureMasker(UL2).select(sequences, np.random.default_rng(seed))
        masked = np.zeros(len(sequences.token_ids), dtype=bool)
        for start, length in pairs(spans):
            masked[start : start + length] = True
        special = has_flag(sequences.flags, TokenFlag.SPECIAL)
        assert not (masked & special).any()
        ordinary = np.bincount(sequence_numbers(sequences)[~special], minlength=8)
        gone = np.bincount(sequence_numbers(sequences)[masked], minlength=8)
        assert (gone[ordinary >= 2] >= 1).all()
        assert (gone < np.maximum(ordinary, 1)).all()


def test_views_corrupt_each_group_by_its_own_generator_and_announce_the_denoiser() -> None:
    settings = DenoisingSettings()
    rng = np.random.default_rng(3)
    groups = [random_group(rng, sequence_count=count, max_tokens=40, vocabulary=900) for count in (3, 5)]
    views = build_denoising_views(settings, with_modes(settings), max_text_tokens=40)

    def seeded() -> list[np.random.Generator]:
        return [np.random.default_rng(seed) for seed in (7, 8)]

    both = views.view(groups, seeded())
    alone = views.view(groups[1:], seeded()[1:])
    assert both.denoisers[3:].tolist() == alone.denoisers.tolist()
    assert both.token_count == sum(len(each.token_ids) for each in groups)
    ids = {"[R]": 8002, "[S]": 8003, "[X]": 8004}
    assert both.input_ids[:, 0].tolist() == [ids[settings.modes()[number]] for number in both.denoisers]
    texts = [text.tolist() for each in groups for text in np.split(each.token_ids, each.offsets[1:-1])]
    assert restored(views.sentinels, both) == texts
    assert restored(views.sentinels, alone) == texts[3:]


@pytest.mark.parametrize("tokens", [1, 2, 5, 17, 60, 128])
def test_no_block_has_more_spans_than_is_said_beforehand(tokens: int) -> None:
    sequences = group(*[list(range(2, tokens + 2))] * 40)
    for denoiser in (*UL2, DenoiserSettings(rate=0.9, mean_span_tokens=1)):
        spans = MixtureMasker((replace(denoiser, weight=1.0),)).select(sequences, np.random.default_rng(0))[0]
        most = np.bincount(spans.starts // tokens, minlength=1).max()
        assert most <= denoiser.most_spans(tokens)
        if denoiser.mean_span_tokens == 3 and tokens >= 17:
            assert most == denoiser.most_spans(tokens)


def test_too_few_sentinels_for_the_longest_block_are_refused_beforehand() -> None:
    settings = DenoisingSettings()
    few = replace(with_modes(settings), sentinel_ids=tuple(range(9000, 9022)))
    build_denoising_views(settings, few, max_text_tokens=126)  # 63 tokens in 21 spans, one of them cut in two
    with pytest.raises(EncoderError, match="too few sentinels: 22 of 86"):
        build_denoising_views(settings, few, max_text_tokens=512)


def test_a_denoiser_that_is_never_drawn_needs_no_sentinels() -> None:
    mixture = [DenoiserSettings(rate=0.5, weight=0.0), DenoiserSettings(family=DenoiserFamily.S, rate=0.25)]
    build_denoising_views(
        DenoisingSettings(mixture=mixture, mode_tokens=False),
        replace(SENTINELS, sentinel_ids=(9000,)),
        max_text_tokens=512,
    )


def test_a_text_of_one_token_is_shown_as_it_is() -> None:
    settings = DenoisingSettings(mode_tokens=False)
    views = build_denoising_views(settings, SENTINELS, max_text_tokens=4)
    lone: Sequences = group([5], [])
    batch = views.view([lone], [np.random.default_rng(0)])
    assert batch.input_ids.tolist() == [[5, 8000], [8000, 8001]]
    assert batch.target_ids.tolist() == [[8000], [8000]]


END, PAD, FIRST_MODE, SECOND_MODE = 1000, 1001, 1002, 1003
MODE_SENTINELS = Sentinels(tuple(range(2000, 2100)), end_id=END, pad_id=PAD, mode_ids=(FIRST_MODE, SECOND_MODE))


def plain_rows(
    sequences: Sequences, spans: Spans, denoisers: list[int], sentinels: Sentinels
) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of each sequence, token by token."""
    starts = dict(pairs(spans))
    rows = []
    for number in range(len(sequences)):
        inputs = [sentinels.mode_ids[denoisers[number]]] if sentinels.mode_ids else []
        targets: list[int] = []
        unused = list(sentinels.sentinel_ids)
        position, end = int(sequences.offsets[number]), int(sequences.offsets[number + 1])
        while position < end:
            length = starts.get(position, 0)
            if length:
                inputs.append(unused[0])
                targets += [unused.pop(0), *sequences.token_ids[position : position + length].tolist()]
            else:
                inputs.append(int(sequences.token_ids[position]))
            position += length or 1
        rows.append(([*inputs, sentinels.end_id], [*targets, sentinels.end_id]))
    return rows


def unpadded(batch: DenoisingBatch) -> list[tuple[list[int], list[int]]]:
    return [
        (inputs[attention.bool()].tolist(), targets[targets != NO_TARGET].tolist())
        for inputs, attention, targets in zip(batch.input_ids, batch.attention_mask, batch.target_ids, strict=True)
    ]


def random_masked(rng: np.random.Generator) -> tuple[Sequences, Spans, np.ndarray]:
    sequences = random_group(rng, sequence_count=7, max_tokens=50, vocabulary=900)
    denoiser = DenoiserSettings(rate=float(rng.uniform(0.05, 0.95)), mean_span_tokens=float(rng.uniform(1, 9)))
    spans, _ = MixtureMasker((denoiser,)).select(sequences, rng)
    return sequences, spans, rng.integers(0, 2, 7)


def test_a_worked_example() -> None:
    sequences = group([10, 11, 12, 13, 14, 15, 16], [20, 21, 22])
    spans = Spans(np.array([1, 5, 9]), np.array([2, 1, 1]))
    batch = MODE_SENTINELS.render(sequences, spans, np.array([0, 1]))
    assert batch.input_ids.tolist() == [
        [FIRST_MODE, 10, 2000, 13, 14, 2001, 16, END],
        [SECOND_MODE, 20, 21, 2000, END, PAD, PAD, PAD],
    ]
    assert batch.attention_mask.tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert batch.target_ids.tolist() == [
        [2000, 11, 12, 2001, 15, END],
        [2000, 22, END, NO_TARGET, NO_TARGET, NO_TARGET],
    ]
    assert batch.denoisers.tolist() == [0, 1]
    assert batch.token_count == 10


@pytest.mark.parametrize("with_modes", [True, False])
def test_rendering_equals_a_plain_loop_and_can_be_inverted(with_modes: bool) -> None:
    rng = np.random.default_rng(0)
    sentinels = MODE_SENTINELS if with_modes else replace(MODE_SENTINELS, mode_ids=())
    for _ in range(40):
        sequences, spans, denoisers = random_masked(rng)
        batch = sentinels.render(sequences, spans, denoisers)
        assert unpadded(batch) == plain_rows(sequences, spans, denoisers.tolist(), sentinels)
        texts = np.split(sequences.token_ids, sequences.offsets[1:-1])
        assert restored(sentinels, batch) == [text.tolist() for text in texts]


def test_more_spans_than_sentinels_are_refused() -> None:
    few = replace(MODE_SENTINELS, sentinel_ids=(2000, 2001))
    sequences = group([10, 11, 12, 13, 14], [20, 21])
    few.render(sequences, Spans(np.array([0, 2, 5]), np.array([1, 1, 1])), np.array([0, 0]))
    with pytest.raises(EncoderError, match="too few sentinels: 2 of 3"):
        few.render(sequences, Spans(np.array([0, 2, 4]), np.array([1, 1, 1])), np.array([0, 0]))
