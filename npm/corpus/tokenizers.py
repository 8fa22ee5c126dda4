"""Tokenizers that are made here: of whole words, and pieces learned from a corpus by merging pairs.

The most frequent pair of neighbouring pieces becomes a piece, again and again (Sennrich et al. 2016, arXiv 1508.07909,
§3.2). Equally frequent pairs are merged in the order of their pieces, the older first: the trainers of the library
`tokenizers` break ties differently from process to process. Written as tokenizer.json, which `transformers` reads.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from npm.core.artifact import finished_folder, write_folder
from npm.core.errors import CorpusError, SettingError
from npm.core.files import digest_of, read_object
from npm.core.settings import Settings
from npm.core.types import Progress, silent
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.markup import visible

TOKENIZER_KIND = "tokenizer"
PAD, UNKNOWN, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
INSIDE = "##"
"""What a WordPiece piece within a word begins with."""
WORD_MARKS = (INSIDE, "Ġ", "▁")
"""What pieces of tokenizers have before their letters."""
MOST_WORD_CHARS = 100
Pair = tuple[str, str]


class LearnedKind(Enum):
    """Tokenizers that can be learned."""

    wordpiece = "wordpiece"  # pieces of characters, split at spaces and punctuation; a new character is unknown
    byte_bpe = "byte_bpe"  # pieces of bytes; nothing is unknown


class TokenizerSettings(Settings):
    """Which tokenizer is learned, and from what."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text it is learned from."""
    kind: LearnedKind = LearnedKind.wordpiece
    """`wordpiece`: of characters, cut at spaces and punctuation; `byte_bpe`: of bytes, to which nothing is unknown."""
    size: PositiveInt = 4096
    """Pieces, special tokens and single characters or bytes included; fewer if the text has no more."""
    lowercase: bool = False
    """Whether upper case is made lower case; accents always stay."""


@dataclass(frozen=True, slots=True)
class LearnedTokenizer:
    """What `learn_tokenizer` left."""

    pieces: int
    was_finished: bool


def learn_tokenizer(out: str | Path, settings: TokenizerSettings, *, progress: Progress = silent) -> LearnedTokenizer:
    """Learn a tokenizer from a corpus and write its folder, whole or not at all.

    Raises CorpusError as `read_corpus` does, SettingError if `size` is too small for the characters of the text,
    ArtifactError if `out` holds something else.
    """
    out = Path(out)
    recorded = {"kind": settings.kind.value, "size": settings.size, "lowercase": settings.lowercase}
    counts = _word_counts(settings, progress)
    recorded["words"] = digest_of(counts)
    if finished_folder(out, kind=TOKENIZER_KIND, settings=recorded) is not None:
        model = read_object(out / "tokenizer.json", fix=f"remove {out} and learn it again")["model"]
        return LearnedTokenizer(len(model["vocab"]), was_finished=True)
    is_bytes = settings.kind is LearnedKind.byte_bpe
    words = {tuple(word) if is_bytes else spelt(word): times for word, times in counts.items()}
    alphabet = _byte_symbols() if is_bytes else sorted({piece for word in words for piece in word})
    known = [*SPECIALS, *alphabet]
    if len(known) > settings.size:
        raise SettingError(
            f"size must be at least {len(known)} for the characters of the text, or 261 with kind=byte_bpe, "
            f"got {settings.size}"
        )
    inside = "" if is_bytes else INSIDE
    merges = learn_merges(words, known, settings.size, inside=inside, progress=progress)
    vocabulary = list(dict.fromkeys([*known, *(joined(pair, inside) for pair in merges)]))
    definition = tokenizer_definition(settings.kind, vocabulary, merges, lowercase=settings.lowercase)
    write_tokenizer(out, definition, settings=recorded)
    return LearnedTokenizer(len(vocabulary), was_finished=False)


