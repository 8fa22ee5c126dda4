"""The order of an epoch without a list of it: a permutation that is computed for the places that are asked for.

Shapes: p places.
"""

from __future__ import annotations

import numpy as np

from npm.corpus.sentence_pairs import mixed_bits

ROUNDS = 6


class EpochOrder:
    """A pseudo-random permutation of 0 … count − 1: a Feistel network over the next power of four, walked until inside.

    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", §4.) It takes no memory, whatever `count` is.
    """

    def __init__(self, count: int, *, seed: int, epoch: int) -> None:
        self.count = count
        self._half_bits = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        sequence = np.random.SeedSequence(seed, spawn_key=(epoch,))
        self._keys = sequence.generate_state(ROUNDS, np.uint64)  # u64 [rounds]

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """What stands at some places i64 [p] of the order, i64 [p]."""
        assert len(places) == 0 or (places.min() >= 0 and places.max() < self.count), f"places outside of {self.count}"
        numbers = self._permuted(places.astype(np.uint64))  # u64 [p]
        while (outside := numbers >= self.count).any():
            numbers[outside] = self._permuted(numbers[outside])
        return numbers.astype(np.int64)  # i64 [p]

    def _permuted(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half_bits, numbers & self._mask  # u64 [p] each
        for key in self._keys:
            left, right = right, left ^ (mixed_bits(right ^ key) & self._mask)
        return np.asarray((left << self._half_bits) | right)
