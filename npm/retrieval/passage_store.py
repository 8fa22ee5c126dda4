"""Passages handed over instead of a corpus: cut into blocks, embedded once, and read like a store on disk.

Everything is in memory; for more text than that, build an index.

Shapes: T tokens of all passages in a row, n places, E ends of words, d dimensions.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from unicodedata import combining, normalize
from weakref import WeakKeyDictionary

import numpy as np

from index.arrays import ShardedArray
from npm.core.errors import CorpusError
from npm.core.types import SURROGATE, Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore
from npm.corpus.text import normalised_text
from npm.models.batches import encode_sequences

if TYPE_CHECKING:
    from npm.core.types import Block
    from npm.corpus.shards import FieldValues
    from npm.models.encoder import Encoder


CACHED_VECTOR_BYTES = 256 << 20
"""Vectors of passages kept for later calls: 175,000 tokens of 384 dimensions."""


@dataclass(frozen=True, slots=True)
class EmbeddedPassage:
    """The blocks of one text, none if it holds no token, and the vectors of all their tokens."""

    blocks: tuple[Block, ...]
    vectors: np.ndarray  # f32 [T of the passage, d]


class PassageCache:
    """Passages embedded lately, by their text and by what the vectors depend on; the longest unused go first.

    The last bits of a vector may depend on the passages that were embedded in the same batch. Safe to share between
    threads.
    """

    def __init__(self, vector_bytes: int = CACHED_VECTOR_BYTES) -> None:
        """`vector_bytes` is how much is kept at most; what one call asks for is embedded whatever its size."""
        self._most_bytes = vector_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, ...], EmbeddedPassage] = OrderedDict()
        # Making one takes longer than embedding a passage, and it holds no reference to its encoder.
        self._packers: WeakKeyDictionary[Encoder, BlockPacker] = WeakKeyDictionary()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def embed(self, encoder: Encoder, documents: Sequence[Document], *, tokens_per_batch: int) -> list[EmbeddedPassage]:
        """Each of `documents` as `embed_passages` makes it; raises EncoderError without a fast tokenizer.

        Titles count only with an encoder that was trained with them.
        """
        with_titles = encoder.title_tokens > 0
        texts = [(document.title if with_titles else "", document.text) for document in documents]
        with self._lock:
            packer = self._packers.get(encoder) or self._packers.setdefault(encoder, passage_packer(encoder))
            dtype = str(next(encoder.model.parameters()).dtype)
            maker = (
                encoder.fingerprint,
                packer.tokenizer_fingerprint,
                dtype,
                str(encoder.dimensions),
                str(encoder.axes_digest),
            )
            found = {text: self._kept[*maker, *text] for text in texts if (*maker, *text) in self._kept}
            missing = [text for text in dict.fromkeys(texts) if text not in found]
            if missing:
                made = embed_passages(encoder, packer, missing, tokens_per_batch=tokens_per_batch)
                found.update(zip(missing, made, strict=True))
            for text in dict.fromkeys(texts):
                key = (*maker, *text)
                if key not in self._kept:
                    self._bytes += found[text].vectors.nbytes
                self._kept[key] = found[text]
                self._kept.move_to_end(key)
                while self._bytes > self._most_bytes:
                    _, dropped = self._kept.popitem(last=False)
                    self._bytes -= dropped.vectors.nbytes
        return [found[text] for text in texts]


def passage_packer(encoder: Encoder) -> BlockPacker:
    """Cuts passages into blocks as long as an index has them by default, or as the encoder takes if that is less."""
    most_tokens = min(BlockSettings().max_block_tokens, encoder.max_input_tokens)
    return BlockPacker(
        encoder.tokenizer, BlockSettings(max_block_tokens=most_tokens, title_tokens=encoder.title_tokens)
    )


def embed_passages(
    encoder: Encoder, packer: BlockPacker, texts: Sequence[tuple[str, str]], *, tokens_per_batch: int
) -> list[EmbeddedPassage]:
    """Each of `texts`, a title and a text, cut into blocks and encoded, batched by length."""
    packed = packer.pack_many([Document(id="", title=title, text=text) for title, text in texts])
    prefix, suffix = np.array(encoder.prefix_ids, dtype=np.int64), np.array(encoder.suffix_ids, dtype=np.int64)
    blocks = [block for own in packed for block in own]
    sequences = [np.concatenate([prefix, block.token_ids, suffix]) for block in blocks]
    slots = [len(prefix) + np.arange(len(block.token_ids)) for block in blocks]
    encoded = encode_sequences(encoder, sequences, slots, tokens_per_batch=tokens_per_batch)  # f32 [T of block, d] each
    passages, first = [], 0
    for own in packed:
        vectors = [np.zeros((0, encoder.dimensions), dtype=np.float32), *encoded[first : first + len(own)]]
        passages.append(EmbeddedPassage(tuple(own), np.concatenate(vectors)))  # f32 [T of the passage, d]
        first += len(own)
    return passages


class PassageStore(BlockStore):
    """Passages in memory that are read like the blocks and documents of a store."""

    def __init__(self, documents: Sequence[Document], passages: Sequence[EmbeddedPassage]) -> None:
        """`passages` are the documents, cut and embedded, with one token at least."""
        blocks = [block for passage in passages for block in passage.blocks]
        counts = [len(passage.blocks) for passage in passages]
        super().__init__(
            Path("passages"),  # what messages name
            {"tokenizer_fingerprint": "", "special_tokens_in_blocks": False},  # the caller has the tokenizer
            digest="",
            token_ids=ShardedArray([np.concatenate([block.token_ids for block in blocks])]),
            flags=ShardedArray([np.concatenate([block.flags for block in blocks])]),
            start_chars=ShardedArray([np.concatenate([_chars(block.start_chars) for block in blocks])]),
            end_chars=ShardedArray([np.concatenate([_chars(block.end_chars) for block in blocks])]),
            block_offsets=np.cumsum([0, *(len(block.token_ids) for block in blocks)]),  # i64 [blocks + 1]
            block_documents=np.repeat(np.arange(len(documents)), counts),  # i64 [blocks]
            shard_documents=np.array([0, len(documents)]),  # one shard
            shard_blocks=np.array([0, len(blocks)]),
        )
        self.documents = tuple(documents)

    def document(self, number: int) -> Document:
        """Document `number`, as it was handed over."""
        return self.documents[number]

    def document_ids(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The ids of the documents `numbers` [n], in that order."""
        return [self.documents[int(number)].id for number in numbers]

    def find_documents(self, ids: Sequence[str], among: np.ndarray | None = None) -> np.ndarray:
        """The numbers i64 [n] of the documents with these ids, -1 where there is none among bool [documents]."""
        numbers = {
            document.id: number
            for number, document in enumerate(self.documents)
            if among is None or bool(among[number])
        }
        return np.array([numbers.get(identifier, -1) for identifier in ids], dtype=np.int64)

    def field_columns(self) -> Iterator[tuple[slice, FieldValues]]:
        """All documents at once, and the values of their fields; null counts as missing."""
        columns: FieldValues = {}
        for name in sorted({name for document in self.documents for name in document.fields}):
            values = [document.fields.get(name) for document in self.documents]
            present = [number for number, value in enumerate(values) if value is not None]
            codes = np.full(len(values), -1, dtype=np.int32)  # i32 [documents]
            codes[present] = np.arange(len(present))
            columns[name] = ([values[number] for number in present], codes)
        yield slice(0, len(self.documents)), columns


