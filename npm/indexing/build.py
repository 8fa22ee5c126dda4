"""Build a phrase index: documents → blocks → vectors → quantiser → codes → lists, then the root manifest.

A build that was killed continues with the same command. Its stages may be jobs of their own, each a shard of a stage.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.locking import folder_lock
from index.manifest import MANIFEST_NAME, read_manifest
from index.quantiser import Quantiser
from index.settings import check_search
from index.store import refuse_changed
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, SkippedRecords, read_corpus
from npm.corpus.sources import FileState, file_states, find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import ArtefactError, CorpusError, named
from npm.indexing.block_vectors import POOLER_KEY
from npm.indexing.disk_needs import check_disk_needs
from npm.indexing.embed import VECTORS_KIND, check_input_tokens, pruning_counts
from npm.indexing.generation import (
    ENCODER_FOLDER,
    QUANTISER_FOLDER,
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
    recorded_corpus,
    write_generation,
)
from npm.indexing.layout import clear_dead_locks, clear_folder, refuse_links, refuse_others
from npm.indexing.settings import IndexBuildSettings, Stage
from npm.indexing.stages import (
    WHOLE,
    SegmentSettings,
    Shard,
    code_segment,
    encode_segment,
    finish_codes,
    finish_search,
    finish_segment,
    merge_parts,
    missing_parts,
    train_segment_quantiser,
)
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.types import Progress, silent

MOST_SUGGESTED = 10
FIRST = "00000"
"""The name of the segment and of the search folder that a build makes."""


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


def block_vectors_note(folder: Path, pooler: PoolerKind | None) -> str:
    """What to say of a finished index that would get block vectors if it were built now; else nothing."""
    if pooler is None or POOLER_KEY in read_manifest(Segment(folder, FIRST).vectors, kind=VECTORS_KIND).settings:
        return ""
    return f"note: {folder} was built before there were block vectors; build into another folder to have them"


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
    loads the one of the settings; `notice(message)` says whom a job waits for, what to think of `settings.dimensions`
    and `settings.blocks.title_tokens`, and what a finished index lacks. Raises CorpusError for input that cannot be
    read, SettingError for more dimensions than the encoder's vectors have, ArtefactError if `folder` holds something
    else, was begun with other settings or lacks what an earlier stage should have left, EncoderError if the encoder
    cannot serve, StorageError if the disk refuses or has no room. A new folder in which nothing was finished is taken
    away again.
    """
    folder = Path(folder)
    refuse_others(folder)
    refuse_links(folder)
    states = file_states(settings.corpus.files)
    sources = input_record(settings.corpus)
    if encoder is None:
        encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision)
    encoder = encoder.cut_to(settings.dimensions)
    settings = replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens))
    made = as_record(settings, encoder, IndexBuildSettings)
    if (finished := _finished(folder, made, sources, settings.corpus)) is not None:
        clear_dead_locks(folder)
        if note := block_vectors_note(folder, settings.vectors.block_pooler(encoder)):
            notice(note)
        return BuildResult(finished, was_finished=True)
    check_input_tokens(encoder, settings.blocks.max_block_tokens)
    if stage in (None, Stage.encode):
        for note in filter(None, (dimension_note(encoder), title_note(encoder, settings.blocks))):
            notice(note)
    was_there = folder.exists()
    build = _Build(folder, settings, encoder, made, sources, states, progress, notice)
    try:
        with folder_lock(folder, shared=stage is not None):
            built = build.run(stage, shard)
        if built.manifest is not None:
            clear_dead_locks(folder)
        return built
    except BaseException as error:
        if not was_there and stage is None:
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
    if (finished := _finished(folder, made, [], settings.corpus)) is not None:
        return BuildResult(finished, was_finished=True)
    with folder_lock(folder):
        return _Build(folder, settings, encoder, made, [], [], progress, print_nothing).run(None, WHOLE)


