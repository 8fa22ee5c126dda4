"""The folder of an index: a root manifest of its present generation, and parts named by what they are made from.

    manifest.json                       the present generation: its parts by digest, and how it was made
    corpus-<request>                    blocks and documents of what one build, add or compact brought (a segment)
    vectors-…, lexicon-…, codes-…       the segment's vectors, term counts and, in tiers with lists, codes
    quantizer-…, search-…               how vectors are searched; of a partitioned index a folder per partition
    deleted-…, rotation-…, encoder-…    deleted documents, axes of rotated vectors, a copy of the encoder
    adaptation-…                        maps of queries learned from corrected answers

`<request>` is a digest of everything that the part depends on, so a part that is there is the part that is needed: this
is how a build or a change resumes, and other settings have another name. A change replaces the root manifest last, by
one rename. Parts that it does not list are garbage; readers keep what they opened. Everything else in the folder is
somebody else's, and stays. Links are refused.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
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
    RecordedSettings,
    check_folder,
    clear_locks,
    open_array,
    part_folder,
    read_as,
    read_manifest,
    refuse_link,
    write_manifest,
)
from npm.core.errors import ArtifactError, damaged, named
from npm.core.files import digest_of
from npm.core.settings import as_json, settings_from
from npm.corpus.blocks import BlockSettings
from npm.indexing.settings import IndexBuildSettings, LexiconSettings, Rotation, VectorSettings

if TYPE_CHECKING:
    from npm.corpus.settings import CorpusSettings
    from npm.models.encoder import Encoder


CORPUS, VECTORS, LEXICON, CODES, QUANTIZER = "corpus", "vectors", "lexicon", "codes", "quantizer"
SEARCH, DELETED, ROTATION, ENCODER, ADAPTATION = "search", "deleted", "rotation", "encoder", "adaptation"
PARTS = (CORPUS, VECTORS, LEXICON, CODES, QUANTIZER, SEARCH, DELETED, ROTATION, ENCODER, ADAPTATION)
_NAME = rf"(?:{'|'.join(PARTS)})-[0-9a-f]{{16}}"
_OURS = re.compile(rf"(?P<part>{_NAME})|\.+(?:{_NAME})\.tmp")
PartName = Annotated[str, Field(pattern=f"^{_NAME}$")]
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
    lexicon: Path
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
    lexicon: PartName
    codes: PartName | None
    sources: list[dict[str, Any]]  # name, bytes and SHA-256 of each corpus file
    counts: Counts

    @classmethod
    def of(cls, segment: Segment, sources: list[dict[str, Any]], counts: Counts) -> SegmentRecord:
        """The record of a segment that is finished."""
        corpus, vectors, lexicon = segment.corpus.name, segment.vectors.name, segment.lexicon.name
        codes = None if segment.codes is None else segment.codes.name
        return cls(corpus, vectors, lexicon, codes, sources, counts)

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


def write_generation(folder: Path, wanted: IndexManifest, *, replaces: str | None = None) -> IndexManifest:
    """Replace the root manifest by `wanted`, whose digest, parts and counts are found here; returns what was written.

    `replaces` is the digest of the manifest that a change began with: raises ArtifactError if it is another by now.
    """
    counts = asdict(_total(wanted.segments))
    settings = {
        **wanted.settings,
        "generation": wanted.generation,
        "segments": [asdict(segment) for segment in wanted.segments],
        **{name: getattr(wanted, name) for name in (*FOLDERS, "deletion")},
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


def part(folder: Path, kind: str, request: Mapping[str, Any]) -> Path:
    """The part of the index `folder` that a `request` of JSON values makes. Raises ArtifactError for a link."""
    place = folder / f"{kind}-{digest_of(request)[:16]}"
    refuse_link(place)
    return place


def remove_unlisted(folder: Path, listed: Collection[str], *, kinds: Collection[str] = PARTS) -> None:
    """Remove the parts of these kinds that are not `listed`, and what killed processes left; the caller has the lock.

    Readers that have opened them keep their files. What cannot be removed now, the next change removes.
    """
    for path in folder.iterdir():
        found = _OURS.fullmatch(path.name)
        if found is None or found["part"] in listed or path.name.lstrip(".").partition("-")[0] not in kinds:
            continue
        with suppress(OSError):
            if path.is_symlink() or path.is_file():
                path.unlink()
                continue
            if found["part"]:  # a part of which files are missing must not have its name
                temporary = path.with_name(f".{path.name}.tmp")
                shutil.rmtree(temporary, ignore_errors=True)
                path = path.rename(temporary)
            shutil.rmtree(path)
    clear_locks(folder)


def refuse_others(folder: Path) -> None:
    """Raise ArtifactError for a file, an address, or what is neither an index nor an unfinished one nor empty."""
    is_address = bool(folder.parts) and re.fullmatch(r"\w[\w+.-]+:", folder.parts[0]) is not None
    if is_address or (folder.exists() and not folder.is_dir()):
        found = "an address; copy the folder to a disk first" if is_address else "a file"
        raise ArtifactError(f"{folder} must be a folder, got {found}")
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))
    if names and not any(map(_OURS.fullmatch, names)):
        raise ArtifactError(f"{folder} is not the folder of an index: it has {named(names)}; choose another index=DIR")
