"""Words that stand near groups of given words in a phrase index: nearer to one group than to the others.

A word's vector is the mean over its occurrences of the vectors of its first and of its last token, side by side; means
of contextual vectors serve well as vectors of words (Bommasani et al., ACL 2020). The inner product of two of them
is then the sum of the start and of the end similarity, as in filling a mask.

Shapes: T sampled tokens, n occurrences of words in the sample, W words, G groups, d dimensions of a token's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.core.types import TokenFlag
from npm.corpus.blocks import concatenated_ranges
from npm.corpus.text import normalised_text
from npm.evaluation.zero_shot.occurrences import WordOccurrences, find_occurrences
from npm.retrieval.answers import SurfaceReader

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


NEIGHBOURS_PER_GROUP = 20
"""Words that are added to a group unless said otherwise."""
SAMPLED_TOKENS = 1 << 21
"""Tokens of a corpus that words are collected from, in blocks spread evenly over it."""
LEAST_OCCURRENCES = 8
"""A word that the sample holds less often has too vague a mean."""
MOST_WORDS = 16_384
"""The most frequent words are compared: with 2 · 384 dimensions 50 MB."""
MOST_WORD_TOKENS = 8
OCCURRENCES_AVERAGED = 1024
"""Of a word of a group, spread evenly over the corpus."""
NEAREST_PER_WORD = 2
"""Nearest words of a group, for each word asked for, that are ranked by how much nearer they are than to others."""
ROWS_PER_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class SampledWords:
    """The words of a sample of a corpus, most frequent first, and where they stand in it."""

    words: tuple[str, ...]  # W, normalised
    word_numbers: np.ndarray  # i64 [n]
    start_rows: np.ndarray  # i64 [n]
    end_rows: np.ndarray  # i64 [n]


def neighbouring_words(
    index: PhraseIndex, encoder: Encoder, groups: Sequence[Sequence[str]], count: int
) -> list[tuple[str, ...]]:
    """For each of G groups of words up to `count` ≥ 1 others, those first that are nearest to it compared to the rest.

    Compared are whole words of letters of the live corpus, function words and those of the groups aside. Of those whose
    nearest group it is, the `NEAREST_PER_WORD` · `count` nearest to a group are ranked by cosine with this group less
    the largest cosine with another; the mean of all words is taken off every vector first. Without another group,
    by the cosine alone. The same index gives the same words. Raises ArtifactError if `encoder` did not make the index,
    SettingError if no word of a group has a vector in it.
    """
    occurrences = find_occurrences(index, encoder, [word for group in groups for word in group])
    group_means = _group_means(index, occurrences, groups)  # f32 [G, 2d]
    sampled = sampled_words(index, encoder, without={normalised_text(word) for group in groups for word in group})
    if not sampled.words:
        return [()] * len(groups)
    means = word_means(index, sampled.word_numbers, sampled.start_rows, sampled.end_rows)  # f32 [W, 2d]
    cosines = _centred_cosines(means, group_means)  # f32 [W, G]
    return [
        tuple(sampled.words[number] for number in _nearest(cosines, group, count).tolist())
        for group in range(len(groups))
    ]


def _nearest(cosines: np.ndarray, group: int, count: int) -> np.ndarray:
    """The words i64 [<= count] that belong to `group` by their cosines f32 [W, G], the clearest first."""
    own = cosines[:, group]  # [W]
    others = np.delete(cosines, group, axis=1).max(axis=1, initial=-np.inf)  # [W]
    belonging = np.flatnonzero(own > others)  # i64 [m]
    # Stable sorts: words that are equally near stay in the order of their frequency.
    nearest = belonging[np.argsort(-own[belonging], kind="stable")][: NEAREST_PER_WORD * count]  # i64 [<= m]
    margins = own[nearest] - others[nearest] if cosines.shape[1] > 1 else own[nearest]  # [<= m]
    return nearest[np.argsort(-margins, kind="stable")][:count]


def _centred_cosines(means: np.ndarray, group_means: np.ndarray) -> np.ndarray:
    """Cosines f32 [W, G] of words f32 [W, 2d] and groups f32 [G, 2d] around the mean of all words.

    Contextual vectors share a large common part; with it every word would be near every group.
    """
    centre = means.mean(axis=0)  # f32 [2d]
    centred, groups = means - centre, group_means - centre  # f32 [W, 2d], [G, 2d]
    lengths = np.linalg.norm(centred, axis=1)[:, None] * np.linalg.norm(groups, axis=1)  # f32 [W, G]
    cosines: np.ndarray = centred @ groups.T / np.maximum(lengths, np.finfo(np.float32).tiny)  # f32 [W, G]
    return cosines


def _group_means(index: PhraseIndex, found: WordOccurrences, groups: Sequence[Sequence[str]]) -> np.ndarray:
    """The mean f32 [G, 2d] of the vectors of each group's words, however often each of them stands."""
    counts, means = found.counts, []
    first = 0
    for group in groups:
        words = np.arange(first, first + len(group))  # i64 [words of the group]
        first += len(group)
        if not counts[words].any():
            shown = ", ".join(found.words[word] for word in words[:8])
            raise SettingError(f"index={index.folder} has no vector of any of the words {shown}: choose other words")
        chosen = [
            np.linspace(found.offsets[word], found.offsets[word + 1] - 1, min(counts[word], OCCURRENCES_AVERAGED))
            for word in words[counts[words] > 0]
        ]
        numbers = np.repeat(np.arange(len(chosen)), [len(each) for each in chosen])  # i64 [n]
        picked = np.concatenate(chosen).astype(np.int64)  # i64 [n]
        of_words = word_means(index, numbers, found.start_rows[picked], found.end_rows[picked])  # f32 [words, 2d]
        means.append(of_words.mean(axis=0))
    return np.stack(means)  # f32 [G, 2d]


