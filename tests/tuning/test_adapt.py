"""Maps of queries learned from corrected answers, up to the generation of the index that has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import npm
from npm.core.errors import ArtifactError, CorpusError, QueryError
from npm.core.types import Answer
from npm.indexing.adaptation import QueryMaps
from npm.indexing.changes import add_documents, delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings
from npm.indexing.verify import verify_index
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.adapt import remove_adaptation
from npm.tuning.examples import CorrectedAnswer, Example, examples_of
from npm.tuning.query_maps import Lesson, learned_maps
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.tuned_indexes import WORDS, build_measured

COUNT = 30
LEARNED = "Iceland"
"""The word that is right in all corrections that teach something."""


@pytest.fixture(scope="module")
def reader() -> Encoder:
    """A tiny encoder with a joint pass. Not to be changed."""
    encoder = tiny_encoder("bert")
    encoder.reads_jointly = True
    return encoder


@pytest.fixture
def folder(encoder: Encoder, tmp_path: Path) -> Path:
    return build_measured(tmp_path / "index", encoder, None, documents=40)


def texts(count: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6).tolist()) + " <mask>." for _ in range(count)]


def random_maps(dimensions: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 0.1, (2, dimensions, dimensions + 1)).astype(np.float32)


def shares(example: Example, logits: np.ndarray) -> np.ndarray:
    """Sorted shares of the candidates by their logits [m]."""
    weights = np.exp(logits - logits.max())
    return np.sort(weights / weights.sum())


@pytest.mark.parametrize("retrieval", [Retrieval.hybrid, Retrieval.bm25, Retrieval.dense])
def test_the_scores_that_maps_are_learned_by_are_those_that_fill_gives_with_them(
    retrieval: Retrieval, reader: Encoder, folder: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CANDIDATES", "LOOKED_AT"):
        monkeypatch.setattr(f"npm.tuning.examples.{name}", 100_000)
    settings = FillSettings(retrieval=retrieval, literal_weight=0.0)
    plain = PhraseFiller.open(folder, reader)
    joint = retrieval is Retrieval.hybrid
    maps = random_maps(reader.dimensions, rng)
    learned = QueryMaps(retrieval.value, joint, maps)
    adapted = PhraseFiller(replace(plain.index, query_maps=learned), reader)
    asked = [CorrectedAnswer(text, (LEARNED,)) for text in texts(20)]
    befores, compared = list(examples_of(plain, asked, settings)), 0
    if not joint:  # maps of stored vectors change the queries where fill gets them
        monkeypatch.setattr(
            "npm.tuning.examples.encode_queries", lambda *given, **more: encode_queries(*given, **more).mapped(maps)
        )
    for before, after in zip(befores, examples_of(adapted, asked, settings), strict=True):
        if before is None or after is None:
            continue
        compared += 1
        lesson = Lesson([before], reader.similarity_scale)
        assert lesson.is_joint is joint
        found = lesson.loss(torch.from_numpy(maps))
        expected = Lesson([after], reader.similarity_scale).loss(torch.zeros(maps.shape))
        assert float(found) == pytest.approx(float(expected), abs=2e-3)
        unchanged = float(lesson.loss(torch.zeros(maps.shape)))
        assert unchanged != pytest.approx(float(expected), abs=2e-3)
    assert compared > 3


def test_queries_are_mapped_for_the_retrieval_that_learned_and_for_no_other(
    encoder: Encoder, folder: Path, rng: np.random.Generator
) -> None:
    plain = PhraseFiller.open(folder, encoder)
    maps = QueryMaps("dense", False, random_maps(encoder.dimensions, rng))
    adapted = PhraseFiller(replace(plain.index, query_maps=maps), encoder)
    asked = texts(3)
    for retrieval in (Retrieval.dense, Retrieval.bm25, Retrieval.hybrid):
        settings = FillSettings(retrieval=retrieval, rerank_weight=0.0)
        vectors = encode_queries(encoder, asked)
        expected = vectors.mapped(maps.maps) if retrieval is Retrieval.dense else vectors
        answers = adapted.fill_encoded(asked, vectors, settings=settings)
        assert answers == plain.fill_encoded(asked, expected, settings=settings)


def test_of_two_candidates_the_right_one_wins_and_the_penalty_bounds_the_maps() -> None:
    queries = np.array([[[1.0, 0.0], [1.0, 0.0]]], dtype=np.float32)  # [1, 2, 2]
    keys = np.array([[[1, 0], [0, 0]], [[0, 1], [0, 0]]], dtype=np.float16)  # [2, 2, 2]
    nothing = np.zeros((0, 2, 2), dtype=np.float32)
    example = Example(
        logits=np.array([1.0, 0.0], dtype=np.float32),
        is_right=np.array([False, True]),
        blocks=np.zeros(2, dtype=np.int64),
        queries=queries,
        keys=keys,
        factors=(1.0, 0.0),
        joint_queries=nothing,
        joint_keys=nothing.astype(np.float16),
        is_key=np.zeros((0, 2), dtype=bool),
        slots=np.zeros((2, 2), dtype=np.int64),
    )
    lesson = Lesson([example], 1.0)
    assert float(lesson.loss(torch.zeros(2, 2, 3))) == pytest.approx(np.log(1 + np.e))
    sizes = []
    for penalty in (1e-3, 1.0):
        maps = learned_maps(lesson, penalty=penalty, on_step=lambda _: None)
        # the end query is compared with zeros: nothing is learned for it, nor for the second number of the query
        assert not maps[1].any() and not maps[0, :, 1].any()
        assert maps[0, 1, 0] > 0 > maps[0, 0, 0]
        sizes.append(float(np.square(maps).sum()))
    assert sizes[0] > sizes[1]


@pytest.fixture
def corrected(folder: Path) -> Path:
    """Corrections that teach one word."""
    file = folder.parent / "corrected.jsonl"
    rows = [{"question": text, "answers": [LEARNED, "no such phrase"]} for text in texts(COUNT)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def answered(folder: Path, encoder: Encoder) -> list[Answer]:
    return PhraseFiller.open(folder, encoder).fill(texts(5, seed=9), retrieval="dense", occurrences=1)


def test_an_index_learns_keeps_what_it_learned_through_changes_and_forgets_it(
    folder: Path, encoder: Encoder, corrected: Path
) -> None:
    before = answered(folder, encoder)
    learned = npm.adapt(corrected, folder, encoder, retrieval="dense")
    assert (learned.questions, learned.held_out, learned.generation) == (COUNT, COUNT // 5, 1)
    assert learned.after.loss < learned.before.loss and learned.after.first > learned.before.first
    after = answered(folder, encoder)
    firsts = [[answer.phrases[0].phrase.casefold() for answer in answers] for answers in (before, after)]
    assert firsts[1].count(LEARNED.casefold()) > firsts[0].count(LEARNED.casefold())
    facts = inspect_index(folder).adaptation
    assert facts is not None and facts["after"]["first"] == learned.after.first and facts["retrieval"] == "dense"
    verify_index(folder, lambda name, size: None)
    maps = PhraseIndex.open(folder).query_maps
    more = folder.parent / "more.jsonl"
    more.write_text(json.dumps({"id": "new", "title": "New", "text": "Nothing new.", "kind": "random"}) + "\n")
    add_documents(folder, AddSettings(corpus=replace(AddSettings().corpus, files=[str(more)])), encoder)
    delete_documents(folder, DeleteSettings(ids=["d3"]))
    compact_index(folder, CompactSettings())
    kept = PhraseIndex.open(folder).query_maps
    assert maps is not None and kept is not None
    np.testing.assert_array_equal(kept.maps, maps.maps)
    assert remove_adaptation(folder) and not remove_adaptation(folder)
    assert PhraseIndex.open(folder).query_maps is None and inspect_index(folder).adaptation is None
    assert not list(folder.glob("adaptation-*"))


def test_an_index_is_left_as_it_is_where_the_held_out_part_gains_nothing(folder: Path, encoder: Encoder) -> None:
    held_out = np.random.default_rng(0).permutation(COUNT)[: COUNT // 5].tolist()
    answers = {number: "Oslo" if number in held_out else LEARNED for number in range(COUNT)}
    questions = {text: answers[number] for number, text in enumerate(texts(COUNT))}
    before = (folder / "manifest.json").read_bytes()
    found = npm.adapt(questions, folder, encoder, retrieval="dense")
    assert found.generation is None
    assert (folder / "manifest.json").read_bytes() == before and not list(folder.glob("adaptation-*"))


def test_corrections_that_cannot_be_used_are_refused(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="at least 20, got 2"):
        npm.adapt(dict.fromkeys(texts(2), LEARNED), folder, encoder)
    with pytest.raises(CorpusError, match="no answer is among the candidates"):
        npm.adapt(dict.fromkeys(texts(COUNT), "no such phrase"), folder, encoder)
    with pytest.raises(QueryError, match="exactly one <mask>"):
        npm.adapt({"Nothing is masked.": LEARNED}, folder, encoder)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "A <mask>."}\n')
    with pytest.raises(CorpusError, match=r"rows.jsonl:1.*answers"):
        npm.adapt(rows, folder, encoder)


def test_a_damaged_map_is_refused(folder: Path, encoder: Encoder, corrected: Path) -> None:
    npm.adapt(corrected, folder, encoder, retrieval="dense")
    (file,) = folder.glob("adaptation-*/maps.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match=r"maps\.npy"):
        PhraseIndex.open(folder)


def test_maps_of_other_dimensions_are_refused(encoder: Encoder, folder: Path) -> None:
    opened = PhraseIndex.open(folder)
    fits = QueryMaps("hybrid", True, np.zeros((2, encoder.dimensions, encoder.dimensions + 1), dtype=np.float32))
    assert replace(opened, query_maps=fits).check_encoder(encoder)
    with pytest.raises(ArtifactError, match="maps of 3 dimensions"):
        replace(opened, query_maps=replace(fits, maps=fits.maps[:, :3, :4])).check_encoder(encoder)
