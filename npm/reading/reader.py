"""A reader: questions and passages in, the log-probability of each token to begin or to end the answer out.

Scores of a passage are normalized with "not here", the choice of a passage without an answer (Devlin et al. 2019,
arXiv 1810.04805, §4.3), so that phrases of different passages can be compared:

    score(k) = z_k − log Σ_{k' ∈ R ∪ {c}} exp z_k',

z being logits, R the tokens of the passage and c "not here".

Shapes: T tokens of a passage as a reader cuts it, n tokens as an index cuts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from npm.reading.confidence import Confidence


class PassageTokens(NamedTuple):
    """A passage as an index has cut it into tokens."""

    tokenizer_fingerprint: str
    ids: np.ndarray  # i64 [title + n], the title's first
    bounds: np.ndarray  # i64 [n, 2], first character of each token in the passage's text, and the end


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to read."""

    text: str
    title: str = ""
    tokens: PassageTokens | None = None
    """Its tokens where they are known: a reader with the same tokenizer does not cut it again."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of one passage for one mask of a question."""

    bounds: np.ndarray  # i64 [T, 2], first character of each token in the passage's text, and the end
    scores: np.ndarray  # f64 [2, T], log-probabilities of beginning and of ending the answer
    not_here: np.ndarray  # f64 [2], those of the passage having none
    unknown_share: float = 0.0
    """Share of the passage's tokens that the reader's tokenizer does not know."""

    def of_tokens(self, bounds: np.ndarray) -> np.ndarray:
        """The scores f64 [2, n] of tokens that were cut otherwise, with `bounds` i64 [n, 2].

        A start has the score of the token with its first character, an end that of the token with its last one; a token
        that was not read is as unlikely as the least likely one.
        """
        if len(self.bounds) == 0:
            return np.full((2, len(bounds)), -np.inf)
        starts = np.searchsorted(self.bounds[:, 0], bounds[:, 0], side="right") - 1  # i64 [n]
        ends = np.searchsorted(self.bounds[:, 1], bounds[:, 1], side="left")  # i64 [n]
        is_read = (starts >= 0) & (bounds[:, 1] <= self.bounds[-1, 1])  # bool [n]
        chosen = np.stack([starts, ends]).clip(0, len(self.bounds) - 1)  # i64 [2, n]
        found = np.take_along_axis(self.scores, chosen, axis=1)  # f64 [2, n]
        return np.where(is_read, found, self.scores.min(axis=1, keepdims=True))


class Reader(Protocol):
    """A model that reads."""

    name: str
    confidence: Confidence | None
    """Probability that its answers are right, where that was fitted."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that its scores depend on."""

    def read(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[list[TokenScores]]:
        """For each text with `<mask>` and passage the scores for each mask of the text."""


def normalized(logits: np.ndarray, not_here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-softmax of logits f64 [2, T] of tokens and f64 [2] of "not here", together.

    >>> scores, none = normalized(np.log([[1.0, 2.0], [3.0, 1.0]]), np.log([1.0, 4.0]))
    >>> np.exp(scores).round(6).tolist(), np.exp(none).round(6).tolist()
    ([[0.25, 0.5], [0.375, 0.125]], [0.25, 0.5])
    """
    every = np.concatenate([logits, not_here[:, None]], axis=1)  # f64 [2, T + 1]
    scores = every - np.logaddexp.reduce(every, axis=1, keepdims=True)  # f64 [2, T + 1]
    return scores[:, :-1], scores[:, -1]


def windows(token_count: int, size: int) -> list[slice]:
    """The windows of at most `size` tokens in which a passage is read, each half over the one before it.

    >>> windows(5, 4), windows(3, 4)
    ([slice(0, 4, None), slice(2, 5, None)], [slice(0, 3, None)])
    """
    starts = range(0, max(1, token_count - size + max(1, size // 2)), max(1, size // 2))
    return [slice(start, min(token_count, start + size)) for start in starts]


def merged(
    parts: Sequence[tuple[slice | np.ndarray, np.ndarray, np.ndarray]], token_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Logits f64 [2, T] and "not here" f64 [2] of a passage from those of its windows.

    Each has a slice, or an array, of the passage's tokens, their logits f64 [2, .] and those of "not here". A token has
    its best logit, and the passage has no answer only if none of its windows has one.
    """
    logits = np.full((2, token_count), -np.inf)
    for window, own, _ in parts:
        logits[:, window] = np.maximum(logits[:, window], own)
    return logits, np.min([none for *_, none in parts], axis=0)