def word_means(index: PhraseIndex, numbers: np.ndarray, start_rows: np.ndarray, end_rows: np.ndarray) -> np.ndarray:
    """The mean vectors f32 [W, 2d] of the words `numbers` i64 [n] in 0 … W - 1, from the rows i64 [n] of their ends."""
    assert index.vectors is not None, "an opened index has its vectors"
    dimensions = index.vectors.shape[1]
    sums = np.zeros((int(numbers.max()) + 1, 2 * dimensions), dtype=np.float32)  # [W, 2d]
    for first in range(0, len(numbers), ROWS_PER_CHUNK):
        here = slice(first, first + ROWS_PER_CHUNK)
        order = np.argsort(numbers[here], kind="stable")  # i64 [chunk]
        words, firsts = np.unique(numbers[here][order], return_index=True)  # i64 [words of the chunk] each
        for side, rows in enumerate((start_rows, end_rows)):
            vectors = index.vectors.take(rows[here][order]).astype(np.float32)  # f32 [chunk, d]
            sums[words, side * dimensions : (side + 1) * dimensions] += np.add.reduceat(vectors, firsts, axis=0)
    return sums / np.bincount(numbers)[:, None].astype(np.float32)  # f32 [W, 2d]


def sampled_words(index: PhraseIndex, encoder: Encoder, *, without: set[str]) -> SampledWords:
    """The frequent words of a sample of the live corpus: of letters only, with vectors, and not among `without`."""
    store = index.store
    starts, lengths = _whole_words(index)  # i64 [n] each
    codes = _sequence_codes(store.token_ids.take(concatenated_ranges(starts, starts + lengths)), lengths)  # i64 [n]
    _, firsts, numbers, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    surfaces = SurfaceReader(store, encoder.tokenizer).texts(starts[firsts], lengths[firsts])
    forms: dict[str, int] = {}
    # Several token sequences may be one word, such as `Great` and ` great` for a cased tokenizer.
    form_of = np.array([forms.setdefault(normalised_text(surface), len(forms)) for surface in surfaces], dtype=np.int64)
    form_counts = np.bincount(form_of, weights=counts, minlength=len(forms))  # f64 [forms]
    is_word = np.array([form.isalpha() and form not in without for form in forms], dtype=bool)  # [forms]
    eligible = np.flatnonzero(is_word & (form_counts >= LEAST_OCCURRENCES))  # i64 [m]
    kept = eligible[np.argsort(-form_counts[eligible], kind="stable")][:MOST_WORDS]  # i64 [W]
    number_of = np.full(len(forms), -1, dtype=np.int64)  # [forms]
    number_of[kept] = np.arange(len(kept))
    word_numbers = number_of[form_of][numbers]  # i64 [n], -1 for what is left out
    chosen = word_numbers >= 0  # bool [n]
    start_rows, _ = index.rows.rows_at(starts[chosen])  # i64 [n]
    end_rows, _ = index.rows.rows_at((starts + lengths - 1)[chosen])  # i64 [n]
    spelled = list(forms)
    return SampledWords(tuple(spelled[form] for form in kept.tolist()), word_numbers[chosen], start_rows, end_rows)


