"""Words, sentences and expressions, from the characters and offsets of tokens of any tokenizer.

A line break always ends a sentence. So does `.`, `!`, `?` or `…`, closing quotes and brackets included, when spaces
and then something other than a lower-case letter follow, unless the dot belongs to an abbreviation or an initial.
The full stops of Chinese and Japanese need no space.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable
from enum import Enum

import numpy as np

from npm.core.types import MASK_TEXT, TokenFlag
from npm.corpus.expressions import joined_characters, marker_characters
from npm.corpus.folding import folded

CLOSING = "\"'”’)]»"
OPENING = "\"'“‘([«¿¡"
LINE_BREAKS = "\n\r\u2028\u2029"

# Possessive quantifiers and look-behinds keep a million dots or spaces linear.
_CANDIDATE = re.compile(
    rf"[{LINE_BREAKS}]\s*+"
    rf"|(?<=[.!?…{re.escape(CLOSING)}])\s++"
    r"|(?<![。！？])[。！？]++[」』”’）]*+\s*+"
)

_ABBREVIATIONS = """
mr mrs ms dr prof st mt gen col sgt capt cpt lt cmdr adm maj rev hon sen gov pres messrs mme mlle
vs approx ca cf e.g i.e eg ie viz jan feb mar apr jun jul aug sep sept oct nov dec
"""
_NUMBERED_ABBREVIATIONS = "no nos nr vol vols pp fig figs ch sec art op eq"

ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
NUMBERED_ABBREVIATIONS = frozenset(_NUMBERED_ABBREVIATIONS.split())
"""Abbreviations only before a number, as in "No. 5"; elsewhere they may be words."""

CONTEXT_CHARS = 1000
"""Longest context to each side of a phrase, in code points: some sentences are entire files."""
NEAR_CHARS, LOOKED_BACK = 300, 32
"""Most sentences end within this distance; also the characters read around a possible boundary."""


def sentence_bounds(text: str) -> np.ndarray:
    """The sentences of `text` without the space around them: i64 [sentences, 2], code points.

    >>> sentence_bounds("Dr. Low came. He stayed!").tolist()
    [[0, 13], [14, 24]]
    """
    edges: list[int] = [len(text) - len(text.lstrip())]
    for candidate in _CANDIDATE.finditer(text):
        start, stop = candidate.span()
        if text[start] in "。！？":
            start = stop - (len(candidate[0]) - len(candidate[0].rstrip()))
        elif not _ends_sentence(text, start, stop):
            continue
        while start > edges[-1] and text[start - 1].isspace():
            start -= 1
        if start <= edges[-1]:  # nothing but space so far
            edges[-1] = max(edges[-1], stop)
            continue
        edges += [start, stop]
    last = len(text)
    while last > edges[-1] and text[last - 1].isspace():
        last -= 1
    edges = [*edges, last] if last > edges[-1] else edges[:-1]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)  # [sentences, 2]


def sentence_around(text: str, start_char: int, end_char: int) -> tuple[int, int]:
    """The sentence, or the run of sentences, that holds the characters [start_char, end_char).

    At most `CONTEXT_CHARS` to each side: a longer sentence is cut between words where it has any.
    """
    for reach in (NEAR_CHARS, CONTEXT_CHARS):
        first, last = max(0, start_char - reach), min(len(text), end_char + reach)
        if first > 0:
            spaces = [at for at in (text.find(" ", first, start_char), text.find("\n", first, start_char)) if at >= 0]
            first = min(spaces) + 1 if spaces else first
        if last < len(text):
            space = max(text.rfind(" ", end_char, last), text.rfind("\n", end_char, last))
            last = space if space >= end_char else last
        bounds = sentence_bounds(text[first:last]) + first  # [sentences, 2]
        before = bounds[bounds[:, 0] <= start_char, 0]
        after = bounds[bounds[:, 1] >= end_char, 1]
        start = int(before[-1]) if len(before) else start_char
        end = int(after[0]) if len(after) else end_char
        # What begins after the cut and ends before it is a sentence of the full text too.
        begins, ends = first == 0 or start > first + LOOKED_BACK, last == len(text) or end < last - LOOKED_BACK
        if begins and ends:
            break
    return start, max(end, end_char)


def _ends_sentence(text: str, start: int, stop: int) -> bool:
    """Return True if the space [start, stop) separates two sentences."""
    if stop == len(text) or any(mark in text[start:stop] for mark in LINE_BREAKS):
        return True
    tail = text[max(0, start - 24) : start].rstrip(CLOSING)
    if not tail or tail[-1] not in ".!?…":
        return False
    following = text[stop]
    if following in OPENING and stop + 1 < len(text):
        following = text[stop + 1]
    if following.islower():
        return False
    if tail[-1] != ".":
        return True
    word = tail[:-1].split()[-1:] or [""]
    name = word[0].lstrip(OPENING).lower()
    if name in NUMBERED_ABBREVIATIONS and following.isdigit():
        return False
    # "J. Smith", "U.S. Army", "p. 5": a single letter, or one after a dot.
    is_initial = name[-1:].isalpha() and (len(name) == 1 or name[-2] == ".")
    if is_initial and len(name) == 1:  # "vitamin C. It": a function word continues no name
        next_word = "".join(_WORD.findall(text[stop : stop + LONGEST_STOP_WORD_CHARS])[:1])
        return len(next_word) > 1 and next_word.lower() in STOP_WORDS
    return not is_initial and name not in ABBREVIATIONS


_FUNCTION_WORDS = """
a an the this that these those such same
i me my mine myself we us our ours ourselves you your yours yourself yourselves
he him his himself she her hers herself it its itself they them their theirs themselves oneself
who whom whose which what where when why how whoever whatever whichever whenever wherever
and or but nor so yet if then else than because although though while whereas unless until since whether
of in on at by to from with without within into onto upon over under above below between among amongst
through throughout during before after against about around across along behind beside besides beyond
near off out up down toward towards via per as for like despite except
am is are was were be been being do does did doing done have has had having
can could will would shall should may might must ought cannot
not no never neither either both each every all any some few many much more most other others another
only own just also too very quite rather even still again once here there now ever always often
however therefore thus hence moreover furthermore meanwhile otherwise instead already almost
doesn didn isn wasn weren aren hasn hadn couldn wouldn shouldn
"""

STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Full words, lower case."""

