"""Sentences, pairs and triplets of them as token ids on disk, for the contrastive loss over sentences.

token_ids.npy  i32 [T]     the tokens of all texts in a row, without special tokens
flags.npy      u8 [T]      TokenFlag
offsets.npy    i64 [X + 1] text x has the tokens [offsets[x], offsets[x + 1])
keys.npy       u64 [X]     equal for texts of equal tokens
rows.npy       i64 [R, c]  the texts of each row: anchor, positive, hard negative; c = 1: the anchor twice

Shapes: R rows, c columns (1 to 3), X texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.files import sha256_of_file
from index.store import MANIFEST_NAME, FolderWriter, check_folder, open_array, write_folder
from npm.corpus.documents import CorpusSettings
from npm.corpus.fingerprints import tokenizer_fingerprint
from npm.corpus.pair_rows import CONTRADICTION, ENTAILMENT, TextRow, read_text_rows, sentence_sources
from npm.corpus.pair_settings import SentenceDataSettings
from npm.corpus.ranges import concatenated_ranges
from npm.corpus.sentence_tokens import SentenceTokenizer
from npm.corpus.sources import find_sources
from npm.errors import ArtefactError, CorpusError
from npm.types import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PairTable", "SentenceDataSettings", "build_pair_table", "sentence_sources", "text_keys"]

PAIR_TABLE_KIND = "npmlm-sentences"
ROWS_PER_BATCH = 512
_BATCHING = ("files", "pairs_per_device_batch")
"""Settings that do not change what is stored; files count by their content."""


class PairTable:
    """Sentences, pairs or triplets on disk; nothing but what is asked for comes into memory."""

    def __init__(self, folder: Path) -> None:
        """Raises ArtefactError if `folder` is not a whole table."""
        manifest = check_folder(folder, kind=PAIR_TABLE_KIND)
        self.fingerprint = manifest.digest
        """Equal for equal tables: SHA-256 over settings and content."""
        self._token_ids, self._flags, self._offsets, self._keys, self._rows = (
            open_array(folder, name) for name in ("token_ids", "flags", "offsets", "keys", "rows")
        )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def column_count(self) -> int:
        """1 for sentences, 2 for pairs, 3 with hard negatives."""
        return int(self._rows.shape[1])

    @property
    def token_count(self) -> int:
        """Tokens of all texts, without special tokens."""
        return len(self._token_ids)

    def text_numbers(self, rows: np.ndarray) -> np.ndarray:
        """The texts of some rows i64 [r]: i64 [r, c]."""
        return np.asarray(self._rows[rows])

    def keys(self, texts: np.ndarray) -> np.ndarray:
        """What tells texts of any shape apart, u64 of the same shape."""
        return np.asarray(self._keys[texts])

    def texts(self, numbers: np.ndarray) -> Sequences:
        """Some texts i64 [x], in that order."""
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
    progress: Callable[[int], None] | None = None,
) -> PairTable:
    """The table that `settings` describe, built in `folder` unless it is there; `progress` gets the rows read so far.

    Raises CorpusError for files that are not usable or hold nothing to train on, ArtefactError if `folder` was made
    otherwise. `tokenizer` is a fast one.
    """
    recorded = _recorded(settings, corpus) | {"tokenizer": tokenizer_fingerprint(tokenizer)}
    if (folder / MANIFEST_NAME).is_file():
        _check_settings(folder, recorded)
        return PairTable(folder)
    rows = read_text_rows(settings, corpus)
    if not settings.label_column:
        rows = islice(rows, settings.max_sentences)
    max_tokens = settings.max_sentence_tokens - tokenizer.num_special_tokens_to_add()
    with write_folder(folder, kind=PAIR_TABLE_KIND, settings=recorded) as writer:
        table = _TableWriter(writer, SentenceTokenizer(tokenizer, max_tokens=max_tokens), settings)
        while batch := list(islice(rows, ROWS_PER_BATCH)):
            table.append(batch)
            if progress is not None:
                progress(table.row_count)
        table.finish()
    return PairTable(folder)


class _TableWriter:
    """Writes the files of a table, batch by batch."""

    def __init__(self, folder: FolderWriter, tokenizer: SentenceTokenizer, settings: SentenceDataSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._token_ids = folder.stream_array("token_ids", np.int32)
        self._flags = folder.stream_array("flags", np.uint8)
        self._offsets = folder.stream_array("offsets", np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._keys = folder.stream_array("keys", np.uint64)
        columns = 3 if settings.label_column else len(settings.text_columns)
        self._rows = folder.stream_array("rows", np.int64, (columns,))
        self._premises: list[np.ndarray] = []  # u64 [rows] of each batch, 9 bytes a row with their labels
        self._labels: list[np.ndarray] = []  # i8 [rows] of each batch
        self.row_count = 0

    def append(self, rows: list[TextRow]) -> None:
        """Add some rows; sentences of the corpus without a token are left out, those of files are refused."""
        columns = len(rows[0].texts)
        texts = self._tokenizer.encode([text for row in rows for text in row.texts])
        empty = np.flatnonzero(np.diff(texts.offsets) == 0)  # [texts without a token]
        if len(empty) and self._settings.files:
            row = rows[empty[0] // columns]
            raise CorpusError(
                "a text has no tokens",
                expected="text that the tokenizer does not drop as a whole",
                got=repr(row.texts[empty[0] % columns])[:80],
                where=row.where,
                fix="mend or remove this row",
            )
        first = self._keys.row_count
        keys = self._append_texts(texts.token_ids, texts.flags, np.delete(texts.offsets, empty + 1))  # u64 [texts]
        self.row_count += len(keys) // columns
        if self._settings.label_column:
            self._labels.append(np.array([row.label for row in rows], dtype=np.int8))
            self._premises.append(keys[::columns])
        else:
            self._rows.append(np.arange(first, first + len(keys)).reshape(-1, columns))

    def _append_texts(self, token_ids: np.ndarray, flags: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Add x texts, none of them empty, with `offsets` i64 [x + 1] in their tokens; returns their keys, u64 [x]."""
        keys = text_keys(token_ids, offsets)  # u64 [x]
        self._offsets.append(self._token_ids.row_count + offsets[1:])
        self._token_ids.append(token_ids)
        self._flags.append(flags)
        self._keys.append(keys)
        return keys

    def finish(self) -> None:
        """Write what is known at the end only. Raises CorpusError if there is no row."""
        if self._labels:
            triplets = labelled_triplets(np.concatenate(self._premises), np.concatenate(self._labels))
            self._rows.append(triplets[: self._settings.max_sentences])
        if not self._rows.row_count:
            raise _nothing_to_train_on(self._settings)


