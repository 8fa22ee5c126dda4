"""A tokenizer read without `transformers` gives what that gives; a folder of which it would make more is left to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.corpus.blocks import tokenizer_fingerprint
from npm.corpus.tokenizers import LearnedKind, tokenizer_definition, word_tokenizer
from npm.models.encoder import Encoder
from npm.models.folders import shipped_encoder_folder
from npm.models.loading import load_tokenizer
from npm.models.plain_tokenizer import PlainTokenizer, plain_tokenizer

ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
CLASSES = ("TokenizersBackend", "BertTokenizer")
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
TEXTS = ("Über paints, [MASK] and [CLS]", "", "the ##s unseen", "e\u0301 the\u00a0s\n")


def read(folder: Path) -> PlainTokenizer:
    """The tokenizer of a folder that is not left to `transformers`."""
    tokenizer = plain_tokenizer(str(folder))
    assert tokenizer is not None
    return tokenizer


def written(folder: Path, kind: str = "TokenizersBackend") -> Path:
    """A folder with a tokenizer of nine pieces, cased, of this class."""
    definition = tokenizer_definition(LearnedKind.wordpiece, [*ROLES.values(), "the", "paint", "##s", ","])
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    definition["normalizer"] = {**normalizer, "strip_accents": None, "lowercase": False}
    second = definition["post_processor"]["pair"][3:]
    assert [next(iter(part.values()))["type_id"] for part in second] == [1, 1]
    about = {"tokenizer_class": kind, "do_lower_case": False, "model_max_length": 512, **ROLES}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a JSON file holds, an empty object if it is not there."""
    value = json.loads(path.read_text()) if path.exists() else {}
    change(value)
    path.write_text(json.dumps(value))


def assert_same(folder: Path) -> None:
    """Assert that both ways of loading a folder make one tokenizer."""
    plain, whole = read(folder), load_tokenizer(str(folder))
    assert tokenizer_fingerprint(plain) == tokenizer_fingerprint(whole)  # type: ignore[arg-type]
    assert len(plain) == len(whole)
    assert plain.get_vocab() == whole.get_vocab()
    assert set(plain.all_special_ids) == set(whole.all_special_ids)
    for name in ("unk_token_id", "pad_token_id", "mask_token_id", "name_or_path"):
        assert getattr(plain, name) == getattr(whole, name)
    assert plain.num_special_tokens_to_add() == whole.num_special_tokens_to_add()
    for options in ({}, {"add_special_tokens": False}, {"split_special_tokens": True}):
        assert plain(TEXTS, **options)["input_ids"] == whole(list(TEXTS), **options)["input_ids"]
        offsets = [
            each(list(TEXTS), return_offsets_mapping=True, **options)["offset_mapping"] for each in (plain, whole)
        ]
        assert offsets[0] == offsets[1]


