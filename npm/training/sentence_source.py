"""Sentences as training text: which pairs each rank sees at each micro-step, a pure function of seed and micro-step.

Shapes: N pairs of all ranks at a micro-step, n pairs of this rank, c columns of the table, L padded length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npm.corpus.sentence_pairs import PairTable
from npm.errors import CorpusError
from npm.masking.masker import mask_rng
from npm.masking.rendering import SENTENCES, VIEW_NUMBERS, ViewMaker, padded_rows
from npm.training.epoch_order import EpochOrder
from npm.types import SentenceBatch, View

DRAWS_PER_PAIR = 64
"""How many other pairs are looked at for each that cannot be used, before all of them are."""


class SentenceSource:
    """Pairs in an order drawn anew for every epoch, without pairs in one global batch that are each other's positives.

    Of two pairs of a batch none may hold, be it as its hard negative, a text that is the anchor or the positive of the
    other: that would be a wrong negative. The later of the two gives way to a pair drawn at random, so an epoch may
    leave out a pair and show another twice.
    """

    def __init__(
        self,
        table: PairTable,
        *,
        pairs_per_device_batch: int,
        prefix_ids: Sequence[int],
        suffix_ids: Sequence[int],
        pad_id: int,
        seed: int,
        makers: Mapping[str, ViewMaker] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`makers` makes further views of the same sentences, by name; they never touch what is contrasted.

        Raises CorpusError if the table does not suffice for one micro-step.
        """
        self.table, self.makers = table, dict(makers or {})
        self.pairs_per_device_batch = pairs_per_device_batch
        self.prefix_ids, self.suffix_ids, self.pad_id = tuple(prefix_ids), tuple(suffix_ids), pad_id
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.micro_steps_per_epoch = len(table) // (pairs_per_device_batch * world_size)
        if self.micro_steps_per_epoch == 0:
            raise self._too_few(f"{len(table)}")

    def views(self, micro_step: int) -> dict[str, View]:
        """This rank's pairs at `micro_step`, and the further views of their texts."""
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        rows = self._rows(epoch, place)  # i64 [N]
        first = self.rank * self.pairs_per_device_batch
        numbers = self.table.text_numbers(rows[first : first + self.pairs_per_device_batch])  # i64 [n, c]
        contrasted = numbers if numbers.shape[1] > 1 else np.repeat(numbers, 2, axis=1)  # i64 [n, 2 or 3]
        rows_of_texts = self.table.texts(contrasted.T.reshape(-1))  # anchors, positives, negatives
        input_ids, attention_mask = padded_rows(
            rows_of_texts.token_ids,
            rows_of_texts.offsets,
            pad_id=self.pad_id,
            prefix_ids=self.prefix_ids,
            suffix_ids=self.suffix_ids,
        )  # i64 [2n or 3n, L] each
        batch = SentenceBatch(input_ids, attention_mask, pair_count=len(numbers), pad_id=self.pad_id)
        texts = [self.table.texts(numbers.T.reshape(-1))] if self.makers else []
        group = place * self.world_size + self.rank
        further = {
            name: maker.view(texts, [mask_rng(self.seed, epoch, group, VIEW_NUMBERS[name])])
            for name, maker in self.makers.items()
        }
        return {SENTENCES: batch, **further}

    def _rows(self, epoch: int, place: int) -> np.ndarray:
        """The rows of the global batch, i64 [N]; the same on every rank."""
        size = self.pairs_per_device_batch * self.world_size
        order = EpochOrder(len(self.table), seed=self.seed, epoch=epoch)
        chosen = _Compatible(self.table, order[np.arange(place * size, (place + 1) * size)])  # i64 [N]
        rng = mask_rng(self.seed, epoch, place, VIEW_NUMBERS[SENTENCES])
        if chosen.missing:
            chosen.fill(rng.integers(len(self.table), size=DRAWS_PER_PAIR * chosen.missing))
        first = 0
        while chosen.missing and first < len(self.table):
            chosen.fill(order[np.arange(first, min(first + DRAWS_PER_PAIR * size, len(self.table)))])
            first += DRAWS_PER_PAIR * size
        if chosen.missing:
            raise self._too_few(f"{size - chosen.missing} that are not each other's positives")
        return chosen.rows

    def _too_few(self, got: str) -> CorpusError:
        size = self.pairs_per_device_batch * self.world_size
        return CorpusError(
            "there are too few sentences for one batch",
            expected=f"at least {size} sentences or pairs, {self.pairs_per_device_batch} for each device",
            got=got,
            where="sentences.files, sentences.pairs_per_device_batch",
            fix="give more text, or a smaller sentences.pairs_per_device_batch",
        )


class _Compatible:
    """Some rows of a table that may stand in one batch; the places of those that may not are filled with others."""

    def __init__(self, table: PairTable, rows: np.ndarray) -> None:
        """Keeps of the rows i64 [N] each that fits to those kept before it."""
        self._table = table
        self._meanings: set[int] = set()  # keys of anchors and positives
        self._negatives: set[int] = set()
        self.rows = rows.copy()  # i64 [N]
        self._open = [place for place, fits in enumerate(self._fitting(rows)) if not fits][::-1]

    @property
    def missing(self) -> int:
        """Places that no row has been found for."""
        return len(self._open)

    def fill(self, candidates: np.ndarray) -> None:
        """Fill the open places with those of the rows i64 [.] that fit, in their order."""
        for start in range(0, len(candidates), DRAWS_PER_PAIR):
            if not self._open:
                return
            some = candidates[start : start + DRAWS_PER_PAIR]
            for row, fits in zip(some.tolist(), self._fitting(some, most=len(self._open)), strict=False):
                if fits:
                    self.rows[self._open.pop()] = row

    def _fitting(self, rows: np.ndarray, most: int | None = None) -> list[bool]:
        """Whether each row fits to those taken so far; those that do are taken, `most` at most, and then it ends."""
        found: list[bool] = []
        for keys in self._table.keys(self._table.text_numbers(rows)).tolist():
            meanings, negatives = set(keys[:2]), set(keys[2:])
            fits = self._meanings.isdisjoint(meanings | negatives) and self._negatives.isdisjoint(meanings)
            if fits:
                self._meanings |= meanings
                self._negatives |= negatives
            found.append(fits)
            if most is not None and sum(found) == most:
                break
        return found
