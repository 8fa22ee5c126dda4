"""The folders of an index, and the root manifest that says which of them make up its present generation.

    manifest.json                       the generation: the folders below, by digest, and how it was made
    segments/00000/{corpus,vectors,lexicon,codes}   what one build or one add brought
    quantiser/, search/00000/           how vectors are looked for; the exact tier has no quantiser and no codes
    search/00000/00000/                 of a partitioned index: how those of the first partition are
    deleted/00000/                      numbers of deleted documents
    rotation/                           axes of rotated vectors, with rotation=pca
    encoder/                            with copy_encoder=true

A change writes new folders beside the old ones and then replaces the manifest by one rename, so a reader keeps
the generation that it opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from index.settings import SearchSettings
from npm.core.artifact import (
    Manifest,
    check_folder,
    finished_folder,
    open_array,
    part_folder,
    read_manifest,
    write_manifest,
    written_once,
)
from npm.core.errors import ArtifactError, SettingError, damaged, named
from npm.core.files import FolderWriter, sha256_of_file
from npm.core.locks import folder_lock
from npm.core.records import read_as
from npm.core.settings import as_json, settings_from
from npm.corpus.addresses import file_size
from npm.corpus.sources import Source
from npm.indexing.settings import Rotation

if TYPE_CHECKING:
    from npm.corpus.documents import CorpusSettings
    from npm.models.encoder import Encoder


INDEX_KIND, ENCODER_KIND, DELETED_KIND = "phrase-index", "encoder", "deleted-documents"
SEGMENTS_FOLDER, ENCODER_FOLDER, QUANTISER_FOLDER = "segments", "encoder", "quantiser"
SEARCH_FOLDER, DELETED_FOLDER, ROTATION_FOLDER = "search", "deleted", "rotation"
CORPUS_FOLDER, VECTORS_FOLDER, LEXICON_FOLDER, CODES_FOLDER = "corpus", "vectors", "lexicon", "codes"
Made = TypeVar("Made")
EXACT_CANDIDATES, APPROXIMATE_CANDIDATES = 4096, 512
"""Rows grown into phrases for each side unless said otherwise, in the exact tier and in the others."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one build or one add brought to the index in `index`; immutable once it is finished."""

    index: Path
    name: str

    @property
    def folder(self) -> Path:
        """The segment's own folder."""
        return self.index / SEGMENTS_FOLDER / self.name

    @property
    def corpus(self) -> Path:
        """Documents and blocks."""
        return self.folder / CORPUS_FOLDER

    @property
    def vectors(self) -> Path:
        """Stored vectors."""
        return self.folder / VECTORS_FOLDER

    @property
    def lexicon(self) -> Path:
        """Term counts; absent where the corpus has no text."""
        return self.folder / LEXICON_FOLDER

    @property
    def codes(self) -> Path:
        """Codes; absent where the tier needs none."""
        return self.folder / CODES_FOLDER

    def parts(self) -> list[Path]:
        """The folders that are there."""
        return [part for part in (self.corpus, self.vectors, self.lexicon, self.codes) if part.is_dir()]


Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]
SegmentName = Annotated[str, Field(pattern=r"^[0-9]{5}$")]
QuantiserName = Annotated[str, Field(pattern=rf"^{QUANTISER_FOLDER}(\.[0-9]+)?$")]
SearchName = Annotated[str, Field(pattern=rf"^{SEARCH_FOLDER}/[0-9]{{5}}$")]
DeletedName = Annotated[str, Field(pattern=rf"^{DELETED_FOLDER}/[0-9]{{5}}$")]
SETTINGS_GROUPS = ("corpus", "blocks", "vectors", "lexicon", "search")


