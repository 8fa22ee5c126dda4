"""Candidate spans made into phrases: grouped by tokens, read as text, merged by spelling, shown where they occur.

Shapes: m candidate spans of one query, g groups of equal token sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, Occurrence, Phrase
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.markup import shown, visible
from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS, normalised_text, sentence_around, words_of
from npm.retrieval.scoring import Aggregation
from npm.retrieval.settings import FillSettings, Overlaps
from npm.retrieval.spans import CandidateSpans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from npm.core.types import Document
    from npm.corpus.store import BlockStore


SURFACES_COMPARED = 16
"""How many of a phrase's best occurrences decide how it is written."""
DOCUMENTS_IN_MEMORY, BLOCKS_IN_MEMORY = 64, 1024


@dataclass(slots=True)
class _Merged:
    """Groups that are the same phrase to a reader."""

    groups: list[int]
    score: float


def ranked_phrases(
    text: str,
    candidates: CandidateSpans,
    weights: np.ndarray,
    reader: SurfaceReader,
    settings: FillSettings,
) -> tuple[Phrase, ...]:
    """The best phrases for `text` from its candidates and their `weights` f64 [m].

    Only the `merged_groups` best groups are read as text, merged where they differ in case or space only, and held
    against the question; what ranks below them could add next to nothing.
    """
    scoring = settings.scoring
    by_text = scoring.aggregation is Aggregation.normalised_text
    reads_text = by_text or scoring.exclude_query_phrases
    # Reading text costs far more than adding up weights, so equal token sequences are grouped first; spellings are then
    # merged among more groups than are asked for, since a phrase may be spread over several of them.
    considered = max(settings.merged_groups, settings.k) if reads_text else settings.k
    groups, chosen = best_groups(candidates, weights, count=considered)  # i64 [<= considered]
    leaders = groups.leaders(chosen, candidates, weights)  # i64 [<= g]
    surfaces = reader.texts(candidates.starts[leaders], candidates.lengths[leaders]) if reads_text else []
    question_words = frozenset(words_of(text.replace(MASK_TEXT, " ")))
    merged: dict[str | int, _Merged] = {}
    for place, group in enumerate(chosen.tolist()):
        plain = normalised_text(surfaces[place]) if reads_text else ""
        if reads_text and (not plain or (scoring.exclude_query_phrases and says_nothing_new(plain, question_words))):
            continue
        entry = merged.setdefault(plain if by_text else group, _Merged([], 0.0))
        entry.groups.append(group)
        entry.score += float(groups.scores[group])
    # A stable sort keeps the corpus order of phrases with equal scores.
    best = sorted(merged.values(), key=lambda entry: -entry.score)[: settings.k]
    return tuple(
        _phrase(entry, candidates, weights, groups, reader=reader, occurrence_count=settings.occurrences)
        for entry in best
    )


def without_overlaps(phrases: Sequence[Phrase], settings: FillSettings) -> tuple[Phrase, ...]:
    """The first `k` entries of some phrases, in their order, with those that overlap put together if so asked for."""
    entries: list[Phrase] = []
    for phrase in phrases:
        overlapping = (number for number, entry in enumerate(entries) if _overlap(entry, phrase))
        number = next(overlapping, None) if settings.overlaps is Overlaps.merge else None
        if number is None:
            entries.append(phrase)
        else:
            entries[number] = replace(entries[number], score=entries[number].score + phrase.score)
    return tuple(
        replace(entry, occurrences=entry.occurrences[: settings.occurrences]) for entry in entries[: settings.k]
    )


def _overlap(one: Phrase, other: Phrase) -> bool:
    """Return True if the best occurrences of two phrases have characters in common."""
    if not one.occurrences or not other.occurrences:
        return False
    a, b = one.occurrences[0], other.occurrences[0]
    return a.document == b.document and a.start_char < b.end_char and b.start_char < a.end_char


