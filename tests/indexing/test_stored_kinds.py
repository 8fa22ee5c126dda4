"""Indexes without vectors of tokens, or without any: the answers of a reader, every change, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.core.types import Answer
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import verify_index, verify_vectors
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings, IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.reading.mask_reader import MaskReader
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.helpers.live_indexes import added, all_bytes, build_settings, estimated, record, write_records
from tests.helpers.tiny_models import tiny_encoder

RECORDS = [record(number) for number in range(8)]
QUESTIONS = ["The capital of Iceland is <mask>.", "Which city lies at the sea?"]
KINDS: dict[str, dict[str, bool]] = {
    "none": {"tokens": False, "blocks": False},
    "blocks": {"tokens": False, "blocks": True},
    "tokens": {"tokens": True, "blocks": True},
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg
    return encoder


def settings_of(folder: Path, kind: str) -> IndexBuildSettings:
    settings = build_settings(Path(write_records(folder.with_suffix(".jsonl"), RECORDS)))
    return replace(settings, vectors=replace(settings.vectors, **KINDS[kind]))


def built(folder: Path, kind: str, encoder: Encoder) -> Path:
    build_index(folder, settings_of(folder, kind), encoder)
    return folder


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> dict[str, Path]:
    """An index of each kind. Not to be changed."""
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: built(folder / kind, kind, encoder) for kind in KINDS}


def opened(folder: Path, encoder: Encoder, **settings: Any) -> PhraseFiller:
    chosen = FillSettings(overlaps=Overlaps.keep, k=20, **settings)
    return PhraseFiller.open(folder, encoder, settings=chosen, reader=MaskReader(encoder))


def phrases(answers: list[Answer]) -> list[list[tuple[str, float]]]:
    return [[(phrase.phrase, round(phrase.score, 5)) for phrase in answer.phrases] for answer in answers]


@pytest.mark.parametrize(("kind", "share"), [("none", 0.0), ("blocks", 0.5)])
def test_a_reader_answers_as_over_vectors_that_do_not_count(
    indexes: dict[str, Path], encoder: Encoder, kind: str, share: float
) -> None:
    without = opened(indexes[kind], encoder, vector_share=share)
    everything = opened(indexes["tokens"], encoder, vector_share=share, joint_share=1.0)
    found = phrases(without.fill(QUESTIONS))
    assert found == phrases(everything.fill(QUESTIONS))
    assert found[0] and not without.index.stores_tokens


def test_without_any_vector_a_text_of_other_words_has_no_answer(indexes: dict[str, Path], encoder: Encoder) -> None:
    answer = opened(indexes["none"], encoder).fill("zyzzyva <mask>")
    assert answer.phrases == () and any("shares a word" in note for note in answer.notes)


def test_nothing_is_stored_for_tokens_but_which_may_bound_a_phrase(indexes: dict[str, Path], encoder: Encoder) -> None:
    with_vectors, without = PhraseIndex.open(indexes["tokens"]), PhraseIndex.open(indexes["none"])
    assert without.vectors is not None and without.vectors.shape == (len(with_vectors.rows), 0)
    every = np.arange(len(without.rows))
    np.testing.assert_array_equal(without.rows.positions(every), with_vectors.rows.positions(every))
    assert without.block_vectors is None and PhraseIndex.open(indexes["blocks"]).block_vectors is not None


def test_what_needs_vectors_of_tokens_is_refused(indexes: dict[str, Path], encoder: Encoder) -> None:
    filler = opened(indexes["none"], encoder)
    refused: list[dict[str, Any]] = [{"retrieval": Retrieval.dense}, {"retrieval": Retrieval.bm25}, {"blocks": [0]}]
    for options in refused:
        with pytest.raises(SettingError) as caught:
            filler.fill(QUESTIONS[0], **options)
        assert caught.value.code == "retrieval_unavailable"
    for settings in (FillSettings(reader="none"), FillSettings(joint_share=0)):
        with pytest.raises(SettingError, match=r"vectors=tokens"):
            PhraseFiller(filler.index, encoder, settings).fill(QUESTIONS[0])


def test_settings_of_vectors_that_are_not_stored_are_refused() -> None:
    for changed in ({"dimensions": 8}, {"memory": "1GB"}, {"search": {"tier": "exact"}}):
        with pytest.raises(SettingError, match=next(iter(changed))):
            IndexBuildSettings(vectors={"tokens": False}, **changed)  # type: ignore[arg-type]


def test_missing_vectors_are_added_and_none_is_taken_away(tmp_path: Path, encoder: Encoder) -> None:
    folder = built(tmp_path / "index", "none", encoder)
    for kind in ("blocks", "tokens"):
        result = build_index(folder, settings_of(folder, kind), encoder)
        assert result.manifest is not None and not result.was_finished
    (tmp_path / "other").mkdir()
    fresh = PhraseIndex.open(built(tmp_path / "other" / "index", "tokens", encoder))
    grown = PhraseIndex.open(folder)
    assert (grown.manifest.generation, {*grown.manifest.parts.values()}) == (2, {*fresh.manifest.parts.values()})
    with pytest.raises(ArtifactError, match=r"vectors\.tokens"):
        built(folder, "none", encoder)
    assert PhraseIndex.open(folder).manifest.generation == 2


def test_an_index_of_words_grows_shrinks_and_is_rewritten(tmp_path: Path, encoder: Encoder) -> None:
    folder = built(tmp_path / "index", "none", encoder)
    added(folder, [record(20)], encoder)
    delete_documents(folder, DeleteSettings(ids=["d0"]))
    before = phrases(opened(folder, encoder).fill(QUESTIONS))
    compact_index(folder, CompactSettings())
    assert phrases(opened(folder, encoder).fill(QUESTIONS)) == before
    verify_index(folder)
    assert verify_vectors(folder, encoder, batches=2, seed=0).row_count == 0


@pytest.mark.parametrize("kind", ["none", "blocks"])
def test_the_estimate_has_the_bytes_of_the_disk(indexes: dict[str, Path], encoder: Encoder, kind: str) -> None:
    estimate = estimated(settings_of(indexes[kind], kind), encoder)
    vectors = sum(len(data) for name, data in all_bytes(indexes[kind]).items() if name.startswith("vectors"))
    expected = estimate.disk.get("vectors", 0) + estimate.disk.get("block vectors", 0)
    assert expected <= vectors <= expected + 10_000  # headers and manifests
