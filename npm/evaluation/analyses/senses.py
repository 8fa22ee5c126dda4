"""Picture `senses`: all places of a word in an index, by their first two principal components, and the nearest pairs.

Shapes: m places, d dimensions, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import to_float32
from npm.core.display import one_line
from npm.core.errors import SettingError
from npm.core.figures import (
    NumberTable,
    Picture,
    colour,
    legend_below,
    marker,
    new_figure,
    plain_axes,
    shown_name,
)
from npm.corpus.conditions import matching_documents, parse_conditions
from npm.evaluation.zero_shot.occurrences import find_occurrences
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.answers import SurfaceReader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from npm.corpus.store import BlockStore


LEAST_PLACES, MOST_PLACES = 3, 2000
PAIRS, MOST_VALUES, SENTENCE_CHARS = 10, 7, 160
OTHER, ABSENT = "other values", "no value"


@dataclass(frozen=True, slots=True)
class Place:
    """One place of the word."""

    document: str
    sentence: str
    value: str
    """Of the kept field; "" without one."""
    x: float
    y: float


def senses_picture(folder: str, word: str, colour_by: str) -> Picture:
    """The places of `word` in the index in `folder`, coloured by the kept field `colour_by` if one is named.

    Of more than `MOST_PLACES` some are drawn, always the same. Raises SettingError without an index or a word, for a
    word with too few places or a field that the index does not keep, and what opening an index raises.
    """
    if not folder or not word.strip():
        raise SettingError("picture=senses needs index=DIR and word=WORD")
    index = PhraseIndex.open(Path(folder))
    encoder = index.load_encoder(None)
    found = find_occurrences(index, encoder, [word.strip()])
    if len(found) < LEAST_PLACES or index.vectors is None:
        raise SettingError(
            f"index={folder} must have at least {LEAST_PLACES} vectors of the word {word!r}, got {len(found)}"
        )
    chosen = np.sort(np.random.default_rng(0).permutation(len(found))[:MOST_PLACES])  # i64 [m]
    rows = (found.start_rows[chosen], found.end_rows[chosen])  # i64 [m] each
    vectors = np.concatenate([to_float32(index.vectors.take(each)) for each in rows], axis=1)  # f32 [m, 2d]
    points, explained = principal_components(vectors)
    starts = found.starts[chosen]  # i64 [m]
    occurrences = SurfaceReader(index.store, encoder.tokenizer).occurrences(starts, found.lengths[chosen])
    documents = index.store.block_documents[index.store.block_of(starts)]  # i64 [m]
    values = field_values(index.store, documents, colour_by) if colour_by else [""] * len(chosen)
    places = [
        Place(each.document, one_line(each.context), value, x, y)
        for each, value, (x, y) in zip(occurrences, values, points.tolist(), strict=True)
    ]
    pairs = nearest_pairs(vectors, [place.sentence for place in places])
    record: dict[str, Any] = {"picture": "senses", "word": word, "explained": explained.tolist()}
    record["places"] = [{name: getattr(place, name) for name in Place.__slots__} for place in places]
    record["pairs"] = [{"cosine": cosine, "places": [first, second]} for cosine, first, second in pairs]
    left_out = len(found) - len(chosen)
    notes = (f"{left_out} of {len(found)} places are not drawn",) if left_out else ()
    return Picture(draw_senses(places, word, explained), _tables(places, pairs, word), record, notes)


def principal_components(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two principal components f64 [m, 2] of `vectors` f32 [m, d], and their shares of the variance f64 [2].

    Signs are such that the largest number of each component is positive.
    """
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)  # f64 [m, d]
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)  # f64 [m, min(m, d)], [min(m, d)]
    points = left[:, :2] * sizes[:2]  # f64 [m, 2]
    points *= np.sign(points[np.abs(points).argmax(axis=0), [0, 1]] + 1e-300)
    total = (sizes**2).sum()
    return points, sizes[:2] ** 2 / total if total > 0 else np.zeros(2)