def _phrase(
    entry: _Merged,
    candidates: CandidateSpans,
    weights: np.ndarray,
    groups: PhraseGroups,
    *,
    reader: SurfaceReader,
    occurrence_count: int,
) -> Phrase:
    members = np.concatenate([groups.of(group) for group in entry.groups])  # i64 [occurrences]
    # Without text there is one spelling for each token sequence, and reading one of its members is enough.
    spelled = np.array([groups.of(group)[0] for group in entry.groups])  # i64 [groups]
    evidence = groups.scores[entry.groups]  # f64 [groups]
    order = np.lexsort((candidates.starts[members], -weights[members]))  # i64 [occurrences], ties to the earlier one
    best = members[order[: max(SURFACES_COMPARED, occurrence_count)]]
    if reader.has_text:
        spelled, evidence = best, weights[best]
    surfaces = reader.texts(candidates.starts[spelled], candidates.lengths[spelled])
    shown = best[:occurrence_count]
    evidence_of: dict[str, float] = {}
    for surface, weight in zip(surfaces, evidence.tolist(), strict=True):
        evidence_of[surface] = evidence_of.get(surface, 0.0) + weight
    return Phrase(
        phrase=max(evidence_of, key=lambda surface: evidence_of[surface]),  # the first one of equals
        score=entry.score,
        occurrence_count=len(members),
        occurrences=reader.occurrences(candidates.starts[shown], candidates.lengths[shown]),
    )


def says_nothing_new(phrase: str, question_words: Set[str]) -> bool:
    """Whether all words of `phrase`, function words aside, are among those of the question, case-folded.

    >>> says_nothing_new("the king of Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    True
    >>> says_nothing_new("Thimphu in Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    False
    """
    return all(word in question_words for word in content_words(phrase))


def content_words(phrase: str) -> list[str]:
    """The case-folded words of `phrase` without function words, or all if there are no others."""
    words = words_of(phrase)
    return [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS] or words


