"""Fill `<mask>` with phrases of a corpus: texts in, answers with provenance out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npm.core.settings import PathText, checked
from npm.core.types import Document, Progress, silent
from npm.indexing.phrase_index import DocumentFilter, PhraseIndex
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.retrieval.blocks import Restriction, block_restrictions
from npm.retrieval.filler import Filler
from npm.retrieval.queries import QueryVectors
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.reading.reader import Reader
    from npm.retrieval.passages import PassageFiller
    from npm.retrieval.remote import RemoteFiller


class PhraseFiller(Filler):
    """An opened phrase index with the encoder that made it; fills texts."""

    @classmethod
    def open(
        cls,
        folder: str | Path,
        encoder: Encoder | str | Path | None = None,
        *,
        reader: Reader | str | Path | None = None,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
    ) -> PhraseFiller:
        """Open the index in `folder` with an encoder, an encoder's folder or name, or the index's own.

        `reader` is an object, or a name that replaces `reader` of the settings.

        Without `encoder` that is the shipped one if it made the index, else the one saved inside the index; `device`
        and `dtype` are where and how it computes. Raises ArtifactError if the index is missing, unfinished, damaged
        or was made by another encoder, SettingError for an argument of another kind.
        """
        precision = checked(dtype, Precision, "dtype")
        given: Encoder | str | None = checked(encoder, Encoder | PathText | None, "encoder")
        phrase_index = PhraseIndex.open(Path(checked(folder, PathText, "folder")))
        encoder = phrase_index.load_encoder(given, device=device, dtype=precision, for_reading=True)
        if isinstance(reader, str | Path):
            settings, reader = replace(settings or FillSettings(), reader=str(reader)), None
        return cls(phrase_index, encoder, settings, reader=reader)

    @classmethod
    def over(
        cls,
        passages: Sequence[str | Document],
        encoder: Encoder | str | Path | None = None,
        *,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
    ) -> PassageFiller:
        """A filler that answers from the given texts, in memory, without an index, and scores given words.

        Without `encoder` it is the shipped one. With a reader the passages that share most words with a text are read,
        all of them where there are few; without one stored vectors are searched. Passages are embedded once for all
        fillers. Raises CorpusError if there is no passage, or one that is no text, EncoderError as `Encoder.load` does,
        SettingError for a retrieval other than `dense` and `hybrid` or an argument of another kind.
        """
        from npm.retrieval.passages import PassageFiller

        return PassageFiller(passages, cls._loaded(encoder, device, dtype), settings)

    @classmethod
    def over_files(
        cls,
        files: Sequence[str | Path],
        encoder: Encoder | str | Path | None = None,
        *,
        settings: FillSettings | None = None,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
        progress: Progress = silent,
    ) -> PhraseFiller:
        """A filler over files and folders, whose index of words is kept in the user's cache and follows them.

        What has not changed since the last call is not read again. Without `encoder` it is the shipped one. Raises
        CorpusError for files that cannot be used, StorageError where the cache cannot be written, and as `open` does.
        """
        from npm.indexing.cached import files_index

        given = cls._loaded(encoder, device, dtype)
        names = [files] if isinstance(files, str | Path) else list(files)
        folder, _ = files_index([str(checked(name, PathText, "files")) for name in names], given, progress=progress)
        return cls.open(folder, given, settings=settings)

    @staticmethod
    def _loaded(encoder: Encoder | str | Path | None, device: str, dtype: Precision | str) -> Encoder:
        """The encoder given, loaded or by name, or the shipped one."""
        given: Encoder | str | None = checked(encoder, Encoder | PathText | None, "encoder")
        if isinstance(given, Encoder):
            return given
        return Encoder.load(given or "", device=device, dtype=checked(dtype, Precision, "dtype"), for_reading=True)

    @staticmethod
    def connect(url: str, key: str | None = None, *, timeout_seconds: float = 30.0) -> RemoteFiller:
        """A filler that queries the server of `npmlm serve` at `url`, such as `http://127.0.0.1:8080`, with its `key`.

        `timeout_seconds` is how long a request may take, tries at a busy server included. Raises SettingError for an
        argument that cannot be used or a key that the server does not know, ServerError if no such server answers.
        """
        from npm.retrieval.remote import RemoteFiller

        return RemoteFiller(url, key, timeout_seconds=timeout_seconds)

    def _restrictions(
        self, texts: Sequence[str], vectors: QueryVectors, settings: FillSettings, allowed: DocumentFilter
    ) -> Sequence[Restriction | None]:
        """The blocks that `settings` select, read with the text if they say so."""
        if settings.retrieval is Retrieval.dense:
            return [None] * len(vectors.start)
        restrictions = block_restrictions(self.index, texts, vectors, settings, allowed=allowed.blocks)
        return self.read(texts, vectors, restrictions, settings)
