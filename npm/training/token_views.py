"""The masks of masked language modelling for a run: its corruption, with the collocations of its corpus if it asks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npm.corpus.store import BlockStore
from npm.errors import SettingError
from npm.masking.collocation_mining import collocations_of
from npm.masking.collocations import CollocationVocabulary
from npm.masking.corruption import CorruptionSettings, CorruptionUnit, InPlaceViews, build_in_place_views
from npm.models.encoder import Encoder


def token_views(
    corruption: CorruptionSettings, encoder: Encoder, store: BlockStore | None, folder: Path
) -> InPlaceViews:
    """What masks tokens in place; collocations are mined from `store` into `folder` unless a vocabulary is given."""
    return build_in_place_views(
        corruption,
        mask_id=encoder.mask_id,
        pad_id=encoder.pad_id,
        prefix_ids=tuple(encoder.prefix_ids),
        suffix_ids=tuple(encoder.suffix_ids),
        ordinary_ids=ordinary_ids(encoder),
        vocabulary=_collocations(corruption, encoder, store, folder),
    )


def ordinary_ids(encoder: Encoder) -> np.ndarray:
    """The ids of all tokens that are not special, i64: what a random replacement may be."""
    return np.setdiff1d(np.arange(len(encoder.tokenizer)), encoder.tokenizer.all_special_ids)  # i64 [ordinary tokens]


def _collocations(
    corruption: CorruptionSettings, encoder: Encoder, store: BlockStore | None, folder: Path
) -> CollocationVocabulary | None:
    if corruption.unit is not CorruptionUnit.collocation:
        return None
    if store is not None:
        return collocations_of(corruption.collocations, store, folder / "collocations")
    if given := corruption.collocations.vocabulary:
        return CollocationVocabulary.open(Path(given), tokenizer_fingerprint=encoder.tokenizer_fingerprint)
    raise SettingError(
        "there are no blocks to mine collocations from",
        expected="corruption.collocations.vocabulary=DIR, or another unit",
        got="unit=collocation in a run on sentences alone",
        where="corruption.unit",
        fix="name a vocabulary that another run has mined, or choose corruption.unit=word",
    )