def nearest_pairs(vectors: np.ndarray, sentences: list[str]) -> list[tuple[float, int, int]]:
    """The `PAIRS` pairs of places with the highest cosine of their `vectors` f32 [m, d], best first.

    A place whose sentence has stood before, as in a copied text, is in no pair.
    """
    first_of = {sentence: number for number, sentence in reversed(list(enumerate(sentences)))}
    kept = np.array(sorted(first_of.values()))  # i64 [kept]
    own = vectors[kept].astype(np.float64)  # f64 [kept, d]
    own /= np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-12)
    cosines = np.triu(own @ own.T, 1) - 2 * np.tri(len(own))  # f64 [kept, kept], each pair once
    best = np.argsort(-cosines, axis=None, kind="stable")[: min(PAIRS, len(kept) * (len(kept) - 1) // 2)]  # i64 [p]
    places = np.column_stack(np.unravel_index(best, cosines.shape))  # i64 [p, 2]
    return [(float(cosines[a, b]), int(kept[a]), int(kept[b])) for a, b in places.tolist()]


def field_values(store: BlockStore, documents: np.ndarray, name: str) -> list[str]:
    """The value of the kept field `name` of each of `documents` i64 [m]. Raises SettingError if none has one."""
    matching_documents(store, parse_conditions([f'{name}!=""']))  # refuses a field that is not kept
    found = np.full(store.document_count, ABSENT, dtype=object)  # [documents]
    for shard, columns in store.field_columns():
        values, codes = columns.get(name, ([], None))
        if codes is not None:
            found[shard] = np.array([*map(str, values), ABSENT], dtype=object)[codes]  # -1 takes the last
    return [str(value) for value in found[documents]]


def _tables(places: list[Place], pairs: list[tuple[float, int, int]], word: str) -> tuple[NumberTable, ...]:
    rows: list[tuple[str, ...]] = []
    for cosine, *both in pairs:
        for number, place in enumerate(places[each] for each in both):
            rows.append(
                (_shortened(place.sentence, word), "" if number else f"{cosine:.3f}", place.value, place.document)
            )
    return (NumberTable(f"nearest places of {word}", ("sentence", "cosine", "value", "document"), tuple(rows)),)


def _shortened(sentence: str, word: str) -> str:
    """At most `SENTENCE_CHARS` of a sentence, around the word."""
    at = max(0, sentence.casefold().find(word.casefold()) - SENTENCE_CHARS // 2)
    cut = sentence[at : at + SENTENCE_CHARS]
    return ("…" if at else "") + cut + ("…" if at + len(cut) < len(sentence) else "")


def draw_senses(places: list[Place], word: str, explained: np.ndarray) -> Figure:
    """A point for each place; the most frequent values have a colour and a marker each."""
    figure = new_figure(6.4, 5.2)
    axes = figure.subplots()
    counts: dict[str, int] = {}
    for place in places:
        counts[place.value] = counts.get(place.value, 0) + 1
    shown = sorted(sorted(counts), key=lambda value: -counts[value])[:MOST_VALUES]
    for number, value in enumerate([*sorted(shown), *([OTHER] if len(counts) > len(shown) else [])]):
        own = [place for place in places if place.value == value or (value is OTHER and place.value not in shown)]
        label = f"{shown_name(value) or word} ({len(own)})"
        look: dict[str, Any] = {
            "color": colour(number),
            "marker": marker(number),
            "s": 22,
            "alpha": 0.75,
            "label": label,
        }
        axes.scatter([place.x for place in own], [place.y for place in own], **look)
    shares = [f"component {number + 1}, {100 * share:.0f} % of the variance" for number, share in enumerate(explained)]
    plain_axes(axes, x=shares[0], y=shares[1], title=f"{len(places)} places of {shown_name(word)}")
    legend_below(figure, [axes], columns=4)
    return figure