@dataclass(frozen=True, slots=True)
class Counts:
    """How much an index, or one of its segments, holds."""

    documents: Count
    blocks: Count
    tokens: Count
    rows: Count


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """What the root manifest says of a segment."""

    sources: list[dict[str, Any]]  # name, bytes and SHA-256 of each corpus file
    counts: Counts
    corpus: dict[str, Any] | None = None  # how an add read the files; None: as the first build did
    compacted: bool = False  # made of other segments, whose sources it names

    def as_record(self) -> dict[str, Any]:
        """As JSON values, without what is not so."""
        optional = {"corpus": self.corpus, "compacted": self.compacted}
        held = {"sources": self.sources, "counts": asdict(self.counts)}
        return held | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class EncoderRecord:
    """The encoder that made an index."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class Searching:
    """How an index is searched unless said otherwise; None: as suits its search folder."""

    probed_lists: AtLeastOne | None = None
    rerank_factor: AtLeastOne | None = None
    candidates_per_side: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """The root manifest of an index, read once; the one without any values is that of texts in memory."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # all of it, or of a new index: how it is made
    digest: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)  # digests of the folders, by name
    generation: Count = 0  # after the first build; every change adds one
    segments: Mapping[SegmentName, SegmentRecord] = field(default_factory=dict)
    counts: Counts = Counts(0, 0, 0, 0)  # with the documents that are deleted
    quantiser: QuantiserName | None = None  # names of folders, as those below; None in the exact tier
    search_folder: SearchName = ""
    deleted: DeletedName | None = None  # None: no document is
    deleted_documents: int = 0
    deletion: str | None = None  # digest of the ids of the last delete, which may be repeated after a compact
    searching: Searching = Searching()
    encoder: EncoderRecord = EncoderRecord("", "", "")
    dimensions: AtLeastOne | None = None  # to which vectors are cut; None: whole ones
    rotation: Rotation = Rotation.none  # before they are cut

    @classmethod
    def of(cls, manifest: Manifest) -> IndexManifest:
        """`manifest` read. Raises ArtifactError for one that is not what every index records."""
        settings = manifest.settings
        others = ("settings", "digest", "parts", "deleted_documents")
        recorded = {item.name: settings[item.name] for item in fields(cls) if item.name not in others}
        read: IndexManifest = read_as(cls, recorded, file=settings.file)
        read = replace(
            read,
            settings=settings,
            digest=manifest.digest,
            parts=manifest.parts,
            segments=dict(sorted(read.segments.items())),
            deleted_documents=settings.typed("counts.deleted_documents", Count),
        )
        for group in SETTINGS_GROUPS:
            settings.typed(group, dict[str, Any])
        settings.typed("corpus.kept_fields", list[str])
        read._check_parts(settings.file)
        return read

    def _check_parts(self, file: Path) -> None:
        """Raise ArtifactError unless the parts are those of the segments and of the folders named beside them."""
        optional_folders = (self.quantiser, self.search_folder, self.deleted, self.rotation_folder)
        named_folders = {name for name in optional_folders if name is not None}
        needed = {
            f"{SEGMENTS_FOLDER}/{name}/{part}" for name in self.segments for part in (CORPUS_FOLDER, VECTORS_FOLDER)
        }
        optional = {
            f"{SEGMENTS_FOLDER}/{name}/{part}" for name in self.segments for part in (LEXICON_FOLDER, CODES_FOLDER)
        }
        got, needed = set(self.parts), needed | named_folders
        fits = needed <= got <= needed | optional | {ENCODER_FOLDER}
        if not (fits and self.segments and _total([*self.segments.values()]) == self.counts):
            raise damaged(file, f"parts and counts are not those of its segments: {named(sorted(got), most=8)}")

    @property
    def rotation_folder(self) -> str | None:
        """The name of the folder with the axes of rotated vectors; None where they are not rotated."""
        return None if self.rotation is Rotation.none else ROTATION_FOLDER

    @property
    def candidates_per_side(self) -> int:
        """Rows grown into phrases for each side unless said otherwise."""
        automatic = EXACT_CANDIDATES if self.quantiser is None else APPROXIMATE_CANDIDATES
        return self.searching.candidates_per_side or automatic

    @property
    def search_settings(self) -> SearchSettings:
        """The settings of search that the index was built with."""
        return settings_from(SearchSettings, self.settings["search"])

    @property
    def kept_fields(self) -> list[str]:
        """The fields of documents that the index keeps."""
        return list(self.settings["corpus"]["kept_fields"])


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of the index in `folder`, as its root manifest describes it."""

    folder: Path
    manifest: IndexManifest

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """The present one. Raises ArtifactError if there is no finished index, or it is damaged or reaches outside."""
        manifest = IndexManifest.of(read_manifest(folder, kind=INDEX_KIND))
        for name in manifest.parts:
            part_folder(folder, name)
        return cls(folder, manifest)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In the order of their numbers: documents, blocks, tokens and rows are counted through them."""
        return tuple(Segment(self.folder, name) for name in self.manifest.segments)

    @property
    def quantiser(self) -> Path | None:
        """The quantiser's folder; None in the exact tier."""
        return None if self.manifest.quantiser is None else self.folder / self.manifest.quantiser

    @property
    def search(self) -> Path:
        """The search folder."""
        return self.folder / self.manifest.search_folder

    def name_of(self, place: Path) -> str:
        """The name of one of the index's folders, as the manifest has it."""
        return place.relative_to(self.folder).as_posix()

    def deleted_documents(self) -> np.ndarray:
        """Numbers of the deleted documents, ascending i64. Raises ArtifactError if their folder is damaged."""
        if self.manifest.deleted is None:
            return np.zeros(0, dtype=np.int64)
        folder = self.folder / self.manifest.deleted
        check_folder(folder, kind=DELETED_KIND, hash_all=True)
        return np.asarray(open_array(folder, "deleted"), dtype=np.int64)  # i64 [deleted]


def on_present(folder: Path, work: Callable[[Generation], Made]) -> Made:
    """`work` on the present generation of the index in `folder`; again if a change takes its folders away meanwhile."""
    while True:
        generation = Generation.read(folder)
        try:
            return work(generation)
        except (ArtifactError, FileNotFoundError):
            if Generation.read(folder).manifest.digest == generation.manifest.digest:
                raise


def _total(segments: Sequence[SegmentRecord]) -> Counts:
    """How much segments hold together."""
    return Counts(*(sum(getattr(each.counts, item.name) for each in segments) for item in fields(Counts)))


