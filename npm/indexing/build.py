"""Build a phrase index: documents → blocks → vectors → quantizer → codes → lists, then the root manifest.

A build that was killed continues with the same command. Its stages may be separate jobs, each a shard of a stage.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.ivf import Quantizer
from index.settings import SearchTier, fitting_settings
from npm.core.artifact import (
    MANIFEST_NAME,
    clear_locks,
    folder_lock,
    read_manifest,
    refuse_changed,
    verify_folder,
    written_once,
)
from npm.core.errors import ArtifactError, CorpusError, SettingError, exclusive
from npm.core.files import FolderWriter
from npm.core.settings import WHOLE, Shard
from npm.core.types import Progress, silent
from npm.corpus.blocks import BlockPacker
from npm.corpus.documents import SkippedRecords, read_corpus
from npm.corpus.sources import Source, find_sources, unread_files
from npm.corpus.store import BlockStore, build_block_store
from npm.indexing.embed import check_input_tokens, pruning_counts, recorded_vectors, vector_shards
from npm.indexing.generation import (
    CORPUS,
    ENCODER,
    ENCODER_KIND,
    INDEX_KIND,
    ROTATION,
    Counts,
    Generation,
    IndexManifest,
    Searching,
    Segment,
    SegmentRecord,
    as_record,
    on_present,
    part,
    refuse_others,
    remove_unlisted,
    write_generation,
)
from npm.indexing.rotation import opened_axes, rotation_request, train_rotation
from npm.indexing.settings import IndexBuildSettings, Rotation, Stage
from npm.indexing.stages import (
    Part,
    codes_part,
    corpus_part,
    encoded_parts,
    finish_search,
    make_parts,
    make_segments,
    train_segment_quantizer,
)
from npm.models.encoder import Encoder


def training_notes(encoder: Encoder, settings: IndexBuildSettings) -> Iterator[str]:
    """Warnings for vectors of a length, and for titles of blocks, that the encoder was not trained for."""
    lengths = (*encoder.trained_dimensions, encoder.whole_dimensions)
    if encoder.dimensions not in lengths and settings.rotation is Rotation.none:
        yield (
            f"note: {encoder.name} was not trained for vectors of {encoder.dimensions} dimensions (but of "
            f"{', '.join(map(str, lengths))}), so answers may be much worse; npmlm train experiment=matryoshka trains "
            "one for several lengths"
        )
    counts = (encoder.title_tokens, settings.blocks.title_tokens)
    if counts[0] != counts[1]:
        trained, given = (f"{count} tokens of titles" if count else "no titles" for count in counts)
        yield (
            f"note: {encoder.name} was trained with {trained} in front of blocks, and this index gets {given}, so "
            "answers may be worse; without blocks.title_tokens= it is as in training"
        )


def no_notice(_: str) -> None:
    """Default: notices go nowhere."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Result of a build."""

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
    notice: Callable[[str], None] = no_notice,
) -> BuildResult:
    """Build the index in `folder`, or resume one with the same settings that was stopped.

    `stage` and `shard` are for jobs that build one index together; without a stage all of them are run. `encoder` None
    loads the one of the settings; `notice(message)` reports the job that is waited for, and warnings on
    `settings.dimensions` and `settings.blocks.title_tokens`. Raises CorpusError for input that cannot be read,
    SettingError for more segments than files or more dimensions than the encoder has, ArtifactError if `folder`
    contains something else or another finished index, or the output of an earlier stage is missing, EncoderError if
    it cannot serve, StorageError if the disk is full. A new folder in which nothing was finished is removed again.
    """
    folder = Path(folder)
    refuse_others(folder)
    sources, count = find_sources(settings.corpus.files), settings.segments
    if count > len(sources):
        raise SettingError(f"segments must be at most the number of corpus files, {len(sources)}, got {count}")
    if count > 1 and settings.corpus.max_documents is not None:
        raise exclusive("segments", "corpus.max_documents")
    shares = [Shard(number, count).of(sources) for number in range(1, count + 1)]
    if encoder is None:
        encoder = Encoder.load(
            settings.encoder, device=settings.device, dtype=settings.precision, for_reading=not settings.copy_encoder
        )
    encoder = encoder.cut_to(settings.dimensions)
    settings = replace(settings, blocks=settings.blocks.resolved(encoder.title_tokens))
    made = as_record(settings, encoder)
    build = _Build(folder, settings, encoder, made, shares, stage is not None, progress, notice)
    if (finished := build.finished()) is not None:
        clear_locks(folder)
        return BuildResult(finished, was_finished=True)
    check_input_tokens(encoder, settings.blocks.max_block_tokens)
    if stage in (None, Stage.encode):
        for note in training_notes(encoder, settings):
            notice(note)
    if stage is not None:
        return build.run(stage, shard)
    with clears_failed_build(folder), folder_lock(folder):
        return build.run(stage, shard)


