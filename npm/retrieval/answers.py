"""Answers: candidate spans made into phrases, and phrases into an answer with its notes, confidence and status.

Candidates are grouped by tokens, read as text, merged by spelling, and shown where they occur.

Shapes: m candidate spans of one query, g groups of equal token sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, Answer, Filling, JointAnswer, MaskPhrases, Occurrence, Phrase
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.folding import printed
from npm.corpus.markup import readable, visible
from npm.corpus.text import (
    content_words,
    normalized_text,
    sentence_around,
    sentence_bounds,
    words_of,
)
from npm.reading.confidence import Confidence, features_of
from npm.retrieval.blocks import BlockPlan, vector_share
from npm.retrieval.queries import query_notes
from npm.retrieval.settings import OVERLAPS_LOOKED_AT, FillSettings, Overlaps, Retrieval
from npm.retrieval.spans import CandidateSpans

if TYPE_CHECKING:
    from npm.core.types import Document
    from npm.corpus.store import BlockStore
    from npm.indexing.bm25 import BlockLexicon
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


SURFACES_COMPARED = 16
"""Number of a phrase's best occurrences that decide how it is written."""
BLOCKS_IN_MEMORY = 1024
MAX_UNKNOWN_SHARE = 0.5
"""Share of unknown tokens above which a reader is of another language than the passages."""
MAX_LOOKED_UP = 32
"""Words of a text with a capital that are looked up in the corpus; names of a question are among them."""
ADJECTIVE_ENDINGS = ("ish", "ian", "ean", "ese")
"""Endings of words with a capital that come from the name of a place, as Finnish from Finland."""


def ranked_phrases(
    text: str,
    candidates: CandidateSpans,
    weights: np.ndarray,
    reader: SurfaceReader,
    settings: FillSettings,
) -> tuple[Phrase, ...]:
    """The best phrases for `text` from its candidates and their `weights` f64 [m].

    Only the `merged_groups` best groups are read as text, merged where they differ in case or space only, and compared
    with the question; lower ones could add almost nothing. With `values` all are read, and others dropped.
    """
    by_text, excludes = not settings.scoring.reference, settings.scoring.exclude_query_phrases
    # Reading text costs far more than summing weights, so equal token sequences are grouped first; spellings are then
    # merged among more groups than requested, since a phrase may be spread over several of them.
    considered = max(settings.merged_groups, settings.k) if by_text or excludes else settings.k
    values = frozenset(map(normalized_text, settings.values or ()))
    groups, scores = best_groups(candidates, weights, count=len(weights) if values else considered)
    keys: list[str | int] = list(range(len(groups)))
    if by_text or excludes or values:
        leaders = np.array([group[0] for group in groups], dtype=np.int64)  # i64 [<= considered]
        texts = map(normalized_text, reader.texts(candidates.starts[leaders], candidates.lengths[leaders]))
        question_words = frozenset(words_of(text.replace(MASK_TEXT, " ")))
        for number, plain in enumerate(texts):
            is_allowed = plain in values if values else plain
            is_answer = is_allowed and not (excludes and says_nothing_new(plain, question_words))
            keys[number] = (plain if by_text else number) if is_answer else ""
    merged: dict[str | int, list[int]] = {}
    for number, key in enumerate(keys):
        if key != "":
            merged.setdefault(key, []).append(number)
    # A stable sort keeps the corpus order of phrases with equal scores.
    best = sorted(merged.values(), key=lambda own: -float(sum(scores[own])))[: settings.k]
    return tuple(
        _phrase([groups[number] for number in own], scores[own], candidates, weights, reader, settings.occurrences)
        for own in best
    )


