"""A nonparametric masked language model: fills `<mask>` with a phrase that stands in a corpus, and says where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npm.retrieval.fill import PhraseFiller

__all__ = ["PhraseFiller"]


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "PhraseFiller":
        from npm.retrieval.fill import PhraseFiller

        return PhraseFiller
    raise AttributeError(f"module 'npm' has no attribute {name!r}")