def _word_counts(settings: TokenizerSettings, progress: Progress) -> Counter[str]:
    """How often each word of the corpus occurs, as the tokenizer cuts words; of byte_bpe in symbols of bytes."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(
        json.dumps(tokenizer_definition(settings.kind, SPECIALS, lowercase=settings.lowercase))
    )
    counts: Counter[str] = Counter()
    for number, document in enumerate(read_corpus(settings.corpus), start=1):
        text = visible(document.text)
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
        progress("reading", number, None)
    if settings.kind is LearnedKind.wordpiece:
        counts = Counter({word: times for word, times in counts.items() if len(word) <= MOST_WORD_CHARS})
    if not counts:
        raise CorpusError("the corpus has no word; check corpus.files")
    return counts


def _byte_symbols() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def spelt(word: str) -> tuple[str, ...]:
    """The pieces of one character that spell a word in WordPiece.

    >>> spelt("abc")
    ('a', '##b', '##c')
    """
    return (word[0], *(INSIDE + letter for letter in word[1:]))


def joined(pair: Pair, inside: str = INSIDE) -> str:
    """The piece that two pieces become; `inside` is the mark of pieces within a word, none of bytes.

    >>> joined(("##a", "##b")), joined(("a", "b")), joined(("##", "##"), "")
    ('##ab', 'ab', '####')
    """
    return pair[0] + pair[1].removeprefix(inside)


def learn_merges(
    word_counts: Mapping[tuple[str, ...], int],
    known: Sequence[str],
    size: int,
    *,
    inside: str = INSIDE,
    progress: Progress = silent,
) -> list[Pair]:
    """Merges of pairs until there are `size` pieces with the `known` ones, or no pair is left; see `joined`."""
    learned = _Merges(word_counts, known, inside)
    merges: list[Pair] = []
    while len(learned.ids) < size and (pair := learned.best()) is not None:
        merges.append(pair)
        learned.merge(pair)
        progress("merging", len(learned.ids), size)
    return merges


class _Merges:
    """Words as pieces, with the counts of all pairs kept up to date."""

    def __init__(self, word_counts: Mapping[tuple[str, ...], int], known: Sequence[str], inside: str) -> None:
        self._inside = inside
        self.ids = {piece: number for number, piece in enumerate(dict.fromkeys(known))}
        self._words, self._times = list(word_counts), list(word_counts.values())
        self._counts: Counter[Pair] = Counter()
        self._places: dict[Pair, set[int]] = defaultdict(set)  # words that hold a pair, or held it
        for number in range(len(self._words)):
            self._count(number, +1)
        self._queue = [self._entry(pair) for pair in self._counts]
        heapq.heapify(self._queue)

    def best(self) -> Pair | None:
        """The most frequent pair; of several the one of the oldest pieces. None if there is none."""
        while self._queue:
            entry = heapq.heappop(self._queue)
            if entry == self._entry(pair := entry[3]) and entry[0] < 0:  # else its count has changed since
                return pair
        return None

    def merge(self, pair: Pair) -> None:
        """Make it a piece, in all words."""
        piece = joined(pair, self._inside)
        self.ids.setdefault(piece, len(self.ids))
        changed: set[Pair] = set()
        for number in self._places.pop(pair):
            changed |= self._count(number, -1)
            self._words[number] = _merged(self._words[number], pair, piece)
            changed |= self._count(number, +1)
        for each in changed:
            if self._counts[each]:
                heapq.heappush(self._queue, self._entry(each))

    def _count(self, number: int, sign: int) -> set[Pair]:
        """Count the pairs of a word, or count them no longer; returns them."""
        pairs = Counter(pairwise(self._words[number]))
        for pair, times in pairs.items():
            self._counts[pair] += sign * times * self._times[number]
            if sign > 0:
                self._places[pair].add(number)
        return set(pairs)

    def _entry(self, pair: Pair) -> tuple[int, int, int, Pair]:
        return -self._counts[pair], self.ids[pair[0]], self.ids[pair[1]], pair


def _merged(word: tuple[str, ...], pair: Pair, piece: str) -> tuple[str, ...]:
    pieces: list[str] = []
    held = ""  # the last piece, where it may still be merged
    for each in word:
        if held and (held, each) == pair:
            pieces[-1], held = piece, ""
        else:
            pieces.append(each)
            held = each
    return tuple(pieces)


def word_tokenizer(words: Sequence[str]) -> dict[str, Any]:
    """The definition of a tokenizer to which each of `words`, between spaces, is a token, and all else unknown."""
    return tokenizer_definition(None, [*SPECIALS, *words])


def tokenizer_definition(
    kind: LearnedKind | None, vocabulary: Sequence[str], merges: Sequence[Pair] = (), *, lowercase: bool = False
) -> dict[str, Any]:
    """What tokenizer.json holds, special tokens first in the vocabulary; without a `kind` of whole words."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    word_piece = {"continuing_subword_prefix": INSIDE, "max_input_chars_per_word": MOST_WORD_CHARS}
    bpe = {"merges": [list(pair) for pair in merges], "dropout": None, "fuse_unk": False, "byte_fallback": False}
    forms: dict[LearnedKind | None, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
        None: ({"type": "WordLevel", "unk_token": UNKNOWN}, {"type": "WhitespaceSplit"}, None),
        LearnedKind.wordpiece: (
            {"type": "WordPiece", "unk_token": UNKNOWN, **word_piece},
            {"type": "BertPreTokenizer"},
            {"type": "WordPiece", "prefix": INSIDE, "cleanup": True},
        ),
        LearnedKind.byte_bpe: ({"type": "BPE", "unk_token": None, **bpe}, byte_level, byte_level),
    }
    model, pre_tokenizer, decoder = forms[kind]
    around = [{"SpecialToken": {"id": CLS, "type_id": 0}}, {"SpecialToken": {"id": SEP, "type_id": 0}}]
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            # the mask of a byte-level vocabulary takes the space before it, as RoBERTa's does
            {"id": ids[token], "content": token, **plain, "lstrip": token == MASK and kind is LearnedKind.byte_bpe}
            for token in SPECIALS
        ],
        "normalizer": {"type": "Lowercase"} if lowercase else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [around[0], first, around[1]],
            "pair": [around[0], first, around[1], second, {"SpecialToken": {"id": SEP, "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (CLS, SEP)},
        },
        "decoder": decoder,
        "model": {**model, "vocab": ids},
    }


def write_tokenizer(folder: Path, definition: dict[str, Any], *, settings: Mapping[str, Any]) -> None:
    """Write the folder of a tokenizer as `transformers` loads it, whole or not at all.

    Raises ArtifactError if something is there.
    """
    with write_folder(folder, kind=TOKENIZER_KIND, settings=settings) as writer:
        writer.write_json("tokenizer", definition)
        roles = dict(zip(ROLES, SPECIALS, strict=True))
        writer.write_json("tokenizer_config", {"tokenizer_class": "PreTrainedTokenizerFast", **roles})


def pieces_of(folder: Path) -> set[str]:
    """The pieces of the tokenizer in a folder without what marks their place in a word, special tokens left out.

    Raises ArtifactError if there is no tokenizer.json, or another than those of `tokenizers`.
    """
    definition = read_object(folder / "tokenizer.json", fix="give the folder of a fast tokenizer")
    vocabulary: Iterable[Any] = definition.get("model", {}).get("vocab", {})
    pieces = {piece if isinstance(piece, str) else piece[0] for piece in vocabulary}  # unigram: pairs with a score
    for mark in WORD_MARKS:
        pieces = {piece.removeprefix(mark) for piece in pieces}
    return pieces - {token["content"] for token in definition.get("added_tokens", [])}