def best_groups(candidates: CandidateSpans, weights: np.ndarray, *, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The `count` best groups of candidates with equal token sequences, and the sums of their `weights`, f64.

    A group is candidate numbers i64, the heaviest first; ties go to the earlier one in the corpus, among groups too.
    Sequences of equal hash are treated as equal: two different ones share 64 bits in one of 10^10 questions.
    """
    if not len(weights):
        return [], np.zeros(0)
    members = np.argsort(candidates.hashes)  # i64 [m]; a stable sort takes five times as long and gains nothing
    is_first = np.append(True, np.diff(candidates.hashes[members]) != 0)  # bool [m]
    first = np.flatnonzero(is_first)  # i64 [g]
    scores = np.add.reduceat(weights[members], first)  # f64 [g]
    starts = np.minimum.reduceat(candidates.starts[members], first)  # i64 [g]
    # All groups that tie with the last one chosen are kept, else the tie would be broken by chance.
    least = np.partition(scores, len(scores) - count)[len(scores) - count] if count < len(scores) else -np.inf
    chosen = np.flatnonzero(scores >= least)
    chosen = chosen[np.lexsort((starts[chosen], -scores[chosen]))][:count]
    stops = np.append(first[1:], len(members))  # i64 [g]
    sizes = (stops - first)[chosen]  # i64 [<= count]
    inside = members[concatenated_ranges(first[chosen], stops[chosen])]  # i64 [members of these]
    numbers = np.repeat(np.arange(len(chosen)), sizes)
    inside = inside[np.lexsort((candidates.starts[inside], -weights[inside], numbers))]
    return np.split(inside, np.cumsum(sizes)[:-1]), scores[chosen]


def without_overlaps(phrases: Sequence[Phrase], settings: FillSettings) -> tuple[Phrase, ...]:
    """The first `k` entries of some phrases, in their order, overlapping ones merged if the settings say so."""
    merges = settings.overlaps is Overlaps.merge and not settings.values
    entries: list[Phrase] = []
    for phrase in phrases:
        overlapping = (number for number, entry in enumerate(entries) if _overlap(entry, phrase))
        number = next(overlapping, None) if merges else None
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
    groups: Sequence[np.ndarray],
    scores: np.ndarray,
    candidates: CandidateSpans,
    weights: np.ndarray,
    reader: SurfaceReader,
    occurrence_count: int,
) -> Phrase:
    """The phrase of some groups i64 [members], and their `scores` f64 [groups]."""
    members = np.concatenate(groups)  # i64 [occurrences]
    order = np.lexsort((candidates.starts[members], -weights[members]))  # i64 [occurrences], ties to the earlier one
    best = members[order[: max(SURFACES_COMPARED, occurrence_count)]]
    surfaces = reader.texts(candidates.starts[best], candidates.lengths[best])
    places = best[:occurrence_count]
    evidence_of: dict[str, float] = {}
    for surface, weight in zip(surfaces, weights[best].tolist(), strict=True):
        evidence_of[surface] = evidence_of.get(surface, 0.0) + weight
    return Phrase(
        phrase=max(evidence_of, key=lambda surface: evidence_of[surface]),  # the first one of equals
        score=float(sum(scores)),
        occurrence_count=len(members),
        occurrences=reader.occurrences(candidates.starts[places], candidates.lengths[places]),
    )


def says_nothing_new(phrase: str, question_words: Set[str]) -> bool:
    """Return True if all words of `phrase`, except function words, are in the question, case-folded.

    >>> says_nothing_new("the king of Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    True
    >>> says_nothing_new("Thimphu in Bhutan", {"the", "king", "bhutan", "reigns", "from"})
    False
    """
    return all(word in question_words for word in content_words(phrase))


class SurfaceReader:
    """Surface text of spans of tokens, cut out of the document."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self._block_text = lru_cache(maxsize=BLOCKS_IN_MEMORY)(store.block_text)

    def texts(self, starts: np.ndarray, lengths: np.ndarray) -> list[str]:
        """The surface text of each of m spans of `lengths` i64 [m] tokens from position `starts` i64 [m] on."""
        blocks, first_chars, last_chars = self._in_blocks(starts, lengths)  # [m] each
        return [
            printed(visible(self._block_text(block)[first:last]))
            for block, first, last in zip(blocks.tolist(), first_chars.tolist(), last_chars.tolist(), strict=True)
        ]

    def places(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
        """Document number, first and past-the-last character of each of m spans."""
        blocks, first_chars, last_chars = self._in_blocks(starts, lengths)  # [m] each
        block_chars = self.store.first_chars[blocks]  # u32 [m]
        documents = self.store.block_documents[blocks]  # i64 [m]
        return documents.tolist(), (block_chars + first_chars).tolist(), (block_chars + last_chars).tolist()

    def _in_blocks(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The block of each of m spans, and its first and past-the-last character in the text of the block."""
        last = starts + lengths - 1  # i64 [m]
        last_chars = self.store.char_offsets.take(last) + self.store.char_lengths.take(last)  # [m]
        return self.store.block_of(starts), self.store.char_offsets.take(starts), last_chars

    def occurrences(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[Occurrence, ...]:
        """Position of each of m spans in its document, with the sentence around it."""
        placed = zip(*self.places(starts, lengths), strict=True)
        return tuple(occurrence_in(self.store.document(number), first, last) for number, first, last in placed)


def occurrence_in(document: Document, first: int, last: int, context: tuple[int, int] | None = None) -> Occurrence:
    """The characters [first, last) of a document, within the characters `context`; None: the sentence around them."""
    start, end = context or sentence_around(document.text, first, last)
    read = readable(document.text, start, end)
    places = read.places[:-1]  # i64 [characters]
    own = np.flatnonzero((places >= first) & (places < last) & ~read.is_inserted)  # i64 [phrase]
    phrase = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
    return Occurrence(document.id, document.title, first, last, read.text, start, end, *phrase)


def is_name(word: str) -> bool:
    """Return True for a word with a capital that is a name, or a code such as P500.

    Capitals alone may abbreviate words that the corpus spells out; adjectives may derive from a place that it names.
    """
    has_digit = any(map(str.isdigit, word))
    return has_digit or not (word.isupper() or word.endswith(ADJECTIVE_ENDINGS))


def compose(
    index: PhraseIndex,
    text: str,
    phrases: Sequence[tuple[Phrase, ...]],
    plans: Sequence[BlockPlan],
    settings: FillSettings,
    *,
    cut: bool,
    given: np.ndarray | None,
    unknown: Sequence[str],
    max_input_tokens: int,
) -> Answer:
    """The answer to one text by the phrases of its masks and their plans, with notes and status.

    `given` are the blocks i64 [n] that a caller gave, if any, `unknown` the `unknown_words` of the text; a text with
    several masks gets a JointAnswer.
    """
    shown = [without_overlaps(own, settings) for own in phrases]
    by_words = vector_share(index, settings) == 0
    notes = (
        *query_notes(text, cut=cut, max_input_tokens=max_input_tokens),
        *reading_notes(index, plans, settings, given=given),
        *([f"not in the corpus: {', '.join(unknown)}"] if unknown else []),
        *few_notes([len(own) for own in shown], plans, settings, given=given, by_words=by_words),
    )
    if len(plans) == 1:
        answer = Answer(text=text, phrases=shown[0], cut=cut, notes=notes)
        return with_status(answer, shown[0], settings, lacks_words=bool(unknown))
    from npm.retrieval.joint_filling import joint_fillings

    live, count = index.live_blocks, max(settings.k, settings.beam_width)
    fillings, why = joint_fillings(
        text,
        [own[:count] for own in phrases],
        index.blocks_holding,
        block_count=index.store.block_count if live is None else int(np.count_nonzero(live)),
        settings=settings,
    )
    of_masks = tuple(map(MaskPhrases, shown))
    joint = JointAnswer(text=text, phrases=(), cut=cut, notes=notes + why, masks=of_masks, fillings=fillings)
    return with_status(joint, fillings, settings, lacks_words=bool(unknown))


def reading_notes(
    index: PhraseIndex, plans: Sequence[BlockPlan], settings: FillSettings, *, given: np.ndarray | None
) -> tuple[str, ...]:
    """Notes about vectors that the index lacks, and passages that the reader does not know."""
    lacks_vectors = (
        "the index has no block vectors: its blocks were ranked by shared words alone (vector_share)"
        if given is None
        and settings.retrieval is Retrieval.hybrid
        and settings.vector_share
        and index.block_vectors is None
        else ""
    )
    is_strange = any(plan.unknown_share > MAX_UNKNOWN_SHARE for plan in plans)
    language = "the reader does not know most of the passages' tokens: set reader to one of their language"
    return tuple(filter(None, (lacks_vectors, language if is_strange else "")))


def few_notes(
    counts: Sequence[int],
    plans: Sequence[BlockPlan],
    settings: FillSettings,
    *,
    given: np.ndarray | None,
    by_words: bool,
) -> tuple[str, ...]:
    """Reasons why each mask has fewer than k phrases, once if they are the same; parameters as of `reason_for_few`."""
    reasons = [
        reason_for_few(count, plan, settings, given=given, by_words=by_words)
        for count, plan in zip(counts, plans, strict=True)
    ]
    if len(set(reasons)) == 1:
        return reasons[0]
    return tuple(f"mask {number}: {why}" for number, own in enumerate(reasons, start=1) for why in own)


def unknown_words(text: str, lexicon: BlockLexicon) -> tuple[str, ...]:
    """The words of a text with a capital that no block has, each once, without the first word of each sentence."""
    starts = set(sentence_bounds(text)[:, 0].tolist())
    found = (match.group() for match in re.finditer(r"\w+", text) if match.start() not in starts)
    words = dict.fromkeys(word for word in found if word != word.lower())
    looked_up = ((word, lexicon.blocks_with(word)) for word in list(words)[:MAX_LOOKED_UP])
    return tuple(word for word, blocks in looked_up if blocks is not None and not len(blocks))


def reason_for_few(
    found: int,
    plan: BlockPlan,
    settings: FillSettings,
    *,
    given: np.ndarray | None,
    by_words: bool,
) -> tuple[str, ...]:
    """Reason why an answer has fewer than k phrases, unless it is obvious.

    `given` are the requested blocks; without them, `by_words` says that shared words alone chose the blocks.
    """
    if found >= settings.k:
        return ()
    for what, chosen in (("documents to answer from", settings.documents), ("blocks to look in", given)):
        if chosen is not None and len(chosen) == 0:
            return (f"the list of {what} is empty, so nothing is answered",)
    if not plan.is_everywhere and len(plan.blocks) == 0:
        if given is not None:
            return ("no block given is of a document that may answer",)
        return (f"no block of the corpus {'shares a word with' if by_words else 'can be ranked for'} the text",)
    ranked = given is None and settings.retrieval is not Retrieval.dense
    if found == 0 and settings.values:
        searched = f" in the {settings.bm25_blocks} blocks that were searched (bm25_blocks)" if ranked else ""
        return (f"no phrase of values was found{searched}",)
    if found == 0:
        return ("what was looked in holds nothing but stop-words, punctuation and words of the text",)
    if ranked and len(plan.blocks) == settings.bm25_blocks:
        which = "share most words with the text" if by_words else "rank best for the text"
        limit = f"the {settings.bm25_blocks} blocks that {which} were looked in"
        return (f"{found} of {settings.k} phrases: {limit} (bm25_blocks)",)
    return ()


def confidence_features(
    index: PhraseIndex, encoder: Encoder, text: str, found: Sequence[Phrase], plan: BlockPlan, settings: FillSettings
) -> np.ndarray | None:
    """The input of the confidence of an answer, f64 [f], from all phrases `found`; None where there is none.

    Overlapping phrases are merged, so that neither `k` nor `overlaps` changes it; shares among `values` differ.
    """
    if not plan.joint or settings.values:
        return None
    first = without_overlaps(found[: OVERLAPS_LOOKED_AT + 1], replace(settings, k=2, overlaps=Overlaps.merge))
    shares = [phrase.score for phrase in first]
    if not shares:
        return None
    words = index.lexicon.covered_share(text, plan.blocks)
    return features_of(plan.joint, plan.bonuses, shares, words, max_span_tokens=settings.phrase_limits(encoder)[0])


def with_confidence(
    answer: Answer, known: Confidence | None, features: np.ndarray | None, settings: FillSettings
) -> Answer:
    """The answer with its confidence, if its reader has one; unclear where that is too small."""
    if known is None or features is None:
        if not settings.min_confidence:
            return answer
        note = f"min_confidence={settings.min_confidence:g} was not applied: this answer has no confidence"
        return replace(answer, notes=(*answer.notes, note))
    confidence, least = float(known.of(features)), known.threshold(settings.min_confidence)
    answer = replace(answer, confidence=confidence)
    if confidence >= least:
        return answer
    digits = 2 if round(confidence, 2) < round(least, 2) else 4
    note = f"no clear answer: the confidence is {confidence:.{digits}f}, below min_confidence={least:.{digits}f}"
    return replace(answer, notes=(*answer.notes, note), status="low_evidence")


def with_status(
    answer: Answer, best: Sequence[Phrase | Filling], settings: FillSettings, *, lacks_words: bool
) -> Answer:
    """The answer, unclear if the first of its `best` has too small a share or the corpus lacks words of the text."""
    share = best[0].score if best else 0.0
    if not settings.min_share or settings.scoring.reference or (share >= settings.min_share and not lacks_words):
        return answer
    below = f"the best share is {share:.3f}, below min_share={settings.min_share:g}"
    note = f"the corpus has no clear answer: {below if share < settings.min_share else 'it lacks words of the text'}"
    return replace(answer, notes=(*answer.notes, note), status="low_evidence")
