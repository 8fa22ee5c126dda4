"""Folders of the form of facebook/npm and facebook/npm-single: RoBERTa, and nothing that this project adds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, RobertaConfig, RobertaForMaskedLM

from npm.core.errors import ArtifactError, EncoderError
from npm.models import names
from npm.models.convert import convert
from npm.models.encoder import Encoder
from npm.models.masked_lm import attach_masked_head
from npm.retrieval.queries import encode_queries
from tests.helpers.tiny_models import byte_bpe_tokenizer

VOCABULARY_SIZE, MASK_ID, DIMENSIONS = 50_265, 50_264, 8
TEXTS = ["The capital of Iceland is <mask>.", "<mask> flows through Paris, they said"]
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


def original_folder(folder: Path) -> Path:
    """RoBERTa's config, state and vocabulary with few dimensions; no tokenizer.json, no key of ours."""
    folder.mkdir()
    known = json.loads(byte_bpe_tokenizer().backend_tokenizer.to_str())["model"]
    pieces = sorted((piece for piece in known["vocab"] if piece not in (*SPECIALS, "<mask>")), key=known["vocab"].get)
    spare = [f"madeupword{number:05d}" for number in range(VOCABULARY_SIZE - len(pieces) - len(SPECIALS) - 1)]
    vocabulary = {piece: place for place, piece in enumerate([*SPECIALS, *pieces, *spare, "<mask>"])}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in known["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=DIMENSIONS,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    assert "similarity_scale" not in (folder / "config.json").read_text(encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return original_folder(tmp_path_factory.mktemp("original") / "npm")


def load(name: str | Path) -> Encoder:
    return Encoder.load(str(name), device="cpu", dtype="float32")


def test_its_scale_is_that_of_the_paper_and_its_head_is_attached(folder: Path) -> None:
    encoder = load(folder)
    assert encoder.similarity_scale == pytest.approx(DIMENSIONS**-0.5)
    assert (encoder.mask_id, encoder.pad_id, encoder.prefix_ids, encoder.suffix_ids) == (MASK_ID, 1, [0], [2])
    assert (encoder.max_input_tokens, encoder.query_masks, encoder.title_tokens) == (512, 2, 0)
    head = attach_masked_head(encoder, str(folder), trained=True)
    ids = torch.tensor([[0, 31, MASK_ID, 2]])
    theirs = RobertaForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        vectors = encoder.token_vectors(ids, torch.ones_like(ids))[0]
        torch.testing.assert_close(head(vectors), theirs(input_ids=ids).logits[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("masks", [1, 2])
def test_its_queries_are_the_hidden_states_of_transformers_at_the_mask(folder: Path, masks: int) -> None:
    encoder = load(folder)
    encoder.query_masks = masks
    theirs = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    for text in TEXTS:
        ids = encoder.tokenizer(text)["input_ids"]
        place = ids.index(MASK_ID)
        written = [*ids[:place], *[MASK_ID] * masks, *ids[place + 1 :]]
        with torch.no_grad():
            states = theirs(input_ids=torch.tensor([written])).last_hidden_state[0].numpy()
        queries = encode_queries(encoder, [text])
        np.testing.assert_allclose(queries.start[0], states[place], atol=1e-5)
        np.testing.assert_allclose(queries.end[0], states[place + masks - 1], atol=1e-5)


def test_the_single_token_variant_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def fetched(name: str, *_: object) -> str:
        asked.append(name)
        return str(folder)

    monkeypatch.setattr(names, "_fetched", fetched)
    assert load("facebook/npm-single").query_masks == 1
    assert load("facebook/npm").query_masks == 2
    assert asked == ["facebook/npm-single", "facebook/npm"]
    load("facebook/npm-single").save(tmp_path / "copy")
    assert load(tmp_path / "copy").query_masks == 1


@pytest.fixture
def pickled(tmp_path: Path, folder: Path) -> Path:
    """The same weights as a pickle alone."""
    made = original_folder(tmp_path / "pickled")
    torch.save(RobertaForMaskedLM.from_pretrained(folder).state_dict(), made / "pytorch_model.bin")
    (made / "model.safetensors").unlink()
    return made


def test_pickled_weights_are_converted_by_the_named_command(pickled: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="pickles") as caught:
        load(pickled)
    command = str(caught.value).partition("convert them with python ")[2].split()
    assert command[:2] == ["-m", "npm.models.convert"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    converted = load(tmp_path / "CONVERTED")
    assert (converted.fingerprint, converted.query_masks) == (load(folder).fingerprint, 2)
    attach_masked_head(converted, str(tmp_path / "CONVERTED"), trained=True)
    assert converted.tokenizer(TEXTS)["input_ids"] == load(folder).tokenizer(TEXTS)["input_ids"]


def test_a_converted_folder_keeps_its_masks(pickled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(names, "_fetched", lambda *_: str(pickled))
    convert("facebook/npm-single@main", tmp_path / "single")
    assert load(tmp_path / "single").query_masks == 1
    with pytest.raises(ArtifactError, match="exists"):
        convert("facebook/npm-single", tmp_path / "single")


def test_a_pickle_that_would_run_code_is_not_converted(pickled: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"weight": Harm()}, pickled / "pytorch_model.bin")
    with pytest.raises(EncoderError, match="more than tensors"):
        convert(str(pickled), tmp_path / "converted")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "converted").exists()
