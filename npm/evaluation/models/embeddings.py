"""Task `embeddings`: do the word vectors of tokens of one group lie together?

The plane of the two first principal components shows it; two numbers in the full space say it: how often the nearest
centroid is that of a token's own group, which is taken without the token, and the mean silhouette with cosine distance
(Rousseeuw 1987),

    s = (b − a) / max(a, b),   a the mean distance to the others of its group, b to the nearest other group,

0 for a token that is alone in its group. A token alone in its group is not classified right either.

Shapes: n tokens, G groups, d dimensions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.settings import read_record
from npm.core.errors import CorpusError, named
from npm.core.figures import (
    NumberTable,
    Picture,
    check_panel_count,
    colour,
    folder_names,
    legend_below,
    marker,
    new_panels,
    plain_axes,
    shown_name,
)
from npm.core.files import digest_of, read_object
from npm.core.types import Progress, silent
from npm.evaluation.analyses.senses import principal_components
from npm.evaluation.report import terminal_table
from npm.evaluation.results import (
    METRICS,
    PREDICTIONS,
    CheckRecord,
    any_record,
    model_facts,
    read_predictions,
    write_results,
)
from npm.models.encoder import Encoder

if TYPE_CHECKING:
    from rich.console import Console


TASK = "embeddings"
EXAMPLE = '{"dog": "noun", "runs": "verb"}'


@dataclass(frozen=True, slots=True)
class TokenPoint:
    """A token in the plane."""

    token: str
    group: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class EmbeddingMetrics:
    """What metrics.json holds of it."""

    token_count: int
    group_count: int
    centroid_accuracy: float
    """Share of tokens whose nearest centroid, by Euclidean distance, is that of their group without them."""
    chance: float
    """The share of the largest group."""
    silhouette: float
    explained: tuple[float, ...]
    """Shares of the variance of the two components."""


@dataclass(frozen=True, slots=True)
class EmbeddingsResult:
    """Points and numbers of one encoder."""

    metrics: EmbeddingMetrics
    points: tuple[TokenPoint, ...]
    record: dict[str, Any]

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl, a line a token, and metrics.json to the folder `out`; see `write_results`."""
        metrics = {**self.record, **asdict(self.metrics)}
        write_results(out, record=self.record, predictions=map(asdict, self.points), metrics=metrics)

    def show(self, console: Console) -> None:
        """Print the numbers."""
        header = ["tokens", "groups", "nearest centroid, %", "largest group, %", "silhouette"]
        own = self.metrics
        shares = [f"{100 * each:.1f}" for each in (own.centroid_accuracy, own.chance)]
        row = [f"{own.token_count:,}", str(own.group_count), *shares, f"{own.silhouette:.3f}"]
        console.print(terminal_table(header, [row], title="word vectors by group", numbers=range(5)))


def read_groups(path: Path) -> dict[str, str]:
    """The group of each token of a JSON file. Raises CorpusError for another form, or fewer than two groups."""
    if not path.is_file():
        raise CorpusError(f"{path} is missing: give the groups of tokens, such as {EXAMPLE}")
    groups = read_object(path, fix=f"give a file such as {EXAMPLE}")
    wrong = [token for token, group in groups.items() if not isinstance(group, str)]
    if wrong:
        raise CorpusError(f"{path}: the group of {wrong[0]!r} must be a name, got {groups[wrong[0]]!r:.80}")
    if len(set(groups.values())) < 2:
        raise CorpusError(f"{path}: expected two groups at least, such as {EXAMPLE}")
    return groups


