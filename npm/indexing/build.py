"""Build a phrase index: documents → blocks → vectors → quantiser → codes → lists, then the root manifest.

A build that was killed continues with the same command. Its stages may be jobs of their own, each a shard of a stage.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.ivf import Quantiser
from index.settings import check_search
from npm.core.artifact import MANIFEST_NAME, verify_folder
from npm.core.errors import ArtifactError, CorpusError, SettingError, exclusive, named
from npm.core.locks import clear_locks, folder_lock
from npm.core.records import refuse_changed
from npm.core.settings import WHOLE, Shard
from npm.core.types import Progress, silent
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.sources import Source, find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import check_input_tokens, pruning_counts, vector_shards
from npm.indexing.estimate import check_disk_needs
from npm.indexing.generation import (
    ENCODER_FOLDER,
    INDEX_KIND,
    QUANTISER_FOLDER,
    ROTATION_FOLDER,
    SEARCH_FOLDER,
    Counts,
    Generation,
    IndexManifest,
    Searching,
    Segment,
    SegmentRecord,
    as_record,
    copy_encoder,
    input_record,
    on_present,
    write_generation,
)
from npm.indexing.layout import clear_folder, refuse_links, refuse_others
from npm.indexing.rotation import axes_of_build, train_rotation
from npm.indexing.settings import IndexBuildSettings, Rotation, Stage
from npm.indexing.stages import (
    SegmentSettings,
    code_segments,
    encode_segments,
    finish_codes,
    finish_search,
    finish_segment,
    train_segment_quantiser,
)
from npm.models.encoder import Encoder

FIRST = "00000"
"""The name of the first segment and of the search folder that a build makes."""


def dimension_note(encoder: Encoder) -> str:
    """What to say before vectors are stored at a length that the encoder was not trained for; else nothing."""
    if encoder.dimensions in (encoder.whole_dimensions, *encoder.trained_dimensions):
        return ""
    trained = ", ".join(map(str, (*encoder.trained_dimensions, encoder.whole_dimensions)))
    return (
        f"note: {encoder.name} was not trained for vectors of {encoder.dimensions} dimensions (but of {trained}), so "
        "answers may be much worse; npmlm train experiment=matryoshka trains one for several lengths"
    )


def title_note(encoder: Encoder, blocks: BlockSettings) -> str:
    """What to say before blocks get other titles than the encoder was trained with; else nothing."""
    if blocks.title_tokens == encoder.title_tokens:
        return ""
    trained, given = (
        f"{count} tokens of titles" if count else "no titles" for count in (encoder.title_tokens, blocks.title_tokens)
    )
    return (
        f"note: {encoder.name} was trained with {trained} in front of blocks, and this index gets {given}, so "
        "answers may be worse; without blocks.title_tokens= it is as in training"
    )


def print_nothing(message: str) -> None:
    """Default: notices go nowhere."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build left behind."""

    manifest: IndexManifest | None  # None as long as jobs of other stages or shares have work to do
    was_finished: bool  # there was nothing to do


def build_index(
    folder: str | Path,
    settings: IndexBuildSettings,
    encoder: Encoder | None = None,
    *,
    stage: Stage | None = None,
    shard: Shard = WHOLE,
    progress: Progress = silent,
    notice: Callable[[str], None] = print_nothing,
) -> BuildResult:
    """Build the index in `folder`, or go on where an earlier build with the same settings was stopped.

    `stage` and `shard` are for jobs that build one index together; without a stage all of them are run. `encoder` None
    loads the one of the settings; `notice(message)` says whom a job waits for, and what to think of
    `settings.dimensions` and `settings.blocks.title_tokens`. Raises CorpusError for input that cannot be read,
    SettingError for more dimensions than the encoder's vectors have, ArtifactError if `folder` holds something else,
    was begun with other settings or lacks what an earlier stage should have left, EncoderError if the encoder cannot
    serve, StorageError if the disk has no room. A new folder in which nothing was finished is taken away
    again.
    """
    folder = Path(folder)
    refuse_others(folder)
    refuse_links(folder)
    shares = source_shares(settings)
    if encoder is None:
        encoder = Encoder.load(
            settings.encoder, device=settings.device, dtype=settings.precision, for_reading=not settings.copy_encoder
        )
    encoder = encoder.cut_to(settings.dimensions)
    settings = replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens))
    made = as_record(settings, encoder, IndexBuildSettings)
    if (finished := _finished(folder, made, shares, is_job=stage is not None)) is not None:
        clear_locks(folder)
        return BuildResult(finished, was_finished=True)
    check_input_tokens(encoder, settings.blocks.max_block_tokens)
    if stage in (None, Stage.encode):
        is_rotated = settings.rotation is not Rotation.none
        notes = ("" if is_rotated else dimension_note(encoder), title_note(encoder, settings.blocks))
        for note in filter(None, notes):
            notice(note)
    build = _Build(folder, settings, encoder, made, shares, stage is not None, progress, notice)
    with clears_failed_build(folder) if stage is None else nullcontext():
        with folder_lock(folder) if stage is None else nullcontext():
            built = build.run(stage, shard)
        if built.manifest is not None:
            clear_locks(folder)
        return built


