"""Collocations, which are masked as one: a vocabulary of n-grams of words, and the positions of its entries.

Shapes: T tokens of all sequences in a row, m candidates, N entries, X tokens of all entries in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from npm.core.artifact import check_folder, open_array
from npm.core.errors import ArtifactError
from npm.core.settings import INNER, PathText, Settings
from npm.core.types import Sequences, Spans
from npm.masking.units import MaskableSpans, tokens_until_break, word_beginnings, words_of

KIND = "collocations"


class CollocationSettings(Settings):
    """Settings of collocations: n-grams of two to five words chosen by pointwise mutual information."""

    vocabulary: PathText = ""
    """A folder of collocations mined before, such as RUN/collocations; empty: they are mined from the training text."""
    min_count: PositiveInt = 11
    """Least number of occurrences of an n-gram in the text; at least 1."""
    coverage: Annotated[float, Field(gt=0, le=1), INNER] = 0.5
    """The vocabulary grows until its entries hold this fraction of the text's tokens, or all n-grams are in; above 0,
    at most 1."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Collocations as token ids, by number of words and within that by rank."""

    token_ids: np.ndarray  # i32 [X]
    starts_word: np.ndarray  # bool [X], whether a word of the entry begins here
    offsets: np.ndarray  # i64 [N + 1]; entry e is [offsets[e], offsets[e + 1])
    counts: np.ndarray  # i64 [N], occurrences in the mined text
    scores: np.ndarray  # f64 [N], its mutual information

    def __len__(self) -> int:
        return len(self.counts)


ENTRY_ARRAYS = ("token_ids", "starts_word", "offsets", "counts", "scores")


class CollocationVocabulary:
    """The entries, and a tree over their tokens that finds them in text. Made by `open`, or from given entries."""

    def __init__(self, entries: Entries, *, digest: str = "") -> None:
        self.entries = entries
        self.digest = digest
        """Of the manifest; empty for a vocabulary that was never stored."""
        self._levels = _tree(entries)

    @classmethod
    def open(cls, folder: Path, *, tokenizer_fingerprint: str) -> CollocationVocabulary:
        """Open a stored vocabulary. Raises ArtifactError if it is missing, damaged, or of another tokenizer."""
        manifest = check_folder(folder, kind=KIND, hash_all=True)
        if (mined_with := manifest.settings["tokenizer_fingerprint"]) != tokenizer_fingerprint:
            raise ArtifactError(
                f"the collocations in {folder} were mined with another tokenizer: expected {tokenizer_fingerprint}, "
                f"got {mined_with}; leave corruption.collocations.vocabulary unset to mine the training text"
            )
        return cls(
            Entries(**{name: np.array(open_array(folder, name)) for name in ENTRY_ARRAYS}), digest=manifest.digest
        )

    def find(self, sequences: Sequences) -> Spans:
        """Every occurrence of an entry as full words within one sequence; they may overlap. Shortest first."""
        begins = word_beginnings(sequences)  # bool [T]
        room = tokens_until_break(sequences)  # i64 [T]
        is_last = np.zeros(len(begins), dtype=bool)  # bool [T], the last token of a word
        words = words_of(sequences)
        is_last[words.starts + words.lengths - 1] = True
        symbols = _symbols(sequences.token_ids, begins)  # i64 [T]
        windows = words.starts  # i64 [w], where entries may still begin
        nodes = np.zeros(len(windows), dtype=np.int64)  # i64 [w], how far each has come in the tree
        starts, lengths = [windows[:0]], [windows[:0]]
        for depth, (keys, ends_entry) in enumerate(self._levels):
            fits = room[windows] > depth  # bool [w]
            windows, nodes = windows[fits], nodes[fits]
            wanted = (nodes << 32) | symbols[windows + depth]  # i64 [w]
            nodes = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)  # i64 [w]
            found = keys[nodes] == wanted  # bool [w]
            windows, nodes = windows[found], nodes[found]
            whole = windows[ends_entry[nodes] & is_last[windows + depth]]  # i64 [entries found of that length]
            starts.append(whole)
            lengths.append(np.full(len(whole), depth + 1))
        return Spans(np.concatenate(starts), np.concatenate(lengths))


def _symbols(token_ids: np.ndarray, starts_word: np.ndarray) -> np.ndarray:
    """Tokens that begin a word and tokens that do not as different numbers, i64, below 2**32."""
    return (token_ids.astype(np.int64) << 1) | starts_word