def evaluate_embeddings(
    encoder: Encoder,
    groups: Mapping[str, str],
    *,
    where: str,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> EmbeddingsResult:
    """Measure the word vectors of the tokens in `groups`, which `where` names.

    Raises CorpusError for a token that is not in the vocabulary.
    """
    vocabulary = encoder.tokenizer.get_vocab()
    if unknown := [token for token in groups if token not in vocabulary]:
        raise CorpusError(f"{where}: not in the vocabulary of the encoder: {named(unknown)}")
    facts = {**model_facts(encoder), "tokenizer_fingerprint": encoder.tokenizer_fingerprint}
    record = {"task": TASK, "groups_digest": digest_of(json.loads(json.dumps(groups))), "encoder": facts}
    check_record(record)
    names = sorted(set(groups.values()))
    numbers = np.array([names.index(group) for group in groups.values()])  # i64 [n]
    words: Any = encoder.model.get_input_embeddings()
    matrix = words.weight.detach().float().cpu().numpy()  # f32 [V, d]
    vectors = matrix[[vocabulary[token] for token in groups]]  # f32 [n, d]
    points, explained = principal_components(vectors)  # f64 [n, 2], f64 [2]
    progress("tokens", len(groups), len(groups))
    metrics = EmbeddingMetrics(
        token_count=len(groups),
        group_count=len(names),
        centroid_accuracy=float(nearest_is_own(vectors.astype(np.float64), numbers).mean()),
        chance=max(Counter(groups.values()).values()) / len(groups),
        silhouette=float(silhouettes(vectors.astype(np.float64), numbers).mean()),
        explained=tuple(explained.tolist()),
    )
    placed = [TokenPoint(*item, *point) for item, point in zip(groups.items(), points.tolist(), strict=True)]
    return EmbeddingsResult(metrics, tuple(placed), record)


def nearest_is_own(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether the centroid nearest to each row of f64 [n, d] is that of its group i64 [n] without it, bool [n].

    >>> nearest_is_own(np.array([[0.0], [1.0], [9.0], [10.0]]), np.array([0, 0, 1, 0])).tolist()
    [True, True, False, False]
    """
    member = np.eye(groups.max() + 1)[groups]  # f64 [n, G]
    sizes = member.sum(0)  # f64 [G]
    sums = member.T @ vectors  # f64 [G, d]
    centroids = sums / sizes[:, None]  # f64 [G, d]
    squares = (vectors**2).sum(1)[:, None] - 2 * vectors @ centroids.T + (centroids**2).sum(1)  # f64 [n, G]
    others = sizes[groups] - 1  # f64 [n]
    without = (sums[groups] - vectors) / np.maximum(others, 1)[:, None]  # f64 [n, d]
    own = np.where(others > 0, ((vectors - without) ** 2).sum(1), np.inf)  # f64 [n]
    squares[np.arange(len(groups)), groups] = np.inf
    nearer: np.ndarray = own < squares.min(1)  # bool [n]
    return nearer


def silhouettes(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The silhouette f64 [n] of each row of f64 [n, d] in its group i64 [n], with the distance 1 − cosine."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # f64 [n, d]
    member = np.eye(groups.max() + 1)[groups]  # f64 [n, G]
    sizes = member.sum(0)  # f64 [G]
    # the mean distance to a group is 1 − the mean cosine, which the sum of its unit vectors gives
    sums = units @ (member.T @ units).T  # f64 [n, G]
    rows = np.arange(len(groups))
    own = (sums[rows, groups] - (units**2).sum(1)) / np.maximum(sizes[groups] - 1, 1)  # f64 [n]
    means = sums / sizes  # f64 [n, G]
    means[rows, groups] = -np.inf
    inside, outside = 1 - own, 1 - means.max(1)  # f64 [n] each
    widest = np.maximum(np.maximum(inside, outside), 1e-12)  # f64 [n]
    return np.where(sizes[groups] > 1, (outside - inside) / widest, 0.0)


def embeddings_picture(folders: Sequence[Path]) -> Picture:
    """The tokens in the plane of the first components, a panel a folder, a colour and marker a group.

    Raises SettingError without folders or for too many, ArtifactError for a folder with other results.
    """
    names = folder_names(folders)
    check_panel_count(names)
    figure, axes = new_panels(len(folders), inches=(5.6, 4.6))
    rows, record = [], []
    for name, folder, own in zip(names, folders, axes, strict=True):
        file = folder / PREDICTIONS
        points = [read_record(TokenPoint, line, file=file, key=where) for where, line in read_predictions(folder)]
        metrics = read_record(EmbeddingMetrics, read_object(folder / METRICS, fix="evaluate again"), file=file)
        for number, group in enumerate(sorted({point.group for point in points})):
            places = [(point.x, point.y) for point in points if point.group == group]
            look: dict[str, Any] = {"color": colour(number), "marker": marker(number), "s": 14, "alpha": 0.7}
            own.scatter(*zip(*places, strict=True), label=shown_name(group), **look)
        shares = [
            f"component {n + 1}, {100 * share:.0f} % of the variance" for n, share in enumerate(metrics.explained)
        ]
        plain_axes(own, x=shares[0], y=shares[1], title=shown_name(name))
        cells = (f"{100 * metrics.centroid_accuracy:.1f}", f"{100 * metrics.chance:.1f}", f"{metrics.silhouette:.3f}")
        rows.append((name, f"{metrics.token_count:,}", *cells))
        record.append({"name": name, **asdict(metrics), "points": [asdict(point) for point in points]})
    legend_below(figure, axes, columns=6)
    header = ("encoder", "tokens", "nearest centroid, %", "largest group, %", "silhouette")
    table = NumberTable("word vectors by group", header, tuple(rows))
    return Picture(figure, (table,), {"picture": TASK, "encoders": record})