def write_generation(folder: Path, wanted: IndexManifest, *, replaces: str | None = None) -> IndexManifest:
    """Replace the root manifest by `wanted`, whose digest, parts and counts are found here; returns what was written.

    `replaces` is the digest of the manifest that a change began with: raises ArtifactError if it is another by now.
    """
    names = [part.relative_to(folder).as_posix() for name in wanted.segments for part in Segment(folder, name).parts()]
    others = (wanted.quantiser, wanted.search_folder, wanted.deleted, wanted.rotation_folder)
    names += [name for name in others if name is not None]
    if (folder / ENCODER_FOLDER).is_dir():
        names.append(ENCODER_FOLDER)
    counts = asdict(_total([*wanted.segments.values()]))
    settings = {
        **wanted.settings,
        "generation": wanted.generation,
        "segments": {name: segment.as_record() for name, segment in wanted.segments.items()},
        "quantiser": wanted.quantiser,
        "search_folder": wanted.search_folder,
        "deleted": wanted.deleted,
        "deletion": wanted.deletion,
        "searching": asdict(wanted.searching),
        "counts": {**counts, "deleted_documents": wanted.deleted_documents},
    }
    parts = {name: read_manifest(folder / name).digest for name in names}
    # Everything that the new generation names is on the disk by now, flushed: readers see this one or the one before.
    if replaces is not None and (present := Generation.read(folder).manifest.digest) != replaces:
        raise ArtifactError(
            f"{folder} was changed by another process meanwhile (digest {present}, expected {replaces}); "
            "run the command again, on one machine where file locks do not work"
        )
    return IndexManifest.of(write_manifest(folder, kind=INDEX_KIND, settings=settings, parts=parts))


PACKAGES_RECORDED = ("npmlm", "torch", "transformers", "tokenizers", "numpy")


def input_record(sources: Sequence[Source], recorded: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every source, in order: what the blocks depend on, without where it lies.

    Of a file whose name and size are `recorded`, so is its SHA-256 taken to be, without reading it.
    """
    known = {(record["name"], record.get("bytes")): record.get("sha256") for record in recorded}
    records: list[dict[str, Any]] = []
    for source in sources:
        record: dict[str, Any] = {"name": source.name}
        if source.format != "hub":
            size = file_size(source.file)
            record |= {"bytes": size, "sha256": known.get((source.name, size)) or sha256_of_file(source.file)}
        records.append(record)
    return records


def as_record(settings: Any, encoder: Encoder, root: type) -> dict[str, Any]:
    """What the manifest says of how the index was made: the fields of the settings class `root`, without paths."""
    # a command adds settings of its own, such as where the index lies
    own = {item.name: asdict(settings)[item.name] for item in fields(root)}
    chosen = as_json(own)
    for name in ("encoder", "device", "precision", "segments"):  # the manifest names each segment
        del chosen[name]
    if (
        settings.rotation is not Rotation.none
    ):  # axes, which are not known yet, leave vectors to the scale of whole ones
        encoder = encoder.cut_to(None)
    return {
        **chosen,
        "corpus": recorded_corpus(settings.corpus),
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
            "similarity_scale": encoder.similarity_scale,
        },
        "versions": {name: found for name in PACKAGES_RECORDED if (found := _version(name))},
    }


def recorded_corpus(corpus: CorpusSettings) -> dict[str, Any]:
    """How the files were read, as the manifest of a segment says it."""
    recorded = as_json(asdict(corpus))
    del recorded["files"]
    return recorded


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def finish_shards(
    folder: Path,
    wanted: Mapping[str, Mapping[str, Any]],
    *,
    kinds: tuple[str, str],
    settings: Mapping[str, Any],
    what: str,
    stage: str,
) -> Manifest:
    """Write the manifest of `folder` over its shards, each finished with the settings `wanted` of it; or keep one.

    `kinds` are those of the folder and of a shard. Raises ArtifactError, naming them, if shards are missing, or if one
    is damaged or was made with other settings.
    """
    with folder_lock(folder, wait=True):
        if (kept := finished_folder(folder, kind=kinds[0], settings=settings)) is not None:
            return kept
        found = {name: finished_folder(folder / name, kind=kinds[1], settings=each) for name, each in wanted.items()}
        if missing := [name for name, shard in found.items() if shard is None]:
            raise ArtifactError(
                f"{folder}: {len(missing)} of {len(wanted)} {what} are missing ({named(missing, most=8)}); "
                f"run `npmlm build … stage={stage}` with the same settings"
            )
        parts = {name: shard.digest for name, shard in found.items() if shard is not None}
        return write_manifest(folder, kind=kinds[0], settings=settings, parts=parts)


def copy_encoder(folder: Path, name: str, encoder: Encoder) -> Manifest:
    """Save the encoder as a folder that `transformers` loads, under the same protection as the other parts."""
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

    return written_once(folder, kind=ENCODER_KIND, settings={"fingerprint": encoder.fingerprint}, write=write)
