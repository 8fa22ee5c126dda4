"""Encoders from random weights: cut vocabularies, equal seeds, heads, and what transformers loads again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from npm.core.errors import EncoderError, SettingError
from npm.models.encoder import Encoder
from npm.models.fresh import cut_vocabulary, fresh_encoder
from npm.models.masked_lm import attach_masked_head
from npm.models.settings import FreshSettings
from tests.helpers.tiny_models import FAMILIES, SENTENCES, WORDPIECE_SPECIALS, tiny_encoder, wordpiece_tokenizer

SIZES = {"layers": 2, "dimensions": 16, "attention_heads": 2, "max_input_tokens": 64}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a WordPiece tokenizer of 320 pieces."""
    tiny_encoder("bert").save(tmp_path / "start")
    return tmp_path / "start"


def made(place: Path, **settings: Any) -> Encoder:
    seed = settings.pop("seed", 0)
    return fresh_encoder(str(place), FreshSettings(**{**SIZES, **settings}), texts=SENTENCES, seed=seed, device="cpu")


def tokenizer_at(place: Path) -> Any:
    return AutoTokenizer.from_pretrained(place)


def pieces(tokenizer: Any, text: str) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"]))


def test_the_cut_vocabulary_holds_specials_characters_and_the_most_frequent_pieces(place: Path) -> None:
    whole = AutoTokenizer.from_pretrained(place)
    size = 190
    cut = made(place, vocabulary_size=size).tokenizer
    counts = Counter(piece for text in SENTENCES for piece in pieces(whole, text))
    spelling = set()
    for piece in counts:
        inside = piece.startswith("##")
        for number, character in enumerate(piece.removeprefix("##")):
            spelling.add("##" + character if inside or number else character)
    must = (spelling & whole.get_vocab().keys()) | set(WORDPIECE_SPECIALS.values())
    others = sorted(whole.get_vocab().keys() - must, key=lambda piece: (-counts[piece], whole.get_vocab()[piece]))
    expected = must | set(others[: size - len(must)])
    assert len(must) < size < len(whole)
    assert cut.get_vocab().keys() == expected
    assert sorted(cut.get_vocab().values()) == list(range(size))
    old_order = sorted(expected, key=whole.get_vocab().__getitem__)
    assert sorted(expected, key=cut.get_vocab().__getitem__) == old_order


def test_a_word_whose_piece_was_dropped_is_spelt_with_smaller_ones(place: Path) -> None:
    whole, cut = AutoTokenizer.from_pretrained(place), made(place, vocabulary_size=130).tokenizer
    longer = 0
    for text in SENTENCES:
        before, after = pieces(whole, text), pieces(cut, text)
        assert "[UNK]" not in after
        assert "".join(after).replace("##", "") == "".join(before).replace("##", "")
        longer += len(after) > len(before)
    assert longer


@pytest.mark.parametrize("form", ["TemplateProcessing", "BertProcessing", "Sequence"])
def test_what_puts_special_tokens_around_a_text_is_renumbered_in_every_form(place: Path, form: str) -> None:
    file = place / "tokenizer.json"
    definition = json.loads(file.read_text())
    vocabulary = definition["model"]["vocab"]
    ids = {piece: len(vocabulary) - 1 - number for piece, number in vocabulary.items()}  # the specials come last
    definition["model"]["vocab"] = ids
    for token in definition["added_tokens"]:
        token["id"] = ids[token["content"]]
    pair = {role: [f"[{role.upper()}]", ids[f"[{role.upper()}]"]] for role in ("cls", "sep")}
    template = definition["post_processor"]
    for content, special in template["special_tokens"].items():
        special["ids"] = [ids[content]]
    forms = {"TemplateProcessing": template, "BertProcessing": {"type": "BertProcessing", **pair}}
    definition["post_processor"] = forms.get(form) or {"type": "Sequence", "processors": [template]}
    file.write_text(json.dumps(definition))
    tokenizer = cut_vocabulary(tokenizer_at(place), SENTENCES, size=190)
    framed = tokenizer("Paris")["input_ids"]
    assert tokenizer.cls_token_id == 190 - 1 - 2  # [PAD] and [UNK] behind it, as ids fall
    assert [framed[0], framed[-1]] == [tokenizer.cls_token_id, tokenizer.sep_token_id]


