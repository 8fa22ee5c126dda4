"""Sources of a run's batches: blocks of the corpus, sentences, or both, in the views of its objectives.

The content of a batch is a function of the seed and the micro-step alone. Only the step has to be saved as the
position, and a resumed run sees exactly the batches of an uninterrupted one.

Shapes: N pairs of all ranks at a micro-step, n pairs of this rank, R rows and c columns of the table of pairs, L padded
length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from npm.core.artifact import refuse_changed
from npm.core.errors import CorpusError, SettingError, missing
from npm.core.types import MASKS_PER_SPAN, Progress, Sequences, silent
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.groups import BlockGroups, epoch_order
from npm.corpus.sentence_pairs import PairTable, build_pair_table
from npm.corpus.store import BlockStore, build_block_store
from npm.masking.batches import BatchSource, SentenceBatch, TrainingBatch, View
from npm.masking.collocation_mining import collocations_of
from npm.masking.collocations import CollocationVocabulary
from npm.masking.corruption import CorruptionUnit, build_in_place_views
from npm.masking.denoising import build_denoising_views
from npm.masking.masker import MaskingUnit, build_masker, mask_rng
from npm.masking.rendering import (
    DENOISING,
    LABELED,
    PASSAGES,
    PHRASES,
    QUESTIONS,
    SENTENCES,
    TOKENS,
    VIEW_NUMBERS,
    MaskRenderer,
    PhraseViews,
    ViewMaker,
    padded_rows,
    reads_blocks,
)
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.objectives.ranks import rank, world_size
from npm.training.labeled import labeled_source
from npm.training.model import TrainableModel, title_tokens
from npm.training.questions import AlternatingSource, question_source
from npm.training.record import recorded
from npm.training.settings import TrainingSettings


class TrainingBatches(Dataset[TrainingBatch]):
    """Item i is the batch of micro-step i on one rank, however often the sources have been gone through."""

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        assert sources, "no source of batches"
        self.sources = tuple(sources)
        self.micro_steps_per_epoch = max(source.micro_steps_per_epoch for source in self.sources)

    def __len__(self) -> int:
        return 1 << 62  # endless; the schedule ends the run

    def __getitem__(self, micro_step: int) -> TrainingBatch:
        views: dict[str, View] = {}
        token_count = 0
        for source in self.sources:
            made = source.views(micro_step)
            assert views.keys().isdisjoint(made), f"two sources make the views {views.keys() & made.keys()}"
            views |= made
            token_count += max(view.token_count for view in made.values())  # all of them show the same text
        return TrainingBatch(views, token_count)


def iterate_batches(batches: TrainingBatches, *, first_micro_step: int, workers: int = 0) -> Iterator[TrainingBatch]:
    """Batches from `first_micro_step` on, made by `workers` background processes (0: in this one)."""
    loader: DataLoader[TrainingBatch] = DataLoader(
        batches,
        batch_size=None,
        sampler=range(first_micro_step, len(batches)),
        num_workers=workers,
        # a loader draws a number when it starts; from the default generator it would shift a resumed run's dropout
        generator=torch.Generator(),
    )
    return iter(loader)


@dataclass
class BlockSource:
    """Groups in an order that is drawn again for every epoch; each rank takes its part of a micro-step's groups."""

    groups: Sequence[Sequences] | BlockGroups
    makers: Mapping[str, ViewMaker]  # of each view, by its name
    _: KW_ONLY
    seed: int
    groups_per_device_batch: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        """Raises SettingError if the groups do not suffice for one micro-step."""
        size = self.groups_per_device_batch * self.world_size
        self.micro_steps_per_epoch = len(self.groups) // size
        if self.micro_steps_per_epoch == 0:
            raise SettingError(
                f"corpus.files has {len(self.groups)} groups, expected at least {size} for a batch: give more text, or"
                " reduce groups.sequences_per_group or trainer.groups_per_device_batch"
            )

    def views(self, micro_step: int) -> dict[str, View]:
        """All views of this rank's groups at `micro_step`."""
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        first = (place * self.world_size + self.rank) * self.groups_per_device_batch
        order = epoch_order(len(self.groups), seed=self.seed, epoch=epoch)  # i64 [groups]
        numbers = order[first : first + self.groups_per_device_batch].tolist()
        groups = [self.groups[number] for number in numbers]
        return {
            name: maker.view(groups, [mask_rng(self.seed, epoch, number, VIEW_NUMBERS[name]) for number in numbers])
            for name, maker in self.makers.items()
        }


