"""Former place of npm.core.files."""

from npm.core.files import NewFile as CountingFile
from npm.core.files import (
    check_room,
    digest_of,
    json_bytes,
    read_object,
    replace_file,
    sha256_of_bytes,
    sha256_of_file,
    shown_bytes,
    stored_bytes,
)

__all__ = [
    "CountingFile",
    "check_room",
    "digest_of",
    "json_bytes",
    "read_object",
    "replace_file",
    "sha256_of_bytes",
    "sha256_of_file",
    "shown_bytes",
    "stored_bytes",
]
