"""Which documents a text may be answered from: those named, those whose fields match, and never a deleted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npm.corpus.conditions import matching_documents, parse_conditions
from npm.errors import QueryError
from npm.retrieval.phrase_index import rows_of_blocks

if TYPE_CHECKING:
    from index.arrays import RowSet
    from npm.retrieval.phrase_index import PhraseIndex

NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """The blocks and rows that answers may come from; None: all of the index."""

    blocks: np.ndarray | None  # bool [blocks]
    rows: RowSet | None

    def allowed(self, blocks: np.ndarray) -> np.ndarray:
        """Those of `blocks` i64 [n] that may be looked in, in their order."""
        return blocks if self.blocks is None else blocks[self.blocks[blocks]]


def select(index: PhraseIndex, documents: Sequence[str], where: Sequence[str]) -> Selection:
    """What is left of the index by document ids and conditions on kept fields; an empty list asks for nothing.

    Raises QueryError for an id that no live document has, or where no document is left, SettingError for a condition
    that cannot be read or speaks of a field that the index does not keep.
    """
    if not documents and not where:
        return Selection(index.live_blocks, index.live_rows)
    chosen = np.ones(index.store.document_count, dtype=bool)  # [documents]
    if index.live_documents is not None:
        chosen &= index.live_documents
    if documents:
        chosen &= _named_documents(index, documents)
    if where:
        chosen &= matching_documents(index.store, parse_conditions(where))
    if not chosen.any():
        raise QueryError(
            "no document is left to answer from",
            expected="a filter that at least one document of the index meets",
            got=" and ".join([*([f"documents={','.join(documents[:NAMED_AT_MOST])}"] if documents else []), *where]),
            where="documents, where",
            fix="loosen the filter; npmlm inspect index=… lists the fields that are kept",
        )
    blocks = index.store.blocks_of_documents(chosen)  # bool [blocks]
    return Selection(blocks, rows_of_blocks(index.store, index.rows, blocks))


def _named_documents(index: PhraseIndex, ids: Sequence[str]) -> np.ndarray:
    """A mask bool [documents] of the live documents with these ids."""
    numbers = index.store.find_documents(ids, among=index.live_documents)  # i64 [ids]
    unknown = [name for name, number in zip(ids, numbers.tolist(), strict=True) if number < 0]
    if unknown:
        more = f" and {len(unknown) - NAMED_AT_MOST} more" if len(unknown) > NAMED_AT_MOST else ""
        raise QueryError(
            "there is no such document",
            expected="ids of documents in the index",
            got=", ".join(map(repr, unknown[:NAMED_AT_MOST])) + more,
            where="documents",
            fix="check the ids; answers name them as `document`",
        )
    mask = np.zeros(index.store.document_count, dtype=bool)  # [documents]
    mask[numbers] = True
    return mask