@contextmanager
def clears_failed_build(folder: Path) -> Iterator[None]:
    """Remove a new folder if a build in it fails: with its parts if the corpus cannot be used, else if it is empty."""
    was_there = folder.exists()
    try:
        yield
    except BaseException as error:
        if not was_there and folder.is_dir():
            if isinstance(error, CorpusError):
                remove_unlisted(folder, ())
            with suppress(OSError):  # it contains finished parts, or another job is at work in it
                folder.rmdir()
        raise


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
    corpora: dict[int, tuple[Path, dict[str, Any]]] = field(default_factory=dict)  # of each segment, once it is known

    def finished(self) -> IndexManifest | None:
        """The manifest of the finished index of the same input and settings; versions and counts are no settings.

        An index without vectors that the settings ask for is not finished.
        Raises ArtifactError if the finished index is another one, was changed after it was built, or a part is missing.
        """
        if not (self.folder / MANIFEST_NAME).is_file():
            return None
        return on_present(self.folder, self._checked)

    def _checked(self, generation: Generation) -> IndexManifest | None:
        finished, compared = generation.manifest, []
        stored, wanted_vectors = finished.vectors, self.settings.vectors
        has_all = stored.tokens >= wanted_vectors.tokens and stored.blocks >= wanted_vectors.blocks
        for recorded in (self.made, finished.settings):
            names = [item.name for item in fields(IndexBuildSettings) if item.name != "segments"]
            own: dict[str, Any] = {name: recorded.get(name) for name in names}
            if not has_all:  # what is missing is added
                own["vectors"] = {**own["vectors"], "tokens": True, "blocks": True}
            encoder = {name: value for name, value in recorded["encoder"].items() if name != "name"}
            compared.append({**own, "encoder": encoder})
        refuse_changed(*compared, where=self.folder)
        wanted = [self._corpus(number)[0].name for number in range(len(self.shares))]
        if wanted != [segment.corpus for segment in finished.segments] or finished.deleted is not None:
            raise ArtifactError(
                f"{self.folder} was built from other files or blocks, or was changed since: run npmlm add "
                f"{shlex.quote(f'index={self.folder}')} or npmlm delete to change it, or build into another folder"
            )
        verify_folder(self.folder, INDEX_KIND, hash_all=False)  # an index with a missing part is not finished
        return finished if has_all else None

    def run(self, stage: Stage | None, shard: Shard) -> BuildResult:
        """One stage, or all of them in order."""
        if (finished := self.finished()) is not None:  # by another process while we waited
            return BuildResult(finished, was_finished=True)
        if stage is Stage.pack:
            for number in shard.of(range(len(self.shares))):
                self._packed(number)
            return BuildResult(None, was_finished=False)
        stores = self._stores(shard, packs=stage in (None, Stage.encode))
        blocks = BlockStore.open(*(self._corpus(number)[0] for number in range(len(stores))))
        if stage in (None, Stage.encode):
            self._check_rows(stores, blocks, shard)
        encoder, rotation = self._rotated(blocks, trains=stage in (None, Stage.encode))
        pooler = self.settings.vectors.block_pooler(self.encoder)
        parts = [
            encoded_parts(self.folder, self._corpus(number)[0], store, encoder, self.settings, pooler)
            for number, store in enumerate(stores)
        ]
        if stage in (None, Stage.encode):
            make_segments(parts, shard=shard, progress=self.progress)
            if stage is not None:
                return BuildResult(None, was_finished=False)
        segments, counts = zip(*(each.finish() for each in parts), strict=True)
        if stage is Stage.quantize and shard.number > 1:
            return BuildResult(None, was_finished=False)
        search = self.settings.search
        place = train_segment_quantizer(self.folder, segments, blocks, search, progress=self.progress)
        quantizer = None if place is None else Quantizer.open(place)
        codes = [] if quantizer is None else [codes_part(self.folder, segment, quantizer) for segment in segments]
        if stage in (None, Stage.code):
            make_parts(codes, shard=shard, progress=self.progress)
        if stage in (None, Stage.merge):
            return BuildResult(self._merged(segments, counts, quantizer, codes, rotation), was_finished=False)
        return BuildResult(None, was_finished=False)

    def _corpus(self, number: int) -> tuple[Path, dict[str, Any]]:
        """The part with the blocks of a segment, and what it is made from."""
        if number not in self.corpora:
            packed = filter(BlockStore.is_finished, self.folder.glob(f"{CORPUS}-*") if self.is_job else ())
            known = [each for place in packed for each in read_manifest(place).settings.get("sources", [])]
            tokenizer = self.encoder.tokenizer_fingerprint
            corpus, blocks = self.settings.corpus, self.settings.blocks
            self.corpora[number] = corpus_part(self.folder, self.shares[number], corpus, blocks, tokenizer, known)
        return self.corpora[number]

    def _stores(self, shard: Shard, *, packs: bool) -> list[BlockStore]:
        """The blocks of each segment; a job packs those of its share first, where no other job has."""
        numbers = range(len(self.shares))
        for number in numbers:
            if not packs and not BlockStore.is_finished(self._corpus(number)[0]):
                raise ArtifactError(
                    f"{self.folder} has no blocks of segment {number}; run `npmlm build … stage=encode` with the same "
                    "settings first"
                )
        mine = shard.of(numbers)
        opened = {number: self._packed(number) for number in sorted(numbers, key=lambda number: number not in mine)}
        return [opened[number] for number in numbers]

    def _packed(self, number: int) -> BlockStore:
        """The blocks of a segment; whichever job comes first packs them, and the others wait for it."""
        place, request = self._corpus(number)
        if BlockStore.is_finished(place):
            return BlockStore.open(place)
        packer = BlockPacker(self.encoder.tokenizer, self.settings.blocks)
        with folder_lock(self.folder / f"packing-{number}", wait=True, on_wait=self._waits):
            own = self.folder.resolve()
            if len(self.shares) > 1:
                own = own.with_name(f"{own.name}.{number:05d}")
            skipped = SkippedRecords.beside(own)
            documents = read_corpus(self.settings.corpus, sources=self.shares[number], skipped=skipped)
            store = build_block_store(place, documents, packer, settings=request, progress=self.progress)
        unread = unread_files(self.settings.corpus.files)
        for note in filter(None, (skipped.summary, unread, packer.unknown.note)):
            self.notice(note)
        return store

    def _check_rows(self, stores: Sequence[BlockStore], blocks: BlockStore, shard: Shard) -> None:
        """Raise SettingError as `fitting_settings` does, and CorpusError if documents of two segments have one id."""
        vectors, search = self.settings.vectors, self.settings.search
        if search.list_count is not None or search.memory_bytes is not None or search.tier is SearchTier.ivf_pq:
            kept = sum(pruning_counts(store, vectors.pruning)["kept"] for store in stores)
            fitting_settings(search, kept, self.encoder.dimensions)
        shard_count = sum(len(vector_shards(store, vectors.tokens_per_shard)) for store in stores)
        # Ids are compared by one job, without which no build comes to its end; within a segment packing has done it.
        if len(stores) == 1 or 0 not in shard.of(range(shard_count)):
            return
        if (pair := blocks.repeated_documents()) is not None:
            identifier, _ = blocks.document_ids(pair)
            first, second = np.searchsorted(blocks.segment_documents, pair, side="right") - 1  # i64 each
            raise CorpusError(
                f"{identifier!r} comes twice, in segments {first} and {second}: leave out ids, or change it"
            )

    def _rotated(self, blocks: BlockStore, *, trains: bool) -> tuple[Encoder, str | None]:
        """The encoder with its rotation, and the part with the axes, which `trains` makes if it is missing."""
        vectors = self.settings.vectors
        if self.settings.rotation is Rotation.none:
            return self.encoder, None
        pooler = vectors.block_pooler(self.encoder)
        request = rotation_request(recorded_vectors(blocks, self.encoder, vectors, block_pooler=pooler))
        place = part(self.folder, ROTATION, request)
        if trains:
            train_rotation(place, blocks, self.encoder, request, progress=self.progress, on_wait=self._waits)
        elif not (place / MANIFEST_NAME).is_file():
            raise ArtifactError(f"{place} is missing; run `npmlm build … stage=encode` with the same settings first")
        axes = opened_axes(place, (self.encoder.dimensions, self.encoder.whole_dimensions))  # f32 [k, d]
        return self.encoder.cut_to(self.settings.dimensions, axes=axes), place.name

    def _waits(self) -> None:
        self.notice("waits for another job of this build")

    def _merged(
        self,
        segments: Sequence[Segment],
        counts: Sequence[Counts],
        quantizer: Quantizer | None,
        codes: Sequence[Part],
        rotation: str | None,
    ) -> IndexManifest:
        """Merge the codes into lists, write the root manifest, and remove what it does not list."""
        with folder_lock(self.folder, wait=True, on_wait=self._waits):
            before = None
            if (self.folder / MANIFEST_NAME).is_file():
                if (finished := self.finished()) is not None:
                    return finished
                before = Generation.read(self.folder).manifest
            for each in codes:
                each.finish()
            if codes:
                segments = [replace(segment, codes=each.folder) for segment, each in zip(segments, codes, strict=True)]
            settings, chosen = self.settings, self.settings.search
            wanted = IndexManifest(
                self.made,
                generation=0 if before is None else before.generation + 1,
                adaptation_folder=None if before is None else before.adaptation_folder,
                segments=tuple(
                    SegmentRecord.of(segment, self._corpus(number)[1]["sources"], counts[number])
                    for number, segment in enumerate(segments)
                ),
                quantizer=None if quantizer is None else quantizer.file.parent.name,
                search_folder=finish_search(self.folder, segments, quantizer, progress=self.progress).name,
                searching=Searching(chosen.probed_lists, chosen.rerank_factor),
                rotation_folder=rotation,
                encoder_folder=(
                    copy_encoder(self.folder, settings.encoder, self.encoder) if settings.copy_encoder else None
                ),
            )
            manifest = write_generation(self.folder, wanted, replaces=None if before is None else before.digest)
            remove_unlisted(self.folder, manifest.parts)
            return manifest


def copy_encoder(folder: Path, name: str, encoder: Encoder) -> str:
    """Save the encoder as a part that `transformers` loads; returns its name."""
    import torch

    from npm.models.encoder import Encoder

    def write(writer: FolderWriter) -> None:
        whole = next(encoder.model.parameters()).dtype is torch.float32 and not encoder.for_reading
        # What computes in bfloat16 has lost bits that the fingerprint counts, and what reads cannot be saved.
        original = encoder if whole else Encoder.load(name, device="cpu", dtype="float32")
        if original.fingerprint != encoder.fingerprint:
            raise SettingError(
                f"copy_encoder=true: {name or original.name} has other weights than the encoder in use (fingerprint "
                f"{original.fingerprint}, expected {encoder.fingerprint}); set precision=float32, or encoder to its "
                "folder"
            )
        original.save(writer.folder)

    request = {"fingerprint": encoder.fingerprint}
    place = part(folder, ENCODER, request)
    written_once(place, kind=ENCODER_KIND, settings=request, write=write)
    return place.name
