"""Sentence vectors by hand and by a plain loop; their encoders saved, loaded, cut and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from npm.core.errors import EncoderError, QueryError, SettingError
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, SentenceEncoder, pool
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
def test_sentence_transformers_gives_our_vectors(tmp_path: Path, kind: PoolerKind, family: str) -> None:
    ours = saved(tmp_path / "encoder", kind, family=family)
    after = SentenceEncoder.load(str(tmp_path / "encoder"), device="cpu")
    assert after.pooler.kind is kind
    np.testing.assert_allclose(after.encode(TEXTS), ours.encode(TEXTS), atol=1e-6)
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    expected = ours.encode(TEXTS)
    assert np.linalg.norm(expected[0] - expected[1]) > 1e-3
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)


def test_an_mlp_for_training_only_is_passed_over_in_evaluation_and_not_saved(tmp_path: Path) -> None:
    pooler = Pooler(PoolerKind.cls, 2, mlp_only_train=True)
    assert pooler.train()(STATES, MASK).abs().max() < 1
    assert pooler.eval()(STATES, MASK).tolist() == [[5.0, 6.0]]
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


def test_no_pooler_an_unknown_one_a_missing_mlp_and_an_empty_sentence_are_refused(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    place = str(tmp_path / "encoder")
    with pytest.raises(EncoderError, match="cls_before_pooler"):  # it is never guessed
        SentenceEncoder.load(place, device="cpu")
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


STATES = torch.tensor([[[5.0, 6.0], [7.0, 8.0], [90.0, 90.0]]])  # f32 [1, 3, 2]: two tokens and padding
MASK = torch.tensor([[1, 1, 0]])
BY_HAND = {
    "cls": [5.0, 6.0],
    "cls_before_pooler": [5.0, 6.0],
    "avg": [6.0, 7.0],  # of (5, 6) and (7, 8)
}


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_gives_the_vector_worked_out_by_hand(kind: PoolerKind) -> None:
    assert pool(kind, STATES, MASK).tolist() == [BY_HAND[kind.name]]


@pytest.mark.parametrize("kind", PoolerKind)
def test_each_kind_equals_a_plain_loop_over_uneven_rows(kind: PoolerKind) -> None:
    states = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(3))  # f32 [5, 7, 4]
    lengths = [7, 1, 3, 6, 2]
    mask = torch.tensor([[1] * length + [0] * (7 - length) for length in lengths])
    expected = []
    for row, length in enumerate(lengths):
        tokens = range(1) if kind.name.startswith("cls") else range(length)
        expected.append(sum((states[row, token] for token in tokens), torch.zeros(4)) / len(tokens))
    torch.testing.assert_close(pool(kind, states, mask), torch.stack(expected))


def test_only_cls_has_an_mlp_and_it_is_a_tanh_of_a_linear_map() -> None:
    assert [kind.name for kind in PoolerKind if Pooler(kind, 2).mlp is not None] == ["cls"]
    torch.manual_seed(0)
    pooler = Pooler(PoolerKind.cls, 2).eval()
    assert pooler.mlp is not None
    expected = torch.tanh(torch.tensor([[5.0, 6.0]]) @ pooler.mlp.weight.T + pooler.mlp.bias)
    torch.testing.assert_close(pooler(STATES, MASK), expected)
    assert not torch.equal(pooler(STATES, MASK), torch.tensor([[5.0, 6.0]]))


IDS = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
SHOWN = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(request.param)


def test_its_vectors_are_the_leading_numbers_of_the_whole_ones(encoder: Encoder) -> None:
    cut = encoder.cut_to(12)
    with torch.no_grad():
        whole, leading = encoder.token_vectors(IDS, SHOWN), cut.token_vectors(IDS, SHOWN)
    assert leading.shape == (2, 4, 12)
    assert torch.equal(leading, whole[..., :12])
    assert (cut.dimensions, cut.whole_dimensions, encoder.dimensions) == (12, 32, 32)
    assert (cut.cut_to(16).dimensions, cut.cut_to(None).dimensions) == (16, 32)


def test_its_scale_makes_up_for_the_numbers_that_are_missing(encoder: Encoder) -> None:
    assert encoder.similarity_scale == 0.3
    assert encoder.cut_to(8).similarity_scale == pytest.approx(0.6)
    assert encoder.cut_to(32).similarity_scale == 0.3


def test_it_is_known_by_the_same_fingerprint_and_saved_whole(encoder: Encoder, tmp_path: Path) -> None:
    cut, before = encoder.cut_to(8), encoder.fingerprint
    cut.trained_dimensions = [16, 8]
    assert cut.fingerprint == before
    cut.save(tmp_path / "cut")
    loaded = Encoder.load(str(tmp_path / "cut"), device="cpu", dtype="float32")
    assert (loaded.fingerprint, loaded.dimensions, loaded.similarity_scale) == (before, 32, 0.3)
    assert loaded.trained_dimensions == [8, 16]


@pytest.mark.parametrize("dimensions", [0, -1, 33])
def test_lengths_that_it_does_not_have_are_refused(encoder: Encoder, dimensions: int) -> None:
    with pytest.raises(SettingError, match="dimensions"):
        encoder.cut_to(dimensions)
