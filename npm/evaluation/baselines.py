"""What a reader without a trained encoder would score: the right passage, and a random phrase of it.

Shapes: T tokens of the corpus, m candidate spans of one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npm.errors import SettingError
from npm.evaluation.metrics import chance_of_hit, normalise_answer
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.phrases import SpanFinder
from npm.retrieval.rows import RowMap
from npm.types import TokenFlag

if TYPE_CHECKING:
    from npm.evaluation.questions import Question
    from npm.retrieval.fill import PhraseFiller
    from npm.retrieval.lexical import BlockLexicon
    from npm.retrieval.phrases import Candidates

NAME = "BM25, random span"


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


class RandomSpanOfRightPassage:
    """BM25 with an oracle: of all blocks that hold an answer the one that BM25 ranks best, and random spans of it.

    A span starts and ends with a word, has no stop-word or punctuation at its ends, does not run over the end of a
    clause where the filler's may not, and has as many tokens as the filler allows. Spans are drawn without
    replacement; chances are exact, so nothing is drawn at all.
    """

    def __init__(self, filler: PhraseFiller) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler, fix="leave the baseline out with baseline=false")
        self._store = filler.index.store
        barred = (TokenFlag.STOPWORD | TokenFlag.PUNCTUATION | TokenFlag.SPECIAL).value
        flags = self._store.flags.slice(0, self._store.token_count)  # u8 [T]
        self._spans = BlockSpans(filler, RowMap.of_mask((flags & barred) == 0))
        self._plain_texts: dict[int, str] = {}

    def chances(self, question: Question, draws: Sequence[int]) -> list[float]:
        """For each number of draws, the chance of a hit; 0 where no block holds an answer."""
        answers = {normalise_answer(answer) for answer in question.answers}
        best_first = np.argsort(-self._lexicon.scores(question.text), kind="stable")  # i64 [blocks]
        for block in best_first.tolist():
            # Whatever a span says stands in its block, and reading the block is far cheaper than listing its spans.
            if not any(answer in self._plain_text(block) for answer in answers):
                continue
            spans = self.spans(block)
            hits = sum(normalise_answer(span) in answers for span in spans)
            if hits:
                return [chance_of_hit(len(spans), hits, count) for count in draws]
        return [0.0] * len(draws)

    def spans(self, block: int) -> list[str]:
        """The surface texts of the candidate spans of a block."""
        return self._spans.texts(self._spans.of(block))

    def _plain_text(self, block: int) -> str:
        if block not in self._plain_texts:
            self._plain_texts[block] = normalise_answer(self._store.block_text(block))
        return self._plain_texts[block]
