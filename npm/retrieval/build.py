"""Build a phrase index: documents → blocks → vectors → lexicon → search, each a folder that is whole or not there.

A build that was killed continues with the same command. The manifest of the whole comes last.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.build import SearchSettings, build_search_folder, resolved_settings
from index.files import sha256_of_file
from index.store import MANIFEST_NAME, Manifest, folder_lock, read_manifest, write_folder, write_manifest
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.sources import find_sources
from npm.corpus.store import BlockStore, build_block_store
from npm.errors import CorpusError, SettingError
from npm.models.encoder import Encoder, EncoderSettings
from npm.retrieval.embed import VectorSettings, embed_block_store, open_vectors
from npm.retrieval.lexical import LEXICON_KIND, BlockLexicon, LexiconSettings, recorded_settings
from npm.retrieval.manifests import keeps_finished, refuse_differences
from npm.retrieval.phrase_index import (
    CORPUS_FOLDER,
    ENCODER_FOLDER,
    ENCODER_KIND,
    INDEX_KIND,
    LEXICON_FOLDER,
    SEARCH_FOLDER,
    VECTORS_FOLDER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES_RECORDED = ("npmlm", "torch", "transformers", "tokenizers", "numpy", "bm25s")
IndexProgress = Callable[[str, int, int | None], None]
"""Called with a stage (blocks, vectors, lexicon, search), how much of it is done, and its total if that is known."""


@dataclass(kw_only=True, slots=True)
class IndexBuildSettings:
    """A phrase index: from which documents, with which encoder, and how."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The documents."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """How documents are cut."""
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    """The encoder; it stays bound to the index."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    """Which token vectors are stored."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    """The lexical stage."""
    search: SearchSettings = field(default_factory=SearchSettings)
    """How vectors are searched."""
    copy_encoder: bool = False
    """Whether the encoder is saved inside the index, so that `fill` needs no `encoder=`."""


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """What a build left behind."""

    manifest: Manifest
    was_finished: bool  # there was nothing to do


def build_index(
    folder: str | Path,
    settings: IndexBuildSettings,
    encoder: Encoder | None = None,
    *,
    progress: IndexProgress | None = None,
) -> BuiltIndex:
    """Build the index in `folder`, or go on where an earlier build with the same settings was stopped.

    `encoder` None loads the one of the settings. Raises CorpusError for input that cannot be read, ArtefactError if
    `folder` holds something else or was begun with other settings, EncoderError if the encoder cannot serve,
    StorageError if the disk refuses. A new folder in which nothing was finished is taken away again.
    """
    folder = Path(folder)
    report = progress if progress is not None else _silent
    sources = _input_record(settings.corpus)
    encoder = encoder if encoder is not None else _load_encoder(settings)
    recorded = _recorded(settings, encoder, sources)
    _check_finished(folder, recorded)
    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    was_there = folder.exists()
    try:
        with folder_lock(folder):
            build_block_store(
                folder / CORPUS_FOLDER,
                read_corpus(settings.corpus),
                packer,
                settings={name: recorded[name] for name in ("sources", "corpus", "blocks")},
                progress=lambda _, tokens: report("blocks", tokens, None),
            )
            return _index_blocks(folder, recorded, settings, encoder, report)
    except BaseException as error:
        if not was_there:
            _clear(folder, entirely=isinstance(error, CorpusError))
        raise


def index_block_store(
    folder: str | Path, settings: IndexBuildSettings, encoder: Encoder, *, progress: IndexProgress | None = None
) -> BuiltIndex:
    """Build an index over the finished block store in `folder`/corpus, such as one of token ids without text.

    Raises as `build_index` does; `settings.corpus` and `settings.blocks` are not looked at.
    """
    folder = Path(folder)
    recorded = _recorded(settings, encoder, [])
    _check_finished(folder, recorded)
    with folder_lock(folder):
        return _index_blocks(folder, recorded, settings, encoder, progress if progress is not None else _silent)


def _index_blocks(
    folder: Path, recorded: dict[str, Any], settings: IndexBuildSettings, encoder: Encoder, report: IndexProgress
) -> BuiltIndex:
    """Everything after the blocks."""
    if (folder / MANIFEST_NAME).is_file():
        return BuiltIndex(read_manifest(folder, kind=INDEX_KIND), was_finished=True)
    store = BlockStore.open(folder / CORPUS_FOLDER)
    parts = {CORPUS_FOLDER: store.digest}
    vectors_manifest = embed_block_store(
        store,
        encoder,
        folder / VECTORS_FOLDER,
        settings=settings.vectors,
        progress=lambda done, total: report("vectors", done, total),
    )
    parts[VECTORS_FOLDER] = vectors_manifest.digest
    if store.start_chars is not None:
        parts[LEXICON_FOLDER] = _build_lexicon(folder / LEXICON_FOLDER, store, settings.lexicon, report).digest
    vectors, positions = open_vectors(folder / VECTORS_FOLDER, store)
    if len(positions) == 0:
        raise CorpusError(
            "no token of the corpus has a vector",
            expected="words that the pruning rule keeps",
            got=f"{store.token_count} tokens, none kept by vectors.pruning={settings.vectors.pruning.value}",
            where=str(folder),
            fix="choose another rule, such as vectors.pruning=word_boundaries",
        )
    search = folder / SEARCH_FOLDER
    kept = keeps_finished(search, kind="search", settings=resolved_settings(settings.search, *vectors.shape))
    if kept is None:
        kept = build_search_folder(
            search, vectors, settings.search, progress=lambda done, total: report("search", done, total)
        )
    parts[SEARCH_FOLDER] = kept.digest
    if settings.copy_encoder:
        parts[ENCODER_FOLDER] = _copy_encoder(folder / ENCODER_FOLDER, settings, encoder).digest
    counts = {"documents": store.document_count, "blocks": store.block_count, "tokens": store.token_count}
    manifest = write_manifest(
        folder, kind=INDEX_KIND, settings={**recorded, "counts": {**counts, "rows": len(positions)}}, parts=parts
    )
    return BuiltIndex(manifest, was_finished=False)


def _build_lexicon(folder: Path, store: BlockStore, settings: LexiconSettings, report: IndexProgress) -> Manifest:
    recorded = recorded_settings(settings, store)
    if (kept := keeps_finished(folder, kind=LEXICON_KIND, settings=recorded)) is not None:
        return kept
    BlockLexicon.build(store, folder, settings=settings, progress=lambda done, total: report("lexicon", done, total))
    return read_manifest(folder, kind=LEXICON_KIND)


def _copy_encoder(folder: Path, settings: IndexBuildSettings, encoder: Encoder) -> Manifest:
    """Save the encoder as a folder that `transformers` loads, under the same protection as the other parts."""
    import torch

    recorded = {"fingerprint": encoder.fingerprint}
    if (kept := keeps_finished(folder, kind=ENCODER_KIND, settings=recorded)) is not None:
        return kept
    whole = next(encoder.model.parameters()).dtype is torch.float32
    # What computes in bfloat16 has lost bits that the fingerprint counts.
    original = encoder if whole else Encoder.load(settings.encoder.name, device="cpu", dtype="float32")
    if original.fingerprint != encoder.fingerprint:
        raise SettingError(
            "copy_encoder=true needs the encoder's own weights",
            expected=f"fingerprint {encoder.fingerprint}",
            got=f"{original.name}, fingerprint {original.fingerprint}",
            where="encoder.name",
            fix="give the encoder's folder as encoder.name, or load it with dtype=float32",
        )
    saved = folder.parent / f".{folder.name}.saved"
    shutil.rmtree(saved, ignore_errors=True)
    try:
        original.save(saved)
        with write_folder(folder, kind=ENCODER_KIND, settings=recorded) as writer:
            for file in sorted(path for path in saved.iterdir() if path.is_file()):
                writer.open_binary(file.name).write(file.read_bytes())
    finally:
        shutil.rmtree(saved, ignore_errors=True)
    return read_manifest(folder, kind=ENCODER_KIND)


def _load_encoder(settings: IndexBuildSettings) -> Encoder:
    chosen = settings.encoder
    return Encoder.load(chosen.name, device=chosen.device, dtype=chosen.dtype)


def _input_record(corpus: CorpusSettings) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every corpus file, in order: what the blocks depend on, without where it lies."""
    records: list[dict[str, Any]] = []
    for source in find_sources(corpus.files):
        record: dict[str, Any] = {"name": source.name}
        if source.format != "hub":
            path = Path(source.path)
            record |= {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        records.append(record)
    return records


def _recorded(settings: IndexBuildSettings, encoder: Encoder, sources: list[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of how the index was made; no path of this machine."""
    # a command adds settings of its own, such as where the index lies
    own = {item.name: asdict(settings)[item.name] for item in fields(IndexBuildSettings)}
    chosen: dict[str, Any] = json.loads(json.dumps(own, default=enum_value))
    del chosen["corpus"]["files"], chosen["encoder"]
    return {
        **chosen,
        "sources": sources,
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
            "similarity_scale": encoder.similarity_scale,
        },
        "versions": {name: found for name in PACKAGES_RECORDED if (found := _version(name))},
    }


def enum_value(value: object) -> Any:
    """What `json.dumps` writes for an enum among settings; raises TypeError for anything else it cannot write."""
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"not a setting: {value!r}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_finished(folder: Path, recorded: Mapping[str, Any]) -> None:
    """Refuse to build over a finished index of other settings; versions and counts are no settings."""
    if not (folder / MANIFEST_NAME).is_file():
        return
    made_with = read_manifest(folder, kind=INDEX_KIND).settings
    refuse_differences(folder, made_with=_comparable(made_with), wanted=_comparable(recorded))


def _comparable(recorded: Mapping[str, Any]) -> dict[str, Any]:
    encoder = {name: value for name, value in recorded["encoder"].items() if name != "name"}
    kept = {name: value for name, value in recorded.items() if name not in ("versions", "counts")}
    return {**kept, "encoder": encoder}


def _clear(folder: Path, *, entirely: bool) -> None:
    """Take away a folder that a failed build made: all of it, or what holds nothing finished."""
    if entirely:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _silent(stage: str, done: int, total: int | None) -> None:
    """Report to nobody."""
