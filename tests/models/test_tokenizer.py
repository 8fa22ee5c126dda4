"""A tokenizer read by `tokenizers` alone has the ids and offsets of that of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from npm.corpus.blocks import tokenizer_fingerprint
from npm.corpus.tokenizers import SPECIALS, LearnedKind, make_tokenizer
from npm.models.names import shipped_folder
from npm.models.tokenizer import PlainTokenizer, load_tokenizer
from tests.helpers.tiny_models import byte_bpe_tokenizer, tiny_byt5, wordpiece_tokenizer

ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
TEXTS = ["Über paints, [MASK] and [CLS]", "", "the ##s unseen <mask> é", "e\u0301 the\u00a0s\n"]
CALLS: tuple[dict[str, bool], ...] = ({}, {"add_special_tokens": False}, {"split_special_tokens": True})


def defined(kind: LearnedKind | None, *pieces: str) -> dict[str, Any]:
    """What tokenizer.json holds of a tokenizer of these pieces."""
    definition: dict[str, Any] = json.loads(make_tokenizer(kind, [*SPECIALS, *pieces]).to_str())
    return definition


def written(folder: Path, definition: dict[str, Any] | None = None, **about: Any) -> Path:
    """A folder with a cased tokenizer of nine pieces, or of another definition, and entries of its config."""
    if definition is None:
        definition = defined(LearnedKind.wordpiece, "the", "paint", "##s", ",")
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **ROLES, **about}))
    return folder


def assert_same(folder: Path, theirs: Any = None) -> None:
    """Both ways of loading a folder make one tokenizer, which has the ids and offsets of `theirs`, if given."""
    plain, whole = load_tokenizer(str(folder), plain=True), load_tokenizer(str(folder))
    assert isinstance(plain, PlainTokenizer)
    assert tokenizer_fingerprint(plain) == tokenizer_fingerprint(whole)
    assert (len(plain), plain.get_vocab()) == (len(whole), whole.get_vocab())
    assert set(plain.all_special_ids) == set(whole.all_special_ids)
    for name in ("unk_token_id", "pad_token_id", "mask_token_id", "name_or_path"):
        assert getattr(plain, name) == getattr(whole, name)
    assert plain.num_special_tokens_to_add() == whole.num_special_tokens_to_add()
    for options in CALLS:
        found = [
            each(TEXTS, return_offsets_mapping=True, **options)
            for each in (plain, whole, *([theirs] if theirs is not None else []))
        ]
        for key in ("input_ids", "offset_mapping"):
            assert all(each[key] == found[0][key] for each in found)


def test_pieces_words_and_special_tokens_have_the_ids_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(written(tmp_path / "tokenizer")), plain=True)
    assert tokenizer("the paints, [MASK]") == {"input_ids": [2, 5, 6, 7, 8, 4, 3]}
    assert tokenizer(["paint", "xyz"], add_special_tokens=False) == {"input_ids": [[6], [1]]}
    assert tokenizer("[MASK]", add_special_tokens=False, split_special_tokens=True) == {"input_ids": [1, 1, 1]}
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
    assert (len(tokenizer), sorted(tokenizer.all_special_ids)) == (9, [0, 1, 2, 3, 4])
    assert (tokenizer.num_special_tokens_to_add(), tokenizer.get_vocab()["##s"]) == (2, 7)


@pytest.mark.parametrize("kind", ["shipped", "bert", "roberta", "words"])
def test_ids_and_offsets_are_those_that_transformers_makes_of_the_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "tokenizer"
    if kind == "shipped":
        folder = shipped_folder()
    elif kind == "words":
        written(folder, defined(None, "the", "s"), tokenizer_class="PreTrainedTokenizerFast")
    else:
        (wordpiece_tokenizer() if kind == "bert" else byte_bpe_tokenizer()).save_pretrained(folder)
    assert_same(folder, AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize(
    "about",
    [
        {role: {"content": token, "lstrip": False} for role, token in ROLES.items()},
        {"extra_special_tokens": ["the"]},
        {"additional_special_tokens": [{"content": "the"}], "model_max_length": 64},
        {"tokenizer_class": "RobertaTokenizer", "do_lower_case": True, "a_key_of_others": 1},
        {"mask_token": "the"},  # a word becomes special
    ],
    ids=str,
)
def test_both_ways_of_loading_take_special_tokens_from_the_config(tmp_path: Path, about: dict[str, Any]) -> None:
    assert_same(written(tmp_path / "tokenizer", **about))


def test_truncation_and_padding_of_a_file_do_not_count(tmp_path: Path) -> None:
    definition = defined(LearnedKind.wordpiece, "the", "paint", "##s", ",")
    definition["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    definition["padding"] = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None} | {
        "pad_id": 3, "pad_type_id": 0, "pad_token": "[SEP]"
    }  # fmt: skip
    assert_same(written(tmp_path / "cut", definition))
    assert load_tokenizer(str(tmp_path / "cut"))("the the the")["input_ids"] == [2, 5, 5, 5, 3]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_folder_without_tokenizer_json_is_converted(tmp_path: Path, family: str) -> None:
    if family == "bert":
        (tmp_path / "vocab.txt").write_text("\n".join([*ROLES.values(), "the", "paint", "##s"]))
    else:
        model = json.loads(byte_bpe_tokenizer().backend_tokenizer.to_str())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"])]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    converted = load_tokenizer(str(tmp_path), plain=True)
    converted.save_pretrained(tmp_path / "saved")
    assert_same(tmp_path / "saved", converted)


def test_byt5_has_offsets(tmp_path: Path) -> None:
    tiny_byt5(tmp_path / "byt5")
    tokenizer = load_tokenizer(str(tmp_path / "byt5"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "byt5")
    assert tokenizer("é a")["input_ids"] == theirs("é a")["input_ids"]
    assert tokenizer("é a", return_offsets_mapping=True)["offset_mapping"][:2] == [(0, 1), (0, 1)]


@given(
    text=st.text(max_size=80)
    | st.lists(st.sampled_from(["[MASK]", "[SEP]", " ", "naïve", "東", "x", "."])).map("".join)
)
def test_every_text_has_the_ids_and_offsets_of_transformers(shipped: tuple[Any, Any], text: str) -> None:
    plain, theirs = shipped
    for options in ({}, {"add_special_tokens": False, "split_special_tokens": True}):
        ours, expected = (each(text, return_offsets_mapping=True, **options) for each in (plain, theirs))
        assert (ours["input_ids"], ours["offset_mapping"]) == (expected["input_ids"], expected["offset_mapping"])


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    """The tokenizer of the shipped encoder, read here and as `transformers` makes it."""
    folder = shipped_folder()
    return load_tokenizer(str(folder), plain=True), AutoTokenizer.from_pretrained(folder)
