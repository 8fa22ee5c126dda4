"""A BERT read without the model of `transformers` gives the same vectors; every other folder is left to that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from npm.core.errors import EncoderError
from npm.models.bert import DEFAULTS, PlainBert, PlainConfig, load_plain_bert, plain_config
from npm.models.encoder import Encoder
from tests.helpers.tiny_models import tiny_encoder


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
def test_vectors_are_those_of_transformers_for_padded_rows_and_whole_ones(
    folder: Path, lengths: tuple[int, ...]
) -> None:
    whole = Encoder.load(str(folder), dtype="float32")
    plain = Encoder.load(str(folder), dtype="float32", for_reading=True)
    assert isinstance(plain.model, PlainBert)
    assert not isinstance(whole.model, PlainBert)
    ids = torch.randint(5, 20, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))  # [B, L]
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # i64 [B, L]
    with torch.inference_mode():
        expected, got = (each.token_vectors(ids, mask)[mask.bool()] for each in (whole, plain))  # [tokens, d]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_what_is_known_of_the_encoder_is_the_same(folder: Path) -> None:
    whole, plain = (Encoder.load(str(folder), for_reading=for_reading) for for_reading in (False, True))
    for name in (
        "fingerprint",
        "tokenizer_fingerprint",
        "dimensions",
        "max_input_tokens",
        "block_pooler",
        "dtype_name",
    ):
        assert getattr(plain, name) == getattr(whole, name)


def test_the_pooler_of_a_file_is_left_out(folder: Path, tmp_path: Path) -> None:
    copy = changed(folder, tmp_path / "pooled")
    weights = load_file(copy / "model.safetensors")
    d = weights["embeddings.LayerNorm.weight"].shape[0]
    save_file(weights | {"pooler.dense.weight": torch.eye(d)}, copy / "model.safetensors", metadata={"format": "pt"})
    config = plain_config(str(copy))
    assert config is not None
    assert load_plain_bert(str(copy), config) is not None


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "relu"},
        {"architectures": ["BertForMaskedLM"]},
        {"is_decoder": True},
        {"chunk_size_feed_forward": 7},
        {"num_attention_heads": 0},
        {"num_hidden_layers": 2.0},
        {"hidden_dropout_prob": 2},
        {"layer_norm_eps": 0},
        {"is_decoder": 0},
        {"use_cache": None},
        {"pad_token_id": 10**6},
        {"bos_token_id": 3},
        {"tie_word_embeddings": False},
        {"dtype": "int8"},
        {"transformers_version": 5},
        {"is_encoder_decoder": False},
        {"a_key_of_others": 1},
        {"self": 1},
        {"title_tokens": {}},
    ],
    ids=str,
)
def test_a_config_that_says_anything_unusual_is_left_to_transformers(
    folder: Path, tmp_path: Path, config: dict[str, object]
) -> None:
    assert plain_config(str(changed(folder, tmp_path / "other", **config))) is None


def test_heads_that_do_not_part_a_vector_evenly_are_left_to_transformers(folder: Path, tmp_path: Path) -> None:
    copy = changed(folder, tmp_path / "odd", num_attention_heads=3)
    config = plain_config(str(copy))
    assert config is not None
    assert load_plain_bert(str(copy), config) is None


def test_what_a_config_leaves_out_is_what_transformers_takes_for_it() -> None:
    from transformers import BertConfig

    theirs = BertConfig().to_dict()
    assert {key: theirs[key] for key in DEFAULTS} == DEFAULTS
    assert PlainConfig(hidden_size=8).to_dict() == DEFAULTS | {"hidden_size": 8}


@pytest.mark.parametrize(
    "config",
    [
        {"position_embedding_type": "absolute", "gradient_checkpointing": False, "_name_or_path": "x"},
        {"torch_dtype": "float16", "use_cache": False, "classifier_dropout": 0.1, "initializer_range": 0.5},
        {"similarity_scale": 2, "title_tokens": 16, "query_masks": 1, "reads_jointly": True, "sentence_pooler": "avg"},
        {"trained_dimensions": [8, 16], "hidden_dropout_prob": 0, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_entries_that_are_read_here_make_the_encoder_that_transformers_makes(
    folder: Path, tmp_path: Path, config: dict[str, object]
) -> None:
    copy = changed(folder, tmp_path / "copy", **config)
    whole, plain = (Encoder.load(str(copy), for_reading=for_reading) for for_reading in (False, True))
    assert isinstance(plain.model.config, PlainConfig)
    assert plain.fingerprint == whole.fingerprint
    for name in ("similarity_scale", "title_tokens", "query_masks", "reads_jointly", "trained_dimensions"):
        assert getattr(plain, name) == getattr(whole, name)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_other_encoders_are_left_to_transformers(tmp_path: Path, family: str) -> None:
    tiny_encoder(family).save(tmp_path / "encoder")
    assert not isinstance(Encoder.load(str(tmp_path / "encoder"), for_reading=True).model, PlainBert)


@pytest.mark.parametrize("damage", ["lacking", "left over", "another shape"])
def test_weights_that_do_not_fit_get_the_message_of_every_encoder(folder: Path, tmp_path: Path, damage: str) -> None:
    copy = changed(folder, tmp_path / "damaged")
    weights = load_file(copy / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    if damage == "lacking":
        del weights[name]
    else:
        weights |= {"encoder.more.weight": torch.ones(2)} if damage == "left over" else {name: torch.ones(3, 3)}
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    messages = []
    for for_reading in (False, True):
        with pytest.raises(EncoderError) as refused:
            Encoder.load(str(copy), for_reading=for_reading)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_an_encoder_loaded_for_reading_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    for place in (folder, changed(folder, tmp_path / "left", architectures=["BertForMaskedLM"])):
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
