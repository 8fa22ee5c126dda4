"""Where given words stand in a corpus: one pass over its token ids, whatever the number of words.

A word may be several tokens. It is looked for as the tokenizer writes it at the start of a text and after a space, as
given and with a capital, and found where these tokens begin and end with a word of the text.

Shapes: W words, n occurrences, P nodes of the trie, E its edges, T tokens of a chunk, a walks that are still going on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.blocks import concatenated_ranges
from npm.types import TokenFlag

if TYPE_CHECKING:
    from npm.corpus.store import BlockStore
    from npm.models.encoder import Encoder
    from npm.retrieval.phrase_index import PhraseIndex

TOKENS_PER_CHUNK = 1 << 20
"""Tokens looked at together: about 20 MB, whatever the corpus."""


@dataclass(frozen=True, slots=True)
class WordOccurrences:
    """All places where words stand with a vector at either end; word by word, in corpus order within a word."""

    words: tuple[str, ...]
    offsets: np.ndarray  # i64 [W + 1]; the occurrences of word w are [offsets[w], offsets[w + 1])
    starts: np.ndarray  # i64 [n], position of the first token
    lengths: np.ndarray  # i64 [n], tokens
    start_rows: np.ndarray  # i64 [n], row of the first token
    end_rows: np.ndarray  # i64 [n], row of the last token; equal to `start_rows` for one token
    total_counts: np.ndarray  # i64 [W], how often the word stands in the live corpus, with vectors or without

    @property
    def counts(self) -> np.ndarray:
        """How many occurrences each word has, i64 [W]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class _Found:
    """Places of words in one chunk."""

    words: np.ndarray  # i64 [n]
    starts: np.ndarray  # i64 [n], positions in the corpus
    lengths: np.ndarray  # i64 [n], tokens


def find_occurrences(index: PhraseIndex, encoder: Encoder, words: Sequence[str]) -> WordOccurrences:
    """Where each of `words` [W] stands in the live blocks of `index`, and which vectors are at its ends.

    Takes 40 bytes an occurrence, besides what a chunk of the corpus takes. Raises ArtefactError unless `encoder` made
    the index.
    """
    encoder = index.fitted(encoder)
    totals = np.zeros(len(words), dtype=np.int64)  # [W]
    pieces: list[tuple[np.ndarray, ...]] = []
    for found in _found_in(index.store, _Trie.of_words(encoder, words)):
        is_live = _in_live_blocks(index, found.starts)  # bool [n]
        totals += np.bincount(found.words[is_live], minlength=len(words))
        start_rows, has_start = index.rows.rows_at(found.starts)  # i64 [n], bool [n]
        end_rows, has_end = index.rows.rows_at(found.starts + found.lengths - 1)  # i64 [n], bool [n]
        kept = is_live & has_start & has_end  # bool [n]
        columns = (found.words, found.starts, found.lengths, start_rows, end_rows)
        pieces.append(tuple(column[kept] for column in columns))
    joined = [np.concatenate(column) for column in zip(*pieces, strict=True)]  # i64 [n] each
    order = np.lexsort((joined[2], joined[1], joined[0]))  # by word, position and length
    of_word, starts, lengths, start_rows, end_rows = (column[order] for column in joined)
    return WordOccurrences(
        words=tuple(words),
        offsets=np.searchsorted(of_word, np.arange(len(words) + 1)),
        starts=starts,
        lengths=lengths,
        start_rows=start_rows,
        end_rows=end_rows,
        total_counts=totals,
    )


def name_counts(index: PhraseIndex, encoder: Encoder, names: Sequence[str]) -> np.ndarray:
    """How often each of `names` [W] stands in the live blocks of `index`, with vectors or without: i64 [W]."""
    counts = np.zeros(len(names), dtype=np.int64)  # [W]
    for found in _found_in(index.store, _Trie.of_words(encoder, names)):
        is_live = _in_live_blocks(index, found.starts)  # bool [n]
        counts += np.bincount(found.words[is_live], minlength=len(names))
    return counts


def token_forms(encoder: Encoder, words: Sequence[str]) -> list[set[tuple[int, ...]]]:
    """The token ids that may stand for each of `words` [W]; none for one that the tokenizer does not know.

    A cased tokenizer writes a word in up to four ways: with a space before it or not, with a capital or as given.
    """
    spellings = [(word, word[:1].upper() + word[1:]) for word in words]
    texts = [before + form for pair in spellings for form in pair for before in ("", " ")]
    encoded = (
        encoder.tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
        )["input_ids"]
        if texts
        else []
    )
    unknown = encoder.tokenizer.unk_token_id
    forms: list[set[tuple[int, ...]]] = []
    for first in range(0, len(texts), 4):
        # A token for "anything unknown" would find every word that the tokenizer does not know.
        forms.append({tuple(ids) for ids in encoded[first : first + 4] if ids and unknown not in ids})
    return forms


