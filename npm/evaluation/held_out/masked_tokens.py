"""Task `masked_tokens`: how well does a masked language model predict masked tokens of articles never trained on?

Every model is asked the same: the same share of the tokens masked, evenly, each by the mask token, whatever rate and
strategy it was trained with, because the loss at the training rate says nothing across rates. Single tokens are masked,
or whole words: where the rest of a word is to be seen, a model that was trained on whole words guesses wrong, because
it has learned that what is masked is a word of its own. Perplexity exp(NLL) compares encoders of one tokenizer only.

Shapes: A articles.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import CorpusError
from npm.core.types import Progress, silent
from npm.corpus.store import BlockStore
from npm.evaluation.held_out.articles import Article, HeldOutResult, held_out_record, measured_articles
from npm.evaluation.metrics import ratio_standard_error
from npm.evaluation.report import Row, terminal_table
from npm.evaluation.results import CheckRecord, any_record
from npm.evaluation.settings import MaskedTokensSettings, SampleSettings
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, build_in_place_views
from npm.masking.masker import mask_rng
from npm.masking.rendering import TOKENS, VIEW_NUMBERS
from npm.objectives.encoded import EncodedBatch
from npm.objectives.masked import MaskedTokens

if TYPE_CHECKING:
    from rich.console import Console

    from npm.masking.corruption import InPlaceViews
    from npm.models.encoder import Encoder
    from npm.models.masked_lm import MaskedHead


TASK = "masked_tokens"
MOST_LOSS = 700.0


@dataclass(frozen=True, slots=True)
class ArticleSums:
    """Sums over the masked tokens of one article."""

    document: str  # its id; its number where the store has no documents
    predictions: int
    correct: int
    loss: float  # natural logarithms


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokensResult(HeldOutResult[ArticleSums]):
    """Means over all predictions; their standard errors take articles as clusters."""

    prediction_count: int
    loss: float  # mean negative log-likelihood, natural logarithm
    loss_standard_error: float | None  # None of a single article
    accuracy: float
    accuracy_standard_error: float | None

    @property
    def perplexity(self) -> float | None:
        """exp of the mean loss; None where that is more than a float holds."""
        return math.exp(self.loss) if self.loss < MOST_LOSS else None

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        names = ("prediction_count", "loss", "loss_standard_error", "accuracy", "accuracy_standard_error")
        means = {name: getattr(self, name) for name in names}
        return {**self.record, **means, "perplexity": self.perplexity, "article_count": len(self.articles)}

    def show(self, console: Console) -> None:
        """Print the table."""
        asked = self.record["settings"]
        whole = "masked tokens" if asked["masked_unit"] == "token" else "whole masked words"
        asked_of = "all held-out documents" if "every_document" in asked else "held-out articles"
        title = f"{whole} of {asked_of}, {100 * asked['masked_fraction']:g} % of the tokens masked"
        console.print(terminal_table(*masked_tokens_rows(self), title=title))
        console.print("note: ± is the standard error over articles.", markup=False)
        console.print("note: perplexities compare encoders of the same tokenizer only.", markup=False)


def masked_tokens_rows(result: MaskedTokensResult) -> tuple[Row, list[Row]]:
    """Header and rows of the table of one masked language model."""

    def error(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f" ± {scale * value:.{digits}f}"

    header = ["", "articles", "predictions", "accuracy, %", "loss, nats", "perplexity"]
    row = [
        result.model_name,
        str(len(result.articles)),
        str(result.prediction_count),
        f"{100 * result.accuracy:.2f}{error(result.accuracy_standard_error, 100, 2)}",
        f"{result.loss:.3f}{error(result.loss_standard_error, 1, 3)}",
        "∞" if result.perplexity is None else f"{result.perplexity:.4g}",
    ]
    return header, [row]


def evaluate_masked_tokens(
    encoder: Encoder,
    head: MaskedHead,
    store: BlockStore,
    settings: MaskedTokensSettings,
    sample: SampleSettings | None = None,
    *,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> MaskedTokensResult:
    """Mask the first long articles of `store` and predict what stood there; the encoder in its own number format.

    Article i is masked by the seed, epoch 0 and i. Raises ArtifactError if the store is of another tokenizer,
    SettingError if its blocks are too long, CorpusError if too few articles are long enough or nothing was masked.
    """
    sample = sample if sample is not None else SampleSettings()
    views = _views(encoder, store, settings)
    objective = MaskedTokens(head)

    def sums_of(article: Article) -> ArticleSums:
        return _article_sums(encoder, objective, views, article, sample.seed)

    recorded = asdict(settings) | {"masked_unit": settings.unit.value, "mask_seed": sample.seed}
    del recorded["unit"]
    for name in ("articles", "least_tokens", "blocks_per_article") if settings.every_document else ("every_document",):
        del recorded[name]  # what is not read
    record = held_out_record(TASK, recorded, store, encoder, tokenizer_fingerprint=encoder.tokenizer_fingerprint)
    check_record(record)
    sums = measured_articles(sums_of, encoder, store, settings, heads=[head], progress=progress)
    counts = np.array([each.predictions for each in sums], dtype=np.float64)  # f64 [A]
    if not counts.sum():
        raise CorpusError(
            f"no token of the articles was masked: raise masked_tokens.masked_fraction={settings.masked_fraction}"
        )
    losses = np.array([each.loss for each in sums])  # f64 [A]
    correct = np.array([each.correct for each in sums], dtype=np.float64)  # f64 [A]
    return MaskedTokensResult(
        model_name=encoder.name,
        articles=tuple(sums),
        prediction_count=int(counts.sum()),
        loss=float(losses.sum() / counts.sum()),
        loss_standard_error=ratio_standard_error(losses, counts),
        accuracy=float(correct.sum() / counts.sum()),
        accuracy_standard_error=ratio_standard_error(correct, counts),
        record=record,
    )


def _views(encoder: Encoder, store: BlockStore, settings: MaskedTokensSettings) -> InPlaceViews:
    framed = store.special_tokens_in_blocks
    return build_in_place_views(
        CorruptionSettings(unit=CorruptionUnit(settings.unit.value), masked_fraction=settings.masked_fraction),
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        ordinary_ids=np.zeros(0, dtype=np.int64),  # nothing is replaced at random
        prefix_ids=() if framed else tuple(encoder.prefix_ids),
        suffix_ids=() if framed else tuple(encoder.suffix_ids),
    )


@torch.inference_mode()
def _article_sums(
    encoder: Encoder, objective: MaskedTokens, views: InPlaceViews, article: Article, mask_seed: int
) -> ArticleSums:
    rng = mask_rng(mask_seed, 0, article.number, VIEW_NUMBERS[TOKENS])
    batch = views.view([article.sequences], [rng]).to(encoder.device)
    if not len(batch.span_sequences):
        return ArticleSums(article.document, 0, 0, 0.0)
    terms = objective(EncodedBatch(encoder.token_vectors, batch, with_clean_copies=False))
    return ArticleSums(
        document=article.document,
        predictions=terms["masked"].count,
        correct=int(terms["masked_top1"].sum),
        loss=float(terms["masked"].sum),
    )
