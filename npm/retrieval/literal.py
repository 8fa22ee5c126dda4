"""Literal evidence: positions in the corpus where the words around the mask occur word for word.

A gap is the text there in place of the mask. For a gap that is surrounded by the words M of the question's
words Q, the share is

    share = Σ_{w ∈ M} idf(w) / Σ_{w ∈ Q} idf(w),

so that function words and common words alone are not evidence. A span in a gap weighs e^(λ share) times as much. A
cell of a table is such a gap too: M are the words of the other cells of its row, and of the header above it.

Shapes: m candidate spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, TokenFlag
from npm.corpus.expressions import joined_characters
from npm.corpus.markup import CELL, HIDDEN, readable, table_rows, visible
from npm.corpus.text import code_points, folded_words, is_title, sentence_around, sentence_bounds
from npm.retrieval.spans import MOST_EXPRESSION_TOKENS, CandidateSpans, is_expression, span_hash

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.indexing.bm25 import BlockLexicon

LITERAL_BLOCKS = 16
"""Best blocks by BM25 that are looked through: a block with the question's sequence of words is among the first few."""
MIN_WORDS = 4
"""Words around a gap, on both sides together, unless the question has fewer."""
LEAST_WORDS = 2
"""Words around a gap that the shortest questions need."""
MIN_SHARE = 0.3
"""Weaker gaps are not evidence: sequences of common words occur everywhere."""
MAX_GAP_PIECES = 24
ALIKE = 0.999
"""Fraction of a share from which another is the same but for rounding."""
OPEN_SHARE = 0.4
"""Factor of the share of a gap with an open side, so that a copied sentence is closed by its end."""
SENTENCE_MARKS = frozenset(".!?…")
_ENDING = re.compile(r"(?<=...)(?:ions?|ments?|ers?|ors?|ings?|ern|ed|es|e|s)$")
"""Suffixes cut off so that related words compare equal, such as manages and manager, located and location."""
NOT_EDGES = np.uint8(TokenFlag.STOPWORD | TokenFlag.PUNCTUATION)
_LINK = "(?:of|the|and|de|da|van|von|del|der)"
_NAME = rf"[A-Z][\w'’-]*\.?(?:\s+(?:{_LINK}\s+){{0,2}}[A-Z][\w'’-]*\.?)*"
_NUMBER = r"\S*\d\S*?(?:\s\S+?){0,2}?"
_QUANTITY = r"(?:[$€£¥₹]\S*?|\S*\d\S*?\s[^\W\d]\S*?)(?:\s\S+?)?"
_AUXILIARY = "is|are|was|were|has|have|had|does|do|did|can|could|will|would|may|might|must|shall|should"
_LINKED = r",?\s+(?:and|but|which|who)\s+"
_BEFORE_MORE = (
    re.compile(rf"{_NAME}(?=\s+(?!{_LINK}\s+[A-Z])[a-z]+\s)"),
    re.compile(rf"{_QUANTITY}(?=,?\s(?:at|for|from|in|on)\s)"),
    re.compile(
        rf"{_NUMBER}(?=,?\s(?:about|after|before|during|into|since|under|until|when|with)\s"
        rf"|{_LINKED}[a-z]+(?:s|ed)\s(?:an?|the|no|\d\S*|at|by|for|from|in|on|to|with)\s)"
    ),
    re.compile(rf".*?(?={_LINKED}(?:{_AUXILIARY})\s)"),
)
"""Beginnings of a gap to which the sentence adds something: a name, a number with its unit, and anything before another
verb, as in `74 euros and has a glass body`."""
_PIECE = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens of the corpus in place of the mask; one side is open where the question has no words."""

    block: int
    start: int | None  # position of the first token
    stop: int | None  # position after the last token
    share: float


@dataclass(frozen=True, slots=True)
class MaskContext:
    """The words and punctuation marks around the mask, in its sentence, case-folded."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> MaskContext | None:
        """The context of the one mask of `text`; None where there are several."""
        if text.count(MASK_TEXT) != 1:
            return None
        at = text.index(MASK_TEXT)
        first, stop = sentence_around(text, at, at + len(MASK_TEXT))
        before, after = text[first:at], text[at + len(MASK_TEXT) : stop]
        return cls(tuple(_PIECE.findall(before.casefold())), tuple(_PIECE.findall(after.casefold())))

    @property
    def words(self) -> list[list[str]]:
        """The words before the mask and those after it."""
        return [[piece for piece in side if _is_word(piece)] for side in (self.before, self.after)]

    def gaps(self, text: str) -> Iterator[tuple[int | None, int | None, list[str]]]:
        """The gaps in `text`: first and past-the-last character, None on an open side, and the words around them.

        Each is in one sentence: a phrase does not continue into the next one.
        """
        words_before, words_after = self.words
        least = max(LEAST_WORDS, min(MIN_WORDS, len(words_before) + len(words_after)))
        for bounds in sentence_bounds(text).tolist():
            found = list(_PIECE.finditer(text, *bounds))
            pieces = [piece[0].casefold() for piece in found]
            # Matched words on each side, keyed by the edge of the gap.
            begins = {len(pieces) - at: words for at, words in _matches(self.before[::-1], pieces[::-1])}
            ends = dict(_matches(self.after, pieces))
            closed: dict[int, int] = {}  # the beginning of each gap by its end; of several the best, then the nearest
            for first, left in begins.items():
                near = [at for at in range(first + 1, first + MAX_GAP_PIECES + 1) if at in ends]
                stop = max(near, key=lambda at: (len(ends[at]), -at), default=None)
                if stop is not None and (stop not in closed or len(left) > len(begins[closed[stop]])):
                    closed[stop] = first
                if not words_after and len(left) >= least and first < len(pieces):
                    yield found[first].start(), None, left
            for stop, right in ends.items():
                if not words_before and len(right) >= least and stop:
                    yield None, found[stop - 1].end(), right
            for stop, first in closed.items():
                if len(begins[first]) + len(ends[stop]) >= least:
                    start, end = found[first].start(), found[stop - 1].end()
                    if not words_after:
                        end = next((one.end() for each in _BEFORE_MORE if (one := each.match(text, start, end))), end)
                    yield *self._completed(text, start, end), begins[first] + ends[stop]

    def _completed(self, text: str, start: int, end: int) -> tuple[int, int]:
        """The characters [start, end) with the rest of a number or an abbreviation next to which the question ends."""
        if self.before and not SENTENCE_MARKS.issuperset(self.after):
            return start, end
        joined = [*joined_characters(text).tolist(), False]
        while not self.before and joined[start]:
            start -= 1
        while SENTENCE_MARKS.issuperset(self.after) and joined[end]:
            end += 1
        return start, end


