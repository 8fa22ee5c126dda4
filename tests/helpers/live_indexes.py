"""Small indexes that are changed: their documents, how they are built, and everything that they answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from index.settings import SearchSettings, SearchTier
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.changes import ChangeResult, add_documents
from npm.indexing.estimate import Estimate, estimate_build
from npm.indexing.generation import Generation
from npm.indexing.settings import AddSettings, EstimateSettings, IndexBuildSettings, VectorDtype, VectorSettings
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import Overlaps, Retrieval
from tests.helpers.tiny_models import SENTENCES

Record = dict[str, str]
TIERS = (None, "ivf_sq8 4", "ivf_pq 4")
"""Exact search and both kinds of inverted lists."""
QUESTIONS = ("The capital of Iceland is <mask>.", "<mask> and Kraków are cities in Poland", "a river <mask> the sea")


def record(number: int, *, text: str | None = None, language: str = "en") -> Record:
    """Document d<number>: two of the sentences, or the text given."""
    sentence, another = SENTENCES[number % len(SENTENCES)], SENTENCES[(3 * number + 1) % len(SENTENCES)]
    return {"id": f"d{number}", "title": f"Title {number}", "text": text or f"{sentence} {another}", "lang": language}


def write_records(file: Path, records: Sequence[Record]) -> str:
    file.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return str(file)


def search_settings(lists: str | None, **more: Any) -> SearchSettings:
    """Those of a tier and its number of lists, such as `ivf_sq8 4`; None: exact."""
    tier, _, count = (lists or "auto").partition(" ")
    return SearchSettings(tier=SearchTier(tier), list_count=int(count) if count else None, **more)


def built(folder: Path, records: Sequence[Record], encoder: Encoder, lists: str | None = None) -> Path:
    """An index of several vector shards and uneven blocks; float32, since batches differ between ways to one index."""
    file = write_records(folder.with_suffix(".jsonl"), records)
    build_index(folder, build_settings(Path(file), lists), encoder)
    return folder


def build_settings(file: Path, lists: str | None = None) -> IndexBuildSettings:
    """Those of `built`."""
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(file)], kept_fields=["lang"]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=100, dtype=VectorDtype.float32),
        # All lists are looked into, and all rows reranked: then every tier answers as the exact one does.
        search=search_settings(lists, probed_lists=4, rerank_factor=100, train_iterations=2),
    )


def added(
    folder: Path, records: Sequence[Record], encoder: Encoder, *, replace: bool = False, name: str = "more"
) -> ChangeResult:
    """The index in `folder` with more documents, from a file <name>.jsonl beside it."""
    file = write_records(folder.parent / f"{name}.jsonl", records)
    settings = AddSettings(corpus=CorpusSettings(files=[file]), replace=replace)
    return add_documents(folder, settings, encoder)


def answers(
    filler: PhraseFiller, where: Sequence[str] = ()
) -> dict[tuple[str, str, str], tuple[float, list[tuple[str, int]]]]:
    """Score and occurrences of every phrase, by way of retrieval and question; each phrase is an entry of its own."""
    filler.settings = replace(filler.settings, overlaps=Overlaps.keep)
    found = {}
    for retrieval in Retrieval:
        if retrieval is Retrieval.blocks and filler.index.block_vectors is None:
            continue
        for answer in filler.fill(list(QUESTIONS), k=1000, occurrences=1000, retrieval=retrieval, where=where):
            for phrase in answer.phrases:
                places = sorted((place.document, place.start_char) for place in phrase.occurrences)
                found[retrieval.value, answer.text, phrase.phrase] = (phrase.score, places)
    return found


def answered_documents(filler: PhraseFiller, where: Sequence[str] = ()) -> set[str]:
    """The ids of all documents that anything is answered from."""
    return {document for _, places in answers(filler, where).values() for document, _ in places}


def assert_same_answers(index: Path, expected: Path, encoder: Encoder) -> None:
    ours = answers(PhraseFiller.open(index, encoder))
    theirs = answers(PhraseFiller.open(expected, encoder))
    assert len(theirs) > 50
    assert ours.keys() == theirs.keys()
    for key, (score, places) in theirs.items():
        assert abs(ours[key][0] - score) < 1e-6, key
        assert ours[key][1] == places, key


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of an index, lock files included: none may be left."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def part_of(folder: Path, kind: str, segment: int = 0) -> Path:
    """The only part of a kind in an index, finished or not, or the live one of a segment."""
    found = list(folder.glob(f"{kind}-*"))
    if len(found) == 1:
        return found[0]
    return folder / str(getattr(Generation.read(folder).manifest.segments[segment], kind))


def estimated(settings: IndexBuildSettings, encoder: Encoder) -> Estimate:
    """The estimate of a build with these settings."""
    asked = EstimateSettings(**{item.name: getattr(settings, item.name) for item in fields(settings)})
    return estimate_build(asked, encoder)