def _tree(entries: Entries) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each depth: the nodes, as sorted numbers of parent and symbol i64 [nodes], and which of them end an entry.

    A node's number is its index among the nodes of its depth.
    """
    symbols = _symbols(entries.token_ids, entries.starts_word)  # i64 [X]
    lengths = np.diff(entries.offsets)  # i64 [N]
    alive = np.arange(len(entries))  # i64 [entries longer than the depth]
    nodes = np.zeros(len(entries), dtype=np.int64)
    levels = []
    for depth in range(int(lengths.max(initial=0))):
        longer = lengths[alive] > depth  # bool [entries at least as long as the depth]
        alive, nodes = alive[longer], nodes[longer]
        keys, nodes = np.unique((nodes << 32) | symbols[entries.offsets[alive] + depth], return_inverse=True)
        ends_entry = np.zeros(len(keys), dtype=bool)  # bool [nodes]
        ends_entry[nodes[lengths[alive] == depth + 1]] = True
        levels.append((keys, ends_entry))
    return levels


@dataclass(frozen=True, slots=True)
class CollocationUnits:
    """The collocations of a vocabulary that are in no longer one, and all words (Levine et al. 2021)."""

    vocabulary: CollocationVocabulary

    def candidates(self, sequences: Sequences) -> MaskableSpans:
        """Collocations and words in the order of the text; `LongestUnits` makes them disjoint."""
        found, words = self.vocabulary.find(sequences), words_of(sequences)
        starts = np.concatenate([found.starts, words.starts])  # i64
        lengths = np.concatenate([found.lengths, words.lengths])  # i64
        # the longer first where two start together, so that a unit inside another comes after it
        order = np.lexsort((-lengths, starts))
        starts, lengths = starts[order], lengths[order]
        is_word = order >= len(found)  # bool
        kept = is_word | ~_is_inside(starts, lengths)  # bool
        starts, lengths = starts[kept], lengths[kept]  # i64 [m] each
        return MaskableSpans(starts, lengths)


@dataclass(frozen=True, slots=True)
class LongestUnits:
    """Cuts text into disjoint units: the longest win over those inside them, chance decides between partial overlaps.

    If a unit was omitted, those inside it come back.
    """

    def keep(self, candidates: MaskableSpans, sequences: Sequences, rng: np.random.Generator) -> MaskableSpans:
        """The units, in the order of the text."""
        candidates = candidates.where(np.lexsort((-candidates.lengths, candidates.starts)))
        stops = candidates.starts + candidates.lengths  # i64 [m]
        is_inside = _is_inside(candidates.starts, candidates.lengths)  # bool [m]
        longest = np.flatnonzero(~is_inside)  # i64 [longest ones], starts and stops both in order
        meets_next = stops[longest[:-1]] > candidates.starts[longest[1:]]  # bool [longest ones - 1]
        overlaps = np.append(meets_next, False) | np.append(False, meets_next)  # bool [longest ones], and one if none
        overlaps = overlaps[: len(longest)]
        chosen = np.zeros(len(candidates), dtype=bool)  # bool [m]
        chosen[longest[~overlaps]] = True
        taken = bytearray(len(sequences.token_ids))  # 1 where an overlapping unit was chosen
        for number in rng.permutation(longest[overlaps]).tolist():
            start, stop = int(candidates.starts[number]), int(stops[number])
            if taken.find(1, start, stop) < 0:
                taken[start:stop] = b"\1" * (stop - start)
                chosen[number] = True
        edges = np.zeros(len(sequences.token_ids) + 1, dtype=np.int64)  # i64 [T + 1]
        edges[candidates.starts[chosen]] += 1
        edges[stops[chosen]] -= 1
        taken_before = np.append(0, np.cumsum(np.cumsum(edges)[:-1]))  # i64 [T + 1], tokens in chosen units
        chosen |= is_inside & (taken_before[stops] == taken_before[candidates.starts])
        return candidates.where(chosen)


def _is_inside(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Mask bool [m] of spans inside one before them; sorted by start, the longer of two first."""
    stops = starts + lengths  # i64 [m]
    inside = np.zeros(len(starts), dtype=bool)  # bool [m]
    inside[1:] = stops[1:] <= np.maximum.accumulate(stops)[:-1]
    return inside
