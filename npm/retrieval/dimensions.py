"""Indexes of shortened vectors: only the leading numbers of what an encoder makes are stored and searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


def dimension_note(encoder: Encoder) -> str:
    """What to say before vectors are stored at a length that the encoder was not trained for; else nothing."""
    if encoder.dimensions in (encoder.whole_dimensions, *encoder.trained_dimensions):
        return ""
    trained = ", ".join(map(str, (*encoder.trained_dimensions, encoder.whole_dimensions)))
    return (
        f"note: {encoder.name} was not trained for vectors of {encoder.dimensions} dimensions (but of {trained}), so "
        "answers may be much worse; npmlm train experiment=matryoshka trains one for several lengths"
    )
