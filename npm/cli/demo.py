"""The index of the demo corpus, in the user's cache, which `npmlm fill` answers from without index=."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from npm.cli.base import say, user_folder
from npm.cli.progress import StageProgress
from npm.core.artifact import FORMAT_VERSION, MANIFEST_NAME, folder_lock
from npm.core.errors import ArtifactError, StorageError
from npm.core.files import digest_of
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import find_sources, input_record
from npm.indexing.build import build_index
from npm.indexing.generation import as_record
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings

DIGEST_CHARS = 16


def demo_filler(settings: FillSettings, encoder_name: str, device: str, precision: Precision) -> PhraseFiller:
    """A filler over the demo corpus, whose index is built when it is first needed.

    Other encoders and corpora, and versions that build otherwise, have separate folders. Raises StorageError where
    the cache cannot be written, ArtifactError where the index in it is damaged.
    """
    encoder = Encoder.load(encoder_name, device=device, dtype=precision, for_reading=True)
    files = sorted((Path(__file__).parents[1] / "assets" / "demo").glob("*.jsonl"))
    longest = min(BlockSettings().max_block_tokens, encoder.max_input_tokens)
    building = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(file) for file in files]), blocks=BlockSettings(max_block_tokens=longest)
    )
    resolved = replace(building, blocks=building.blocks.resolved(encoder.title_tokens))
    made = as_record(resolved, encoder)
    del made["versions"]  # of libraries: what they build may be used with others
    digest = digest_of(
        {
            "format": [FORMAT_VERSION, "parts"],
            "made": made,
            "sources": input_record(find_sources(building.corpus.files)),
        }
    )
    folder = user_folder("XDG_CACHE_HOME", ".cache") / f"demo-{digest[:DIGEST_CHARS]}"
    try:
        if not (folder / MANIFEST_NAME).is_file():
            lock = folder.with_name(f"{folder.name}-first")
            with folder_lock(lock, wait=True, on_wait=lambda: say("waits for another process that builds it")):
                if sys.stderr.isatty():
                    say("building the index of the demo corpus, once; it takes about a minute")
                    with StageProgress() as progress:
                        build_index(folder, building, encoder, progress=progress, notice=progress.say)
                else:
                    build_index(folder, building, encoder)
        filler = PhraseFiller.open(folder, encoder, settings=settings)
    except OSError as error:
        advice = "give index=DIR, or set XDG_CACHE_HOME to a folder that can be written"
        raise StorageError(f"{error}; {advice}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{error}; remove {folder}, so that it is built again, or give index=DIR") from error
    say(
        f"note: without index= answers come from the demo corpus of {filler.index.store.document_count} documents, "
        f'kept in {folder}; build your own with npmlm build "corpus.files=[docs/*.jsonl]" index=DIR'
    )
    return filler
