"""Which spans of a text may be phrases, on a text whose phrases can be listed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import kept_tokens
from npm.indexing.rows import RowMap
from npm.indexing.settings import PruningRule
from npm.retrieval.scoring import ScoringSettings, StopwordsInside
from npm.retrieval.spans import SpanFinder
from npm.types import Document
from tests.helpers.tiny_models import wordpiece_tokenizer

TEXT = "Noah's Ark of Peace was in San Francisco"
NAMES = {"Noah", "Ark", "Peace", "San", "Francisco", "San Francisco"}
LINKED = {"Noah's Ark", "Noah's Ark of Peace", "Ark of Peace"}
RUNNING_ON = {
    f"{start} was in {end}"
    for start in ("Peace", "Ark of Peace", "Noah's Ark of Peace")
    for end in ("San", "San Francisco")
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    return store_of(TEXT, tmp_path_factory.mktemp("spans") / "store")


def store_of(text: str, folder: Path) -> BlockStore:
    packer = BlockPacker(wordpiece_tokenizer([text] * 9), BlockSettings())
    return build_block_store(folder, [Document("d", "", text)], packer, settings={})


def phrases_in(store: BlockStore, text: str, scoring: ScoringSettings, *, from_ends: bool) -> set[str]:
    rows = RowMap.of_mask(kept_tokens(store.flags.slice(0, store.token_count), PruningRule.without_stopwords))
    finder = SpanFinder(store, rows, max_phrase_tokens=50, scoring=scoring)
    every, none = np.arange(len(rows)), np.zeros(0, dtype=np.int64)
    found = finder.find(none, every) if from_ends else finder.find(every, None)
    assert store.start_chars is not None and store.end_chars is not None
    starts = store.start_chars.take(found.starts).tolist()
    ends = store.end_chars.take(found.starts + found.lengths - 1).tolist()
    return {text[start:end] for start, end in zip(starts, ends, strict=True)}


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (StopwordsInside.none, NAMES),
        (StopwordsInside.linking, NAMES | LINKED),
        (StopwordsInside.all, NAMES | LINKED | RUNNING_ON),
    ],
)
@pytest.mark.parametrize("from_ends", [True, False])
def test_stop_words_inside_are_those_that_the_setting_names(
    inside: StopwordsInside, expected: set[str], from_ends: bool, store: BlockStore
) -> None:
    assert phrases_in(store, TEXT, ScoringSettings(stopwords_inside=inside), from_ends=from_ends) == expected


@pytest.mark.parametrize("from_ends", [True, False])
def test_a_clause_ends_at_a_point_unless_the_next_token_touches_it(from_ends: bool, tmp_path: Path) -> None:
    text = "Bonn: 3.5 miles. Rhine"
    found = phrases_in(store_of(text, tmp_path / "store"), text, ScoringSettings(), from_ends=from_ends)
    assert found == {"Bonn", "3", "5", "3.5", "miles", "3.5 miles", "5 miles", "Rhine"}
