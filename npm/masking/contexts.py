"""Which other sequence of its group a masked copy may read, so that queries learn to use a passage beside them.

At retrieval a question is read together with a passage; in training the passage is another sequence of the group
that holds what was masked (the recurring spans of Ram et al. 2021, arXiv 2101.00438, across sequences).

Shapes: T tokens of all sequences in a row, S sequences, n spans, u different tokens of the group.
"""

from __future__ import annotations

import numpy as np

from npm.types import Sequences, Spans, TokenFlag

NO_CONTEXT = -1
_UNTELLING = np.uint8(TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL)


def draw_contexts(
    sequences: Sequences, spans: Spans, *, context_fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """For each sequence the number of the sequence it reads, i64 [S]; -1 for none.

    Each sequence reads with probability `context_fraction`, and then the sequence that shares most with its masked
    tokens: every masked token that is no stop-word or punctuation counts one over the number of sequences it is in.
    A sequence none of whose masked tokens stands elsewhere reads nothing.
    """
    count = len(sequences)
    contexts = np.full(count, NO_CONTEXT, dtype=np.int64)  # i64 [S]
    reads = rng.random(count) < context_fraction  # bool [S]
    if not reads.any() or not len(spans):
        return contexts
    numbers = np.repeat(np.arange(count), np.diff(sequences.offsets))  # i64 [T]
    _, tokens = np.unique(sequences.token_ids, return_inverse=True)  # i64 [T], in [0, u)
    present = np.zeros((count, int(tokens.max()) + 1), dtype=np.float32)  # f32 [S, u]
    present[numbers, tokens] = 1.0
    masked = np.zeros_like(present)  # f32 [S, u]
    first = np.repeat(spans.starts - np.append(0, np.cumsum(spans.lengths)[:-1]), spans.lengths)  # i64 [masked tokens]
    positions = first + np.arange(len(first))  # i64 [masked tokens]
    telling = positions[(sequences.flags[positions] & _UNTELLING) == 0]  # i64 [telling tokens]
    masked[numbers[telling], tokens[telling]] = 1.0
    shared = (masked / present.sum(0)) @ present.T  # f32 [S, S]
    np.fill_diagonal(shared, 0.0)
    best = shared.argmax(1)  # i64 [S]
    found = reads & (shared.max(1) > 0)  # bool [S]
    contexts[found] = best[found]
    return contexts
