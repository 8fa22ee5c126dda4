"""Where the batches of a run come from: blocks of the corpus, sentences, or both, in the views its objectives read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.sentence_pairs import SentenceDataSettings, build_pair_table
from npm.corpus.store import BlockGroups, BlockStore, build_block_store
from npm.masking.corruption import CorruptionSettings
from npm.masking.denoising import build_denoising_views
from npm.masking.masker import MaskingUnit, build_masker
from npm.masking.rendering import (
    DENOISING,
    SENTENCES,
    TOKENS,
    MaskPairRenderer,
    PhraseViews,
    SingleMaskRenderer,
    ViewMaker,
    reads_blocks,
)
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.objectives.ranks import rank, world_size
from npm.training.batches import BatchSource, TrainingBatches
from npm.training.block_source import BlockSource
from npm.training.recorded import recorded
from npm.training.sentence_source import SentenceSource
from npm.training.settings import TrainingSettings
from npm.training.start import Trained
from npm.training.token_views import token_views

Progress = Callable[[int, int], None]
"""Called with the documents and the tokens read so far."""


@dataclass(frozen=True, slots=True)
class Texts:
    """One set of texts: those trained on, or those held out; what is made of them lies in `folder`."""

    folder: Path
    corpus: CorpusSettings
    sentences: SentenceDataSettings
    corruption: CorruptionSettings
    seed: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The batches of one set of texts, and what is worth saying of them."""

    batches: TrainingBatches
    notes: tuple[str, ...]


def make_sources(
    texts: Texts, views: set[str], settings: TrainingSettings, trained: Trained, *, report: Progress | None = None
) -> Sources:
    """Blocks and sentences of `texts`, made in its folder unless they are there, as batches with all of `views`.

    Raises CorpusError or SettingError where the texts do not suffice.
    """
    sources: list[BatchSource] = []
    notes: list[str] = []
    if reads_blocks(views):
        store = packed_corpus(texts, settings, trained, report)
        makers = {name: _maker(name, texts, settings, trained, store) for name in sorted(views - {SENTENCES})}
        block_source, note = _block_source(store, makers, texts, settings)
        sources.append(block_source)
        notes.append(note)
    if SENTENCES in views:
        masked = {} if reads_blocks(views) or TOKENS not in views else {TOKENS: _token_maker(texts, trained, None)}
        sentence_source, note = _sentence_source(masked, texts, settings, trained)
        sources.append(sentence_source)
        notes.append(note)
    return Sources(TrainingBatches(sources), tuple(notes))


def packed_corpus(texts: Texts, settings: TrainingSettings, trained: Trained, report: Progress | None) -> BlockStore:
    """The texts as blocks, built in their folder unless they are there."""
    return build_block_store(
        texts.folder / "corpus",
        read_corpus(texts.corpus),
        BlockPacker(trained.tokenizer, settings.blocks),
        settings={"corpus": recorded(asdict(texts.corpus))},
        progress=report,
    )


def _block_source(
    store: BlockStore, makers: dict[str, ViewMaker], texts: Texts, settings: TrainingSettings
) -> tuple[BlockSource, str]:
    chosen = settings.groups
    groups = BlockGroups(store, sequences_per_group=chosen.sequences_per_group, drop_mixed=chosen.drop_mixed)
    per_batch = settings.trainer.groups_per_device_batch
    source = BlockSource(
        groups, makers, seed=texts.seed, groups_per_device_batch=per_batch, rank=rank(), world_size=world_size()
    )
    per_step = per_batch * settings.trainer.accumulation_steps * world_size() * chosen.sequences_per_group
    note = (
        f"{store.token_count:,} tokens in {len(groups):,} groups ({groups.mixed_share:.0%} of them mix documents), "
        f"{per_step} sequences a step"
    )
    return source, note


def _sentence_source(
    makers: dict[str, ViewMaker], texts: Texts, settings: TrainingSettings, trained: Trained
) -> tuple[SentenceSource, str]:
    table = build_pair_table(texts.folder / "sentences", texts.sentences, trained.tokenizer, corpus=texts.corpus)
    assert isinstance(trained, Encoder), "sentences are for encoders"
    source = SentenceSource(
        table,
        makers=makers,
        pairs_per_device_batch=texts.sentences.pairs_per_device_batch,
        prefix_ids=trained.prefix_ids,
        suffix_ids=trained.suffix_ids,
        pad_id=trained.pad_id,
        seed=texts.seed,
        rank=rank(),
        world_size=world_size(),
    )
    per_step = texts.sentences.pairs_per_device_batch * settings.trainer.accumulation_steps * world_size()
    what = {1: "sentences", 2: "pairs", 3: "pairs with a hard negative"}[table.column_count]
    return source, f"{len(table):,} {what} of {table.token_count:,} tokens, {per_step} a step"


def _maker(name: str, texts: Texts, settings: TrainingSettings, trained: Trained, store: BlockStore) -> ViewMaker:
    """What makes the view `name` of groups of blocks."""
    if name == DENOISING:
        assert isinstance(trained, Denoiser), "denoising is for encoder-decoders"
        sentinels = trained.sentinels(settings.denoising.modes())
        return build_denoising_views(settings.denoising, sentinels, max_text_tokens=settings.blocks.max_block_tokens)
    assert isinstance(trained, Encoder), f"{name} are for encoders"
    return _token_maker(texts, trained, store) if name == TOKENS else phrase_views(settings, trained)


def _token_maker(texts: Texts, trained: Trained, store: BlockStore | None) -> ViewMaker:
    assert isinstance(trained, Encoder), "masked tokens are for encoders"
    return token_views(texts.corruption, trained, store, texts.folder)


def phrase_views(settings: TrainingSettings, encoder: Encoder) -> PhraseViews:
    """Mask pairs for phrases, one mask for single tokens; the objective has the same number of queries."""
    phrases = settings.masking.unit is MaskingUnit.phrase
    renderer = (MaskPairRenderer if phrases else SingleMaskRenderer)(
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids),
        suffix_ids=tuple(encoder.suffix_ids),
        max_input_tokens=encoder.max_input_tokens,
    )
    return PhraseViews(
        build_masker(settings.masking), renderer, settings.masking.context_fraction, settings.masking.question
    )