@dataclass(frozen=True, slots=True)
class _Build:
    """The first segment of an index, stage by stage."""

    folder: Path
    settings: IndexBuildSettings
    encoder: Encoder
    made: dict[str, Any]
    sources: list[dict[str, Any]]
    states: list[FileState]  # of the files, before they were read for `sources`
    progress: Progress
    notice: Callable[[str], None]

    def run(self, stage: Stage | None, shard: Shard) -> BuildResult:
        """One stage, or all of them in order."""
        if (self.folder / MANIFEST_NAME).is_file():  # another process finished it while we waited
            return BuildResult(Generation.read(self.folder).manifest, was_finished=True)
        if stage in (None, Stage.encode):
            search, dimensions = self.settings.search, self.encoder.dimensions
            check_search(search, dimensions)
            store = self._store()
            if search.asks_for_lists:
                kept = pruning_counts(store, self.settings.vectors.pruning, np.zeros(0, dtype=np.int64))["kept"]
                check_search(search, dimensions, row_count=kept)
            encode_segment(self.segment, store, self._segment_settings, shard=shard, progress=self.progress)
        if stage in (None, Stage.quantise) and shard.number == 1:
            self._quantise()
        if stage in (None, Stage.code) and (quantiser := self._quantiser()) is not None:
            code_segment(self.segment, quantiser, shard=shard, progress=self.progress)
        if stage in (None, Stage.merge):
            return BuildResult(self._merge(shard), was_finished=False)
        return BuildResult(None, was_finished=False)

    @property
    def segment(self) -> Segment:
        """The one segment of a fresh index."""
        return Segment(self.folder, FIRST)

    @property
    def _segment_settings(self) -> SegmentSettings:
        vectors = self.settings.vectors
        return SegmentSettings(self.encoder, vectors, self.settings.lexicon, vectors.block_pooler(self.encoder))

    def _store(self) -> BlockStore:
        """The blocks; whichever job comes first packs them, and the others wait for it.

        Raises ArtefactError if those that are there were made from something else.
        """
        packing = {"sources": self.sources, "corpus": self.made["corpus"], "blocks": self.made["blocks"]}
        if not BlockStore.is_finished(self.segment.corpus):
            check_disk_needs(self.folder, self.settings, self.encoder)
            packer = BlockPacker(self.encoder.tokenizer, self.settings.blocks)
            with folder_lock(self.segment.folder / "packing", wait=True, on_wait=self._waits):
                skipped = SkippedRecords.beside(self.folder)
                store = build_block_store(
                    self.segment.corpus,
                    read_corpus(self.settings.corpus, skipped=skipped, since=self.states),
                    packer,
                    settings=packing,
                    progress=self.progress,
                )
            for note in (skipped.summary, packer.unknown.note):
                if note:
                    self.notice(note)
            return store
        store = BlockStore.open(self.segment.corpus)
        if self.sources:  # without them the blocks were handed over ready
            refuse_other_files(self.settings.corpus, self.sources, store.settings["sources"], where=self.folder)
            refuse_changed(packing, {name: store.settings[name] for name in packing}, where=self.folder)
        return store

    def _encoded_store(self) -> tuple[BlockStore, Counts]:
        """The blocks and the counts of the segment, all of whose vectors must be there."""
        if not BlockStore.is_finished(self.segment.corpus):
            raise ArtefactError(
                f"{self.folder} has no blocks yet",
                expected="the vectors of all shards",
                got="no finished block store",
                where=str(self.segment.corpus),
                fix="run `npmlm build … stage=encode` with the settings of this build first",
            )
        store = self._store()
        recorded = self._segment_settings.recorded(store)
        return store, finish_segment(self.segment, store, recorded, self.settings.lexicon)

    def _quantise(self) -> Path | None:
        store, _ = self._encoded_store()
        place = self.folder / QUANTISER_FOLDER
        return train_segment_quantiser(place, [self.segment], store, self.settings.search, progress=self.progress)

    def _quantiser(self) -> Quantiser | None:
        """The trained quantiser; None in the exact tier."""
        place = self.folder / QUANTISER_FOLDER
        if not (place / MANIFEST_NAME).is_file() and self._quantise() is None:
            return None
        return Quantiser.open(place)

    def _waits(self, holders: str) -> None:
        self.notice(f"waits for another job of this build: {holders}")

    def _merge(self, shard: Shard) -> IndexManifest | None:
        _, counts = self._encoded_store()
        quantiser = self._quantiser()
        if quantiser is not None:
            finish_codes(self.segment, quantiser)
        search = self.folder / SEARCH_FOLDER / FIRST
        merge_parts(search, [self.segment], quantiser, shard=shard, progress=self.progress)
        if missing_parts(search, [self.segment], quantiser):
            return None
        with folder_lock(search, wait=True, on_wait=self._waits):
            if (self.folder / MANIFEST_NAME).is_file():
                return Generation.read(self.folder).manifest
            finish_search(search, [self.segment], quantiser, progress=self.progress)
            if self.settings.copy_encoder:
                copy_encoder(self.folder / ENCODER_FOLDER, self.settings.encoder, self.encoder)
            chosen = self.settings.search
            wanted = IndexManifest(
                self.made,
                segments={FIRST: SegmentRecord(self.sources, counts)},
                quantiser=None if quantiser is None else QUANTISER_FOLDER,
                search_folder=f"{SEARCH_FOLDER}/{FIRST}",
                searching=Searching(chosen.probed_lists, chosen.rerank_factor),
            )
            return write_generation(self.folder, wanted)