class _Trie:
    """Token sequences that share their beginnings; node 0 is the root, and no walk comes back to it."""

    def __init__(self, forms: Sequence[set[tuple[int, ...]]]) -> None:
        children: dict[tuple[int, int], int] = {}
        ends: list[tuple[int, int]] = []  # node, word
        for word, sequences in enumerate(forms):
            for sequence in sorted(sequences):
                node = 0
                for token_id in sequence:
                    node = children.setdefault((node, token_id), len(children) + 1)
                ends.append((node, word))
        edges = np.array([(*edge, node) for edge, node in children.items()], dtype=np.int64).reshape(-1, 3)  # [E, 3]
        self.max_tokens = max((len(sequence) for sequences in forms for sequence in sequences), default=0)
        self._token_count = int(edges[:, 1].max(initial=0)) + 1
        keys = edges[:, 0] * self._token_count + edges[:, 1]  # i64 [E]
        order = np.argsort(keys)
        self._keys, self._targets = keys[order], edges[order, 2]  # i64 [E] each
        self._first = np.zeros(self._token_count + 1, dtype=np.int64)  # [largest id + 2], node after the root
        from_root = edges[edges[:, 0] == 0]  # [edges of the root, 3]
        self._first[from_root[:, 1]] = from_root[:, 2]
        words_of_nodes = np.array(sorted(ends), dtype=np.int64).reshape(-1, 2)  # [ends, 2]
        self._words = words_of_nodes[:, 1]  # i64 [ends]
        self._offsets = np.searchsorted(words_of_nodes[:, 0], np.arange(len(children) + 2))  # i64 [P + 1]

    @classmethod
    def of_words(cls, encoder: Encoder, words: Sequence[str]) -> _Trie:
        """The trie of all forms of `words`."""
        return cls(token_forms(encoder, words))

    def begun(self, token_ids: np.ndarray) -> np.ndarray:
        """The node of each first token of `token_ids` [T], i64 [T]; 0 where no word begins so."""
        return self._first.take(token_ids, mode="clip")  # larger ids than all known take the last place, a 0

    def continued(self, nodes: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """The nodes that the edges `token_ids` i64 [a] lead to from `nodes` i64 [a]; 0 where there is no such edge."""
        keys = nodes * self._token_count + token_ids  # i64 [a]
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)  # i64 [a]
        leads = (self._keys[places] == keys) & (token_ids < self._token_count)  # bool [a]
        return np.where(leads, self._targets[places], 0)

    def words_at(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The words i64 [n] that end at `nodes` i64 [a], and at which of these each ends, i64 [n]."""
        first, stop = self._offsets[nodes], self._offsets[nodes + 1]  # i64 [a] each
        return self._words[concatenated_ranges(first, stop)], np.repeat(np.arange(len(nodes)), stop - first)


def _found_in(store: BlockStore, trie: _Trie) -> Iterator[_Found]:
    """All places of the trie's words, chunk by chunk; at least one chunk."""
    if trie.max_tokens == 0:
        yield _Found(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        return
    for first in range(0, store.token_count, TOKENS_PER_CHUNK):
        stop = min(first + TOKENS_PER_CHUNK, store.token_count)
        ahead = min(stop + trie.max_tokens - 1, store.token_count)  # words that begin here may end a little later
        token_ids = store.token_ids.slice(first, ahead)  # [T]
        flags = store.flags.slice(first, ahead)  # u8 [T]
        yield _walked(store, trie, token_ids, flags, first=first, begins=stop - first)


def _walked(
    store: BlockStore, trie: _Trie, token_ids: np.ndarray, flags: np.ndarray, *, first: int, begins: int
) -> _Found:
    """The words that begin among the first `begins` tokens of a chunk, whose first token has position `first`."""
    nodes = trie.begun(token_ids[:begins])  # i64 [begins]
    starts = np.flatnonzero((nodes > 0) & ((flags[:begins] & TokenFlag.WORD_START) != 0))  # i64 [a], in the chunk
    nodes = nodes[starts]  # i64 [a]
    block_stops = store.block_offsets[store.block_of(first + starts) + 1] - first  # i64 [a], in the chunk
    pieces: list[tuple[np.ndarray, ...]] = []
    for length in range(1, trie.max_tokens + 1):
        lasts = starts + length - 1  # i64 [a]
        at_end = np.flatnonzero((flags[lasts] & TokenFlag.WORD_END) != 0)  # places among the walks
        words, which = trie.words_at(nodes[at_end])  # i64 [n] each
        found = starts[at_end[which]]  # i64 [n]
        pieces.append((words, first + found, np.full(len(found), length)))
        if length == trie.max_tokens:
            break
        going = np.flatnonzero(lasts + 1 < block_stops)
        starts, nodes, block_stops = starts[going], nodes[going], block_stops[going]  # i64 [a] each
        nodes = trie.continued(nodes, token_ids[starts + length].astype(np.int64))  # i64 [a]
        goes_on = np.flatnonzero(nodes)
        starts, nodes, block_stops = starts[goes_on], nodes[goes_on], block_stops[goes_on]  # i64 [a] each
    return _Found(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _in_live_blocks(index: PhraseIndex, positions: np.ndarray) -> np.ndarray:
    """Whether each of `positions` i64 [n] is in a block that was not deleted, bool [n]."""
    if index.live_blocks is None:
        return np.ones(len(positions), dtype=bool)
    return index.live_blocks[index.store.block_of(positions)]
