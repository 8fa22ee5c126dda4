"""BERT in torch alone gives the vectors of `transformers`; every other model is left to that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from npm.core.errors import EncoderError
from npm.models.bert import DEFAULTS, PlainBert
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
def test_a_config_of_more_than_bert_is_left_to_transformers(
    folder: Path, tmp_path: Path, config: dict[str, object]
) -> None:
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


@pytest.mark.parametrize("damage", ["lacking", "left over", "another shape"])
def test_weights_that_do_not_fit_are_refused_in_both_ways_of_loading(folder: Path, tmp_path: Path, damage: str) -> None:
    copy = changed(folder, tmp_path / "damaged")
    weights = load_file(copy / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    if damage == "lacking":
        del weights[name]
    else:
        weights |= {"encoder.more.weight": torch.ones(2)} if damage == "left over" else {name: torch.ones(3, 3)}
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    named = "sizes of the weights" if damage == "another shape" else "encoder.more" if damage == "left over" else name
    for for_reading in (False, True):
        with pytest.raises(EncoderError, match=named):
            Encoder.load(str(copy), for_reading=for_reading)


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
