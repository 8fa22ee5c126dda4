"""Given passages instead of a corpus: cut into blocks, embedded once, and read like a store on disk.

Everything is in memory; for more text than that, build an index.

Shapes: T tokens of all passages in a row, n positions, E ends of words, d dimensions.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from unicodedata import combining, normalize

import numpy as np

from index.arrays import ShardedArray
from npm.core.errors import CorpusError
from npm.core.types import SURROGATE, Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.shards import stored_places
from npm.corpus.store import BlockStore
from npm.models.batches import encode_sequences

if TYPE_CHECKING:
    from npm.core.types import Block
    from npm.corpus.shards import FieldValues
    from npm.models.encoder import Encoder


CACHED_VECTOR_BYTES = 256 << 20
"""Vectors of passages kept for later calls: 175,000 tokens of 384 dimensions."""
WORDS_IN_MEMORY = 1024
"""Number of words whose positions are cached, for callers that ask for the same words in many texts."""


@dataclass(frozen=True, slots=True)
class EmbeddedPassage:
    """The blocks of one text, none if it holds no token, and the vectors of all their tokens."""

    blocks: tuple[Block, ...]
    vectors: np.ndarray  # f32 [T of the passage, d]


class PassageCache:
    """Cache of embedded passages, by their text and what the vectors depend on; drops the least recently used.

    The last bits of a vector may depend on the passages that were embedded in the same batch. Safe to share between
    threads.
    """

    def __init__(self, vector_bytes: int = CACHED_VECTOR_BYTES) -> None:
        """`vector_bytes` is the maximum size of the cache; the passages of one call are embedded at any size."""
        self._max_bytes = vector_bytes
        self._kept: OrderedDict[tuple[str, ...], EmbeddedPassage] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def embed(self, encoder: Encoder, documents: Sequence[Document], *, tokens_per_batch: int) -> list[EmbeddedPassage]:
        """Each of `documents` as `embed_passages` makes it; raises EncoderError without a fast tokenizer.

        Titles count only with an encoder that was trained with them.
        """
        packer, dtype = passage_packer(encoder), str(next(encoder.model.parameters()).dtype)
        shape = (dtype, str(encoder.dimensions), str(encoder.axes_digest))
        maker = (encoder.fingerprint, packer.tokenizer_fingerprint, *shape)
        keys = [(*maker, document.title if encoder.title_tokens else "", document.text) for document in documents]
        with self._lock:
            missing = [key for key in dict.fromkeys(keys) if key not in self._kept]
            texts = [(title, text) for *_, title, text in missing]
            made = embed_passages(encoder, packer, texts, tokens_per_batch=tokens_per_batch) if texts else []
            self._kept.update(zip(missing, made, strict=True))
            for key in dict.fromkeys(keys):
                self._kept.move_to_end(key)
            found = [self._kept[key] for key in keys]
            total = sum(passage.vectors.nbytes for passage in self._kept.values())
            while total > self._max_bytes:
                total -= self._kept.popitem(last=False)[1].vectors.nbytes
        return found


def passage_packer(encoder: Encoder) -> BlockPacker:
    """Cuts passages into blocks as long as an index has them by default, or as the encoder takes if that is less."""
    max_tokens = min(BlockSettings().max_block_tokens, encoder.max_input_tokens)
    return _packer(encoder.tokenizer, BlockSettings(max_block_tokens=max_tokens, title_tokens=encoder.title_tokens))


_packer = lru_cache(maxsize=4)(BlockPacker)
"""Making one takes longer than embedding a passage."""


def embed_passages(
    encoder: Encoder, packer: BlockPacker, texts: Sequence[tuple[str, str]], *, tokens_per_batch: int
) -> list[EmbeddedPassage]:
    """Each of `texts`, a title and a text, cut into blocks and encoded, batched by length."""
    packed = packer.pack_many([Document(id="", title=title, text=text) for title, text in texts])
    prefix, suffix = np.array(encoder.prefix_ids, dtype=np.int64), np.array(encoder.suffix_ids, dtype=np.int64)
    blocks = [block for own in packed for block in own]
    sequences = [np.concatenate([prefix, block.token_ids, suffix]) for block in blocks]
    slots = [len(prefix) + np.arange(len(block.token_ids)) for block in blocks]
    encoded = encode_sequences(
        encoder, sequences, slots, tokens_per_batch=tokens_per_batch
    ).vectors  # f32 [T of block, d] each
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
        places, counts = stored_places(blocks), [len(passage.blocks) for passage in passages]
        super().__init__(
            folder=Path("passages"),  # the name in messages
            settings={"tokenizer_fingerprint": "", "special_tokens_in_blocks": False},  # the caller has the tokenizer
            digest="",
            token_ids=ShardedArray([np.concatenate([block.token_ids for block in blocks])]),
            flags=ShardedArray([np.concatenate([block.flags for block in blocks])]),
            char_offsets=ShardedArray([places["char_offsets"]]),
            char_lengths=ShardedArray([places["char_lengths"]]),
            first_chars=places["first_chars"],
            block_offsets=np.cumsum([0, *(len(block.token_ids) for block in blocks)]),  # i64 [blocks + 1]
            block_documents=np.repeat(np.arange(len(documents)), counts),  # i64 [blocks]
            shard_documents=np.array([0, len(documents)]),  # one shard
            shard_blocks=np.array([0, len(blocks)]),
        )
        self.documents = tuple(documents)

    def document(self, number: int) -> Document:
        """Document `number`, as given."""
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


def checked_passages(passages: Sequence[str | Document]) -> list[Document]:
    """The passages as documents; a text has its index as id, from "0". Raises CorpusError for anything else."""
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
        if not isinstance(document.text, str) or not isinstance(document.title, str):
            kinds = " and ".join(type(value).__name__ for value in (document.text, document.title))
            raise CorpusError(f"{where} must be a text, or npm.Document of a text and a title, got {kinds}")
        if not document.text.strip():
            raise CorpusError(f"{where} is empty: leave it out")
        if half := SURROGATE.search(document.text + document.title):
            raise CorpusError(f"{where} is not valid Unicode: got {half.group()!a}")
        if (earlier := places.setdefault(document.id, place)) != place:
            raise CorpusError(f"passages[{earlier}] and {where} have the same id {document.id!r}")
    return documents


class GivenWords:
    """Finds words in the texts of all blocks: for a store that is small enough to be read completely.

    Texts are compared case-folded and decomposed, so that they are equal just if they are canonical caseless matches
    (The Unicode Standard 16.0, D145), with one space for each run of space.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self.find = lru_cache(maxsize=WORDS_IN_MEMORY)(self._find)

    @cached_property
    def _blocks(self) -> list[tuple[str, dict[int, int], dict[int, int]]]:
        return [_folded_block(self._store, block) for block in range(self._store.block_count)]

    def _find(self, words: str) -> tuple[np.ndarray, np.ndarray]:
        """First token positions and lengths in tokens, i64 [n] each, of all occurrences of `words` as full words."""
        plain = _folded(" ".join(words.split()))
        pattern = re.compile(f"(?={re.escape(plain)})")  # a lookahead, so that all overlapping occurrences are found
        spans = [
            (starts[match.start()], ends[match.start() + len(plain)])
            for text, starts, ends in self._blocks
            for match in pattern.finditer(text)
            if match.start() in starts and match.start() + len(plain) in ends
        ]
        firsts, lasts = np.array(spans, dtype=np.int64).reshape(-1, 2).T  # i64 [n] each
        return firsts, lasts - firsts + 1


