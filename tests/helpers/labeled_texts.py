"""Small labeled texts that a tiny encoder learns in a few steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import processors

from npm.models.encoder import Encoder
from tests.helpers.tiny_models import tiny_encoder

SUBJECTS = ("Paris", "Oslo", "The river", "The Bank of America", "Madrid", "Norway")
LIKED, DISLIKED = ("is a capital", "flows through cities"), ("lies in the North", "was written in 1605")
SENTENCES = [
    {"sentence": f"{subject} {ending}.", "label": label}
    for subject in SUBJECTS
    for label, endings in ((1, LIKED), (0, DISLIKED))
    for ending in endings
]
PAIRS = [
    {"sentence1": f"{first} {LIKED[0]}.", "sentence2": f"{second} {ending}.", "score": score}
    for first, second in zip(SUBJECTS, SUBJECTS[::-1], strict=True)
    for score, ending in ((4.5, LIKED[0]), (0.5, DISLIKED[1]))
]
WORDS = [
    {
        "tokens": ["Paris", "and", "New", "Oslo", "lie", "far", "from", "Madrid"],
        "tags": ["B-LOC", "O", "B-LOC", "I-LOC", "O", "O", "O", "B-LOC"],
    },
    {"tokens": ["Giannini", "was", "in", "Madrid"], "tags": ["B-PER", "O", "O", "B-LOC"]},
]


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def encoder_of_pairs(**config: Any) -> Encoder:
    """A tiny BERT whose tokenizer marks the second text of a pair, as that of BERT does."""
    encoder = tiny_encoder("bert", **config)
    tokenizer = encoder.tokenizer
    cls, sep = str(tokenizer.cls_token), str(tokenizer.sep_token)
    ids = [(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=ids
    )
    return encoder
