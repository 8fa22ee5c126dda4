"""BERT and its attention in torch alone give the vectors of `transformers`; every other model is left to that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from npm.core.errors import EncoderError
from npm.models.bert import DEFAULTS, PlainBert
from npm.models.encoder import Encoder, use_plain_attention
from tests.helpers.tiny_models import FAMILIES, tiny_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as `save` writes it."""
    made = tmp_path_factory.mktemp("bert") / "encoder"
    tiny_encoder("bert").save(made)
    return made


def changed(folder: Path, out: Path, **config: object) -> Path:
    """A copy of the folder with other entries in its config.json."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    (out / "config.json").write_text(json.dumps(json.loads((out / "config.json").read_text()) | config))
    return out


@pytest.mark.parametrize("lengths", [(7, 7, 7), (9, 1, 4), (1,)])
def test_vectors_are_those_of_transformers(folder: Path, lengths: tuple[int, ...]) -> None:
    whole = Encoder.load(str(folder), dtype="float32")
    plain = Encoder.load(str(folder), dtype="float32", for_reading=True)
    assert isinstance(plain.model, PlainBert)
    assert not isinstance(whole.model, PlainBert)
    ids = torch.randint(5, 20, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))  # [B, L]
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # i64 [B, L]
    with torch.inference_mode():
        expected, got = (each.token_vectors(ids, mask)[mask.bool()] for each in (whole, plain))  # [tokens, d]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("names", ["with a pooler", "of a masked language model", "of Google"])
def test_weights_are_found_under_the_names_that_published_folders_use(folder: Path, tmp_path: Path, names: str) -> None:
    copy = changed(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    if names == "with a pooler":
        weights |= {"pooler.dense.weight": torch.eye(32)}
    else:
        weights = {f"bert.{name}": tensor for name, tensor in weights.items()} | {"cls.predictions.bias": torch.ones(3)}
    if names == "of Google":
        for theirs, ours in (("gamma", "weight"), ("beta", "bias")):
            weights = {name.replace(f"LayerNorm.{ours}", f"LayerNorm.{theirs}"): each for name, each in weights.items()}
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    plain = Encoder.load(str(copy), for_reading=True)
    assert isinstance(plain.model, PlainBert)
    assert plain.fingerprint == Encoder.load(str(folder), for_reading=True).fingerprint


@pytest.mark.parametrize("config", [{"hidden_act": "relu"}, {"is_decoder": True}, {"is_causal": True}], ids=str)
def test_other_configs_are_left_to_transformers(folder: Path, tmp_path: Path, config: dict[str, object]) -> None:
    encoder = Encoder.load(str(changed(folder, tmp_path / "other", **config)), for_reading=True)
    assert not isinstance(encoder.model, PlainBert)
    tiny_encoder("roberta").save(tmp_path / "roberta")
    assert not isinstance(Encoder.load(str(tmp_path / "roberta"), for_reading=True).model, PlainBert)


def test_omitted_entries_have_the_values_of_transformers() -> None:
    from transformers import BertConfig

    theirs = BertConfig().to_dict()
    assert {key: theirs[key] for key in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    "config",
    [
        {"position_embedding_type": "absolute", "gradient_checkpointing": False, "_name_or_path": "x"},
        {"torch_dtype": "float16", "use_cache": False, "classifier_dropout": 0.1, "a_key_of_others": 1},
        {"npm": {"similarity_scale": 2, "title_tokens": 16, "query_masks": 1, "reads_jointly": True}},
        {"npm": {"trained_dimensions": [8, 16]}, "hidden_dropout_prob": 0, "layer_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_both_ways_of_loading_make_the_same_encoder(folder: Path, tmp_path: Path, config: dict[str, object]) -> None:
    copy = changed(folder, tmp_path / "copy", **config)
    whole, plain = (Encoder.load(str(copy), for_reading=for_reading) for for_reading in (False, True))
    assert isinstance(plain.model, PlainBert)
    assert plain.fingerprint == whole.fingerprint
    names = ["similarity_scale", "title_tokens", "query_masks", "reads_jointly", "trained_dimensions"]
    names += ["tokenizer_fingerprint", "dimensions", "max_input_tokens", "block_pooler", "dtype_name"]
    for name in names:
        assert getattr(plain, name) == getattr(whole, name), name


def test_an_encoder_loaded_for_reading_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    for place in (folder, changed(folder, tmp_path / "left", hidden_act="relu")):
        with pytest.raises(EncoderError, match="loaded for reading"):
            Encoder.load(str(place), for_reading=True).cut_to(None).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_it_loads_without_the_modules_that_take_seconds(folder: Path) -> None:
    code = (
        "import sys; from npm.models.encoder import Encoder; Encoder.load(sys.argv[1], for_reading=True); "
        "print([name for name in ('transformers', 'torch.distributed.tensor', 'torch._dynamo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LENGTHS = (60, 9, 1)


def encoder_of(family: str, **config: Any) -> Encoder:
    """An encoder whose ModernBERT form sees four neighbors on each side in its second layer."""
    return tiny_encoder(family, **({"local_attention": 8} if family == "modernbert" else {}), **config)


def padded_batch(encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Random token ids of uneven lengths and their attention mask, i64 [B, L] each."""
    generator = torch.Generator().manual_seed(7)
    input_ids = torch.randint(10, 100, (len(LENGTHS), max(LENGTHS)), generator=generator)  # i64 [B, L]
    attention_mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()  # i64 [B, L]
    return input_ids.where(attention_mask.bool(), encoder.pad_id), attention_mask


def values_and_gradients(encoder: Encoder) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    input_ids, attention_mask = padded_batch(encoder)
    vectors = encoder.token_vectors(input_ids, attention_mask)[attention_mask.bool()]  # f32 [T, d]
    encoder.model.zero_grad()
    # the sum of squares alone would be flat: the last LayerNorm fixes the length of vectors
    (vectors * torch.linspace(-1, 1, vectors.numel()).reshape(vectors.shape)).sum().backward()
    gradients = {name: weight.grad for name, weight in encoder.model.named_parameters() if weight.grad is not None}
    return vectors.detach(), gradients


@pytest.mark.parametrize("other", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_attention_equals_that_of_transformers_in_values_and_gradients(family: str, other: str) -> None:
    encoder = encoder_of(family)
    encoder.model.set_attn_implementation(other)
    expected, expected_gradients = values_and_gradients(encoder)
    use_plain_attention(encoder.model)
    got, gradients = values_and_gradients(encoder)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name in gradients:
        torch.testing.assert_close(gradients[name], expected_gradients[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_attention_in_bfloat16_gives_numbers_everywhere_even_under_padding(family: str) -> None:
    encoder = encoder_of(family, num_hidden_layers=4)
    exact, _ = values_and_gradients(encoder)
    use_plain_attention(encoder.model)
    input_ids, attention_mask = padded_batch(encoder)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        vectors = encoder.token_vectors(input_ids, attention_mask)  # f32 [B, L, d]
    assert vectors.isfinite().all()
    torch.testing.assert_close(vectors[attention_mask.bool()], exact, rtol=0, atol=0.1)


def test_plain_attention_drops_weights_in_training_only() -> None:
    encoder = encoder_of("bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    use_plain_attention(encoder.model)
    input_ids, attention_mask = padded_batch(encoder)
    for training in (False, True):
        encoder.model.train(training)
        first, second = (encoder.token_vectors(input_ids, attention_mask) for _ in range(2))
        assert torch.equal(first, second) is not training
