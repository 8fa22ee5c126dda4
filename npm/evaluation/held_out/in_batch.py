"""Task `in_batch`: is the best key of a masked span one of its other occurrences, on articles never trained on?

The first blocks of an article are masked as in training; the keys of a span are all tokens of the article's other
blocks, and it is right if its best key is a positive of the training loss (Min et al. 2022, arXiv 2212.01349, §3.2).

The same can be asked of the leading numbers of all vectors alone, as an index with `dimensions` stores them.

Shapes: n spans, T keys, A articles, m tokens of the longest span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.store import BlockStore
from npm.errors import CorpusError, check_range
from npm.evaluation.held_out.articles import HeldOutSettings, build_held_out_store, long_articles
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.results import Progress, write_results
from npm.indexing.embed import check_tokenizer
from npm.masking.masker import MaskingSettings, build_masker, mask_rng
from npm.masking.rendering import MaskPairRenderer
from npm.models.similarity import check_leading_dimensions
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import (
    NonparametricMasked,
    NonparametricSettings,
    following_tokens,
    gather_keys,
    positive_keys,
)

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.types import MaskedBatch


def in_batch_rows(result: InBatchResult) -> tuple[Row, list[Row]]:
    """Header and rows of the in-batch retrieval table: whole vectors, shorter ones, and what a random key scores."""
    header = ["", "articles", "spans", "top-1, % [95 %]", "start, %", "end, %", "loss"]
    chance = f"{100 * result.chance:.2f}"
    counts = [str(len(result.articles)), str(result.span_count)]
    sides = [f"{100 * result.start_top1:.1f}", f"{100 * result.end_top1:.1f}"]
    rows = [[result.encoder_name, *counts, percent(result.top1), *sides, f"{result.loss:.2f}"]]
    for each in reversed(result.shorter):
        sides = [f"{100 * each.start_top1:.1f}", f"{100 * each.end_top1:.1f}"]
        rows.append(
            [f"its first {each.dimensions} dimensions", *counts, percent(each.top1), *sides, f"{each.loss:.2f}"]
        )
    return header, [*rows, ["a random key", *counts, chance, chance, chance, ""]]


def print_in_batch(result: InBatchResult, console: Console) -> None:
    """The report of task `in_batch`."""
    console.print(terminal_table(*in_batch_rows(result), title="in-batch retrieval on held-out articles"))


TASK = "in_batch"


@dataclass(kw_only=True, slots=True)
class InBatchSettings(HeldOutSettings):
    """Which articles are held out, and how they are masked; numbers are reported with the defaults."""

    mask_seed: int = 0
    """Seed of the masks."""
    seed: int = 0
    """Seed of the bootstrap over articles."""
    resamples: int = 10_000
    """Of the bootstrap, for the 95 % confidence interval."""
    dimensions: list[int] = field(default_factory=list)
    """Shorter lengths of vectors that are measured beside the whole ones, by their leading numbers."""

    def __post_init__(self) -> None:
        HeldOutSettings.__post_init__(self)  # super() does not find its class in a dataclass with slots
        check_range(self.resamples >= 1, "resamples", expected="at least 1", got=self.resamples)
        check_leading_dimensions(self.dimensions, where="dimensions")


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over spans, by vectors of one length."""

    start_correct: int = 0
    end_correct: int = 0
    start_loss: float = 0.0
    end_loss: float = 0.0

    @property
    def correct(self) -> int:
        """Of both sides."""
        return self.start_correct + self.end_correct


@dataclass(frozen=True, slots=True)
class ArticleScore:
    """Sums over the spans of one article, by whole vectors and by shorter ones."""

    document: str  # its id; its number where the store has no documents
    spans: int
    start_correct: int
    end_correct: int
    start_loss: float
    end_loss: float
    chance: float  # Σ over spans of the share of positives among the keys
    shorter: dict[int, Sums]  # by their number of dimensions

    @property
    def whole(self) -> Sums:
        """By whole vectors."""
        return Sums(self.start_correct, self.end_correct, self.start_loss, self.end_loss)


