"""What a reader without a trained encoder would score: the right passage, and a random phrase of it.

Shapes: T tokens of the corpus, m candidate spans of one block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npm.errors import SettingError
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.phrases import SpanFinder
from npm.retrieval.rows import RowMap

if TYPE_CHECKING:
    from npm.retrieval.fill import PhraseFiller
    from npm.retrieval.lexical import BlockLexicon
    from npm.retrieval.phrases import Candidates


class BlockSpans:
    """The phrases of one block that a filler's settings allow, whatever is asked."""

    def __init__(self, filler: PhraseFiller, ends: RowMap) -> None:
        """`ends` are the tokens that a phrase may start and end with."""
        self._store = filler.index.store
        self._ends = ends
        self._finder = SpanFinder(
            self._store, ends, max_phrase_tokens=filler.settings.max_phrase_tokens, scoring=filler.settings.scoring
        )
        self.reader = SurfaceReader(self._store, filler.encoder.tokenizer)

    def of(self, block: int) -> Candidates:
        """All of them, m spans."""
        edges = self._store.block_offsets[block : block + 2]  # i64 [2]
        return self._finder.find(self._ends.rows_within(edges[:1], edges[1:]), None)

    def texts(self, candidates: Candidates) -> list[str]:
        """The surface text of each."""
        return self.reader.texts(candidates.starts, candidates.lengths)


def lexicon_of(filler: PhraseFiller, *, fix: str) -> BlockLexicon:
    """The lexicon of a filler's index. Raises SettingError, which advises `fix`, if the index has no text."""
    if filler.index.lexicon is None:
        raise SettingError(
            "the baseline needs the text of the blocks",
            expected="an index over blocks with text",
            got="an index over blocks of token ids",
            where=str(filler.index.folder),
            fix=fix,
        )
    return filler.index.lexicon
