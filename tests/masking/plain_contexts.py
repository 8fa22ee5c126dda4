"""Which copies are questions and what they read, one sequence, sentence and token at a time."""

from __future__ import annotations

import itertools

import numpy as np

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.masker import NO_CONTEXT, QuestionForm

UNTELLING = TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL
Chosen = tuple[int, int, int]
"""The sequence that is read, and the positions where what is kept begins and stops."""


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
