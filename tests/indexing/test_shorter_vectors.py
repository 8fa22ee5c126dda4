"""Shorter vectors: an index stores, searches, checks and changes leading numbers, as they are or on principal axes."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.settings import SearchSettings
from npm.core.artifact import write_folder
from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.settings import Shard
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.evaluation.methods.nonparametric import NonparametricLabels
from npm.evaluation.tasks import resolved_scoring
from npm.indexing import rotation
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.embed import open_vectors
from npm.indexing.estimate import estimate_build
from npm.indexing.generation import Generation
from npm.indexing.inspect import inspect_index, verify_index, verify_vectors
from npm.indexing.partitions import local_searcher
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rotation import opened_axes, principal_axes
from npm.indexing.settings import (
    CompactSettings,
    DeleteSettings,
    EstimateSettings,
    IndexBuildSettings,
    Rotation,
    Stage,
    VectorDtype,
    VectorSettings,
)
from npm.models.encoder import Encoder
from npm.models.settings import leading_scale
from npm.reading.mask_reader import MaskReader
from npm.retrieval.blocks import passage_of
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.passage_store import PassageCache
from npm.retrieval.passages import passage_index
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.serving.opened import OpenedIndex
from npm.serving.requests import FullPassage, OverRequest
from npm.serving.settings import ServeSettings
from tests.helpers.live_indexes import (
    QUESTIONS,
    added,
    all_bytes,
    answers,
    assert_same_answers,
    estimated,
    part_of,
    record,
    search_settings,
    write_records,
)
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

CUT, WHOLE = 8, 32
ROTATED = {"dimensions": CUT, "rotation": Rotation.pca}


@pytest.fixture(scope="module")
def empty_tail(encoder: Encoder) -> Encoder:
    """The same encoder, but for zeros behind the leading numbers, and with the scale that these have alone.

    Whole vectors of it have the inner products that shortened ones of the other have.
    """
    model: Any = copy.deepcopy(encoder.model)
    norm = model.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        norm.weight[CUT:], norm.bias[CUT:] = 0.0, 0.0
    scale = 0.3 * (WHOLE / CUT) ** 0.5
    return Encoder(model, encoder.tokenizer, name="empty tail", similarity_scale=scale)


@pytest.fixture(scope="module")
def empty_head(encoder: Encoder) -> Encoder:
    """An encoder whose vectors have nothing but zeros before their last numbers: they lie along CUT axes."""
    model: Any = copy.deepcopy(encoder.model)
    norm = model.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        norm.weight[:-CUT], norm.bias[:-CUT] = 0.0, 0.0
    return Encoder(model, encoder.tokenizer, name="empty head", similarity_scale=0.3)


def settings_for(folder: Path, numbers: range, **settings: Any) -> IndexBuildSettings:
    file = write_records(folder.with_suffix(".jsonl"), [record(number) for number in numbers])
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[file], kept_fields=["lang"]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=100, dtype=VectorDtype.float32),
        **settings,
    )


def stored(folder: Path) -> np.ndarray:
    vectors = PhraseIndex.open(folder).vectors
    assert vectors is not None
    return vectors.take(np.arange(len(vectors)))


def built(
    folder: Path, encoder: Encoder, *, lists: str | None = None, numbers: range = range(8), **settings: Any
) -> Path:
    search = search_settings(lists, probed_lists=4, rerank_factor=100)
    build_index(folder, settings_for(folder, numbers, search=search, **settings), encoder)
    return folder


def assert_near(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert len(expected) > 50
    assert found.keys() == expected.keys()
    for key, (score, places) in expected.items():
        assert found[key] == (pytest.approx(score, rel=1e-3), places)


@pytest.fixture(scope="module")
def finished(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("rotated") / "index", encoder, **ROTATED)


@pytest.fixture
def index(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "index")


def test_principal_axes_are_those_of_a_singular_value_decomposition_whatever_the_mean() -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((5000, 6)) * [5, 4, 3, 2, 1, 0.5] + 2).astype(np.float32)  # [n, d]
    axes, share = principal_axes(vectors, 3)
    _, strengths, expected = np.linalg.svd(vectors.astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(np.abs(axes @ expected[:3].T), np.eye(3), atol=1e-6)
    assert share == pytest.approx((strengths[:3] ** 2).sum() / (strengths**2).sum())
    assert (axes[np.arange(3), np.abs(axes).argmax(1)] > 0).all()


def test_stored_vectors_are_the_coordinates_of_whole_ones_on_the_stored_axes(
    encoder: Encoder, finished: Path, tmp_path: Path
) -> None:
    whole, rotated = stored(built(tmp_path / "whole", encoder)), stored(finished)
    axes = np.load(part_of(finished, "rotation") / "axes.npy")  # f32 [k, d]
    assert rotated.shape == (len(whole), CUT)
    np.testing.assert_allclose(rotated, whole @ axes.T, atol=1e-5)
    expected, share = principal_axes(whole, CUT)
    np.testing.assert_allclose(axes, expected, atol=1e-3)
    inspection = inspect_index(finished)
    assert inspection.dimensions == CUT
    assert inspection.rotation == {"method": "pca", "kept_share": pytest.approx(share), "sample_rows": len(whole)}
    assert inspection.footprint.disk["rotation"] > axes.nbytes
    assert Generation.read(finished).manifest.settings["encoder"]["similarity_scale"] == encoder.similarity_scale


def test_at_full_length_a_rotation_changes_no_answer(encoder: Encoder, tmp_path: Path) -> None:
    rotated = built(tmp_path / "rotated", encoder, dimensions=WHOLE, rotation=Rotation.pca)
    expected = answers(PhraseFiller.open(built(tmp_path / "whole", encoder), encoder))
    found = answers(PhraseFiller.open(rotated, encoder))
    assert_near(found, expected)


@pytest.mark.parametrize("lists", [None, "ivf_sq8 4", "ivf_pq 4"])
def test_vectors_that_lie_along_few_axes_lose_nothing_in_any_tier(
    lists: str | None, empty_head: Encoder, tmp_path: Path
) -> None:
    expected = answers(PhraseFiller.open(built(tmp_path / "whole", empty_head), empty_head))
    rotated = built(tmp_path / "rotated", empty_head, lists=lists, **ROTATED)
    found = answers(PhraseFiller.open(rotated, empty_head))
    assert_near(found, expected)


def test_an_index_keeps_its_axes_whatever_changes_and_answers_as_one_built_at_once(
    empty_head: Encoder, tmp_path: Path
) -> None:
    folder = built(tmp_path / "index", empty_head, lists="ivf_sq8 4", **ROTATED)
    added(folder, [record(number) for number in range(8, 12)], empty_head)
    assert_same_answers(folder, built(tmp_path / "once", empty_head, numbers=range(12), **ROTATED), empty_head)
    delete_documents(folder, DeleteSettings(ids=["d1"]))
    compact_index(folder, CompactSettings())
    before = answers(PhraseFiller.open(folder, empty_head))
    partition_index(folder, 2)
    partitioned = PhraseFiller(PhraseIndex.open(folder, local_searcher(2)), empty_head)
    assert answers(partitioned).keys() == before.keys()
    verify_index(folder)
    checked = verify_vectors(folder, empty_head, batches=4, seed=0)
    assert (checked.row_count > 0, checked.worst_cosine) == (True, pytest.approx(1, abs=1e-5))


def test_every_reader_of_the_index_rotates_the_encoder_that_is_handed_over(encoder: Encoder, finished: Path) -> None:
    opened = PhraseIndex.open(finished)
    axes = np.load(part_of(finished, "rotation") / "axes.npy")  # f32 [k, d]
    labels = NonparametricLabels(opened, encoder)
    whole = PhraseFiller.over(list(SENTENCES[:3]), encoder)
    text = "The capital of Iceland is <mask>."
    vectors = labels.encoded([text], resolved_scoring().last_tokens)
    plain = encode_queries(encoder, [text], pooler=None, tokens_per_batch=512)
    np.testing.assert_allclose(vectors.start, plain.start @ axes.T, atol=1e-5)
    filler = PhraseFiller(opened, encoder)
    assert filler.encoder.axes_digest == opened.load_encoder(encoder).axes_digest is not None
    assert (encoder.axes_digest, whole.encoder.axes_digest) == (None, None)
    assert (filler.encoder.dimensions, encoder.dimensions) == (CUT, WHOLE)
    assert not filler.refresh()
    assert filler.encoder.similarity_scale == encoder.similarity_scale
    assert encoder.cut_to(CUT).similarity_scale == leading_scale(encoder.similarity_scale, CUT, WHOLE)
    assert PhraseFiller(opened, filler.encoder).encoder.axes_digest == filler.encoder.axes_digest  # once only


def test_a_reader_compares_whole_vectors_whatever_the_index_stores(encoder: Encoder, finished: Path) -> None:
    opened = PhraseIndex.open(finished)
    pairs = [(QUESTIONS[0], passage_of(opened.store, block)) for block in (0, 1)]
    for (rotated,), (whole,) in zip(
        MaskReader(opened.check_encoder(encoder)).read(pairs), MaskReader(encoder).read(pairs), strict=True
    ):
        np.testing.assert_array_equal(rotated.scores, whole.scores)


def test_passages_that_are_kept_for_one_encoder_are_not_handed_to_the_rotated_one(
    encoder: Encoder, finished: Path
) -> None:
    cache = PassageCache()
    rotated = PhraseIndex.open(finished).check_encoder(encoder)
    kept = [
        PhraseFiller(passage_index(list(SENTENCES[:3]), each, cache=cache), each)
        for each in (rotated, encoder.cut_to(CUT))
    ]
    assert len(cache) == 6
    vectors = [filler.index.searcher.scan(np.eye(CUT, dtype=np.float32), None).top(1).scores for filler in kept]
    assert not np.allclose(*vectors)


def test_jobs_and_a_build_that_was_killed_write_the_bytes_of_one_build(
    encoder: Encoder, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(
        settings_for(finished, range(8), search=SearchSettings(probed_lists=4, rerank_factor=100)), **ROTATED
    )
    jobs = tmp_path / "jobs"
    with pytest.raises(ArtifactError, match="stage=encode"):
        build_index(jobs, settings, encoder, stage=Stage.merge)
    build_index(jobs, settings, encoder, stage=Stage.encode, shard=Shard(2, 2))
    shutil.move(part_of(jobs, "rotation"), tmp_path / "gone")
    with pytest.raises(ArtifactError, match="stage=encode"):
        build_index(jobs, settings, encoder, stage=Stage.quantize)
    build_index(jobs, settings, encoder, stage=Stage.encode, shard=Shard(1, 2))
    build_index(jobs, settings, encoder, stage=Stage.merge)
    assert all_bytes(jobs) == all_bytes(finished)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for name in ("npm.indexing.rotation.principal_axes", "npm.indexing.build.make_segments"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(name, killed)
            build_index(tmp_path / "killed", settings, encoder)
    build_index(tmp_path / "killed", settings, encoder)
    assert all_bytes(tmp_path / "killed") == all_bytes(finished)
    assert build_index(tmp_path / "killed", settings, encoder).was_finished
    for name, value in (("rotation", Rotation.none), ("dimensions", None), ("dimensions", 16)):
        with pytest.raises(ArtifactError, match=name):
            build_index(tmp_path / "killed", replace(settings, **{"rotation": Rotation.none, name: value}), encoder)
    assert all_bytes(tmp_path / "killed") == all_bytes(finished)


def test_segments_of_a_build_share_axes_of_all_of_them(encoder: Encoder, tmp_path: Path) -> None:
    first, second = (settings_for(tmp_path / name, range(*ends)) for name, ends in (("a", (0, 4)), ("b", (4, 8))))
    files = [*first.corpus.files, *second.corpus.files]
    settings = replace(first, corpus=replace(first.corpus, files=files), segments=2, **ROTATED)
    build_index(tmp_path / "index", settings, encoder)
    vectors = stored(tmp_path / "index")
    assert inspect_index(tmp_path / "index").rotation["sample_rows"] == len(vectors)  # type: ignore[index]
    verify_vectors(tmp_path / "index", encoder, batches=4, seed=0)


def test_a_large_corpus_is_sampled_by_blocks(
    encoder: Encoder, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "SAMPLE_TOKENS", 200)
    folder = built(tmp_path / "index", encoder, **ROTATED)
    sampled, whole = (inspect_index(each).rotation for each in (folder, finished))
    assert sampled is not None and whole is not None
    assert CUT <= sampled["sample_rows"] < whole["sample_rows"]
    assert not np.array_equal(*(np.load(part_of(each, "rotation") / "axes.npy") for each in (folder, finished)))


def test_a_file_of_axes_that_is_missing_changed_or_of_another_index_is_refused(
    index: Path, encoder: Encoder, tmp_path: Path
) -> None:
    place = part_of(index, "rotation")
    file = place / "axes.npy"
    data = file.read_bytes()
    for changed in (None, data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        file.unlink()
        if changed is not None:
            file.write_bytes(changed)
        for read in (lambda: PhraseFiller.open(index, encoder), lambda: verify_index(index)):
            with pytest.raises(ArtifactError) as caught:
                read()
            assert str(file) in str(caught.value)
        file.write_bytes(data)
    shutil.rmtree(place)
    with pytest.raises(ArtifactError, match="no folder") as lost:
        PhraseFiller.open(index, encoder)
    assert str(index) in str(lost.value)
    with write_folder(place, kind="rotation", settings={}) as writer:
        writer.write_array("axes", np.eye(CUT, WHOLE, dtype=np.float32))
    with pytest.raises(ArtifactError, match="is damaged"):
        PhraseFiller.open(index, encoder)


@pytest.mark.parametrize(
    "axes", [np.eye(CUT, WHOLE + 1, dtype=np.float32), np.eye(CUT, WHOLE), np.zeros(3, np.float32)]
)
def test_axes_that_do_not_fit_the_encoder_are_refused(axes: np.ndarray, encoder: Encoder, tmp_path: Path) -> None:
    with write_folder(tmp_path / "rotation", kind="rotation", settings={}) as writer:
        writer.write_array("axes", axes)
    with pytest.raises(ArtifactError, match="is damaged") as caught:
        opened_axes(tmp_path / "rotation", (CUT, encoder.whole_dimensions))
    assert f"float32 [{CUT}, {WHOLE}]" in str(caught.value)


def test_a_rotation_without_a_length_or_of_too_few_vectors_is_refused_and_nothing_is_left(
    encoder: Encoder, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="dimensions"):
        IndexBuildSettings(rotation=Rotation.pca)
    settings = settings_for(tmp_path / "index", range(1), dimensions=WHOLE, rotation=Rotation.pca)
    with pytest.raises(CorpusError, match=f"rotation=pca, got {WHOLE}"):
        build_index(tmp_path / "index", settings, encoder)
    assert not (tmp_path / "index").exists()
    asked = EstimateSettings(corpus=settings.corpus, blocks=settings.blocks, dimensions=WHOLE, rotation=Rotation.pca)
    with pytest.raises(CorpusError, match="rotation=pca"):
        estimate_build(asked, encoder)


def test_axes_count_among_the_bytes_that_a_build_needs_and_no_length_gets_a_note(
    encoder: Encoder, tmp_path: Path
) -> None:
    told: list[str] = []
    settings = settings_for(tmp_path / "index", range(8), **ROTATED)
    build_index(tmp_path / "index", settings, encoder, notice=told.append)
    assert told == []
    plain = replace(settings, rotation=Rotation.none)
    shorter, whole = (estimated(each, encoder).disk for each in (plain, replace(plain, dimensions=None)))
    assert "rotation" not in shorter
    assert shorter["vectors"] == pytest.approx(CUT / WHOLE * whole["vectors"], rel=0.02)
    assert estimated(settings, encoder).disk["rotation"] == 4 * CUT * WHOLE


def test_segments_on_other_axes_are_not_opened_as_one(finished: Path, encoder: Encoder, tmp_path: Path) -> None:
    other = built(tmp_path / "other", encoder, numbers=range(5), **ROTATED)
    with pytest.raises(ArtifactError, match="axes"):
        open_vectors([part_of(finished, "vectors"), part_of(other, "vectors")])


def test_the_stored_vectors_are_the_leading_numbers_of_those_of_a_whole_index(encoder: Encoder, tmp_path: Path) -> None:
    whole, cut = stored(built(tmp_path / "whole", encoder)), stored(built(tmp_path / "cut", encoder, dimensions=CUT))
    assert cut.shape == (len(whole), CUT)
    np.testing.assert_array_equal(cut, whole[:, :CUT])
    manifest = Generation.read(tmp_path / "cut").manifest
    assert manifest.dimensions == CUT
    assert manifest.settings["encoder"]["similarity_scale"] == pytest.approx(0.6)
    assert inspect_index(tmp_path / "cut").dimensions == CUT


@pytest.mark.parametrize("lists", [None, "ivf_sq8 4"])
def test_texts_are_filled_as_by_an_encoder_whose_further_numbers_are_zero(
    lists: str | None, encoder: Encoder, empty_tail: Encoder, tmp_path: Path
) -> None:
    expected = answers(PhraseFiller.open(built(tmp_path / "whole", empty_tail), empty_tail))
    found = answers(PhraseFiller.open(built(tmp_path / "cut", encoder, dimensions=CUT, lists=lists), encoder))
    assert_near(found, expected)


def test_a_filler_takes_up_an_index_that_was_built_anew_at_another_length(encoder: Encoder, tmp_path: Path) -> None:
    folder = built(tmp_path / "index", encoder, dimensions=CUT)
    filler = PhraseFiller.open(folder, encoder)
    folder.rename(tmp_path / "before")
    built(folder, encoder, dimensions=16)
    assert filler.refresh()
    assert filler.encoder.dimensions == 16
    assert filler.fill("The capital of Iceland is <mask>.").phrases


def test_an_encoder_that_was_not_trained_for_the_length_gets_a_note(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.trained_dimensions = [16]

    def notes(name: str, dimensions: int | None) -> list[str]:
        told: list[str] = []
        settings = settings_for(tmp_path / name, range(4), dimensions=dimensions)
        build_index(tmp_path / name, settings, encoder, notice=told.append)
        return told

    (note,) = notes("eight", 8)
    assert "was not trained for vectors of 8 dimensions (but of 16, 32)" in note
    assert notes("sixteen", 16) == notes("all", 32) == notes("unset", None) == []


@pytest.mark.parametrize("dimensions", [0, -8, WHOLE + 1])
def test_a_length_that_the_encoder_does_not_have_is_refused_and_nothing_is_made(
    dimensions: int, encoder: Encoder, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=rf"dimensions(.|\n)*{dimensions}"):
        build_index(tmp_path / "index", settings_for(tmp_path / "index", range(4), dimensions=dimensions), encoder)
    assert not (tmp_path / "index").exists()


def test_passages_that_come_along_with_a_request_are_read_at_full_length(encoder: Encoder, tmp_path: Path) -> None:
    settings = ServeSettings(fill=FillSettings(reader="none"))
    opened = OpenedIndex.open(built(tmp_path / "index", encoder, dimensions=CUT), encoder, settings)
    request = OverRequest(text=[QUESTIONS[0]], passages=[FullPassage(text=text) for text in SENTENCES[:4]])
    (done,) = opened.over(request, [QUESTIONS[0]])
    over = PhraseFiller.over(SENTENCES[:4], encoder, settings=replace(settings.fill, retrieval=Retrieval.dense))
    assert done.value == over.fill(QUESTIONS[0])
