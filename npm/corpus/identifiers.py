"""Which document ids have been seen, and where, in 16 bytes a slot."""

from __future__ import annotations

from array import array
from hashlib import blake2b

RECORD_BITS = 40  # a file has fewer than 2^40 records
FIRST_SLOTS = 1 << 10


def document_key(identifier: str) -> int:
    """A hash of an id for looking it up, in [1, 2^64): BLAKE2b of 8 bytes; 0 is left to mean no id.

    A text from outside that is not valid Unicode has a key too, though no document can have such an id.
    """
    return int.from_bytes(blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest()) or 1


class SeenIdentifiers:
    """Maps 64-bit hashes of ids to packed places (file number, record number): open addressing, at most 2/3 full.

    A dict would take 130 bytes an id. Two different ids share a hash with probability 3e-6 in ten million.
    """

    def __init__(self) -> None:
        self._hashes = array("Q", bytes(8 * FIRST_SLOTS))  # u64 [slots], 0 where free
        self._places = array("Q", bytes(8 * FIRST_SLOTS))  # u64 [slots]
        self._count = 0

    def add(self, identifier: str, file_number: int, record_number: int) -> tuple[int, int] | None:
        """Remember an id; returns (file number, record number) of its first place if it was there already."""
        hashed = document_key(identifier)
        slot = self._slot(hashed)
        if self._hashes[slot]:
            place = self._places[slot]
            return place >> RECORD_BITS, place & ((1 << RECORD_BITS) - 1)
        self._put(slot, hashed, file_number << RECORD_BITS | record_number)
        if 3 * self._count > 2 * len(self._hashes):
            self._grow()
        return None

    def _slot(self, hashed: int) -> int:
        last = len(self._hashes) - 1
        slot = hashed & last
        while self._hashes[slot] not in (0, hashed):
            slot = (slot + 1) & last
        return slot

    def _put(self, slot: int, hashed: int, place: int) -> None:
        self._hashes[slot], self._places[slot] = hashed, place
        self._count += 1

    def _grow(self) -> None:
        hashes, places = self._hashes, self._places
        self._hashes, self._places = array("Q", bytes(16 * len(hashes))), array("Q", bytes(16 * len(hashes)))
        self._count = 0
        for hashed, place in zip(hashes, places, strict=True):
            if hashed:
                self._put(self._slot(hashed), hashed, place)
