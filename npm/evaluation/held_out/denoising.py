"""Task `denoising`: how well an encoder-decoder writes back what each denoiser of UL2 took away, under each mode token.

The blocks of held-out articles are corrupted by all seven denoisers (Tay et al. 2022, arXiv 2205.05131, Table 1), the
same way for every model, and each corrupted text is read with every mode token that the model knows, and with none. So
one table shows what a model can do that was trained with other denoisers, and what a wrong mode token costs.

Shapes: A articles, B blocks of one article.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.types import Progress, silent
from npm.corpus.store import BlockStore
from npm.evaluation.held_out.articles import Article, HeldOutResult, held_out_record, measured_articles
from npm.evaluation.metrics import Interval, bootstrap_interval
from npm.evaluation.report import terminal_table
from npm.evaluation.results import CheckRecord, any_record
from npm.evaluation.settings import DenoisingTaskSettings, SampleSettings
from npm.masking.denoising import DenoiserSettings, MixtureMasker, Sentinels, check_sentinel_count, ul2_denoisers
from npm.masking.masker import mask_rng
from npm.masking.rendering import VIEW_NUMBERS
from npm.objectives.denoising import Denoising
from npm.objectives.encoded import EncodedDenoising, Passes

if TYPE_CHECKING:
    from rich.console import Console

    from npm.core.types import Sequences
    from npm.models.denoiser import Denoiser


TASK = "denoising"
NO_MODE = "none"
"""Stands for inputs that begin with the text itself."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingResult(HeldOutResult[ArticleNll]):
    """The table of test denoisers × mode tokens."""

    cells: tuple[DenoisingCell, ...]

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return {**self.record, "cells": [asdict(cell) for cell in self.cells]}

    def show(self, console: Console) -> None:
        """Print the table."""
        title = "loss of denoisers (rows) under mode tokens (columns)"
        console.print(terminal_table(*denoising_rows(self), title=title))
        console.print("note: nats a target token; the star marks the mode token of the denoiser.", markup=False)


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


def evaluate_denoising(
    denoiser: Denoiser,
    store: BlockStore,
    settings: DenoisingTaskSettings,
    sample: SampleSettings | None = None,
    *,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> DenoisingResult:
    """NLL of every denoiser under every mode token, on the first long articles of `store`.

    The masks of an article depend on the seed, its number and the denoiser alone. The model runs in its own number
    format. Raises ArtifactError if the store is of another tokenizer, CorpusError if too few articles are long enough,
    EncoderError if the tokenizer has too few sentinels.
    """
    sample = sample if sample is not None else SampleSettings()
    tested = ul2_denoisers()
    sentinels = denoiser.sentinels()
    check_sentinel_count(
        len(sentinels.sentinel_ids), max(each.most_spans(settings.max_block_tokens) for each in tested)
    )
    modes = known_modes(denoiser, tested)

    def scores_of(article: Article) -> list[ArticleNll]:
        scores: list[ArticleNll] = []
        for place, corruption in enumerate(tested):
            rng = mask_rng(sample.seed, place, article.number, VIEW_NUMBERS["denoising"])
            for mode, sums in _sums_by_mode(denoiser, sentinels, article.sequences, corruption, modes, rng).items():
                scores.append(ArticleNll(article.document, corruption.name, mode, *sums))
        return scores

    record = held_out_record(
        TASK,
        asdict(settings) | {"mask_seed": sample.seed, "seed": sample.seed, "resamples": sample.resamples},
        store,
        denoiser,
    )
    record["model"] = record.pop("encoder")
    check_record(record)
    scores = [
        each for own in measured_articles(scores_of, denoiser, store, settings, progress=progress) for each in own
    ]
    return DenoisingResult(
        model_name=denoiser.name,
        cells=tuple(_cell(scores, each, mode, sample) for each in tested for mode in modes),
        articles=tuple(scores),
        record=record,
    )


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
    scores: Sequence[ArticleNll], corruption: DenoiserSettings, mode: str, sample: SampleSettings
) -> DenoisingCell:
    own = [score for score in scores if (score.denoiser, score.mode) == (corruption.name, mode)]
    targets = np.array([score.targets for score in own])  # i64 [A]
    nll = np.array([score.nll for score in own])  # f64 [A]
    rng = np.random.default_rng(sample.seed)
    return DenoisingCell(
        denoiser=corruption.name,
        mode=mode,
        own_mode=mode == corruption.mode,
        targets=int(targets.sum()),
        nll=bootstrap_interval(nll, rng, counts=targets, resamples=sample.resamples),
        top1=sum(score.correct for score in own) / int(targets.sum()),
    )
