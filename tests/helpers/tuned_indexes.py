"""Small indexes that are measured: many short documents of random words, some of which training left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import search_settings
from tests.helpers.tiny_models import SENTENCES

DOCUMENTS = 150
LISTS = 8
WORDS = sorted({word.strip(".,;") for sentence in SENTENCES for word in sentence.split()})


def sentence(rng: np.random.Generator, word_count: int) -> str:
    return " ".join(rng.choice(WORDS, word_count).tolist()).capitalize() + "."


def write_documents(file: Path, count: int = DOCUMENTS) -> str:
    """Documents of two sentences that may be asked about, between two that are too short."""
    rng = np.random.default_rng(7)
    lines = []
    for number in range(count):
        text = " ".join(sentence(rng, words) for words in (2, 15, 18, 3))
        lines.append(json.dumps({"id": f"d{number}", "title": f"Title {number}", "text": text, "kind": "random"}))
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def build_measured(folder: Path, encoder: Encoder, lists: str | None, *, documents: int = DOCUMENTS) -> Path:
    """An index over these documents, exact without `lists`."""
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[write_documents(folder.with_suffix(".jsonl"), documents)], kept_fields=["kind"]),
        blocks=BlockSettings(max_block_tokens=64),
        vectors=VectorSettings(tokens_per_shard=2000),
        search=search_settings(lists, thread_count=1, train_iterations=2),
    )
    build_index(folder, settings, encoder)
    return folder
