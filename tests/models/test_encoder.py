"""An encoder comes back from a folder as it went in, and is known by what it computes."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from npm.models.encoder import Encoder
from npm.models.names import shipped_folder
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

SHIPPED_FINGERPRINT = "205307e68f25c59964904c4b037ab9b0be19a82620acfeab7f9143362c539999"
"""As the manifests of indexes have it since the sixth edition of encoder-mini."""
TEXTS = ("Paris is the capital of France.", "Oslo", "The river Rhine rises in Switzerland and flows to the North Sea.")


def padded(encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts as token ids and attention mask, i64 [B, L] each."""
    rows = encoder.tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    return rows["input_ids"], rows["attention_mask"]


@torch.no_grad()
def vectors_of(encoder: Encoder) -> torch.Tensor:
    """Vectors f32 [tokens, d] of all tokens of the texts."""
    input_ids, attention_mask = padded(encoder)
    return encoder.token_vectors(input_ids, attention_mask)[attention_mask.bool()]


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(request.param)


def load(folder: Path, **settings: object) -> Encoder:
    return Encoder.load(str(folder), device="cpu", **{"dtype": "float32", **settings})  # type: ignore[arg-type]


def test_transformers_loads_a_saved_encoder_unchanged(encoder: Encoder, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder.save(tmp_path / "saved")
    model = AutoModel.from_pretrained(tmp_path / "saved").eval()
    assert model.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    rows = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    input_ids, attention_mask = padded(encoder)
    assert torch.equal(rows["input_ids"], input_ids)
    with torch.no_grad():
        theirs = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    torch.testing.assert_close(theirs[attention_mask.bool()], vectors_of(encoder), rtol=0, atol=0)
    loaded = load(tmp_path / "saved")
    torch.testing.assert_close(vectors_of(loaded), vectors_of(encoder), rtol=0, atol=0)
    for name in ("fingerprint", "tokenizer_fingerprint", "mask_id", "pad_id", "prefix_ids", "suffix_ids"):
        assert getattr(loaded, name) == getattr(encoder, name), name
    assert loaded.name == "saved" and not loaded.model.training
    longest = torch.full((1, loaded.max_input_tokens), loaded.mask_id)  # RoBERTa does not use its first positions
    assert loaded.token_vectors(longest, torch.ones_like(longest)).shape == (1, 128, 32)
    assert (loaded.prefix_ids, loaded.suffix_ids) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])


def test_a_saved_encoder_holds_the_same_bytes_wherever_it_was_loaded_from(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "here")
    encoder.save(tmp_path / "there")
    copies = [tmp_path / "copy-of-here", tmp_path / "copy-of-there"]
    for copy in copies:
        load(tmp_path / copy.name.removeprefix("copy-of-")).save(copy)
    for name in sorted(path.name for path in copies[0].iterdir()):
        first, second = ((copy / name).read_bytes() for copy in copies)
        assert first == second, name
        assert str(tmp_path).encode() not in first, name


def test_half_precision_halves_the_file_and_keeps_three_digits(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "single")
    encoder.save(tmp_path / "half", dtype=torch.float16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "single")]
    assert sizes[0] < 0.6 * sizes[1]
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "float16"
    half = load(tmp_path / "half")
    assert next(half.model.parameters()).dtype == torch.float32
    torch.testing.assert_close(vectors_of(half), vectors_of(encoder), rtol=0, atol=5e-3)
    in_bfloat16 = load(tmp_path / "half", dtype="bfloat16")
    assert next(in_bfloat16.model.parameters()).dtype == torch.bfloat16
    assert in_bfloat16.fingerprint == half.fingerprint


def test_saved_weights_may_be_read_by_all_who_may_read_the_config(encoder: Encoder, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        encoder.save(tmp_path / "saved")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "saved").iterdir()}
    assert modes == dict.fromkeys(modes, 0o640)


def test_the_similarity_scale_is_saved_in_config_json_and_restored(encoder: Encoder, tmp_path: Path) -> None:
    encoder.similarity_scale = 0.4375
    encoder.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["npm"]["similarity_scale"] == 0.4375
    assert load(tmp_path / "saved").similarity_scale == 0.4375
    assert load(tmp_path / "saved", similarity_scale=0.25).similarity_scale == 0.25
    encoder.model.save_pretrained(tmp_path / "saved")  # without our entries
    assert load(tmp_path / "saved").similarity_scale == 32**-0.5


