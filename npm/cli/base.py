"""Settings and messages that several verbs share."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from npm.core.errors import QueryError, exclusive, missing
from npm.core.settings import PathText, Settings
from npm.models.settings import EncoderChoice

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.retrieval.filler import PhraseFiller
    from npm.retrieval.settings import FillSettings

TEXT_SETTINGS = "files split text_field max_documents skip_bad"
"""Of a corpus whose documents need no name."""


Output = Literal["table", "json"]
"""Form of the answers and numbers on stdout."""


class OutputCommand(Settings):
    """Settings of a verb that reports numbers."""

    output: Output = "table"
    """`table` for people, `json` for programs."""


class IndexCommand(Settings):
    """Settings of a verb about one index."""

    index: PathText = ""
    """Folder of the index. Required."""


class EncoderCommand(EncoderChoice, IndexCommand):
    """Settings of a verb about one index that encodes texts."""

    def open_filler(self, settings: FillSettings | None = None) -> PhraseFiller:
        """The index and its encoder, to fill with `settings`."""
        from npm.retrieval.filler import PhraseFiller

        return PhraseFiller.open(
            self.index, self.encoder or None, settings=settings, device=self.device, dtype=self.precision
        )

    def load_reading_encoder(self) -> Encoder:
        """The encoder where no index says which: as chosen, or the shipped one."""
        from npm.models.encoder import Encoder

        return Encoder.load(self.encoder, device=self.device, dtype=self.precision, for_reading=True)


class FilesCommand(EncoderCommand):
    """Settings of a verb that answers from an index, or from files as they are."""

    index: PathText = ""
    """Folder of the index. Required without files."""
    files: list[PathText] = field(default_factory=list)
    """Files and folders to answer from instead of an index: their words are read into the user's cache, and the next
    time only what has changed; nothing is written beside them."""

    def check_source(self) -> None:
        """Raise SettingError unless either `index` or `files` are given."""
        if self.index and self.files:
            raise exclusive("index=DIR", "files")
        if not (self.index or self.files):
            raise missing("index", "index=DIR or files=FOLDER")


def say(message: str) -> None:
    """Write a line to stderr, where everything but answers goes; one that cannot be written changes nothing else."""
    with suppress(OSError):
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def decoded(data: bytes, place: str) -> str:
    """The text that was read at `place`, without a byte order mark. Raises QueryError unless it is UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise QueryError(f"{place}: invalid UTF-8: byte 0x{byte:02x} at place {error.start}; convert it") from error


def write_json(record: Any) -> None:
    """Write a line of JSON to stdout."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_report(output: Output, record: Any, text: str) -> None:
    """Write numbers to stdout: their `record` as JSON, or the `text` for people."""
    if output == "json":
        write_json(record)
    else:
        sys.stdout.write(text)
