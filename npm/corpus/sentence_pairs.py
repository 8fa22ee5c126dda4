"""Sentences, pairs and triplets of them as token ids on disk, for the contrastive loss over sentences.

token_ids.npy  i32 [T]     the tokens of all texts in a row, without special tokens
flags.npy      u8 [T]      TokenFlag
offsets.npy    i64 [X + 1] text x has the tokens [offsets[x], offsets[x + 1])
keys.npy       u64 [X]     equal for texts of equal tokens
rows.npy       i64 [R, c]  the texts of each row: anchor, positive, hard negative; c = 1: the anchor twice

Shapes: R rows, c columns (1 to 3), X texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from index.arrays import mixed_bits
from npm.core.artifact import check_folder, open_array, written_once
from npm.core.errors import CorpusError, SettingError, exclusive, missing, named
from npm.core.files import FolderWriter, sha256_of_file
from npm.core.settings import INNER, PathText, Settings
from npm.core.types import Sequences
from npm.corpus.blocks import SentenceTokenizer, concatenated_ranges, tokenizer_fingerprint
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.markup import visible
from npm.corpus.readers import Row, read_records, score_value, text_value, unusable_value
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import Source, find_sources
from npm.corpus.text import sentence_bounds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SentenceDataSettings(Settings):
    """Sentences to distinguish: from files of sentences, pairs or triplets, or split out of the corpus."""

    files: list[PathText] = field(default_factory=list)
    """Files (.jsonl, .jsonl.zst, .csv, .tsv, .parquet, or .txt with a sentence per line); empty: the corpus's."""
    anchor_column: str = "text"
    """Column with a sentence, a question or a premise; .txt files are this column."""
    positive_column: str = ""
    """Column with a sentence of the same meaning; empty: the same sentence again, under another dropout."""
    negative_column: str = ""
    """Column with a sentence that is near but of other meaning (hard negative); empty: none."""
    label_column: str = ""
    """Column with entailment, neutral or contradiction of the positive column, or 0, 1, 2; empty: none. Each anchor
    with an entailment and a contradiction then becomes one triplet, of the first of each; the rest is omitted."""
    score_column: str = ""
    """Column with a score of similarity; empty: none. Pairs below `least_score` are omitted."""
    least_score: NonNegativeFloat = 4.0
    """Pairs with this score or more are positives; in the unit of `score_column`."""
    max_sentence_tokens: Annotated[int, Field(ge=4), INNER] = 32
    """Tokens of a sentence as the encoder sees it, its special tokens included; longer ones are cut."""
    least_sentence_words: Annotated[PositiveInt, INNER] = 5
    """Sentences of the corpus with fewer words are omitted; files keep all of theirs."""
    max_sentences: PositiveInt | None = None
    """Sentences, pairs or triplets used at most, from the beginning; null uses all."""
    pairs_per_device_batch: Annotated[int, Field(ge=2)] = 64
    """Sentences, pairs or triplets that one device works on at once; they are each other's negatives."""

    def check(self) -> None:
        """Raise SettingError for incompatible columns."""
        if not self.anchor_column:
            raise missing("sentences.anchor_column")
        for name in ("negative_column", "label_column", "score_column"):
            if getattr(self, name) and not self.positive_column:
                raise SettingError(f"sentences.{name} requires sentences.positive_column")
        if self.label_column and self.negative_column:
            raise exclusive("sentences.label_column", "sentences.negative_column")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that hold text, anchor first."""
        return tuple(name for name in (self.anchor_column, self.positive_column, self.negative_column) if name)


ENTAILMENT, NEUTRAL, CONTRADICTION, NO_LABEL = 0, 1, 2, -1
LABELS = {"entailment": ENTAILMENT, "neutral": NEUTRAL, "contradiction": CONTRADICTION, "-": NO_LABEL}
LABELS |= {str(code): code for code in LABELS.values()}
"""Codes of labels; `-` where the annotators did not agree."""
COLUMN_KEYS = "sentences.anchor_column, .positive_column, …"


@dataclass(frozen=True, slots=True)
class TextRow:
    """Texts of one row in the order of the columns, their position, and the label of the pair if it has one."""

    texts: tuple[str, ...]
    where: str
    label: int | None = None


def sentence_sources(settings: SentenceDataSettings) -> list[Source]:
    """Return the files that `settings` name; none if sentences come from the corpus.

    Raises CorpusError for a file that cannot be read, SettingError if there are columns to read but no files.
    """
    if settings.positive_column and not settings.files:
        raise SettingError("sentences.positive_column needs sentences.files: the corpus has no pairs")
    return find_sources(settings.files) if settings.files else []


def read_text_rows(
    settings: SentenceDataSettings, corpus: CorpusSettings, skipped: SkippedRecords | None = None
) -> Iterator[TextRow]:
    """Yield the rows that `settings` describe, from their files, else the sentences of `corpus`.

    With labels, a row is an anchor and texts of its pairs. Pairs below the least score, neutral pairs and pairs
    without a label are omitted. Raises CorpusError, with file and row, for a value that cannot be used.
    """
    sources = sentence_sources(settings)
    if not sources:
        for document in read_corpus(corpus, skipped=skipped):
            text = visible(document.text)
            for start, end in sentence_bounds(text).tolist():
                sentence = text[start:end]
                if len(sentence.split()) >= settings.least_sentence_words:
                    yield TextRow((sentence,), document.id)
    columns = [name for name in (*settings.text_columns, settings.label_column, settings.score_column) if name]
    for source in sources:
        number = 0
        rows = read_records(source, required=columns, keys=COLUMN_KEYS, quoted_tsv=False, same_length=False)
        for number, record in rows:
            if (row := _text_row(record, settings, f"{source.path}:{number}")) is not None:
                yield row
        if not number:
            raise CorpusError(f"{source.path} has no rows; check the file, or leave it out")


def _text_row(record: Row, settings: SentenceDataSettings, where: str) -> TextRow | None:
    """Return one record as texts; None if its score or label excludes it."""
    label = None
    if (name := settings.score_column) and score_value(where, name, record[name]) < settings.least_score:
        return None
    if name := settings.label_column:
        label = LABELS.get(str(record[name]).strip().lower())
        if label is None:
            raise unusable_value(where, name, f"one of {', '.join(LABELS)}", record[name])
        if label in (NEUTRAL, NO_LABEL):
            return None
    texts = tuple(text_value(where, name, record[name]) for name in settings.text_columns)
    for name, text in zip(settings.text_columns, texts, strict=True):
        if not text.strip():
            raise unusable_value(where, name, "a string with text", text)
    return TextRow(texts, where, label)


PAIR_TABLE_KIND = "npmlm-sentences"
ROWS_PER_BATCH = 512
_BATCHING = ("files", "pairs_per_device_batch")
"""Settings that do not change the stored table; files count by their content."""


class PairTable:
    """Sentences, pairs or triplets on disk, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Raises ArtifactError if `folder` is not a complete table."""
        manifest = check_folder(folder, kind=PAIR_TABLE_KIND)
        self.fingerprint = manifest.digest
        """Equal for equal tables: SHA-256 over settings and content."""
        self._token_ids, self._flags, self._offsets, self._keys, self._rows = (
            open_array(folder, name) for name in ("token_ids", "flags", "offsets", "keys", "rows")
        )
        self.column_count = int(self._rows.shape[1])
        """1 for sentences, 2 for pairs, 3 with hard negatives."""
        self.token_count = len(self._token_ids)
        """Tokens of all texts, without special tokens."""

    def __len__(self) -> int:
        return len(self._rows)

    def text_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the texts of some rows i64 [r]: i64 [r, c]."""
        return np.asarray(self._rows[rows])

    def keys(self, texts: np.ndarray) -> np.ndarray:
        """Return keys that differ between texts of any shape, u64 of the same shape."""
        return np.asarray(self._keys[texts])

    def texts(self, numbers: np.ndarray) -> Sequences:
        """Return some texts i64 [x], in that order."""
        starts, stops = self._offsets[numbers], self._offsets[numbers + 1]  # i64 [x]
        positions = concatenated_ranges(starts, stops)  # i64 [their tokens]
        return Sequences(
            token_ids=np.asarray(self._token_ids[positions]),  # i32 [their tokens]
            flags=np.asarray(self._flags[positions]),  # u8 [their tokens]
            offsets=np.append(0, np.cumsum(stops - starts)),  # i64 [x + 1]
        )


