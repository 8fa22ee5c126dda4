"""Which masked copies are questions, what they keep and what they read, by hand and against plain loops."""

from __future__ import annotations

import itertools

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

START = WORD | int(TokenFlag.SENTENCE_START)
UNTELLING = TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL
Chosen = tuple[int, int, int]
"""The sequence that is read, and the positions where what is kept begins and stops."""


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


def plain_sentences(sequences: Sequences, number: int) -> list[tuple[int, int]]:
    """The sentences of a sequence as half-open ranges of positions."""
    first, stop = int(sequences.offsets[number]), int(sequences.offsets[number + 1])
    inner = [at for at in range(first + 1, stop) if sequences.flags[at] & TokenFlag.SENTENCE_START]
    edges = [first, *inner, stop]
    return list(itertools.pairwise(edges)) if stop > first else []


def plain_contexts(
    sequences: Sequences, spans: Spans, *, context_fraction: float, question: QuestionForm, rng: np.random.Generator
) -> list[Chosen]:
    """For every sequence what it reads and keeps, with the draws of `draw_contexts` in the same order."""
    count = len(sequences)
    edges = [(int(sequences.offsets[number]), int(sequences.offsets[number + 1])) for number in range(count)]
    tokens_of = [set(sequences.token_ids[first:stop].tolist()) for first, stop in edges]
    is_question = (rng.random(count) < context_fraction).tolist()
    masked = {
        at
        for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
        for at in range(start, start + length)
        if not sequences.flags[at] & UNTELLING
    }
    chosen: list[Chosen] = []
    for number in range(count):
        whole = (NO_CONTEXT, *edges[number])
        sentences = [pair for pair in plain_sentences(sequences, number) if masked & set(range(*pair))]
        if not is_question[number] or not sentences:
            chosen.append(whole)
            continue
        first, stop = edges[number]
        first += sum(sequences.flags[at] & TokenFlag.TITLE == TokenFlag.TITLE for at in range(first, stop))
        if question is QuestionForm.sentence or (question is QuestionForm.mixed and rng.integers(2)):
            first, stop = sentences[int(rng.integers(len(sentences)))]
        shared = [0.0] * count
        for token in sorted({int(sequences.token_ids[at]) for at in masked & set(range(first, stop))}):
            holders = [other for other in range(count) if token in tokens_of[other]]
            for other in holders:
                shared[other] += (other != number) / len(holders)
        best = max(shared)
        # sums in another order differ in their last bits: what ties with the best to within them is no mistake
        ties = [other for other in range(count) if best - shared[other] < 1e-6]
        chosen.append((ties[0], first, stop) if best > 0 else whole)
    return chosen


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