DRAWS_PER_PAIR = 64
"""Other pairs tried for each one that cannot be used, before all of them are tried."""


@dataclass
class SentenceSource:
    """Pairs in an order drawn for every epoch, without pairs in one global batch that are each other's positives.

    No pair of a batch may contain, even as its hard negative, the anchor or the positive of another pair: that would
    be a false negative. The later of the two is replaced with a pair drawn at random, so an epoch may skip a pair and
    show another twice.
    """

    table: PairTable
    encoder: Encoder
    _: KW_ONLY
    pairs_per_device_batch: int
    seed: int
    makers: Mapping[str, ViewMaker] = field(default_factory=dict)
    """Of further views of the same sentences, by name; they never change the contrasted pairs."""
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        """Raises CorpusError if the table does not suffice for one micro-step."""
        self.micro_steps_per_epoch = len(self.table) // (self.pairs_per_device_batch * self.world_size)
        if self.micro_steps_per_epoch == 0:
            raise self._too_few(f"{len(self.table)}")

    def views(self, micro_step: int) -> dict[str, View]:
        """This rank's pairs at `micro_step`, and the further views of their texts."""
        epoch, place = divmod(micro_step, self.micro_steps_per_epoch)
        rows = self._rows(epoch, place)  # i64 [N]
        first = self.rank * self.pairs_per_device_batch
        numbers = self.table.text_numbers(rows[first : first + self.pairs_per_device_batch])  # i64 [n, c]
        contrasted = numbers if numbers.shape[1] > 1 else np.repeat(numbers, 2, axis=1)  # i64 [n, 2 or 3]
        rows_of_texts = self.table.texts(contrasted.T.reshape(-1))  # anchors, positives, negatives
        input_ids, attention_mask = padded_rows(
            rows_of_texts.token_ids,
            rows_of_texts.offsets,
            pad_id=self.encoder.pad_id,
            prefix_ids=tuple(self.encoder.prefix_ids),
            suffix_ids=tuple(self.encoder.suffix_ids),
        )  # i64 [2n or 3n, L] each
        batch = SentenceBatch(input_ids, attention_mask, pair_count=len(numbers), pad_id=self.encoder.pad_id)
        texts = [self.table.texts(numbers.T.reshape(-1))] if self.makers else []
        group = place * self.world_size + self.rank
        further = {
            name: maker.view(texts, [mask_rng(self.seed, epoch, group, VIEW_NUMBERS[name])])
            for name, maker in self.makers.items()
        }
        return {SENTENCES: batch, **further}

    def _rows(self, epoch: int, place: int) -> np.ndarray:
        """The rows of the global batch, i64 [N]; the same on every rank."""
        size = self.pairs_per_device_batch * self.world_size
        order = epoch_order(len(self.table), seed=self.seed, epoch=epoch)  # i64 [R]
        rows = order[place * size : (place + 1) * size].copy()  # i64 [N]
        taken: tuple[set[int], set[int]] = set(), set()  # keys of anchors and positives, and of hard negatives
        free = [at for at, fits in enumerate(self._compatible(rows, taken)) if not fits]
        if not free:
            return rows
        drawn = mask_rng(self.seed, epoch, place, VIEW_NUMBERS[SENTENCES]).integers(
            len(self.table), size=DRAWS_PER_PAIR * len(free)
        )
        for candidates in (drawn, order):
            fitting = compress(candidates, self._compatible(candidates, taken))
            while free and (row := next(fitting, None)) is not None:  # no more are taken than there is space for
                rows[free.pop(0)] = row
            if not free:
                return rows
        raise self._too_few(f"{size - len(free)} that are not each other's positives")

    def _compatible(self, rows: np.ndarray, taken: tuple[set[int], set[int]]) -> Iterator[bool]:
        """For each of the rows i64 [.] whether it is compatible with those taken so far; if so, it is taken."""
        meanings, negatives = taken
        for start in range(0, len(rows), DRAWS_PER_PAIR):
            for keys in self.table.keys(self.table.text_numbers(rows[start : start + DRAWS_PER_PAIR])).tolist():
                own, wrong = set(keys[:2]), set(keys[2:])
                fits = meanings.isdisjoint(own | wrong) and negatives.isdisjoint(own)
                if fits:
                    meanings |= own
                    negatives |= wrong
                yield fits

    def _too_few(self, got: str) -> CorpusError:
        size = self.pairs_per_device_batch * self.world_size
        return CorpusError(
            f"sentences.files: expected at least {size} sentences or pairs for a batch, got {got}: give more text,"
            " or reduce sentences.pairs_per_device_batch"
        )


