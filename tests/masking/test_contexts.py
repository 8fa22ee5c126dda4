"""Which masked copies are questions, what they keep, and what they read."""

from __future__ import annotations

import numpy as np
import pytest

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.masker import (
    NO_CONTEXT,
    Contexts,
    MaskingSettings,
    QuestionForm,
    build_masker,
    draw_contexts,
    mask_rng,
    merge_contexts,
    no_contexts,
    spans_kept,
)
from npm.masking.rendering import merge_groups
from tests.helpers.groups import WORD, group, pairs, random_group, spans_of
from tests.masking.plain_contexts import plain_contexts

START = WORD | int(TokenFlag.SENTENCE_START)


def rows(contexts: Contexts) -> list[tuple[int, int, int]]:
    return list(zip(contexts.numbers.tolist(), contexts.starts.tolist(), contexts.stops.tolist(), strict=True))


def drawn(
    sequences: Sequences,
    spans: Spans,
    fraction: float = 1.0,
    seed: int = 0,
    question: QuestionForm = QuestionForm.sentence,
) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    return rows(draw_contexts(sequences, spans, context_fraction=fraction, question=question, rng=rng))


def random_masked_group(seed: int) -> tuple[Sequences, Spans]:
    rng = np.random.default_rng(seed)
    sequences = random_group(rng, sequence_count=7, max_tokens=25, vocabulary=30)
    sequences.flags[rng.random(len(sequences.flags)) < 0.15] |= np.uint8(TokenFlag.SENTENCE_START)
    spans = build_masker(MaskingSettings(min_masked_fraction=0.0)).select(sequences, mask_rng(seed, 0, 0))
    assert spans is not None
    return sequences, spans


def test_a_question_is_the_sentence_with_the_mask_and_reads_the_sequence_that_holds_most_of_it() -> None:
    flags = [[START, WORD, START, WORD, WORD, START], [START] * 3, [START] * 3]
    sequences = group([1, 2, 3, 4, 5, 6], [4, 8, 8], [5, 4, 9], flags=flags)
    # 4 is in all three and counts 1/3, 5 is in two and counts 1/2: the second shares 1/3, the third 5/6
    assert drawn(sequences, spans_of((3, 2))) == [(2, 2, 5), (NO_CONTEXT, 6, 9), (NO_CONTEXT, 9, 12)]
    # with 4 alone both share 1/3, and the earlier one is read
    assert drawn(sequences, spans_of((3, 1)))[0] == (1, 2, 5)


@pytest.mark.parametrize("flag", [TokenFlag.STOPWORD, TokenFlag.PUNCTUATION, TokenFlag.SPECIAL])
def test_what_tells_nothing_makes_no_question(flag: TokenFlag) -> None:
    dull = WORD | int(flag)
    sequences = group([1, 2], [1, 3], flags=[[dull, WORD], [dull, WORD]])
    assert drawn(sequences, spans_of((0, 1), (2, 1))) == rows(no_contexts(sequences))


def test_a_sequence_whose_masked_tokens_stand_nowhere_else_stays_whole() -> None:
    sequences = group([1, 1, 2], [3, 4], [])
    assert drawn(sequences, spans_of((0, 2), (3, 1))) == [(NO_CONTEXT, 0, 3), (NO_CONTEXT, 3, 5), (NO_CONTEXT, 5, 5)]


@pytest.mark.parametrize("question", list(QuestionForm))
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_every_choice_equals_that_of_plain_loops(fraction: float, question: QuestionForm) -> None:
    for seed in range(30):
        sequences, spans = random_masked_group(seed)
        rng = np.random.default_rng(seed)
        expected = plain_contexts(sequences, spans, context_fraction=fraction, question=question, rng=rng)
        assert drawn(sequences, spans, fraction, seed, question) == expected


def test_a_question_has_no_title_and_a_title_is_no_reason_to_read_a_sequence() -> None:
    title = int(TokenFlag.TITLE)
    flags = [[title, START, WORD, START], [title, START, START], [START, START]]
    sequences = group([7, 1, 2, 3], [2, 8, 9], [2, 5], flags=flags)
    spans = spans_of((2, 1))  # the token 2, which is the title of the second sequence and in the text of the third
    assert drawn(sequences, spans, question=QuestionForm.whole) == [(2, 1, 4), (NO_CONTEXT, 4, 7), (NO_CONTEXT, 7, 9)]
    assert drawn(sequences, spans, question=QuestionForm.sentence)[0] == (2, 1, 3)


def test_the_rest_of_a_sentence_behind_a_title_is_a_question_without_the_title() -> None:
    title = int(TokenFlag.TITLE)
    sequences = group([7, 1, 2, 3], [2, 8], flags=[[title, WORD, WORD, START], [START, WORD]])
    assert drawn(sequences, spans_of((2, 1)), question=QuestionForm.sentence)[0] == (1, 1, 3)


def test_without_spans_nothing_is_read() -> None:
    sequences = group([1, 2], [1, 2])
    assert drawn(sequences, spans_of()) == rows(no_contexts(sequences))
    assert drawn(group(), spans_of()) == []


def test_merged_contexts_point_to_the_same_tokens_in_the_merged_group() -> None:
    groups = [random_masked_group(seed) for seed in (4, 5, 6)]
    contexts = [
        draw_contexts(*masked, context_fraction=1.0, question=QuestionForm.sentence, rng=np.random.default_rng(number))
        for number, masked in enumerate(groups)
    ]
    together, _ = merge_groups(groups)
    merged = merge_contexts((sequences, own) for (sequences, _), own in zip(groups, contexts, strict=True))

    def texts(sequences: Sequences, chosen: Contexts) -> list[tuple[list[int], list[int]]]:
        return [
            (
                sequences.token_ids[start:stop].tolist(),
                sequences.token_ids[sequences.offsets[read] : sequences.offsets[read + 1]].tolist()
                if read >= 0
                else [],
            )
            for read, start, stop in rows(chosen)
        ]

    parts = [texts(sequences, own) for (sequences, _), own in zip(groups, contexts, strict=True)]
    assert texts(together, merged) == [pair for part in parts for pair in part]


def test_only_spans_that_lie_wholly_in_what_is_kept_are_kept() -> None:
    sequences = group([1, 2, 3, 4, 5], [6, 7])
    contexts = Contexts(np.array([1, NO_CONTEXT]), np.array([1, 5]), np.array([4, 7]))
    spans = spans_of((0, 1), (0, 2), (1, 3), (3, 2), (5, 2))
    assert pairs(spans_kept(spans, sequences, contexts)) == [(1, 3), (5, 2)]
    assert pairs(spans_kept(spans, sequences, no_contexts(sequences))) == pairs(spans)