def _nothing_to_train_on(settings: SentenceDataSettings) -> CorpusError:
    expected = "at least one sentence, pair or triplet"
    if settings.label_column:
        expected = f"{settings.anchor_column!r} with an entailment and a contradiction, at least once"
    elif settings.score_column:
        expected = f"a pair with {settings.score_column!r} of at least {settings.least_score}"
    return CorpusError(
        "there is nothing to train sentences on",
        expected=expected,
        got="none" if settings.files else f"no sentence of {settings.least_sentence_words} words or more",
        where=", ".join(Path(file).name for file in settings.files) or "corpus.files",
        fix="give other files, or set the columns, sentences.least_score or sentences.least_sentence_words otherwise",
    )


def labelled_triplets(premises: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The triplets of labelled pairs: premise, first entailment and first contradiction of it, i64 [triplets, 3].

    `premises` u64 [P] are the keys of the premises, `labels` i8 [P] their labels; the texts of pair p are 2p and
    2p + 1. In the order of the entailments.

    >>> labelled_triplets(np.array([7, 8, 7, 7]), np.array([0, 0, 2, 0])).tolist()
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
    """A number for each of x texts, u64 [x], that is equal for equal tokens and, as good as always, for no others.

    `token_ids` i32 [T] are those of all texts, none of them empty, `offsets` i64 [x + 1].
    """
    lengths = np.diff(offsets)  # i64 [x]
    places = np.arange(len(token_ids)) - np.repeat(offsets[:-1], lengths)  # i64 [T], place of a token in its text
    mixed = mixed_bits(mixed_bits(places.astype(np.uint64)) + token_ids.astype(np.uint64))  # u64 [T]
    return mixed_bits(np.add.reduceat(mixed, offsets[:-1]) + lengths.astype(np.uint64))  # u64 [x]


def mixed_bits(numbers: np.ndarray) -> np.ndarray:
    """A permutation of the numbers u64 of any shape that spreads each bit over all (the finaliser of SplitMix64)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _recorded(settings: SentenceDataSettings, corpus: CorpusSettings) -> dict[str, Any]:
    """What decides the bytes of a table, besides the tokenizer: settings, and the files by name and content."""
    sources = sentence_sources(settings) or find_sources(corpus.files)
    digests = {
        f"source.{number}": source.name + ("" if source.format == "hub" else f" {sha256_of_file(Path(source.path))}")
        for number, source in enumerate(sources, start=1)
    }
    own = {f"sentences.{name}": value for name, value in asdict(settings).items() if name not in _BATCHING}
    if not settings.files:
        reading = {name: getattr(corpus, name) for name in ("id_field", "title_field", "text_field", "max_documents")}
        own |= {f"corpus.{name}": value for name, value in reading.items()} | {"corpus.split": corpus.split.name}
    return own | digests


def _check_settings(folder: Path, recorded: dict[str, Any]) -> None:
    found = check_folder(folder, kind=PAIR_TABLE_KIND).settings
    names = sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))
    if names:
        raise ArtefactError(
            f"{folder} was made from other sentences or with other settings",
            expected=", ".join(f"{name}={recorded.get(name)!r}" for name in names),
            got=", ".join(f"{name}={found.get(name)!r}" for name in names),
            where=str(folder),
            fix="give what it was made with, or choose another run folder",
        )
