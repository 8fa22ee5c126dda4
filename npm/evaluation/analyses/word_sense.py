"""Task `word_sense`: are places of a word nearer to each other where it means the same?

The vector of a place is that of the word's first token, joined with that of its last. Pairs of places with a label for
the same or another sense are ranked by the similarity of their vectors. In an index over rated texts the places of a
word are compared with those under low and under high ratings.

Shapes: n pairs, m places, w words, r resamples, d dimensions, layers with the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.arrays import to_float32
from npm.core.errors import SettingError
from npm.core.files import digest_of
from npm.core.settings import as_json, changed_settings
from npm.core.types import Progress, silent
from npm.corpus.conditions import matching_documents, parse_conditions
from npm.evaluation.analyses.panels import KEY, Line, Panel, Point, show_panels
from npm.evaluation.analyses.word_pairs import WordPair, WordPlace, read_pairs, shipped_pairs
from npm.evaluation.metrics import Interval, bootstrap_interval, wilson_interval
from npm.evaluation.results import CheckRecord, any_record, index_facts, model_facts, write_results
from npm.evaluation.settings import SampleSettings, WordSenseSettings
from npm.evaluation.tasks.document_conditions import check_conditions
from npm.evaluation.zero_shot.occurrences import find_occurrences
from npm.models.batches import encode_sequences, padded

if TYPE_CHECKING:
    from rich.console import Console

    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


TASK = "word_sense"
TOKENS_PER_BATCH = 8192
SENTENCES_PER_PASS = 32
LEAST_PLACES = 5
"""Of a word under either rating, for it to be measured."""
CHANCE = 0.5


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(a positive scores above a negative), equal scores as a half, of `scores` f64 [n] and `positive` bool [n].

    The area under the ROC curve by ranks (Hanley and McNeil 1982); 0.5 without positives or without negatives.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    _, numbers, counts = np.unique(scores, return_inverse=True, return_counts=True)  # [distinct], [n], [distinct]
    middles = np.cumsum(counts) - (counts - 1) / 2  # f64 [distinct], the mean rank, from 1, of equal scores
    hits = int(np.count_nonzero(positive))
    misses = len(scores) - hits
    if hits == 0 or misses == 0:
        return CHANCE
    return float((middles[numbers[positive]].sum() - hits * (hits + 1) / 2) / (hits * misses))


def resampled_aucs(
    columns: Sequence[np.ndarray], positive: np.ndarray, words: Sequence[str], sample: SampleSettings
) -> np.ndarray:
    """The AUC of each of c columns of scores f64 [n] over resamples of whole words, f64 [c, r].

    Pairs of one word share sentences: words are drawn anew with all their pairs (Efron and Tibshirani 1993, §8.3).
    """
    _, numbers = np.unique(np.array(words), return_inverse=True)  # i64 [n]
    members = [np.flatnonzero(numbers == word) for word in range(numbers.max() + 1)]  # w of i64 [pairs of the word]
    rng = np.random.default_rng(sample.seed)
    found = np.empty((len(columns), sample.resamples))  # f64 [c, r]
    for number in range(sample.resamples):
        drawn = np.concatenate([members[word] for word in rng.integers(len(members), size=len(members))])  # i64 [drawn]
        found[:, number] = [auc(scores[drawn], positive[drawn]) for scores in columns]
    return found


def interval_of(mean: float, samples: np.ndarray) -> Interval:
    """A number with the 95 % percentile interval of its resamples f64 [r]."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


def best_threshold(scores: np.ndarray, positive: np.ndarray) -> float:
    """The score from which on pairs are called positive with the fewest errors; the lowest of equally good ones.

    One above all scores stands for calling none positive.

    >>> best_threshold(np.array([0.1, 0.4, 0.6, 0.9]), np.array([False, True, False, True]))
    0.4
    """
    candidates = np.append(np.unique(scores), scores.max() + 1)  # f64 [distinct + 1]
    right = [((scores >= each) == positive).sum() for each in candidates]
    return float(candidates[int(np.argmax(right))])


