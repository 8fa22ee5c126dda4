"""Whether a disk has room for what is about to be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from index.files import check_room, stored_bytes

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.retrieval.build_settings import IndexBuildSettings


SAMPLED_DOCUMENTS, SAMPLE_SECONDS = 32, 0.5
"""Read before every build."""


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
