"""Labeled text: sentences, pairs of sentences, or sentences of words, with labels or scores, as token ids in memory.

Shapes: X examples, T tokens of all examples in a row, N targets (one per example, or one per word), n targets of some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from npm.core.errors import CorpusError, SettingError, named
from npm.core.settings import INNER, PathText, Settings
from npm.corpus.readers import Row, read_lines, read_records, refuse, score_value, text_value, unusable_value
from npm.corpus.sources import Source, find_sources

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


COLUMN_KEYS = "labeled.text_column, .second_column and .label_column"
LEAST_MAX_TOKENS = 8


class LabelLevel(Enum):
    """Units that have a label."""

    sequence = "sequence"  # a text, or a pair of texts
    token = "token"  # each word of a sentence


class LabeledSettings(Settings):
    """Labeled text, and how it is read for a head over the encoder."""

    files: list[PathText] = field(default_factory=list)
    """Files of labeled rows (.jsonl, .csv, .tsv, .parquet, hub:NAME@CONFIG/SPLIT; .txt and .tsv of words, one a line
    with its tag last and an empty line after each sentence, with level=token)."""
    text_column: str = "sentence"
    """Column with the text, or with level=token the list of words."""
    second_column: Annotated[str, INNER] = ""
    """Column with the second text of a pair; empty: there is one text."""
    label_column: str = "label"
    """Column with the label or the score, or with level=token the list of labels."""
    labels: list[str] = field(default_factory=list)
    """The labels, in the order of their numbers; a row has the label itself or its number. Empty: the column holds
    scores, and squared error is minimized."""
    least_score: Annotated[NonNegativeFloat, INNER] = 0.0
    """Lowest score there is."""
    most_score: Annotated[PositiveFloat, INNER] = 5.0
    """Highest score there is."""
    header: Annotated[bool, INNER] = True
    """The first line of a .csv or .tsv file names its columns; without, they are called 1, 2, …"""
    level: Annotated[LabelLevel, INNER] = LabelLevel.sequence
    """Unit with a label: a full text or pair (`sequence`), or each word (`token`), on its first piece."""
    layer: Annotated[NonNegativeInt | None, INNER] = None
    """Probing: the head reads the states after this layer (0: the embeddings) of an encoder that is not trained.
    null: fine-tuning; the head reads the last layer, and the encoder is trained too."""
    mean_pooled: Annotated[bool, INNER] = False
    """The head of a text reads the mean of its tokens instead of the first one, as it must for an encoder whose tokens
    read neighbors only."""
    max_tokens: Annotated[int, Field(ge=LEAST_MAX_TOKENS), INNER] = 128
    """Tokens of an input, special tokens included; of a pair the longer text is cut first."""
    max_examples: Annotated[PositiveInt | None, INNER] = None
    """Examples used at most, from the beginning; null uses all."""
    examples_per_device_batch: Annotated[PositiveInt, INNER] = 32
    """Examples that one device works on at once."""

    def check(self) -> None:
        """Raise SettingError for incompatible settings."""
        if self.least_score >= self.most_score:
            raise SettingError(f"labeled.most_score must be above labeled.least_score, got {self.most_score}")
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            raise SettingError(f"labeled.labels must be two or more, each once, got {named(self.labels)}")
        if self.level is LabelLevel.token and (self.second_column or not self.labels) and self.files:
            raise SettingError("labeled.level=token requires labeled.labels=[…] and no labeled.second_column")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, the label last."""
        return tuple(name for name in (self.text_column, self.second_column, self.label_column) if name)


@dataclass(frozen=True, slots=True)
class LabeledRow:
    """One example as its file has it: one or two texts, or the words; and its label, score, or labels of words."""

    texts: tuple[str, ...]
    targets: tuple[float, ...]
    where: str


def labeled_sources(settings: LabeledSettings) -> list[Source]:
    """Return the files of labeled rows. Raises SettingError if there are none, CorpusError for unusable ones."""
    if not settings.files:
        raise SettingError("no labeled rows: set labeled.files=[FILE,…], or objective.labeled_weight=0")
    return find_sources(settings.files)


def read_labeled(settings: LabeledSettings) -> Iterator[LabeledRow]:
    """Yield the rows that `settings` describe. Raises CorpusError, with file and row, for what cannot be used."""
    for source in labeled_sources(settings):
        if settings.level is LabelLevel.token and source.format in ("txt", "table"):
            yield from _word_lines(source, settings)
            continue
        rows = read_records(
            source,
            required=settings.columns,
            keys=COLUMN_KEYS,
            quoted_tsv=False,
            header=settings.header,
            same_length=False,
            on_bad=refuse,
        )
        for number, record in rows:
            yield _row(record, settings, f"{source.path}:{number}")


def _row(record: Row, settings: LabeledSettings, where: str) -> LabeledRow:
    values = [record[name] for name in settings.columns]
    if settings.level is LabelLevel.sequence:
        texts, found = tuple(values[:-1]), (values[-1],)
    else:
        words, tags = values
        if not isinstance(words, list) or not isinstance(tags, list) or not words or len(words) != len(tags):
            raise unusable_value(where, settings.text_column, "a list of words and one of as many labels", words)
        texts, found = tuple(words), tuple(tags)
    texts = tuple(text_value(where, settings.text_column, text) for text in texts)
    # one text of a pair may be empty, as in a few rows of QQP
    if not (any if settings.second_column else all)(text.strip() for text in texts):
        raise unusable_value(where, settings.text_column, "a string with text", texts)
    return LabeledRow(texts, tuple(_target(value, settings, where) for value in found), where)


