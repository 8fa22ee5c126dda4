"""Tokenizers made by this project: of full words, and pieces learned from a corpus by merging pairs.

The most frequent pair of neighboring pieces becomes a piece, again and again (Sennrich et al. 2016, arXiv 1508.07909,
§3.2); of equally frequent pairs the older pieces come first. Written as tokenizer.json, which `transformers` reads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from npm.core.artifact import Manifest, finished_folder, written_once
from npm.core.errors import CorpusError, SettingError
from npm.core.files import FolderWriter, digest_of, read_object
from npm.core.settings import Settings
from npm.core.types import Progress, silent
from npm.corpus.documents import read_corpus
from npm.corpus.markup import visible
from npm.corpus.settings import CorpusSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_KIND = "tokenizer"
PAD, UNKNOWN, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
INSIDE = "##"
"""Prefix of a WordPiece piece within a word."""
WORD_MARKS = (INSIDE, "Ġ", "▁")
"""Marks of tokenizers before the letters of a piece."""
MAX_WORD_CHARS = 100
Pair = tuple[str, str]


class LearnedKind(Enum):
    """Tokenizers that can be learned."""

    wordpiece = "wordpiece"  # pieces of characters, split at spaces and punctuation; a new character is unknown
    byte_bpe = "byte_bpe"  # pieces of bytes; nothing is unknown


class TokenizerSettings(Settings):
    """Settings of `npmlm tokenizer`."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The text it is learned from."""
    kind: LearnedKind = LearnedKind.wordpiece
    """`wordpiece`: of characters, cut at spaces and punctuation; `byte_bpe`: of bytes, to which nothing is unknown."""
    size: PositiveInt = 4096
    """Pieces, special tokens and single characters or bytes included; fewer if the text has no more."""
    lowercase: bool = False
    """Convert upper case to lower case; accents always stay."""


@dataclass(frozen=True, slots=True)
class LearnedTokenizer:
    """Result of `learn_tokenizer`."""

    pieces: int
    was_finished: bool


