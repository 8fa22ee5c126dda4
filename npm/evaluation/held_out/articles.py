"""Held-out articles: the first long enough documents of a corpus, and what all tasks that are asked on them share.

A task measures one article at a time, with the model in evaluation mode; its result is a line an article and means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Progress, Sequences
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.store import BlockStore, write_block_store
from npm.corpus.text import is_title
from npm.evaluation.results import model_facts, write_results
from npm.evaluation.settings import HeldOutSettings
from npm.indexing.embed import check_tokenizer
from npm.models.stored import StoredModel, evaluating

if TYPE_CHECKING:
    from torch import nn

    from npm.core.types import Block, Document


BLOCK_LENGTH = "max_block_tokens"
MIN_FILLED_FRACTION = 0.97  # full blocks, as in training, so that articles are comparable
Score = TypeVar("Score")


@dataclass(frozen=True, slots=True)
class Article:
    """The beginning of one held-out document."""

    number: int  # among the articles, from 0
    document: str  # its id; its number where the store has no documents
    sequences: Sequences  # its blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutResult(Generic[Score]):
    """What a task found on held-out articles."""

    model_name: str
    articles: tuple[Score, ...]
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        raise NotImplementedError

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line for each of `articles`, and metrics.json; see `write_results`."""
        lines = (asdict(article) for article in self.articles)  # type: ignore[call-overload] # all are dataclasses
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())


def held_out_record(
    task: str, settings: Mapping[str, Any], store: BlockStore, model: StoredModel, **facts: Any
) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies; `facts` of the model beside those of all models."""
    return {
        "task": task,
        "settings": settings,
        "encoder": {**model_facts(model), "dtype": model.dtype_name, **facts},
        "corpus_digest": store.digest,
    }


def measured_articles(
    measure: Callable[[Article], Score],
    model: StoredModel,
    store: BlockStore,
    settings: HeldOutSettings,
    *,
    heads: Sequence[nn.Module] = (),
    progress: Progress,
) -> list[Score]:
    """`measure` of each of the first long articles of `store`, with `model` and `heads` in evaluation mode.

    Raises ArtifactError if the store is of another tokenizer, SettingError if the model does not take such blocks,
    CorpusError if too few articles are long enough.
    """
    check_tokenizer(model, store)
    check_block_length(model, settings.max_block_tokens)
    articles = long_articles(store, settings)
    scores: list[Score] = []
    with evaluating(model.model, *heads):
        for number, blocks in enumerate(articles):
            document = int(store.block_documents[blocks[0]])
            name = str(document) if document < 0 or not store.document_count else store.document(document).id
            scores.append(measure(Article(number, name, store.sequences(blocks))))
            progress("articles", number + 1, len(articles))
    return scores


def check_block_length(model: StoredModel, token_count: int, *, block_tokens: int | None = None) -> None:
    """Raise SettingError unless `model` takes `token_count` tokens: a block, or what `block_tokens` have become."""
    excess = token_count - model.max_input_tokens
    if excess > 0:
        enough = "less" if block_tokens is None else f"{max(1, block_tokens - excess)} or less"
        raise SettingError(
            f"{BLOCK_LENGTH} must be {enough}: the model takes {model.max_input_tokens} tokens, got up to {token_count}"
        )


@contextmanager
def held_out_store(
    model: StoredModel, corpus: CorpusSettings, settings: HeldOutSettings, *, prefix: str = ""
) -> Iterator[BlockStore]:
    """The blocks of the first long enough documents of `corpus`, on disk only as long as the context lasts.

    Messages put `prefix`, such as `in_batch.`, before the key of a setting. Raises as `build_held_out_store` does.
    """
    with TemporaryDirectory(prefix="npmlm-held-out-") as folder:
        place = Path(folder) / "blocks"
        try:
            yield build_held_out_store(place, read_corpus(corpus), model, settings)
        except SettingError as error:
            if str(error).startswith(BLOCK_LENGTH):
                raise SettingError(f"{prefix}{error}") from error
            raise


def build_held_out_store(
    folder: str | Path, documents: Iterable[Document], model: StoredModel, settings: HeldOutSettings
) -> BlockStore:
    """Cut the first long enough of `documents` into blocks and store them in `folder`; the rest is not read.

    Raises CorpusError if there are too few, SettingError for blocks that are too short for titles.
    """
    # One block more than is used, so that the last one ends where it would end in the whole document.
    enough_tokens = (settings.blocks_per_article + 1) * settings.max_block_tokens
    every = settings.takes_every_document
    blocks = BlockSettings(
        max_block_tokens=settings.max_block_tokens,
        max_document_tokens=None if every else max(settings.least_tokens, enough_tokens),
        min_filled_fraction=MIN_FILLED_FRACTION,
        title_tokens=getattr(model, "title_tokens", 0),  # an encoder-decoder has none
    )
    try:
        packer = BlockPacker(model.tokenizer, blocks)
    except SettingError as error:  # of the settings of training and building
        raise SettingError(f"{BLOCK_LENGTH}={settings.max_block_tokens} has too little room for text") from error
    return write_block_store(
        folder,
        _long_documents(documents, packer, settings),
        settings={"blocks": asdict(blocks), "articles": None if every else settings.articles},
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        vocabulary_size=packer.vocabulary_size,
    )


def _long_documents(
    documents: Iterable[Document], packer: BlockPacker, settings: HeldOutSettings
) -> Iterator[tuple[Document, Sequence[Block]]]:
    found = 0
    for document in documents:
        blocks = packer.pack(document)
        # titles make no article longer
        if _is_long(sum(int((~is_title(block.flags)).sum()) for block in blocks), len(blocks), settings):
            yield document, blocks
            found += 1
            if found == settings.articles and not settings.takes_every_document:
                return
    if not (found and settings.takes_every_document):
        raise _too_few(found, settings)


def long_articles(store: BlockStore, settings: HeldOutSettings) -> list[range]:
    """The first blocks of each of the first long enough documents, or all blocks of all documents, as asked.

    Raises CorpusError if there are too few.
    """
    documents = store.block_documents  # i64 [blocks]
    edges = np.flatnonzero(np.append(True, documents[1:] != documents[:-1]))  # i64 [documents]
    edges = np.append(edges, len(documents))  # i64 [documents + 1]
    texts_before = np.append(0, np.cumsum(~is_title(store.flags.slice(0, store.token_count))))  # i64 [tokens + 1]
    token_counts = np.diff(texts_before[store.block_offsets[edges]])  # i64 [documents]
    block_counts = np.diff(edges)  # i64 [documents]
    if settings.takes_every_document:
        return [range(int(first), int(stop)) for first, stop in pairwise(edges)]
    long = [
        range(int(first), int(first) + settings.blocks_per_article)
        for first, tokens, blocks in zip(edges[:-1], token_counts, block_counts, strict=True)
        if _is_long(int(tokens), int(blocks), settings)
    ]
    if len(long) < settings.articles:
        raise _too_few(len(long), settings)
    return long[: settings.articles]


def _is_long(token_count: int, block_count: int, settings: HeldOutSettings) -> bool:
    if settings.takes_every_document:
        return block_count > 0
    return token_count >= settings.least_tokens and block_count >= settings.blocks_per_article


def _too_few(found: int, settings: HeldOutSettings) -> CorpusError:
    if settings.takes_every_document:
        return CorpusError("corpus.files has no text")
    return CorpusError(
        f"too few long articles: {found} of {settings.articles} with at least {settings.least_tokens} tokens in "
        f"{settings.blocks_per_article} blocks; give more text, or a smaller limit"
    )