def _chars(offsets: np.ndarray | None) -> np.ndarray:
    assert offsets is not None, "a packer gives offsets"
    return offsets


def checked_passages(passages: Sequence[str | Document]) -> list[Document]:
    """The passages as documents; a text has its place as id, from "0". Raises CorpusError for what is no passage."""
    if isinstance(passages, str | bytes | Mapping) or not isinstance(passages, Iterable):
        raise CorpusError(f"passages must be a list of texts or documents, got {type(passages).__name__}")
    documents = [
        passage if isinstance(passage, Document) else Document(id=str(place), title="", text=passage)
        for place, passage in enumerate(passages)
    ]
    if not documents:
        raise CorpusError("passages is empty: give one text at least")
    places: dict[str, int] = {}
    for place, document in enumerate(documents):
        where = f"passages[{place}]"
        if not isinstance(document.text, str):
            raise CorpusError(f"{where} must be a text or npm.Document, got {type(document.text).__name__}")
        if not document.text.strip():
            raise CorpusError(f"{where} is empty: leave it out")
        if not isinstance(document.title, str):
            raise CorpusError(f"{where}.title must be a string, got {type(document.title).__name__}")
        if half := SURROGATE.search(document.text) or SURROGATE.search(document.title):
            raise CorpusError(f"{where} is not valid Unicode: got {half.group()!a}")
        if (earlier := places.setdefault(document.id, place)) != place:
            raise CorpusError(f"passages[{earlier}] and {where} have the same id {document.id!r}")
    return documents


SPANS_IN_MEMORY = 1024
"""How many different words have their places kept, for those who ask for the same words in many texts."""
CHARACTERS_IN_MEMORY = 4096
"""How many characters are folded once for all texts."""