LINKING_WORDS = frozenset({"of", "the", "and", "s"})
"""Function words that names and titles are built with: Bank of America, War and Peace, Noah's Ark."""

NAMES = frozenset({"US", "IT", "WHO", "May", "Will"})
"""Spellings that are names, not stop-words."""

CONTRACTION_TAILS = frozenset({"s", "t", "d", "m", "ll", "re", "ve"})
"""Letters after an apostrophe in a contraction; stop-words there only, so that "vitamin D" keeps its D."""

APOSTROPHES = "'\u2019\u02bc"


def is_stop_word(word: str, preceding: str = "") -> bool:
    """Return True for a function word; `preceding` is the character before it, which decides on contractions.

    >>> is_stop_word("The"), is_stop_word("us"), is_stop_word("US")
    (True, True, False)
    >>> is_stop_word("s", preceding="'"), is_stop_word("s"), is_stop_word("'ll")
    (True, False, True)
    """
    if word[:1] in APOSTROPHES:
        word, preceding = word[1:], word[:1]
    if word in NAMES:
        return False
    lowered = word.lower()
    return lowered in STOP_WORDS or (preceding != "" and preceding in APOSTROPHES and lowered in CONTRACTION_TAILS)


SPACE, OTHER, JOINER, MARK, ALONE, LETTER = range(6)
"""Kinds of characters: white space; punctuation and symbols; invisible characters inside words, such as the soft
hyphen; combining marks, which belong to the one before them; letters of scripts that write no spaces between words,
each a word; letters and digits."""

ZERO_WIDTH_SPACE = 0x200B  # invisible, but separates words

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
BARRIER_CODE_POINTS = np.frombuffer('()[]{}<>"“”„‟«»‹›;…—§¶•‣◦▪·†‡*|'.encode("utf-32-le"), dtype=np.uint32)
"""Characters that no phrase contains, so that none leaves a bracket or a quotation open."""


CODED = (range(0x40000), range(0xE0000, 0xE1000))
"""Ranges of code points with a category: Unicode has assigned none beyond, and the rest is for private use."""


@functools.cache
def character_kinds() -> np.ndarray:
    """The kind of every code point: u8 [0x110000]; made once, in a twentieth of a second."""
    by_category = {"L": LETTER, "N": LETTER, "M": MARK, "Cf": JOINER}
    kinds = np.full(0x110000, OTHER, dtype=np.uint8)  # [code points]
    for code_point in itertools.chain(*CODED):
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


def is_title(flags: np.ndarray) -> np.ndarray:
    """Mask bool [T] of the tokens, of flags u8 [T], of the title in front of a block.

    >>> import numpy as np
    >>> is_title(np.array([TokenFlag.TITLE, TokenFlag.SPECIAL, TokenFlag.LINKING], dtype=np.uint8)).tolist()
    [True, False, False]
    """
    title = np.uint8(TokenFlag.TITLE)
    return np.asarray((flags & title) == title)  # bool [T]


