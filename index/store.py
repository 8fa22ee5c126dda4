"""Former place of npm.core.artifact."""

from npm.core.artifact import (
    FolderWriter,
    check_files,
    check_folder,
    check_part,
    finished_folder,
    open_array,
    refuse_changed,
    verify_folder,
    write_folder,
    write_manifest,
)

__all__ = [
    "FolderWriter",
    "check_files",
    "check_folder",
    "check_part",
    "finished_folder",
    "open_array",
    "refuse_changed",
    "verify_folder",
    "write_folder",
    "write_manifest",
]