class GivenWords:
    """Finds words in the texts of all documents: for a store that is small enough to be read as a whole."""

    def __init__(self, store: BlockStore) -> None:
        assert store.start_chars is not None and store.end_chars is not None, "words are looked for in text"
        self._store = store
        texts = [store.document(number).text for number in range(store.document_count)]
        self._folded = [folded_with_places(text) for text in texts]
        self._first_chars = np.cumsum([0, *map(len, texts)])  # i64 [documents + 1], of all texts in a row
        documents = np.repeat(store.block_documents, np.diff(store.block_offsets))  # i64 [T]
        before = self._first_chars[documents]  # i64 [T], characters of the documents before
        flags = store.flags.slice(0, store.token_count)  # u8 [T]
        self._firsts = np.flatnonzero(flags & TokenFlag.WORD_START.value)  # i64 [words], token positions
        self._starts = before[self._firsts] + store.start_chars.take(self._firsts)  # i64 [words], ascending
        lasts = np.flatnonzero(flags & TokenFlag.WORD_END.value)  # i64 [words]
        ends = before[lasts] + store.end_chars.take(lasts)  # i64 [words], ascending
        # A tokenizer that strips accents leaves a combining one at the end of a word out: such words have two ends.
        ends_with_marks = _after_marks("".join(texts), ends)  # i64 [words]
        has_marks = ends_with_marks > ends  # bool [words]
        ends, lasts = np.append(ends, ends_with_marks[has_marks]), np.append(lasts, lasts[has_marks])  # i64 [E] each
        order = np.argsort(ends, kind="stable")  # i64 [E]
        self._ends, self._lasts = ends[order], lasts[order]  # i64 [E] each, ends ascending
        self._found = lru_cache(maxsize=SPANS_IN_MEMORY)(self._find)

    def find(self, words: str) -> tuple[np.ndarray, np.ndarray]:
        """First token positions and lengths in tokens, i64 [n] each, of all places where `words` stand in one block.

        They begin and end with a word, and are the same text once both are case-folded and decomposed, and runs of
        space are one.
        """
        return self._found(folded_with_places(normalised_text(words))[0])

    def _find(self, plain: str) -> tuple[np.ndarray, np.ndarray]:
        words = r"\s+".join(map(re.escape, plain.split()))
        pattern = re.compile(f"(?=({words}))")  # looked for ahead, so that places which overlap are all found
        matches = [np.zeros((0, 2), dtype=np.int64)]
        for first_char, (folded, places) in zip(self._first_chars.tolist(), self._folded, strict=False):
            found = [match.span(1) for match in pattern.finditer(folded)]
            bounds = np.array(found, dtype=np.int64).reshape(-1, 2)  # i64 [matches, 2], in the folded text
            if places is not None:
                bounds = bounds[np.isin(bounds, places).all(axis=1)]  # i64 [matches, 2], of whole characters
                bounds = np.searchsorted(places, bounds)  # i64 [matches, 2], in the text
            matches.append(first_char + bounds)
        starts, ends = np.concatenate(matches).T  # i64 [matches] each, in all texts
        first_words = np.minimum(np.searchsorted(self._starts, starts), len(self._starts) - 1)  # i64 [matches]
        last_words = np.minimum(np.searchsorted(self._ends, ends), len(self._ends) - 1)  # i64 [matches]
        are_words = (self._starts[first_words] == starts) & (self._ends[last_words] == ends)  # bool [matches]
        firsts, lasts = self._firsts[first_words[are_words]], self._lasts[last_words[are_words]]  # i64 [spans]
        in_one_block = self._store.block_of(firsts) == self._store.block_of(lasts)  # bool [spans]
        return firsts[in_one_block], (lasts - firsts + 1)[in_one_block]


def folded_with_places(text: str) -> tuple[str, np.ndarray | None]:
    """The text case-folded and decomposed (NFD), and where each character and the end went, i64 [characters + 1].

    None stands for places that are as they were. Texts are equal so folded just if they are canonical caseless matches
    (The Unicode Standard 16.0, D145). Combining marks that change places with each other have one place.

    >>> folded_with_places("Maße")[0], folded_with_places("Maße")[1].tolist()
    ('masse', [0, 1, 2, 4, 5])
    """
    folded = _folded(text)
    # Neither step takes a character away, so equal lengths mean that each one became one, and here in its place.
    if len(folded) == len(text) and folded == text.casefold():
        return folded, None
    pieces: list[str] = []
    places = [0]
    for letter in _with_marks(text):
        alone = [_folded_character(char) for char in letter]
        together = alone[0] if len(alone) == 1 else _folded(letter)
        begin = places[-1]
        if together == "".join(alone):
            places += accumulate(map(len, alone[1:]), initial=begin + len(alone[0]))
        else:
            marks = begin + len(alone[0]) if together.startswith(alone[0]) else begin
            places += [marks] * (len(letter) - 1) + [begin + len(together)]
        pieces.append(together)
    return "".join(pieces), np.array(places, dtype=np.int64)


def _folded(text: str) -> str:
    return normalize("NFD", normalize("NFD", text).casefold())


_folded_character = lru_cache(maxsize=CHARACTERS_IN_MEMORY)(_folded)


def _with_marks(text: str) -> Iterator[str]:
    """Each character with the combining marks behind it."""
    first = 0
    for place in range(1, len(text)):
        if not combining(text[place]):
            yield text[first:place]
            first = place
    if text:
        yield text[first:]


def _after_marks(text: str, ends: np.ndarray) -> np.ndarray:
    """Where the combining marks end that stand in `text` at the places `ends` i64 [n]: i64 [n]."""
    if text.isascii():
        return ends
    moved = ends.tolist()
    for number, end in enumerate(moved):
        while end < len(text) and combining(text[end]):
            end += 1
        moved[number] = end
    return np.array(moved, dtype=np.int64)