def is_joined(flags: np.ndarray) -> np.ndarray:
    """Mask of the tokens, of flags u8 [T], that belong to the expression of the token before them: bool [T].

    >>> import numpy as np
    >>> is_joined(np.array([TokenFlag.JOINED, TokenFlag.TITLE, TokenFlag.LINKING | TokenFlag.STOPWORD])).tolist()
    [True, False, False]
    """
    others = np.uint8(TokenFlag.SPECIAL | TokenFlag.STOPWORD)
    return np.asarray((flags & (np.uint8(TokenFlag.JOINED) | others)) == np.uint8(TokenFlag.JOINED))  # bool [T]


def flagged_tokens(text: str, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trimmed starts and ends i64 [T] of tokens with `offsets` i64 [T, 2] in `text`, in order, and `TokenFlag`s u8 [T].

    A token starts a word unless its first character is of the same word as the last character of the
    token before it; it ends a word if the next one starts one. A token of nothing but space is `PUNCTUATION` and
    neither starts nor ends a word. Brackets, quotation marks and list markers count as stop-words; no token of an
    expression (`npm.corpus.expressions`) does, and its first and last mark, such as `$` and `%`, are no punctuation.
    """
    characters = code_points(text)  # u32 [characters]
    kinds = character_kinds()[characters]  # u8 [characters]
    starts, ends = trimmed_offsets(offsets[:, 0], offsets[:, 1], kinds == SPACE)  # i64 [T] each
    count = len(starts)
    flags = np.zeros(count, dtype=np.uint8)  # [T]
    if not count:
        return starts, ends, flags
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
    first_characters = characters[np.minimum(starts, len(kinds) - 1)]  # [T]
    barred = np.cumsum(np.append(0, np.isin(characters, BARRIER_CODE_POINTS) | marker_characters(text)))
    flags[barred[ends] > barred[starts]] |= TokenFlag.STOPWORD.value
    joined = np.append(joined_characters(text), False)  # bool [characters + 1]
    is_joined = joined[starts] & (ends > starts)  # bool [T]
    flags[is_joined] = flags[is_joined] & ~np.uint8(TokenFlag.STOPWORD) | np.uint8(TokenFlag.JOINED)
    is_first = ~is_joined & joined[ends] & (ends > starts)  # bool [T], of an expression
    flags[is_first] &= ~np.uint8(TokenFlag.STOPWORD | TokenFlag.LINKING | TokenFlag.PUNCTUATION)
    flags[is_joined & ~joined[ends]] &= ~np.uint8(TokenFlag.PUNCTUATION)
    is_clause = (ends - starts == 1) & np.isin(first_characters, CLAUSE_CODE_POINTS)  # [T]
    flags[is_clause] |= TokenFlag.CLAUSE_PUNCTUATION.value
    sentence_starts = np.searchsorted(ends, sentence_bounds(text)[:, 0], side="right")  # [sentences]
    flags[sentence_starts[sentence_starts < count]] |= TokenFlag.SENTENCE_START.value
    return starts, ends, flags


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
    """Masks bool [words] of words with characters [start, end) that are stop-words, and that link."""
    stop_words = np.zeros(len(starts), dtype=bool)  # [words]
    linking = np.zeros(len(starts), dtype=bool)  # [words]
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        word = text[start:end]
        if len(word) <= LONGEST_STOP_WORD_CHARS and is_stop_word(word, text[max(0, start - 1) : start]):
            stop_words[number] = True
            linking[number] = word.lower().strip(APOSTROPHES) in LINKING_WORDS
    return stop_words, linking


_WORD = re.compile(r"\w+")
_LIKE_FUNCTION_WORDS = re.compile(r"(?<!\w)(?:[A-Z]+(?:&[A-Z]+)+|(?<![A-Z] )[A-Z]{2,}(?! [A-Z]{2})|May|Will)(?!\w)")


class Stemming(Enum):
    """Endings that are removed from a word."""

    none = "none"
    plural = "plural"


def words_of(text: str, stemming: Stemming = Stemming.none, *, keep_stopwords: bool = True) -> list[str]:
    """Case-folded runs of letters, digits and underscores, in order.

    >>> words_of("Größe der 2 Städte")
    ['grösse', 'der', '2', 'städte']
    >>> words_of("Croatia's seat is in", keep_stopwords=False)
    ['croatia', 'seat']
    """
    return counted_forms(folded_words(text), stemming, keep_stopwords=keep_stopwords)


def folded_words(text: str) -> list[str]:
    """The full words of a text, folded, function words included; then names that look like these, as they are written.

    >>> folded_words("Ask WHO or AT&T"), folded_words("BANK OF AMERICA")
    (['ask', 'who', 'or', 'at', 't', 'WHO', 'AT&T'], ['bank', 'of', 'america'])
    """
    return [*_WORD.findall(folded(text)), *names_like_function_words(text)]


def names_like_function_words(text: str) -> list[str]:
    """Names such as WHO, IT and AT&T, in order; none of a run of words in capitals."""
    return [name for name in _LIKE_FUNCTION_WORDS.findall(text) if "&" in name or name.lower() in STOP_WORDS]


def counted_forms(words: Iterable[str], stemming: Stemming, *, keep_stopwords: bool) -> list[str]:
    """The form in which each folded word is counted; function words are omitted unless they are kept."""
    if not keep_stopwords:
        words = [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS]
    return [_singular(word) for word in words] if stemming is Stemming.plural else list(words)


def _singular(word: str) -> str:
    """The S-stemmer (Harman 1991).

    >>> [_singular(word) for word in ("countries", "rivers", "glass", "gas")]
    ['country', 'river', 'glass', 'ga']
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def without_mask(text: str) -> str:
    """A question without its final mask; any other text as it is.

    >>> without_mask("Who governs Iceland? <mask>."), without_mask("Who governs <mask>? <mask>.")
    ('Who governs Iceland?', 'Who governs <mask>? <mask>.')
    """
    question = text.removesuffix(f" {MASK_TEXT}.")
    return question if question.endswith("?") and MASK_TEXT not in question else text


ANSWER_WORDS = frozenset(("a", "answer", "answers", "is", "it", "the"))
"""Words between a question and the mask that answers it."""


def lexical_query(text: str) -> str:
    """Words to look up for a text with masks: the question that its first mask answers, else all but the masks.

    >>> lexical_query("Who wrote it? The answer is: <mask>."), lexical_query("Where am I? Rome lies on <mask>.")
    ('Who wrote it?', 'Where am I? Rome lies on  .')
    >>> lexical_query("Rome lies on <mask>. Why?")
    'Rome lies on  . Why?'
    >>> lexical_query("Who wrote what? <mask> wrote <mask>."), lexical_query("<mask> lies on <mask>.")
    ('Who wrote what?', '  lies on  .')
    """
    before, found, after = text.partition(MASK_TEXT)
    question, mark, said = before.partition("?")
    if mark and found and {*words_of(said)} <= ANSWER_WORDS:
        return question + mark
    return f"{before} {after.replace(MASK_TEXT, ' ')}"


def normalized_text(text: str) -> str:
    """Case-folded, composed (NFC), runs of space made one, none at the ends.

    >>> normalized_text("  Bank of\\nAmerica "), normalized_text("Cafe\\u0301") == normalized_text("CAFÉ")
    ('bank of america', True)
    """
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split())