def _finished(
    folder: Path, made: Mapping[str, Any], sources: list[dict[str, Any]], corpus: CorpusSettings
) -> IndexManifest | None:
    """The manifest of a finished index of the same input and settings; versions and counts are no settings.

    Raises ArtefactError if the finished index is another one, or was changed after it was built.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    finished = Generation.read(folder).manifest
    if set(finished.segments) != {FIRST} or finished.deleted is not None:
        raise ArtefactError(
            f"{folder} was changed after it was built",
            expected="an index with the documents of one build",
            got=f"generation {finished.generation}, segments {', '.join(finished.segments)}, "
            f"{finished.deleted_documents} documents deleted",
            where=str(folder),
            fix="use npmlm add and npmlm delete to change it, or build into another folder",
        )
    refuse_changed(_comparable(made), _comparable(finished.settings), where=folder)
    refuse_other_files(corpus, sources, finished.segments[FIRST].sources, where=folder, is_finished=True)
    return finished


def refuse_other_files(
    corpus: CorpusSettings,
    sources: Sequence[Mapping[str, Any]],
    recorded: Sequence[Mapping[str, Any]],
    *,
    where: Path,
    is_finished: bool = False,
) -> None:
    """Raise ArtefactError, naming the files, unless `sources` are those `recorded`; files can be added if finished."""
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
        paths = {source.name: source.path for source in find_sources(corpus.files)}
        usual = {**recorded_corpus(CorpusSettings()), "kept_fields": corpus.kept_fields}  # which add takes over
        reading = [(name, value) for name, value in recorded_corpus(corpus).items() if value != usual.get(name)]
        files = f"corpus.files=[{','.join(paths[name] for name in added[:MOST_SUGGESTED])}]"
        command = [
            "npmlm",
            "add",
            f"index={where}",
            files,
            *(f"corpus.{name}={str(value).lower() if value is True else value}" for name, value in reading),
        ]
        fix = shlex.join(command) + (" and so on" if len(added) > MOST_SUGGESTED else "")
    raise ArtefactError(
        f"{where} was built from other files",
        expected=f"the files of then, unchanged ({len(recorded)})",
        got="; ".join(differences) or "the same files in another order",
        where=str(where),
        fix=fix,
    )


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    # an index that was built before there was such a setting lacks its value, and holds whole vectors
    compared = {item.name: settings.get(item.name) for item in fields(IndexBuildSettings)}
    return {**compared, "encoder": {name: value for name, value in settings["encoder"].items() if name != "name"}}
