"""Tables of sentences, pairs and triplets: read from every kind of file, selected, stored, and refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings, SentenceTokenizer
from npm.corpus.sentence_pairs import PairTable, SentenceDataSettings, build_pair_table, labeled_triplets, text_keys
from npm.corpus.settings import CorpusSettings
from tests.helpers.command_line import zstd
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder, wordpiece_tokenizer

TOKENIZER = wordpiece_tokenizer()
PAIRS = [("Oslo lies in Norway.", "Oslo is Norwegian."), ("Paris, France", "The capital"), ("H, He", "1\u20282")]
NAMES = ("sentence1", "sentence2")
PAIR_COLUMNS: dict[str, Any] = {"anchor_column": "sentence1", "positive_column": "sentence2"}


def table_of(
    folder: Path,
    *files: Path | str,
    corpus: CorpusSettings | None = None,
    max_sentence_tokens: int = 64,
    **settings: Any,
) -> PairTable:
    """The table of some files, in `folder`/table."""
    data = SentenceDataSettings(
        files=[str(file) for file in files], max_sentence_tokens=max_sentence_tokens, **settings
    )
    return build_pair_table(folder / "table", data, TOKENIZER, corpus=corpus or CorpusSettings())


def ids_of(table: PairTable) -> list[list[list[int]]]:
    """Token ids of all rows, column by column."""
    found = []
    for row in range(len(table)):
        texts = table.texts(table.text_numbers(np.array([row]))[0])
        found.append([part.tolist() for part in np.split(texts.token_ids, texts.offsets[1:-1])])
    return found


def expected_ids(rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    return [[TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in row] for row in rows]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(zstd(data) if path.suffix == ".zst" else data)
    return path


def write_delimited(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        quoting = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if path.suffix == ".tsv" else {}
        writer = csv.DictWriter(file, list(rows[0]), **quoting)  # type: ignore[arg-type]
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


WRITERS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], Path]] = {
    "pairs.jsonl": write_jsonl,
    "pairs.jsonl.zst": write_jsonl,
    "pairs.csv": write_delimited,
    "pairs.tsv": write_delimited,
    "pairs.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_pairs(tmp_path: Path, name: str) -> None:
    file = WRITERS[name](tmp_path / name, [dict(zip(NAMES, pair, strict=True)) for pair in PAIRS])
    table = table_of(tmp_path, file, **PAIR_COLUMNS)
    assert (len(table), table.column_count) == (3, 2)
    assert ids_of(table) == expected_ids(PAIRS)


def test_a_text_file_has_a_sentence_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Oslo lies in Norway.\n\nParis\n", encoding="utf-8")
    table = table_of(tmp_path, tmp_path / "a.txt")
    assert table.column_count == 1
    assert ids_of(table) == expected_ids([["Oslo lies in Norway."], ["Paris"]])


def test_without_files_the_sentences_of_the_corpus_are_taken_if_they_have_enough_words(tmp_path: Path) -> None:
    text = "Oslo lies in Norway. It is cold there. No!\nParis is the capital of France."
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    corpus = CorpusSettings(files=[str(tmp_path / "a.txt")])
    table = table_of(tmp_path, corpus=corpus, least_sentence_words=4)
    kept = ["Oslo lies in Norway.", "It is cold there.", "Paris is the capital of France."]
    assert ids_of(table) == expected_ids([[sentence] for sentence in kept])
    assert len(table_of(tmp_path / "2", corpus=corpus, least_sentence_words=4, max_sentences=2)) == 2


def test_sentences_are_cut_after_the_tokens_given_special_tokens_included(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "Oslo lies in Norway. " * 100}, {"text": "Paris"}])
    long, short = (row[0] for row in ids_of(table_of(tmp_path, file, max_sentence_tokens=10)))
    assert long == expected_ids([["Oslo lies in Norway. " * 100]])[0][0][:8]
    assert short == expected_ids([["Paris"]])[0][0]


ODD_TEXTS = "it's| 's Oslo|(a||b)|  |J. Smith|日本語。|[MASK]|unbreakablewordwithmanypieces"


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_tokens_and_flags_that_they_have_as_documents(family: str) -> None:
    tokenizer = tiny_encoder(family).tokenizer
    texts = [*SENTENCES, *ODD_TEXTS.split("|")]
    for most in (3, 7, 100):
        special = tokenizer.num_special_tokens_to_add()
        packer = BlockPacker(tokenizer, BlockSettings(max_block_tokens=most + special, max_document_tokens=most))
        ours = SentenceTokenizer(tokenizer, max_tokens=most).encode(texts)
        for number, text in enumerate(texts):
            blocks = packer.pack(Document("", "", text))
            ids = blocks[0].token_ids.tolist() if blocks else []
            part = slice(*ours.offsets[number : number + 2].tolist())
            # a document ends with a whole character, of which a sentence may have the first bytes
            assert ours.token_ids[part].tolist()[: len(ids)] == ids
            assert len(ours.token_ids[part]) - len(ids) <= (3 if len(text.encode()) > len(text) else 0)
            assert not blocks or ours.flags[part].tolist()[: len(ids)] == blocks[0].flags.tolist(), text


def test_pairs_below_the_least_score_are_left_out(tmp_path: Path) -> None:
    rows = [{**dict(zip(NAMES, PAIRS[0], strict=True)), "score": score} for score in (3.99, 4, "4.5", 5.0)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    assert len(table_of(tmp_path, file, score_column="score", **PAIR_COLUMNS)) == 3
    assert len(table_of(tmp_path / "2", file, score_column="score", least_score=4.5, **PAIR_COLUMNS)) == 2


def labeled(rows: Sequence[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    return [{**dict(zip(NAMES, row, strict=False)), "label": row[2]} for row in rows]


@pytest.mark.parametrize(
    "codes", [("entailment", "neutral", "contradiction", "-"), (0, 1, 2, -1), ("0", "1", "2", "-1")]
)
def test_labeled_pairs_become_a_triplet_a_premise_wherever_they_stand(tmp_path: Path, codes: tuple[Any, ...]) -> None:
    yes, maybe, no, nothing = codes
    rows = [
        ("a man", "someone", yes),
        ("a dog", "a cat", no),
        ("a man", "a doctor", maybe),
        ("the end", "an end", yes),
        ("a dog", "an animal", yes),
        ("a man", "nobody", no),
        ("a man", "a person", yes),
        ("a dog", "a plane", no),
        ("the end", "the start", nothing),
    ]
    file = write_jsonl(tmp_path / "a.jsonl", labeled(rows))
    table = table_of(tmp_path, file, label_column="label", **PAIR_COLUMNS)
    assert ids_of(table) == expected_ids([("a man", "someone", "nobody"), ("a dog", "an animal", "a cat")])
    assert len(table_of(tmp_path / "2", file, label_column="label", max_sentences=1, **PAIR_COLUMNS)) == 1


def test_triplets_equal_a_plain_loop_over_random_labels() -> None:
    rng = np.random.default_rng(0)
    premises, labels = rng.integers(0, 30, 200).astype(np.uint64), rng.choice([0, 2], 200, p=[0.2, 0.8])
    expected = []
    for number, (premise, label) in enumerate(zip(premises, labels, strict=True)):
        opposed = [n for n in range(200) if premises[n] == premise and labels[n] == 2]
        if label == 0 and opposed and not (labels[:number][premises[:number] == premise] == 0).any():
            expected.append([2 * number, 2 * number + 1, 2 * opposed[0] + 1])
    assert 10 < len(expected) < 30
    assert labeled_triplets(premises, labels).tolist() == expected


def test_keys_are_equal_for_equal_tokens_and_for_no_others() -> None:
    texts = [[1, 2], [2, 1], [1, 2], [1], [1, 2, 0], [0, 1, 2], [1, 1], [1, 2]]
    flat, offsets = np.concatenate(texts).astype(np.int32), np.cumsum([0, *map(len, texts)])
    keys = text_keys(flat, offsets).tolist()
    assert [keys.index(key) for key in keys] == [texts.index(text) for text in texts]


def test_the_same_input_gives_the_same_bytes_and_a_finished_table_is_used_again(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "Oslo lies in Norway."}])
    first, second = table_of(tmp_path / "1", file), table_of(tmp_path / "2", file)
    assert first.fingerprint == second.fingerprint
    stamp = (tmp_path / "1" / "table" / "manifest.json").stat().st_mtime_ns
    assert table_of(tmp_path / "1", file, pairs_per_device_batch=7).fingerprint == first.fingerprint
    assert (tmp_path / "1" / "table" / "manifest.json").stat().st_mtime_ns == stamp


def test_a_table_of_other_sentences_or_settings_is_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "Oslo lies in Norway."}])
    table_of(tmp_path, file)
    with pytest.raises(ArtifactError, match="max_sentence_tokens=10"):
        table_of(tmp_path, file, max_sentence_tokens=10)
    write_jsonl(file, [{"text": "Paris"}])
    with pytest.raises(ArtifactError):
        table_of(tmp_path, file)


MISTAKES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "a missing column": ([{"sentence1": "Oslo", "other": "x"}], PAIR_COLUMNS, "has no sentence2"),
    "an empty text": ([{"sentence1": "Oslo", "sentence2": " "}], PAIR_COLUMNS, "'sentence2'"),
    "a text that is null": ([{"sentence1": None, "sentence2": "x"}], PAIR_COLUMNS, "has no sentence1"),
    "half a surrogate pair": ([{"text": "a \ud800"}], {}, "'text'"),
    "a text without tokens": ([{"text": "\u200b"}], {}, "no tokens"),
    "a score that is none": (
        [{"sentence1": "a", "sentence2": "b", "score": "high"}],
        {**PAIR_COLUMNS, "score_column": "score"},
        "'score'",
    ),
    "a label that is none": (
        labeled([("a", "b", "maybe")]),
        {**PAIR_COLUMNS, "label_column": "label"},
        "'label'",
    ),
    "no pair with such a score": (
        [{"sentence1": "a", "sentence2": "b", "score": 1}],
        {**PAIR_COLUMNS, "score_column": "score"},
        "nothing to train",
    ),
    "no premise with both": (labeled([("a", "b", 0)]), {**PAIR_COLUMNS, "label_column": "label"}, "nothing to train"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_is_one_clear_message(tmp_path: Path, mistake: str) -> None:
    rows, settings, problem = MISTAKES[mistake]
    with pytest.raises(CorpusError, match=rf"a\.jsonl.*{problem}"):
        table_of(tmp_path, write_jsonl(tmp_path / "a.jsonl", rows), **settings)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_sentence_tokens": 3},
        {"pairs_per_device_batch": 1},
        {"max_sentences": 0},
        {"anchor_column": ""},
        {"files": ["a.csv"], "negative_column": "c"},
        {"files": ["a.csv"], "score_column": "c"},
        {"files": ["a.csv"], "positive_column": "b", "negative_column": "c", "label_column": "d"},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="|".join(settings)):
        SentenceDataSettings(**settings)


def test_pairs_out_of_the_corpus_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Oslo lies in Norway.", encoding="utf-8")
    with pytest.raises(SettingError, match=r"sentences\.files"):
        table_of(tmp_path, corpus=CorpusSettings(files=[str(tmp_path / "a.txt")]), **PAIR_COLUMNS)
