"""Groups of candidate spans made into answers: surface text, occurrences with their place, merged spellings.

Shapes: m candidate spans of one query, g groups of equal token sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.blocks import concatenated_ranges
from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS, normalised_text, sentence_around, words_of
from npm.retrieval.phrases import Candidates, Groups, best_groups
from npm.retrieval.scoring import Aggregation, ScoringSettings
from npm.types import MASK_TEXT, Occurrence, Phrase

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from npm.corpus.store import BlockStore
    from npm.types import Document


SURFACES_COMPARED = 16
"""How many of a phrase's best occurrences decide how it is written."""
DOCUMENTS_IN_MEMORY, BLOCKS_IN_MEMORY = 64, 1024


def says_nothing_new(phrase: str, question_words: Set[str]) -> bool:
    """Whether all words of `phrase`, function words aside, are among those of the question, case-folded.

    >>> says_nothing_new("the king of Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    True
    >>> says_nothing_new("Thimphu in Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    False
    """
    words = words_of(phrase)
    telling = [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS] or words
    return all(word in question_words for word in telling)


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
            self._block_text(block)[first:last]
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
                    context=document.text[context_start:context_end],
                    context_start_char=context_start,
                )
            )
        return tuple(found)


@dataclass(slots=True)
class _Merged:
    """Groups that are the same phrase to a reader."""

    groups: list[int]
    score: float


def ranked_phrases(
    text: str,
    candidates: Candidates,
    weights: np.ndarray,
    *,
    reader: SurfaceReader,
    scoring: ScoringSettings,
    phrase_count: int,
    occurrence_count: int,
    merged_groups: int,
) -> tuple[Phrase, ...]:
    """The best phrases for `text` from its candidates and their `weights` f64 [m].

    Only the `merged_groups` best groups are read as text, merged where they differ in case or space only, and held
    against the question; what ranks below them could add next to nothing.
    """
    by_text = scoring.aggregation is Aggregation.normalised_text
    reads_text = by_text or scoring.exclude_query_phrases
    considered = merged_groups if reads_text else phrase_count
    groups, chosen = best_groups(candidates, weights, reader.store, count=considered)  # i64 [<= considered]
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
    best = sorted(merged.values(), key=lambda entry: -entry.score)[:phrase_count]
    return tuple(
        _phrase(entry, candidates, weights, groups, reader=reader, occurrence_count=occurrence_count) for entry in best
    )


def _phrase(
    entry: _Merged,
    candidates: Candidates,
    weights: np.ndarray,
    groups: Groups,
    *,
    reader: SurfaceReader,
    occurrence_count: int,
) -> Phrase:
    members = np.concatenate([groups.of(group) for group in entry.groups])  # i64 [occurrences]
    # Without text there is one spelling for each token sequence, and reading one of its members is enough.
    spelled = np.array([groups.of(group)[0] for group in entry.groups])  # i64 [groups]
    evidence = groups.scores[entry.groups]  # f64 [groups]
    best = _best_members(members, candidates, weights, max(SURFACES_COMPARED, occurrence_count))
    if reader.has_text:
        spelled, evidence = best, weights[best]
    surfaces = reader.texts(candidates.starts[spelled], candidates.lengths[spelled])
    shown = best[:occurrence_count]
    return Phrase(
        phrase=_heaviest(surfaces, evidence),
        score=entry.score,
        occurrence_count=len(members),
        occurrences=reader.occurrences(candidates.starts[shown], candidates.lengths[shown]),
    )


def _best_members(members: np.ndarray, candidates: Candidates, weights: np.ndarray, count: int) -> np.ndarray:
    """The `count` candidates with the highest weights among `members` i64, ties to the earlier in the corpus."""
    return members[np.lexsort((candidates.starts[members], -weights[members]))][:count]


def _heaviest(surfaces: Sequence[str], weights: np.ndarray) -> str:
    """The spelling with the most evidence; the first one of equals."""
    evidence: dict[str, float] = {}
    for surface, weight in zip(surfaces, weights.tolist(), strict=True):
        evidence[surface] = evidence.get(surface, 0.0) + weight
    return max(evidence, key=lambda surface: evidence[surface])