def learn_tokenizer(out: str | Path, settings: TokenizerSettings, *, progress: Progress = silent) -> LearnedTokenizer:
    """Learn a tokenizer from a corpus and write its folder, completely or not at all.

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
    from tokenizers import pre_tokenizers

    is_bytes = settings.kind is LearnedKind.byte_bpe
    words = {tuple(word) if is_bytes else spelt(word): times for word, times in counts.items()}
    letters = pre_tokenizers.ByteLevel.alphabet() if is_bytes else {piece for word in words for piece in word}
    known = [*SPECIALS, *sorted(letters)]
    if len(known) > settings.size:
        raise SettingError(
            f"size must be at least {len(known)} for the characters of the text, or 261 with kind=byte_bpe, "
            f"got {settings.size}"
        )
    merges = learn_merges(words, known, settings.size, inside="" if is_bytes else INSIDE)
    vocabulary = list(dict.fromkeys([*known, *(joined(pair, "" if is_bytes else INSIDE) for pair in merges)]))
    write_tokenizer(
        out, make_tokenizer(settings.kind, vocabulary, merges, lowercase=settings.lowercase), settings=recorded
    )
    return LearnedTokenizer(len(vocabulary), was_finished=False)


def _word_counts(settings: TokenizerSettings, progress: Progress) -> Counter[str]:
    """Counts of the words of the corpus, as the tokenizer cuts words; of byte_bpe in symbols of bytes."""
    backend = make_tokenizer(settings.kind, SPECIALS, lowercase=settings.lowercase)
    counts: Counter[str] = Counter()
    for number, document in enumerate(read_corpus(settings.corpus), start=1):
        text = visible(document.text)
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
        progress("reading", number, None)
    if settings.kind is LearnedKind.wordpiece:
        counts = Counter({word: times for word, times in counts.items() if len(word) <= MAX_WORD_CHARS})
    if not counts:
        raise CorpusError("the corpus has no word; check corpus.files")
    return counts


def spelt(word: str) -> tuple[str, ...]:
    """The pieces of one character that spell a word in WordPiece.

    >>> spelt("abc")
    ('a', '##b', '##c')
    """
    return (word[0], *(INSIDE + letter for letter in word[1:]))


def joined(pieces: Sequence[str], inside: str = INSIDE) -> str:
    """The piece that several become; `inside` is the mark of pieces within a word, none of bytes.

    >>> joined(("##a", "##b")), joined(("a", "b")), joined(("##", "##"), "")
    ('##ab', 'ab', '####')
    """
    return pieces[0] + "".join(piece.removeprefix(inside) for piece in pieces[1:])


def learn_merges(
    word_counts: Mapping[tuple[str, ...], int], known: Sequence[str], size: int, *, inside: str = INSIDE
) -> list[Pair]:
    """Merges of pairs until there are `size` pieces with the `known` ones, or no pair remains; see `joined`."""
    from tokenizers import Tokenizer, models, trainers

    # The trainer numbers letters by code point, but pieces with a mark as it meets them in its hash tables, which
    # differs between processes: so each known piece is one letter here, in the order of the known ones.
    letters = {piece: chr((1 << 16) + number) for number, piece in enumerate(known)}
    pieces = {letter: piece for piece, letter in letters.items()}
    words = ("".join(letters[piece] for piece in word) for word in word_counts)
    learned = Tokenizer(models.BPE())
    learned.train_from_iterator(
        chain.from_iterable(map(repeat, words, word_counts.values())),
        trainers.BpeTrainer(vocab_size=size, min_frequency=1, show_progress=False, initial_alphabet=list(pieces)),
    )
    merges: list[list[str]] = json.loads(learned.to_str())["model"]["merges"]
    texts = [[joined([pieces[letter] for letter in side], inside) for side in merge] for merge in merges]
    return [(left, right) for left, right in texts]


def make_tokenizer(
    kind: LearnedKind | None, vocabulary: Sequence[str], merges: Sequence[Pair] = (), *, lowercase: bool = False
) -> Tokenizer:
    """A tokenizer of this vocabulary, special tokens first.

    Without a `kind` each word between spaces is a token, and all else unknown.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    if kind is LearnedKind.byte_bpe:
        made = Tokenizer(models.BPE(ids, [*merges]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    elif kind is LearnedKind.wordpiece:
        made = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=MAX_WORD_CHARS))
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    else:
        made = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lowercase:
        made.normalizer = normalizers.Lowercase()
    # the mask of a byte-level vocabulary takes the space before it, as RoBERTa's does
    takes_space = {MASK} if kind is LearnedKind.byte_bpe else set()
    made.add_special_tokens([AddedToken(each, lstrip=each in takes_space, normalized=False) for each in SPECIALS])
    around = [(CLS, ids[CLS]), (SEP, ids[SEP])]
    made.post_processor = processors.TemplateProcessing(
        f"{CLS} $A {SEP}", f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=around
    )
    return made


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, settings: Mapping[str, Any]) -> Manifest:
    """Write the folder of a tokenizer as `transformers` loads it, unless it is there; returns its manifest.

    Raises ArtifactError if it was made with other settings.
    """

    def write(folder: FolderWriter) -> None:
        folder.write_json("tokenizer", json.loads(tokenizer.to_str()))
        roles = dict(zip(ROLES, SPECIALS, strict=True))
        folder.write_json("tokenizer_config", {"tokenizer_class": "PreTrainedTokenizerFast", **roles})

    return written_once(folder, kind=TOKENIZER_KIND, settings=settings, write=write)


def pieces_of(folder: Path) -> set[str]:
    """The pieces of a folder's tokenizer without the marks of their position in a word and without special tokens.

    Raises ArtifactError if there is no tokenizer.json, or another than those of `tokenizers`.
    """
    definition = read_object(folder / "tokenizer.json", fix="give the folder of a fast tokenizer")
    vocabulary: Iterable[Any] = definition.get("model", {}).get("vocab", {})
    pieces = {piece if isinstance(piece, str) else piece[0] for piece in vocabulary}  # unigram: pairs with a score
    for mark in WORD_MARKS:
        pieces = {piece.removeprefix(mark) for piece in pieces}
    return pieces - {token["content"] for token in definition.get("added_tokens", [])}
