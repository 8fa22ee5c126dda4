"""Joint filling of all masks of a text: phrases that fit their masks and occur in the same blocks.

A filling of the masks 1 … m with the phrases v₁ … v_m is scored by

    Π_i score(v_i) · Π_{i<j} c(v_i, v_j),    c(v_i, v_j) = (n_ij + ε) / (n_i n_j / N + ε),

score(v_i) as the mask's own answer has it, n_i how many of the N live blocks hold v_i, n_ij how many hold both; c is
how much more often they occur together than they would by chance (the association ratio of Church and Hanks 1990
without its logarithm), smoothed. The best fillings are searched from left
to right with a beam, and their scores are divided by the sum over those in it at the end.

Shapes: m masks of one text, a and b phrases of two of them, w beam width, n blocks that hold a phrase.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, Filling, Phrase
from npm.corpus.text import content_words, words_of

if TYPE_CHECKING:
    from npm.retrieval.settings import FillSettings


def joint_fillings(
    text: str,
    masks: Sequence[Sequence[Phrase]],
    blocks_holding: Callable[[str], np.ndarray | None],
    *,
    block_count: int,
    settings: FillSettings,
) -> tuple[tuple[Filling, ...], tuple[str, ...]]:
    """The best `k` fillings of `text` with the `beam_width` best phrases of each of its masks, or a reason for none.

    `blocks_holding` gives the live blocks i64 [n] of a phrase, of all `block_count`; None where they cannot be counted,
    then c = 1 with all others. With `scoring.exclude_query_phrases` there is no filling in which a phrase adds nothing
    new to the text and another phrase, as no phrase of a mask's own answer does to the text.
    """
    width = settings.beam_width
    phrases = [[phrase.phrase for phrase in own[:width]] for own in masks]
    with np.errstate(divide="ignore"):  # an underflowed score belongs to no filling
        own_logs = [np.log([phrase.score for phrase in own[:width]]) for own in masks]  # f64 [a] each
    held = {phrase: blocks_holding(phrase) for phrase in itertools.chain(*phrases)}
    blocks = {phrase: None if own is None else frozenset(own.tolist()) for phrase, own in held.items()}
    pair_logs: dict[tuple[int, int], np.ndarray] = {}
    for first, second in itertools.combinations(range(len(masks)), 2):
        pair = [[blocks[phrase] for phrase in phrases[mask]] for mask in (first, second)]
        logs = np.log(associations(*pair, total=block_count, smoothing=settings.cooccurrence_smoothing))  # f64 [a, b]
        if settings.scoring.exclude_query_phrases:
            logs[repetitions(text, phrases[first], phrases[second])] = -np.inf
        pair_logs[first, second] = logs
    chosen, totals = beam_search(own_logs, pair_logs, width=width)
    if not len(totals):
        empty = ", ".join(str(number) for number, own in enumerate(masks, start=1) if not own)
        why = f"no phrase for mask {empty}" if empty else "the phrases for its masks repeat each other"
        return (), (f"the text has no filling: {why}",)
    shares = np.exp(totals - totals.max())  # f64 [w]
    best = zip(chosen.tolist(), (shares / shares.sum()).tolist(), strict=True)
    fillings = (
        Filling(tuple(own[number] for own, number in zip(phrases, numbers, strict=True)), share)
        for numbers, share in best
    )
    return tuple(itertools.islice(fillings, settings.k)), ()


def associations(
    first: Sequence[frozenset[int] | None], second: Sequence[frozenset[int] | None], *, total: int, smoothing: float
) -> np.ndarray:
    """c f64 [a, b] of phrases that occur in some of the `total` blocks; 1 for None.

    >>> few, some, many = frozenset({3, 4}), frozenset({4, 5, 6, 7}), frozenset({1, 4, 5, 6, 7})
    >>> associations([few, some, None], [many], total=10, smoothing=0.5).tolist()
    [[1.0], [1.8], [1.0]]
    """
    ratios = np.ones((len(first), len(second)))  # f64 [a, b]
    for (row, one), (column, other) in itertools.product(enumerate(first), enumerate(second)):
        if one is not None and other is not None:
            expected = len(one) * len(other) / total
            ratios[row, column] = (len(one & other) + smoothing) / (expected + smoothing)
    return ratios


def repetitions(text: str, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Mask of the pairs of phrases of which one adds nothing new to the text and the other: bool [a, b].

    >>> repetitions("<mask> wrote of the house of <mask>.", ["Ann", "Ann Oak"], ["Ann", "the house of Elm"]).tolist()
    [[True, False], [True, False]]
    >>> repetitions("<mask> wrote of <mask>.", ["Ann", "Elm"], ["Ann Oak"]).tolist()
    [[True], [False]]
    """
    asked = frozenset(words_of(text.replace(MASK_TEXT, " ")))
    words = [[frozenset(words_of(phrase)) for phrase in each] for each in (first, second)]
    new = [[frozenset(content_words(phrase)) - asked for phrase in each] for each in (first, second)]
    says_new_first = np.array([[not own <= other for other in words[1]] for own in new[0]], dtype=bool)  # [a, b]
    says_new_second = np.array([[not own <= other for own in new[1]] for other in words[0]], dtype=bool)  # [a, b]
    repeated: np.ndarray = ~(says_new_first & says_new_second).reshape(len(first), len(second))
    return repeated


def beam_search(
    own_logs: Sequence[np.ndarray], pair_logs: dict[tuple[int, int], np.ndarray], *, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best choices of one phrase per mask, best first: their indices i64 [w, m], and their summed logs f64 [w].

    `own_logs` f64 [a] are of each mask's phrases, `pair_logs[i, j]` f64 [a, b] of those of masks i < j; -inf excludes
    a choice. From left to right the `width` best beginnings are kept, ties go to the better phrases further left.
    """
    chosen, totals = np.zeros((1, 0), dtype=np.int64), np.zeros(1)  # i64 [w, 0], f64 [w]
    for mask, own in enumerate(own_logs):
        grown = totals[:, None] + own  # f64 [w, a]
        for earlier in range(mask):
            grown = grown + pair_logs[earlier, mask][chosen[:, earlier]]
        logs = grown.ravel()  # f64 [w * a]
        best = np.argsort(-logs, kind="stable")[:width]  # i64 [at most w]
        best = best[logs[best] > -np.inf]
        beginnings, numbers = np.divmod(best, max(1, len(own)))  # i64 [at most w] each
        chosen, totals = np.column_stack([chosen[beginnings], numbers]), logs[best]
    return chosen, totals
