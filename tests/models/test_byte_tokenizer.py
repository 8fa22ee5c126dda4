"""Tokenizers of bytes: every character there and back, offsets word flags, ByT5's encoder as start."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ByT5Tokenizer, T5ForConditionalGeneration

from npm.core.errors import EncoderError
from npm.core.types import Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.models.encoder import Encoder
from npm.models.fresh import fresh_encoder
from npm.models.settings import FreshSettings
from npm.models.tokenizer import byt5_tokenizer, byte_tokenizer, load_tokenizer, spells_bytes
from tests.helpers.tiny_models import SENTENCES, byte_bpe_tokenizer, tiny_byt5, wordpiece_tokenizer

PLANES = "".join(chr(first + 0xA1) for first in range(0, 0x110000, 0x10000)) + "Aß€語𝔐🜨\u0085\t\n"
TEXTS = ("Ré 1 ✓", "e\u0301t\u0065\u0301 été", "日本語 テスト。", "Łódź, S\u00e3o Paulo: 3.5!", PLANES)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), byt5_tokenizer()], ids=["bytes", "byt5"])
def test_every_character_of_every_plane_becomes_its_bytes_and_comes_back(tokenizer: object) -> None:
    for text in (*TEXTS, *SENTENCES):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text  # type: ignore[attr-defined]
        assert tokenizer.unk_token_id not in ids  # type: ignore[attr-defined]


def test_the_ids_of_byt5_are_those_of_transformers() -> None:
    theirs, ours = ByT5Tokenizer(), byt5_tokenizer()
    assert len(ours) == len(theirs) == 384
    for text in (*TEXTS[:4], *SENTENCES):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    for token in ("<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_124>"):
        assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token)
    assert ours.mask_token == "<extra_id_0>"


def test_only_tokenizers_of_bytes_spell_bytes() -> None:
    assert spells_bytes(byte_tokenizer()) and spells_bytes(byt5_tokenizer())
    assert not spells_bytes(wordpiece_tokenizer()) and not spells_bytes(byte_bpe_tokenizer())


def words_of(tokenizer: object, text: str, **settings: int) -> list[str]:
    """The surface text of each word, by the flags of its first and its last token."""
    packer = BlockPacker(tokenizer, BlockSettings(max_block_tokens=1024, **settings))  # type: ignore[arg-type]
    found = []
    for block in packer.pack(Document("d", "", text)):
        starts = block.start_chars[(block.flags & TokenFlag.WORD_START) != 0].tolist()
        ends = block.end_chars[(block.flags & TokenFlag.WORD_END) != 0].tolist()
        found += [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return found


def test_words_begin_and_end_where_those_of_a_wordpiece_tokenizer_do_on_a_thousand_words() -> None:
    rng = np.random.default_rng(0)
    words = [word for sentence in SENTENCES for word in sentence.split()]
    text = " ".join(rng.choice(words, 1000))
    assert words_of(byte_tokenizer(), text) == words_of(wordpiece_tokenizer(), text)
    assert len(words_of(byte_tokenizer(), text)) > 1000


def test_a_word_is_found_whether_its_accents_are_composed_or_not() -> None:
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, "L'été à Łódź.")
        expected = [unicodedata.normalize(form, word) for word in ("L", "été", "à", "Łódź")]
        assert [word for word in words_of(byte_tokenizer(), text) if word[0].isalpha()] == expected


@pytest.mark.parametrize("limits", [{"max_block_tokens": 12}, {"max_block_tokens": 64, "max_document_tokens": 17}])
def test_no_border_of_a_block_or_of_what_is_read_of_a_document_lies_in_a_character(limits: dict[str, int]) -> None:
    text = "語" * 20 + "ééé" * 9 + "🜨" * 7  # no place to cut but between characters
    packer = BlockPacker(byte_tokenizer(), BlockSettings(**limits))
    blocks = packer.pack(Document("d", "", text))
    written = [bytes((block.token_ids - 5).tolist()).decode() for block in blocks]  # half a character would not decode
    assert text.startswith("".join(written))
    kept = limits.get("max_document_tokens")
    assert len("".join(written)) == (len(text) if kept is None else kept // 3)


def test_a_block_of_bytes_ends_before_a_space_though_spaces_are_tokens() -> None:
    text = "one and two and three and four and five"
    blocks = BlockPacker(byte_tokenizer(), BlockSettings(max_block_tokens=14)).pack(Document("d", "", text))  # 12 bytes
    written = [bytes((block.token_ids - 5).tolist()).decode() for block in blocks]
    assert written == ["one and two ", "and three ", "and four ", "and five"]


def test_blocks_of_so_many_words_hold_the_same_text_whatever_a_token_is() -> None:
    text, cuts = "One two three four. Five six, seven " + " ".join(SENTENCES), []
    for tokenizer in (wordpiece_tokenizer(), byte_tokenizer()):
        settings = BlockSettings(max_block_tokens=4096, max_block_words=6, min_filled_fraction=0.0)
        blocks = BlockPacker(tokenizer, settings).pack(Document("d", "", text))
        assert max(int(((block.flags & TokenFlag.WORD_START.value) != 0).sum()) for block in blocks) == 6
        edges = [int(block.start_chars[0]) for block in blocks]
        cuts.append([text[start:stop].strip() for start, stop in zip(edges, [*edges[1:], len(text)], strict=True)])
    assert cuts[0] == cuts[1]
    assert cuts[0][0] == "One two three four."  # five words and marks, and the end of a sentence
    (whole,) = BlockPacker(byte_tokenizer(), BlockSettings(max_block_tokens=4096, max_block_words=10**6)).pack(
        Document("d", "", text)
    )
    assert len(whole.token_ids) == len(text.encode())


def test_a_fresh_encoder_of_bytes_is_saved_and_loaded_with_its_tokenizer(tmp_path: Path) -> None:
    sizes = FreshSettings(layers=1, dimensions=16, max_input_tokens=64, window_tokens=8)
    made = fresh_encoder("bytes", sizes, device="cpu")
    made.save(tmp_path)
    loaded = Encoder.load(str(tmp_path), device="cpu", dtype="float32")
    assert loaded.spells_bytes and loaded.fingerprint == made.fingerprint
    assert loaded.tokenizer_fingerprint == made.tokenizer_fingerprint
    assert (loaded.max_input_tokens, len(load_tokenizer(str(tmp_path)))) == (64, 261)
    with pytest.raises(EncoderError, match="encoder=bytes"):
        Encoder.load("bytes")


@pytest.fixture(scope="module")
def byt5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byt5")
    tiny_byt5(folder)
    return folder


def test_the_encoder_of_a_byt5_is_a_start_and_is_loaded_again_as_an_encoder(byt5_folder: Path, tmp_path: Path) -> None:
    half = Encoder.load(str(byt5_folder), device="cpu", dtype="float32", half_input_tokens=256)
    whole = T5ForConditionalGeneration.from_pretrained(byt5_folder).eval()
    ids = torch.tensor([half.tokenizer("Ré is a note")["input_ids"]])
    with torch.no_grad():
        expected = whole.get_encoder()(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        torch.testing.assert_close(half.token_vectors(ids, torch.ones_like(ids)), expected)
    assert (half.prefix_ids, half.suffix_ids, half.mask_id) == ([], [1], 259)
    assert half.max_input_tokens == 256 and half.spells_bytes
    half.save(tmp_path)
    again = Encoder.load(str(tmp_path), device="cpu", dtype="float32")
    assert (again.fingerprint, again.max_input_tokens, again.mask_id) == (half.fingerprint, 256, 259)


def test_only_an_encoder_decoder_has_an_encoder_half(byt5_folder: Path, tiny_encoder_folder: Path) -> None:
    with pytest.raises(EncoderError, match="is not an encoder"):
        Encoder.load(str(byt5_folder))
    with pytest.raises(EncoderError, match="no encoder half"):
        Encoder.load(str(tiny_encoder_folder), half_input_tokens=64)
