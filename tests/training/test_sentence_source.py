"""Which sentences stand together in a batch, and in what form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import CorpusError
from npm.core.types import Sequences
from npm.corpus.groups import epoch_order
from npm.corpus.sentence_pairs import PairTable, SentenceDataSettings, build_pair_table
from npm.corpus.settings import CorpusSettings
from npm.masking.batches import MaskedBatch, SentenceBatch, View
from npm.masking.rendering import SENTENCES, TOKENS
from npm.training.data import SentenceSource
from tests.helpers.tiny_models import wordpiece_tokenizer

TOKENIZER = wordpiece_tokenizer()
PREFIX, SUFFIX, PAD = (TOKENIZER.cls_token_id,), (TOKENIZER.sep_token_id,), TOKENIZER.pad_token_id
ENCODER: Any = SimpleNamespace(prefix_ids=PREFIX, suffix_ids=SUFFIX, pad_id=PAD)
COLUMNS = ("anchor", "positive", "negative")


def words(number: int) -> str:
    """A sentence of its own for each number, of uneven length."""
    return " ".join([*str(number), *["word"] * (number % 4)])


def table_of(folder: Path, rows: Sequence[Sequence[str]]) -> PairTable:
    """A table of rows of 1 to 3 texts."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dict(zip(COLUMNS, row, strict=False))) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    names = dict(zip(("anchor_column", "positive_column", "negative_column"), COLUMNS[: len(rows[0])], strict=False))
    settings = SentenceDataSettings(files=[str(folder / "rows.jsonl")], **names)  # type: ignore[arg-type]
    return build_pair_table(folder / "table", settings, TOKENIZER, corpus=CorpusSettings())


class RecordingMaker:
    """Stands for masked language modeling: keeps what it was given and masks everything."""

    def __init__(self) -> None:
        self.groups: list[Sequences] = []
        self.numbers: list[int] = []

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> View:
        self.groups += groups
        self.numbers += [int(rng.integers(1 << 40)) for rng in rngs]
        for group in groups:
            group.token_ids[:] = TOKENIZER.mask_token_id
        nothing = torch.zeros((1, 1), dtype=torch.int64)
        return MaskedBatch(*[nothing] * 8, PAD)  # type: ignore[call-arg]


def source_of(
    table: PairTable,
    pairs: int,
    *,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    maker: RecordingMaker | None = None,
) -> SentenceSource:
    return SentenceSource(
        table,
        ENCODER,
        pairs_per_device_batch=pairs,
        seed=seed,
        makers={} if maker is None else {TOKENS: maker},
        rank=rank,
        world_size=world_size,
    )


def batch_at(source: SentenceSource, micro_step: int) -> SentenceBatch:
    batch = source.views(micro_step)[SENTENCES]
    assert isinstance(batch, SentenceBatch)
    return batch


def texts_at(source: SentenceSource, micro_step: int) -> list[str]:
    """The texts of all rows of a batch, without special tokens."""
    return list(TOKENIZER.batch_decode(batch_at(source, micro_step).input_ids, skip_special_tokens=True))


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_rows_are_anchors_then_positives_then_negatives(tmp_path: Path, columns: int) -> None:
    rows = [[words(10 * number + column) for column in range(columns)] for number in range(5)]
    source = source_of(table_of(tmp_path, rows), 3)
    batch, texts = batch_at(source, 0), texts_at(source, 0)
    assert batch.pair_count == 3
    assert len(texts) == 3 * max(2, columns)
    for anchor in range(3):
        row = rows[[row[0] for row in rows].index(texts[anchor])]
        assert texts[anchor::3] == (row if columns > 1 else row * 2)


def test_rows_are_framed_and_padded_as_the_tokenizer_does_it(tmp_path: Path) -> None:
    source = source_of(table_of(tmp_path, [[words(number)] for number in range(4)]), 4)
    batch = batch_at(source, 0)
    expected = TOKENIZER(texts_at(source, 0), padding=True, return_tensors="pt")
    assert len(set(batch.attention_mask.sum(1).tolist())) > 2
    torch.testing.assert_close(batch.input_ids, expected["input_ids"])
    torch.testing.assert_close(batch.attention_mask, expected["attention_mask"])
    assert batch.token_count == int(expected["attention_mask"].sum())


