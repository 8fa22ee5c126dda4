"""Rendering with contexts: a question is its sentence, the suffix, and another sequence, clean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npm.core.types import TokenFlag
from npm.masking.masker import NO_CONTEXT, Contexts, QuestionForm, draw_contexts, no_contexts, spans_kept
from npm.masking.rendering import MaskRenderer, split_into_tokens
from tests.helpers.groups import group, queries, spans_of, unmasked
from tests.masking.test_contexts import random_masked_group, rows

MASK, PAD, CLS, SEP = 900, 901, 902, 903
PAIRS = MaskRenderer(mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP,))
SINGLE = MaskRenderer(masks_per_span=1, mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP,))
GROUP = group([1, 2, 3, 4, 5, 6], [4, 8, 9], [5, 4, 7])
SPANS = spans_of((0, 1), (3, 2), (8, 1))


def contexts_of(*chosen: tuple[int, int, int]) -> Contexts:
    table = np.array(chosen, dtype=np.int64)  # i64 [S, 3]
    return Contexts(table[:, 0], table[:, 1], table[:, 2])


QUESTION = contexts_of((2, 2, 6), (NO_CONTEXT, 6, 9), (NO_CONTEXT, 9, 12))
"""The first sequence is the question 3 4 5 6 and reads the third."""


def test_a_question_is_its_sentence_and_reads_a_clean_sequence_behind_the_suffix() -> None:
    batch = PAIRS.render(GROUP, SPANS, QUESTION)
    assert queries(batch) == [
        [CLS, 3, MASK, MASK, 6, SEP, 5, 4, 7, SEP],
        [CLS, 4, 8, MASK, MASK, SEP],
        [CLS, 5, 4, 7, SEP],
    ]
    assert batch.span_sequences.tolist() == [0, 1]
    assert (batch.start_slots.tolist(), batch.end_slots.tolist()) == ([2, 3], [3, 4])
    assert batch.span_token_ids.tolist() == [[4, 5], [9, -1]]


def test_the_title_of_what_is_read_is_shown_and_is_no_key() -> None:
    titled = replace(GROUP, flags=GROUP.flags.copy())
    titled.flags[9] = TokenFlag.TITLE
    read = PAIRS.render(titled, SPANS, QUESTION).read_tokens
    assert read is not None and read.nonzero().tolist() == [[0, 7], [0, 8]]
    plain = PAIRS.render(GROUP, SPANS, QUESTION).read_tokens
    assert plain is not None and plain.nonzero().tolist() == [[0, 6], [0, 7], [0, 8]]


@pytest.mark.parametrize(
    ("max_input_tokens", "read"), [(10, [5, 4, 7]), (9, [5, 4]), (8, [5]), (7, None), (6, None), (3, None)]
)
def test_what_is_read_is_cut_to_the_longest_input(max_input_tokens: int, read: list[int] | None) -> None:
    renderer = MaskRenderer(
        mask_id=MASK, pad_id=PAD, prefix_ids=(CLS,), suffix_ids=(SEP,), max_input_tokens=max_input_tokens
    )
    question = [CLS, 3, MASK, MASK, 6, SEP]
    assert queries(renderer.render(GROUP, SPANS, QUESTION))[0] == (
        question if read is None else [*question, *read, SEP]
    )


def test_without_questions_nothing_changes() -> None:
    for renderer in (PAIRS, SINGLE):
        for seed in range(5):
            sequences, spans = random_masked_group(seed)
            expected, batch = (
                renderer.render(sequences, spans),
                renderer.render(sequences, spans, no_contexts(sequences)),
            )
            for name in expected.__dataclass_fields__:
                assert np.array_equal(getattr(batch, name), getattr(expected, name)), name


@pytest.mark.parametrize("renderer", [PAIRS, SINGLE])
def test_masks_stand_at_the_slots_of_the_kept_spans_and_the_keys_are_as_ever(renderer: MaskRenderer) -> None:
    for seed in range(20):
        sequences, spans = random_masked_group(seed)
        question = QuestionForm.sentence if seed % 2 else QuestionForm.whole
        rng = np.random.default_rng(seed)
        contexts = draw_contexts(sequences, spans, context_fraction=0.7, question=question, rng=rng)
        batch = renderer.render(sequences, spans, contexts)
        plain = renderer.render(sequences, spans)
        assert batch.key_input_ids.equal(plain.key_input_ids)
        rendered = spans if renderer is PAIRS else split_into_tokens(spans)
        expected = spans_kept(rendered, sequences, contexts)
        assert len(batch.span_sequences) == len(expected)
        found = queries(batch)
        for number, row in enumerate(unmasked(batch)):
            read, start, stop = rows(contexts)[number]
            whole = sequences.token_ids[sequences.offsets[read] : sequences.offsets[read + 1]].tolist()
            behind = [*whole, SEP] if read != NO_CONTEXT else []
            assert row == [CLS, *sequences.token_ids[start:stop].tolist(), SEP, *behind]
        assert sum(row.count(MASK) for row in found) == len(expected) * (2 if renderer is PAIRS else 1)
