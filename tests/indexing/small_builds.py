"""A small build in which every stage has something to do."""

from __future__ import annotations

import json
from pathlib import Path

from index.settings import SearchSettings, SearchTier
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from tests.helpers.tiny_models import SENTENCES

COPIES = 6
TOKENS_PER_SHARD = 400


def write_corpus(path: Path) -> Path:
    """Some dozens of documents."""
    records = [
        {"id": f"d{copy}-{number}", "title": f"Title {number}", "text": f"{text} {SENTENCES[(number + copy) % 8]}"}
        for copy in range(COPIES)
        for number, text in enumerate(SENTENCES)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def small_settings(corpus: Path) -> IndexBuildSettings:
    """Several shards of several batches each, and inverted lists of one-bit codes."""
    return IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]),
        blocks=BlockSettings(max_block_tokens=24),
        vectors=VectorSettings(tokens_per_shard=TOKENS_PER_SHARD, tokens_per_batch=100),
        search=SearchSettings(tier=SearchTier.ivf_pq, list_count=8, train_iterations=6, thread_count=1),
    )
