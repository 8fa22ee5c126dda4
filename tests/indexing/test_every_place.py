"""Phrases, shares and places of `dense` after every kind of change, against a plain loop over all stored vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import MASK_TEXT
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.settings import CompactSettings, DeleteSettings, IndexBuildSettings, VectorDtype, VectorSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.helpers.live_indexes import QUESTIONS, TIERS, Record, added, search_settings, write_records
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.retrieval.plain_filling import OpenedCorpus, plain_phrases

Place = tuple[str, int, int]
ALL_ROWS, FEW_ROWS = 10_000, 12
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def documents(rng: np.random.Generator, *numbers: int) -> list[Record]:
    """Documents of 6 to 23 words in random order, so that no two blocks, hence no two scores, are equal."""
    return [
        {"id": f"d{number}", "title": f"Title {number}", "text": " ".join(rng.choice(WORDS, rng.integers(6, 24)))}
        for number in numbers
    ]


def changed_indexes(folder: Path, encoder: Encoder, lists: str | None) -> list[Callable[[], object]]:
    """The build of an index in `folder`, then one change after the other."""
    rng = np.random.default_rng(0)
    build = IndexBuildSettings(
        corpus=CorpusSettings(files=[write_records(folder.with_suffix(".jsonl"), documents(rng, *range(8)))]),
        blocks=BlockSettings(max_block_tokens=24, title_tokens=3),
        vectors=VectorSettings(tokens_per_shard=60, dtype=VectorDtype.float32),
        # All lists are probed and all rows reranked: every tier then finds the best rows.
        search=search_settings(lists, probed_lists=4, rerank_factor=1000),
    )
    return [
        lambda: build_index(folder, build, encoder),
        lambda: added(folder, documents(rng, 8, 9, 10), encoder),
        lambda: added(folder, documents(rng, 2, 11), encoder, replace=True, name="newer"),
        lambda: delete_documents(folder, DeleteSettings(ids=["d0", "d9"])),
        lambda: partition_index(folder, 3),
        lambda: added(folder, documents(rng, 0), encoder, name="again"),
        lambda: compact_index(folder, CompactSettings(retrain=True)),
        lambda: delete_documents(folder, DeleteSettings(ids=["d11"])),
        lambda: partition_index(folder, 1),
    ]


def assert_every_place(filler: PhraseFiller, corpus: OpenedCorpus) -> set[tuple[str, Place]]:
    """Compare the answers to all questions with plain loops; returns the phrases with their places."""
    index, settings = filler.index, filler.settings
    live = None if index.live_blocks is None else np.flatnonzero(index.live_blocks).tolist()
    vectors = encode_queries(filler.encoder, list(QUESTIONS), pooler=None, tokens_per_batch=8192)
    found: set[tuple[str, Place]] = set()
    for number, answer in enumerate(filler.fill_encoded([MASK_TEXT] * len(QUESTIONS), vectors)):
        expected = plain_phrases(
            corpus,
            vectors.start[number],
            vectors.end[number],
            scale=filler.encoder.similarity_scale,
            scoring=settings.scoring,
            max_phrase_tokens=settings.max_phrase_tokens,
            candidates_per_side=settings.candidates_per_side or ALL_ROWS,
            blocks=None,
            live_blocks=live,
            merged_groups=settings.merged_groups,
        )[: settings.k]
        wanted = {each.phrase.casefold(): each for each in expected}
        assert {phrase.phrase.casefold() for phrase in answer.phrases} == wanted.keys()
        for phrase in answer.phrases:
            own = wanted[phrase.phrase.casefold()]
            places = {(each.document, each.start_char, each.end_char) for each in phrase.occurrences}
            assert places == {corpus.place(*span) for span in own.spans}, phrase.phrase
            assert phrase.occurrence_count == len(own.spans) == len(places), phrase.phrase
            assert phrase.score == pytest.approx(own.score, rel=1e-4), phrase.phrase
            found |= {(f"{number} {phrase.phrase.casefold()}", place) for place in places}
    return found


@pytest.mark.parametrize(
    ("lists", "family"), [(None, "roberta"), *((lists, "bert") for lists in TIERS if lists)], ids=str
)
def test_dense_finds_every_place_that_plain_loops_find_after_every_change(
    lists: str | None, family: str, tmp_path: Path
) -> None:
    encoder = tiny_encoder(family)
    few = ((FEW_ROWS, 10_000, 10_000), (ALL_ROWS, 4, 3))
    for number, change in enumerate(changed_indexes(tmp_path / "index", encoder, lists)):
        change()
        found = {}
        for rows, groups, k in ((ALL_ROWS, 10_000, 10_000), few[number % 2]):
            settings = FillSettings(
                retrieval=Retrieval.dense,
                overlaps=Overlaps.keep,
                candidates_per_side=rows,
                merged_groups=groups,
                k=k,
                occurrences=10_000,
            )
            filler = PhraseFiller.open(tmp_path / "index", encoder, settings=settings)
            found[rows, k] = assert_every_place(filler, OpenedCorpus(filler.index))
        everything = found[ALL_ROWS, 10_000]
        assert any(first == 0 for _, (_, first, _) in everything)  # a document's first token begins a phrase
        assert all(each < everything for rows_and_k, each in found.items() if rows_and_k != (ALL_ROWS, 10_000))
