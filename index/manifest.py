"""Former place of npm.core.artifact."""

from npm.core.artifact import MANIFEST_NAME, Manifest, RecordedSettings, part_folder, read_manifest
from npm.core.artifact import read_manifest as read_any_manifest
from npm.core.files import read_object

__all__ = [
    "MANIFEST_NAME",
    "Manifest",
    "RecordedSettings",
    "part_folder",
    "read_any_manifest",
    "read_manifest",
    "read_object",
]