@contextmanager
def clears_failed_build(folder: Path) -> Iterator[None]:
    """Take a new folder away again if a build in it fails: all of it if the corpus cannot be used, else if empty."""
    was_there = folder.exists()
    try:
        yield
    except BaseException as error:
        if not was_there:
            clear_folder(folder, entirely=isinstance(error, CorpusError))
        raise


def index_block_store(
    folder: str | Path, settings: IndexBuildSettings, encoder: Encoder, *, progress: Progress = silent
) -> BuildResult:
    """Build an index over the finished block store in `folder`/segments/00000/corpus, such as one of ids without text.

    Raises as `build_index` does; `settings.corpus` and `settings.blocks` are not looked at.
    """
    folder = Path(folder)
    encoder = encoder.cut_to(settings.dimensions)
    made = as_record(settings, encoder, IndexBuildSettings)
    if (finished := _finished(folder, made, [[]], is_job=False)) is not None:
        return BuildResult(finished, was_finished=True)
    with folder_lock(folder):
        return _Build(folder, settings, encoder, made, [[]], False, progress, print_nothing).run(None, WHOLE)


def source_shares(settings: IndexBuildSettings) -> list[Sequence[Source]]:
    """The corpus files of each segment. Raises SettingError for more segments than files, CorpusError for bad files."""
    sources, count = find_sources(settings.corpus.files), settings.segments
    if count > len(sources):
        raise SettingError(f"segments must be at most the number of corpus files, {len(sources)}, got {count}")
    if count > 1 and settings.corpus.max_documents is not None:
        raise exclusive("segments", "corpus.max_documents")
    return [Shard(number, count).of(sources) for number in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class _Build:
    """The segments of a new index, stage by stage."""

    folder: Path
    settings: IndexBuildSettings
    encoder: Encoder
    made: dict[str, Any]
    shares: list[Sequence[Source]]  # of each segment
    is_job: bool  # takes the digests of files that were packed for known, so that not every job reads all of them
    progress: Progress
    notice: Callable[[str], None]
    sources: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # of each segment, once they are known

    def run(self, stage: Stage | None, shard: Shard) -> BuildResult:
        """One stage, or all of them in order."""
        if (self.folder / MANIFEST_NAME).is_file():  # another process finished it while we waited
            return BuildResult(Generation.read(self.folder).manifest, was_finished=True)
        if stage in (None, Stage.pack, Stage.encode):
            check_search(self.settings.search)
        if stage is Stage.pack:
            for number in shard.of(range(len(self.shares))):
                self._store(number)
        if stage in (None, Stage.encode):
            self._encode(shard)
        if stage in (None, Stage.quantise) and shard.number == 1:
            self._quantise()
        if stage in (None, Stage.code) and (quantiser := self._quantiser()) is not None:
            code_segments(self.segments, quantiser, shard=shard, progress=self.progress)
        if stage in (None, Stage.merge):
            return BuildResult(self._merge(), was_finished=False)
        return BuildResult(None, was_finished=False)

    @property
    def segments(self) -> list[Segment]:
        """Those of a fresh index."""
        return [Segment(self.folder, f"{number:05d}") for number in range(len(self.shares))]

    def _made_with(self) -> SegmentSettings:
        """How vectors are made; the blocks of all segments and the axes of a rotation must be there."""
        made_with, settings = self._unrotated(), self.settings
        if settings.rotation is Rotation.none:
            return made_with
        axes = axes_of_build(self.folder / ROTATION_FOLDER, self.encoder)  # f32 [k, d]
        return replace(made_with, encoder=self.encoder.cut_to(settings.dimensions, axes=axes))

    def _unrotated(self) -> SegmentSettings:
        """How vectors are made before they are rotated."""
        vectors = self.settings.vectors
        return SegmentSettings(self.encoder, vectors, self.settings.lexicon, vectors.block_pooler(self.encoder))

    def _all_blocks(self) -> BlockStore:
        return BlockStore.open(*(segment.corpus for segment in self.segments))

    def _stores(self, shard: Shard = WHOLE) -> list[BlockStore]:
        """The blocks of each segment; a job packs those of its share first, where no other job has."""
        numbers = range(len(self.shares))
        mine = shard.of(numbers)
        opened = {number: self._store(number) for number in sorted(numbers, key=lambda number: number not in mine)}
        return [opened[number] for number in numbers]

    def _store(self, number: int) -> BlockStore:
        """The blocks of a segment; whichever job comes first packs them, and the others wait for it.

        Raises ArtifactError if those that are there were made from something else.
        """
        segment, share = self.segments[number], self.shares[number]
        packing = {"corpus": self.made["corpus"], "blocks": self.made["blocks"]}
        if not BlockStore.is_finished(segment.corpus):
            check_disk_needs(self.folder, self.settings, self.encoder)
            packer = BlockPacker(self.encoder.tokenizer, self.settings.blocks)
            with folder_lock(segment.folder / "packing", wait=True, on_wait=self._waits):
                place = self.folder.resolve()
                of_own = place if len(self.shares) == 1 else place.with_name(f"{place.name}.{segment.name}")
                skipped = SkippedRecords.beside(of_own)
                store = build_block_store(
                    segment.corpus,
                    read_corpus(self.settings.corpus, sources=share, skipped=skipped),
                    packer,
                    settings={"sources": self._sources(number), **packing},
                    progress=self.progress,
                )
            for note in (skipped.summary, packer.unknown.note):
                if note:
                    self.notice(note)
            return store
        store = BlockStore.open(segment.corpus)
        if share:  # without them the blocks were handed over ready
            recorded = store.settings["sources"]
            refuse_other_files(self._sources(number, recorded), recorded, where=self.folder)
            refuse_changed(packing, {name: store.settings[name] for name in packing}, where=self.folder)
        return store

    def _sources(self, number: int, recorded: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """What is recorded of the files of a segment; in a job those `recorded` with its blocks are known."""
        if number not in self.sources:
            self.sources[number] = input_record(self.shares[number], recorded if self.is_job else ())
        return self.sources[number]

    def _encode(self, shard: Shard) -> None:
        search, stores = self.settings.search, self._stores(shard)
        if search.list_count is not None:
            rule = self.settings.vectors.pruning
            kept = sum(pruning_counts(store, rule)["kept"] for store in stores)
            check_search(search, row_count=kept)
        shard_count = sum(len(vector_shards(store, self.settings.vectors.tokens_per_shard)) for store in stores)
        if 0 in shard.of(range(shard_count)):  # one job, without which no build comes to its end
            self._refuse_repeated_ids()
        if self.settings.rotation is not Rotation.none:
            store = self._all_blocks()
            recorded = self._unrotated().recorded(store)
            place = self.folder / ROTATION_FOLDER
            train_rotation(place, store, self.encoder, recorded, progress=self.progress, on_wait=self._waits)
        pairs = list(zip(self.segments, stores, strict=True))
        encode_segments(pairs, self._made_with(), shard=shard, progress=self.progress)

    def _refuse_repeated_ids(self) -> None:
        """Raise CorpusError if documents of two segments have one id; within a segment packing has seen to that."""
        blocks = self._all_blocks()
        if len(self.shares) == 1 or (pair := blocks.repeated_documents()) is None:
            return
        identifier, _ = blocks.document_ids(pair)
        first, second = np.searchsorted(blocks.segment_documents, pair, side="right") - 1  # i64 each
        raise CorpusError(f"{identifier!r} comes twice, in segments {first} and {second}: leave out ids, or change it")

    def _counts(self) -> list[Counts]:
        """The counts of the segments, all of whose vectors must be there."""
        for segment in self.segments:
            if not BlockStore.is_finished(segment.corpus):
                raise ArtifactError(
                    f"{segment.corpus} is missing or unfinished; "
                    "run `npmlm build … stage=encode` with the same settings first"
                )
        stores, made_with = self._stores(), self._made_with()
        return [
            finish_segment(segment, store, made_with.recorded(store), self.settings.lexicon)
            for segment, store in zip(self.segments, stores, strict=True)
        ]

    def _quantise(self) -> Path | None:
        self._counts()
        place, search = self.folder / QUANTISER_FOLDER, self.settings.search
        return train_segment_quantiser(place, self.segments, self._all_blocks(), search, progress=self.progress)

    def _quantiser(self) -> Quantiser | None:
        """The trained quantiser; None in the exact tier."""
        place = self.folder / QUANTISER_FOLDER
        if not (place / MANIFEST_NAME).is_file() and self._quantise() is None:
            return None
        return Quantiser.open(place)

    def _waits(self) -> None:
        self.notice("waits for another job of this build")

    def _merge(self) -> IndexManifest:
        counts = self._counts()
        quantiser = self._quantiser()
        if quantiser is not None:
            for segment in self.segments:
                finish_codes(segment, quantiser)
        search = self.folder / SEARCH_FOLDER / FIRST
        with folder_lock(search, wait=True, on_wait=self._waits):
            if (self.folder / MANIFEST_NAME).is_file():
                return Generation.read(self.folder).manifest
            finish_search(search, self.segments, quantiser, progress=self.progress)
            if self.settings.copy_encoder:
                copy_encoder(self.folder / ENCODER_FOLDER, self.settings.encoder, self.encoder)
            chosen = self.settings.search
            wanted = IndexManifest(
                self.made,
                segments={
                    segment.name: SegmentRecord(self._sources(number), counts[number])
                    for number, segment in enumerate(self.segments)
                },
                quantiser=None if quantiser is None else QUANTISER_FOLDER,
                search_folder=f"{SEARCH_FOLDER}/{FIRST}",
                searching=Searching(chosen.probed_lists, chosen.rerank_factor),
                rotation=self.settings.rotation,
            )
            return write_generation(self.folder, wanted)


def _finished(
    folder: Path, made: Mapping[str, Any], shares: Sequence[Sequence[Source]], *, is_job: bool
) -> IndexManifest | None:
    """The manifest of a finished index of the same input and settings; versions and counts are no settings.

    A job takes files of the same name and size for the same, as every job does whose blocks are packed already.
    Raises ArtifactError if the finished index is another one, was changed after it was built, or lacks a part.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    return on_present(folder, lambda generation: _checked(generation, made, shares, is_job=is_job))


def _checked(
    generation: Generation, made: Mapping[str, Any], shares: Sequence[Sequence[Source]], *, is_job: bool
) -> IndexManifest:
    folder, finished = generation.folder, generation.manifest
    was_added_to = any(segment.corpus for segment in finished.segments.values())
    if FIRST not in finished.segments or was_added_to or finished.deleted is not None:
        raise ArtifactError(
            f"{folder} was changed after it was built ({len(finished.segments)} segments, {finished.deleted_documents} "
            "documents deleted); change it with npmlm add and npmlm delete, or build into another folder"
        )
    compared = []
    for recorded_settings, count in ((made, len(shares)), (finished.settings, len(finished.segments))):
        own = {item.name: recorded_settings.get(item.name) for item in fields(IndexBuildSettings)}
        encoder = {name: value for name, value in recorded_settings["encoder"].items() if name != "name"}
        compared.append({**own, "segments": count, "encoder": encoder})
    refuse_changed(*compared, where=folder)
    recorded = [record for segment in finished.segments.values() for record in segment.sources]
    sources = input_record([source for share in shares for source in share], recorded if is_job else ())
    refuse_other_files(sources, recorded, where=folder, is_finished=True)
    verify_folder(folder, INDEX_KIND, hash_all=False)  # nothing is finished that lacks a part
    return finished


def refuse_other_files(
    sources: Sequence[Mapping[str, Any]],
    recorded: Sequence[Mapping[str, Any]],
    *,
    where: Path,
    is_finished: bool = False,
) -> None:
    """Raise ArtifactError, naming the files, unless `sources` are those `recorded`; files can be added if finished."""
    if list(sources) == list(recorded):
        return
    ours, theirs = ({record["name"]: record for record in part} for part in (sources, recorded))
    added, gone = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    changed = [name for name, record in theirs.items() if ours.get(name, record) != record]
    differences = [
        f"{len(names)} {'file' if len(names) == 1 else 'files'} {what}: {named(names)}"
        for what, names in (("added", added), ("changed", changed), ("gone", gone))
        if names
    ]
    fix = "give the files that it was built from, or build into another folder"
    if added and len(differences) == 1 and is_finished:
        fix = f"run npmlm add {shlex.quote(f'index={where}')} with these files and the other corpus settings"
    found = "; ".join(differences) or "the same files in another order"
    raise ArtifactError(f"{where} was built from other files ({found}); {fix}")
