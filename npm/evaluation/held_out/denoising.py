"""Task `denoising`: how well an encoder-decoder writes back what each denoiser of UL2 took away, under each mode token.

The blocks of held-out articles are corrupted by all seven denoisers (Tay et al. 2022, arXiv 2205.05131, Table 1), the
same way for every model, and each corrupted text is read with every mode token that the model knows, and with none. So
one table tells what a model can do that was trained with other denoisers, and what a wrong mode token costs.

Shapes: A articles, B blocks of one article.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from rich.console import Console

from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.store import BlockStore
from npm.errors import check_range
from npm.evaluation.held_out.articles import HeldOutSettings, build_held_out_store, long_articles
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import terminal_table
from npm.evaluation.results import Progress, write_results
from npm.indexing.embed import check_tokenizer
from npm.masking.denoising import DenoiserSettings, MixtureMasker, Sentinels, check_sentinel_count, ul2_denoisers
from npm.masking.masker import mask_rng
from npm.masking.rendering import VIEW_NUMBERS
from npm.objectives.denoising import Denoising
from npm.objectives.encoded import EncodedDenoising, Passes

if TYPE_CHECKING:
    from npm.models.denoiser import Denoiser
    from npm.models.encoder import Encoder
    from npm.types import Sequences


def print_denoising(result: DenoisingResult, console: Console) -> None:
    """The report of task `denoising`."""

    title = "loss of denoisers (rows) under mode tokens (columns)"
    console.print(terminal_table(*denoising_rows(result), title=title))
    console.print("note: nats a target token; the star marks the mode token of the denoiser.", markup=False)


TASK = "denoising"
NO_MODE = "none"
"""Stands for inputs that begin with the text itself."""


@dataclass(kw_only=True, slots=True)
class DenoisingTaskSettings(HeldOutSettings):
    """Which articles are held out, and how they are corrupted; numbers are reported with the defaults."""

    articles: int = 64
    """Articles, the first of the corpus that are long enough."""
    least_tokens: int = 512
    """Shortest article, in tokens."""
    blocks_per_article: int = 4
    """Blocks from the beginning of each article; at least 2."""
    mask_seed: int = 0
    """Seed of the masks."""
    seed: int = 0
    """Seed of the bootstrap over articles."""
    resamples: int = 10_000
    """Of the bootstrap, for the 95 % confidence intervals."""

    def __post_init__(self) -> None:
        HeldOutSettings.__post_init__(self)  # super() does not find its class in a dataclass with slots
        check_range(self.resamples >= 1, "resamples", expected="at least 1", got=self.resamples)


@dataclass(frozen=True, slots=True)
class ArticleNll:
    """Sums over the targets of one article under one denoiser and one mode token."""

    document: str  # its id; its number where the store has no documents
    denoiser: str
    mode: str
    targets: int  # tokens, sentinels and ends included
    nll: float  # nats
    correct: int


@dataclass(frozen=True, slots=True)
class DenoisingCell:
    """Means over the targets of all articles; the interval is from a bootstrap over articles."""

    denoiser: str
    mode: str
    own_mode: bool  # whether UL2 announces this denoiser with this mode token
    targets: int
    nll: Interval  # nats a target token
    top1: float


@dataclass(frozen=True, slots=True)
class DenoisingResult:
    """The table of test denoisers × mode tokens."""

    model_name: str
    cells: tuple[DenoisingCell, ...]
    articles: tuple[ArticleNll, ...]
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {**self.record, "cells": [asdict(cell) for cell in self.cells]}

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line for each article and cell, and metrics.json; see `write_results`."""
        lines = (asdict(article) for article in self.articles)
        write_results(out, record=self.record, predictions=lines, metrics=self.metrics())


def evaluate_held_out_denoising(
    denoiser: Denoiser,
    corpus: CorpusSettings,
    settings: DenoisingTaskSettings | None = None,
    *,
    progress: Progress | None = None,
) -> DenoisingResult:
    """`evaluate_denoising` on the first long enough documents of `corpus`, kept on disk only while it runs."""
    settings = settings if settings is not None else DenoisingTaskSettings()
    with TemporaryDirectory(prefix="npmlm-held-out-") as folder:
        store = build_held_out_store(Path(folder) / "blocks", read_corpus(corpus), _tokenized(denoiser), settings)
        return evaluate_denoising(denoiser, store, settings, progress=progress)