class SurfaceReader:
    """The text that a span of tokens stands for: cut out of the document, or decoded where a store has no text."""

    def __init__(self, store: BlockStore, tokenizer: PreTrainedTokenizerFast) -> None:
        self.store = store
        self._tokenizer = tokenizer
        self._document = lru_cache(maxsize=DOCUMENTS_IN_MEMORY)(store.document)
        self._block_text = lru_cache(maxsize=BLOCKS_IN_MEMORY)(store.block_text)
        self.has_text = store.start_chars is not None

    def texts(self, starts: np.ndarray, lengths: np.ndarray) -> list[str]:
        """The surface text of each of m spans of `lengths` i64 [m] tokens from position `starts` i64 [m] on."""
        if not self.has_text:
            token_ids = self.store.token_ids.take(concatenated_ranges(starts, starts + lengths)).tolist()  # Σ lengths
            stops = np.cumsum(lengths).tolist()
            spans = [token_ids[start:stop] for start, stop in itertools.pairwise([0, *stops])]
            decoded = self._tokenizer.backend_tokenizer.decode_batch(spans, skip_special_tokens=False)
            return [text.strip() for text in decoded]
        assert self.store.start_chars is not None and self.store.end_chars is not None, "has_text"
        blocks = self.store.block_of(starts)  # i64 [m]
        block_chars = self.store.start_chars.take(self.store.block_offsets[blocks])  # u32 [m]
        first_chars = self.store.start_chars.take(starts) - block_chars  # u32 [m], within the block's text
        last_chars = self.store.end_chars.take(starts + lengths - 1) - block_chars  # u32 [m]
        return [
            " ".join(visible(self._block_text(block)[first:last]).split())
            for block, first, last in zip(blocks.tolist(), first_chars.tolist(), last_chars.tolist(), strict=True)
        ]

    def places(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
        """Document number, first and past-the-last character of each of m spans; only for a store with text."""
        store = self.store
        assert store.start_chars is not None and store.end_chars is not None, "a store without text has no places"
        documents = store.block_documents[store.block_of(starts)]  # [m]
        first_chars = store.start_chars.take(starts)  # u32 [m]
        last_chars = store.end_chars.take(starts + lengths - 1)  # u32 [m]
        return documents.tolist(), first_chars.tolist(), last_chars.tolist()

    def occurrences(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[Occurrence, ...]:
        """Where each of m spans stands, with the sentence around it; none for a store without text."""
        if not self.has_text:
            return ()
        found = []
        for number, first, last in zip(*self.places(starts, lengths), strict=True):
            document: Document = self._document(number)
            context_start, context_end = sentence_around(document.text, first, last)
            found.append(
                Occurrence(
                    document=document.id,
                    title=document.title,
                    start_char=first,
                    end_char=last,
                    context=shown(document.text[context_start:context_end]),
                    context_start_char=context_start,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class PhraseGroups:
    """Candidates put together by equal token sequence; group i is members[offsets[i] : offsets[i + 1]]."""

    members: np.ndarray  # i64 [m], numbers of candidates, those of one group in a row
    offsets: np.ndarray  # i64 [g + 1]
    scores: np.ndarray  # f64 [g], sum of the members' weights

    def __len__(self) -> int:
        return len(self.scores)

    def of(self, group: int) -> np.ndarray:
        """The candidate numbers i64 of one group."""
        return self.members[self.offsets[group] : self.offsets[group + 1]]

    def leaders(self, groups: np.ndarray, candidates: CandidateSpans, weights: np.ndarray) -> np.ndarray:
        """The heaviest candidate of each of `groups` i64 [n], the earliest in the corpus of equals: i64 [n]."""
        if len(groups) == 0:
            return groups
        sizes = self.offsets[groups + 1] - self.offsets[groups]  # i64 [n]
        members = self.members[concatenated_ranges(self.offsets[groups], self.offsets[groups + 1])]  # i64 [Σ sizes]
        firsts = np.cumsum(sizes) - sizes  # i64 [n]
        heaviest = np.maximum.reduceat(weights[members], firsts)  # f64 [n]
        starts = candidates.starts[members]
        starts[weights[members] != np.repeat(heaviest, sizes)] = np.iinfo(np.int64).max
        # Members of a group are equally long, so no two of them begin at the same token.
        return members[starts == np.repeat(np.minimum.reduceat(starts, firsts), sizes)]

    def best(self, count: int, candidates: CandidateSpans) -> np.ndarray:
        """The `count` groups with the highest scores, best first, ties to what stands earlier in the corpus."""
        if count < len(self):
            # All groups that tie with the last one chosen stay in play, else the tie would be broken by chance.
            limit = np.partition(self.scores, len(self) - count)[len(self) - count]
            chosen = np.flatnonzero(self.scores >= limit)
        else:
            chosen = np.arange(len(self))
        firsts = (
            np.minimum.reduceat(candidates.starts[self.members], self.offsets[:-1])[chosen] if len(self) else chosen
        )
        return chosen[np.lexsort((firsts, -self.scores[chosen]))][:count]


def best_groups(candidates: CandidateSpans, weights: np.ndarray, *, count: int) -> tuple[PhraseGroups, np.ndarray]:
    """Candidates grouped by equal token sequence, `weights` f64 [m] summed; and the `count` best groups i64, in order.

    Sequences of equal hash are taken for equal: two different ones share 64 bits in one of 10^10 questions.
    """
    members = np.argsort(candidates.hashes)  # i64 [m]; a stable sort takes five times as long and gains nothing
    hashes = candidates.hashes[members]
    is_first = np.ones(len(members), dtype=bool)  # [m]
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)  # i64 [g]
    scores = np.add.reduceat(weights[members], first) if len(first) else np.zeros(0)  # f64 [g]
    groups = PhraseGroups(members=members, offsets=np.append(first, len(members)), scores=scores)
    return groups, groups.best(count, candidates)