def test_the_fingerprint_changes_with_a_weight_and_with_the_scale(encoder: Encoder) -> None:
    before = encoder.fingerprint
    encoder.similarity_scale *= 2
    rescaled = encoder.fingerprint
    assert rescaled != before
    encoder.similarity_scale /= 2
    assert encoder.fingerprint == before
    with torch.no_grad():
        next(encoder.model.parameters())[1, 1] += 1e-3
    encoder.weights_changed()
    assert encoder.fingerprint != before


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("bert", "is_decoder", True),  # causal attention
        ("bert", "layer_norm_eps", 1e-3),
        ("bert", "hidden_act", "relu"),
        ("bert", "is_causal", True),  # no key of BERT's, and read all the same
        ("roberta", "pad_token_id", 2),  # where positions begin
        ("modernbert", "layer_types", ["sliding_attention", "sliding_attention"]),
        ("modernbert", "local_attention", 4),
        ("modernbert", "rope_parameters", {
            "full_attention": {"rope_theta": 99.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
        }),
        ("modernbert", "norm_eps", 1e-3),
    ],
)  # fmt: skip
def test_the_fingerprint_changes_with_the_config(tmp_path: Path, family: str, key: str, value: object) -> None:
    tiny_encoder(family).save(tmp_path / "saved")
    before = load(tmp_path / "saved").fingerprint
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, key: value}))
    assert load(tmp_path / "saved").fingerprint != before


def test_the_fingerprint_ignores_names_and_training_settings(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "saved")
    before = load(tmp_path / "saved").fingerprint
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    harmless = {
        "architectures": ["AnyModel"],
        "transformers_version": "4.1.0",
        "torch_dtype": "float16",
        "id2label": {"0": "no", "1": "yes"},
        "attention_dropout": 0.3,
        "hidden_dropout_prob": 0.3,
        "initializer_range": 0.5,
        "use_cache": False,
        "position_embedding_type": "absolute",
        "npm": config["npm"] | {"trained_dimensions": [8], "title_tokens": 4},
        "pooler_fc_size": 768,  # as in bert-base-multilingual-cased
    }
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, **harmless}))
    assert load(tmp_path / "saved").fingerprint == before


@pytest.mark.parametrize(("key", "value"), [("token_dropout", True), ("mask_token_id", 5)])
def test_what_esm_reads_at_inference_counts(key: str, value: object) -> None:
    sizes = {"vocab_size": 320, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    first = AutoModel.from_config(AutoConfig.for_model("esm", **sizes, pad_token_id=0, mask_token_id=4))
    second = deepcopy(first)
    setattr(second.config, key, value)
    tokenizer = tiny_encoder("bert").tokenizer
    fingerprints = {Encoder(model, tokenizer, name="esm").fingerprint for model in (first, second)}
    assert len(fingerprints) == 2


def test_a_config_that_leaves_out_what_is_usual_has_the_same_fingerprint(encoder: Encoder, tmp_path: Path) -> None:
    """Files written by other versions of transformers spell out more, or less."""
    encoder.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    usual = type(encoder.model.config)().to_dict()
    kept = {key: value for key, value in config.items() if key not in usual or usual[key] != value}
    kept["model_type"] = config["model_type"]
    assert len(kept) < len(config) - 3
    (tmp_path / "saved" / "config.json").write_text(json.dumps(kept))
    assert load(tmp_path / "saved").fingerprint == encoder.fingerprint


def test_the_shipped_encoder_has_the_fingerprint_that_indexes_have_recorded() -> None:
    assert load(shipped_folder()).fingerprint == SHIPPED_FINGERPRINT


def test_the_tokenizer_fingerprint_ignores_how_a_call_cuts_and_pads(encoder: Encoder) -> None:
    before = encoder.tokenizer_fingerprint
    encoder.tokenizer("Paris is the capital", truncation=True, max_length=4, padding="max_length")
    assert encoder.tokenizer_fingerprint == before
    encoder.tokenizer.add_tokens(["Rhine"])
    assert encoder.tokenizer_fingerprint != before


@pytest.mark.parametrize("family", FAMILIES)
def test_dropouts_can_be_overridden(family: str, tmp_path: Path) -> None:
    tiny_encoder(family).save(tmp_path / "saved")
    silent = load(tmp_path / "saved", hidden_dropout=0.0, attention_dropout=0.0)
    silent.model.train()
    input_ids, attention_mask = padded(silent)
    first, second = (silent.token_vectors(input_ids, attention_mask) for _ in range(2))
    assert torch.equal(first, second)
    for only in ("hidden_dropout", "attention_dropout"):
        dropping = load(tmp_path / "saved", **{"hidden_dropout": 0.0, "attention_dropout": 0.0, only: 0.5})
        dropping.model.train()
        first, second = (dropping.token_vectors(input_ids, attention_mask) for _ in range(2))
        assert not torch.equal(first, second), only
