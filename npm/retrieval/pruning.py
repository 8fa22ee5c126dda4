"""Which tokens have a vector: by what they are in their word, and by how often they stand in the corpus.

Shapes: T tokens.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.types import TokenFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npm.corpus.store import BlockStore

TOKENS_AT_ONCE = 1 << 20
_FLAG_VALUES = 256


class PruningRule(Enum):
    """Which tokens have a vector, and so may stand at the start or the end of a phrase; special tokens never do."""

    all = "all"
    word_boundaries = "word_boundaries"
    without_punctuation = "without_punctuation"
    without_stopwords = "without_stopwords"


def kept_tokens(
    flags: np.ndarray,
    rule: PruningRule,
    token_ids: np.ndarray | None = None,
    dropped: np.ndarray | None = None,
) -> np.ndarray:
    """Whether each token has a vector, bool [T]: by `rule` from its flags u8 [T], and not if its id is a dropped one.

    `token_ids` [T] are needed only with `dropped` ids [n].

    >>> import numpy as np
    >>> from npm.types import TokenFlag as F
    >>> flags = np.array([F.WORD_START | F.WORD_END, F.WORD_START | F.WORD_END | F.STOPWORD, F.SPECIAL, 0], np.uint8)
    >>> kept_tokens(flags, PruningRule.without_stopwords).tolist()
    [True, False, False, False]
    >>> kept_tokens(flags, PruningRule.all, np.array([7, 7, 9, 8]), np.array([7])).tolist()
    [False, False, False, True]
    """
    kept = _kept_by_rule(flags, rule)  # bool [T]
    if dropped is not None and len(dropped):
        if token_ids is None:
            raise ValueError("dropped token ids need the ids of the tokens")
        kept &= ~np.isin(token_ids, dropped)
    return kept


def frequent_token_ids(store: BlockStore, max_token_share: float | None) -> np.ndarray:
    """The token ids, ascending i64, that each make up more than `max_token_share` of the store's tokens; None: none."""
    if max_token_share is None:
        return np.zeros(0, dtype=np.int64)
    counts = np.zeros(0, dtype=np.int64)  # i64 [largest id so far + 1]
    for token_ids, _ in _pieces(store):
        more = np.bincount(token_ids, minlength=len(counts))  # i64 [largest id so far + 1]
        more[: len(counts)] += counts
        counts = more
    return np.flatnonzero(counts > max_token_share * store.token_count)


def pruning_counts(store: BlockStore, rule: PruningRule, dropped: np.ndarray) -> dict[str, Any]:
    """The store's tokens, how many of them each rule alone would keep, and how many `rule` and `dropped` ids keep."""
    with_flags = np.zeros(_FLAG_VALUES, dtype=np.int64)  # i64 [256], tokens with exactly these flags
    left = np.zeros(_FLAG_VALUES, dtype=np.int64)  # i64 [256], of these not of a dropped id
    for token_ids, flags in _pieces(store):
        with_flags += np.bincount(flags, minlength=_FLAG_VALUES)
        spared = flags[~np.isin(token_ids, dropped)] if len(dropped) else flags  # u8 [tokens left]
        left += np.bincount(spared, minlength=_FLAG_VALUES)
    every_flag = np.arange(_FLAG_VALUES, dtype=np.uint8)  # u8 [256]
    return {
        "tokens": store.token_count,
        "kept_by_rule": {each.value: int(with_flags[_kept_by_rule(every_flag, each)].sum()) for each in PruningRule},
        "kept": int(left[_kept_by_rule(every_flag, rule)].sum()),
    }


def count_kept_tokens(store: BlockStore, rule: PruningRule) -> int:
    """How many tokens of the store `rule` alone would keep."""
    return int(pruning_counts(store, rule, np.zeros(0, dtype=np.int64))["kept"])


def _kept_by_rule(flags: np.ndarray, rule: PruningRule) -> np.ndarray:
    kept = (flags & TokenFlag.SPECIAL.value) == 0  # bool [T]
    if rule is PruningRule.all:
        return kept
    kept &= (flags & (TokenFlag.WORD_START | TokenFlag.WORD_END).value) != 0
    if rule in (PruningRule.without_punctuation, PruningRule.without_stopwords):
        kept &= (flags & TokenFlag.PUNCTUATION.value) == 0
    if rule is PruningRule.without_stopwords:
        kept &= (flags & TokenFlag.STOPWORD.value) == 0
    return kept


def _pieces(store: BlockStore) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids and flags [≤ TOKENS_AT_ONCE] of the whole store, in order."""
    for token_ids, flags in zip(store.token_ids.arrays, store.flags.arrays, strict=True):
        for start in range(0, len(token_ids), TOKENS_AT_ONCE):
            stop = start + TOKENS_AT_ONCE
            yield token_ids[start:stop], flags[start:stop]
