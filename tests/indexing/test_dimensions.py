"""An index of shortened vectors stores, searches, checks and changes the leading numbers of them alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError, SettingError
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.evaluation.methods.nonparametric import NonparametricLabels
from npm.evaluation.tasks import resolved_scoring
from npm.indexing.build import build_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import inspect_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import (
    IndexBuildSettings,
    VectorDtype,
    VectorSettings,
)
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from tests.helpers.live_indexes import (
    all_bytes,
    answers,
    record,
    search_settings,
    write_records,
)
from tests.helpers.tiny_models import tiny_encoder

CUT, WHOLE = 8, 32
TIERS = (None, "ivf_sq8 4")


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


def settings_for(folder: Path, numbers: range, **settings: Any) -> IndexBuildSettings:
    file = write_records(folder.with_suffix(".jsonl"), [record(number) for number in numbers])
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[file], kept_fields=["lang"]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=100, dtype=VectorDtype.float32),
        **settings,
    )


def built(
    folder: Path,
    encoder: Encoder,
    dimensions: int | None,
    *,
    lists: str | None = None,
    numbers: range = range(8),
) -> Path:
    search = search_settings(lists, probed_lists=4, rerank_factor=100)
    build_index(folder, settings_for(folder, numbers, search=search, dimensions=dimensions), encoder)
    return folder


def stored(folder: Path) -> np.ndarray:
    vectors = PhraseIndex.open(folder).vectors
    assert vectors is not None
    return vectors.take(np.arange(len(vectors)))


def test_the_stored_vectors_are_the_leading_numbers_of_those_of_a_whole_index(encoder: Encoder, tmp_path: Path) -> None:
    whole, cut = stored(built(tmp_path / "whole", encoder, None)), stored(built(tmp_path / "cut", encoder, CUT))
    assert cut.shape == (len(whole), CUT)
    np.testing.assert_array_equal(cut, whole[:, :CUT])
    manifest = Generation.read(tmp_path / "cut").manifest
    assert manifest.dimensions == CUT
    assert manifest.settings["encoder"]["similarity_scale"] == pytest.approx(0.6)
    assert inspect_index(tmp_path / "cut").dimensions == CUT


@pytest.mark.parametrize("lists", TIERS)
def test_texts_are_filled_as_by_an_encoder_whose_further_numbers_are_zero(
    lists: str | None, encoder: Encoder, empty_tail: Encoder, tmp_path: Path
) -> None:
    expected = answers(PhraseFiller.open(built(tmp_path / "whole", empty_tail, None), empty_tail))
    found = answers(PhraseFiller.open(built(tmp_path / "cut", encoder, CUT, lists=lists), encoder))
    assert len(expected) > 50
    assert found.keys() == expected.keys()
    for key, (score, places) in expected.items():
        assert found[key][0] == pytest.approx(score, rel=1e-3), key
        assert found[key][1] == places


def test_every_reader_of_the_index_cuts_the_encoder_that_is_handed_over(encoder: Encoder, tmp_path: Path) -> None:
    folder = built(tmp_path / "cut", encoder, CUT)
    index = PhraseIndex.open(folder)
    labels = NonparametricLabels("npm", index, encoder)
    vectors = labels._encoded(["The capital of Iceland is <mask>."], resolved_scoring().last_tokens)
    filler = PhraseFiller(index, encoder)
    assert vectors.start.shape == vectors.end.shape == (1, CUT)
    assert filler.encoder.dimensions == index.load_encoder(encoder).dimensions == CUT
    assert encoder.dimensions == WHOLE
    assert not filler.refresh()


def test_a_filler_takes_up_an_index_that_was_built_anew_at_another_length(encoder: Encoder, tmp_path: Path) -> None:
    folder = built(tmp_path / "index", encoder, CUT)
    filler = PhraseFiller.open(folder, encoder)
    folder.rename(tmp_path / "before")
    built(folder, encoder, 16)
    assert filler.refresh()
    assert filler.encoder.dimensions == 16
    assert filler.fill("The capital of Iceland is <mask>.").phrases


def test_the_same_build_again_has_nothing_to_do_and_another_length_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "index", range(6), dimensions=CUT)
    build_index(tmp_path / "index", settings, encoder)
    before = all_bytes(tmp_path / "index")
    assert build_index(tmp_path / "index", settings, encoder).was_finished
    for other in (None, 16):
        with pytest.raises(ArtifactError, match="with other settings") as caught:
            build_index(tmp_path / "index", replace(settings, dimensions=other), encoder)
        assert f"dimensions={CUT}" in str(caught.value)
    assert all_bytes(tmp_path / "index") == before


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