QUESTION_ENDS = " .?!。？！"
BLANK = re.compile(r"_{3,}|\[MASK\]", re.IGNORECASE)
"""Other marks of a missing phrase."""


def with_mask(text: str) -> str:
    """A text with its mask, written as `<mask>`, `___` or `[MASK]`; a question without one gets it behind it.

    >>> with_mask("Who governs Iceland?!"), with_mask("Iceland is governed by ___."), with_mask("capital of Iceland.")
    ('Who governs Iceland? <mask>.', 'Iceland is governed by <mask>.', 'capital of Iceland? <mask>.')
    """
    masked = text if MASK_TEXT in text else BLANK.sub(MASK_TEXT, text)
    return masked if MASK_TEXT in masked else f"{masked.rstrip(QUESTION_ENDS)}? {MASK_TEXT}."


def with_full_stop(text: str) -> str:
    """A text that ends with a word or a mask as a sentence, so that a full stop or none makes no difference.

    Masks alone are left as they are.

    >>> with_full_stop("Iceland is governed by <mask>"), with_full_stop("Is it <mask>?"), with_full_stop("<mask>")
    ('Iceland is governed by <mask>.', 'Is it <mask>?', '<mask>')
    """
    bare = text.rstrip()
    if not bare.replace(MASK_TEXT, "").strip():
        return text
    return f"{bare}." if bare.endswith(MASK_TEXT) or bare[-1:].isalnum() else text


def content_words(phrase: str) -> list[str]:
    """The case-folded words of `phrase` without function words, or all if there are no others."""
    words = words_of(phrase)
    return [word for word in words if word not in STOP_WORDS and word not in CONTRACTION_TAILS] or words