def _matches(context: Sequence[str], pieces: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Position in a sentence where the `context` from the mask outwards follows, and its words that do.

    A context without words gives the position after the last word of the sentence, and no words.
    """
    if not any(map(_is_word, context)):
        yield max((at + 1 for at, piece in enumerate(pieces) if _is_word(piece)), default=0), []
        return
    for at, piece in enumerate(pieces):
        if piece == context[0]:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(context, pieces[at:], strict=False))
            if words := [own for own, _ in same if _is_word(own)]:
                yield at, words


def _is_word(piece: str) -> bool:
    return piece[0].isalnum() or piece[0] == "_"


def literal_gaps(store: BlockStore, lexicon: BlockLexicon, question: str, blocks: np.ndarray) -> tuple[Gap, ...]:
    """The gaps for the mask of `question` in some `blocks` i64 [n], best first."""
    context = MaskContext.of(question)
    if context is None:
        return ()
    plain = question.replace(MASK_TEXT, " ")
    gaps = [gap for block in blocks.tolist() for gap in _cell_gaps(store, lexicon, plain, block)]
    if any(context.words):
        gaps += _sentence_gaps(store, lexicon, plain, context, blocks)
    return tuple(sorted(gaps, key=lambda gap: -gap.share))


def _sentence_gaps(
    store: BlockStore, lexicon: BlockLexicon, question: str, context: MaskContext, blocks: np.ndarray
) -> Iterator[Gap]:
    """Gaps of the sentences in which the words around the mask occur word for word."""
    has_both_sides = all(context.words)
    total = sum(map(lexicon.word_weight, folded_words(question)))
    for block in blocks.tolist():
        text = store.block_text(block)
        places = np.flatnonzero(code_points(text) != ord(HIDDEN))  # i64 [visible characters]
        for start, stop, words in context.gaps(visible(text)):
            share = sum(map(lexicon.word_weight, words)) / (total or 1)
            if not has_both_sides:
                # The other edge is that of a sentence, which is certain only if the rest of it is the question's.
                share *= OPEN_SHARE if start is None or stop is None else share
            if share >= MIN_SHARE:
                first_char = None if start is None else int(places[start])
                last_char = None if stop is None else int(places[stop - 1])
                yield Gap(block, *_tokens(store, block, first_char, last_char), share)


def _cell_gaps(store: BlockStore, lexicon: BlockLexicon, question: str, block: int) -> Iterator[Gap]:
    """Cells of the block's tables in whose rows words of the question occur, but not in the cells themselves."""
    asked, (first, stop) = set(lexicon.counted_words(question)), store.block_chars(block)
    text = store.document(int(store.block_documents[block])).text
    begin, end = text.rfind("\n", 0, first) + 1, text.find("\n", stop)  # a row may go over blocks
    end = len(text) if end < 0 else end
    if CELL not in text[begin:end]:
        return
    total = sum(map(lexicon.form_weight, asked)) or 1
    families = {_stem(word): word for word in asked}
    for row in table_rows(readable(text, begin, end)):
        own = [asked.intersection(lexicon.counted_words(cell.text)) for cell in row]
        known = set[str]().union(*own)
        of_header = [
            {families[family] for family in map(_stem, lexicon.counted_words(cell.header)) if family in families}
            for cell in row
        ]
        open_cells = [place for place, words in enumerate(own) if known and not words]
        shares = {place: sum(map(lexicon.form_weight, known | of_header[place])) / total for place in open_cells}
        # cells whose header matches fewer words of the question are left out
        least = max(MIN_SHARE, ALIKE * max(shares.values(), default=0.0))
        for place, share in shares.items():
            cell = row[place]
            if share >= least and first <= cell.start and cell.stop <= stop:
                yield Gap(block, *_tokens(store, block, cell.start - first, cell.stop - 1 - first), share)


def _stem(word: str) -> str:
    """A word without its ending, as related words share it.

    >>> [_stem(word) for word in ("manage", "manager", "located", "location", "northern")]
    ['manag', 'manag', 'locat', 'locat', 'north']
    """
    return _ENDING.sub("", word)


def _tokens(
    store: BlockStore, block: int, first_char: int | None, last_char: int | None
) -> tuple[int | None, int | None]:
    """Positions of the first and after the last token of the characters from first to last of a block's text."""
    first, stop = store.block_offsets[block : block + 2].tolist()
    flags = store.flags.slice(first, stop)  # u8 [title + T]
    title = int(np.count_nonzero(is_title(flags)))
    skipped = flags[title:] & NOT_EDGES != 0  # bool [T]
    starts, ends = (each[title:] for each in store.block_places(block))  # u32 [T] each
    first += title
    base = int(starts[0])
    begin = None if first_char is None else first + int(np.searchsorted(ends, base + first_char, side="right"))
    end = None if last_char is None else first + int(np.searchsorted(starts, base + last_char, side="right"))
    if begin is not None and end is None:
        begin += int(np.argmin(np.append(skipped[begin - first :], False)))  # an article is not an edge of a phrase
    return begin, end


def with_literal_evidence(
    candidates: CandidateSpans,
    weights: np.ndarray,
    gaps: Sequence[Gap],
    literal_weight: float,
    *,
    store: BlockStore,
    limits: tuple[int, int | None],
) -> tuple[CandidateSpans, np.ndarray]:
    """The candidates and their weights f64 [m], shares again, with those that fill a gap weighed more.

    A closed gap that is not a candidate, since its ends have no vectors, becomes one if it is within the `limits`, a
    phrase's most tokens and words, and contains no bracket or quotation mark; it counts as a candidate whose weight is
    e^(−λ/2) times the largest. `gaps` are best first.
    """
    if not gaps:
        return candidates, weights
    stops = candidates.starts + candidates.lengths  # i64 [m]
    least = np.exp(-literal_weight / 2) * weights.max(initial=1e-9)
    factors = np.ones(len(weights))  # [m]
    added: dict[tuple[int, int], float] = {}  # the shares of gaps by their tokens
    for gap in gaps:
        fills = np.ones(len(weights), dtype=bool)  # [m]
        fills &= True if gap.start is None else candidates.starts == gap.start
        fills &= True if gap.stop is None else stops == gap.stop
        factors[fills] = np.maximum(factors[fills], np.exp(literal_weight * gap.share))
        if gap.start is not None and gap.stop is not None:
            weights = np.where(fills, np.maximum(weights, least), weights)  # f64 [m]
            flags = store.flags.slice(gap.start, gap.stop)  # u8 [T]
            words = int(np.count_nonzero(flags & np.uint8(TokenFlag.WORD_START)))
            most = MOST_EXPRESSION_TOKENS if is_expression(flags) else limits[0]
            is_short = 0 < len(flags) <= most and (limits[1] is None or words <= limits[1])
            if not fills.any() and is_short and not ((flags & NOT_EDGES) == NOT_EDGES).any():
                added.setdefault((gap.start, gap.stop), gap.share)
    weights = weights * factors
    if added:
        starts, ends = np.array(list(added), dtype=np.int64).T  # i64 [added] each
        no_rows = np.full(len(added), -1)
        hashes = np.array([span_hash(store.token_ids.slice(*tokens)) for tokens in added])  # u64 [added]
        spans = CandidateSpans(starts, ends - starts, no_rows, no_rows, hashes)
        candidates = CandidateSpans.concatenated([candidates, spans])
        own = least * np.exp(literal_weight * np.array(list(added.values())))  # f64 [added]
        weights = np.concatenate([weights, own])  # f64 [m + added]
    total = weights.sum()
    return candidates, weights / total if total else weights