def _word_lines(source: Source, settings: LabeledSettings) -> Iterator[LabeledRow]:
    """Yield the sentences of a file with one word per line, its label last (CoNLL 2003, WikiAnn)."""
    words: list[str] = []
    targets: list[float] = []
    for number, line in [*read_lines(source.file), (0, "")]:
        cells = line.split("\t" if "\t" in line else " ")
        if line.strip() and not line.startswith("-DOCSTART-"):
            where = f"{source.path}:{number}"
            if len(cells) < 2 or not cells[0].strip():
                raise unusable_value(where, settings.label_column, "a word, and its label last", line)
            words.append(cells[0])
            targets.append(_target(cells[-1], settings, where))
        elif words:
            yield LabeledRow(tuple(words), tuple(targets), f"{source.path}:{number}")
            words, targets = [], []


def _target(value: object, settings: LabeledSettings, where: str) -> float:
    """Return the index of a label, or a score."""
    text = str(value).strip()
    if not settings.labels:
        return score_value(where, settings.label_column, value, settings.least_score, settings.most_score)
    if text in settings.labels:
        return settings.labels.index(text)
    if text.isdecimal() and int(text) < len(settings.labels):  # as data sets of the hub have them
        return int(text)
    raise unusable_value(where, settings.label_column, f"one of {', '.join(settings.labels)}", value)


@dataclass(frozen=True, slots=True)
class LabeledExamples:
    """Encoded examples, special tokens included."""

    token_ids: np.ndarray  # i32 [T]
    type_ids: np.ndarray  # u8 [T], 1 on the second text of a pair
    offsets: np.ndarray  # i64 [X + 1]; example x has the tokens [offsets[x], offsets[x + 1])
    targets: np.ndarray  # f64 [N], numbers of labels or scores
    slots: np.ndarray  # i64 [N], position of a target in its example; -1 where its word was cut off
    target_offsets: np.ndarray  # i64 [X + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, i64 [X]."""
        return np.diff(self.offsets)


ROWS_PER_BATCH = 1024


def encode_labeled(settings: LabeledSettings, tokenizer: PreTrainedTokenizerBase) -> LabeledExamples:
    """Encode all rows that `settings` describe by `tokenizer`, a fast one; special tokens in texts are text.

    Raises CorpusError as `read_labeled` does, where there are no rows, and where all have one label.
    """
    of_words = settings.level is LabelLevel.token
    rows = islice(read_labeled(settings), settings.max_examples)
    ids: list[np.ndarray] = []  # i32 [tokens] of each example
    types: list[np.ndarray] = []  # u8 [tokens]
    slots: list[np.ndarray] = []  # i64 [targets]
    targets: list[tuple[float, ...]] = []
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        encoded = tokenizer(
            [" ".join(row.texts) if of_words else row.texts[0] for row in batch],
            [row.texts[1] for row in batch] if settings.second_column else None,
            truncation="longest_first",
            max_length=settings.max_tokens,
            split_special_tokens=True,
            return_token_type_ids=True,
            return_offsets_mapping=of_words,
        )
        ids += [np.array(each, dtype=np.int32) for each in encoded["input_ids"]]
        types += [np.array(each, dtype=np.uint8) for each in encoded["token_type_ids"]]
        targets += [row.targets for row in batch]
        if of_words:
            slots += [_word_slots(row.texts, own) for row, own in zip(batch, encoded["offset_mapping"], strict=True)]
    found = np.array([target for own in targets for target in own], dtype=np.float64)  # f64 [N]
    if len(np.unique(found)) < 2:
        problem = "all rows have one label" if targets else "no labeled rows"
        more = "give more rows, or increase labeled.max_examples (limit= of npmlm finetune)"
        raise CorpusError(f"{named(settings.files)}: {problem}; {more}")
    return LabeledExamples(
        token_ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        offsets=np.append(0, np.cumsum([len(each) for each in ids])),
        targets=found,
        slots=np.concatenate(slots) if of_words else np.zeros(len(ids), dtype=np.int64),
        target_offsets=np.append(0, np.cumsum([len(each) for each in targets])),
    )


def _word_slots(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the position of each word's first piece, i64 [words]; -1 where it has none.

    `spans` are the characters of each token in the words with a space between them, empty for special tokens.

    >>> _word_slots(["New", "York"], [(0, 0), (0, 3), (4, 6), (6, 8), (0, 0)]).tolist()
    [1, 2]
    >>> _word_slots(["a", "b"], [(0, 1)]).tolist()
    [0, -1]
    """
    ends = np.cumsum([len(word) + 1 for word in words])  # i64 [words], after the space that follows
    starts = ends - np.array([len(word) + 1 for word in words])  # i64 [words]
    tokens = [(slot, start, end) for slot, (start, end) in enumerate(spans) if end > start]
    token_ends = np.array([end for _, _, end in tokens])  # i64 [tokens]
    places = np.searchsorted(token_ends, starts, side="right")  # i64 [words], first token that ends after the start
    return np.array(
        [
            tokens[place][0] if place < len(tokens) and tokens[place][1] < end - 1 else -1
            for place, end in zip(places.tolist(), ends.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
