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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.store import BlockStore
from npm.errors import CorpusError, EncoderError, check_range
from npm.evaluation.held_out.articles import HeldOutSettings, build_held_out_store, long_articles
from npm.evaluation.metrics import ratio_standard_error
from npm.evaluation.report import Row, terminal_table
from npm.evaluation.results import Progress, write_results
from npm.evaluation.settings import MaskedUnit
from npm.indexing.embed import check_tokenizer
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, build_in_place_views
from npm.masking.masker import mask_rng
from npm.masking.rendering import TOKENS, VIEW_NUMBERS
from npm.objectives.encoded import EncodedBatch
from npm.objectives.masked import MaskedTokens

if TYPE_CHECKING:
    from npm.masking.corruption import InPlaceViews
    from npm.models.encoder import Encoder
    from npm.models.masked_lm import MaskedHead


def masked_tokens_rows(result: MaskedTokensResult) -> tuple[Row, list[Row]]:
    """Header and rows of the table of one masked language model."""

    def error(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f" ± {scale * value:.{digits}f}"

    header = ["", "articles", "predictions", "accuracy, %", "loss, nats", "perplexity"]
    row = [
        result.encoder_name,
        str(len(result.articles)),
        str(result.prediction_count),
        f"{100 * result.accuracy:.2f}{error(result.accuracy_standard_error, 100, 2)}",
        f"{result.loss:.3f}{error(result.loss_standard_error, 1, 3)}",
        "∞" if result.perplexity is None else f"{result.perplexity:.4g}",
    ]
    return header, [row]


def print_masked_tokens(result: MaskedTokensResult, console: Console) -> None:
    """The report of task `masked_tokens`."""
    asked = result.record["settings"]
    whole = "masked tokens" if asked["masked_unit"] == "token" else "whole masked words"
    title = f"{whole} of held-out articles, {100 * asked['masked_fraction']:g} % of the tokens masked"
    console.print(terminal_table(*masked_tokens_rows(result), title=title))
    console.print("note: ± is the standard error over articles.", markup=False)
    console.print("note: perplexities compare encoders of the same tokenizer only.", markup=False)


TASK = "masked_tokens"
MOST_LOSS = 700.0


@dataclass(kw_only=True, slots=True)
class MaskedTokensSettings(HeldOutSettings):
    """Which articles are held out, and how they are masked; numbers are reported with the defaults."""

    least_tokens: int = 1024
    """Shortest article, in tokens."""
    blocks_per_article: int = 8
    """Blocks from the beginning of each article; at least 2."""
    masked_fraction: float = 0.15
    """Share of each block's tokens that is masked, and predicted."""
    masked_unit: MaskedUnit = MaskedUnit.token
    """What is masked as a whole, `token` or `word`."""
    mask_seed: int = 0
    """Seed of the masks."""

    def __post_init__(self) -> None:
        HeldOutSettings.__post_init__(self)  # super() does not find its class in a dataclass with slots
        right = 0 < self.masked_fraction < 1
        check_range(right, "masked_fraction", expected="a share above 0 and below 1", got=self.masked_fraction)


@dataclass(frozen=True, slots=True)
class ArticleSums:
    """Sums over the masked tokens of one article."""

    document: str  # its id; its number where the store has no documents
    predictions: int
    correct: int
    loss: float  # natural logarithms


@dataclass(frozen=True, slots=True)
class MaskedTokensResult:
    """Means over all predictions; their standard errors take articles as clusters."""

    encoder_name: str
    articles: tuple[ArticleSums, ...]
    prediction_count: int
    loss: float  # mean negative log-likelihood, natural logarithm
    loss_standard_error: float | None  # None of a single article
    accuracy: float
    accuracy_standard_error: float | None
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    @property
    def perplexity(self) -> float | None:
        """exp of the mean loss; None where that is more than a float holds."""
        return math.exp(self.loss) if self.loss < MOST_LOSS else None

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        names = ("prediction_count", "loss", "loss_standard_error", "accuracy", "accuracy_standard_error")
        means = {name: getattr(self, name) for name in names}
        return {**self.record, **means, "perplexity": self.perplexity, "article_count": len(self.articles)}

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line an article, and metrics.json to the folder `out`; see `write_results`."""
        lines = (asdict(article) for article in self.articles)
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())


def evaluate_held_out_masks(
    encoder: Encoder,
    head: MaskedHead,
    corpus: CorpusSettings,
    settings: MaskedTokensSettings | None = None,
    *,
    progress: Progress | None = None,
) -> MaskedTokensResult:
    """`evaluate_masked_tokens` on the first long enough documents of `corpus`, on disk only while it runs."""
    settings = settings if settings is not None else MaskedTokensSettings()
    with TemporaryDirectory(prefix="npmlm-held-out-") as folder:
        store = build_held_out_store(Path(folder) / "blocks", read_corpus(corpus), encoder, settings)
        try:
            return evaluate_masked_tokens(encoder, head, store, settings, progress=progress)
        except CorpusError as error:  # names the folder, which is gone when this is read
            error.where = "corpus.files"
            raise


def evaluate_masked_tokens(
    encoder: Encoder,
    head: MaskedHead,
    store: BlockStore,
    settings: MaskedTokensSettings | None = None,
    *,
    progress: Progress | None = None,
) -> MaskedTokensResult:
    """Mask the first long articles of `store` and predict what stood there; the encoder in its own number format.

    Article i is masked by the seed, epoch 0 and i. Raises ArtefactError if the store is of another tokenizer,
    EncoderError if its blocks are too long, CorpusError if too few articles are long enough or nothing was masked.
    """
    settings = settings if settings is not None else MaskedTokensSettings()
    check_tokenizer(encoder, store)
    if settings.max_block_tokens > encoder.max_input_tokens:
        raise EncoderError(
            "the encoder does not take the blocks that all are asked",
            expected=f"inputs of {settings.max_block_tokens} tokens",
            got=f"{encoder.max_input_tokens} at most",
            where=encoder.name,
            fix="choose an encoder with more positions",
        )
    articles = long_articles(store, settings)
    views = _views(encoder, store, settings)
    objective = MaskedTokens(head)
    sums: list[ArticleSums] = []
    modules: tuple[nn.Module, ...] = (encoder.model, head)
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        for number, blocks in enumerate(articles):
            sums.append(_article_sums(encoder, objective, store, views, blocks, number, settings.mask_seed))
            if progress is not None:
                progress(number + 1, len(articles))
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.train(training)
    counts = np.array([each.predictions for each in sums], dtype=np.float64)  # f64 [A]
    if not counts.sum():
        raise CorpusError(
            "no token of the articles was masked",
            expected="blocks of more tokens, or a higher masked_fraction",
            got=f"masked_fraction={settings.masked_fraction} of blocks of {settings.max_block_tokens} tokens",
            where=str(store.folder),
            fix="raise masked_fraction=",
        )
    losses = np.array([each.loss for each in sums])  # f64 [A]
    correct = np.array([each.correct for each in sums], dtype=np.float64)  # f64 [A]
    return MaskedTokensResult(
        encoder_name=encoder.name,
        articles=tuple(sums),
        prediction_count=int(counts.sum()),
        loss=float(losses.sum() / counts.sum()),
        loss_standard_error=ratio_standard_error(losses, counts),
        accuracy=float(correct.sum() / counts.sum()),
        accuracy_standard_error=ratio_standard_error(correct, counts),
        record=_record(encoder, store, settings),
    )


def _views(encoder: Encoder, store: BlockStore, settings: MaskedTokensSettings) -> InPlaceViews:
    framed = store.special_tokens_in_blocks
    return build_in_place_views(
        CorruptionSettings(unit=CorruptionUnit(settings.masked_unit.value), masked_fraction=settings.masked_fraction),
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        ordinary_ids=np.zeros(0, dtype=np.int64),  # nothing is replaced at random
        prefix_ids=() if framed else tuple(encoder.prefix_ids),
        suffix_ids=() if framed else tuple(encoder.suffix_ids),
    )


@torch.inference_mode()
def _article_sums(
    encoder: Encoder,
    objective: MaskedTokens,
    store: BlockStore,
    views: InPlaceViews,
    blocks: range,
    number: int,
    mask_seed: int,
) -> ArticleSums:
    document = int(store.block_documents[blocks[0]])
    name = str(document) if document < 0 or not store.document_count else store.document(document).id
    rng = mask_rng(mask_seed, 0, number, VIEW_NUMBERS[TOKENS])
    batch = views.view([store.sequences(blocks)], [rng]).to(encoder.device)
    if not len(batch.span_sequences):
        return ArticleSums(name, 0, 0, 0.0)
    terms = objective(EncodedBatch(encoder.token_vectors, batch, with_clean_copies=False))
    return ArticleSums(
        document=name,
        predictions=terms["masked"].count,
        correct=int(terms["masked_top1"].sum),
        loss=float(terms["masked"].sum),
    )


def _record(encoder: Encoder, store: BlockStore, settings: MaskedTokensSettings) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies."""
    return {
        "task": TASK,
        "settings": asdict(settings) | {"masked_unit": settings.masked_unit.value},
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
            "dtype": encoder.dtype_name,
        },
        "corpus_digest": store.digest,
    }