def make_sources(
    folder: Path,
    settings: TrainingSettings,
    views: set[str],
    trained: Any,
    *,
    progress: Progress = silent,
) -> tuple[TrainingBatches, list[str]]:
    """Batches with all of `views` from the text of `settings`, made into blocks and sentences in `folder`; and notes.

    `trained` is an encoder, or an encoder-decoder for the view of denoising.
    Raises CorpusError or SettingError where the text does not suffice.
    """
    made: list[tuple[BatchSource, str]] = []
    if reads_blocks(views):
        of_blocks = views - {SENTENCES, LABELED, QUESTIONS, PASSAGES}
        made.append(_block_source(folder, of_blocks, settings, trained, progress))
    if SENTENCES in views:
        further = views & {TOKENS} if not reads_blocks(views) else set()
        made.append(_sentence_source(folder, further, settings, trained))
    if LABELED in views:
        made.append(labeled_source(settings.labeled, trained, seed=settings.trainer.seed))
    sources, notes = [source for source, _ in made], [note for _, note in made]
    asked_views = views & {QUESTIONS, PASSAGES}
    if asked_views and settings.questions:
        title = title_tokens(settings, trained)
        asked, note = question_source(
            settings.questions,
            trained,
            settings.supervision,
            view=asked_views.pop(),
            title_tokens=title,
            seed=settings.trainer.seed,
        )
        fraction = settings.supervision.step_fraction
        sources = [AlternatingSource(asked, other, question_fraction=fraction) for other in sources] or [asked]
        notes.append(note)
    return TrainingBatches(sources), notes


def _block_source(
    folder: Path,
    views: set[str],
    settings: TrainingSettings,
    trained: TrainableModel,
    progress: Progress,
) -> tuple[BlockSource, str]:
    packer = BlockPacker(trained.tokenizer, replace(settings.blocks, title_tokens=title_tokens(settings, trained)))
    if settings.packed:
        store, skipped = BlockStore.open(folder / "corpus"), SkippedRecords()
        ours = {"blocks": asdict(packer.settings), "tokenizer_fingerprint": packer.tokenizer_fingerprint}
        refuse_changed(
            {name: store.settings[name] for name in ours},
            ours,
            problem=f"{folder / 'corpus'} was cut with other settings or another tokenizer",
            where=folder / "corpus",
            fix="repeat the settings of that run, or name another one as packed=DIR",
        )
    else:
        skipped = SkippedRecords.beside(folder / "corpus")
        store = build_block_store(
            folder / "corpus",
            read_corpus(settings.corpus, skipped=skipped),
            packer,
            settings={"corpus": recorded(asdict(settings.corpus))},
            progress=progress,
        )
    chosen, per_batch = settings.groups, settings.trainer.groups_per_device_batch
    groups = BlockGroups(
        store, sequences_per_group=chosen.sequences_per_group, mixing=chosen.mixing, seed=settings.trainer.seed
    )
    makers = {name: VIEW_MAKERS[name](folder, settings, trained, store) for name in sorted(views)}
    source = BlockSource(
        groups,
        makers,
        groups_per_device_batch=per_batch,
        seed=settings.trainer.seed,
        rank=rank(),
        world_size=world_size(),
    )
    per_step = per_batch * settings.trainer.accumulation_steps * world_size() * chosen.sequences_per_group
    note = (
        f"{store.token_count:,} tokens in {len(groups):,} groups ({groups.mixed_share:.0%} of them mix documents), "
        f"{per_step} sequences a step"
    )
    return source, _with_skipped(note, skipped)