def test_an_epoch_shows_each_sentence_once_and_the_next_in_another_order(tmp_path: Path) -> None:
    source = source_of(table_of(tmp_path, [[words(number)] for number in range(20)]), 4)
    assert source.micro_steps_per_epoch == 5
    epochs = [[text for step in range(5) for text in texts_at(source, 5 * epoch + step)[:4]] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(words(number) for number in range(20))
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_seed_and_micro_step_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path, [[words(number), words(number + 100)] for number in range(20)])
    source = source_of(table, 4)
    later = texts_at(source, 7)
    assert [texts_at(source, step) for step in (0, 7)] == [texts_at(source_of(table, 4), 0), later]
    assert texts_at(source_of(table, 4, seed=1), 7) != later


def test_ranks_share_the_global_batch_of_one_process(tmp_path: Path) -> None:
    table = table_of(tmp_path, [[words(number), words(number + 100), words(number + 200)] for number in range(16)])
    for step in range(5):
        whole = texts_at(source_of(table, 4), step)
        shares = [texts_at(source_of(table, 2, rank=rank, world_size=2), step) for rank in (0, 1)]
        together = [text for column in range(3) for share in shares for text in share[2 * column : 2 * column + 2]]
        assert together == whole


def clashes(texts: list[str], pairs: int) -> int:
    """How many ordered pairs of rows would be wrong negatives of each other."""
    columns = [texts[start : start + pairs] for start in range(0, len(texts), pairs)]
    rows = list(zip(*columns, strict=True))
    return sum(bool(set(left[:2]) & set(right)) for left in rows for right in rows if left is not right)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_no_two_rows_of_a_global_batch_are_each_others_positives(tmp_path: Path, columns: int) -> None:
    rng = np.random.default_rng(columns)
    rows = [[words(int(number)) for number in rng.choice(60, size=columns, replace=False)] for _ in range(120)]
    table = table_of(tmp_path, rows)
    without = 0
    for step in range(len(table) // 6):
        shares = [texts_at(source_of(table, 3, rank=rank, world_size=2), step) for rank in (0, 1)]
        together = [text for column in range(max(2, columns)) for part in shares for text in part[3 * column :][:3]]
        assert not clashes(together, 6)
        drawn = table.text_numbers(epoch_order(len(table), seed=0, epoch=0)[6 * step : 6 * step + 6])
        without += len(np.unique(table.keys(drawn[:, :2]))) < drawn[:, :2].size
    assert without > 2, "nothing had to be replaced"


def test_what_cannot_be_found_by_chance_is_searched_for(tmp_path: Path) -> None:
    rows = [["the same", f"other {words(number)}"] for number in range(3000)]
    rows[1234] = ["Oslo", "Norway"]
    table = table_of(tmp_path, rows)
    for step in range(3):
        texts = texts_at(source_of(table, 2), step)
        assert "oslo" in texts
        assert not clashes(texts, 2)


@pytest.mark.parametrize(
    ("rows", "got"),
    [([["a"], ["b"]], "2"), ([["a"], ["a"], ["b"], ["a"]], "2 that"), ([["a", "b"], ["b", "c"], ["c", "a"]], "1 that")],
)
def test_too_few_sentences_for_one_batch_are_one_clear_message(tmp_path: Path, rows: list[list[str]], got: str) -> None:
    table = table_of(tmp_path, rows)
    with pytest.raises(CorpusError, match=f"got {got}"):
        source_of(table, 3).views(0)


@pytest.mark.parametrize("columns", [1, 3])
def test_what_is_contrasted_is_never_masked(tmp_path: Path, columns: int) -> None:
    rows = [[words(10 * number + column) for column in range(columns)] for number in range(6)]
    table, maker = table_of(tmp_path, rows), RecordingMaker()
    plain = batch_at(source_of(table, 3), 1)
    views = source_of(table, 3, maker=maker).views(1)
    assert set(views) == {SENTENCES, TOKENS}
    sentences = views[SENTENCES]
    assert isinstance(sentences, SentenceBatch)
    torch.testing.assert_close(sentences.input_ids, plain.input_ids)
    assert not (sentences.input_ids == TOKENIZER.mask_token_id).any()
    (group,) = maker.groups
    assert len(group) == 3 * columns, "each sentence is masked once"
    assert set(group.token_ids.tolist()) == {TOKENIZER.mask_token_id}
    torch.testing.assert_close(batch_at(source_of(table, 3), 1).input_ids, plain.input_ids)  # the table is as it was
