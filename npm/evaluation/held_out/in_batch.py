"""Task `in_batch`: is the best key of a masked span one of its other occurrences, on articles never trained on?

The first blocks of an article are masked as in training; the keys of a span are all tokens of the article's other
blocks, and it is right if its best key is a positive of the training loss (Min et al. 2022, arXiv 2212.01349, §3.2).

The same can be asked of the leading numbers of all vectors alone, as an index with `dimensions` stores them.

Shapes: n spans, T keys, A articles, m tokens of the longest span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import CorpusError
from npm.core.types import Progress, silent
from npm.corpus.store import BlockStore
from npm.evaluation.held_out.articles import (
    Article,
    HeldOutResult,
    check_block_length,
    held_out_record,
    measured_articles,
)
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import Row, percent, terminal_table
from npm.evaluation.results import CheckRecord, any_record
from npm.evaluation.settings import InBatchSettings, SampleSettings
from npm.masking.masker import Masker, MaskingSettings, MaskingUnit, build_masker, mask_rng
from npm.masking.rendering import MaskRenderer
from npm.models.settings import check_leading_dimensions
from npm.objectives.encoded import EncodedBatch
from npm.objectives.nonparametric import NonparametricMasked, following_tokens, gather_keys, positive_keys
from npm.objectives.settings import NonparametricSettings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.core.types import MaskedBatch
    from npm.models.encoder import Encoder


TASK = "in_batch"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InBatchResult(HeldOutResult[ArticleScore]):
    """Means over all spans; `top1` is the mean of both sides, its interval from a bootstrap over articles."""

    span_count: int
    start_top1: float
    end_top1: float
    top1: Interval
    loss: float  # start and end added, as in training
    chance: float  # what a random key would score
    shorter: tuple[Means, ...]  # by shorter vectors, the shortest first

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        means = {name: getattr(self, name) for name in ("start_top1", "end_top1", "loss", "chance", "span_count")}
        shorter = {str(each.dimensions): asdict(each) for each in self.shorter}
        counts = {"article_count": len(self.articles)}
        return {**self.record, **means, "top1": asdict(self.top1), **counts, "shorter": shorter}

    def show(self, console: Console) -> None:
        """Print the table."""
        console.print(terminal_table(*in_batch_rows(self), title="in-batch retrieval on held-out articles"))


def in_batch_rows(result: InBatchResult) -> tuple[Row, list[Row]]:
    """Header and rows of the in-batch retrieval table: whole vectors, shorter ones, and what a random key scores."""
    header = ["", "articles", "spans", "top-1, % [95 %]", "start, %", "end, %", "loss"]
    chance = f"{100 * result.chance:.2f}"
    counts = [str(len(result.articles)), str(result.span_count)]
    named: list[tuple[str, InBatchResult | Means]] = [(result.model_name, result)]
    named += [(f"its first {each.dimensions} dimensions", each) for each in reversed(result.shorter)]
    rows = [
        [
            name,
            *counts,
            percent(each.top1),
            f"{100 * each.start_top1:.1f}",
            f"{100 * each.end_top1:.1f}",
            f"{each.loss:.2f}",
        ]
        for name, each in named
    ]
    return header, [*rows, ["a random key", *counts, chance, chance, chance, ""]]


def evaluate_in_batch(
    encoder: Encoder,
    store: BlockStore,
    settings: InBatchSettings,
    sample: SampleSettings | None = None,
    *,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> InBatchResult:
    """Mask the first long articles of `store`, and count how often the best key is a positive.

    Article i is masked by the seed, epoch 0 and i; one with too little to mask counts no span. For an encoder that asks
    with one mask single tokens are masked, and the one query counts for both sides, its loss once. The encoder runs in
    its own number format. Raises ArtifactError if the store is of another tokenizer, CorpusError if too few articles
    are long enough or nothing could be masked, SettingError for lengths that the vectors do not have and for blocks
    that the encoder does not take.
    """
    sample = sample if sample is not None else SampleSettings()
    check_leading_dimensions(settings.dimensions, where="dimensions", most=encoder.dimensions)
    shorter = tuple(each for each in sorted(settings.dimensions) if each < encoder.dimensions)
    frames = not store.special_tokens_in_blocks
    renderer = MaskRenderer(
        masks_per_span=encoder.query_masks,
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids) if frames else (),
        suffix_ids=tuple(encoder.suffix_ids) if frames else (),
        whole_words=settings.whole_words and encoder.query_masks > 1,
    )
    unit = MaskingUnit.phrase_words if settings.whole_words else MaskingUnit.phrase
    masker = build_masker(MaskingSettings(unit=MaskingUnit.token if encoder.query_masks == 1 else unit))

    def score(article: Article) -> ArticleScore:
        return _article_score(encoder, masker, renderer, article, sample.seed, shorter, settings.max_block_tokens)

    record = _record(encoder, store, settings, sample)
    check_record(record)
    scores = measured_articles(score, encoder, store, settings, progress=progress)
    span_count = sum(score.spans for score in scores)
    if span_count == 0:
        raise CorpusError("no phrase of the articles occurs in two blocks: choose other documents")
    spans = np.array([score.spans for score in scores])  # i64 [A]
    whole = _means(encoder.dimensions, [score.whole for score in scores], spans, sample)
    return InBatchResult(
        model_name=encoder.name,
        articles=tuple(scores),
        span_count=span_count,
        start_top1=whole.start_top1,
        end_top1=whole.end_top1,
        top1=whole.top1,
        loss=whole.loss,
        chance=sum(score.chance for score in scores) / span_count,
        shorter=tuple(_means(length, [score.shorter[length] for score in scores], spans, sample) for length in shorter),
        record=record,
    )


def _record(encoder: Encoder, store: BlockStore, settings: InBatchSettings, sample: SampleSettings) -> dict[str, Any]:
    return held_out_record(
        TASK,
        asdict(settings) | {"mask_seed": sample.seed, "seed": sample.seed, "resamples": sample.resamples},
        store,
        encoder,
        similarity_scale=encoder.similarity_scale,
        dimensions=encoder.dimensions,
        trained_dimensions=list(encoder.trained_dimensions),
    )


def _means(dimensions: int, sums: Sequence[Sums], spans: np.ndarray, sample: SampleSettings) -> Means:
    """Over all spans, of which each of the A articles has `spans` i64 [A]."""
    span_count = int(spans.sum())
    correct = np.array([each.correct for each in sums])  # i64 [A]
    rng = np.random.default_rng(sample.seed)
    return Means(
        dimensions=dimensions,
        start_top1=sum(each.start_correct for each in sums) / span_count,
        end_top1=sum(each.end_correct for each in sums) / span_count,
        top1=bootstrap_interval(correct, rng, counts=2 * spans, resamples=sample.resamples),
        loss=sum(each.start_loss + each.end_loss for each in sums) / span_count,
    )


def _article_score(
    encoder: Encoder,
    masker: Masker,
    renderer: MaskRenderer,
    article: Article,
    mask_seed: int,
    shorter: tuple[int, ...],
    block_tokens: int,
) -> ArticleScore:
    sequences = article.sequences
    spans = masker.select(sequences, mask_rng(mask_seed, 0, article.number))
    if spans is None:
        return ArticleScore(article.document, 0, 0, 0, 0.0, 0.0, 0.0, dict.fromkeys(shorter, Sums()))
    batch = renderer.render(sequences, spans).to(encoder.device)
    # a span of one token has become two masks
    check_block_length(encoder, batch.query_input_ids.shape[1], block_tokens=block_tokens)
    objective = NonparametricMasked(
        NonparametricSettings(dimensions=list(shorter), end_queries=encoder.query_masks > 1),
        similarity_scale=encoder.similarity_scale,
        dimensions=encoder.dimensions,
    )
    with torch.inference_mode():
        encoded = EncodedBatch(encoder.token_vectors, batch)
        sums = {name: float(term.sum) for name, term in objective(encoded).items()}
        chance = _positive_shares(encoded, batch)
    return ArticleScore(
        document=article.document,
        spans=len(spans),
        **asdict(_sums(sums, "")),
        chance=chance,
        shorter={length: _sums(sums, f"_{length}") for length in shorter},
    )


def _sums(terms: Mapping[str, float], suffix: str) -> Sums:
    """The sums of the terms of one length, by the suffix of their names; a single query is right on both sides."""
    return Sums(
        start_correct=round(terms[f"start{suffix}_top1"]),
        end_correct=round(terms.get(f"end{suffix}_top1", terms[f"start{suffix}_top1"])),
        start_loss=terms[f"start{suffix}"],
        end_loss=terms.get(f"end{suffix}", 0.0),
    )


def _positive_shares(encoded: EncodedBatch, batch: MaskedBatch) -> float:
    """Σ over spans of |S⁺| / |K|, the same for starts and ends: each occurrence has one of both."""
    keys, _ = gather_keys(encoded)
    following = following_tokens(keys, span_tokens=batch.span_token_ids.shape[1])  # i64 [m, T]
    foreign = keys.sequences != batch.span_sequences[:, None]  # bool [n, T]
    positive = positive_keys(batch.span_token_ids, following) & foreign  # bool [n, T]
    return float((positive.sum(1).double() / foreign.sum(1)).sum())
