"""Encoder-decoders: loaded, made around an encoder's tokenizer, saved so that `transformers` loads them unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration, T5Tokenizer

from npm.core.errors import EncoderError
from npm.core.types import Document, Sequences
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.masking.denoising import DenoisingSettings, build_denoising_views
from npm.models.denoiser import SENTINEL_COUNT, Denoiser, fresh_denoiser
from npm.models.encoder import Encoder
from npm.models.settings import FreshSettings
from npm.models.stored import UNLIMITED_TOKENS
from tests.helpers.groups import restored
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder

SMALL = FreshSettings(layers=1, dimensions=16)
MODES = ("[R]", "[S]", "[X]")


@pytest.fixture(scope="module")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("encoders")
    for family in FAMILIES:
        tiny_encoder(family).save(folder / family)
    return {family: folder / family for family in FAMILIES}


@pytest.fixture(scope="module")
def denoiser(encoder_folders: dict[str, Path]) -> Denoiser:
    return fresh_denoiser(str(encoder_folders["bert"]), SMALL, mode_tokens=MODES, device="cpu")


@pytest.fixture(scope="module")
def saved(denoiser: Denoiser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("denoiser") / "t5"
    denoiser.save(folder)
    return folder


def loaded(folder: Path, **settings: object) -> Denoiser:
    return Denoiser.load(str(folder), device="cpu", dtype="float32", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_one_ends_texts_and_has_sentinels_and_modes(family: str, encoder_folders: dict[str, Path]) -> None:
    made = fresh_denoiser(str(encoder_folders[family]), SMALL, mode_tokens=MODES, device="cpu")
    encoder = AutoTokenizer.from_pretrained(encoder_folders[family])
    plain = encoder("Oslo lies", add_special_tokens=False)["input_ids"]
    assert made.tokenizer("Oslo lies")["input_ids"] == [*plain, made.end_id]
    assert len(made.sentinel_ids) == SENTINEL_COUNT
    assert len(made.tokenizer) == len(encoder) + SENTINEL_COUNT + 3 == made.model.config.vocab_size
    assert made.sentinels(MODES).mode_ids == tuple(len(encoder) + SENTINEL_COUNT + place for place in range(3))
    assert made.model.config.decoder_start_token_id == made.pad_id
    assert made.max_input_tokens == UNLIMITED_TOKENS
    packer = BlockPacker(made.tokenizer, BlockSettings(max_block_tokens=64))
    blocks = packer.pack(Document(id="d", title="", text="An <extra_id_0> and [R] and [S]."))  # ordinary text there
    ids = {token for block in blocks for token in block.token_ids.tolist()}
    assert len(ids) > 8
    assert not ids & set(made.tokenizer.all_special_ids) - {made.tokenizer.unk_token_id}


def test_settings_decide_the_sizes_and_the_seed_alone_the_weights(encoder_folders: dict[str, Path]) -> None:
    settings = FreshSettings(layers=3, dimensions=24, attention_heads=3)
    config = fresh_denoiser(str(encoder_folders["bert"]), settings, dropout=0.2, device="cpu").model.config
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.num_heads) == (3, 3, 24, 3)
    assert (config.d_kv, config.d_ff, config.dropout_rate) == (8, 96, 0.2)
    place, before = str(encoder_folders["bert"]), torch.get_rng_state()
    first, again, other = (fresh_denoiser(place, SMALL, seed=seed, device="cpu").fingerprint for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_one_loads_with_transformers_and_writes_the_same(denoiser: Denoiser, saved: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(saved).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert isinstance(model, T5ForConditionalGeneration)
    text = "[R] Paris is the <extra_id_0> of France."
    assert tokenizer(text)["input_ids"] == denoiser.tokenizer(text)["input_ids"]
    inputs = tokenizer([text, "Oslo"], padding=True, return_tensors="pt")
    ours = denoiser.model(**inputs, labels=inputs["input_ids"]).logits
    assert torch.equal(ours, model(**inputs, labels=inputs["input_ids"]).logits)
    written = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert torch.equal(written, denoiser.model.generate(**inputs, max_new_tokens=4, do_sample=False))


def test_a_saved_one_loads_with_the_same_fingerprints(denoiser: Denoiser, saved: Path) -> None:
    again = loaded(saved, mode_tokens=MODES)
    assert again.fingerprint == denoiser.fingerprint
    assert again.tokenizer_fingerprint == denoiser.tokenizer_fingerprint
    assert again.sentinels(MODES) == denoiser.sentinels(MODES)
    assert again.name == "t5"
    assert again.model.get_input_embeddings().weight is again.model.get_output_embeddings().weight
    assert (again.model.config.dropout_rate, loaded(saved, dropout=0.25).model.config.dropout_rate) == (0.0, 0.25)


def test_a_cast_does_not_change_the_fingerprint_and_new_weights_do(saved: Path, denoiser: Denoiser) -> None:
    half = Denoiser.load(str(saved), device="cpu", dtype="bfloat16")
    assert half.model.dtype is torch.bfloat16
    assert half.fingerprint == denoiser.fingerprint
    changed = loaded(saved)
    with torch.no_grad():
        changed.model.get_input_embeddings().weight[0] += 1
    changed.weights_changed()
    assert changed.fingerprint != denoiser.fingerprint


def test_mode_tokens_that_are_lacking_are_added_with_embeddings_that_are_always_the_same(saved: Path) -> None:
    first, again = (loaded(saved, mode_tokens=("[R]", "[Q]")) for _ in range(2))
    old = loaded(saved)
    assert len(first.tokenizer) == len(old.tokenizer) + 1
    assert first.fingerprint == again.fingerprint != old.fingerprint
    kept, size = old.model.get_input_embeddings().weight, len(old.tokenizer)
    assert torch.equal(first.model.get_input_embeddings().weight[:size], kept)
    assert first.tokenizer("[Q]")["input_ids"] == [size, first.end_id]
    assert first.sentinel_ids == old.sentinel_ids
    with pytest.raises(EncoderError, match=r"\[Q\]"):
        old.sentinels(("[R]", "[Q]"))


def test_a_published_t5_keeps_its_own_sentinels_and_gets_mode_tokens(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((char, -3.0) for char in "acehit[]RS_<>01")]
    tokenizer = T5Tokenizer(vocab=pieces, extra_ids=8)
    tokenizer.save_pretrained(tmp_path / "start")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": len(tokenizer) + 5}
    config = T5Config(**sizes)
    config.decoder_start_token_id = 0
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "start")

    start = loaded(tmp_path / "start", mode_tokens=MODES)
    assert start.sentinel_ids == tuple(tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>") for number in range(8))
    assert start.model.config.vocab_size == len(tokenizer) + 5  # it had rows to spare
    assert start.sentinels(MODES).mode_ids == tuple(len(tokenizer) + place for place in range(3))
    start.save(tmp_path / "saved")
    again = loaded(tmp_path / "saved", mode_tokens=MODES)
    assert again.fingerprint == start.fingerprint
    assert again.tokenizer_fingerprint == start.tokenizer_fingerprint
    text = "[R] the <extra_id_1> cat"
    assert again.tokenizer(text)["input_ids"] == start.tokenizer(text)["input_ids"]


def test_encoders_and_encoder_decoders_are_told_apart(encoder_folders: dict[str, Path], saved: Path) -> None:
    with pytest.raises(EncoderError, match="bert is not an encoder-decoder"):
        loaded(encoder_folders["bert"])
    with pytest.raises(EncoderError, match="t5 is not an encoder"):
        Encoder.load(str(saved), device="cpu")


def test_corrupted_blocks_of_a_text_decode_back_to_the_text(denoiser: Denoiser) -> None:
    packer = BlockPacker(denoiser.tokenizer, BlockSettings(max_block_tokens=24))
    blocks = [block for text in SENTENCES for block in packer.pack(Document(id="d", title="", text=text))]
    sequences = Sequences(
        np.concatenate([block.token_ids for block in blocks]),
        np.concatenate([block.flags for block in blocks]),
        np.cumsum([0, *(len(block.token_ids) for block in blocks)]),
    )
    settings = DenoisingSettings()
    views = build_denoising_views(settings, denoiser.sentinels(settings.modes()), max_text_tokens=24)
    batch = views.view([sequences], [np.random.default_rng(0)])
    texts = denoiser.tokenizer.batch_decode(restored(views.sentinels, batch))
    assert texts == denoiser.tokenizer.batch_decode([block.token_ids.tolist() for block in blocks])
    shown = denoiser.tokenizer.decode(batch.input_ids[0])
    assert shown.startswith(settings.modes()[int(batch.denoisers[0])])
    assert "<extra_id_0>" in shown
