"""The root manifest of an index: which parts make up its present generation, and how they were made."""

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
    MANIFEST_NAME,
    Manifest,
    check_folder,
    folder_lock,
    open_array,
    part_folder,
    read_manifest,
    write_manifest,
    written_once,
)
from npm.core.errors import ArtifactError, SettingError, damaged, named
from npm.core.files import FolderWriter
from npm.core.records import RecordedSettings, read_as
from npm.core.settings import as_json, settings_from
from npm.corpus.blocks import BlockSettings
from npm.indexing.layout import ENCODER, PartName, part
from npm.indexing.settings import IndexBuildSettings, LexiconSettings, Rotation, VectorSettings

if TYPE_CHECKING:
    from npm.corpus.settings import CorpusSettings
    from npm.models.encoder import Encoder


INDEX_KIND, ENCODER_KIND, DELETED_KIND = "phrase-index", "encoder", "deleted-documents"
Made = TypeVar("Made")
GROUPS: dict[str, type[Any]] = {
    "blocks": BlockSettings,
    "vectors": VectorSettings,
    "lexicon": LexiconSettings,
    "search": SearchSettings,
}
"""Settings that an index was built with."""
FOLDERS = ("quantizer", "search_folder", "deleted", "rotation_folder", "encoder_folder", "adaptation_folder")
"""Entries of the root manifest that name a part, next to the parts of segments."""
EXACT_CANDIDATES, APPROXIMATE_CANDIDATES = 4096, 512
"""Rows grown into phrases for each side unless said otherwise, in the exact tier and in the others."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The parts of what one build, add or compact brought."""

    corpus: Path
    vectors: Path
    lexicon: Path | None = None  # None: the corpus has no text
    codes: Path | None = None  # None: the tier needs none


Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]


@dataclass(frozen=True, slots=True)
class Counts:
    """Size of an index, or of one of its segments."""

    documents: Count
    blocks: Count
    tokens: Count
    rows: Count


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment in the root manifest."""

    corpus: PartName
    vectors: PartName
    lexicon: PartName | None
    codes: PartName | None
    sources: list[dict[str, Any]]  # name, bytes and SHA-256 of each corpus file
    counts: Counts

    @classmethod
    def of(cls, segment: Segment, sources: list[dict[str, Any]], counts: Counts) -> SegmentRecord:
        """The record of a segment that is finished."""
        lexicon, codes = (None if place is None else place.name for place in (segment.lexicon, segment.codes))
        return cls(segment.corpus.name, segment.vectors.name, lexicon, codes, sources, counts)

    @property
    def parts(self) -> list[str | None]:
        """The names of its parts."""
        return [self.corpus, self.vectors, self.lexicon, self.codes]


@dataclass(frozen=True, slots=True)
class EncoderRecord:
    """The encoder that made an index."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class Searching:
    """Default search settings of an index; None: as suits its search folder."""

    probed_lists: AtLeastOne | None = None
    rerank_factor: AtLeastOne | None = None
    candidates_per_side: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """The root manifest of an index, read once; the one without any values is that of texts in memory."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # all of it, or of a new index: how it is made
    digest: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)  # digests of the parts, by name
    generation: Count = 0  # after the first build; every change adds one
    segments: tuple[SegmentRecord, ...] = ()  # in which documents, blocks, tokens and rows are counted
    counts: Counts = Counts(0, 0, 0, 0)  # with the documents that are deleted
    quantizer: PartName | None = None  # None in the exact tier
    search_folder: PartName = ""
    deleted: PartName | None = None  # None: no document is
    rotation_folder: PartName | None = None  # None: vectors are not rotated
    encoder_folder: PartName | None = None  # None: there is no copy of it
    adaptation_folder: PartName | None = None  # None: queries are not adapted
    deleted_documents: int = 0
    deletion: str | None = None  # digest of the ids of the last delete, which may be repeated after a compact
    searching: Searching = Searching()
    encoder: EncoderRecord = EncoderRecord("", "", "")
    dimensions: AtLeastOne | None = None  # to which vectors are cut; None: full-dimensional
    rotation: Rotation = Rotation.none  # before they are cut
    blocks: BlockSettings = field(default_factory=BlockSettings)
    vectors: VectorSettings = field(default_factory=VectorSettings)
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    search: SearchSettings = field(default_factory=SearchSettings)

    @classmethod
    def of(cls, manifest: Manifest) -> IndexManifest:
        """`manifest` read. Raises ArtifactError for one that is not what every index records."""
        settings = manifest.settings
        others = ("settings", "digest", "parts", "deleted_documents", *GROUPS)
        named_fields = [item.name for item in fields(cls) if item.name not in others]
        # an index that was built before it could be adapted does not name that part
        recorded = {"adaptation_folder": None} | {
            name: settings[name] for name in named_fields if name != "adaptation_folder" or name in settings
        }
        read: IndexManifest = read_as(cls, recorded, file=settings.file)
        read = replace(
            read,
            settings=settings,
            digest=manifest.digest,
            parts=manifest.parts,
            deleted_documents=settings.typed("counts.deleted_documents", Count),
        )
        settings.typed("corpus.kept_fields", list[str])
        for name, kind in GROUPS.items():
            settings.typed(name, dict[str, Any])
            group = settings[name]
            if name == "vectors" and "tokens" not in group:
                group = RecordedSettings({**group, "tokens": True}, file=settings.file)
            read = replace(read, **{name: settings_from(kind, group)})
        is_rotated = read.rotation is not Rotation.none
        fits = sorted(read.listed) == sorted(read.parts) and is_rotated == (read.rotation_folder is not None)
        if not (fits and read.segments and _total(read.segments) == read.counts):
            got = named(sorted(read.parts), most=8)
            raise damaged(settings.file, f"parts and counts are not those of its segments: {got}")
        return read

    @property
    def listed(self) -> set[str]:
        """The names of all parts."""
        single = (getattr(self, name) for name in FOLDERS)
        names = [*single, *(name for segment in self.segments for name in segment.parts)]
        return {name for name in names if name is not None}

    @property
    def candidates_per_side(self) -> int:
        """Rows grown into phrases for each side unless said otherwise."""
        automatic = EXACT_CANDIDATES if self.quantizer is None else APPROXIMATE_CANDIDATES
        return self.searching.candidates_per_side or automatic

    @property
    def kept_fields(self) -> list[str]:
        """The fields of corpus.kept_fields."""
        return list(self.settings["corpus"]["kept_fields"])

    @property
    def fields(self) -> list[str]:
        """The fields that a condition may name: those kept, and those of pages and sections of files."""
        from npm.corpus.sources import part_fields

        names = (str(source.get("name", "")) for segment in self.segments for source in segment.sources)
        of_parts = part_fields(names, in_sections=self.settings["corpus"].get("split") == "heading")
        return list(dict.fromkeys([*self.kept_fields, *of_parts]))


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

    def unchanged_since(self, opened: IndexManifest, *, verb: str) -> Generation:
        """This generation. Raises ArtifactError if its manifest is not `opened`, from which `verb` measured."""
        if self.manifest.digest != opened.digest:
            raise ArtifactError(
                f"{self.folder} was changed while it was measured, from generation {opened.generation} to "
                f"{self.manifest.generation}; open it again and repeat {verb}"
            )
        return self

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In their order: documents, blocks, tokens and rows are counted through them."""
        return tuple(
            Segment(*(None if name is None else self.folder / name for name in record.parts))  # type: ignore[arg-type]
            for record in self.manifest.segments
        )

    @property
    def quantizer(self) -> Path | None:
        """The quantizer's folder; None in the exact tier."""
        return None if self.manifest.quantizer is None else self.folder / self.manifest.quantizer

    @property
    def search(self) -> Path:
        """The search folder."""
        return self.folder / self.manifest.search_folder

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
    """Total size of segments."""
    return Counts(*(sum(getattr(each.counts, item.name) for each in segments) for item in fields(Counts)))


