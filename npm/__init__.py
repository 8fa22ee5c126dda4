"""A nonparametric masked language model: fills `<mask>` with a phrase of a corpus, and shows where it occurs.

What users of Python need is named here, and imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npm.api import IndexState as IndexState
    from npm.api import Verification as Verification
    from npm.api import adapt as adapt
    from npm.api import add as add
    from npm.api import build as build
    from npm.api import compact as compact
    from npm.api import delete as delete
    from npm.api import find as find
    from npm.api import label as label
    from npm.api import trace as trace
    from npm.api import verify as verify
    from npm.core.errors import ArtifactError as ArtifactError
    from npm.core.errors import CorpusError as CorpusError
    from npm.core.errors import EncoderError as EncoderError
    from npm.core.errors import QueryError as QueryError
    from npm.core.errors import ServerError as ServerError
    from npm.core.errors import SettingError as SettingError
    from npm.core.errors import StorageError as StorageError
    from npm.core.errors import UserError as UserError
    from npm.core.types import Answer as Answer
    from npm.core.types import Document as Document
    from npm.core.types import Filling as Filling
    from npm.core.types import JointAnswer as JointAnswer
    from npm.core.types import MaskPhrases as MaskPhrases
    from npm.core.types import Occurrence as Occurrence
    from npm.core.types import Phrase as Phrase
    from npm.evaluation.labeling import LabeledText as LabeledText
    from npm.evaluation.labeling import ScoredLabel as ScoredLabel
    from npm.retrieval.filler import PhraseFiller as PhraseFiller
    from npm.retrieval.remote import RemoteFiller as RemoteFiller
    from npm.retrieval.settings import FillSettings as FillSettings
    from npm.retrieval.settings import ScoringSettings as ScoringSettings
    from npm.tracing.find import Found as Found
    from npm.tracing.trace import Trace as Trace
    from npm.tracing.trace import TracedSpan as TracedSpan
    from npm.tuning.adapt import Adaptation as Adaptation

    __version__: str

_HOMES = {
    "npm.api": "IndexState Verification adapt add build compact delete find label trace verify",
    "npm.core.errors": "ArtifactError CorpusError EncoderError QueryError ServerError SettingError "
    "StorageError UserError",
    "npm.core.types": "Answer Document Filling JointAnswer MaskPhrases Occurrence Phrase",
    "npm.evaluation.labeling": "LabeledText ScoredLabel",
    "npm.retrieval.filler": "PhraseFiller",
    "npm.retrieval.remote": "RemoteFiller",
    "npm.retrieval.settings": "FillSettings ScoringSettings",
    "npm.tracing.find": "Found",
    "npm.tracing.trace": "Trace TracedSpan",
    "npm.tuning.adapt": "Adaptation",
}
"""Modules, and the public names in each."""
__all__ = sorted(["__version__", *" ".join(_HOMES.values()).split()])


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("npmlm")
        except PackageNotFoundError:
            return "not installed"
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'npm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"})
