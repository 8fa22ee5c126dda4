"""Tasks on held-out articles, each measured one article at a time.

in_batch       spans are masked as in training; the keys of a span are all tokens of the article's other blocks, and it
               is right if its best key is a positive of the training loss (Min et al. 2022, arXiv 2212.01349, §3.2)
masked_tokens  every model predicts the same fraction of tokens, or of complete words, masked evenly: losses at the
               different rates of training cannot be compared
denoising      blocks are corrupted by all seven denoisers of UL2 (Tay et al. 2022, arXiv 2205.05131, Table 1) and read
               with every mode token that the model knows, and with none: what a wrong mode token costs

Shapes: A articles, n spans, T keys, m tokens of the longest span.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from npm.core.display import Table
from npm.core.errors import CorpusError, SettingError, exclusive
from npm.core.files import digest_of
from npm.core.settings import as_json
from npm.core.types import Document, Progress, Sequences, silent
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import read_corpus
from npm.corpus.text import is_title
from npm.evaluation.metrics import bootstrap_interval, percent, ratio_standard_error
from npm.evaluation.results import Result, model_facts, refuse_other_results
from npm.evaluation.settings import EvaluationSettings, HeldOutSettings, SampleSettings
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, build_in_place_views
from npm.masking.denoising import UL2, MixtureMasker, check_sentinel_count
from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker, mask_rng
from npm.masking.rendering import TOKENS, VIEW_NUMBERS, MaskRenderer
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, load_masked_lm
from npm.models.stored import StoredModel, evaluating
from npm.objectives.denoising import Denoising
from npm.objectives.encoded import EncodedBatch, EncodedDenoising, Passes
from npm.objectives.masked import MaskedTokens
from npm.objectives.nonparametric import NonparametricMasked, following_tokens, gather_keys, positive_keys
from npm.objectives.settings import NonparametricSettings

USUAL = {"in_batch": (200, 2048, 16), "masked_tokens": (200, 1024, 8), "denoising": (64, 512, 4)}
"""Default articles of each task, tokens of the shortest, and blocks of each."""
MIN_FILLED_FRACTION = 0.97  # full blocks, as in training, so that articles are comparable
MAX_LOSS = 700.0  # beyond, exp is no float
NO_MODE = "none"  # mode of inputs that begin with the text itself
Line = dict[str, Any]  # sums over one article, as in predictions.jsonl


@dataclass(frozen=True, slots=True)
class Article:
    """The beginning of one held-out document."""

    number: int  # among the articles, from 0
    document: str  # its id
    sequences: Sequences  # its blocks


@dataclass(frozen=True, slots=True)
class HeldOutArticles:
    """Articles that a model is measured on, one at a time."""

    articles: Sequence[Article]
    settings: HeldOutSettings
    sample: SampleSettings = field(default_factory=SampleSettings)
    out: Path | None = None  # folder whose results are not replaced
    progress: Progress = silent

    def measured(
        self,
        task: str,
        model: StoredModel,
        measure: Callable[[Article], Iterable[Line]],
        *,
        asked: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        heads: Sequence[nn.Module] = (),
    ) -> tuple[dict[str, Any], list[Line]]:
        """The record, and the lines of all articles, with `model` and `heads` in evaluation mode.

        `asked`, by default all settings, and `facts` of the model go into the record, which is checked before the work
        begins.
        """
        digest = sha256()
        for each in self.articles:
            digest.update(f"{each.document}\0{each.sequences.offsets.tolist()}".encode())
            digest.update(each.sequences.token_ids.tobytes() + each.sequences.flags.tobytes())
        seed, resamples = self.sample.seed, self.sample.resamples
        usual = asdict(self.settings) | {"mask_seed": seed, "seed": seed, "resamples": resamples}
        record = {
            "task": task,
            "settings": as_json(usual if asked is None else asked),
            "encoder": {**model_facts(model), "dtype": model.dtype_name, **(facts or {})},
            "corpus_digest": digest.hexdigest(),
        }
        refuse_other_results(self.out, record)
        lines: list[Line] = []
        with torch.inference_mode(), evaluating(model.model, *heads):
            for done, article in enumerate(self.articles, start=1):
                lines += ({"document": article.document, **line} for line in measure(article))
                self.progress("articles", done, len(self.articles))
        return record, lines


def evaluate(settings: EvaluationSettings, out: Path | None, progress: Progress) -> Result:
    """Load the model of a task on held-out text and measure it on the beginnings of articles."""
    (task,), chosen, name = settings.task, settings.held_out, settings.encoder
    if not any(settings.corpus.files):
        raise SettingError("corpus.files is required: held-out documents, such as the last file of the corpus")
    if settings.limit and chosen.every_document and task == "masked_tokens":
        raise exclusive("limit", "held_out.every_document")
    if task != "in_batch" and not name:
        is_masked = task == "masked_tokens"
        kind, made_by = ("a masked language model", "mlm_uniform") if is_masked else ("an encoder-decoder", "ul2_small")
        raise SettingError(f"encoder is required: {kind}, such as npmlm train experiment={made_by} makes")
    device, dtype = settings.device, settings.precision

    def held_out(model: StoredModel) -> HeldOutArticles:
        articles = held_out_articles(read_corpus(settings.corpus), model, chosen, limit=settings.limit, task=task)
        return HeldOutArticles(articles, chosen, settings, out, progress)

    if task == "in_batch":
        encoder = Encoder.load(name, device=device, dtype=dtype)
        return evaluate_in_batch(encoder, held_out(encoder))
    if task == "masked_tokens":
        encoder, head = load_masked_lm(name, device=device, dtype=dtype)
        return evaluate_masked_tokens(encoder, head, held_out(encoder))
    denoiser = Denoiser.load(name, mode_tokens=(), device=device, dtype=dtype)
    return evaluate_denoising(denoiser, held_out(denoiser))


def held_out_articles(
    documents: Iterable[Document], model: StoredModel, settings: HeldOutSettings, *, limit: int | None = None, task: str
) -> list[Article]:
    """The first blocks of the first `limit` long enough documents, or all blocks of all; others are not read.

    Raises CorpusError if there are too few, SettingError for blocks that leave no space for text, or that the model
    does not accept.
    """
    _check_length(model, settings.max_block_tokens)
    every = task == "masked_tokens" and settings.every_document
    given = (limit, settings.least_tokens, settings.blocks_per_article)
    wanted, least_tokens, count = (own or usual for own, usual in zip(given, USUAL[task], strict=True))
    # One block more than is used, so that the last one ends where it would end in the entire document.
    enough_tokens = max(least_tokens, (count + 1) * settings.max_block_tokens)
    blocks = BlockSettings(
        max_block_tokens=settings.max_block_tokens,
        max_document_tokens=None if every else enough_tokens,
        min_filled_fraction=MIN_FILLED_FRACTION,
        title_tokens=model.title_tokens,
    )
    try:
        packer = BlockPacker(model.tokenizer, blocks)
    except SettingError as error:  # names settings of training and building
        raise SettingError(
            f"held_out.max_block_tokens={settings.max_block_tokens} has too little room for text"
        ) from error
    articles: list[Article] = []
    for document in documents:
        packed = packer.pack(document)
        text_tokens = sum(int((~is_title(block.flags)).sum()) for block in packed)  # titles make no article longer
        if not packed or not (every or (text_tokens >= least_tokens and len(packed) >= count)):
            continue
        own = packed if every else packed[:count]
        offsets = np.cumsum([0, *(len(block.token_ids) for block in own)])  # i64 [blocks + 1]
        ids, flags = (np.concatenate([getattr(each, name) for each in own]) for name in ("token_ids", "flags"))
        articles.append(Article(len(articles), document.id, Sequences(ids.astype(np.int32), flags, offsets)))
        if len(articles) == wanted and not every:
            return articles
    if every and articles:
        return articles
    raise CorpusError(
        "corpus.files has no text"
        if every
        else f"too few long articles: {len(articles)} of {wanted} with at least {least_tokens} tokens "
        f"in {count} blocks; give more text, or a smaller limit"
    )


def _check_length(model: StoredModel, token_count: int, *, block_tokens: int | None = None) -> None:
    """Raise SettingError unless `model` accepts `token_count` tokens: a block, or `block_tokens` with their masks."""
    excess = token_count - model.max_input_tokens
    if excess > 0:
        enough = "less" if block_tokens is None else f"{max(1, block_tokens - excess)} or less"
        raise SettingError(
            f"held_out.max_block_tokens must be {enough}: the model takes {model.max_input_tokens} tokens, "
            f"got up to {token_count}"
        )


NO_SUMS = {"start_correct": 0, "end_correct": 0, "start_loss": 0.0, "end_loss": 0.0, "chance": 0.0}


def _in_batch_measure(encoder: Encoder, settings: HeldOutSettings, seed: int) -> Callable[[Article], list[Line]]:
    one_mask, of_words = encoder.query_masks == 1, settings.unit == "word"
    renderer = MaskRenderer(
        masks_per_span=encoder.query_masks, whole_words=of_words and not one_mask, **encoder.frame_ids
    )
    unit = MaskingUnit.phrase_words if of_words else MaskingUnit.phrase
    masker = build_masker(MaskingSettings(unit=MaskingUnit.token if one_mask else unit))
    objective = NonparametricMasked(
        NonparametricSettings(), end_queries=not one_mask, similarity_scale=encoder.similarity_scale
    )

    def measure(article: Article) -> list[Line]:
        spans = masker.select(article.sequences, mask_rng(seed, 0, article.number))
        if spans is None:
            return [{"spans": 0, **NO_SUMS}]
        batch = renderer.render(article.sequences, spans).to(encoder.device)
        # a span of one token has become two masks
        longest = batch.query_input_ids.shape[1]
        _check_length(encoder, longest, block_tokens=settings.max_block_tokens)
        encoded = EncodedBatch(encoder.token_vectors, batch)
        terms = {name: float(term.sum) for name, term in objective(encoded).items()}
        keys, _ = gather_keys(encoded)
        following = following_tokens(keys, batch.span_token_ids.shape[1])  # i64 [m, T]
        foreign = keys.sequences != batch.span_sequences[:, None]  # bool [n, T]
        positive = positive_keys(batch.span_token_ids, following) & foreign  # bool [n, T]
        # Σ over spans of |S⁺| / |K|, the same for starts and ends: each occurrence has one of both
        chance = float((positive.sum(1).double() / foreign.sum(1)).sum())
        start = round(terms["start_top1"])  # a single query is right on both sides
        correct = {"start_correct": start, "end_correct": round(terms.get("end_top1", start))}
        losses = {"start_loss": terms["start"], "end_loss": terms.get("end", 0.0)}
        return [{"spans": len(spans), **correct, **losses, "chance": chance}]

    return measure


def evaluate_in_batch(encoder: Encoder, held_out: HeldOutArticles) -> Result:
    """Mask the articles, and count how often the best key is a positive; `top1` is the mean of both sides.

    Article i is masked by the seed, epoch 0 and i; one with too little to mask counts no span. For an encoder that asks
    with one mask single tokens are masked, and the one query counts for both sides, its loss once. Raises CorpusError
    if nothing could be masked, SettingError for blocks that the encoder does not accept with their masks.
    """
    names = ("similarity_scale", "dimensions", "trained_dimensions")
    facts = as_json({name: getattr(encoder, name) for name in names})
    sample = held_out.sample
    measure = _in_batch_measure(encoder, held_out.settings, sample.seed)
    record, lines = held_out.measured("in_batch", encoder, measure, facts=facts)
    spans = np.array([line["spans"] for line in lines])  # i64 [A]
    if not spans.any():
        raise CorpusError("no phrase of the articles occurs in two blocks: choose other documents")
    span_count = int(spans.sum())
    total = {name: sum(line[name] for line in lines) / span_count for name in NO_SUMS}
    correct = np.array([line["start_correct"] + line["end_correct"] for line in lines])  # i64 [A]
    rng = np.random.default_rng(sample.seed)
    top1 = bootstrap_interval(correct, rng, counts=2 * spans, resamples=sample.resamples)
    means = {
        "start_top1": total["start_correct"],
        "end_top1": total["end_correct"],
        "top1": asdict(top1),
        "loss": total["start_loss"] + total["end_loss"],
        "chance": total["chance"],
        "span_count": span_count,
        "article_count": len(lines),
    }
    sides = [f"{100 * means[side]:.1f}" for side in ("start_top1", "end_top1")]
    rows = [
        [encoder.name, percent(top1), *sides, f"{means['loss']:.2f}"],
        ["a random key", *[f"{100 * total['chance']:.2f}"] * 3, ""],
    ]
    title = f"in-batch retrieval of {span_count} spans on {len(lines)} held-out articles"
    return Result(record, lines, means, [Table(title, ["", "top-1, % [95 %]", "start, %", "end, %", "loss"], rows)])


def _masked_measure(
    encoder: Encoder, head: MaskedHead, settings: HeldOutSettings, seed: int
) -> Callable[[Article], list[Line]]:
    views = build_in_place_views(
        CorruptionSettings(unit=CorruptionUnit(settings.unit), masked_fraction=settings.masked_fraction),
        ordinary_ids=np.zeros(0, dtype=np.int64),  # nothing is replaced at random
        **encoder.frame_ids,
    )
    objective = MaskedTokens(head)

    def measure(article: Article) -> list[Line]:
        rng = mask_rng(seed, 0, article.number, VIEW_NUMBERS[TOKENS])
        batch = views.view([article.sequences], [rng]).to(encoder.device)
        if not len(batch.span_sequences):
            return [{"predictions": 0, "correct": 0, "loss": 0.0}]
        terms = objective(EncodedBatch(encoder.token_vectors, batch, with_clean_copies=False))
        loss, right = terms["masked"], int(terms["masked_top1"].sum)
        return [{"predictions": loss.count, "correct": right, "loss": float(loss.sum)}]

    return measure


def evaluate_masked_tokens(encoder: Encoder, head: MaskedHead, held_out: HeldOutArticles) -> Result:
    """Mask tokens of the articles and predict them; standard errors take articles as clusters.

    Article i is masked by the seed, epoch 0 and i. Perplexity exp(NLL) compares encoders of one tokenizer only. Raises
    CorpusError if nothing was masked.
    """
    settings, seed = held_out.settings, held_out.sample.seed
    unread = ("least_tokens", "blocks_per_article") if settings.every_document else ("every_document",)
    asked = {name: value for name, value in asdict(settings).items() if name not in unread}
    asked |= {"masked_unit": asked.pop("unit"), "mask_seed": seed}
    facts = {"tokenizer_fingerprint": encoder.tokenizer_fingerprint}
    measure = _masked_measure(encoder, head, settings, seed)
    record, lines = held_out.measured("masked_tokens", encoder, measure, asked=asked, facts=facts, heads=[head])
    # `compare` pairs documents by it: the same tokens of the same text
    asked_of = digest_of({key: record[key] for key in ("settings", "corpus_digest")} | facts)
    lines = [
        {"task": "masked_tokens", "method": encoder.name, "id": str(number), "text": line["document"], **line}
        | {"gold": f"{line['predictions']} tokens, {asked_of}"}
        for number, line in enumerate(lines)
    ]
    names = ("predictions", "loss", "correct")
    counts, losses, correct = (np.array([line[name] for line in lines], float) for name in names)  # f64 [A] each
    if not (count := int(counts.sum())):
        raise CorpusError(
            f"no token of the articles was masked: raise held_out.masked_fraction={settings.masked_fraction}"
        )
    loss, accuracy = float(losses.sum() / count), float(correct.sum() / count)
    means: dict[str, Any] = {
        "prediction_count": count,
        "loss": loss,
        "loss_standard_error": ratio_standard_error(losses, counts),  # None of a single article
        "accuracy": accuracy,
        "accuracy_standard_error": ratio_standard_error(correct, counts),
        "perplexity": math.exp(loss) if loss < MAX_LOSS else None,
        "article_count": len(lines),
    }
    shown = [f"{100 * accuracy:.2f}", f"{loss:.3f}"]
    if len(lines) > 1:
        shown[0] += f" ± {100 * means['accuracy_standard_error']:.2f}"
        shown[1] += f" ± {means['loss_standard_error']:.3f}"
    perplexity = f"{means['perplexity']:.4g}" if means["perplexity"] else "∞"
    of = "all held-out documents" if settings.every_document else "held-out articles"
    whole = "masked tokens" if settings.unit == "token" else "whole masked words"
    title = f"{whole} of {of}, {100 * settings.masked_fraction:g} % of the tokens masked"
    header = ["", "articles", "predictions", "accuracy, %", "loss, nats", "perplexity"]
    notes = ["± is the standard error over articles.", "perplexities compare encoders of the same tokenizer only."]
    table = Table(title, header, [[encoder.name, f"{len(lines)}", f"{count}", *shown, perplexity]])
    return Result(record, lines, means, [table], notes)


def evaluate_denoising(denoiser: Denoiser, held_out: HeldOutArticles) -> Result:
    """NLL of every denoiser under every mode token; intervals are from a bootstrap over articles.

    The masks of an article depend on the seed, its number and the denoiser alone. Raises EncoderError if the tokenizer
    has too few sentinels.
    """
    sample, sentinels = held_out.sample, denoiser.sentinels()
    most_spans = max(each.most_spans(held_out.settings.max_block_tokens) for each in UL2)
    check_sentinel_count(len(sentinels.sentinel_ids), most_spans)
    vocabulary = denoiser.tokenizer.get_vocab()
    modes = [NO_MODE, *sorted({each.mode for each in UL2} & vocabulary.keys())]

    def measure(article: Article) -> list[Line]:
        lines: list[Line] = []
        for place, corruption in enumerate(UL2):
            rng = mask_rng(sample.seed, place, article.number, VIEW_NUMBERS["denoising"])
            spans, numbers = MixtureMasker((replace(corruption, weight=1.0),)).select(article.sequences, rng)
            for mode in modes:  # all read the same corrupted text
                renderer = replace(sentinels, mode_ids=() if mode == NO_MODE else (vocabulary[mode],))
                batch = renderer.render(article.sequences, spans, numbers).to(denoiser.device)
                terms = Denoising()(EncodedDenoising(Passes(denoiser.model), batch))
                loss, right = terms["denoising"], terms["denoising_top1"]
                sums = {"targets": loss.count, "nll": float(loss.sum), "correct": int(right.sum)}
                lines.append({"denoiser": corruption.name, "mode": mode, **sums})
        return lines

    record, lines = held_out.measured("denoising", denoiser, measure)
    cells, rows = [], []
    for corruption in UL2:
        row = []
        for mode in modes:
            own = [line for line in lines if (line["denoiser"], line["mode"]) == (corruption.name, mode)]
            targets, nll, correct = (np.array([line[name] for line in own]) for name in ("targets", "nll", "correct"))
            rng, count = np.random.default_rng(sample.seed), int(targets.sum())
            mean = bootstrap_interval(nll, rng, counts=targets, resamples=sample.resamples)
            facts = {"denoiser": corruption.name, "mode": mode, "own_mode": mode == corruption.mode, "targets": count}
            cells.append(facts | {"nll": asdict(mean), "top1": int(correct.sum()) / count})
            row.append(f"{mean.mean:.3f}{'*' * (mode == corruption.mode)}")
        rows.append([corruption.name, str(count), *row])
    table = Table("loss of denoisers (rows) under mode tokens (columns)", ["denoiser", "targets", *modes], rows)
    note = "nats a target token; the star marks the mode token of the denoiser."
    return Result(record, lines, {"article_count": len(held_out.articles), "cells": cells}, [table], [note])