def place_vectors(encoder: Encoder, places: Sequence[WordPlace], *, layers: bool = False) -> np.ndarray:
    """The vectors of the first and of the last token of each of m places, joined: f32 [1, m, 2d].

    With `layers` those of the embeddings and behind each layer, f32 [layers, m, 2d]. A sentence that is too long is cut
    around the word.
    """
    given = encoder.tokenizer(
        [place.sentence for place in places],
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids)
    sequences: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    for place, ids, offsets in zip(places, given["input_ids"], given["offset_mapping"], strict=True):
        own = [at for at, (start, end) in enumerate(offsets) if start < place.end and end > place.start]
        if not own:
            word = place.sentence[place.start : place.end]
            raise SettingError(f"{encoder.name} has no token of the word {word!r}: take the pair out")
        first = max(0, min(own[0] - room // 2, len(ids) - room))
        kept = ids[first : first + room]
        sequences.append(np.array([*encoder.prefix_ids, *kept, *encoder.suffix_ids], dtype=np.int64))
        slots.append(np.array([own[0], min(own[-1], first + room - 1)]) - first + len(encoder.prefix_ids))  # i64 [2]
    if layers:
        return _layer_vectors(encoder, sequences, slots)
    ends = encode_sequences(encoder, sequences, slots, tokens_per_batch=TOKENS_PER_BATCH)  # m of f32 [2, d]
    return np.stack(ends).reshape(1, len(places), -1)  # f32 [1, m, 2d]


def _layer_vectors(encoder: Encoder, sequences: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> np.ndarray:
    """The states at the two `slots` i64 [2] of each of m sequences, joined, f32 [layers, m, 2d]."""
    import torch

    from npm.models.encoder import evaluating

    pieces: list[np.ndarray] = []
    with evaluating(encoder.model), torch.inference_mode():
        for start in range(0, len(sequences), SENTENCES_PER_PASS):
            own = slice(start, start + SENTENCES_PER_PASS)
            ids, mask = (
                torch.from_numpy(each).to(encoder.device) for each in padded(sequences[own], pad_id=encoder.pad_id)
            )
            states = encoder.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            rows = torch.arange(len(ids), device=ids.device)[:, None]  # i64 [B, 1]
            at = torch.from_numpy(np.stack(slots[own])).to(ids.device)  # i64 [B, 2]
            chosen = torch.stack([each[rows, at].flatten(1) for each in states])  # f32 [layers, B, 2d]
            pieces.append(chosen.float().cpu().numpy())
    return np.concatenate(pieces, axis=1)  # f32 [layers, m, 2d]


def similarities(vectors: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    """Of vectors f32 [2, n, 2d] of the places of n pairs: both scaled inner products together, and cosines, f64."""
    first, second = vectors.astype(np.float64)  # f64 [n, 2d] each
    products = (first * second).sum(1)  # f64 [n]
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)  # f64 [n]
    return {"inner product": scale * products, "cosine": products / np.maximum(lengths, 1e-12)}


@dataclass(frozen=True, slots=True)
class RatedWord:
    """The places of one word under low and under high ratings."""

    word: str
    counts: tuple[int, int]
    auc: Interval
    """P(a place of the same rating is nearer than one of the other), the mean over places."""


@dataclass(frozen=True, slots=True)
class WordSenseResult:
    """What was measured of pairs, and of rated places."""

    pairs: tuple[WordPair, ...]
    scores: Mapping[tuple[str, str], np.ndarray]  # by encoder and similarity: f64 [n]
    layer_aucs: Mapping[str, Sequence[Interval]]  # by encoder, of the cosine
    rated: tuple[RatedWord, ...]
    left_out: tuple[str, ...]  # words with too few places
    sample: SampleSettings
    record: dict[str, Any]

    @property
    def positive(self) -> np.ndarray:
        """Whether a pair has one sense, bool [n]."""
        return np.array([pair.same for pair in self.pairs], dtype=bool)

    def development(self) -> np.ndarray:
        """Which half of the pairs thresholds are chosen on, bool [n]."""
        chosen = np.zeros(len(self.pairs), dtype=bool)  # [n]
        chosen[np.random.default_rng(self.sample.seed).permutation(len(chosen))[: len(chosen) // 2]] = True
        return chosen

    def accuracy(self, scores: np.ndarray) -> tuple[Interval, float]:
        """On the other half, with the threshold that is best on the development half; and that threshold."""
        development, positive = self.development(), self.positive  # bool [n] each
        threshold = best_threshold(scores[development], positive[development])
        right = (scores >= threshold)[~development] == positive[~development]  # bool [n / 2]
        return wilson_interval(int(right.sum()), len(right)), threshold

    def panels(self) -> list[Panel]:
        """AUC and accuracy by encoder, the difference to the first encoder, AUC by layer, and by rated word."""
        found: list[Panel] = []
        if self.pairs:
            found += self._pair_panels()
        if self.layer_aucs:
            lines = tuple(
                Line(name, tuple(Point(str(at), len(self.pairs), each, float(at)) for at, each in enumerate(own)))
                for name, own in self.layer_aucs.items()
            )
            found.append(Panel("same sense, by layer", "layer", "AUC of the cosine", lines))
        if self.rated:
            points = [Point(each.word, sum(each.counts), each.auc) for each in self.rated]
            means = np.array([each.auc.mean for each in self.rated])  # f64 [w]
            rng = np.random.default_rng(self.sample.seed)
            mean = bootstrap_interval(means, rng, resamples=self.sample.resamples)
            points.append(Point("mean over words", len(self.rated), mean))
            found.append(Panel("same rating", "word", "AUC", (Line("places of the word", tuple(points)),)))
        return found

    def _pair_panels(self) -> Iterator[Panel]:
        names = list(dict.fromkeys(encoder for encoder, _ in self.scores))
        kinds = list(dict.fromkeys(kind for _, kind in self.scores))
        words, count = [pair.word for pair in self.pairs], len(self.pairs)
        keys = list(self.scores)
        samples = resampled_aucs([self.scores[key] for key in keys], self.positive, words, self.sample)  # f64 [c, r]
        draws = dict(zip(keys, samples, strict=True))
        means = {key: auc(self.scores[key], self.positive) for key in keys}

        def lines(of: Sequence[str], measure: Callable[[tuple[str, str]], Interval], n: int) -> tuple[Line, ...]:
            return tuple(Line(kind, tuple(Point(name, n, measure((name, kind))) for name in of)) for kind in kinds)

        def difference(key: tuple[str, str]) -> Interval:
            first = (names[0], key[1])
            return interval_of(means[key] - means[first], draws[key] - draws[first])

        yield Panel(
            "same sense", "encoder", "AUC", lines(names, lambda key: interval_of(means[key], draws[key]), count)
        )
        if len(names) > 1:
            yield Panel(f"against {names[0]}", "encoder", "difference of AUC", lines(names[1:], difference, count))
        half = count - count // 2
        yield Panel(
            "same sense, threshold chosen on one half",
            "encoder",
            "accuracy on the other",
            lines(names, lambda key: self.accuracy(self.scores[key])[0], half),
        )

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        thresholds = {f"{name}, {kind}": self.accuracy(own)[1] for (name, kind), own in self.scores.items()}
        given = {"pair_count": len(self.pairs), "thresholds": thresholds, "words_left_out": list(self.left_out)}
        rated = [asdict(each) for each in self.rated]
        return {**self.record, **given, "rated": rated, KEY: [asdict(panel) for panel in self.panels()]}

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of predictions.jsonl: an encoder, a similarity and a pair each."""
        for (name, kind), own in self.scores.items():
            threshold = self.accuracy(own)[1]
            for number, pair in enumerate(self.pairs):
                yield {
                    "task": TASK,
                    "method": f"{name}, {kind}",
                    "id": str(number),
                    "word": pair.word,
                    "gold": pair.same,
                    "score": float(own[number]),
                    "correct": bool((own[number] >= threshold) == pair.same),
                }

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        write_results(out, record=self.record, predictions=self.records(), metrics=self.metrics())

    def show(self, console: Console) -> None:
        """Print the panels as tables."""
        show_panels(self.panels(), console)
        if self.left_out:
            least = f"fewer than {LEAST_PLACES} places under one of the ratings"
            console.print(f"note: left out, with {least}: {', '.join(self.left_out)}", markup=False)


def evaluate_word_sense(
    encoders: Mapping[str, Encoder],
    settings: WordSenseSettings,
    sample: SampleSettings,
    *,
    index: PhraseIndex | None = None,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> WordSenseResult:
    """Rank the pairs of `settings` by each of `encoders`, the first of which made `index` if there is one.

    With `index` the places of `settings.words` are compared by rating, and pairs are ranked only where the settings
    name some. Raises CorpusError for pairs that are none, SettingError for an index without such fields.
    """
    pairs: list[WordPair] = []
    if settings.pairs or index is None:
        pairs = read_pairs(Path(settings.pairs)) if settings.pairs else shipped_pairs()
    unread = [] if pairs else ["encoders", "layers"]
    unread += [] if index is not None else ["words", "low", "high", "places"]
    if changed := changed_settings(settings, WordSenseSettings(), unread):
        needed = "index=DIR" if pairs else "word_sense.pairs=FILE"
        raise SettingError(f"{', '.join(f'word_sense.{name}' for name in changed)}: only read with {needed}")
    own = asdict(settings) | {"pairs": digest_of([asdict(pair) for pair in pairs]), "encoders": None}
    record = {
        "task": TASK,
        "settings": as_json(own) | {"seed": sample.seed, "resamples": sample.resamples},
        "encoders": [model_facts(each) | {"dtype": each.dtype_name} for each in encoders.values()],
        "index": None if index is None else index_facts(index),
    }
    check_record(record)
    scores: dict[tuple[str, str], np.ndarray] = {}
    layer_aucs: dict[str, list[Interval]] = {}
    words, positive = [pair.word for pair in pairs], np.array([pair.same for pair in pairs], dtype=bool)
    places = list(dict.fromkeys(place for pair in pairs for place in (pair.first, pair.second)))
    at = {place: number for number, place in enumerate(places)}
    ends = np.array([[at[pair.first] for pair in pairs], [at[pair.second] for pair in pairs]], dtype=np.int64)  # [2, n]
    for number, (name, encoder) in enumerate(encoders.items() if pairs else (), start=1):
        vectors = place_vectors(encoder, places)[0]  # f32 [m, 2d]
        found = similarities(vectors[ends], encoder.similarity_scale)
        scores |= {(name, kind): each for kind, each in found.items()}
        if settings.layers:
            of_layers = place_vectors(encoder, places, layers=True)[:, ends]  # f32 [layers, 2, n, 2d]
            columns = [similarities(each, 1.0)["cosine"] for each in of_layers]  # layers of f64 [n]
            draws = resampled_aucs(columns, positive, words, sample)  # f64 [layers, r]
            layer_aucs[name] = [interval_of(auc(c, positive), own) for c, own in zip(columns, draws, strict=True)]
        progress("pairs", number, len(encoders))
    rated, left_out = ([], []) if index is None else rated_words(index, next(iter(encoders.values())), settings, sample)
    return WordSenseResult(tuple(pairs), scores, layer_aucs, tuple(rated), tuple(left_out), sample, record)


def rated_words(
    index: PhraseIndex, encoder: Encoder, settings: WordSenseSettings, sample: SampleSettings
) -> tuple[list[RatedWord], list[str]]:
    """Each word with enough places under both ratings, and the names of the others."""
    if index.vectors is None:
        raise ValueError("an index without stored vectors cannot compare places")
    check_conditions([settings.low], where="word_sense.low")
    check_conditions([settings.high], where="word_sense.high")
    masks = [matching_documents(index.store, parse_conditions([each])) for each in (settings.low, settings.high)]
    occurrences = find_occurrences(index, encoder, settings.words)
    documents = index.store.block_documents[index.store.block_of(occurrences.starts)]  # i64 [occurrences]
    rng = np.random.default_rng(sample.seed)
    found: list[RatedWord] = []
    left_out: list[str] = []
    for number, word in enumerate(settings.words):
        own = np.arange(*occurrences.offsets[number : number + 2])  # i64 [places]
        sides = [rng.permutation(own[mask[documents[own]]])[: settings.places] for mask in masks]  # i64 each
        if min(map(len, sides)) < LEAST_PLACES:
            left_out.append(word)
            continue
        chosen = np.concatenate(sides)  # i64 [m]
        rows = (occurrences.start_rows[chosen], occurrences.end_rows[chosen])  # i64 [m] each
        vectors = np.concatenate([to_float32(index.vectors.take(each)) for each in rows], axis=1)  # f32 [m, 2d]
        is_high = np.repeat([False, True], [len(side) for side in sides])  # bool [m]
        aucs = place_aucs(vectors @ vectors.T, is_high)  # f64 [m]
        interval = bootstrap_interval(aucs, np.random.default_rng(sample.seed), resamples=sample.resamples)
        found.append(RatedWord(word, (len(sides[0]), len(sides[1])), interval))
    if not found:
        raise SettingError(
            f"word_sense.words: none has {LEAST_PLACES} places under both {settings.low} and {settings.high}: "
            f"{', '.join(settings.words)}"
        )
    return found, left_out


def place_aucs(products: np.ndarray, is_high: np.ndarray) -> np.ndarray:
    """For each of m places P(another one of its rating is nearer than one of the other rating), f64 [m].

    Of similarities f32 [m, m] and ratings bool [m].
    """
    others = ~np.eye(len(is_high), dtype=bool)  # [m, m]
    same = is_high[:, None] == is_high  # bool [m, m]
    return np.array([auc(row[other], own[other]) for row, own, other in zip(products, same, others, strict=True)])