def evaluate_denoising(
    denoiser: Denoiser,
    store: BlockStore,
    settings: DenoisingTaskSettings | None = None,
    *,
    progress: Progress | None = None,
) -> DenoisingResult:
    """NLL of every denoiser under every mode token, on the first long articles of `store`.

    The masks of an article depend on the seed, its number and the denoiser alone. The model runs in its own number
    format. Raises ArtefactError if the store is of another tokenizer, CorpusError if too few articles are long enough,
    EncoderError if the tokenizer has too few sentinels.
    """
    settings = settings if settings is not None else DenoisingTaskSettings()
    check_tokenizer(_tokenized(denoiser), store)
    tested = ul2_denoisers()
    sentinels = denoiser.sentinels()
    check_sentinel_count(
        len(sentinels.sentinel_ids), max(each.most_spans(settings.max_block_tokens) for each in tested)
    )
    modes = known_modes(denoiser, tested)
    articles = long_articles(store, settings)
    scores: list[ArticleNll] = []
    was_training = denoiser.model.training
    denoiser.model.eval()
    try:
        for number, blocks in enumerate(articles):
            document = int(store.block_documents[blocks[0]])
            name = str(document) if document < 0 or not store.document_count else store.document(document).id
            sequences = store.sequences(blocks)
            for place, corruption in enumerate(tested):
                rng = mask_rng(settings.mask_seed, place, number, VIEW_NUMBERS["denoising"])
                for mode, sums in _sums_by_mode(denoiser, sentinels, sequences, corruption, modes, rng).items():
                    scores.append(ArticleNll(name, corruption.name, mode, *sums))
            if progress is not None:
                progress(number + 1, len(articles))
    finally:
        denoiser.model.train(was_training)
    return DenoisingResult(
        model_name=denoiser.name,
        cells=tuple(_cell(scores, each, mode, settings) for each in tested for mode in modes),
        articles=tuple(scores),
        record=_record(denoiser, store, settings),
    )


def _tokenized(denoiser: Denoiser) -> Encoder:
    """Cutting and storing blocks asks of an encoder only what every stored model has: its tokenizer."""
    return cast("Encoder", denoiser)


def known_modes(denoiser: Denoiser, tested: Sequence[DenoiserSettings]) -> dict[str, int | None]:
    """The ids of those mode tokens of `tested` that the tokenizer has, behind `none`, which has no id."""
    vocabulary = denoiser.tokenizer.get_vocab()
    known = {each.mode: vocabulary[each.mode] for each in tested if each.mode in vocabulary}
    return {NO_MODE: None, **dict(sorted(known.items()))}


def _sums_by_mode(
    denoiser: Denoiser,
    sentinels: Sentinels,
    sequences: Sequences,
    corruption: DenoiserSettings,
    modes: dict[str, int | None],
    rng: np.random.Generator,
) -> dict[str, tuple[int, float, int]]:
    """Targets, their NLL and how many are right, by mode token; all read the same corrupted texts."""
    mask = MixtureMasker((replace(corruption, weight=1.0),)).select(sequences, rng)
    found = {}
    for mode, mode_id in modes.items():
        renderer = replace(sentinels, mode_ids=() if mode_id is None else (mode_id,))
        batch = renderer.render(sequences, mask.spans, mask.denoisers).to(denoiser.device)
        with torch.inference_mode():
            terms = Denoising()(EncodedDenoising(Passes(denoiser.model), batch))
        loss, right = terms["denoising"], terms["denoising_top1"]
        found[mode] = loss.count, float(loss.sum), int(right.sum)
    return found


def _cell(
    scores: Sequence[ArticleNll], corruption: DenoiserSettings, mode: str, settings: DenoisingTaskSettings
) -> DenoisingCell:
    own = [score for score in scores if (score.denoiser, score.mode) == (corruption.name, mode)]
    targets = np.array([score.targets for score in own])  # i64 [A]
    nll = np.array([score.nll for score in own])  # f64 [A]
    rng = np.random.default_rng(settings.seed)
    return DenoisingCell(
        denoiser=corruption.name,
        mode=mode,
        own_mode=mode == corruption.mode,
        targets=int(targets.sum()),
        nll=bootstrap_interval(nll, rng, counts=targets, resamples=settings.resamples),
        top1=sum(score.correct for score in own) / int(targets.sum()),
    )


def _record(denoiser: Denoiser, store: BlockStore, settings: DenoisingTaskSettings) -> dict[str, Any]:
    """What the numbers depend on, without where anything lies."""
    return {
        "task": TASK,
        "settings": asdict(settings),
        "model": {
            "name": denoiser.name,
            "fingerprint": denoiser.fingerprint,
            "dtype": denoiser.dtype_name,
        },
        "corpus_digest": store.digest,
    }


def denoising_rows(result: DenoisingResult) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: a row a denoiser, a column a mode token, NLL in nats a target token.

    The star marks the mode token that belongs to the denoiser.
    """
    modes = list(dict.fromkeys(cell.mode for cell in result.cells))
    rows: dict[str, list[str]] = {}
    for cell in result.cells:
        row = rows.setdefault(cell.denoiser, [cell.denoiser, str(cell.targets)])
        row.append(f"{cell.nll.mean:.3f}{'*' if cell.own_mode else ''}")
    return ["denoiser", "targets", *modes], list(rows.values())