def test_special_tokens_in_the_text_are_counted_as_text(place: Path) -> None:
    text = "[MASK] " * 50
    cut = cut_vocabulary(tokenizer_at(place), [text], size=60)
    assert "[" in cut.get_vocab() and "]" in cut.get_vocab()


@pytest.mark.parametrize("window", [0, 4])
def test_transformers_loads_what_is_saved(place: Path, tmp_path: Path, window: int) -> None:
    encoder = made(place, vocabulary_size=190, window_tokens=window)
    torch.manual_seed(3)
    head = attach_masked_head(encoder, None, trained=False)
    encoder.save(tmp_path / "saved")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.backend_tokenizer.to_str() == encoder.tokenizer.backend_tokenizer.to_str()
    assert tokenizer.model_max_length == 64
    given = tokenizer(list(SENTENCES[:2]), padding=True, return_tensors="pt")
    model, report = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "saved", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        logits = model.eval()(**given).logits  # f32 [2, L, V]
        ours = head(encoder.token_vectors(given["input_ids"], given["attention_mask"]))  # f32 [2, L, V]
    assert head.embedding is encoder.model.get_input_embeddings()
    assert logits.shape[2] == 190
    torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-5)
    again = Encoder.load(str(tmp_path / "saved"), device="cpu", dtype="float32")
    assert again.fingerprint == encoder.fingerprint
    assert again.tokenizer_fingerprint == encoder.tokenizer_fingerprint
    assert again.max_input_tokens == 64


@pytest.mark.parametrize("layers", [1, 2])
def test_with_a_window_a_token_reads_so_many_neighbors_a_layer(place: Path, layers: int) -> None:
    encoder = made(place, layers=layers, window_tokens=4)
    ids = torch.full((1, 17), 20)  # i64 [1, L]
    changed = ids.clone()
    changed[0, 8] = 30
    with torch.no_grad():
        before, after = (encoder.token_vectors(each, torch.ones_like(each))[0] for each in (ids, changed))  # f32 [L, d]
    reached = (before - after).abs().sum(dim=1).nonzero().flatten().tolist()
    assert reached == list(range(8 - 2 * layers, 8 + 2 * layers + 1))


def test_the_seed_alone_decides_the_weights_and_torch_keeps_its_own_state(place: Path) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first, same, other = made(place), made(place), made(place, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
def test_with_its_whole_vocabulary_any_tokenizer_will_do(family: str, tmp_path: Path) -> None:
    tiny_encoder(family).save(tmp_path / "start")
    encoder = made(tmp_path / "start")
    encoder.save(tmp_path / "saved")
    again = Encoder.load(str(tmp_path / "saved"), device="cpu", dtype="float32")
    text = SENTENCES[0]
    start = AutoTokenizer.from_pretrained(tmp_path / "start")
    assert again.tokenizer(text)["input_ids"] == start(text)["input_ids"]
    assert (again.dimensions, again.model.config.num_hidden_layers) == (16, 2)
    assert again.model.config.intermediate_size == 64
    ids = torch.tensor([again.tokenizer(text)["input_ids"]])  # i64 [1, L]
    with torch.no_grad():
        before, after = (part.token_vectors(ids, torch.ones_like(ids)) for part in (encoder, again))
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_another_vocabulary_than_wordpiece_is_not_cut(family: str, tmp_path: Path) -> None:
    tiny_encoder(family).save(tmp_path / "start")
    with pytest.raises(EncoderError, match="BPE"):
        made(tmp_path / "start", vocabulary_size=100)


@pytest.mark.parametrize("size", [20, 321])
def test_a_size_without_room_or_beyond_what_there_is_is_refused(place: Path, size: int) -> None:
    with pytest.raises(SettingError, match=f"to {len(wordpiece_tokenizer())}.*got {size}"):
        made(place, vocabulary_size=size)


def test_only_the_documents_asked_for_are_counted(place: Path) -> None:
    read: list[str] = []

    def texts() -> Any:
        for text in SENTENCES:
            read.append(text)
            yield text

    settings = FreshSettings(**SIZES, vocabulary_size=190, vocabulary_documents=3)
    fresh_encoder(str(place), settings, texts=texts(), device="cpu")
    assert len(read) == 3
    fresh_encoder(str(place), FreshSettings(**SIZES), texts=texts(), device="cpu")
    assert len(read) == 3
