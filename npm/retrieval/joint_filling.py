"""All masks of a text filled together: phrases that fit their own masks and stand in the same blocks.

A filling of the masks 1 … m with the phrases v₁ … v_m is scored by

    Π_i score(v_i) · Π_{i<j} c(v_i, v_j),    c(v_i, v_j) = (n_ij + ε) / (n_i n_j / N + ε),

score(v_i) as the mask's own answer has it, n_i how many of the N live blocks hold v_i, n_ij how many hold both; c is
how much more often they stand together than they would by chance (the association ratio of Church and Hanks 1990
without its logarithm), smoothed. The best fillings are looked for from left
to right with a beam, and their scores are divided by the sum over those that are left in it at the end.

Shapes: m masks of one text, a and b phrases of two of them, w beam width, n blocks that hold a phrase.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, Filling, Phrase
from npm.corpus.text import words_of
from npm.retrieval.answers import content_words

if TYPE_CHECKING:
    from npm.retrieval.settings import FillSettings

BlocksHolding = Callable[[str], np.ndarray | None]
"""The live blocks i64 [n] that hold a phrase, ascending; None where that cannot be counted."""


def joint_fillings(
    text: str,
    masks: Sequence[Sequence[Phrase]],
    blocks_holding: BlocksHolding,
    *,
    block_count: int,
    settings: FillSettings,
) -> tuple[Filling, ...]:
    """The best `k` fillings of `text` with the `beam_width` best phrases of each of its masks, N `block_count`.

    With `scoring.exclude_query_phrases` none in which a phrase says nothing new beside the text and another phrase, as
    no mask's own answer does beside the text. A phrase that cannot be counted has c = 1 with all others.
    """
    width = settings.beam_width
    phrases = [[phrase.phrase for phrase in own[:width]] for own in masks]
    with np.errstate(divide="ignore"):  # a score that underflowed is that of no filling
        own_logs = [np.log([phrase.score for phrase in own[:width]]) for own in masks]  # f64 [a] each
    blocks = {phrase: blocks_holding(phrase) for phrase in itertools.chain(*phrases)}
    pair_logs: dict[tuple[int, int], np.ndarray] = {}
    for first, second in itertools.combinations(range(len(masks)), 2):
        held = [[blocks[phrase] for phrase in phrases[mask]] for mask in (first, second)]
        logs = np.log(associations(*held, block_count=block_count, smoothing=settings.cooccurrence_smoothing))  # [a, b]
        if settings.scoring.exclude_query_phrases:
            logs[repetitions(text, phrases[first], phrases[second])] = -np.inf
        pair_logs[first, second] = logs
    chosen, totals = beam_search(own_logs, pair_logs, width=width)
    shares = np.exp(totals - totals.max(initial=-np.inf))  # f64 [w]
    shares /= shares.sum()
    best = zip(chosen.tolist(), shares.tolist(), strict=True)
    return tuple(
        Filling(tuple(own[number] for own, number in zip(phrases, numbers, strict=True)), share)
        for numbers, share in itertools.islice(best, settings.k)
    )


def association(first: np.ndarray, second: np.ndarray, both: np.ndarray, *, total: int, smoothing: float) -> np.ndarray:
    """c = (n_ij + ε) / (n_i n_j / N + ε) of counts that broadcast, f64; `total` N, `smoothing` ε.

    >>> association(np.array([2, 4]), np.array(5), np.array([1, 4]), total=10, smoothing=0.5).tolist()
    [1.0, 1.8]
    """
    ratio: np.ndarray = (both + smoothing) / (first * second / total + smoothing)
    return ratio


def associations(
    first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None], *, block_count: int, smoothing: float
) -> np.ndarray:
    """c f64 [a, b] of the phrases that stand in the blocks `first` and `second`, ascending i64 [n] each; 1 for None."""
    held = [blocks for blocks in (*first, *second) if blocks is not None and len(blocks)]
    marked = np.zeros(1 + max((int(blocks[-1]) for blocks in held), default=0), dtype=bool)  # [blocks]
    ratios = np.ones((len(first), len(second)))  # f64 [a, b]
    for row, blocks in enumerate(first):
        if blocks is None:
            continue
        # one table of marks for all pairs of a phrase: sorting its blocks with those of each other one takes longer
        marked[blocks] = True
        for column, others in enumerate(second):
            if others is not None:
                counts = (np.array(count) for count in (len(blocks), len(others), np.count_nonzero(marked[others])))
                ratios[row, column] = association(*counts, total=block_count, smoothing=smoothing)
        marked[blocks] = False
    return ratios


def repetitions(text: str, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Whether one of two phrases says nothing new beside the text and the other, for all pairs: bool [a, b].

    >>> repetitions("<mask> wrote of the house of <mask>.", ["Ann", "Ann Oak"], ["Ann", "the house of Elm"]).tolist()
    [[True, False], [True, False]]
    >>> repetitions("<mask> wrote of <mask>.", ["Ann", "Elm"], ["Ann Oak"]).tolist()
    [[True], [False]]
    """
    asked = frozenset(words_of(text.replace(MASK_TEXT, " ")))
    words = [[frozenset(words_of(phrase)) for phrase in each] for each in (first, second)]
    new = [[frozenset(content_words(phrase)) - asked for phrase in each] for each in (first, second)]
    return np.array(
        [
            [new[0][row] <= words[1][column] or new[1][column] <= words[0][row] for column in range(len(second))]
            for row in range(len(first))
        ],
        dtype=bool,
    ).reshape(len(first), len(second))


def beam_search(
    own_logs: Sequence[np.ndarray], pair_logs: dict[tuple[int, int], np.ndarray], *, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best choices of one phrase a mask, best first: their numbers i64 [w, m], and the sums of their logs f64 [w].

    `own_logs` f64 [a] are of each mask's phrases, `pair_logs[i, j]` f64 [a, b] of those of masks i < j; what has -inf
    is no choice. From left to right the `width` best beginnings are kept, ties to the better phrases further left.
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


def texts_with_one_mask(text: str, phrases: Sequence[str]) -> list[str]:
    """`text` once for each of its masks, with the phrases of a filling in place of the other masks.

    >>> texts_with_one_mask("<mask> is in <mask>.", ["Oslo", "Norway"])
    ['<mask> is in Norway.', 'Oslo is in <mask>.']
    """
    pieces = text.split(MASK_TEXT)
    plain = [phrase.replace(MASK_TEXT, " ") for phrase in phrases]  # a corpus may hold any text
    texts = []
    for mask in range(len(plain)):
        filled = [*plain[:mask], MASK_TEXT, *plain[mask + 1 :], ""]
        texts.append("".join(itertools.chain(*zip(pieces, filled, strict=True))))
    return texts
