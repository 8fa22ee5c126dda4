"""An opened phrase index: one generation of a folder, its encoder, and filters on its documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.artifact import check_folder, check_part, part_folder, verify_folder
from npm.core.errors import ArtifactError, QueryError, damaged, named
from npm.core.types import Document
from npm.corpus.store import BlockStore
from npm.indexing.adaptation import QueryMaps
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.embed import open_vectors
from npm.indexing.generation import (
    ENCODER_KIND,
    INDEX_KIND,
    Counts,
    Generation,
    IndexManifest,
    on_present,
)
from npm.indexing.partitions import open_parts
from npm.indexing.rows import RowMap
from npm.models.settings import Precision

if TYPE_CHECKING:
    from index.arrays import ShardedArray
    from index.types import Searcher
    from npm.indexing.embed import BlockVectors
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind


OpenSearcher = Callable[[Generation, "ShardedArray"], "Searcher"]


class NoDocumentError(QueryError):
    """Filters leave no document to answer from."""

    code = "filter_empty"


@dataclass(frozen=True, slots=True)
class PhraseIndex:
    """All parts of one generation of a phrase index, checked against their manifests."""

    folder: Path
    manifest: IndexManifest
    store: BlockStore
    rows: RowMap
    searcher: Searcher
    lexicon: BlockLexicon
    vectors: ShardedArray | None = None  # [rows, d]; None where only the searcher knows them
    block_vectors: BlockVectors | None = None  # None where the encoder had no pooler, or the build was told not to
    query_maps: QueryMaps | None = None  # None: queries are not adapted
    live_documents: np.ndarray | None = None  # bool [documents], False for deleted ones; None: all are live
    live_blocks: np.ndarray | None = None  # bool [blocks], of live documents or of none
    live_rows: np.ndarray | None = None

    @property
    def stores_tokens(self) -> bool:
        """Return True if tokens have vectors; without them a reader alone chooses phrases."""
        return self.vectors is None or self.vectors.shape[1] > 0

    @property
    def block_pooler(self) -> PoolerKind | None:
        """Pooler of the block vectors; None without block vectors."""
        return None if self.block_vectors is None else self.block_vectors.pooler

    @classmethod
    def open(cls, folder: Path, open_searcher: OpenSearcher | None = None) -> PhraseIndex:
        """Open a built index; raises ArtifactError if it is missing, unfinished, damaged or of another kind.

        `open_searcher` gives the searcher of a generation over its vectors; None: one in this process.

        Every file that is read completely is hashed. Of vectors over 64 MB together a row is checked when it is read;
        larger lists are checked by `verify_index` only. A change that replaces the generation while it is opened is no
        error: the new one is opened.
        """
        return on_present(folder, lambda generation: cls._opened(generation, open_searcher))

    @classmethod
    def _opened(cls, generation: Generation, open_searcher: OpenSearcher | None) -> PhraseIndex:
        folder, segments = generation.folder, generation.segments
        check_folder(folder, kind=INDEX_KIND)
        store = BlockStore.open(*(segment.corpus for segment in segments))
        vectors, rows, block_vectors = open_vectors([segment.vectors for segment in segments])
        expected = generation.manifest.counts
        got = Counts(store.document_count, store.block_count, store.token_count, len(rows))
        if expected != got:
            raise damaged(folder, f"{astuple(got)} documents, blocks, tokens and rows, expected {astuple(expected)}")
        dimensions, has_tokens = generation.manifest.dimensions, generation.manifest.vectors.tokens
        if dimensions not in (None, vectors.shape[1]) or has_tokens != (vectors.shape[1] > 0):
            expected_text = dimensions if has_tokens else 0
            raise damaged(folder, f"vectors of {vectors.shape[1]} dimensions, expected {expected_text or 'some'}")
        lexicon = BlockLexicon.open([segment.lexicon for segment in segments])
        deleted = generation.deleted_documents()  # i64 [deleted]
        query_maps = QueryMaps.open(folder, generation.manifest)
        index = cls(
            folder=folder,
            manifest=generation.manifest,
            store=store,
            rows=rows,
            searcher=(open_searcher or open_parts)(generation, vectors),  # last: nothing fails after it
            lexicon=lexicon,
            vectors=vectors,
            block_vectors=block_vectors,
            query_maps=query_maps,
        )
        if not len(deleted):
            return index
        live = np.ones(store.document_count, dtype=bool)  # [documents]
        live[deleted] = False
        return with_documents(index, live)

    def document(self, identifier: str) -> Document | None:
        """The live document with this id; None: there is none."""
        number = int(self.store.find_documents([identifier], among=self.live_documents)[0])
        return None if number < 0 else self.store.document(number)

    @property
    def is_current(self) -> bool:
        """Return True if the folder still holds the generation that was opened."""
        return Generation.read(self.folder).manifest.digest == self.manifest.digest

    @property
    def is_in_memory(self) -> bool:
        """Return True if it is small enough to be searched completely."""
        return False

    @property
    def facts(self) -> str:
        """Description for people."""
        live = self.live_documents
        count = self.store.document_count if live is None else int(np.count_nonzero(live))
        return f"{str(self.folder)!r}, {count:,} documents, {self.store.token_count:,} tokens"

    def blocks_holding(self, phrase: str) -> np.ndarray | None:
        """The live blocks i64 [n], ascending, that hold the words of `phrase`; None where that cannot be counted."""
        return self.lexicon.blocks_with(phrase)

    @property
    def candidates_per_side(self) -> int:
        """Rows that are grown into phrases for each side unless said otherwise."""
        return self.manifest.candidates_per_side

    def maps_for(self, retrieval: str) -> QueryMaps | None:
        """The learned maps of queries, if they were learned for this retrieval."""
        maps = self.query_maps
        return maps if maps is not None and maps.retrieval == retrieval else None

    def check_encoder(self, encoder: Encoder) -> Encoder:
        """`encoder`, its vectors as those of the index; raises ArtifactError if it did not make them."""
        made_by, maps = check_encoder(self.folder, self.manifest, encoder), self.query_maps
        if maps is not None and not maps.reader:
            got, expected = maps.maps.shape[1], made_by.dimensions
            if got != expected:
                raise damaged(
                    self.folder / (self.manifest.adaptation_folder or ""),
                    f"maps of {got} dimensions, expected {expected}",
                )
        return made_by

    def load_encoder(self, encoder: Encoder | str | None, **options: Any) -> Encoder:
        """`load_index_encoder` for this index, with its `options`."""
        return load_index_encoder(self.folder, self.manifest, encoder, **options)


def check_encoder(folder: Path, manifest: IndexManifest, encoder: Encoder) -> Encoder:
    """`encoder`, its vectors rotated and cut as those in the index in `folder`.

    Raises ArtifactError if it is not the encoder that made the index, or the axes of the rotation are damaged.
    """
    made_by = manifest.encoder
    for name in ("fingerprint", "tokenizer_fingerprint"):
        wanted, got = getattr(made_by, name), getattr(encoder, name)
        if wanted != got:
            raise ArtifactError(
                f"{folder} was made with another encoder: {made_by.name} ({name} {wanted}), "
                f"not {encoder.name} ({got}); set encoder to that one, or build another index"
            )
    if manifest.rotation_folder is None:
        return encoder.cut_to(manifest.dimensions)
    from npm.indexing.rotation import opened_axes

    place = part_folder(folder, manifest.rotation_folder)
    check_part(place, manifest.parts[place.name])
    axes = opened_axes(place, (manifest.dimensions, encoder.whole_dimensions))  # f32 [k, d]
    return encoder.cut_to(manifest.dimensions, axes=axes)


def load_index_encoder(
    folder: Path,
    manifest: IndexManifest,
    given: Encoder | str | None,
    *,
    device: str = "auto",
    dtype: Precision = Precision.auto,
    for_reading: bool = False,
) -> Encoder:
    """The encoder given, loaded or by name, or the one that made the index in `folder`: shipped, or saved inside.

    It is left as by `check_encoder`; `for_reading` as in `Encoder.load`. Raises ArtifactError if none of them made the
    index or the one inside is damaged, EncoderError if one cannot be loaded or there is no such device.
    """
    from npm.models.encoder import Encoder
    from npm.models.names import SHIPPED, shipped_folder
    from npm.models.stored import choose_device

    if isinstance(given, Encoder):
        return check_encoder(folder, manifest, given)
    load = partial(Encoder.load, device=device, dtype=dtype, for_reading=for_reading)
    choose_device(device)  # a mistake in it is reported whether an encoder is found or not
    made_by = manifest.encoder
    if given:
        encoder = load(given)
    elif (shipped_folder() / "config.json").is_file() and (own := load()).fingerprint == made_by.fingerprint:
        encoder = own
    elif manifest.encoder_folder is not None:
        inside = part_folder(folder, manifest.encoder_folder)
        verify_folder(inside, ENCODER_KIND)
        encoder = load(str(inside))
    elif made_by.name == SHIPPED:
        raise ArtifactError(
            f"{folder} was built with another edition of {SHIPPED} (fingerprint {made_by.fingerprint}) than this "
            "version of npmlm has: build it again, or set encoder to a folder with that edition"
        )
    else:
        raise ArtifactError(
            f"{folder} was built with the encoder {made_by.name} (fingerprint {made_by.fingerprint}), which is not "
            f"found; set encoder, such as encoder={made_by.name}, or build with copy_encoder=true"
        )
    return check_encoder(folder, manifest, encoder)


def rows_of_blocks(store: BlockStore, rows: RowMap, blocks: np.ndarray) -> np.ndarray:
    """Mask bool [rows] of the tokens in the blocks of a mask bool [blocks]."""
    first_rows = rows.rows_before(store.block_offsets)  # i64 [blocks + 1]
    return np.repeat(blocks, np.diff(first_rows))  # bool [rows]


def without_rows(index: PhraseIndex, ranges: Sequence[tuple[int, int]]) -> PhraseIndex:
    """`index` as if the blocks with rows in these half-open ranges were deleted; their documents stay."""
    live = np.ones(index.store.block_count, dtype=bool) if index.live_blocks is None else index.live_blocks.copy()
    for first, stop in ranges:  # rows are in the order of blocks
        if first < stop:
            start, last = index.store.block_of(index.rows.positions(np.array([first, stop - 1])))
            live[start : last + 1] = False  # [blocks]
    return _with_live_blocks(index, live)


def with_documents(index: PhraseIndex, chosen: np.ndarray) -> PhraseIndex:
    """`index` as if only the live documents of `chosen`, bool [documents], had ever been in it, for BM25 too."""
    live = chosen if index.live_documents is None else chosen & index.live_documents  # bool [documents]
    blocks = index.store.blocks_of_documents(live)  # bool [blocks]
    if index.live_blocks is not None:  # of a live document, too, some may be out of reach
        blocks &= index.live_blocks
    return replace(_with_live_blocks(index, blocks), live_documents=live)


def _with_live_blocks(index: PhraseIndex, live: np.ndarray) -> PhraseIndex:
    """`index` over the blocks that are live, bool [blocks]."""
    return replace(
        index,
        live_blocks=live,
        live_rows=rows_of_blocks(index.store, index.rows, live),
        lexicon=index.lexicon.with_live(live),
        block_vectors=None if index.block_vectors is None else index.block_vectors.with_live(live),
    )


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """The blocks and rows that answers may come from; None: all of the index."""

    blocks: np.ndarray | None  # bool [blocks]
    rows: np.ndarray | None  # bool [rows]

    def allowed(self, blocks: np.ndarray) -> np.ndarray:
        """Those of `blocks` i64 [n] that may be looked in, in their order."""
        return blocks if self.blocks is None else blocks[self.blocks[blocks]]


def select(index: PhraseIndex, documents: Sequence[str] | None, where: Sequence[str]) -> DocumentFilter:
    """Filter the index by document ids, None for all, and by conditions on kept fields.

    Raises QueryError for an id that no live document has, NoDocumentError if no document remains, except for
    an empty list of ids, SettingError for a condition that cannot be read or names a field that is not in the index.
    """
    if documents is None and not where:
        return DocumentFilter(index.live_blocks, index.live_rows)
    chosen = np.ones(index.store.document_count, dtype=bool)  # [documents]
    if index.live_documents is not None:
        chosen &= index.live_documents
    if documents is not None:
        numbers = index.store.find_documents(documents, among=index.live_documents)  # i64 [ids]
        unknown = [repr(name) for name, number in zip(documents, numbers.tolist(), strict=True) if number < 0]
        if unknown:
            raise QueryError(
                f"documents: no such document: {named(unknown)}; use ids that answers show",
                code="no_such_document",
            )
        among = np.zeros(index.store.document_count, dtype=bool)  # [documents]
        among[numbers] = True
        chosen &= among
    if where:
        from npm.corpus.conditions import matching_documents, parse_conditions

        chosen &= matching_documents(index.store, parse_conditions(where))
    # An empty list of documents, such as from a filter by permission, admits nothing and is no mistake.
    if not chosen.any() and (documents is None or len(documents)):
        conditions = [*([f"documents={named(documents)}"] if documents else []), *where]
        raise NoDocumentError(f"where: no document is left with {' and '.join(conditions)}; change documents or where")
    blocks = index.store.blocks_of_documents(chosen)  # bool [blocks]
    if index.live_blocks is not None:  # of a live document, too, some may be out of reach
        blocks &= index.live_blocks
    return DocumentFilter(blocks, rows_of_blocks(index.store, index.rows, blocks))