def build_pair_table(
    folder: Path,
    settings: SentenceDataSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    corpus: CorpusSettings,
    skipped: SkippedRecords | None = None,
) -> PairTable:
    """Return the table that `settings` describe, built in `folder` unless it exists; `tokenizer` is a fast one.

    Raises CorpusError for files that cannot be used or have nothing to train on, ArtifactError if `folder` was made
    from something else.
    """
    recorded = _recorded(settings, corpus) | {"tokenizer": tokenizer_fingerprint(tokenizer)}
    max_tokens = settings.max_sentence_tokens - tokenizer.num_special_tokens_to_add()

    def write(writer: FolderWriter) -> None:
        rows = read_text_rows(settings, corpus, skipped)
        _write_table(writer, rows, SentenceTokenizer(tokenizer, max_tokens=max_tokens), settings)

    written_once(folder, kind=PAIR_TABLE_KIND, settings=recorded, write=write)
    return PairTable(folder)


def _write_table(
    folder: FolderWriter, rows: Iterator[TextRow], tokenizer: SentenceTokenizer, settings: SentenceDataSettings
) -> None:
    """Write the files of a table. Raises CorpusError if there is no row."""
    token_ids, flags = folder.stream_array("token_ids", np.int32), folder.stream_array("flags", np.uint8)
    offsets, keys = folder.stream_array("offsets", np.int64), folder.stream_array("keys", np.uint64)
    offsets.append(np.zeros(1, dtype=np.int64))
    columns = len(settings.text_columns)
    premises: list[np.ndarray] = []  # u64 [pairs] of each batch
    labels: list[int | None] = []  # 8 bytes per pair, as the labels are shared
    kept = rows if settings.label_column else islice(rows, settings.max_sentences)
    while batch := list(islice(kept, ROWS_PER_BATCH)):
        texts = tokenizer.encode([text for row in batch for text in row.texts])
        empty = np.flatnonzero(np.diff(texts.offsets) == 0)  # [texts without a token]
        if len(empty) and settings.files:  # sentences of the corpus are omitted
            row = batch[empty[0] // columns]
            text = row.texts[empty[0] % columns]
            raise CorpusError(f"{row.where}: no tokens in {text!r:.80}; correct or remove this row")
        own_offsets = np.delete(texts.offsets, empty + 1)  # i64 [texts + 1], of those with a token
        own_keys = text_keys(texts.token_ids, own_offsets)  # u64 [texts]
        offsets.append(token_ids.row_count + own_offsets[1:])
        token_ids.append(texts.token_ids)
        flags.append(texts.flags)
        keys.append(own_keys)
        premises.append(own_keys[::columns])
        labels += [row.label for row in batch]
    table = np.arange(keys.row_count).reshape(-1, columns)  # i64 [R, c]
    if settings.label_column and labels:
        table = labeled_triplets(np.concatenate(premises), np.array(labels))[: settings.max_sentences]
    if not len(table):
        wanted = f"with {settings.label_column} entailment and contradiction, " if settings.label_column else ""
        wanted += f"with {settings.score_column} of at least {settings.least_score}, " if settings.score_column else ""
        wanted += "" if settings.files else f"of {settings.least_sentence_words} words or more, "
        raise CorpusError(
            f"{named(settings.files) or 'corpus.files'}: nothing to train on: no sentence {wanted}was found"
        )
    folder.write_array("rows", table)


def labeled_triplets(premises: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return triplets of labeled pairs: premise, its first entailment and contradiction, i64 [triplets, 3].

    `premises` u64 [P] are the keys of the premises, `labels` i8 [P] their labels; the texts of pair p are 2p and
    2p + 1. In the order of the entailments.

    >>> labeled_triplets(np.array([7, 8, 7, 7]), np.array([0, 0, 2, 0])).tolist()
    [[0, 1, 5]]
    """
    entailments, contradictions = np.flatnonzero(labels == ENTAILMENT), np.flatnonzero(labels == CONTRADICTION)
    entailed, first_entailments = np.unique(premises[entailments], return_index=True)
    contradicted, first_contradictions = np.unique(premises[contradictions], return_index=True)
    _, left, right = np.intersect1d(entailed, contradicted, assume_unique=True, return_indices=True)
    pairs = entailments[first_entailments[left]]  # i64 [triplets]
    opposed = contradictions[first_contradictions[right]]  # i64 [triplets]
    triplets = np.stack([2 * pairs, 2 * pairs + 1, 2 * opposed + 1], axis=1)  # i64 [triplets, 3]
    return triplets[np.argsort(pairs)]


def text_keys(token_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return a hash of each of x texts, u64 [x]; collisions of different tokens are negligible.

    `token_ids` i32 [T] are those of all texts, none of them empty, `offsets` i64 [x + 1].
    """
    lengths = np.diff(offsets)  # i64 [x]
    places = np.arange(len(token_ids)) - np.repeat(offsets[:-1], lengths)  # i64 [T], position of a token in its text
    mixed = mixed_bits(mixed_bits(places.astype(np.uint64)) + token_ids.astype(np.uint64))  # u64 [T]
    return mixed_bits(np.add.reduceat(mixed, offsets[:-1]) + lengths.astype(np.uint64))  # u64 [x]


def _recorded(settings: SentenceDataSettings, corpus: CorpusSettings) -> dict[str, Any]:
    """Return all that decides a table's bytes except the tokenizer: settings, and the files by name and content."""
    sources = sentence_sources(settings) or find_sources(corpus.files)
    digests = {
        f"source.{number}": source.name + ("" if source.format == "hub" else f" {sha256_of_file(source.file)}")
        for number, source in enumerate(sources, start=1)
    }
    own = {f"sentences.{name}": value for name, value in asdict(settings).items() if name not in _BATCHING}
    if not settings.files:
        reading = {name: getattr(corpus, name) for name in ("id_field", "title_field", "text_field", "max_documents")}
        own |= {f"corpus.{name}": value for name, value in reading.items()} | {"corpus.split": corpus.split.name}
        own |= {"corpus.skip_bad": True} if corpus.skip_bad else {}
    return own | digests