def test_pieces_words_and_special_tokens_have_the_ids_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = read(written(tmp_path / "tokenizer"))
    assert tokenizer("the paints, [MASK]") == {"input_ids": [2, 5, 6, 7, 8, 4, 3]}
    assert tokenizer(["paint", "The"], add_special_tokens=False) == {"input_ids": [[6], [1]]}
    assert tokenizer("[MASK]", add_special_tokens=False, split_special_tokens=True) == {"input_ids": [1, 1, 1]}
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
    assert (len(tokenizer), sorted(tokenizer.all_special_ids), tokenizer.num_special_tokens_to_add()) == (
        9,
        [0, 1, 2, 3, 4],
        2,
    )
    assert tokenizer.get_vocab()["##s"] == 7


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", lambda it: None),
        ("tokenizer.json", lambda it: it.update(truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0})),
        (
            "tokenizer.json",
            lambda it: it.update(
                padding={"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None}
                | {"pad_id": 3, "pad_type_id": 0, "pad_token": "[SEP]"}
            ),
        ),
        ("tokenizer_config.json", lambda it: it.update(added_tokens_decoder=listed(), extra_special_tokens={})),
        ("tokenizer_config.json", lambda it: it.update(clean_up_tokenization_spaces=True, max_length=3, stride=1)),
        ("special_tokens_map.json", lambda it: it.update(ROLES)),
        (
            "special_tokens_map.json",
            lambda it: it.update({role: {"content": token, **FLAGS} for role, token in ROLES.items()}),
        ),
        ("vocab.json", lambda it: None),
    ],
)
def test_what_changes_nothing_is_read_here(
    tmp_path: Path, kind: str, name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    edit(written(tmp_path / "tokenizer", kind) / name, change)
    assert_same(tmp_path / "tokenizer")


def listed(**change: object) -> dict[str, Any]:
    """The special tokens as older versions list them in tokenizer_config.json, with an entry of the mask changed."""
    tokens = {str(number): {"content": token, **FLAGS, "special": True} for number, token in enumerate(ROLES.values())}
    return tokens | {"4": tokens["4"] | change}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(
            ("tokenizer_config.json", lambda it, entry=entry: it.update(entry))
            for entry in (
                {"tokenizer_class": "RobertaTokenizer"},
                {"tokenizer_class": None},
                {"chat_template": "x"},
                {"model_max_length": 2},
                {"model_max_length": "x"},
                {"cls_token": "the"},
                {"cls_token": "[NEW]"},
                {"cls_token": "[SEP]"},
                {"mask_token": {"content": "[MASK]", **FLAGS, "lstrip": True}},
                {"bos_token": "[CLS]"},
                {"extra_special_tokens": ["the"]},
                {"added_tokens_decoder": listed(lstrip=True)},
                {"added_tokens_decoder": listed(content="the")},
                {"added_tokens_decoder": {}},
                {"split_special_tokens": True},
                {"padding_side": "up"},
                {"do_lower_case": 0},
                {"a_key_of_others": 1},
            )
        ),
        *(
            ("tokenizer.json", change)
            for change in (
                lambda it: it["added_tokens"].append({"id": 5, "content": "the", **FLAGS, "special": True}),
                lambda it: it["added_tokens"].append({"id": 9, "content": "[CLS]", **FLAGS, "special": True}),
                lambda it: it["added_tokens"].append({"id": 9, "content": "new", **FLAGS, "special": False}),
                lambda it: it["added_tokens"].pop(),
                lambda it: it["added_tokens"][4].update(lstrip=True),
                lambda it: it["added_tokens"][4].update(special=1),
                lambda it: it["post_processor"]["single"].pop(),
                lambda it: it["post_processor"]["single"].insert(1, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}),
                lambda it: it["post_processor"]["special_tokens"]["[CLS]"].update(ids=[5]),
                lambda it: it["post_processor"]["special_tokens"]["[CLS]"].update(ids=[2, 5]),
                lambda it: it.update(post_processor=None),
                lambda it: it.update(truncation={"max_length": 5, "strategy": "LongestFirst", "stride": 4}),
                lambda it: it["model"].update(unk_token="the"),
                lambda it: it["model"].update(type="BPE"),
                lambda it: it["model"]["vocab"].update(the=6),
                lambda it: it["model"]["vocab"].update(the=5.0),
                lambda it: it["model"]["vocab"].pop("[MASK]"),
                lambda it: it.clear(),
            )
        ),
        ("special_tokens_map.json", lambda it: it.update(ROLES | {"cls_token": "the"})),
        ("special_tokens_map.json", lambda it: it.update(ROLES | {"additional_special_tokens": ["the"]})),
        ("special_tokens_map.json", lambda it: it.update(mask_token={"content": "[MASK]", **FLAGS, "lstrip": True})),
        ("added_tokens.json", lambda it: it.update(new=9)),
        ("chat_template.jinja", lambda it: None),
    ],
)
@pytest.mark.parametrize("kind", CLASSES)
def test_what_may_change_something_is_left_to_transformers(
    tmp_path: Path, kind: str, name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = written(tmp_path / "tokenizer")
    edit(folder / "tokenizer_config.json", lambda it: it.update(tokenizer_class=kind))
    edit(folder / name, change)
    assert plain_tokenizer(str(folder)) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer_config.json", lambda it: it.update(do_lower_case=True)),
        ("tokenizer_config.json", lambda it: it.pop("do_lower_case")),
        ("tokenizer_config.json", lambda it: it.update(strip_accents=True)),
        ("tokenizer_config.json", lambda it: it.update(tokenize_chinese_chars=False)),
        ("tokenizer.json", lambda it: it["normalizer"].update(clean_text=False)),
        ("tokenizer.json", lambda it: it.update(pre_tokenizer={"type": "WhitespaceSplit"})),
        ("tokenizer.json", lambda it: it["decoder"].update(cleanup=False)),
        ("tokenizer.json", lambda it: it["model"].update(max_input_chars_per_word=5)),
        ("tokenizer.json", lambda it: it["post_processor"]["pair"].pop()),
    ],
)
def test_of_a_class_that_builds_its_tokenizer_anew_the_file_must_say_the_same(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    edit(written(tmp_path / "as it stands") / name, change)
    edit(written(tmp_path / "built anew", "BertTokenizer") / name, change)
    assert_same(tmp_path / "as it stands")
    assert plain_tokenizer(str(tmp_path / "built anew")) is None


@pytest.mark.parametrize("lacking", ["tokenizer.json", "tokenizer_config.json"])
def test_a_folder_without_one_of_the_two_files_is_left_to_transformers(tmp_path: Path, lacking: str) -> None:
    folder = written(tmp_path / "tokenizer", "BertTokenizer")
    (folder / "vocab.txt").write_text("\n".join([*ROLES.values(), "the"]))
    (folder / lacking).unlink()
    assert plain_tokenizer(str(folder)) is None


def test_a_byte_level_tokenizer_is_left_to_transformers(tmp_path: Path) -> None:
    folder = written(tmp_path / "bytes")
    definition = tokenizer_definition(LearnedKind.byte_bpe, [*ROLES.values(), "a", "b"])
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert plain_tokenizer(str(folder)) is None


def test_a_tokenizer_of_whole_words_is_read_here(tmp_path: Path) -> None:
    folder = written(tmp_path / "words")
    (folder / "tokenizer.json").write_text(json.dumps(word_tokenizer(["the", "s"])))
    assert_same(folder)


@pytest.fixture(scope="module")
def shipped() -> tuple[PlainTokenizer, Any]:
    """The tokenizer of the shipped encoder, read here and by `transformers`."""
    folder = shipped_encoder_folder()
    return read(folder), load_tokenizer(str(folder))


def test_the_shipped_tokenizer_is_read_here() -> None:
    assert_same(shipped_encoder_folder())


@given(
    text=st.text(max_size=80)
    | st.lists(st.sampled_from(["[MASK]", "[SEP]", " ", "naïve", "東", "x", "."])).map("".join)
)
def test_every_text_has_the_same_ids_and_offsets(shipped: tuple[PlainTokenizer, Any], text: str) -> None:
    plain, whole = shipped
    for options in ({}, {"add_special_tokens": False, "split_special_tokens": True}):
        theirs = whole(text, return_offsets_mapping=True, **options)
        assert plain(text, **options)["input_ids"] == theirs["input_ids"]
        given = plain.backend_tokenizer.encode(text, add_special_tokens=options.get("add_special_tokens", True))
        assert given.offsets == theirs["offset_mapping"]


def test_a_tokenizer_left_to_transformers_does_not_keep_a_model_from_being_read_here(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    from npm.models.bert import PlainBert

    folder = shutil.copytree(tiny_encoder_folder, tmp_path / "encoder")
    edit(folder / "tokenizer_config.json", lambda it: it.update(a_key_of_others=1))
    encoder = Encoder.load(str(folder), for_reading=True)
    assert isinstance(encoder.model, PlainBert)
    assert not isinstance(encoder.tokenizer, PlainTokenizer)
