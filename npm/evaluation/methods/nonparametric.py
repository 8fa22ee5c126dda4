"""Retrieval: labels by the occurrences of their words in a corpus that fit the masked position, phrases by filling it.

Methods `npm` (a mask pair, or one mask where the encoder was trained so), `npm-single` and `mlm-knn` (one mask, one
query) differ in how they ask, and in the index. The evidence of a label's words is calibrated by the empty template or
by sentences of the corpus, here and where a language model scores the words.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from npm.core.errors import SettingError, named
from npm.core.settings import as_json
from npm.core.types import MASK_TEXT, Progress
from npm.corpus.text import sentence_bounds
from npm.evaluation.methods.occurrences import WordOccurrences, WordScores, find_occurrences, hit_scores, scan_scores
from npm.evaluation.methods.registry import NO_DOCUMENT, Method, Predictions, Resources, admissible_parts, answered
from npm.evaluation.results import filler_facts, model_facts
from npm.evaluation.tasks import (
    BY_CORPUS,
    Calibration,
    ClosedScoring,
    Evidence,
    Example,
    LabelMean,
    LabelPrediction,
    ResolvedScoring,
    Task,
    Verbalizer,
    load_verbalizer,
    task_scoring,
)
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_masks
from npm.retrieval.settings import Combination, Retrieval

EXAMPLES_SCORED_TOGETHER, EXAMPLES_ENCODED_TOGETHER = 4096, 512
TEXTS_PER_CALL = 64
WORDS_NAMED = 12  # words that a message lists at most
VECTORLESS = (
    "function words, such as no, and marks have none unless the index is built with vectors.pruning=word_boundaries: "
    "choose other words"
)
PROMPT_COUNT = 256
SHORTEST_CHARS, LONGEST_CHARS = 30, 250  # key of a sentence that represents an example
SEED = 0


class LabelWords:
    """The words of each label with their occurrences in a corpus; words with equal occurrences count once."""

    def __init__(
        self, task: Task, verbalizer: Verbalizer, occurrences: WordOccurrences, settings_key: str = "zero_shot.closed"
    ) -> None:
        """`settings_key` is the group of the verb's settings for messages about a task's file.

        Raises SettingError if a label has no word with a vector, or two labels have words of the same tokens."""
        self.numbers: list[np.ndarray] = []  # indices of the words that count for each label, L times i64 [w]
        self.notes: list[str] = []
        self.counts: dict[str, dict[str, int]] = {}  # occurrences with vectors, by label and word
        words = occurrences.words
        place, also = "", ""
        if task.digest:
            place, also = f"task {task.name}, verbalizer {verbalizer.name}: ", f" or {settings_key}.verbalizer"
        counts, totals = occurrences.counts.tolist(), occurrences.total_counts.tolist()
        owners: dict[tuple[bytes, bytes] | int, tuple[str, int]] = {}  # occurrences → label and word they count for
        for name, own in zip((label.name for label in task.labels), verbalizer.words, strict=True):
            numbers, kept = [words.index(word) for word in own], []
            absent = [f"{words[number]} ({totals[number]})" for number in numbers if not counts[number]]
            shown = f"in the corpus, by their counts: {named(absent, most=WORDS_NAMED)}"
            if len(absent) == len(numbers):
                raise SettingError(
                    f"{place}no word of the label {name!r} has a vector {shown}; "
                    f"{VECTORLESS if any(totals[number] for number in numbers) else 'choose words that occur'}, in "
                    f"labels{also}",
                    code="label_unknown",
                )
            for number in numbers:
                here = slice(*occurrences.offsets[number : number + 2].tolist())
                places = occurrences.starts[here].tobytes(), occurrences.lengths[here].tobytes()
                owner, counted = owners.setdefault(places if counts[number] else number, (name, number))
                both = f"{words[counted]!r} and {words[number]!r}"
                if owner != name:
                    raise SettingError(f"{place}{both} of {owner!r} and {name!r} are the same tokens: take one out")
                if counted == number:
                    kept.append(number)
                else:
                    self.notes.append(f"{both} of the label {name!r} occur at the same positions: they count once")
            self.numbers.append(np.array(kept, dtype=np.int64))
            self.counts[name] = {words[number]: counts[number] for number in kept}
            if absent:
                self.notes.append(
                    f"{len(absent)} of the {len(numbers)} words of the label {name!r} have no vector {shown}"
                )


def label_logs(numbers: Sequence[np.ndarray], scores: WordScores, mean: LabelMean) -> np.ndarray:
    """log of the evidence of each label's words `numbers`, f64 [q, L]; -inf without any.

    With E_v the evidence of word v over its n_v occurrences: `sum` is Σ E_v, `occurrences` is Σ E_v / Σ n_v, `words`
    is the mean of E_v / n_v over the words that have occurrences.
    """
    columns = []
    for own in numbers:
        held = own[scores.counts[own] > 0]  # i64 [w]
        logs, counts = scores.log_sums[:, held], scores.counts[held]  # f64 [q, w], i64 [w]
        divisor = {"words": len(held), "occurrences": counts.sum(), "sum": 1}[mean]
        each = logs - np.log(counts) if mean == "words" else logs  # f64 [q, w]
        columns.append(np.logaddexp.reduce(each, axis=1) - np.log(divisor))
    return np.stack(columns, axis=1)  # [q, L]


def scored_batches(
    task: Task,
    examples: Sequence[Example],
    word_scores: Callable[[Sequence[str]], WordScores],
    numbers: Sequence[np.ndarray],
    progress: Progress,
    *,
    mean: LabelMean,
    calibration: Calibration,
    prompts: Sequence[str] = (),
    at_once: int,
    settings_key: str = "zero_shot.closed",
) -> Iterator[tuple[WordScores, np.ndarray]]:
    """Evidence of words, and calibrated logs of labels f64 [q, L], of `at_once` examples at a time.

    `word_scores` maps texts to the evidence of words; calibration by the corpus needs its `prompts`. Raises
    SettingError if a label has no evidence at the empty template that calibrates.
    """
    prior, at_prompts = np.zeros(len(numbers)), None  # f64 [L]
    if calibration == "prompt":
        (prior,) = label_logs(numbers, word_scores([task.prompt.empty()]), mean)  # f64 [L]
        if np.isneginf(prior).any():
            absent = ", ".join(task.labels[label].name for label in np.flatnonzero(np.isneginf(prior)))
            raise SettingError(
                f"{settings_key}.calibration: {task.name} has no evidence for {absent} at the empty template: "
                f"set {settings_key}.retrieval=exact, a larger k, or {settings_key}.calibration=none"
            )
    elif calibration in BY_CORPUS:
        at_prompts = word_scores(prompts).log_sums  # f64 [prompts, W]
    for first in range(0, len(examples), at_once):
        batch = examples[first : first + at_once]
        scores = word_scores([example.text for example in batch])
        if at_prompts is not None:
            held = scores.counts > 0  # bool [W]
            logs = scores.log_sums.copy()  # f64 [q, W]
            scaled = calibration == "corpus_scaled"
            relative = relative_logs(logs[:, held], at_prompts[:, held], scaled=scaled)  # f64 [q, held words]
            logs[:, held] = relative + np.log(scores.counts[held])
            scores = replace(scores, log_sums=logs)
        yield scores, label_logs(numbers, scores, mean) - prior
        progress(f"task {task.name}", first + len(batch), len(examples))


def label_shares(logs: np.ndarray) -> np.ndarray:
    """e^x over the sum of its row, f64 [q, L]; equal shares where no label has evidence.

    >>> label_shares(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    >>> label_shares(np.full((1, 2), -np.inf)).tolist()
    [[0.5, 0.5]]
    """
    tops = logs.max(axis=1, keepdims=True)  # f64 [q, 1]
    weights = np.where(np.isneginf(tops), 1.0, np.exp(logs - np.where(np.isneginf(tops), 0.0, tops)))  # f64 [q, L]
    return weights / weights.sum(axis=1, keepdims=True)


def corpus_prompts(task: Task, index: PhraseIndex, settings_key: str = "zero_shot.closed") -> list[str]:
    """`PROMPT_COUNT` prompts, fewer where the corpus has fewer: each field of the template is a sentence.

    The sentences of one prompt follow each other in one block, except those omitted as too short, too long or with a
    mask; blocks are drawn without replacement among those of documents that are not deleted. Raises SettingError if
    the index has no such sentences.
    """
    template = task.prompt
    live = np.arange(index.store.block_count) if index.live_blocks is None else np.flatnonzero(index.live_blocks)
    rng = np.random.default_rng(SEED)
    prompts: list[str] = []
    for block in rng.permutation(live).tolist():
        if len(prompts) == PROMPT_COUNT:
            break
        text = index.store.block_text(block)
        found = (" ".join(text[first:last].split()) for first, last in sentence_bounds(text).tolist())
        sentences = [each for each in found if SHORTEST_CHARS <= len(each) <= LONGEST_CHARS and MASK_TEXT not in each]
        positions = len(sentences) - len(template.fields) + 1
        if positions >= 1:
            first = int(rng.integers(positions))
            prompts.append(template.render(dict(zip(template.fields, sentences[first:], strict=False)), answers=("x",)))
    if not prompts:
        is_file = settings_key and task.digest
        remedy = f"set {settings_key}.calibration to prompt or none" if is_file else "choose an index with such texts"
        raise SettingError(
            f"index={index.folder} has no sentences of {SHORTEST_CHARS} to {LONGEST_CHARS} characters to calibrate "
            f"{task.name} with: {remedy}"
        )
    return prompts


def relative_logs(logs: np.ndarray, at_prompts: np.ndarray, *, scaled: bool) -> np.ndarray:
    """Fit of each word to a text beyond its fit to texts in general, f64 [q, W], of `logs` f64 [q, W].

    The mean of `at_prompts` f64 [prompts, W] is subtracted from each column; `scaled` divides by the standard deviation
    too, where there is one.

    >>> relative_logs(np.array([[3.0, 1.0]]), np.array([[0.0, 1.0], [4.0, 1.0]]), scaled=True).tolist()
    [[0.5, 0.0]]
    """
    relative = logs - at_prompts.mean(axis=0)  # f64 [q, W]
    if not scaled:
        return relative
    spreads = at_prompts.std(axis=0)  # f64 [W]
    return relative / np.where(spreads > 0, spreads, 1.0)


class PreparedLabels(NamedTuple):
    """The labels of a task in an index."""

    scoring: ResolvedScoring
    verbalizer: Verbalizer
    occurrences: WordOccurrences
    labels: LabelWords
    prompts: Sequence[str]  # that calibrate by the corpus


def closed_method(name: str, task: Task, resources: Resources) -> Method:
    """Method `npm`, `npm-single` or `mlm-knn`."""
    index, encoder = resources.index(task, parametric=name == "mlm-knn")
    one_mask = None if name == "npm" else True
    labels = NonparametricLabels(index, encoder, one_mask, resources.settings.zero_shot.closed)
    labels.prepare(task)
    return Method(name, labels.predict)


def open_method(name: str, task: Task, resources: Resources) -> Method:
    """Method `npm`, which searches as the settings say, or one that names its retrieval."""
    return phrase_answers(PhraseFiller(*resources.index(task), resources.fill_settings(task)), name)


class NonparametricLabels:
    """Scores labels by the occurrences of their words in an index."""

    def __init__(
        self,
        index: PhraseIndex,
        encoder: Encoder,
        one_mask: bool | None = None,
        scoring: ClosedScoring | None = None,
        settings_key: str = "zero_shot.closed",
    ) -> None:
        """`one_mask`: its vector is the only query; else a mask pair asks; None: as the encoder was trained. `scoring`
        overrides that of a task; `settings_key` is its group for messages.

        Raises ArtifactError if `encoder` did not make the index, SettingError for one without vectors of tokens.
        """
        if not index.stores_tokens:
            raise SettingError(
                "labels are found by the vectors of tokens, and this index has none: build it with vectors=tokens",
                code="retrieval_unavailable",
            )
        self._index = index
        self._encoder = index.check_encoder(encoder)
        self._one_mask = encoder.query_masks == 1 if one_mask is None else one_mask
        self._settings_key = settings_key
        self._scoring = scoring or ClosedScoring()
        self._reader = SurfaceReader(index.store)
        self._occurrences = lru_cache(1)(partial(find_occurrences, index, self._encoder))
        self._queries = lru_cache(1)(self.encoded)  # of the prompts that calibrate, which labeling asks for again

    def prepare(self, task: Task) -> PreparedLabels:
        """Scoring of the labels of `task`, their words, each label with some in the corpus, and prompts that calibrate.

        Raises SettingError for incompatible settings, a label without occurrences.
        """
        scoring = task_scoring(task, self._scoring)
        verbalizer = load_verbalizer(task, scoring.verbalizer)
        words = tuple(dict.fromkeys(word for own in verbalizer.words for word in own))
        occurrences = self._occurrences(words, scoring.single_tokens)
        labels = LabelWords(task, verbalizer, occurrences, self._settings_key)
        if scoring.calibration not in BY_CORPUS:
            return PreparedLabels(scoring, verbalizer, occurrences, labels, ())
        if scoring.retrieval != "exact":
            raise SettingError(
                f"{self._settings_key}.calibration by the corpus needs {self._settings_key}.retrieval=exact, "
                f"got {scoring.retrieval} (task {task.name})"
            )
        prompts = corpus_prompts(task, self._index, self._settings_key)
        return PreparedLabels(scoring, verbalizer, occurrences, labels, prompts)

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        """The shares of all labels for each example, with the places that support them."""
        prepared = self.prepare(task)
        predictions: list[LabelPrediction] = []
        without_evidence = 0
        for scores, logs in self.batches(task, prepared, examples, progress, at_once=EXAMPLES_SCORED_TOGETHER):
            without_evidence += int(np.isneginf(logs).all(axis=1).sum())
            evidence = self.evidence(prepared, scores)
            shares = label_shares(logs).tolist()  # q lists of L
            predictions += [LabelPrediction(tuple(row), each) for row, each in zip(shares, evidence, strict=True)]
        facts = {
            "encoder": model_facts(self._encoder),
            "index": self._index.manifest.digest,
            "masks": "single" if self._one_mask else "pair",
            "scoring": as_json(asdict(replace(prepared.scoring, verbalizer=prepared.verbalizer.name))),
            "verbalizer": prepared.verbalizer.facts,
            "words": prepared.labels.counts,
            "without_evidence": without_evidence,
        }
        return Predictions(predictions, facts, prepared.labels.notes)

    def batches(
        self, task: Task, prepared: PreparedLabels, examples: Sequence[Example], progress: Progress, *, at_once: int
    ) -> Iterator[tuple[WordScores, np.ndarray]]:
        """Evidence of words, and calibrated logs of labels f64 [q, L], of `at_once` examples at a time."""
        return scored_batches(
            task,
            examples,
            partial(self.word_scores, prepared.occurrences, prepared.scoring),
            prepared.labels.numbers,
            progress,
            mean=prepared.scoring.label_mean,
            calibration=prepared.scoring.calibration,
            prompts=prepared.prompts,
            at_once=at_once,
            settings_key=self._settings_key,
        )

    def word_scores(self, occurrences: WordOccurrences, scoring: ResolvedScoring, texts: Sequence[str]) -> WordScores:
        """The evidence of each word at the masked position of each text."""
        queries, one_query = self._queries(tuple(texts), scoring.last_tokens), self._one_mask
        factor = self._encoder.similarity_scale / scoring.temperature
        if scoring.temperature_twice and not one_query:
            factor /= scoring.temperature
        if scoring.retrieval == "top_k":
            return hit_scores(self._index, occurrences, queries, k=scoring.k, factor=factor, one_query=one_query)
        # The end query of a single mask is zero: both ends would count one similarity twice.
        combination = Combination.product if one_query else scoring.combination
        return scan_scores(self._index, occurrences, queries, factor=factor, combination=combination)

    def encoded(self, texts: Sequence[str], last_tokens: int | None) -> QueryVectors:
        """The queries of q texts."""
        masks = 1 if self._one_mask else 2
        batches = (
            texts[first : first + EXAMPLES_ENCODED_TOGETHER]
            for first in range(0, len(texts), EXAMPLES_ENCODED_TOGETHER)
        )
        pieces = [encode_masks(self._encoder, each, masks_per_text=masks, last_tokens=last_tokens) for each in batches]
        vectors = np.concatenate([piece.vectors for piece in pieces])  # f32 [q, masks, d]
        start = vectors[:, 0]  # f32 [q, d]
        end = np.zeros_like(start) if self._one_mask else vectors[:, 1]  # f32 [q, d]
        return QueryVectors(start=start, end=end, cut=np.concatenate([piece.cut for piece in pieces]))

    def evidence(
        self, prepared: PreparedLabels, scores: WordScores, among: np.ndarray | None = None
    ) -> list[tuple[Evidence, ...]]:
        """For each of the q examples and each label the word that counts most for it, where it fits best.

        None where a label has no evidence; `among` i64 [q, l] are the only labels of each example, None: all.
        """
        labels, occurrences = prepared.labels, prepared.occurrences
        if among is None:
            among = np.broadcast_to(np.arange(len(labels.numbers)), (len(scores.best), len(labels.numbers)))
        parts = np.log(np.maximum(scores.counts, 1)) if prepared.scoring.label_mean == "words" else 0.0  # f64 [W]
        logs = scores.log_sums - parts  # f64 [q, W]
        best_words = np.stack([own[logs[:, own].argmax(axis=1)] for own in labels.numbers], axis=1)  # i64 [q, L]
        best_words = np.take_along_axis(best_words, among, axis=1)  # i64 [q, l]
        numbers = np.take_along_axis(scores.best, best_words, axis=1)  # i64 [q, l], -1 without evidence
        best_logs = np.take_along_axis(scores.best_logs, best_words, axis=1)  # f64 [q, l]
        shown = np.unique(numbers[numbers >= 0])  # i64, each is read once
        places = self._reader.occurrences(occurrences.starts[shown], occurrences.lengths[shown])
        place_of = dict(zip(shown.tolist(), places, strict=True))
        return [
            tuple(
                Evidence(label=label, word=occurrences.words[word], score=log, occurrence=place_of[number])
                for label, word, log, number in zip(*row, strict=True)
                if number in place_of
            )
            for row in zip(among.tolist(), best_words.tolist(), best_logs.tolist(), numbers.tolist(), strict=True)
        ]


def phrase_answers(filler: PhraseFiller, name: str = "npm") -> Method:
    """Fills the mask with phrases of an index, under the conditions of each example.

    `npm` searches as the filler's settings say; `npm-NAME` names the retrieval. Raises SettingError for an index that
    does not serve it.
    """
    retrieval = filler.settings.retrieval if name == "npm" else Retrieval(name.removeprefix("npm-"))
    settings = replace(filler.settings, retrieval=retrieval)
    # At least one occurrence, even if the filler would show none: a prediction says where it was found.
    unfiltered = replace(settings, where=[], documents=None, occurrences=max(1, settings.occurrences))

    def answer(task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        parts = (
            (None if part is None else PhraseFiller(part, filler.encoder, unfiltered), numbers)
            for part, numbers in admissible_parts(filler.index, examples, settings)
        )
        answers = answered(
            task,
            examples,
            parts,
            lambda part, own: part.fill([example.text for example in own]),
            progress,
            at_once=TEXTS_PER_CALL,
        )
        counts = {
            "cut": sum(answer.cut for answer in answers),
            "unanswered": sum(not answer.phrases for answer in answers),
            "inadmissible": sum(NO_DOCUMENT in answer.notes for answer in answers),
        }
        facts = {**filler_facts(filler, settings), "counts": counts}
        return Predictions(answers, facts, are_shares=not settings.scoring.reference)

    return Method(name, answer)