def _sentence_source(
    folder: Path, further: set[str], settings: TrainingSettings, trained: Encoder
) -> tuple[SentenceSource, str]:
    skipped, per_batch = SkippedRecords.beside(folder / "sentences"), settings.sentences.pairs_per_device_batch
    table = build_pair_table(
        folder / "sentences", settings.sentences, trained.tokenizer, corpus=settings.corpus, skipped=skipped
    )
    source = SentenceSource(
        table,
        trained,
        makers={name: VIEW_MAKERS[name](folder, settings, trained, None) for name in further},
        pairs_per_device_batch=per_batch,
        seed=settings.trainer.seed,
        rank=rank(),
        world_size=world_size(),
    )
    per_step = per_batch * settings.trainer.accumulation_steps * world_size()
    what = {1: "sentences", 2: "pairs", 3: "pairs with a hard negative"}[table.column_count]
    return source, _with_skipped(f"{len(table):,} {what} of {table.token_count:,} tokens, {per_step} a step", skipped)


def _with_skipped(note: str, skipped: SkippedRecords) -> str:
    return f"{note}; {skipped.summary}" if skipped.summary else note


def _denoising_views(_: Path, settings: TrainingSettings, trained: Denoiser, __: BlockStore | None) -> ViewMaker:
    sentinels = trained.sentinels(settings.denoising.modes())
    return build_denoising_views(settings.denoising, sentinels, max_text_tokens=settings.blocks.max_block_tokens)


def _token_views(folder: Path, settings: TrainingSettings, trained: Encoder, store: BlockStore | None) -> ViewMaker:
    """Tokens masked in place; a vocabulary of collocations is mined from `store` unless one is given."""
    corruption = settings.corruption
    corruption.check_tokens(of_bytes=trained.spells_bytes)
    vocabulary = None
    if corruption.unit is CorruptionUnit.collocation:
        if store is not None:
            vocabulary = collocations_of(corruption.collocations, store, folder / "collocations")
        elif given := corruption.collocations.vocabulary:
            fingerprint = trained.tokenizer_fingerprint
            vocabulary = CollocationVocabulary.open(Path(given), tokenizer_fingerprint=fingerprint)
        else:
            raise missing("corruption.collocations.vocabulary", "corruption.collocations.vocabulary=DIR")
    # i64 [ordinary tokens], the candidates for random replacement
    ordinary_ids = np.setdiff1d(np.arange(len(trained.tokenizer)), trained.tokenizer.all_special_ids)
    return build_in_place_views(corruption, ordinary_ids=ordinary_ids, vocabulary=vocabulary, **trained.frame_ids)


def _phrase_views(_: Path, settings: TrainingSettings, trained: Encoder, __: BlockStore | None) -> ViewMaker:
    """Mask pairs for phrases, one mask for single tokens; the objective has the same number of queries."""
    chosen = settings.masking
    renderer = MaskRenderer(
        masks_per_span=MASKS_PER_SPAN if chosen.unit.has_pairs else 1,
        max_input_tokens=trained.max_input_tokens,
        whole_words=chosen.unit is MaskingUnit.phrase_words,
        **trained.frame_ids,
    )
    return PhraseViews(build_masker(chosen), renderer, chosen.context_fraction, chosen.question)


VIEW_MAKERS: dict[str, Callable[[Path, TrainingSettings, Any, BlockStore | None], ViewMaker]] = {
    PHRASES: _phrase_views,
    TOKENS: _token_views,
    DENOISING: _denoising_views,
}
"""Makers of the views of blocks, or of the sentences of a source without a store, from the folder of the run."""