def _whole_words(index: PhraseIndex) -> tuple[np.ndarray, np.ndarray]:
    """First positions and lengths i64 [n] of the words with a vector at either end, in sampled live blocks."""
    store = index.store
    positions = _sampled_positions(index)  # i64 [T]
    flags = store.flags.take(positions)  # u8 [T]
    barred = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
    first_tokens = np.flatnonzero((flags & TokenFlag.WORD_START.value != 0) & (flags & barred == 0))  # i64 [m]
    last_tokens = np.flatnonzero(flags & TokenFlag.WORD_END.value)  # i64 [e]
    next_ends = np.searchsorted(last_tokens, first_tokens)  # i64 [m]
    first_tokens = first_tokens[next_ends < len(last_tokens)]
    ends = last_tokens[next_ends[next_ends < len(last_tokens)]]  # i64 [m]
    starts, lengths = positions[first_tokens], positions[ends] - positions[first_tokens] + 1  # i64 [m] each
    is_whole = (lengths <= MOST_WORD_TOKENS) & (store.block_of(starts) == store.block_of(positions[ends]))  # bool [m]
    _, has_start = index.rows.rows_at(starts)  # bool [m]
    _, has_end = index.rows.rows_at(positions[ends])  # bool [m]
    kept = is_whole & has_start & has_end  # bool [m]
    return starts[kept], lengths[kept]


def _sampled_positions(index: PhraseIndex) -> np.ndarray:
    """The token positions i64 [T] of live blocks spread evenly over the corpus, all of them where they are few."""
    offsets = index.store.block_offsets
    live = index.live_blocks
    blocks = np.arange(len(offsets) - 1) if live is None else np.flatnonzero(live)  # i64 [blocks]
    tokens = int((offsets[blocks + 1] - offsets[blocks]).sum())
    if tokens > SAMPLED_TOKENS:
        blocks = blocks[np.linspace(0, len(blocks) - 1, len(blocks) * SAMPLED_TOKENS // tokens).astype(np.int64)]
    return concatenated_ranges(offsets[blocks], offsets[blocks + 1])


def _sequence_codes(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Numbers i64 [n], equal for equal sequences; those have `lengths` i64 [n] and follow each other in `token_ids`.

    >>> _sequence_codes(np.array([5, 5, 6, 5, 5, 6]), np.array([1, 2, 1, 2])).tolist()
    [5, 7, 5, 7]
    """
    firsts = np.cumsum(lengths) - lengths  # i64 [n]
    codes = token_ids[firsts].astype(np.int64)  # [n]
    id_count = unused = int(token_ids.max(initial=0)) + 1
    for place in range(1, int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)  # i64 [m]
        grown = codes[longer] * id_count + token_ids[firsts[longer] + place]  # i64 [m]
        pairs, numbers = np.unique(grown, return_inverse=True)
        codes[longer] = unused + numbers
        unused += len(pairs)
    return codes