def _folded_block(store: BlockStore, block: int) -> tuple[str, dict[int, int], dict[int, int]]:
    """The folded text of a block, and by where words begin and end in it their first and last token positions."""
    text = store.document(int(store.block_documents[block])).text
    first, stop = store.block_offsets[block : block + 2].tolist()
    flags = store.flags.slice(first, stop)  # u8 [T]
    begins, closes = (np.flatnonzero(flags & flag.value) for flag in (TokenFlag.WORD_START, TokenFlag.WORD_END))
    first_chars, stop_chars = store.block_places(block)  # u32 [T] each
    starts = dict(zip(first_chars[begins].tolist(), begins.tolist(), strict=True))
    ends: dict[int, int] = {}
    for end, token in zip(stop_chars[closes].tolist(), closes.tolist(), strict=True):
        ends[end] = token
        # A tokenizer that strips accents omits a combining one at the end of a word: such words have two ends.
        while end < len(text) and combining(text[end]):
            end += 1
        ends.setdefault(end, token)
    edges = sorted({*starts, *ends})
    places, folded = {}, ""
    for edge, following in pairwise([*edges, edges[-1]] if edges else []):
        places[edge] = len(folded)
        folded += _folded(text[edge:following])
    begin, close = ({places[edge]: first + token for edge, token in side.items()} for side in (starts, ends))
    return folded, begin, close


def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", normalize("NFD", normalize("NFD", text).casefold()))
