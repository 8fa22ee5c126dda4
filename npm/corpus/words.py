"""Where words begin and end, decided from the characters and offsets of tokens, whatever the tokenizer."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

from npm.corpus.sentences import sentence_bounds
from npm.corpus.stopwords import APOSTROPHES, LINKING_WORDS, is_stop_word
from npm.types import TokenFlag

SPACE, OTHER, JOINER, MARK, ALONE, LETTER = range(6)
"""Kinds of characters: white space; punctuation and symbols; invisible characters inside words, such as the soft
hyphen; combining marks, which belong to what is before them; letters of scripts that write no spaces between words,
each a word of its own; letters and digits."""

ZERO_WIDTH_SPACE = 0x200B  # invisible, but there to part words

UNSPACED_SCRIPTS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility forms
    (0x20000, 0x3FFFF),  # Han, supplementary
)

LONGEST_STOP_WORD_CHARS = 12
CLAUSE_CODE_POINTS = np.frombuffer("!,.:?".encode("utf-32-le"), dtype=np.uint32)


@functools.cache
def character_kinds() -> np.ndarray:
    """The kind of every code point: u8 [0x110000]; made once, in a quarter of a second."""
    by_category = {"L": LETTER, "N": LETTER, "M": MARK, "Cf": JOINER}
    kinds = np.empty(0x110000, dtype=np.uint8)  # [code points]
    for code_point in range(0x110000):
        character = chr(code_point)
        category = unicodedata.category(character)
        kind = by_category.get(category, by_category.get(category[0], OTHER))
        kinds[code_point] = SPACE if character.isspace() else kind
    kinds[ZERO_WIDTH_SPACE] = OTHER
    for first, last in UNSPACED_SCRIPTS:
        script = kinds[first : last + 1]
        script[script == LETTER] = ALONE
    return kinds


def code_points(text: str) -> np.ndarray:
    """The characters of `text`: u32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def trimmed_offsets(starts: np.ndarray, ends: np.ndarray, is_space: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token offsets i64 [T] without the space at both ends that some tokenizers count in.

    A token of nothing but space becomes empty, at its end. `is_space` is bool [characters].
    """
    if not len(starts):
        return starts, ends
    positions = np.arange(len(is_space) + 1, dtype=np.int64)  # [characters + 1]
    padded = np.append(is_space, False)  # [characters + 1]
    next_text = np.minimum.accumulate(np.where(padded, len(is_space), positions)[::-1])[::-1]  # [characters + 1]
    after_text = np.maximum.accumulate(np.where(np.append(True, is_space), 0, positions))  # [characters + 1]
    starts = np.minimum(next_text[starts], ends)  # [T]
    return starts, np.maximum(after_text[ends], starts)


def token_flags(text: str, starts: np.ndarray, ends: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """What the surface of each token says about it: u8 [T] of `TokenFlag`.

    `starts` and `ends` are trimmed offsets i64 [T] in `text`, in order; `kinds` are its characters' kinds u8
    [characters]. A token starts a word unless its first character is of the same word as the last character of the
    token before it; it ends a word if the next one starts one. A token of nothing but space is `PUNCTUATION` and
    neither starts nor ends a word.
    """
    count = len(starts)
    flags = np.zeros(count, dtype=np.uint8)  # [T]
    if not count:
        return flags
    tokens = np.flatnonzero(ends > starts)  # [X], those with text
    char_words = word_numbers(kinds)  # [characters]
    begins = char_words[starts[tokens[1:]]] != char_words[ends[tokens[:-1]] - 1]  # [X - 1]
    begins = np.append(True, begins)[: len(tokens)]  # [X]
    finishes = np.append(begins[1:], True)[: len(tokens)]  # [X]
    first, last = tokens[begins], tokens[finishes]  # [words]
    flags[first] |= TokenFlag.WORD_START.value
    flags[last] |= TokenFlag.WORD_END.value
    stop_words, linking = _function_words(text, starts[first], ends[last])  # [words]
    words = np.cumsum(begins) - 1  # [X]
    flags[tokens[stop_words[words]]] |= TokenFlag.STOPWORD.value
    flags[tokens[linking[words]]] |= np.uint8(TokenFlag.LINKING.value)
    written = np.cumsum(np.append(0, kinds >= MARK))  # [characters + 1], marks, letters and digits before each
    flags[written[ends] == written[starts]] |= TokenFlag.PUNCTUATION.value
    first_characters = code_points(text)[np.minimum(starts, len(kinds) - 1)]  # [T]
    is_clause = (ends - starts == 1) & np.isin(first_characters, CLAUSE_CODE_POINTS)  # [T]
    flags[is_clause] |= TokenFlag.CLAUSE_PUNCTUATION.value
    sentence_starts = np.searchsorted(ends, sentence_bounds(text)[:, 0], side="right")  # [sentences]
    flags[sentence_starts[sentence_starts < count]] |= TokenFlag.SENTENCE_START.value
    return flags


def word_numbers(kinds: np.ndarray) -> np.ndarray:
    """The word that each character belongs to, from 1: i64 [characters]; symbols and spaces count as words.

    >>> word_numbers(np.array([LETTER, MARK, LETTER, OTHER, LETTER, ALONE, ALONE])).tolist()
    [1, 1, 1, 2, 3, 4, 5]
    """
    before, after = kinds[:-1], kinds[1:]  # [characters - 1]
    continues = (after == LETTER) & ((before == LETTER) | (before == MARK) | (before == JOINER))
    continues |= ((after == MARK) | (after == JOINER)) & (before >= JOINER)  # [characters - 1]
    return np.cumsum(np.append(True, ~continues)[: len(kinds)])  # [characters]


def _function_words(text: str, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each word with characters [start, end) is a stop-word, and one that links: bool [words] each."""
    stop_words = np.zeros(len(starts), dtype=bool)  # [words]
    linking = np.zeros(len(starts), dtype=bool)  # [words]
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        word = text[start:end]
        if len(word) <= LONGEST_STOP_WORD_CHARS and is_stop_word(word, text[max(0, start - 1) : start]):
            stop_words[number] = True
            linking[number] = word.lower().strip(APOSTROPHES) in LINKING_WORDS
    return stop_words, linking
