"""Maps of queries learned from corrected answers, up to the generation of the index that has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import npm
from npm.core.errors import ArtifactError, CorpusError, QueryError, SettingError
from npm.core.types import Answer
from npm.indexing.adaptation import QueryMaps
from npm.indexing.changes import add_documents, delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import inspect_index, verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from npm.reading.mask_reader import MaskReader
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning.adapt import Adaptation, Measures, corrected_answers, merged, read_corrections, remove_adaptation
from npm.tuning.examples import CorrectedAnswer, Example, Lesson, examples_of, learned_maps
from tests.helpers.tuned_indexes import WORDS, build_measured

COUNT = 50
LEARNED = "Iceland"
"""The word that is right in all corrections that teach something."""


def reading(folder: Path, encoder: Encoder) -> PhraseFiller:
    """A filler over an index with its own encoder as reader."""
    return PhraseFiller.open(folder, encoder, reader=MaskReader(encoder))


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
    retrieval: Retrieval, encoder: Encoder, folder: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CANDIDATES", "MAX_CANDIDATES"):
        monkeypatch.setattr(f"npm.tuning.examples.{name}", 100_000)
    settings = FillSettings(retrieval=retrieval, literal_weight=0.0)
    plain = reading(folder, encoder)
    joint = retrieval is Retrieval.hybrid
    maps = random_maps(encoder.dimensions, rng)
    learned = QueryMaps(retrieval.value, encoder.fingerprint if joint else "", maps)
    adapted = plain.with_index(replace(plain.index, query_maps=learned))
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
        lesson = Lesson([before], encoder.similarity_scale)
        assert lesson.is_joint is joint
        found = lesson.loss(torch.from_numpy(maps))
        expected = Lesson([after], encoder.similarity_scale).loss(torch.zeros(maps.shape))
        assert float(found) == pytest.approx(float(expected), abs=2e-3)
        unchanged = float(lesson.loss(torch.zeros(maps.shape)))
        assert unchanged != pytest.approx(float(expected), abs=2e-3)
    assert compared > 3


def test_queries_are_mapped_for_the_retrieval_that_learned_and_for_no_other(
    encoder: Encoder, folder: Path, rng: np.random.Generator
) -> None:
    plain = PhraseFiller.open(folder, encoder)
    maps = QueryMaps("dense", "", random_maps(encoder.dimensions, rng))
    adapted = PhraseFiller(replace(plain.index, query_maps=maps), encoder)
    asked = texts(3)
    for retrieval in (Retrieval.dense, Retrieval.bm25, Retrieval.hybrid):
        settings = FillSettings(retrieval=retrieval)
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


def test_a_second_adaptation_is_measured_against_the_maps_in_use(
    folder: Path, encoder: Encoder, corrected: Path
) -> None:
    first = npm.adapt(corrected, folder, encoder, retrieval="dense")
    second = npm.adapt(corrected, folder, encoder, retrieval="dense")
    assert second.before == first.after == second.after
    assert (first.generation, second.generation) == (1, None)
    with pytest.raises(SettingError, match="retrieval must be dense"):
        npm.adapt(corrected, folder, encoder, retrieval="bm25")


def test_an_index_that_is_changed_meanwhile_is_not_written(folder: Path, encoder: Encoder, corrected: Path) -> None:
    def change(stage: str, done: int, total: int | None) -> None:
        if stage == "maps" and done == 1:
            delete_documents(folder, DeleteSettings(ids=["d3"]))

    with pytest.raises(ArtifactError, match="was changed"):
        npm.adapt(corrected, folder, encoder, retrieval="dense", progress=change)
    assert PhraseIndex.open(folder).query_maps is None and not list(folder.glob("adaptation-*"))
    opened = PhraseFiller.open(folder, encoder)
    delete_documents(folder, DeleteSettings(ids=["d4"]))
    with pytest.raises(ArtifactError, match="was changed"):
        npm.adapt(corrected, opened, retrieval="dense")


def test_questions_without_a_block_teach_nothing_and_are_answered_next_to_others(
    folder: Path, encoder: Encoder
) -> None:
    nowhere = [f"{letters} <mask>." for letters in ("xyzzy", "quux", "plugh", "frobnitz")]
    filler = reading(folder, encoder)
    questions = [CorrectedAnswer(text, (LEARNED,)) for text in (*nowhere, *texts(COUNT))]
    examples = list(examples_of(filler, questions, FillSettings(retrieval=Retrieval.hybrid)))
    assert examples[: len(nowhere)] == [None] * len(nowhere) and any(examples)
    found = npm.adapt({each.text: LEARNED for each in questions}, filler)
    assert found.questions == len(questions) and 0 < found.learned <= COUNT


@pytest.mark.parametrize(
    ("after", "is_better"),
    [
        (Measures(5, 7, 0.9), True),
        (Measures(6, 8, 0.9), True),
        (Measures(6, 6, 0.9), False),
        (Measures(4, 8, 0.9), False),
        (Measures(6, 8, 1.0), False),
    ],
)
def test_maps_are_better_if_no_right_answer_is_lost_and_the_loss_falls(after: Measures, is_better: bool) -> None:
    found = Adaptation("hybrid", 50, 40, 10, 0, before=Measures(5, 7, 1.0), after=after, generation=None)
    assert found.is_better is is_better


def test_rows_of_one_question_are_one_with_all_their_answers(folder: Path, encoder: Encoder, corrected: Path) -> None:
    rows = [CorrectedAnswer("A <mask>.", ("x", "y")), CorrectedAnswer("B <mask>.", ("z",))]
    assert merged([*rows, CorrectedAnswer("a  <mask>.", ("y", "v"))]) == [
        replace(rows[0], answers=("x", "y", "v")),
        rows[1],
    ]
    once = npm.adapt(corrected, folder, encoder, retrieval="dense")
    remove_adaptation(folder)
    corrected.write_text(2 * corrected.read_text(encoding="utf-8"), encoding="utf-8")
    twice = npm.adapt(corrected, folder, encoder, retrieval="dense")
    assert replace(twice, generation=once.generation) == once


def test_questions_are_read_as_fill_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"question": "A ___.", "answers": "x"}, {"question": "Who governs Iceland?", "answers": ["y", "z"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    expected = [CorrectedAnswer("A <mask>.", ("x",)), CorrectedAnswer("Who governs Iceland? <mask>.", ("y", "z"))]
    assert read_corrections([str(file)]) == expected
    assert corrected_answers({"A ___.": "x", "Who governs Iceland?": ("y", "z")}) == expected


def test_corrections_that_cannot_be_used_are_refused(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="at least 50 different ones, got 2"):
        npm.adapt(dict.fromkeys(texts(2), LEARNED), folder, encoder)
    with pytest.raises(CorpusError, match="none of the 40 questions to learn from"):
        npm.adapt(dict.fromkeys(texts(COUNT), "no such phrase"), folder, encoder)
    held_out = np.random.default_rng(0).permutation(COUNT)[: COUNT // 5].tolist()
    unknown = {text: "no such phrase" if row in held_out else LEARNED for row, text in enumerate(texts(COUNT))}
    with pytest.raises(CorpusError, match="none of the 10 held-out questions"):
        npm.adapt(unknown, folder, encoder)
    with pytest.raises(QueryError, match="exactly one <mask>"):
        npm.adapt({"<mask> is <mask>.": LEARNED}, folder, encoder)
    with pytest.raises(CorpusError, match="entry 2: 'answers'"):
        npm.adapt({"A <mask>.": "x", "B <mask>.": []}, folder, encoder)
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
    fits = QueryMaps("dense", "", np.zeros((2, encoder.dimensions, encoder.dimensions + 1), dtype=np.float32))
    assert replace(opened, query_maps=fits).check_encoder(encoder)
    with pytest.raises(ArtifactError, match="maps of 3 dimensions"):
        replace(opened, query_maps=replace(fits, maps=fits.maps[:, :3, :4])).check_encoder(encoder)
