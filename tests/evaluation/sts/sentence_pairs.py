"""Sentence pairs for tests, and an encoder that is a table of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from npm.evaluation.sts.correlation import Encode, SentencePairs

ANGLES = {"a": 0.0, "b": 0.3, "c": 0.7, "d": 1.2, "e": 1.9, "f": 2.8}
"""Sentences as directions in the plane, in radians."""


def pairs_of(
    rows: Sequence[tuple[str, str, float]], *, name: str = "STS-B", split: str = "test", subsets: Sequence[str] = ()
) -> SentencePairs:
    """Pairs from rows of two sentences and a gold score; `subsets` names the subset of each row."""
    names = tuple(dict.fromkeys(subsets))
    return SentencePairs(
        name=name,
        split=split,
        first=[row[0] for row in rows],
        second=[row[1] for row in rows],
        gold=np.array([row[2] for row in rows], dtype=np.float64),
        subsets=names,
        subset_numbers=np.array([names.index(each) for each in subsets] or [0] * len(rows), dtype=np.int64),
    )


def in_the_plane(sentences: list[str]) -> np.ndarray:
    """The vectors of `ANGLES`, of different lengths."""
    rows = [(1 + ANGLES[each]) * np.array([np.cos(ANGLES[each]), np.sin(ANGLES[each])]) for each in sentences]
    return np.array(rows, dtype=np.float32)


def random_vectors(seed: int, *, dimensions: int = 5) -> Encode:
    """An encoder that gives each sentence a random vector, always the same one."""

    def encode(sentences: list[str]) -> np.ndarray:
        rows = [np.random.default_rng([seed, *each.encode()]).normal(size=dimensions) for each in sentences]
        return np.array(rows, dtype=np.float32)

    return encode


def write_lines(file: Path, *lines: str) -> Path:
    """A text file of these lines, in a folder that is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file
