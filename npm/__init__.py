"""A nonparametric masked language model: fills `<mask>` with a phrase that stands in a corpus, and says where.

What users of Python need is named here, and imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npm.api import IndexState, Verification, add, build, compact, delete, verify
    from npm.core.errors import (
        ArtifactError,
        CorpusError,
        EncoderError,
        QueryError,
        ServerError,
        SettingError,
        StorageError,
        UserError,
    )
    from npm.core.types import Answer, Document, Filling, JointAnswer, MaskPhrases, Occurrence, Phrase
    from npm.retrieval.fill import PhraseFiller
    from npm.retrieval.passages import PassageFiller
    from npm.retrieval.remote import RemoteFiller
    from npm.retrieval.scoring import ScoringSettings
    from npm.retrieval.settings import FillSettings

    __version__: str

__all__ = [
    "Answer",
    "ArtifactError",
    "CorpusError",
    "Document",
    "EncoderError",
    "FillSettings",
    "Filling",
    "IndexState",
    "JointAnswer",
    "MaskPhrases",
    "Occurrence",
    "PassageFiller",
    "Phrase",
    "PhraseFiller",
    "QueryError",
    "RemoteFiller",
    "ScoringSettings",
    "ServerError",
    "SettingError",
    "StorageError",
    "UserError",
    "Verification",
    "__version__",
    "add",
    "build",
    "compact",
    "delete",
    "verify",
]
_HOMES = {
    "npm.api": ("IndexState", "Verification", "add", "build", "compact", "delete", "verify"),
    "npm.core.errors": tuple(kind for kind in __all__ if kind.endswith("Error")),
    "npm.retrieval.fill": ("PhraseFiller",),
    "npm.retrieval.passages": ("PassageFiller",),
    "npm.retrieval.remote": ("RemoteFiller",),
    "npm.retrieval.scoring": ("ScoringSettings",),
    "npm.retrieval.settings": ("FillSettings",),
    "npm.core.types": ("Answer", "Document", "Filling", "JointAnswer", "MaskPhrases", "Occurrence", "Phrase"),
}
"""Where each of them stands."""


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "__version__":
        return _version()
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'npm' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("npmlm")
    except PackageNotFoundError:
        return "not installed"


def __dir__() -> list[str]:
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"})
