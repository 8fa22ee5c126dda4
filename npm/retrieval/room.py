"""Whether a disk has room for what is about to be written."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from npm.errors import StorageError

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.retrieval.build_settings import IndexBuildSettings

KEPT_FREE_BYTES = 64 << 20
"""What is left for everything else on the disk."""
SAMPLED_DOCUMENTS, SAMPLE_SECONDS = 32, 0.5
"""Read before every build."""


def check_room(folder: Path, needed_bytes: float, *, what: str) -> None:
    """Raise StorageError unless the disk of `folder`, which need not be there yet, has room for `needed_bytes` more."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > 0 and needed_bytes + KEPT_FREE_BYTES > free_bytes:
        raise StorageError(
            f"the disk has no room for the {what}",
            expected=f"{shown_bytes(needed_bytes)} free, and {shown_bytes(KEPT_FREE_BYTES)} to spare",
            got=f"{shown_bytes(free_bytes)} free",
            where=str(folder),
            fix="free some space, or choose a folder on another disk; what is finished is kept",
        )


def check_build_room(folder: Path, settings: IndexBuildSettings, encoder: Encoder) -> None:
    """Raise StorageError if the finished index will not fit the disk, less what an earlier build left in `folder`."""
    check_room(folder, corpus_needs(settings, encoder) - stored_bytes(folder), what="index")


def corpus_needs(settings: IndexBuildSettings, encoder: Encoder) -> float:
    """About the bytes of the finished index, from a few documents, without encoding any; a part of a second.

    Data sets of unknown size count with those documents only. Raises CorpusError as reading the corpus does.
    """
    from npm.corpus.blocks import BlockPacker
    from npm.retrieval.corpus_sample import sample_corpus
    from npm.retrieval.needs import corpus_counts, disk_needs, packed_in_batches, search_shape

    packer = BlockPacker(encoder.tokenizer, settings.blocks)
    sample = sample_corpus(settings.corpus, documents=SAMPLED_DOCUMENTS, seconds=SAMPLE_SECONDS)
    packed = packed_in_batches(packer, sample)
    counts = corpus_counts(sample, packed, settings.vectors, settings.lexicon)
    shape = search_shape(settings.search, round(counts.rows), encoder.dimensions)
    needs = disk_needs(
        counts,
        shape,
        settings.vectors,
        encoder=encoder,
        vocabulary_size=packer.vocabulary_size,
        copy_encoder=settings.copy_encoder,
    )
    return needs.total


def stored_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; 0 where there is none. Files that vanish meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(folder):  # passes over folders that vanish meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(place) / name).stat().st_size
    return total


def shown_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> shown_bytes(512), shown_bytes(3 << 20), shown_bytes(5 * 2**30)
    ('512 B', '3.0 MiB', '5.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