@dataclass(frozen=True, slots=True)
class Means:
    """Means over all spans, by vectors of one length."""

    dimensions: int
    start_top1: float
    end_top1: float
    top1: Interval
    loss: float


@dataclass(frozen=True, slots=True)
class InBatchResult:
    """Means over all spans; `top1` is the mean of both sides, its interval from a bootstrap over articles."""

    encoder_name: str
    articles: tuple[ArticleScore, ...]
    span_count: int
    start_top1: float
    end_top1: float
    top1: Interval
    loss: float  # start and end added, as in training
    chance: float  # what a random key would score
    shorter: tuple[Means, ...]  # by shorter vectors, the shortest first
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        means = {name: getattr(self, name) for name in ("start_top1", "end_top1", "loss", "chance", "span_count")}
        shorter = {str(each.dimensions): asdict(each) for each in self.shorter}
        counts = {"article_count": len(self.articles)}
        return {**self.record, **means, "top1": asdict(self.top1), **counts, "shorter": shorter}

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line an article, and metrics.json to the folder `out`; see `write_results`."""
        lines = (asdict(article) for article in self.articles)
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())


def evaluate_held_out(
    encoder: Encoder,
    corpus: CorpusSettings,
    settings: InBatchSettings | None = None,
    *,
    progress: Progress | None = None,
) -> InBatchResult:
    """`evaluate_in_batch` on the first long enough documents of `corpus`, kept on disk only while it runs."""
    settings = settings if settings is not None else InBatchSettings()
    check_leading_dimensions(settings.dimensions, where="dimensions", most=encoder.dimensions)
    with TemporaryDirectory(prefix="npmlm-held-out-") as folder:
        store = build_held_out_store(Path(folder) / "blocks", read_corpus(corpus), encoder, settings)
        return evaluate_in_batch(encoder, store, settings, progress=progress)


def evaluate_in_batch(
    encoder: Encoder, store: BlockStore, settings: InBatchSettings | None = None, *, progress: Progress | None = None
) -> InBatchResult:
    """Mask the first long articles of `store`, and count how often the best key is a positive.

    Article i is masked by the seed, epoch 0 and i; one with too little to mask counts no span. The encoder runs in
    its own number format. Raises ArtefactError if the store is of another tokenizer, CorpusError if too few articles
    are long enough or nothing could be masked, SettingError for lengths that the vectors do not have.
    """
    settings = settings if settings is not None else InBatchSettings()
    check_leading_dimensions(settings.dimensions, where="dimensions", most=encoder.dimensions)
    shorter = tuple(each for each in sorted(settings.dimensions) if each < encoder.dimensions)
    check_tokenizer(encoder, store)
    articles = long_articles(store, settings)
    scores: list[ArticleScore] = []
    was_training = encoder.model.training
    encoder.model.eval()
    try:
        for number, blocks in enumerate(articles):
            scores.append(_article_score(encoder, store, blocks, number, settings.mask_seed, shorter))
            if progress is not None:
                progress(number + 1, len(articles))
    finally:
        encoder.model.train(was_training)
    span_count = sum(score.spans for score in scores)
    if span_count == 0:
        raise CorpusError(
            "no phrase of the articles occurs in two blocks",
            expected="articles of running text",
            got="nothing that could be masked",
            where=str(store.folder),
            fix="choose other documents",
        )
    spans = np.array([score.spans for score in scores])  # i64 [A]
    whole = _means(encoder.dimensions, [score.whole for score in scores], spans, settings)
    return InBatchResult(
        encoder_name=encoder.name,
        articles=tuple(scores),
        span_count=span_count,
        start_top1=whole.start_top1,
        end_top1=whole.end_top1,
        top1=whole.top1,
        loss=whole.loss,
        chance=sum(score.chance for score in scores) / span_count,
        shorter=tuple(
            _means(length, [score.shorter[length] for score in scores], spans, settings) for length in shorter
        ),
        record=_record(encoder, store, settings),
    )


def _means(dimensions: int, sums: Sequence[Sums], spans: np.ndarray, settings: InBatchSettings) -> Means:
    """Over all spans, of which each of the A articles has `spans` i64 [A]."""
    span_count = int(spans.sum())
    correct = np.array([each.correct for each in sums])  # i64 [A]
    rng = np.random.default_rng(settings.seed)
    return Means(
        dimensions=dimensions,
        start_top1=sum(each.start_correct for each in sums) / span_count,
        end_top1=sum(each.end_correct for each in sums) / span_count,
        top1=bootstrap_interval(correct, rng, counts=2 * spans, resamples=settings.resamples),
        loss=sum(each.start_loss + each.end_loss for each in sums) / span_count,
    )


def _article_score(
    encoder: Encoder, store: BlockStore, blocks: range, number: int, mask_seed: int, shorter: tuple[int, ...]
) -> ArticleScore:
    document = int(store.block_documents[blocks[0]])
    name = str(document) if document < 0 or not store.document_count else store.document(document).id
    sequences = store.sequences(blocks)
    spans = build_masker(MaskingSettings()).select(sequences, mask_rng(mask_seed, 0, number))
    if spans is None:
        return ArticleScore(name, 0, 0, 0, 0.0, 0.0, 0.0, dict.fromkeys(shorter, Sums()))
    renderer = MaskPairRenderer(
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=() if store.special_tokens_in_blocks else tuple(encoder.prefix_ids),
        suffix_ids=() if store.special_tokens_in_blocks else tuple(encoder.suffix_ids),
    )
    batch = renderer.render(sequences, spans).to(encoder.device)
    objective = NonparametricMasked(
        NonparametricSettings(dimensions=list(shorter)),
        similarity_scale=encoder.similarity_scale,
        dimensions=encoder.dimensions,
    )
    with torch.inference_mode():
        encoded = EncodedBatch(encoder.token_vectors, batch)
        sums = {name: float(term.sum) for name, term in objective(encoded).items()}
        chance = _positive_shares(encoded, batch)
    return ArticleScore(
        document=name,
        spans=len(spans),
        **asdict(_sums(sums, "")),
        chance=chance,
        shorter={length: _sums(sums, f"_{length}") for length in shorter},
    )


def _sums(terms: Mapping[str, float], suffix: str) -> Sums:
    """The sums of the terms of one length, by the suffix of their names."""
    return Sums(
        start_correct=round(terms[f"start{suffix}_top1"]),
        end_correct=round(terms[f"end{suffix}_top1"]),
        start_loss=terms[f"start{suffix}"],
        end_loss=terms[f"end{suffix}"],
    )


def _positive_shares(encoded: EncodedBatch, batch: MaskedBatch) -> float:
    """Σ over spans of |S⁺| / |K|, the same for starts and ends: each occurrence has one of both."""
    keys, _ = gather_keys(encoded)
    following = following_tokens(keys, span_tokens=batch.span_token_ids.shape[1])  # i64 [m, T]
    foreign = keys.sequences != batch.span_sequences[:, None]  # bool [n, T]
    positive = positive_keys(batch.span_token_ids, following) & foreign  # bool [n, T]
    return float((positive.sum(1).double() / foreign.sum(1)).sum())


def _record(encoder: Encoder, store: BlockStore, settings: InBatchSettings) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies."""
    dtype = encoder.dtype_name
    return {
        "task": TASK,
        "settings": asdict(settings),
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "similarity_scale": encoder.similarity_scale,
            "dimensions": encoder.dimensions,
            "trained_dimensions": list(encoder.trained_dimensions),
            "dtype": dtype,
        },
        "corpus_digest": store.digest,
    }