RECORDED = (*FOLDERS, "deletion")


def write_generation(folder: Path, wanted: IndexManifest, *, replaces: str | None = None) -> IndexManifest:
    """Replace the root manifest by `wanted`, whose digest, parts and counts are found here; returns what was written.

    `replaces` is the digest of the manifest that a change began with: raises ArtifactError if it is another by now.
    """
    counts = asdict(_total(wanted.segments))
    settings = {
        **wanted.settings,
        "generation": wanted.generation,
        "segments": [asdict(segment) for segment in wanted.segments],
        **{name: getattr(wanted, name) for name in RECORDED},
        "searching": asdict(wanted.searching),
        "counts": {**counts, "deleted_documents": wanted.deleted_documents},
    }
    parts = {name: read_manifest(folder / name).digest for name in wanted.listed}
    # Everything that the new generation names is on the disk by now, flushed: readers see this one or the one before.
    if replaces is not None and (present := Generation.read(folder).manifest.digest) != replaces:
        raise ArtifactError(
            f"{folder} was changed by another process meanwhile (digest {present}, expected {replaces}); "
            "run the command again, on one machine where file locks do not work"
        )
    return IndexManifest.of(write_manifest(folder, kind=INDEX_KIND, settings=settings, parts=parts))


PACKAGES_RECORDED = ("npmlm", "torch", "transformers", "tokenizers", "numpy")


def as_record(settings: IndexBuildSettings, encoder: Encoder) -> dict[str, Any]:
    """The settings of a build as the manifest records them, without paths."""
    # a command adds its own settings, such as the folder of the index
    own = {item.name: asdict(settings)[item.name] for item in fields(IndexBuildSettings)}
    chosen = as_json(own)
    if settings.vectors.tokens:  # as earlier versions recorded it
        del chosen["vectors"]["tokens"]
    for name in ("encoder", "device", "precision", "segments"):  # the manifest names each segment
        del chosen[name]
    if settings.rotation is not Rotation.none:  # axes, not known yet, keep the scale of full-dimensional vectors
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
    """Settings of reading the files, as the manifest of a segment records them."""
    recorded = as_json(asdict(corpus))
    del recorded["files"]
    return recorded


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def finish_shards(
    folder: Path, count: int, *, kinds: tuple[str, str], settings: Callable[[], Mapping[str, Any]], stage: str
) -> Manifest:
    """Write the manifest of a part over its `count` shards, or keep a finished one.

    `kinds` are those of the part and of a shard. Raises ArtifactError, naming them, if shards are missing, or if one is
    damaged.
    """
    with folder_lock(folder, wait=True):
        if (folder / MANIFEST_NAME).is_file():
            return check_folder(folder, kind=kinds[0])
        names = [f"{number:05d}" for number in range(count)]
        if missing := [name for name in names if not (folder / name / MANIFEST_NAME).is_file()]:
            raise ArtifactError(
                f"{folder}: {len(missing)} of {count} shards are missing ({named(missing, most=8)}); "
                f"run `npmlm build … stage={stage}` with the same settings"
            )
        parts = {name: check_folder(folder / name, kind=kinds[1]).digest for name in names}
        return write_manifest(folder, kind=kinds[0], settings=settings(), parts=parts)


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
