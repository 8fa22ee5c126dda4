"""Task `sts`: rank correlation of cosines with people's scores of sentence pairs.

One encoder, or two (before and after training) on the same pairs. Protocol of Gao et al. 2021 (SimCSE, arXiv
2104.08821, §6.1 and appendix B): no regressor, Spearman's correlation over all pairs of a set, its subsets together.
The mean of the subsets' own correlations, which other papers report, differs by several points.

Shapes: e encoders, n pairs, d dimensions, r resamples, s sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npm.core.display import Table
from npm.core.errors import CorpusError, EncoderError, SettingError
from npm.core.files import sha256_of_file
from npm.core.types import Progress, silent
from npm.corpus.readers import read_records, unusable_value
from npm.corpus.sources import find_sources
from npm.evaluation.metrics import Interval, percent, percentile_interval
from npm.evaluation.results import Result, model_facts, refuse_other_results
from npm.evaluation.settings import EvaluationSettings, SampleSettings
from npm.models.encoder import Encoder
from npm.models.sentences import SentenceEncoder
from npm.models.settings import PoolerKind, Precision

TEST_PAIRS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927}
"""Public sets in the order of published tables, with the test pairs that have a gold score there."""
SENTENCES = ("sentence1", "sentence2")
FORMATS = (".jsonl", ".jsonl.zst", ".parquet")
MAX_GOLD = 5.0
BEFORE_AND_AFTER = ("before", "after")
Encode = Callable[[list[str]], np.ndarray]  # maps n sentences to f32 [n, d]
MIN_VARIANCE = 1e-9  # of a direction that whitened vectors keep, as a share of the largest
DRAWN_AT_ONCE = 1 << 20  # pairs of the bootstrap; bounds memory


@dataclass(frozen=True, slots=True)
class SentencePairs:
    """Pairs of one split of one set, without those that have no gold score."""

    name: str  # a key of TEST_PAIRS
    split: str  # train, dev or test
    first: list[str]
    second: list[str]
    gold: np.ndarray  # f64 [n], 0 (nothing in common) to 5 (the same meaning)
    subsets: list[str]  # of each pair; all empty in a set without subsets
    without_gold: int = 0
    digest: str = ""  # SHA-256 of the file

    def __len__(self) -> int:
        return len(self.first)


def read_set(name: str, data_dir: str | Path, *, split: str) -> SentencePairs | None:
    """Pairs of `data_dir`/NAME-SPLIT, such as stsb-dev.jsonl, or None without such a file.

    Raises CorpusError, with file and line, for a row without two sentences or with a score outside 0 to 5.
    """
    stem = f"{name.replace('-', '').lower()}-{split}"
    file = next((path for each in FORMATS if (path := Path(data_dir, stem + each)).is_file()), None)
    if file is None:
        return None
    rows: list[tuple[str, str, float, str]] = []
    without_gold = 0
    (source,) = find_sources([str(file)])
    for line, row in read_records(source, required=SENTENCES, optional=["score", "subset"]):
        score = row.get("score", "")  # None: without one
        if score is None:
            without_gold += 1
            continue
        for column in SENTENCES:
            if not isinstance(row[column], str) or not row[column].strip():
                raise unusable_value(f"{file}:{line}", column, "a sentence", row[column])
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= MAX_GOLD:
            raise unusable_value(f"{file}:{line}", "score", f"from 0 to {MAX_GOLD:g}", score)
        rows.append((row["sentence1"], row["sentence2"], float(score), str(row.get("subset") or "")))
    if len(rows) < 2:
        raise CorpusError(f"{file} must have two or more pairs with a score, got {len(rows)}")
    first, second, gold, subsets = map(list, zip(*rows, strict=True))
    return SentencePairs(name, split, first, second, np.array(gold), subsets, without_gold, sha256_of_file(file))


def read_sets(data_dir: str | Path, *, split: str) -> list[SentencePairs]:
    """All public sets with a file of this split; see `read_set`. Raises CorpusError if there is none."""
    sets = [pairs for name in TEST_PAIRS if (pairs := read_set(name, data_dir, split=split)) is not None]
    if not sets:
        raise CorpusError(
            f"data_dir={data_dir} has no sentence pairs with split={split}: expected files such as stsb-{split}.jsonl;"
            " scripts/convert_sts.py converts the public ones"
        )
    return sets


@dataclass(frozen=True, slots=True)
class SentenceVectors:
    """Encoder of sentences, and that of their tokens."""

    name: str
    encode: Encode
    facts: Mapping[str, Any]  # name, fingerprint, pooler and number format, for metrics.json
    encoder: Encoder | None = None


def sentence_vectors(
    place: str,
    *,
    pooler: PoolerKind | None,
    post: Literal["none", "whiten"] = "none",
    device: str = "auto",
    dtype: Precision = Precision.float32,
) -> SentenceVectors:
    """Sentence encoder at `place`; with the pooler that it was saved with if None is named. Raises EncoderError."""
    loaded = SentenceEncoder.load(place, pooler=pooler, device=device, dtype=dtype)
    encoder = loaded.encoder
    facts = {"pooler": loaded.pooler.kind_after_training.value, "dtype": encoder.dtype_name, **model_facts(encoder)}
    if post == "none":
        return SentenceVectors(encoder.name, loaded.encode, facts, encoder)
    facts["pooler_post"] = post
    return SentenceVectors(encoder.name, lambda sentences: whitened(loaded.encode(sentences)), facts, encoder)


def whitened(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, d] shifted and turned to mean 0 and covariance 1, f64 [n, ≤ d], in the directions that they vary in.

    x̃ = (x − μ) U Λ^(−1/2), Σ = U Λ Uᵀ their covariance (Su et al. 2021, arXiv 2103.15316, §3). Raises SettingError for
    so few vectors that all would have one cosine.
    """
    centered = np.asarray(vectors, dtype=np.float64) - vectors.mean(0, dtype=np.float64)  # f64 [n, d]
    variances, directions = np.linalg.eigh(centered.T @ centered / len(centered))  # f64 [d], [d, d], ascending
    kept = variances > MIN_VARIANCE * max(variances[-1], 0.0)  # bool [d]
    if len(centered) <= kept.sum() + 1:
        raise SettingError(
            f"sts.pooler_post needs sets of more distinct sentences than the {vectors.shape[1]} dimensions of a vector,"
            f" got {len(centered)}"
        )
    result: np.ndarray = centered @ (directions[:, kept] / np.sqrt(variances[kept]))  # f64 [n, ≤ d]
    return result


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation f64 [...] of rows of `x` and `y` [..., n]; 0 where a row is constant.

    >>> pearson(np.array([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]]), np.array([1.0, 3.0, 5.0])).tolist()
    [1.0, 0.0]
    """
    x, y = (each - each.mean(-1, keepdims=True) for each in (x, y))  # f64 [..., n] each
    products = (x * y).sum(-1)  # f64 [...]
    lengths = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))  # f64 [...]
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation f64 [...] of rows of `x` and `y` [..., n]; 0 where a row is constant."""
    from scipy.stats import rankdata  # a second to import

    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def resampled_spearman(scores: np.ndarray, gold: np.ndarray, rng: np.random.Generator, *, resamples: int) -> np.ndarray:
    """Spearman's correlations f64 [r, e] of `scores` f64 [e, n] with `gold` f64 [n] on resampled pairs.

    The same pairs are drawn for all e, so differences between them are paired (Efron and Tibshirani 1993, §13.3).
    """
    count = len(gold)
    at_once = max(1, DRAWN_AT_ONCE // count)
    sizes = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    drawn = (rng.integers(0, count, size=(size, count)) for size in sizes)  # i64 [size, n] each
    return np.concatenate([spearman(scores[:, each], gold[each]).T for each in drawn])


def encode_distinct(encode: Encode, sentences: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Index i64 [n] of each sentence among the distinct ones, and their unit vectors f64 [distinct, d].

    Raises EncoderError for a vector of zeros, or with a number that is not finite.
    """
    places: dict[str, int] = {}
    numbers = np.array([places.setdefault(sentence, len(places)) for sentence in sentences])  # i64 [n]
    vectors = np.asarray(encode(list(places)), dtype=np.float64)  # [distinct, d]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # f64 [distinct, 1]
    for wrong in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))):
        raise EncoderError(
            f"sentence {wrong + 1} of {len(vectors)} has a vector of length {float(lengths[wrong, 0])}:"
            " the weights may be damaged, choose an earlier checkpoint"
        )
    return numbers, vectors / lengths


def pair_cosines(encode: Encode, pairs: SentencePairs) -> np.ndarray:
    """Cosine f64 [n] of the two sentences of each pair; each distinct sentence is encoded once."""
    numbers, units = encode_distinct(encode, [*pairs.first, *pairs.second])  # i64 [2n], f64 [distinct, d]
    cosines: np.ndarray = np.einsum("nd,nd->n", units[numbers[: len(pairs)]], units[numbers[len(pairs) :]])
    return cosines


def sts_spearman(encode: Encode, pairs: SentencePairs) -> float:
    """Spearman's correlation of cosine and gold score over all `pairs`, subsets together."""
    return float(spearman(pair_cosines(encode, pairs), pairs.gold))


def evaluate(settings: EvaluationSettings, out: Path | None, progress: Progress) -> Result:
    """Score the encoder of the settings, and with sts.before.encoder a second one, on all sets of data_dir."""
    if not settings.data_dir:
        raise SettingError(
            "data_dir is required: the folder with the files of STS12–16, STS-B and SICK-R, or some of them"
        )
    chosen = settings.sts
    sets = read_sets(settings.data_dir, split=settings.split)
    load = partial(sentence_vectors, device=settings.device, dtype=settings.precision)
    encoders = [load(chosen.before.encoder, pooler=chosen.before.pooler)] if chosen.before.encoder else []
    encoders.append(load(settings.encoder, pooler=chosen.pooler, post=chosen.pooler_post))
    return evaluate_sts(encoders, sets, settings, out=out, progress=progress)


def evaluate_sts(
    encoders: Sequence[SentenceVectors],
    sets: Sequence[SentencePairs],
    sample: SampleSettings,
    *,
    out: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Score one encoder, or two on the same pairs, `before` and `after`; intervals from a bootstrap over pairs.

    All are measured before anything is resampled.
    """
    record = {
        "task": "sts",
        "settings": {name: getattr(sample, name) for name in ("seed", "resamples")},
        "encoders": [dict(each.facts) for each in encoders],
        "data": {f"{pairs.name}-{pairs.split}": pairs.digest for pairs in sets},
    }
    refuse_other_results(out, record)
    by_encoder = []  # [e][s] f64 [n]
    for number, each in enumerate(encoders, start=1):
        by_encoder.append([pair_cosines(each.encode, pairs) for pairs in sets])
        progress("encoders", number, len(encoders))
    measured = [(np.stack(own), pairs) for *own, pairs in zip(*by_encoder, sets, strict=True)]  # f64 [e, n] each
    rng = np.random.default_rng(sample.seed)
    exact = np.stack([spearman(own, pairs.gold) for own, pairs in measured], axis=-1)  # f64 [e, s]
    drawn = [resampled_spearman(own, pairs.gold, rng, resamples=sample.resamples) for own, pairs in measured]
    resampled = np.stack(drawn, axis=-1)  # f64 [r, e, s]
    if sets[1:]:  # the mean of the sets is a further column
        exact, resampled = (np.append(each, each.mean(-1, keepdims=True), axis=-1) for each in (exact, resampled))
    intervals = [[*map(percentile_interval, own, resampled[:, place].T)] for place, own in enumerate(exact)]
    differences: list[Interval] = []
    if encoders[1:]:
        differences = [*map(percentile_interval, exact[1] - exact[0], (resampled[:, 1] - resampled[:, 0]).T)]
    scores = []
    for place, encoder in enumerate(encoders):
        columns = zip(measured, intervals[place], strict=False)  # the last may be of the average
        by_name = {pairs.name: _set_scores(pairs, own[place], interval) for (own, pairs), interval in columns}
        average = asdict(intervals[place][-1]) if sets[1:] else None
        scores.append({"name": encoder.name, "facts": dict(encoder.facts), "sets": by_name, "average": average})
    means = {
        "sets": [
            {"name": each.name, "split": each.split, "pair_count": len(each), "without_gold": each.without_gold}
            | {"subsets": dict(Counter(filter(None, each.subsets)))}
            for each in sets
        ],
        "encoders": scores,
        "differences": [asdict(each) for each in differences],
    }
    table = _table(sets, intervals, differences)
    return Result(record, [*_lines(measured)], means, [table], [*_notes(encoders, sets)])


def _lines(measured: Iterable[tuple[np.ndarray, SentencePairs]]) -> Iterator[dict[str, Any]]:
    """Lines of predictions.jsonl, one per pair; with `cosine_before` for two encoders."""
    for cosines, pairs in measured:
        columns = zip(pairs.subsets, pairs.first, pairs.second, pairs.gold.tolist(), cosines.T.tolist(), strict=True)
        for number, (subset, first, second, gold, own) in enumerate(columns):
            before = {"cosine_before": own[0]} if len(own) > 1 else {}
            line = {"set": pairs.name, "subset": subset, "number": number, "sentence1": first, "sentence2": second}
            yield {**line, "gold": gold, "cosine": own[-1], **before}


def _set_scores(pairs: SentencePairs, cosines: np.ndarray, interval: Interval) -> dict[str, Any]:
    """Spearman's correlation of a set and of each subset, and their mean, plain and weighted by their pairs."""
    sizes, subsets = Counter(filter(None, pairs.subsets)), np.array(pairs.subsets)
    by_subset = {name: float(spearman(cosines[subsets == name], pairs.gold[subsets == name])) for name in sizes}
    values, weights = list(by_subset.values()), list(sizes.values())
    return {
        "spearman": asdict(interval),
        "subset_spearman": by_subset,
        "subset_mean": float(np.mean(values)) if values else None,
        "subset_weighted_mean": float(np.average(values, weights=weights)) if values else None,
    }


def _table(
    sets: Sequence[SentencePairs], intervals: Sequence[Sequence[Interval]], differences: Sequence[Interval]
) -> Table:
    """Spearman × 100 of each set and of their average, of two encoders with their difference."""
    names, counts = [f"{each.name} {each.split}" for each in sets], [str(len(each)) for each in sets]
    if sets[1:]:
        names, counts = [*names, f"average of {len(sets)}"], [*counts, ""]
    header = ["Spearman × 100 [95 %]"]
    cells = [[percent(each) for each in own] for own in intervals]
    if differences:
        header = [*BEFORE_AND_AFTER, "after − before [95 %]"]
        cells = [[f"{100 * each.mean:.1f}" for each in own] for own in intervals]
        cells.append([percent(each, sign="+") for each in differences])
    rows = list(zip(names, counts, *cells, strict=True))
    return Table("cosine against gold score, over all pairs of a set", ["set", "pairs", *header], rows)


def _notes(encoders: Sequence[SentenceVectors], sets: Sequence[SentencePairs]) -> Iterator[str]:
    """Notes on the tables: the encoders, missing sets, and sets that cannot be compared with published ones."""
    for head, encoder in zip(BEFORE_AND_AFTER if encoders[1:] else ("encoder",), encoders, strict=True):
        poolers = [encoder.facts[key] for key in ("pooler", "pooler_post") if key in encoder.facts]
        yield f"{head}: {encoder.name} ({', '.join(poolers)})"
    split = sets[0].split
    if absent := TEST_PAIRS.keys() - {each.name for each in sets}:
        yield f"left out, because data_dir has no {split} part of them: {', '.join(sorted(absent))}"
    for each in sets:
        count, published = len(each), TEST_PAIRS[each.name]
        if split == "test" and count != published:
            yield f"{each.name} has {count:,} pairs here and {published:,} in published results: do not compare them"
        if each.without_gold:
            yield f"{each.without_gold:,} pairs of {each.name} have no gold score and are left out"
