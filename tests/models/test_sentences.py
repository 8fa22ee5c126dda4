"""Sentence encoders saved, loaded by us and by sentence-transformers, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from npm.core.errors import EncoderError, QueryError, SettingError
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, SentenceEncoder
from npm.models.settings import PoolerKind
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder

TEXTS = [*SENTENCES, "Oslo", "Paris is in France."]


def saved(folder: Path, kind: PoolerKind, *, family: str = "bert", mlp_only_train: bool = False) -> SentenceEncoder:
    """A sentence encoder, written to `folder`."""
    encoder = tiny_encoder(family)
    pooler = Pooler(kind, encoder.dimensions, mlp_only_train=mlp_only_train)
    made = SentenceEncoder(encoder, pooler)
    made.save(folder)
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", PoolerKind)
def test_sentence_transformers_loads_the_folder_and_gives_our_vectors(
    tmp_path: Path, kind: PoolerKind, family: str
) -> None:
    ours = saved(tmp_path / "encoder", kind, family=family)
    after = SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    assert after.pooler.kind is kind
    np.testing.assert_allclose(after.encode(TEXTS), ours.encode(TEXTS), atol=1e-6)
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    expected = ours.encode(TEXTS)
    assert np.linalg.norm(expected[0] - expected[1]) > 1e-3
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)


def test_an_mlp_for_training_only_is_not_saved(tmp_path: Path) -> None:
    before = saved(tmp_path / "encoder", PoolerKind.cls, mlp_only_train=True)
    after = SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    assert after.pooler.kind is PoolerKind.cls_before_pooler
    np.testing.assert_allclose(after.encode(TEXTS), before.encode(TEXTS), atol=1e-6)
    assert not (tmp_path / "encoder" / "2_Dense").exists()


def test_the_vectors_do_not_depend_on_batches_or_on_the_order(tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", PoolerKind.avg)
    together = encoder.encode(TEXTS)
    one_by_one = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(one_by_one, together, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], together, atol=1e-6)


def test_the_modes_of_the_modules_are_left_as_they_were(tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", PoolerKind.cls)
    expected = encoder.encode(TEXTS)
    encoder.encoder.model.config.hidden_dropout_prob = 0.5
    encoder.encoder.model.train()
    encoder.pooler.train()
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert encoder.encoder.model.training
    assert encoder.pooler.training


def test_special_tokens_in_a_text_are_ordinary_text(tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", PoolerKind.avg)
    special, plain = encoder.encode(["Paris [MASK] France", "Paris [ MASK ] France"])
    np.testing.assert_allclose(special, plain, atol=1e-6)


def test_texts_are_cut_to_what_the_encoder_takes(tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", PoolerKind.avg)
    long = "Paris is the capital of France " * 50
    np.testing.assert_allclose(encoder.encode([long]), encoder.encode([long * 2]), atol=1e-6)


def test_folders_of_sentence_transformers_say_their_pooler_themselves(tmp_path: Path) -> None:
    before = saved(tmp_path / "encoder", PoolerKind.avg)
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    assert config["npm"].pop("sentence_pooler") == "avg"
    (tmp_path / "encoder" / "config.json").write_text(json.dumps(config))
    after = SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    np.testing.assert_allclose(after.encode(TEXTS), before.encode(TEXTS), atol=1e-6)


def test_a_pooler_that_is_not_known_is_never_guessed(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    with pytest.raises(EncoderError, match="cls_before_pooler"):
        SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    given = SentenceEncoder.load(str(tmp_path / "encoder"), pooler="avg", device="cpu")
    assert given.pooler.kind is PoolerKind.avg


def test_an_unknown_pooler_a_missing_mlp_and_an_empty_sentence_are_refused(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    place = str(tmp_path / "encoder")
    with pytest.raises(SettingError, match="max"):
        SentenceEncoder.load(place, pooler="max", device="cpu")
    with pytest.raises(EncoderError, match="2_Dense"):
        SentenceEncoder.load(place, pooler="cls", device="cpu")
    with pytest.raises(QueryError, match="sentence 2 of 2"):
        SentenceEncoder.load(place, pooler="avg", device="cpu").encode(["Oslo", " "])


def test_a_masked_language_model_is_saved_as_both(tmp_path: Path) -> None:
    from npm.models.masked_lm import attach_masked_head

    tiny_encoder("bert").save(tmp_path / "start")
    encoder = Encoder.load(str(tmp_path / "start"), device="cpu", dtype="float32")
    torch.manual_seed(0)
    attach_masked_head(encoder, str(tmp_path / "start"), trained=False)
    before = SentenceEncoder(encoder, Pooler(PoolerKind.avg, encoder.dimensions))
    before.save(tmp_path / "encoder")
    assert json.loads((tmp_path / "encoder" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    after = SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    np.testing.assert_allclose(after.encode(TEXTS), before.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("text", ["null", "[3]", '[{"type": 3}]', "[", '[{"type": "a.Transformer"}]'])
def test_a_damaged_list_of_modules_names_no_pooler(tmp_path: Path, text: str) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    (tmp_path / "encoder" / "1_Pooling").mkdir()
    (tmp_path / "encoder" / "modules.json").write_text(text)
    with pytest.raises(EncoderError, match="no usable pooler"):
        SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")


@pytest.mark.parametrize("data", [b"", b"no weights", safetensors.torch.save({"linear.weight": torch.zeros(3)})])
def test_a_damaged_mlp_of_a_pooler_is_one_message(tmp_path: Path, data: bytes) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    (tmp_path / "encoder" / "2_Dense").mkdir()
    (tmp_path / "encoder" / "2_Dense" / "model.safetensors").write_bytes(data)
    with pytest.raises(EncoderError, match="2_Dense"):
        SentenceEncoder.load(str(tmp_path / "encoder"), pooler="cls", device="cpu")
