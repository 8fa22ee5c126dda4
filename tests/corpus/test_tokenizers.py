"""Tokenizers that are learned: equal to plain merging, the same in every process, and whole in what they can write."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.corpus.settings import CorpusSettings
from npm.corpus.tokenizers import SPECIALS, TokenizerSettings, learn_merges, learn_tokenizer, pieces_of, spelt
from npm.models.tokenizer import load_tokenizer
from tests.helpers.command_line import all_bytes, run_subprocess, write_corpus
from tests.helpers.tiny_models import SENTENCES, merges_of

DOCUMENTS = [{"id": str(number), "text": text} for number, text in enumerate(SENTENCES)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "texts.jsonl", DOCUMENTS)


def settings_for(file: Path, **given: Any) -> TokenizerSettings:
    return TokenizerSettings(corpus=CorpusSettings(files=[str(file)]), **given)


def test_merges_equal_those_of_counting_all_pairs_anew() -> None:
    words = Counter(word for sentence in SENTENCES for word in sentence.split())
    words["ababab"] = words["aaaa"] = 5  # pairs that overlap
    for spelling, inside in ((spelt, "##"), (tuple, "")):
        counts = {tuple(spelling(word)): times for word, times in words.items()}
        known = [*SPECIALS, *sorted({piece for word in counts for piece in word})]
        for size in (200, 10_000):
            assert learn_merges(counts, known, size, inside=inside) == merges_of(counts, known, size)


def test_equally_frequent_pairs_are_merged_oldest_first() -> None:
    words = {("c", "d"): 2, ("a", "b"): 2, ("b", "c"): 2, ("x", "y"): 3}
    known = ["a", "b", "c", "d", "x", "y"]
    assert learn_merges(words, known, 8) == [("x", "y"), ("a", "b")]
    assert learn_merges(words, [*reversed(known)], 8) == [("x", "y"), ("c", "d")]


def test_wordpiece_knows_all_words_and_keeps_case_and_accents(texts: Path, tmp_path: Path) -> None:
    learned = learn_tokenizer(tmp_path / "out", settings_for(texts, size=200))
    assert learned.pieces == 200
    tokenizer = load_tokenizer(str(tmp_path / "out"))
    assert len(tokenizer) == 200 and tokenizer.convert_tokens_to_ids(list(SPECIALS)) == [0, 1, 2, 3, 4]
    for sentence in SENTENCES:
        encoding = tokenizer(sentence, return_offsets_mapping=True)
        assert tokenizer.unk_token_id not in encoding.input_ids
        assert "".join(sentence[start:stop] for start, stop in encoding.offset_mapping) == sentence.replace(" ", "")
    assert tokenizer("a", "b").encodings[0].type_ids == [0, 0, 0, 1, 1]
    assert "capital" in pieces_of(tmp_path / "out") and not pieces_of(tmp_path / "out") & set(SPECIALS)


def test_bytes_write_everything_and_lower_case_is_a_choice(texts: Path, tmp_path: Path) -> None:
    learn_tokenizer(tmp_path / "out", settings_for(texts, size=300, kind="byte_bpe"))
    tokenizer = load_tokenizer(str(tmp_path / "out"))
    for text in (*SENTENCES, "ελληνικά ✓  \n x"):
        assert (
            tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids, clean_up_tokenization_spaces=False)
            == text
        )
    assert tokenizer("a [MASK]").input_ids[2] == tokenizer.mask_token_id == 4
    learn_tokenizer(tmp_path / "low", settings_for(texts, size=200, lowercase=True))
    low = load_tokenizer(str(tmp_path / "low"))
    assert low.tokenize("REYKJAVÍK") == low.tokenize("reykjavík") != low.tokenize("reykjavik")


def test_number_signs_are_letters_like_others_to_bytes(tmp_path: Path) -> None:
    documents = [{"id": "0", "text": "#### Title ######## ## x " * 4}]
    learn_tokenizer(
        tmp_path / "out", settings_for(write_corpus(tmp_path / "a.jsonl", documents), size=300, kind="byte_bpe")
    )
    tokenizer = load_tokenizer(str(tmp_path / "out"))
    assert tokenizer.tokenize("####") == ["####"] and tokenizer.tokenize(" ########") == ["Ġ########"]


def test_another_process_learns_the_same_bytes_and_a_finished_one_is_left_alone(texts: Path, tmp_path: Path) -> None:
    settings = settings_for(texts, size=200)
    assert not learn_tokenizer(tmp_path / "out", settings).was_finished
    command = [
        sys.executable,
        "-m",
        "npm",
        "tokenizer",
        f"corpus.files={texts}",
        f"out={tmp_path / 'again'}",
        "size=200",
    ]
    done = run_subprocess(*command, PYTHONHASHSEED="7")
    assert done.status == 0 and "200 pieces" in done.err
    assert all_bytes(tmp_path / "again") == all_bytes(tmp_path / "out")
    again = learn_tokenizer(tmp_path / "out", settings)
    assert again.was_finished and again.pieces == 200
    with pytest.raises(ArtifactError, match="size"):
        learn_tokenizer(tmp_path / "out", settings_for(texts, size=201))


def test_what_cannot_be_learned_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="size"):
        learn_tokenizer(tmp_path / "out", settings_for(texts, size=20))
    with pytest.raises(SettingError, match="261"):
        learn_tokenizer(tmp_path / "out", settings_for(texts, size=260, kind="byte_bpe"))
    long = write_corpus(tmp_path / "long.jsonl", [{"id": "1", "text": "x" * 101}])
    with pytest.raises(CorpusError, match="no word"):
        learn_tokenizer(tmp_path / "out", settings_for(long))
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        pieces_of(tmp_path)
    assert not (tmp_path / "out").exists()
