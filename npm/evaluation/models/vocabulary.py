"""Task `vocabulary`: what one vocabulary shares with another, and how much of a corpus looks like English to it.

A context looks like English if more than 5 of 10 consecutive pieces are made of Latin letters alone; contexts do not
overlap, and what is left of a document at its end is in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.types import Progress, silent
from npm.corpus.blocks import tokenizer_fingerprint
from npm.evaluation.report import terminal_table
from npm.evaluation.results import CheckRecord, any_record, write_results
from npm.models.edits.vocabulary import matching_ids, token_texts
from npm.models.names import encoder_label, locate_encoder
from npm.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerFast


TASK = "vocabulary"
CONTEXT_PIECES, MOST_OTHER_PIECES = 10, 5
"""Pieces of a context, and how many of them at most are Latin where it does not look like English."""


@dataclass(frozen=True, slots=True)
class VocabularyCounts:
    """Tokens of one vocabulary, special ones left out."""

    name: str
    tokens: int
    matching: int
    """Those of Latin letters alone."""
    shared: int
    """Those whose text is in the other vocabulary too."""
    shared_matching: int
    """Those of Latin letters alone among them."""


@dataclass(frozen=True, slots=True)
class VocabularyResult:
    """Counts of both vocabularies, and of the contexts of a corpus."""

    vocabularies: tuple[VocabularyCounts, VocabularyCounts]
    contexts: int
    english_like: int
    record: dict[str, Any]

    def write(self, out: str | Path) -> None:
        """Write an empty predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        found = {"vocabularies": [asdict(each) for each in self.vocabularies], "contexts": self.contexts}
        metrics = {**self.record, **found, "english_like": self.english_like, "english_like_share": self.share}
        write_results(out, record=self.record, predictions=(), metrics=metrics)

    @property
    def share(self) -> float | None:
        """The share of contexts that look like English; None without contexts."""
        return self.english_like / self.contexts if self.contexts else None

    def show(self, console: Console) -> None:
        """Print the counts."""
        header = ["", "tokens", "of Latin letters", "shared", "shared, of Latin letters"]
        rows = [
            [each.name, *(f"{count:,}" for count in (each.tokens, each.matching, each.shared, each.shared_matching))]
            for each in self.vocabularies
        ]
        console.print(terminal_table(header, rows, title="vocabularies"))
        if self.share is not None:
            shown = f"{self.english_like:,} of {self.contexts:,} contexts of {CONTEXT_PIECES} pieces"
            console.print(f"{shown} look like English: {100 * self.share:.2f} %")


def evaluate_vocabulary(
    name: str,
    other: str,
    texts: Iterable[str] = (),
    *,
    sources: dict[str, str] | None = None,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> VocabularyResult:
    """Compare the tokenizers that are found under two names, and count contexts of `texts` with the first.

    `sources` say where the texts come from, in the record. Raises EncoderError where there is no tokenizer.
    """
    tokenizers = [load_tokenizer(locate_encoder(each)) for each in (name, other)]
    labels = [encoder_label(each) for each in (name, other)]
    record: dict[str, Any] = {
        "task": TASK,
        "tokenizers": [
            {"name": label, "fingerprint": tokenizer_fingerprint(each)}
            for label, each in zip(labels, tokenizers, strict=True)
        ],
        "corpus": dict(sources or {}),
    }
    check_record(record)
    known = [token_texts(each) for each in tokenizers]
    shared = set(known[0].values()) & set(known[1].values())
    counts = []
    for label, tokenizer, own in zip(labels, tokenizers, known, strict=True):
        matching = matching_ids(tokenizer)[0]
        both = sum(own[token_id] in shared for token_id in matching)
        all_shared = sum(text in shared for text in own.values())
        counts.append(VocabularyCounts(label, len(own), len(matching), all_shared, both))
    contexts, english_like = count_contexts(tokenizers[0], texts, progress)
    return VocabularyResult((counts[0], counts[1]), contexts, english_like, record)


def count_contexts(
    tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], progress: Progress = silent
) -> tuple[int, int]:
    """How many contexts there are in `texts`, and how many of them look like English."""
    matching = np.array(matching_ids(tokenizer)[0], dtype=np.int64)  # i64 [m]
    contexts = english_like = 0
    for number, text in enumerate(texts, start=1):
        progress("documents", number, None)
        encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        ids = np.array(encoding["input_ids"], dtype=np.int64)  # i64 [n]
        whole = len(ids) // CONTEXT_PIECES
        is_latin = np.isin(ids[: whole * CONTEXT_PIECES], matching).reshape(whole, CONTEXT_PIECES)  # bool [c, 10]
        contexts += whole
        english_like += int((is_latin.sum(1) > MOST_OTHER_PIECES).sum())
    return contexts, english_like
